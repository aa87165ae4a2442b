package verbs

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/bpf"
	"github.com/roxie-rdma/roxie/internal/netdev"
)

// Prepared is all of an interface that takes privileges: the steering program, attached, and an
// AF_XDP socket for each queue, tied to the interface and bound to nothing yet. A process with
// CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF makes it by Prepare; Config.Prepared gives it to Open, there
// or, by way of Export and ImportPrepared, in a process without any privilege. It serves for one
// Open, which takes it over in any case. One goroutine at a time.
type Prepared struct {
	prog    *bpf.Program
	sockets []*os.File
}

// Prepare does the privileged part of Open for an interface of the calling thread's network
// namespace. Of cfg it takes Queues and Mode. Errors are those of Open; nothing is left behind then.
func Prepare(ifname string, cfg *Config) (_ *Prepared, err error) {
	conf, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("prepare %s: %w", ifname, err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p, err := prepare(ifname, &conf)
	if err != nil {
		return nil, fmt.Errorf("prepare %s: %w", ifname, err)
	}
	return p, nil
}

func prepare(ifname string, conf *Config) (_ *Prepared, err error) {
	if err := netdev.RequireCaps(netdev.CapNetAdmin, netdev.CapNetRaw, netdev.CapBPF); err != nil {
		return nil, err
	}
	conn, err := netdev.Open()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	link, _, err := readInterface(conn, ifname, conf.Queues)
	if err != nil {
		return nil, err
	}
	p := &Prepared{}
	defer func() {
		if err != nil {
			_ = p.Close()
		}
	}()
	if p.prog, err = bpf.Load(bpf.Config{Queues: conf.Queues}); err != nil {
		return nil, err
	}
	if err = p.prog.Attach(link.Index, conf.Mode); err != nil {
		return nil, err
	}
	for i := range conf.Queues {
		f, err := preparedSocket(link.Name)
		if err != nil {
			return nil, fmt.Errorf("prepare socket of queue %d: %w", i, err)
		}
		p.sockets = append(p.sockets, f)
	}
	return p, nil
}

// preparedSocket opens an AF_XDP socket that can be bound to queues of one interface only.
func preparedSocket(ifname string) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "AF_XDP socket")
	if err := unix.BindToDevice(fd, ifname); err != nil {
		return nil, errors.Join(fmt.Errorf("tie it to %s: %w", ifname, err), f.Close())
	}
	return f, nil
}

// preparedMeta is what goes along with the files.
type preparedMeta struct {
	Ifindex           int
	Interface         string
	Mode              int
	ProgramID, LinkID uint32
	Up, Carrier       bool
	WhyNotNative      string
}

// Export returns what another process needs to make the same of: a description, and the files to
// pass along with it (SCM_RIGHTS), up to 253 of them. p is empty afterwards and the files are the
// caller's, who closes them when they are sent.
func (p *Prepared) Export() (meta []byte, files []*os.File, err error) {
	a := p.prog.Attachment()
	m := preparedMeta{Ifindex: a.Ifindex, Interface: a.Interface, Mode: int(a.Mode), ProgramID: a.ProgramID,
		LinkID: a.LinkID, Up: a.Up, Carrier: a.Carrier}
	if a.Fallback != nil {
		m.WhyNotNative = a.Fallback.Error()
	}
	if meta, err = json.Marshal(m); err != nil {
		return nil, nil, err
	}
	if files, err = p.prog.Files(); err != nil {
		return nil, nil, err
	}
	files = append(files, p.sockets...)
	p.sockets = nil
	return meta, files, p.Close()
}

// ImportPrepared makes of meta and files what Export took apart. The files are taken over, and closed
// with an error.
func ImportPrepared(meta []byte, files []*os.File) (*Prepared, error) {
	var m preparedMeta
	err := json.Unmarshal(meta, &m)
	if err == nil && len(files) <= bpf.NumFiles {
		err = fmt.Errorf("%d files", len(files))
	}
	if err != nil {
		for _, f := range files {
			_ = f.Close()
		}
		return nil, fmt.Errorf("take over a prepared interface: %w", err)
	}
	a := bpf.Attachment{Ifindex: m.Ifindex, Interface: m.Interface, Mode: bpf.Mode(m.Mode),
		ProgramID: m.ProgramID, LinkID: m.LinkID, Up: m.Up, Carrier: m.Carrier}
	if m.WhyNotNative != "" {
		a.Fallback = errors.New(m.WhyNotNative)
	}
	p := &Prepared{sockets: files[bpf.NumFiles:]}
	if p.prog, err = bpf.FromFiles(files[:bpf.NumFiles], a); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// Close gives up what Open has not taken over. Closing twice is fine.
func (p *Prepared) Close() error {
	var errs []error
	for _, f := range p.sockets {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	p.sockets = nil
	if p.prog != nil {
		errs = append(errs, p.prog.Close())
		p.prog = nil
	}
	return errors.Join(errs...)
}

// adopt makes sure that p was prepared for this interface, and takes its program.
func (c *Context) adopt(p *Prepared) error {
	switch {
	case p.prog == nil:
		return errors.New("what was prepared for it has been used already")
	case p.prog.Attachment().Ifindex != c.link.Index:
		return fmt.Errorf("%w: what was prepared is for interface %d, this is another, %d",
			netdev.ErrNoLink, p.prog.Attachment().Ifindex, c.link.Index)
	case len(p.sockets) != c.cfg.Queues:
		return fmt.Errorf("%d queues are prepared, %d are wanted", len(p.sockets), c.cfg.Queues)
	}
	c.prog, p.prog = p.prog, nil
	return nil
}
