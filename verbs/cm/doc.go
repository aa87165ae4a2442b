// Package cm connects queue pairs by RDMA-CM, the way librdmacm does: by address and port, with
// private data, over QP1. Linux rdma_cm programs connect to it, and it to them.
//
// A Manager is a device's communication manager; there is one a device. The two ends of a
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
// The rules of the exchange (retransmission, duplicates, stale connections, time wait, limits) are
// package rxe/cm's.
package cm
