package srp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/roxie-rdma/roxie/verbs"
	"github.com/roxie-rdma/roxie/verbs/cm"
)

// DefaultPort is the RDMA-CM port where Linux's documentation has ib_srpt listen.
const DefaultPort = 5555

// Target is where to log in.
type Target struct {
	Addr netip.AddrPort
	Port PortID // Linux's ib_srpt: extension and GUID are both the module's srpt_service_guid
}

// Options of a session. Zero fields take the default named.
type Options struct {
	Channels int           // QPs; 1
	Depth    int           // commands of each channel at once; 16, at most 1024
	Timeout  time.Duration // of a login, of a command until it is aborted, of the abortion; 30 s
	// Initiator names the port. The GUID 0 is the device's.
	Initiator PortID
	Counters  *Counters // to share between sessions; nil: of its own
}

const (
	maxChannels = 64
	maxDepth    = 1024
)

func (o *Options) fill(dev *verbs.Context) error {
	if o.Channels == 0 {
		o.Channels = 1
	}
	if o.Depth == 0 {
		o.Depth = 16
	}
	if o.Timeout == 0 {
		o.Timeout = 30 * time.Second
	}
	if o.Initiator.GUID == 0 {
		o.Initiator.GUID = dev.Device().NodeGUID
	}
	if o.Counters == nil {
		o.Counters = new(Counters)
	}
	switch {
	case o.Channels < 1 || o.Channels > maxChannels:
		return fmt.Errorf("%d channels, 1 to %d are possible", o.Channels, maxChannels)
	case o.Depth < 1 || o.Depth > maxDepth:
		return fmt.Errorf("%d commands at once, 1 to %d are possible", o.Depth, maxDepth)
	case o.Timeout < 0:
		return fmt.Errorf("a timeout of %v", o.Timeout)
	}
	return nil
}

// Session is a login of an initiator port, with one or more channels.
type Session struct {
	Channels []*Channel
	Counters *Counters
	MaxITIU  uint32 // bytes of a unit that the target takes, on the first channel

	dev     *verbs.Context
	pd      *verbs.PD
	opts    Options
	target  Target
	leaving atomic.Bool
}

// RejectError is a target's refusal of a login, with its own reason.
type RejectError struct {
	Reason LoginReason
	CM     *cm.RejectError
}

// Error names the reason.
func (e *RejectError) Error() string {
	return fmt.Sprintf("the target refuses the login: %v", e.Reason)
}

// Unwrap returns what RDMA-CM says.
func (e *RejectError) Unwrap() error { return e.CM }

// Login opens all channels of a session. It ends those that the same initiator port has had at the
// target. Errors: *RejectError, those of cm.Manager.Dial.
func Login(ctx context.Context, dev *verbs.Context, m *cm.Manager, target Target,
	o Options) (*Session, error) {
	if err := o.fill(dev); err != nil {
		return nil, err
	}
	s := &Session{dev: dev, opts: o, target: target, Counters: o.Counters}
	var err error
	if s.pd, err = dev.AllocPD(); err != nil {
		return nil, err
	}
	for i := range o.Channels {
		c, err := s.login(ctx, m, i > 0)
		if err != nil {
			err = fmt.Errorf("log in to %v, channel %d: %w", target.Addr, i, err)
			bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), logoutTime)
			defer cancel()
			return nil, errors.Join(err, s.Logout(bye))
		}
		s.Channels = append(s.Channels, c)
		s.Counters.logins.Add(1)
	}
	return s, nil
}

// logoutTime is how long a target may take to answer a logout that follows an error.
const logoutTime = 5 * time.Second

// login opens a channel.
func (s *Session) login(ctx context.Context, m *cm.Manager, multi bool) (*Channel, error) {
	c, err := newChannel(s)
	if err != nil {
		return nil, err
	}
	tag := uint64(verbs.RandomPSN())
	req := LoginReq{Tag: tag, MaxITIU: sendSize, Formats: FormatDirect | FormatIndirect, Multi: multi,
		Initiator: s.opts.Initiator, Target: s.target.Port}
	dialing, cancel := context.WithTimeoutCause(ctx, s.opts.Timeout,
		fmt.Errorf("no answer within %v", s.opts.Timeout))
	defer cancel()
	conn, err := m.Dial(dialing, s.target.Addr, c.qp, &cm.Params{Private: req.Encode(), InitiatorDepth: -1,
		Access: access})
	if err != nil {
		var rej *cm.RejectError
		var why LoginRej
		if errors.As(err, &rej) && why.Decode(rej.Private) == nil {
			err = &RejectError{why.Reason, rej}
		}
		return nil, errors.Join(err, c.destroy())
	}
	credits, err := s.granted(conn.Private(), &req)
	if err != nil {
		_ = conn.Disconnect(ctx)
		return nil, errors.Join(err, c.destroy())
	}
	c.open(conn, credits)
	return c, nil
}

