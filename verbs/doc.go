// Package verbs is libibverbs for Go, on RoCEv2 over AF_XDP: RDMA between ordinary network
// interfaces, without special hardware or kernel modules.
//
// A program opens a device, registers memory, makes queue pairs and connects them to a peer's. From
// then on it posts work requests and polls completions; neither allocates, and neither makes a
// system call while the device is busy.
//
//	c, _ := verbs.Open("eth0", nil)                      // the device of an interface
//	pd, _ := c.AllocPD()
//	mr, _ := pd.AllocMR(1<<20, verbs.LocalWrite|verbs.RemoteWrite)
//	cq, _ := c.CreateCQ(256)
//	qp, _ := c.CreateQP(pd, &verbs.QPInitAttr{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, Shard: -1,
//		Cap: verbs.QPCap{MaxSendWR: 64, MaxRecvWR: 64}})
//	// tell the peer qp.Num(), a PSN and c.GID(i), and learn the same
//	_ = qp.ConnectRC(psn, peer, verbs.ConnOptions{})
//	_ = qp.PostSend(&verbs.SendWR{Opcode: verbs.WRSend, Flags: verbs.SendSignaled,
//		SGList: []verbs.SGE{mr.SGE(0, 100)}})
//	_ = cq.Wait(ctx)
//	n, _ := cq.Poll(wc)
//
// # From libibverbs
//
//	ibv_open_device                   Open, OpenLinks
//	ibv_close_device                  Context.Close
//	ibv_query_device                  Context.Device
//	ibv_query_port                    Context.Port
//	ibv_query_gid, _gid_table         Context.GID, GIDs
//	ibv_get_async_event               Context.AsyncEvent
//	ibv_alloc_pd, ibv_dealloc_pd      Context.AllocPD, PD.Dealloc
//	ibv_reg_mr, ibv_dereg_mr          PD.RegMR or PD.AllocMR, MR.Dereg
//	ibv_rereg_mr                      MR.Rereg
//	ibv_alloc_mw, ibv_dealloc_mw      PD.AllocMW, MW.Dealloc
//	ib_alloc_mr, ib_map_mr_sg         PD.AllocFastMR, MR.MapSG
//	ib_update_fast_reg_key            MR.UpdateKey
//	ibv_create_cq, ibv_destroy_cq     Context.CreateCQ, CQ.Destroy
//	ibv_resize_cq, ibv_poll_cq        CQ.Resize, CQ.Poll
//	ibv_req_notify_cq                 CQ.ReqNotify
//	ibv_get_cq_event                  CQ.Notify, CQ.Wait
//	ibv_create_qp, ibv_destroy_qp     Context.CreateQP, QP.Destroy
//	ibv_modify_qp, ibv_query_qp       QP.Modify, QP.Query
//	ibv_post_send                     QP.PostSend, QP.PostSendList
//	ibv_post_recv                     QP.PostRecv, QP.PostRecvList
//	ibv_attach_mcast, _detach_mcast   QP.AttachMcast, QP.DetachMcast
//	ibv_create_srq, ibv_destroy_srq   Context.CreateSRQ, SRQ.Destroy
//	ibv_modify_srq, ibv_query_srq     SRQ.SetLimit, SRQ.Resize, SRQ.Query
//	ibv_post_srq_recv                 SRQ.PostRecv
//	ibv_create_ah, ibv_destroy_ah     PD.CreateAH, AH.Destroy
//	ibv_wc_status_str                 WCStatus.String
//
// Constants keep their meaning and number: IBV_WC_SUCCESS is WCSuccess, IBV_WR_RDMA_WRITE is
// WRRDMAWrite, IBV_QP_AV is AttrAV. Path MTUs are in bytes, vendor_err is a Reason with a text, and
// control calls return errors instead of errno: a sentence that says what to do, around values for
// errors.Is and errors.As.
//
// # Who makes progress
//
// Each queue of the interface is one shard: socket, memory and engine. With ProgressPoller a thread
// for each moves the packets. With ProgressCaller the goroutine in CQ.Poll does, which is fastest
// for request and answer, and a thread takes over where nobody polls for 50 µs. Either way a device
// serves its peers, acknowledges and repeats whatever the application does or does not do. A goroutine
// that polls without pause should lock itself to a thread (runtime.LockOSThread): one that changes
// threads changes CPUs too, and may meet its peer on the same one.
//
// # Memory
//
// A region keeps its memory alive while it is registered. The device works on it from the post of a
// work request to its completion, and for peers at any time: read what a peer writes after a
// completion that tells of it, or by LoadFlag, which sees the last byte of a WRITE last.
//
// # What the package does not do
//
// It opens no connection by itself: peers exchange ConnInfo by other means, or use package
// verbs/cm. tcpdump does not see the traffic: Config.Capture does.
package verbs
