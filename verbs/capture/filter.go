package capture

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/roxie-rdma/roxie/rxe/wire"
	"github.com/roxie-rdma/roxie/verbs"
)

// FilterHelp is the language of filters, for usage texts.
const FilterHelp = `  qp N             of the QP N of this endpoint, or to the peer's QP N
  wr N             of the work request with ID N
  host A, src A, dst A    an address, or a network as 10.0.0.0/8
  opcode NAME      write, send, read, atomic, flush, ack, nak, cnp, or one as RC_SEND_ONLY
  in, out          received, sent
  dropped          received and not taken, with the reason in the comment
  icrc bad         received with a wrong ICRC
  again            requests sent again, or received again
  queue N          came or went by queue N
  less N, greater N       frames of at most, at least N bytes
joined by and, or, not and parentheses`

// Filter chooses packets. Use ParseFilter; nil chooses all.
type Filter struct {
	root  node
	parse bool // a header is looked at
}

// kind is what a node of a filter looks at.
type kind uint8

const (
	kindAnd kind = iota
	kindOr
	kindNot
	kindQP
	kindWR
	kindHost
	kindSrc
	kindDst
	kindOpcode
	kindService // a class of opcodes
	kindNAK
	kindACK
	kindIn
	kindOut
	kindDropped
	kindBad
	kindAgain
	kindQueue
	kindLess
	kindGreater
)

// node is an expression: an operator over others, or one test.
type node struct {
	kind   kind
	number uint64
	net    netip.Prefix
	sub    []node
}

// headers reports whether a kind needs the frame taken apart.
func (k kind) headers() bool {
	switch k {
	case kindQP, kindHost, kindSrc, kindDst, kindOpcode, kindService, kindNAK, kindACK:
		return true
	}
	return false
}

// classes are words for groups of opcodes, as flags of which one must be set.
var classes = map[string]wire.Flags{
	"write": wire.FlagWrite, "send": wire.FlagSend, "read": wire.FlagRead | wire.FlagReadResp,
	"atomic": wire.FlagAtomic | wire.FlagAtomicWrite | wire.FlagAtomicAck, "flush": wire.FlagFlush,
}

// Match reports whether the filter chooses a frame. p is room to take it apart in. Any number of
// goroutines may call it, each with a p of its own. It does not allocate.
func (f *Filter) Match(x *verbs.Captured, p *wire.Packet) bool {
	if f == nil {
		return true
	}
	parsed := f.parse && wire.ParseNoICRC(wire.Frame{Head: x.Head, Tail: x.Tail}, p) == wire.ReasonOK
	return f.root.match(x, p, parsed)
}

func (n *node) match(x *verbs.Captured, p *wire.Packet, parsed bool) bool {
	switch n.kind {
	case kindAnd:
		for i := range n.sub {
			if !n.sub[i].match(x, p, parsed) {
				return false
			}
		}
		return true
	case kindOr:
		for i := range n.sub {
			if n.sub[i].match(x, p, parsed) {
				return true
			}
		}
		return false
	case kindNot:
		return !n.sub[0].match(x, p, parsed)
	case kindQP:
		return x.HasQP && uint64(x.QP) == n.number || parsed && uint64(p.DestQP) == n.number
	case kindWR:
		return x.HasWR && x.WRID == n.number
	case kindIn:
		return x.Dir == verbs.Inbound
	case kindOut:
		return x.Dir == verbs.Outbound
	case kindDropped:
		return !reasonNone(x.Drop)
	case kindBad:
		return x.Drop == verbs.Reason(wire.ReasonICRC)
	case kindAgain:
		return x.Again
	case kindQueue:
		return uint64(x.Shard) == n.number
	case kindLess:
		return uint64(len(x.Head)+len(x.Tail)) <= n.number
	case kindGreater:
		return uint64(len(x.Head)+len(x.Tail)) >= n.number
	}
	return parsed && n.matchHeaders(p)
}

func (n *node) matchHeaders(p *wire.Packet) bool {
	switch n.kind {
	case kindHost:
		return n.net.Contains(p.Src.Addr()) || n.net.Contains(p.Dst.Addr())
	case kindSrc:
		return n.net.Contains(p.Src.Addr())
	case kindDst:
		return n.net.Contains(p.Dst.Addr())
	case kindOpcode:
		return uint64(p.Op) == n.number
	case kindService:
		return p.Info.Flags&wire.Flags(n.number) != 0
	case kindACK, kindNAK:
		return p.Info.Flags&wire.FlagAck != 0 && (p.AETH().Syndrome().Kind() == wire.KindACK) == (n.kind == kindACK)
	}
	return false
}

// ParseFilter reads a filter in the language of FilterHelp. An empty one is nil: it chooses all.
func ParseFilter(text string) (*Filter, error) {
	p := parser{words: splitWords(text)}
	if len(p.words) == 0 {
		return nil, nil
	}
	n, err := p.or()
	if err == nil && p.at < len(p.words) {
		err = fmt.Errorf("%q is too much: join tests with `and` or `or`", p.words[p.at])
	}
	if err != nil {
		return nil, fmt.Errorf("filter %q: %w", text, err)
	}
	return &Filter{root: n, parse: p.headers}, nil
}

// splitWords takes a filter apart; parentheses and ! stand for themselves.
func splitWords(text string) []string {
	for _, c := range []string{"(", ")", "!"} {
		text = strings.ReplaceAll(text, c, " "+c+" ")
	}
	text = strings.NewReplacer("&&", " and ", "||", " or ").Replace(text)
	return strings.Fields(text)
}

