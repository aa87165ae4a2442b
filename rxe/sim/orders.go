package sim

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// Fault scripts say which frames meet a fault, and when something goes wrong for a while:
//
//	# the third READ request from node 1 to node 2 is lost, and the two behind it
//	drop n1>n2 RC_READ_REQUEST after=2 count=3
//	duplicate RC_FETCH_ADD count=10
//	corrupt psn=0xffffff
//	at 2ms partition n1 n2 for 3ms
//	at 5ms sleep n2.1 for 500us
//
// A line about frames begins with drop, duplicate, echo (a second copy comes late), corrupt, truncate or
// late; then, each of them if
// wanted: the way, the opcode, psn=N, after=N frames that fit, count=N frames (1). The first line that
// fits a frame decides; frames that none fits meet the fabric's probabilities.
//
// A line about time is "at TIME WHAT NODE for TIME". WHAT is partition (two nodes, this direction),
// sleep, txfull or txhold (a shard, as n2.1), and what the load itself knows: rnr (no receives are
// posted), stall (no work is posted). Nodes count from 1, shards from 0; a node or shard that is not
// there is passed over.

// FaultScript is a parsed script. One fabric at a time uses it.
type FaultScript struct {
	rules  []faultRule
	orders []Order
}

// faultRule is a line about frames.
type faultRule struct {
	verdict      Verdict
	from, to     int // node numbers from 1, 0 = any
	op           wire.Opcode
	anyOp        bool
	psn          wire.PSN
	anyPSN       bool
	after, count uint64
	seen         uint64
}

// Order is a line about time.
type Order struct {
	At, For rxe.Time
	What    string // partition, sleep, txfull, txhold, rnr, stall
	Node    *Node  // set when the order is carried out
	Num     int    // of the node, from 1
	Shard   int    // from 0
	Peer    int    // partition: number of the other node
}

var scriptVerdicts = map[string]Verdict{"drop": Drop, "duplicate": Duplicate, "corrupt": Corrupt,
	"truncate": Truncate, "late": Late, "echo": Echo}

// ParseFaults reads a script. An error names the line.
func ParseFaults(text string) (*FaultScript, error) {
	s := new(FaultScript)
	for i, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		var err error
		if v, ok := scriptVerdicts[words[0]]; ok {
			err = s.addRule(v, words[1:])
		} else if words[0] == "at" {
			err = s.addOrder(words[1:])
		} else {
			err = fmt.Errorf("a line begins with drop, duplicate, echo, corrupt, truncate, late or at")
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %s: %w", i+1, strings.TrimSpace(line), err)
		}
	}
	return s, nil
}

func (s *FaultScript) addRule(v Verdict, words []string) error {
	r := faultRule{verdict: v, anyOp: true, anyPSN: true, count: 1}
	for _, w := range words {
		name, value, isOption := strings.Cut(w, "=")
		a, b, isWay := strings.Cut(w, ">")
		var err error
		switch {
		case isOption:
			err = r.option(name, value)
		case isWay:
			if r.from, err = nodeNumber(a); err == nil {
				r.to, err = nodeNumber(b)
			}
		default:
			r.op, err = opcodeByName(w)
			r.anyOp = false
		}
		if err != nil {
			return err
		}
	}
	s.rules = append(s.rules, r)
	return nil
}

func (r *faultRule) option(name, value string) error {
	n, err := strconv.ParseUint(value, 0, 64)
	if err != nil {
		return fmt.Errorf("%s is no number", value)
	}
	switch name {
	case "psn":
		r.psn, r.anyPSN = wire.PSN(n&wire.PSNMask), false
	case "after":
		r.after = n
	case "count":
		r.count = n
	default:
		return fmt.Errorf("%s is not known: psn, after or count", name)
	}
	return nil
}

func opcodeByName(name string) (wire.Opcode, error) {
	for i := range 256 {
		if op := wire.Opcode(i); op.Known() && op.Info().Name == name {
			return op, nil
		}
	}
	return 0, fmt.Errorf("%s is no opcode; they are spelled as RC_SEND_ONLY", name)
}

func nodeNumber(w string) (int, error) {
	n, err := strconv.Atoi(strings.TrimPrefix(w, "n"))
	if err != nil || !strings.HasPrefix(w, "n") || n < 1 {
		return 0, fmt.Errorf("%s is no node; they are called n1, n2, …", w)
	}
	return n, nil
}

