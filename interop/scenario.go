package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// scenario is a cell and how it is run: a combination of the dimensions, or a situation.
type scenario struct {
	Cell
	matrix bool // it is a combination of the dimensions
	// play runs it; what it returns is a note for the table.
	play func(ctx context.Context, s *scenario, r *rig, at *place) (note string, err error)
	// judge looks at what the captures show; nil: as of any cell.
	judge func(f *findings) error
	// prepare and undo change the guest's network around the capture.
	prepare func(ctx context.Context, r *rig) error
	undo    func(ctx context.Context, r *rig) error
	// rough: PSNs are not looked at, because packets are lost on purpose or ends die.
	rough bool
	// single: only one end has something to capture.
	single bool
}

// place is where roxie's side of a scenario puts its capture and its result.
type place struct{ pcap, json string }

// base is a cell as most scenarios have it.
func base(tool, role, transport, option string) Cell {
	return Cell{Tool: tool, Role: role, Transport: transport, PMTU: 4096, Family: "ipv4", Size: 4096,
		QPs: 1, LinkMTU: 4200, XDP: "native", Option: option}
}

// with changes a cell's size and path MTU.
func (c Cell) with(size, pmtu int) Cell {
	c.Size, c.PMTU = size, pmtu
	return c
}

// scenarios are all of them, in the order they run.
func scenarios() []*scenario {
	all := []*scenario{vlanScenario()}
	all = append(all, allSizesScenarios()...)
	all = append(all, netemScenarios()...)
	all = append(all, rnrScenarios()...)
	all = append(all, cmScenarios()...)
	all = append(all, srpScenarios()...)
	all = append(all, rejectScenarios()...)
	return append(all, deathScenarios()...)
}

// play runs a cell, captured at both ends, with everything around it.
func (r *rig) play(ctx context.Context, s *scenario) (rec *recorded, note string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, cellTimeout,
		fmt.Errorf("it took longer than %v", cellTimeout))
	defer cancel()
	if err := r.setMTU(ctx, s.LinkMTU); err != nil {
		return nil, "", err
	}
	if s.prepare != nil {
		if err := s.prepare(ctx, r); err != nil {
			return nil, "", err
		}
	}
	rec, err = r.record(ctx, func(pcap, json string) (err error) {
		note, err = s.play(ctx, s, r, &place{pcap, json})
		return err
	})
	if s.undo != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
		defer cancel()
		err = errors.Join(err, s.undo(ctx, r))
	}
	return rec, note, err
}

// stock plays a tool of the matrix, with more flags for each end.
func stock(theirs, ours []string) func(context.Context, *scenario, *rig, *place) (string, error) {
	return func(ctx context.Context, s *scenario, r *rig, at *place) (string, error) {
		t, o := s.commands(r.roxie)
		return "", r.pair(ctx, &s.Cell, append(t, theirs...), append(o, ours...), at)
	}
}

// allSizesScenarios run -a over RC: five messages of each size up to 8 MiB are some more packets than a
// cell may have.
func allSizesScenarios() []*scenario {
	return []*scenario{
		{Cell: base("ib_write_bw", "client", "RC", "all").with(0, 4096), play: stock(nil, nil)},
		{Cell: base("ib_read_bw", "server", "RC", "all").with(0, 4096), play: stock(nil, nil)},
	}
}

const (
	lossPercent = "2%"
	netemPipe   = "ifb0"
)

// netem has the guest treat what it sends, and what it receives, badly.
func netem(how string) (prepare, undo func(context.Context, *rig) error) {
	prepare = func(ctx context.Context, r *rig) error {
		_, err := r.run(ctx, fmt.Sprintf(`
modprobe -a sch_netem sch_ingress ifb act_mirred cls_matchall
ip link show %[1]s >/dev/null 2>&1 || ip link add %[1]s type ifb
ip link set %[1]s up
tc qdisc add dev eth0 ingress
tc filter add dev eth0 parent ffff: matchall action mirred egress redirect dev %[1]s
tc qdisc add dev eth0 root netem %[2]s
tc qdisc add dev %[1]s root netem %[2]s
`, netemPipe, how))
		return err
	}
	undo = func(ctx context.Context, r *rig) error {
		_, err := r.run(ctx, fmt.Sprintf(`
tc qdisc del dev eth0 root
tc qdisc del dev eth0 ingress
ip link del %s
`, netemPipe))
		return err
	}
	return prepare, undo
}

