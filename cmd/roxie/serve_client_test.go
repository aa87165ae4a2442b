package main

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/roxie-rdma/roxie/internal/nettest"
	"github.com/roxie-rdma/roxie/internal/xfer"
	"github.com/roxie-rdma/roxie/verbs"
	"github.com/roxie-rdma/roxie/verbs/cm"
)

// client is a device in a namespace.
type client struct {
	t   testing.TB
	dev *verbs.Context
	m   *cm.Manager
}

func newClient(t testing.TB, n *nettest.Namespace) *client {
	t.Helper()
	return clientOn(t, n, "veth0")
}

func clientOn(t testing.TB, n *nettest.Namespace, name string) *client {
	t.Helper()
	c, err := openClient(t, n, name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.close)
	return c
}

// openClient is clientOn for any goroutine; the caller closes.
func openClient(t testing.TB, n *nettest.Namespace, name string) (*client, error) {
	c := &client{t: t}
	err := n.DoErr(func() (err error) {
		c.dev, err = verbs.Open(name, nil)
		return err
	})
	if err != nil {
		return nil, err
	}
	if c.m, err = cm.New(c.dev, nil); err != nil {
		return nil, errors.Join(err, c.dev.Close())
	}
	return c, nil
}

func (c *client) close() {
	c.t.Helper()
	if err := errors.Join(c.m.Close(), c.dev.Close()); err != nil {
		c.t.Error(err)
	}
}

// link is a connection to an export, or to another service.
type link struct {
	*cm.Conn
	t   testing.TB
	cq  *verbs.CQ
	mem *verbs.MR
	xfer.Grant
}

func (c *client) dial(to string, private []byte) (*link, error) {
	c.t.Helper()
	pd, err := c.dev.AllocPD()
	if err != nil {
		return nil, err
	}
	l := &link{t: c.t}
	if l.mem, err = pd.AllocMR(1<<20, verbs.LocalWrite); err != nil {
		return nil, err
	}
	if l.cq, err = c.dev.CreateCQ(64); err != nil {
		return nil, err
	}
	qp, err := c.dev.CreateQP(pd, &verbs.QPInitAttr{Type: verbs.RC, SendCQ: l.cq, RecvCQ: l.cq, SigAll: true,
		Cap: verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16}})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	l.Conn, err = c.m.Dial(ctx, netip.MustParseAddrPort(to), qp, &cm.Params{Private: private})
	return l, err
}

func (c *client) export(name string, write bool) *link {
	c.t.Helper()
	l, err := c.dial("10.77.0.1:7470", xfer.Hello{Name: name, Write: write}.Marshal())
	if err == nil {
		l.Grant, err = xfer.ParseGrant(l.Private())
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return l
}

// do posts a work request on the export and returns its completion's status.
func (l *link) do(op verbs.WROpcode, off uint64, n int) verbs.WCStatus {
	l.t.Helper()
	wr := verbs.SendWR{Opcode: op, SGList: []verbs.SGE{l.mem.SGE(0, n)}, RemoteAddr: l.Addr + off,
		RKey: verbs.Key(l.RKey), CompareAdd: 5}
	if err := l.QP().PostSend(&wr); err != nil {
		l.t.Fatal(err)
	}
	return l.next().Status
}

func (l *link) next() verbs.WC {
	l.t.Helper()
	wc, err := l.wait()
	if err != nil {
		l.t.Fatal(err)
	}
	return wc
}

// wait is next for any goroutine.
func (l *link) wait() (verbs.WC, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var wc [1]verbs.WC
	for {
		if err := l.cq.Wait(ctx); err != nil {
			return wc[0], err
		}
		if n, err := l.cq.Poll(wc[:]); err != nil || n == 1 {
			return wc[0], err
		}
	}
}
