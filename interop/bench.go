package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/roxie-rdma/roxie/internal/qemu"
)

// This file measures roxie beside rxe, both in the guest, over one veth pair, one after the other.
// The figures say little about either: the machine is emulated, checksums cost many times what they
// cost on a processor. Their ratio is reported, and not judged.

// Names and addresses of the pair. Both ends are in the first network namespace: rxe works in no
// other.
const (
	benchLinkA, benchLinkB = "va", "vb"
	benchRDMAA, benchRDMAB = "rxa", "rxb"
	benchAddrA             = "192.168.7.1"
	benchRoxie             = "/tmp/roxie"
	benchRounds            = 5
	benchMTU               = 4200
)

// benchUp makes the pair. Packets between two addresses of one machine go over the wire if the
// route is looked up with the interface, as both do; that they come from an own address has to be
// allowed, and neighbours to be told, as ARP would be answered by the machine itself.
const benchUp = `
ip link add va type veth peer name vb
ip link set va address 02:00:00:00:07:01 mtu %[1]d
ip link set vb address 02:00:00:00:07:02 mtu %[1]d
for s in va vb; do
	echo 1 >/proc/sys/net/ipv4/conf/$s/accept_local
	echo 0 >/proc/sys/net/ipv4/conf/$s/rp_filter
	echo 1 >/proc/sys/net/ipv6/conf/$s/disable_ipv6
done
echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
ip addr add 192.168.7.1/24 dev va
ip addr add 192.168.7.2/24 dev vb
ip link set va up
ip link set vb up
ip neigh replace 192.168.7.2 lladdr 02:00:00:00:07:02 dev va
ip neigh replace 192.168.7.1 lladdr 02:00:00:00:07:01 dev vb
`

const (
	benchRxeUp   = "rdma link add rxa type rxe netdev va; rdma link add rxb type rxe netdev vb"
	benchRxeDown = "rdma link del rxa; rdma link del rxb"
)

// Bench is a test and what both made of it.
type Bench struct {
	Test  string    `json:"test"` // as perftest calls it
	Size  int       `json:"size"` // bytes
	PMTU  int       `json:"pmtu"` // bytes
	Unit  string    `json:"unit"` // MB/s (10^6), or µs of half a round trip (of a whole one: read_lat)
	Roxie []float64 `json:"roxie"`
	Rxe   []float64 `json:"rxe"`
	// Ratio of the medians: how many times better roxie is.
	Ratio float64 `json:"ratio"`

	iters int
}

// BenchReport is the JSON form of -bench.
type BenchReport struct {
	Kernel   string            `json:"kernel"`
	Versions map[string]string `json:"versions"`
	Rounds   int               `json:"rounds"`
	Tests    []*Bench          `json:"tests"`
}

func benches() (all []*Bench) {
	for _, pmtu := range []int{1024, 4096} {
		for _, test := range []string{"write_bw", "send_bw", "read_bw"} {
			all = append(all, &Bench{Test: test, Size: 65536, PMTU: pmtu, Unit: "MB/s", iters: 400})
		}
	}
	for _, test := range []string{"write_lat", "send_lat", "read_lat"} {
		all = append(all, &Bench{Test: test, Size: 64, PMTU: 4096, Unit: "µs", iters: 1000})
	}
	return all
}

// bench runs all tests in several rounds, in which roxie and rxe take turns.
func bench(ctx context.Context, g *qemu.Guest, out io.Writer, jsonFile string) error {
	r := &rig{g: g}
	if err := r.pushRoxie(ctx); err != nil {
		return err
	}
	if _, err := r.run(ctx, fmt.Sprintf(benchUp, benchMTU)); err != nil {
		return err
	}
	rep := BenchReport{Kernel: g.Image.Release, Versions: g.Image.Versions, Rounds: benchRounds,
		Tests: benches()}
	for round := range benchRounds {
		fmt.Fprintf(out, "round %d of %d\n", round+1, benchRounds)
		if err := rep.round(ctx, r, out); err != nil {
			return err
		}
	}
	tw := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "test\tsize\tpmtu\tunit\troxie\trxe\tratio\t")
	for _, b := range rep.Tests {
		b.finish()
		fmt.Fprintf(tw, "%s\t%d\t%d\t%s\t%.1f\t%.1f\t%.2f\t\n", b.Test, b.Size, b.PMTU, b.Unit,
			median(b.Roxie), median(b.Rxe), b.Ratio)
	}
	_ = tw.Flush()
	fmt.Fprintln(out, "medians; inside an emulated machine, where checksums are dear: only the ratios",
		"mean something")
	if jsonFile == "" {
		return nil
	}
	text, err := json.MarshalIndent(&rep, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(jsonFile, append(text, '\n'), 0o666)
}

