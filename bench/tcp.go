package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/internal/lab"
)

// TCP is what one TCP stream of iperf3 moves with messages (writes) of a size, over a veth pair as
// roxie's but without an XDP program, so that the kernel's offloads are all on.
type TCP struct {
	Size        int     `json:"size"`
	Gbps        float64 `json:"gbps"` // the best round
	Median      float64 `json:"median_gbps"`
	Spread      float64 `json:"spread"` // (greatest - least) ÷ median
	Retransmits uint64  `json:"retransmits"`
	Rounds      int     `json:"rounds"`
}

// tcpMeter measures TCP in a laboratory of its own.
type tcpMeter struct {
	lab    *lab.Lab
	rounds map[int][]round // by size; only ours is used
	again  map[int]uint64
}

const iperfPort = 5201

func newTCPMeter(mtu int) (*tcpMeter, error) {
	if _, err := exec.LookPath("iperf3"); err != nil {
		return nil, errors.New("iperf3 is missing, which measures TCP; `make bench` installs it, or " +
			"`apt-get install iperf3`")
	}
	l, err := lab.New(lab.Config{MTU: mtu})
	if err != nil {
		return nil, err
	}
	return &tcpMeter{lab: l, rounds: map[int][]round{}, again: map[int]uint64{}}, nil
}

func (t *tcpMeter) close() { _ = t.lab.Close() }

// round takes one round of each size.
func (t *tcpMeter) round(ctx context.Context, m *meter, n, of int) error {
	for _, size := range fullSizes {
		m.tell("%d/%d TCP, messages of %d bytes", n, of, size)
		gbps, again, err := t.measure(ctx, size)
		if err != nil {
			return err
		}
		t.rounds[size] = append(t.rounds[size], round{ours: gbps})
		t.again[size] += again
	}
	return nil
}

// iperfReport is the part of iperf3's JSON that is used.
type iperfReport struct {
	Error string `json:"error"`
	End   struct {
		Sent struct {
			Retransmits uint64 `json:"retransmits"`
		} `json:"sum_sent"`
		Received struct {
			BitsPerSecond float64 `json:"bits_per_second"`
		} `json:"sum_received"`
	} `json:"end"`
}

func (r *iperfReport) parse(text []byte) error {
	if err := json.Unmarshal(text, r); err != nil {
		return fmt.Errorf("read iperf3's report: %w", err)
	}
	if r.Error != "" {
		return fmt.Errorf("iperf3: %s", r.Error)
	}
	return nil
}

// iperf prepares iperf3 in a namespace. It dies with us.
func iperf(ctx context.Context, args ...string) (cmd *exec.Cmd, out *bytes.Buffer) {
	cmd = exec.CommandContext(ctx, "iperf3", append(args, "-J", "-p", strconv.Itoa(iperfPort))...)
	out = &bytes.Buffer{}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	return cmd, out
}

// measure runs one server and one client for a second.
func (t *tcpMeter) measure(ctx context.Context, size int) (gbps float64, again uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	server, _ := iperf(ctx, "-s", "-1")
	if err := t.lab.A.Start(server); err != nil {
		return 0, 0, err
	}
	defer func() {
		cancel() // if it still waits for a client
		_ = server.Wait()
	}()
	for try := 0; ; try++ {
		client, out := iperf(ctx, "-c", t.lab.A.IPv4.String(), "-t", "1", "-l", strconv.Itoa(size))
		if err := t.lab.B.Start(client); err != nil {
			return 0, 0, err
		}
		_ = client.Wait() // what went wrong stands in the report
		var r iperfReport
		err := r.parse(out.Bytes())
		switch {
		case err == nil:
			return r.End.Received.BitsPerSecond / 1e9, r.End.Sent.Retransmits, nil
		case ctx.Err() != nil:
			return 0, 0, context.Cause(ctx)
		case !strings.Contains(err.Error(), "Connection refused") || try == 100:
			return 0, 0, err
		}
		time.Sleep(20 * time.Millisecond) // the server does not listen yet
	}
}

// results sums up, by rising size.
func (t *tcpMeter) results() []TCP {
	var out []TCP
	for size, all := range t.rounds {
		ours := func(r *round) float64 { return r.ours }
		x := TCP{Size: size, Median: median(all, ours), Spread: spread(all, ours), Rounds: len(all),
			Retransmits: t.again[size]}
		for i := range all {
			x.Gbps = max(x.Gbps, all[i].ours)
		}
		out = append(out, x)
	}
	slices.SortFunc(out, func(a, b TCP) int { return a.Size - b.Size })
	return out
}

// compareTCP sets TCP's figures beside those of the largest PMTU.
func compareTCP(cells []Cell, tcp []TCP) {
	for i := range cells {
		c := &cells[i]
		if c.lat || c.PMTU != 4096 {
			continue
		}
		for _, t := range tcp {
			if t.Size == c.Size && t.Gbps > 0 {
				c.TCPGbps, c.TCPRatio = t.Gbps, c.Gbps/t.Gbps
			}
		}
	}
}