// granted reads a target's answer to a login.
func (s *Session) granted(private []byte, req *LoginReq) (credits int, err error) {
	var rsp LoginRsp
	if err := rsp.Decode(private); err != nil {
		return 0, fmt.Errorf("the target answers the login with %w", err)
	}
	switch {
	case rsp.Tag != req.Tag:
		err = fmt.Errorf("tag %#x for %#x", rsp.Tag, req.Tag)
	case rsp.MaxITIU < MaxCmdSize:
		err = fmt.Errorf("the target takes units of %d bytes, a command may have %d", rsp.MaxITIU,
			MaxCmdSize)
	case rsp.MaxTIIU > MaxTIIU:
		err = fmt.Errorf("the target sends units of %d bytes, at most %d are taken", rsp.MaxTIIU, MaxTIIU)
	case rsp.Formats&FormatDirect == 0 || rsp.Formats&FormatIndirect == 0:
		err = fmt.Errorf("the target supports buffer formats %#x, not both of %#x", rsp.Formats,
			req.Formats)
	case rsp.Credits <= tmCredits || rsp.Credits > 1<<20:
		err = fmt.Errorf("the target allows for %d requests at once", rsp.Credits)
	}
	if len(s.Channels) == 0 {
		s.MaxITIU = rsp.MaxITIU
	}
	return int(rsp.Credits), err
}

// Logout ends all channels and frees them; nobody is in Do any more. ctx bounds the wait for the
// target's answers. A second call does nothing.
func (s *Session) Logout(ctx context.Context) error {
	if s.leaving.Swap(true) {
		return nil
	}
	ends := make(chan error)
	for _, c := range s.Channels {
		go func() { ends <- c.close(ctx) }()
	}
	var errs []error
	for range s.Channels {
		errs = append(errs, <-ends)
	}
	if err := errors.Join(append(errs, s.pd.Dealloc())...); err != nil {
		return fmt.Errorf("log out: %w", err)
	}
	return nil
}

// Retransmits is how many packets of the session's QPs were sent twice.
func (s *Session) Retransmits() (n uint64) {
	for _, c := range s.Channels {
		n += c.qp.Stats().Retransmits
	}
	return n
}

// Inquire asks a logical unit what it is.
func (c *Channel) Inquire(ctx context.Context, lun uint64) (Inquiry, error) {
	b, err := c.fetch(ctx, lun, cdbInquiry(), inquiryLen)
	if err != nil {
		return Inquiry{}, fmt.Errorf("INQUIRY: %w", err)
	}
	return DecodeInquiry(b)
}

// Capacity asks a logical unit for its size, and for the most blocks of one command (0: it does not
// say).
func (c *Channel) Capacity(ctx context.Context, lun uint64) (size Capacity, limit uint32,
	err error) {
	b, err := c.fetch(ctx, lun, cdbCapacity(), capacity16Len)
	if err != nil {
		return size, 0, fmt.Errorf("READ CAPACITY: %w", err)
	}
	if size, err = DecodeCapacity(b); err != nil {
		return size, 0, err
	}
	var refused *StatusError
	if b, err = c.fetch(ctx, lun, cdbLimits(), limitsLen); err == nil {
		limit = maxTransfer(b)
	} else if !errors.As(err, &refused) { // not every unit has that page
		return size, 0, fmt.Errorf("INQUIRY of block limits: %w", err)
	}
	return size, limit, nil
}

// fetch is a command with a little data in; it is repeated while the unit has something to report
// first.
func (c *Channel) fetch(ctx context.Context, lun uint64, cdb [16]byte, n int) ([]byte, error) {
	b := bytes.Repeat([]byte{0xee}, n)
	cmd := Command{LUN: lun, CDB: cdb, Dir: DataIn, Data: [][]byte{b}}
	err := c.attentive(ctx, &cmd)
	if err == nil && (cmd.Residue < 0 || cmd.Residue > int64(n)) {
		err = fmt.Errorf("a residue of %d bytes of %d", cmd.Residue, n)
	}
	if err != nil {
		return nil, err
	}
	return b[:int64(n)-cmd.Residue], nil
}

// attentions is how often a unit may have something to report before a command.
const attentions = 8

// attentive does a command again after UNIT ATTENTION, which only tells of something that was
// before it, and, some time later, after BUSY and TASK SET FULL.
func (c *Channel) attentive(ctx context.Context, cmd *Command) error {
	for i := 0; ; i++ {
		err := c.Do(ctx, cmd)
		var e *StatusError
		if !errors.As(err, &e) || i >= attentions {
			return err
		}
		switch {
		case e.Status == CheckCondition && e.Sense.Key == SenseUnitAttention:
		case e.Status == Busy || e.Status == TaskSetFull:
			select {
			case <-time.After(10 * time.Millisecond << i):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		default:
			return err
		}
	}
}
