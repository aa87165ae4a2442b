package pingpong

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/roxie-rdma/roxie/rxe/wire"
	"github.com/roxie-rdma/roxie/verbs"
)

// dest is one QP as the other end addresses it.
type dest struct {
	lid uint16 // 0 on Ethernet
	qpn verbs.QPN
	psn verbs.PSN
	gid wire.GID
}

// Lengths on the wire, with the C string's final NUL.
const (
	destLen = len("0000:000000:000000:00000000000000000000000000000000") + 1
	done    = "done\x00"
)

const (
	dialTimeout = 5 * time.Second
	stepTimeout = 30 * time.Second
)

// appendTo appends the dest as it travels.
func (d *dest) appendTo(b []byte) []byte {
	b = fmt.Appendf(b, "%04x:%06x:%06x:", d.lid, d.qpn, d.psn)
	b = hex.AppendEncode(b, d.gid[:])
	return append(b, 0)
}

// parseDest reads one.
func parseDest(b []byte) (d dest, err error) {
	text := strings.TrimRight(string(b), "\x00")
	fields := strings.Split(text, ":")
	if len(b) != destLen || len(fields) != 4 {
		return d, fmt.Errorf("the other end sent %q, which is no pingpong address", text)
	}
	var v [3]uint64
	for i, bits := range []int{16, 24, 24} {
		if v[i], err = strconv.ParseUint(fields[i], 16, bits); err != nil {
			return d, fmt.Errorf("the other end sent %q: %w", text, err)
		}
	}
	if n, err := hex.Decode(d.gid[:], []byte(fields[3])); err != nil || n != len(d.gid) {
		return d, fmt.Errorf("the other end sent %q, whose GID is none", text)
	}
	d.lid, d.qpn, d.psn = uint16(v[0]), verbs.QPN(v[1]), verbs.PSN(v[2])
	return d, nil
}

// String prints the dest as rdma-core's programs do.
func (d *dest) String() string {
	return fmt.Sprintf("LID 0x%04x, QPN 0x%06x, PSN 0x%06x, GID %v", d.lid, uint32(d.qpn),
		uint32(d.psn), netip.AddrFrom16(d.gid))
}

// exchangeDests trades addresses with the other end over a connection. connect is called in
// between: the server does not answer before it can receive.
func exchangeDests(conn net.Conn, client bool, ours []dest, connect func([]dest) error) error {
	if err := conn.SetDeadline(time.Now().Add(stepTimeout)); err != nil {
		return err
	}
	if client {
		if err := sendDests(conn, ours); err != nil {
			return err
		}
		theirs, err := receiveDests(conn, len(ours))
		if err != nil {
			return err
		}
		if err := connect(theirs); err != nil {
			return err
		}
		_, err = conn.Write([]byte(done))
		return err
	}
	theirs, err := receiveDests(conn, len(ours))
	if err != nil {
		return err
	}
	if err := connect(theirs); err != nil {
		return err
	}
	if err := sendDests(conn, ours); err != nil {
		return err
	}
	b := make([]byte, len(done))
	if _, err := io.ReadFull(conn, b); err != nil {
		return fmt.Errorf("wait for the client to be ready: %w", err)
	}
	return nil
}

// sendDests sends each dest in a write of its own: the programs read them one by one.
func sendDests(conn net.Conn, ours []dest) error {
	for i := range ours {
		if _, err := conn.Write(ours[i].appendTo(nil)); err != nil {
			return fmt.Errorf("send the address: %w", err)
		}
	}
	return nil
}

func receiveDests(conn net.Conn, n int) ([]dest, error) {
	all := make([]dest, n)
	b := make([]byte, destLen)
	for i := range all {
		if _, err := io.ReadFull(conn, b); err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				err = errors.New("it hung up; is it the same pingpong? " +
					"If it says \"Failed to modify QP to RTR\", its -g names no GID of our kind of address")
			}
			return nil, fmt.Errorf("receive the other end's address: %w", err)
		}
		var err error
		if all[i], err = parseDest(b); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// meet connects to the server, or waits for one client.
func meet(ctx context.Context, cfg *Config, ready func(net.Addr)) (net.Conn, error) {
	if cfg.Server != "" {
		d := net.Dialer{Timeout: dialTimeout}
		conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(cfg.Server, strconv.Itoa(cfg.Port)))
		if err != nil {
			return nil, fmt.Errorf("reach the server: %w; %s", err, reachHint(err))
		}
		return conn, nil
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", ":"+strconv.Itoa(cfg.Port))
	if err != nil {
		return nil, fmt.Errorf("wait for a client: %w; give another port with -p", err)
	}
	defer l.Close()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	if ready != nil {
		ready(l.Addr())
	}
	conn, err := l.Accept()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return conn, err
}

// reachHint says what to do about a server that could not be reached.
func reachHint(err error) string {
	var dns *net.DNSError
	if errors.As(err, &dns) || errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH) {
		return "check its address, and the way to it (roxie doctor --peer ADDRESS)"
	}
	return "start the same command there first, without an address"
}