// parser reads the words of a filter from left to right.
type parser struct {
	words   []string
	at      int
	depth   int
	headers bool
}

// maxDepth is how deep a filter may nest.
const maxDepth = 64

func (p *parser) next(what string) (string, error) {
	if p.at == len(p.words) {
		return "", fmt.Errorf("%s is missing at the end", what)
	}
	p.at++
	return strings.ToLower(p.words[p.at-1]), nil
}

// take takes the next word if it is w.
func (p *parser) take(w ...string) bool {
	for _, w := range w {
		if p.at < len(p.words) && strings.EqualFold(p.words[p.at], w) {
			p.at++
			return true
		}
	}
	return false
}

func (p *parser) or() (node, error)  { return p.list(kindOr, "or", p.and) }
func (p *parser) and() (node, error) { return p.list(kindAnd, "and", p.not) }

func (p *parser) list(k kind, word string, each func() (node, error)) (node, error) {
	n, err := each()
	for err == nil && p.take(word) {
		if n.kind != k || len(n.sub) == 0 {
			n = node{kind: k, sub: []node{n}}
		}
		var more node
		more, err = each()
		n.sub = append(n.sub, more)
	}
	return n, err
}

func (p *parser) not() (n node, err error) {
	if p.depth++; p.depth > maxDepth {
		return n, fmt.Errorf("nests more than %d deep", maxDepth)
	}
	defer func() { p.depth-- }()
	switch {
	case p.take("not", "!"):
		n, err = p.not()
		return node{kind: kindNot, sub: []node{n}}, err
	case p.take("("):
		if n, err = p.or(); err == nil && !p.take(")") {
			err = errors.New("`)` is missing")
		}
		return node{kind: kindAnd, sub: []node{n}}, err
	}
	return p.test()
}

// words are the tests without an argument.
var words = map[string]kind{
	"in": kindIn, "inbound": kindIn, "out": kindOut, "outbound": kindOut, "dropped": kindDropped,
	"again": kindAgain, "retransmission": kindAgain, "ack": kindACK, "nak": kindNAK,
}

// numbers are those with a number.
var numbers = map[string]kind{
	"qp": kindQP, "wr": kindWR, "queue": kindQueue, "shard": kindQueue,
	"less": kindLess, "greater": kindGreater,
}

// hosts are those with an address.
var hosts = map[string]kind{"host": kindHost, "net": kindHost, "src": kindSrc, "dst": kindDst}

func (p *parser) test() (n node, err error) {
	word, err := p.next("a test")
	if err != nil {
		return n, err
	}
	switch {
	case words[word] != 0:
		n.kind = words[word]
	case numbers[word] != 0:
		n.kind = numbers[word]
		n.number, err = p.number(word)
	case hosts[word] != 0:
		n.kind = hosts[word]
		n.net, err = p.network(word)
	case word == "opcode":
		n, err = p.opcode()
	case word == "icrc":
		n, err = p.icrc()
	default:
		err = fmt.Errorf("%q is no test, as qp, host, opcode or dropped; `roxie capture --help` tells all", word)
	}
	p.headers = p.headers || n.kind.headers()
	return n, err
}

func (p *parser) number(word string) (uint64, error) {
	w, err := p.next("the number of `" + word + "`")
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(w, 0, 64)
	if err != nil {
		return 0, fmt.Errorf("%s %s: want a number, as 17 or 0x11", word, w)
	}
	return n, nil
}

func (p *parser) network(word string) (netip.Prefix, error) {
	if word != "host" && word != "net" {
		p.take("host", "net")
	}
	w, err := p.next("the address of `" + word + "`")
	if err != nil {
		return netip.Prefix{}, err
	}
	if a, err := netip.ParseAddr(w); err == nil {
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	n, err := netip.ParsePrefix(w)
	if err != nil {
		return n, fmt.Errorf("%s %s: want an address, as 10.0.0.1 or fd00::1, or a network, as 10.0.0.0/8", word, w)
	}
	return n.Masked(), nil
}

func (p *parser) icrc() (n node, err error) {
	w, err := p.next("ok or bad after `icrc`")
	switch {
	case err != nil:
	case w == "bad":
		n.kind = kindBad
	case w == "ok":
		n = node{kind: kindNot, sub: []node{{kind: kindBad}}}
	default:
		err = fmt.Errorf("icrc %s: want ok or bad", w)
	}
	return n, err
}

// opcode reads the name of one opcode or of a class.
func (p *parser) opcode() (n node, err error) {
	w, err := p.next("the name of `opcode`")
	if err != nil {
		return n, err
	}
	p.headers = true
	switch w {
	case "ack":
		return node{kind: kindACK}, nil
	case "nak":
		return node{kind: kindNAK}, nil
	}
	if f := classes[w]; f != 0 {
		return node{kind: kindService, number: uint64(f)}, nil
	}
	n.kind = kindOr
	for op := range 256 {
		o := wire.Opcode(op)
		if !o.Known() {
			continue
		}
		name := strings.ToLower(o.String())
		if name == w {
			return node{kind: kindOpcode, number: uint64(op)}, nil
		}
		if _, rest, _ := strings.Cut(name, "_"); rest == w {
			n.sub = append(n.sub, node{kind: kindOpcode, number: uint64(op)})
		}
	}
	if len(n.sub) == 0 {
		return n, fmt.Errorf("opcode %s: want write, send, read, atomic, ack, nak, or a name as RC_SEND_ONLY", w)
	}
	return n, nil
}
