package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

// writeDocument writes docs/interop.md from a report.
func writeDocument(name, jsonFile string) error {
	if jsonFile == "" {
		return errors.New("-doc needs -json, a report")
	}
	b, err := os.ReadFile(jsonFile)
	if err != nil {
		return err
	}
	var r Report
	if err := json.Unmarshal(b, &r); err != nil {
		return fmt.Errorf("%s: %w", jsonFile, err)
	}
	return os.WriteFile(name, r.document(), 0o666)
}

const documentHead = `# roxie and Linux

What was run against the kernel's rdma_rxe and the stock tools of rdma-core and perftest, in an
emulated machine, and how it went. ` + "`make interop`" + ` runs a pairwise cover and the scenarios in some
minutes; ` + "`make interop-full`" + ` the cross product below, and what has run already is not run again;
` + "`make interop-doc`" + ` writes this file from what that left. Each cell is captured at both ends and
checked (` + "`go doc ./interop`" + ` says how); nothing is tried twice within a run.

`

const productText = `## The cross product

Every combination of tool, role, transport, option, size and path MTU that makes sense is one cell
or more. IP family, link MTU (1500, 4176, 4200), XDP mode and number of QPs (1, 16) take turns, such
that every three values of any dimensions that can meet do. All combinations of all ten would be
%d cells and most of a day; these are %d. A field says how many cells of that path MTU are ok, of how
many; all: messages of all sizes, one after the other; -: there are none.

`

const senseText = `## What makes no sense

These combinations are not cells.

| combination | why |
|---|---|
| path MTU larger than the link's | 1024 is what fits 1500, 4096 fits 4176 with IPv4 and 4180 with IPv6; where Linux begins an RC connection over RDMA-CM it takes 96 bytes off the link's, and 2048 is what fits 4176 |
| ibv_ud_pingpong and rping with another path MTU than the link's | they take the link's |
| ibv_rc_pingpong and _srq_ with more than 256 packets at once | their ACK timeout is 67 ms and cannot be changed; an emulated machine takes no more |
| perftest's WRITE with UD, READ and ATOMIC with UC or UD | not in the transport |
| UD messages larger than the path MTU | one packet each |
| ATOMIC with other sizes than 8 | not in the transport |
| latency tests with 16 QPs | perftest refuses |
| -e with WRITE | perftest refuses |
| -e with ib_send_lat | it takes events of either CQ for those of the one it waits for, and may wait for ever |
| -b with latency tests | perftest refuses |
| -R with UC, with IPv6, or with another path MTU than the link's | perftest's -R has IPv4 and RC or UD; RDMA-CM chooses the path MTU |
| -D with UC or UD bandwidth, or with more than 16 packets a message | nothing bounds the packets; captures would not be complete |
| -I with more than 64 bytes | that is what it is tried with |
| rping smaller than 64 or larger than 65535 | its own limits |
| UC and UD bandwidth of more than 2000 packets each way | roxie's ring has room for 2048, and nothing holds the sender back |
| cells of more than 20,000 packets or 32 MiB, as -a over RC and UC | captures are to be complete, and looked at; two scenarios run -a over RC all the same |

No cell of the product is skipped.

`

const bugText = `## What Linux does, and how a cell deals with it

| Linux 6.12 | here |
|---|---|
| rxe never answers a repeated zero-length READ whose response was lost, and is asked for ever | avoided: no test reads zero bytes over a lossy network; roxie answers such repetitions (its simulation loses them on purpose) |
| rxe's requester can stop for ever when the ACK of a SEND of several packets comes while it sends that SEND again (seen in captures of both ends: roxie had acknowledged all of it, and rxe sent nothing more for 87 s) | avoided: under loss, pingpong's messages are one packet long; messages of several packets are lost with roxie as requester, and as responder of READs. A cell in which rxe's timer of 67 ms runs out on a busy machine can still meet it: it fails, with the captures as evidence |
| rxe with retry_cnt 7 never gives up | asserted: cell "killed roxie" sees 12 repetitions and no end |
| rxe does not stop its retransmission timer when all is acknowledged: it may fire for what was sent since | counted apart, as needless: at most what roxie had answered within 20 ms |
| rxe answers a SEND that is too long with NAK remote operational error, not invalid request | avoided: the tools post receives that are long enough |
| rxe takes a path MTU larger than its link's (it looks at max_mtu) | avoided: "bad pmtu" is tried with roxie as the one that refuses |
| rxe works in the first network namespace only | avoided: the guest has no other |
| mckey -s destroys its address handle at once; rxe sends from a work queue, and finds none | avoided: mckey runs on the work queue's processor and behind it |
| stock servers listen to TCP over IPv4 only | avoided: TCP goes over IPv4, the data over what the cell says |
| the stock pingpongs have a fixed ACK timeout of 67 ms; an emulated machine stands still for longer | what Linux repeats is judged by what roxie had answered; roxie has --qp-timeout |
| perftest's -D sends until its send queue is empty | -t 1 with -D |
| fq_codel drops what waits in a slow machine | the guest has a pfifo |
`