func netemScenarios() (all []*scenario) {
	// Under loss pingpong's messages are one packet long: rxe's requester can stop for ever when the
	// ACK of a longer one comes while it sends that again.
	for _, s := range []struct {
		how  string
		cell Cell
	}{
		{"loss " + lossPercent, base("ibv_rc_pingpong", "client", "RC", "loss").with(1024, 1024)},
		{"loss " + lossPercent, base("ib_read_bw", "server", "RC", "loss").with(65536, 4096)},
		{"loss " + lossPercent, base("ib_write_bw", "client", "RC", "loss").with(65536, 1024)},
		{"duplicate 5%", base("ibv_rc_pingpong", "server", "RC", "duplication").with(16384, 1024)},
		{"delay 1ms reorder 3%", base("ib_send_bw", "client", "RC", "reordering").with(16384, 2048)},
		{"delay 1ms reorder 3%", base("ibv_rc_pingpong", "server", "RC", "reordering").with(16384, 1024)},
	} {
		var more []string
		if s.cell.pingpong() && s.cell.Option != "duplication" {
			// What is lost is to be sent again soon: after 0.54 s.
			more = []string{"--qp-timeout", "17"}
		}
		sc := &scenario{Cell: s.cell, play: stock(nil, more), rough: true}
		sc.prepare, sc.undo = netem(s.how)
		option := s.cell.Option
		sc.judge = func(f *findings) error {
			if f.Retransmits == 0 {
				return fmt.Errorf("nothing was sent twice: was there no %s?", option)
			}
			return nil
		}
		all = append(all, sc)
	}
	return all
}

// rnrScenarios leave a receiver with one receive at a time.
func rnrScenarios() []*scenario {
	judge := func(f *findings) error {
		if f.RNR == 0 {
			return errors.New("no RNR NAK was sent")
		}
		return nil
	}
	one := []string{"-r", "1"}
	return []*scenario{
		{Cell: base("ib_send_bw", "client", "RC", "rnr"), play: stock(one, nil), judge: judge, rough: true},
		{Cell: base("ib_send_bw", "server", "RC", "rnr"), play: lateReceiver, judge: judge, rough: true},
	}
}

// lateReceiver has roxie stand still while messages come for its one receive: when it goes on, the
// first takes that, and those behind it find none. Then all goes on.
func lateReceiver(ctx context.Context, s *scenario, r *rig, at *place) (string, error) {
	// What comes meanwhile has to fit into roxie's ring, even twice.
	server, client, err := s.serveEndless(ctx, r, []string{"-t", "32"}, []string{"-r", "1", "--pcap", at.pcap})
	if err != nil {
		return "", err
	}
	defer server.stop()
	defer client.stop()
	if err := server.proc.Signal(unix.SIGSTOP); err != nil {
		return "", err
	}
	came := r.grows(ctx, "sent_pkts", 8)
	refused, err := r.counter(ctx, rnrCounter)
	if err := errors.Join(came, err, server.proc.Signal(unix.SIGCONT)); err != nil {
		return "", err
	}
	err = until(ctx, "an RNR NAK", func() (bool, error) {
		n, err := r.counter(ctx, rnrCounter)
		return n > refused, err
	})
	if err != nil {
		return "", err
	}
	if err := r.flowing(ctx, server); err != nil {
		return "", err
	}
	client.stop() // SIGKILL
	_, err = server.notices()
	return "", err
}

// rnrCounter counts the RNR NAKs that rxe has got.
const rnrCounter = "rcvd_rnr_err"

// deathScenarios kill one end in the middle.
func deathScenarios() []*scenario {
	return []*scenario{
		{Cell: base("ib_write_bw", "client", "RC", "killed peer"), play: killServerThere, rough: true},
		{Cell: base("ib_send_bw", "server", "RC", "killed peer"), play: killClientThere, rough: true},
		{Cell: base("ibv_rc_pingpong", "server", "RC", "killed roxie"), play: killHere, rough: true, single: true},
	}
}

// deadline is how long roxie may take to notice that its peer is gone: eight timeouts of 67 ms, and
// some time for a machine that is busy.
const deadline = 5 * time.Second

// endless is a number of messages that no test comes to.
const endless = "1000000"

// killServerThere kills the stock server once data flows. roxie must notice by itself. (In a pingpong
// that waits for its turn nothing tells, here and on Linux.)
func killServerThere(ctx context.Context, s *scenario, r *rig, at *place) (string, error) {
	theirs, ours := s.commands(r.roxie)
	theirs = append(theirs, "-n", endless)
	ours = append(ours, "-n", endless, "--pcap", at.pcap, "--json", at.json)
	ours = append(ours, s.peer(false)...)
	server, err := r.there(ctx, theirs...)
	if err != nil {
		return "", err
	}
	defer server.stop()
	err = until(ctx, "the server", func() (bool, error) { return r.readyThere(ctx, &s.Cell) })
	if err != nil {
		return "", err
	}
	client, err := r.here(ctx, ours...)
	if err != nil {
		return "", err
	}
	defer client.stop()
	if err := r.flowing(ctx, client); err != nil {
		return "", err
	}
	server.stop() // SIGKILL
	return client.notices()
}