// addOrder parses "TIME WHAT NODE[.SHARD] [NODE] for TIME".
func (s *FaultScript) addOrder(w []string) (err error) {
	if len(w) < 5 || w[len(w)-2] != "for" {
		return fmt.Errorf("want at TIME WHAT NODE for TIME")
	}
	o := Order{What: w[1]}
	if o.At, err = scriptTime(w[0]); err != nil {
		return err
	}
	if o.For, err = scriptTime(w[len(w)-1]); err != nil {
		return err
	}
	who, shard, _ := strings.Cut(w[2], ".")
	if o.Num, err = nodeNumber(who); err != nil {
		return err
	}
	if shard != "" {
		if o.Shard, err = strconv.Atoi(shard); err != nil || o.Shard < 0 {
			return fmt.Errorf("%s is no shard", shard)
		}
	}
	names := 1
	switch o.What {
	case "partition":
		names = 2
		if len(w) == 6 {
			o.Peer, err = nodeNumber(w[3])
		}
	case "sleep", "txfull", "txhold", "rnr", "stall":
	default:
		return fmt.Errorf("%s is not known: partition, sleep, txfull, txhold, rnr or stall", o.What)
	}
	if err == nil && len(w) != 4+names {
		err = fmt.Errorf("%s names %d node(s)", o.What, names)
	}
	s.orders = append(s.orders, o)
	return err
}

var scriptUnits = []struct {
	name string
	unit rxe.Time
}{{"ns", 1}, {"us", 1000}, {"ms", 1_000_000}, {"s", 1_000_000_000}}

func scriptTime(w string) (rxe.Time, error) {
	for _, u := range scriptUnits {
		if n, err := strconv.ParseUint(strings.TrimSuffix(w, u.name), 10, 32); err == nil &&
			strings.HasSuffix(w, u.name) {
			return rxe.Time(n) * u.unit, nil
		}
	}
	return 0, fmt.Errorf("%s is no time; write 20us, 3ms, 1s", w)
}

// Start lets the script judge the frames of f from now on and schedules its orders. Those that the
// fabric does not know go to load, if that is not nil, when their time comes.
func (s *FaultScript) Start(f *Fabric, load func(Order)) {
	for i := range s.rules {
		s.rules[i].seen = 0
	}
	x := f.cfg.Faults
	x.Script = s.judge
	f.SetFaults(x)
	for _, o := range s.orders {
		f.At(f.now+o.At, func() { f.carryOut(o, load) })
	}
}

func (s *FaultScript) judge(_ uint64, from, to *Node, b []byte) Verdict {
	return s.Judge(from.id+1, to.id+1, b)
}

// Judge is what the script's lines about frames say of a frame from one node to another, whose numbers
// count from 1. [Fabric] asks it after Start; whoever has a wire of his own may ask himself.
func (s *FaultScript) Judge(from, to int, b []byte) Verdict {
	op, psn, ok := glance(b)
	if !ok {
		return Chance
	}
	for i := range s.rules {
		r := &s.rules[i]
		if r.from != 0 && (r.from != from || r.to != to) || !r.anyOp && r.op != op ||
			!r.anyPSN && r.psn != psn {
			continue
		}
		if r.seen++; r.seen > r.after && r.seen-r.after <= r.count {
			return r.verdict
		}
	}
	return Chance
}

// glance reads opcode and PSN of one of our own frames.
func glance(b []byte) (op wire.Opcode, psn wire.PSN, ok bool) {
	at := 14
	if len(b) > 16 && b[12] == 0x81 && b[13] == 0 {
		at += 4
	}
	if len(b) < at+20 {
		return 0, 0, false
	}
	if b[at]>>4 == 6 {
		at += 40
	} else {
		at += int(b[at]&15) * 4
	}
	if at += 8; len(b) < at+12 {
		return 0, 0, false
	}
	h := (*wire.BTH)(b[at:])
	return h.Opcode(), h.PSN(), true
}

// Orders are the script's lines about time.
func (s *FaultScript) Orders() []Order { return s.orders }

// carryOut does what an order says, and undoes it later.
func (f *Fabric) carryOut(o Order, load func(Order)) {
	if o.Num > len(f.nodes) || o.Peer > len(f.nodes) {
		return
	}
	o.Node = f.nodes[o.Num-1]
	if o.Shard >= len(o.Node.ports) {
		return
	}
	var set func(bool)
	switch o.What {
	case "partition":
		set = func(on bool) { o.Node.Partition(f.nodes[o.Peer-1], on) }
	case "sleep":
		set = func(on bool) { o.Node.Sleep(o.Shard, on) }
	case "txfull":
		set = func(on bool) { o.Node.FillTx(o.Shard, on) }
	case "txhold":
		set = func(on bool) { o.Node.HoldTx(o.Shard, on) }
	default:
		if load != nil {
			load(o)
		}
		return
	}
	set(true)
	f.At(f.now+o.For, func() { set(false) })
}