// document is the Markdown text.
func (r *Report) document() []byte {
	var b bytes.Buffer
	b.WriteString(documentHead)
	r.versions(&b)
	cells := full()
	fmt.Fprintf(&b, productText, len(all()), len(cells))
	r.coverage(&b, cells)
	r.product(&b)
	r.scenarioTable(&b)
	r.failures(&b)
	b.WriteString(senseText)
	b.WriteString(bugText)
	return b.Bytes()
}

func (r *Report) versions(b *bytes.Buffer) {
	b.WriteString("## Versions\n\n| package | version |\n|---|---|\n")
	for _, name := range slices.Sorted(maps.Keys(r.Versions)) {
		if !strings.HasPrefix(name, "lib") || strings.HasPrefix(name, "libibverbs") ||
			strings.HasPrefix(name, "librdmacm") {
			fmt.Fprintf(b, "| %s | %s |\n", name, r.Versions[name])
		}
	}
	b.WriteString("\n")
}

// coverage says how much of the product has run.
func (r *Report) coverage(b *bytes.Buffer, cells []Cell) {
	wanted := make(map[Cell]bool)
	for _, c := range cells {
		wanted[c] = true
	}
	ran := 0
	for i := range r.Cells {
		if wanted[r.Cells[i].Cell] {
			ran++
		}
	}
	ok, failed := 0, 0
	for i := range r.Cells {
		if r.Cells[i].OK {
			ok++
		} else {
			failed++
		}
	}
	fmt.Fprintf(b, "**%d of the %d cells have run**", ran, len(cells))
	if other := len(r.Cells) - ran; other > 0 {
		fmt.Fprintf(b, ", and %d others", other)
	}
	fmt.Fprintf(b, ": %d are ok, %d failed. It took %.0f minutes.", ok, failed, r.Seconds/60)
	if r.Again > 0 {
		fmt.Fprintf(b, " %d, scenarios among them, had failed in an earlier run and were run again.", r.Again)
	}
	b.WriteString("\n\n")
}

// product is the table of the matrix.
func (r *Report) product(b *bytes.Buffer) {
	type row struct{ tool, role, transport, option string }
	type count struct{ ok, all int }
	counts := make(map[row]map[int]*count)
	for i := range r.Cells {
		o := &r.Cells[i]
		k := row{o.Tool, o.Role, o.Transport, o.Option}
		if counts[k] == nil {
			counts[k] = make(map[int]*count)
		}
		if counts[k][o.PMTU] == nil {
			counts[k][o.PMTU] = new(count)
		}
		n := counts[k][o.PMTU]
		n.all++
		if o.OK {
			n.ok++
		}
	}
	b.WriteString("| tool | roxie | transport | option |")
	for _, p := range pmtus {
		fmt.Fprintf(b, " %d |", p)
	}
	b.WriteString("\n|---|---|---|---|" + strings.Repeat("---|", len(pmtus)) + "\n")
	for _, tool := range tools {
		for _, transport := range transports {
			for _, option := range options {
				for _, role := range roles {
					n := counts[row{tool, role, transport, option}]
					if n == nil {
						continue
					}
					fmt.Fprintf(b, "| %s | %s | %s | %s |", tool, role, transport, optionFlags[option])
					for _, p := range pmtus {
						if n[p] == nil {
							b.WriteString(" - |")
						} else {
							fmt.Fprintf(b, " %d/%d |", n[p].ok, n[p].all)
						}
					}
					b.WriteString("\n")
				}
			}
		}
	}
	b.WriteString("\n")
}

// optionFlags are the options as flags.
var optionFlags = map[string]string{"events": "-e", "both": "-b", "all": "-a", "time": "-D 1",
	"inline": "-I 64", "cm": "-R"}

func (r *Report) scenarioTable(b *bytes.Buffer) {
	b.WriteString("## Scenarios\n\n| tool | roxie | transport | what | | seen |\n|---|---|---|---|---|---|\n")
	for i := range r.Scenarios {
		o := &r.Scenarios[i]
		verdict := "ok"
		if !o.OK {
			verdict = "FAILED"
		}
		seen := o.Note
		if seen == "" {
			seen = fmt.Sprintf("%d packets", o.Packets)
			if o.Retransmits > 0 {
				seen += fmt.Sprintf(", %d sent again", o.Retransmits)
			}
			if o.RNR > 0 {
				seen += fmt.Sprintf(", %d RNR NAKs", o.RNR)
			}
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s | %s |\n", o.Tool, o.Role, o.Transport, o.Option, verdict,
			strings.ReplaceAll(seen, "|", "/"))
	}
	b.WriteString("\n")
}

func (r *Report) failures(b *bytes.Buffer) {
	head := "## What failed\n\n"
	for o := range r.all {
		if !o.OK {
			fmt.Fprintf(b, "%s- %v: %s\n", head, o.Cell, o.Reason)
			head = ""
		}
	}
	if head == "" {
		b.WriteString("\n")
	}
}