// killClientThere kills the stock client once data flows. The server, which only receives, learns of
// it by the end of their TCP connection.
func killClientThere(ctx context.Context, s *scenario, r *rig, at *place) (string, error) {
	server, client, err := s.serveEndless(ctx, r, nil, []string{"--pcap", at.pcap, "--json", at.json})
	if err != nil {
		return "", err
	}
	defer server.stop()
	client.stop() // SIGKILL
	return server.notices()
}

// serveEndless lets roxie serve a stock client that does not end, both with more flags, until data
// flows. The caller stops both.
func (s *scenario) serveEndless(ctx context.Context, r *rig, moreTheirs, moreOurs []string) (
	server, client *process, err error) {
	theirs, ours := s.commands(r.roxie)
	theirs = slices.Concat(theirs, []string{"-n", endless}, moreTheirs, s.peer(true))
	server, err = r.here(ctx, slices.Concat(ours, []string{"-n", endless}, moreOurs)...)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			server.stop()
		}
	}()
	err = until(ctx, "roxie to listen", func() (bool, error) { return r.ready(&s.Cell, server) })
	if err != nil {
		return nil, nil, err
	}
	if client, err = r.there(ctx, theirs...); err != nil {
		return nil, nil, err
	}
	if err = r.flowing(ctx, server); err != nil {
		client.stop()
		return nil, nil, err
	}
	return server, client, nil
}

// notices expects a program to find out that its peer is gone.
func (p *process) notices() (string, error) {
	killed := time.Now()
	select {
	case <-p.done:
	case <-time.After(deadline):
		return "", fmt.Errorf("roxie has not noticed within %v", deadline)
	}
	took := time.Since(killed).Round(10 * time.Millisecond)
	if p.err == nil {
		return "", errors.New("roxie ended as if all were well")
	}
	return fmt.Sprintf("noticed after %v: %s", took, lastWords(p.out.String())), nil
}

// lastWords is what roxie says in the end.
func lastWords(output string) string {
	lines := strings.Split(strings.TrimSpace(output), "\n")
	return strings.TrimPrefix(lines[len(lines)-1], "roxie: ")
}

// flowing waits until a hundred packets have gone each way, by the guest's counters.
func (r *rig) flowing(ctx context.Context, p *process) error {
	start, err := r.counter(ctx, "sent_pkts")
	if err != nil {
		return err
	}
	return until(ctx, "data to flow", func() (bool, error) {
		select {
		case <-p.done:
			return false, p.failure(orEarly(p.err))
		default:
		}
		n, err := r.counter(ctx, "sent_pkts")
		return n > start+100, err
	})
}

// grows waits until one of rxe's counters has grown by n.
func (r *rig) grows(ctx context.Context, name string, n int) error {
	start, err := r.counter(ctx, name)
	if err != nil {
		return err
	}
	return until(ctx, name+" to grow", func() (bool, error) {
		now, err := r.counter(ctx, name)
		return now > start+n, err
	})
}

// counter is one of rxe's counters.
func (r *rig) counter(ctx context.Context, name string) (n int, err error) {
	out, err := r.run(ctx, "cat /sys/class/infiniband/rxe0/ports/1/hw_counters/"+name)
	if err != nil {
		return 0, err
	}
	_, err = fmt.Sscan(out, &n)
	return n, err
}

// retriesSeen is how many retransmissions of rxe show that it does not stop at seven.
const retriesSeen = 12

// killHere kills roxie. rxe should give up after seven retries, and does not: retry_cnt 7 means
// "for ever" to it (rxe_comp.c: the count is only lowered "if (qp->comp.retry_cnt != 7)").
func killHere(ctx context.Context, s *scenario, r *rig, at *place) (string, error) {
	server, client, err := s.serveEndless(ctx, r, nil, []string{"--pcap", at.pcap})
	if err != nil {
		return "", err
	}
	defer server.stop()
	defer client.stop()
	server.kill()
	before, err := r.counter(ctx, "completer_retry_err")
	if err != nil {
		return "", err
	}
	err = until(ctx, "Linux to repeat itself", func() (bool, error) {
		select {
		case <-client.done:
			return false, fmt.Errorf("rxe gave up, which it did not use to: %w",
				client.failure(orEarly(client.err)))
		default:
		}
		n, err := r.counter(ctx, "completer_retry_err")
		return n >= before+retriesSeen, err
	})
	return fmt.Sprintf("rxe repeated itself %d times and went on (retry_cnt 7 has no end there)",
		retriesSeen), err
}
