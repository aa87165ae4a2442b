// Package cm connects queue pairs by RDMA-CM, the way librdmacm does: by address and port, with
// private data, over QP1. Linux rdma_cm programs connect to it, and it to them.
//
// A Manager is a device's communication manager, made by New; there is one a device. The two ends of a
// connection, with librdmacm's calls beside them:
//
//	l, _ := m.Listen(7174, nil)               rdma_bind_addr, rdma_listen
//	r, _ := l.Accept(ctx)                     RDMA_CM_EVENT_CONNECT_REQUEST
//	c, _ := r.Accept(ctx, qp, nil)            rdma_accept, RDMA_CM_EVENT_ESTABLISHED
//
//	c, _ := m.Dial(ctx, addr, qp, nil)        rdma_resolve_addr, _route, rdma_connect
//
//	<-c.Done()                                RDMA_CM_EVENT_DISCONNECTED
//	c.Disconnect(ctx)                         rdma_disconnect
//
// The application makes the QP (RC or UC) and may post receives to it after Prepare; Dial and
// Accept bring it to RTS. When the connection ends, from either side, the QP goes to ERR and what
// was posted is flushed.
//
// # Events and IDs
//
// For programs that come from librdmacm there is its own shape, too: an EventChannel tells what has
// happened to IDs. Both ways work beside each other, on one Manager.
//
//	rdma_create_event_channel                 Manager.CreateEventChannel
//	rdma_destroy_event_channel                EventChannel.Close
//	rdma_get_cm_event, rdma_ack_cm_event      EventChannel.Get, Event.Ack
//	rdma_create_id, rdma_destroy_id           EventChannel.CreateID, ID.Destroy
//	rdma_migrate_id                           ID.Migrate
//	rdma_set_option                           ID.SetOption
//	rdma_bind_addr, rdma_listen               ID.Bind, ID.Listen
//	rdma_get_request                          ID.GetRequest
//	rdma_resolve_addr, rdma_resolve_route     ID.ResolveAddr, ID.ResolveRoute
//	rdma_create_qp                            ID.CreateQP; SetQP for a QP of one's own
//	rdma_init_qp_attr                         ID.QPAttr
//	rdma_connect, rdma_accept, rdma_reject    ID.Connect, Accept, Reject
//	rdma_establish, rdma_notify               ID.Establish, Notify
//	rdma_disconnect                           ID.Disconnect
//	rdma_join_multicast, _leave_multicast     ID.JoinMulticast, LeaveMulticast
//	rdma_get_local_addr, rdma_get_src_port    ID.LocalAddr
//	rdma_get_peer_addr, rdma_get_dst_port     ID.RemoteAddr
//	rdma_event_str                            EventType.String
//	RDMA_CM_EVENT_ESTABLISHED …, status       EventEstablished …, Event.Status
//
// An ID with a QP connects it by itself and takes the QP's first packet for the peer's last
// message. Without one (Params.QPN) its owner does, as QPAttr says: after EventConnectResponse or before
// Accept. Not there: the synchronous mode of IDs without a channel, since Dial, Listen and Resolve
// are that; RDMA_PS_IB and RDMA_PS_IPOIB; RDMA_OPTION_IB_PATH.
//
// # Rules
//
// The rules of the exchange (retransmission, duplicates, stale connections, time wait, limits) are
// package rxe/cm's.
package cm