// pushRoxie compiles roxie without libc and puts it into the guest.
func (r *rig) pushRoxie(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "roxie-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	bin := filepath.Join(dir, "roxie")
	c := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w",
		"-o", bin, "github.com/roxie-rdma/roxie/cmd/roxie")
	c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("compile roxie for the guest: %w: %s", err, out)
	}
	f, err := os.Open(bin)
	if err != nil {
		return err
	}
	defer f.Close()
	return r.g.Push(ctx, benchRoxie, true, f)
}

// round runs each test once with both. An rxe device would answer what is roxie's, so that it is
// there only in its turn.
func (rep *BenchReport) round(ctx context.Context, r *rig, out io.Writer) error {
	for _, b := range rep.Tests {
		v, err := b.run(ctx, r, []string{benchRoxie, "perf", b.Test}, benchLinkA, benchLinkB, "0")
		if err != nil {
			return fmt.Errorf("roxie: %w", err)
		}
		b.Roxie = append(b.Roxie, v)
		fmt.Fprintf(out, "  roxie %s, %d bytes, path MTU %d: %.1f %s\n", b.Test, b.Size, b.PMTU, v, b.Unit)
	}
	if _, err := r.run(ctx, benchRxeUp); err != nil {
		return err
	}
	for _, b := range rep.Tests {
		// GID 0 of an rxe device is link-local.
		v, err := b.run(ctx, r, []string{"ib_" + b.Test}, benchRDMAA, benchRDMAB, "1")
		if err != nil {
			return fmt.Errorf("rxe: %w", err)
		}
		b.Rxe = append(b.Rxe, v)
		fmt.Fprintf(out, "  rxe %s, %d bytes, path MTU %d: %.1f %s\n", b.Test, b.Size, b.PMTU, v, b.Unit)
	}
	_, err := r.run(ctx, benchRxeDown)
	return err
}

// run runs a test once: a server and a client in the guest.
func (b *Bench) run(ctx context.Context, r *rig, program []string, deviceA, deviceB, gid string) (
	float64, error) {
	ctx, cancel := context.WithTimeout(ctx, cellTimeout)
	defer cancel()
	argv := func(device string, more ...string) []string {
		flags := []string{"-d", device, "-x", gid, "-m", strconv.Itoa(b.PMTU), "-s", strconv.Itoa(b.Size),
			"-n", strconv.Itoa(b.iters), "-F", "-u", strconv.Itoa(ackTimeout)}
		return slices.Concat(program, flags, more)
	}
	cell := Cell{Tool: "ib_" + b.Test}
	if err := r.deaf(ctx, &cell); err != nil {
		return 0, err
	}
	server, err := r.there(ctx, argv(deviceA)...)
	if err != nil {
		return 0, err
	}
	defer server.stop()
	err = until(ctx, b.Test+" to listen", func() (bool, error) {
		select {
		case <-server.done:
			return false, server.failure(orEarly(server.err))
		default:
		}
		return r.readyThere(ctx, &cell)
	})
	if err != nil {
		return 0, err
	}
	client, err := r.there(ctx, argv(deviceB, benchAddrA)...)
	if err != nil {
		return 0, err
	}
	defer client.stop()
	if err := errors.Join(client.wait(ctx), server.wait(ctx)); err != nil {
		return 0, err
	}
	return b.figure(client.out.String())
}

// resultLine is the line of figures that perftest prints, and roxie as it does.
var resultLine = regexp.MustCompile(`(?m)^ (\d+) +(\d+) +(\d.*)$`)

// figure reads what a client printed: the average bandwidth, the typical latency.
func (b *Bench) figure(text string) (float64, error) {
	m := resultLine.FindStringSubmatch(text)
	if m == nil || m[1] != strconv.Itoa(b.Size) {
		return 0, fmt.Errorf("%s printed no result: %s", b.Test, lastLines(text))
	}
	f := strings.Fields(m[3])
	at := 1 // bandwidth: peak, average, …
	if strings.HasSuffix(b.Test, "_lat") {
		at = 2 // min, max, typical, …
	}
	if len(f) <= at {
		return 0, fmt.Errorf("%s printed %q", b.Test, m[0])
	}
	v, err := strconv.ParseFloat(f[at], 64)
	if err != nil || at == 2 {
		return v, err
	}
	switch {
	case strings.Contains(text, "BW average[Gb/sec]"):
		return v * 1000 / 8, nil
	case strings.Contains(text, "BW average[MB/sec]"):
		return v * (1 << 20) / 1e6, nil
	}
	return 0, fmt.Errorf("%s printed a bandwidth in no known unit: %s", b.Test, lastLines(text))
}

func (b *Bench) finish() {
	b.Ratio = median(b.Roxie) / median(b.Rxe)
	if strings.HasSuffix(b.Test, "_lat") {
		b.Ratio = 1 / b.Ratio
	}
}

func median(all []float64) float64 {
	s := slices.Sorted(slices.Values(all))
	if len(s)%2 == 1 {
		return s[len(s)/2]
	}
	return (s[len(s)/2-1] + s[len(s)/2]) / 2
}
