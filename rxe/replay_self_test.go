package rxe_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/roxie-rdma/roxie/rxe"
	"github.com/roxie-rdma/roxie/rxe/wire"
)

// This file tests the replay itself: that it sees what is wrong and allows what is free.

// verdict is a testing.TB that keeps what the replay says instead of failing.
type replayVerdict struct {
	testing.TB
	said []string
}

type replayStop struct{}

func (v *replayVerdict) Helper()                   {}
func (v *replayVerdict) Failed() bool              { return len(v.said) > 0 }
func (v *replayVerdict) Logf(string, ...any)       {}
func (v *replayVerdict) Errorf(f string, a ...any) { v.said = append(v.said, fmt.Sprintf(f, a...)) }
func (v *replayVerdict) Error(a ...any)            { v.said = append(v.said, fmt.Sprint(a...)) }
func (v *replayVerdict) Fatal(a ...any)            { v.Error(a...); panic(replayStop{}) }
func (v *replayVerdict) Fatalf(f string, a ...any) { v.Errorf(f, a...); panic(replayStop{}) }

// judge replays rec and returns what the replay finds wrong with it.
func judge(t *testing.T, rec *recording, x *exceptions, play func(*player)) (said string) {
	v := &replayVerdict{TB: t}
	defer func() {
		if r := recover(); r != nil && r != any(replayStop{}) {
			panic(r)
		}
		said = strings.Join(v.said, "\n")
	}()
	replay(v, rec, x, play)
	return
}

// edit changes packet n of a recording; its ICRC and IPv4 checksum are made right again.
func (r *recording) edit(t *testing.T, n int, change func(frame []byte, p *wire.Packet)) {
	t.Helper()
	v := r.packets[n-1]
	frame := bytes.Clone(v.frame)
	var p wire.Packet
	wire.Parse(wire.Frame{Head: frame}, &p)
	change(frame, &p)
	if !p.V6 {
		var sum uint32
		frame[24], frame[25] = 0, 0
		for i := 14; i < 34; i += 2 {
			sum += uint32(binary.BigEndian.Uint16(frame[i:]))
		}
		sum = sum>>16 + sum&0xffff
		binary.BigEndian.PutUint16(frame[24:], ^uint16(sum+sum>>16))
	}
	_, _, icrc := wire.CheckICRC(wire.Frame{Head: frame})
	binary.LittleEndian.PutUint32(frame[len(frame)-4:], icrc)
	w, reason := newPacketView(frame)
	if reason != wire.ReasonOK {
		t.Fatalf("edited packet %d: %v", n, reason)
	}
	w.n, w.from = v.n, v.from
	*v = *w
}

// remove takes packet n out of a recording's conversations.
func (r *recording) remove(n int) {
	for _, c := range r.convs {
		c.packets = slices.DeleteFunc(c.packets, func(v *packetView) bool { return v.n == n })
	}
}

func editBTH(t *testing.T, r *recording, n int, change func(h *wire.BTH)) {
	r.edit(t, n, func(_ []byte, p *wire.Packet) { change(p.BTH()) })
}

func editAETH(t *testing.T, r *recording, n int, change func(h *wire.AETH)) {
	r.edit(t, n, func(_ []byte, p *wire.Packet) { change(p.AETH()) })
}

// TestReplaySees: a recording that is not what our engine does is told from one that is.
func TestReplaySees(t *testing.T) {
	responder, requester := (*player).responder, (*player).requester
	for _, c := range []struct {
		name    string
		capture string
		play    func(*player)
		change  func(t *testing.T, r *recording)
		want    string // a part of what is found; empty: nothing may be
	}{
		{"MSN", "rc_send", responder, func(t *testing.T, r *recording) {
			editAETH(t, r, 4, func(h *wire.AETH) { h.SetMSN(7) })
		}, "msn: kernel 7, ours 2"},
		{"MSN of a READ response", "rc_read", responder, func(t *testing.T, r *recording) {
			editAETH(t, r, 15, func(h *wire.AETH) { h.SetMSN(7) })
		}, "msn: kernel 7, ours 4"},
		{"NAK code", "rc_nak_rkey", responder, func(t *testing.T, r *recording) {
			editAETH(t, r, 3, func(h *wire.AETH) { h.SetSyndrome(wire.NAKSyndrome(wire.NAKRemoteOp)) })
		}, "syndrome: kernel 0x63"},
		{"RNR timer", "rc_rnr", responder, func(t *testing.T, r *recording) {
			editAETH(t, r, 4, func(h *wire.AETH) { h.SetSyndrome(wire.RNRSyndrome(3)) })
		}, "syndrome: kernel 0x23"},
		{"response data", "rc_read", responder, func(t *testing.T, r *recording) {
			r.edit(t, 5, func(_ []byte, p *wire.Packet) { p.Data0[9] ^= 1 })
		}, "payload: kernel crc32_"},
		{"original value", "rc_atomic", responder, func(t *testing.T, r *recording) {
			r.edit(t, 4, func(_ []byte, p *wire.Packet) { p.AtomicAckETH().SetOrig(1) })
		}, "orig: kernel 0x0000000000000001"},
		{"response PSN in a lossy capture", "dup", responder, func(t *testing.T, r *recording) {
			editBTH(t, r, 25, func(h *wire.BTH) { h.SetPSN(0x104) })
		}, "packet 25"},
		{"response missing on our side", "ackloss_1", responder, func(t *testing.T, r *recording) {
			r.remove(58) // a READ request that is answered
			r.remove(54)
			r.remove(49)
			r.remove(47)
		}, "we send nothing like it"},
		{"response too many", "rc_read", responder, func(t *testing.T, r *recording) {
			r.remove(9)
		}, "packet 14"},
		{"NAK too many", "rc_nak_bounds", responder, func(t *testing.T, r *recording) {
			r.remove(2)
		}, "what the kernel did not"},
		{"request missing", "rc_send", requester, func(t *testing.T, r *recording) {
			r.remove(6)
		}, "psn: kernel"},
		{"last request missing", "rc_send", requester, func(t *testing.T, r *recording) {
			r.remove(8)
			r.remove(9)
		}, "requests more than the kernel sent"},
		{"request data", "rc_write", requester, func(t *testing.T, r *recording) {
			r.edit(t, 6, func(_ []byte, p *wire.Packet) { p.Data0[0] ^= 1 })
		}, "payload: kernel"},
		{"request data in a lossy capture", "loss_write_1", requester, func(t *testing.T, r *recording) {
			r.edit(t, 30, func(_ []byte, p *wire.Packet) { p.Data0[0] ^= 1 })
		}, "payload: kernel"},
		{"RETH length", "rc_write", requester, func(t *testing.T, r *recording) {
			r.edit(t, 5, func(_ []byte, p *wire.Packet) { p.RETH().SetLength(4095) })
		}, "dmalen: kernel 4095, ours 4096"},
		{"P_Key", "rc_send", requester, func(t *testing.T, r *recording) {
			editBTH(t, r, 1, func(h *wire.BTH) { h.SetPKey(0x7fff) })
		}, "pkey: kernel 0x7fff"},
		{"solicited", "rc_send", requester, func(t *testing.T, r *recording) {
			editBTH(t, r, 1, func(h *wire.BTH) { h.SetSolicited(true) })
		}, "flags: kernel se,ackreq, ours ackreq"},
		{"AckReq of the last packet", "rc_send", requester, func(t *testing.T, r *recording) {
			editBTH(t, r, 8, func(h *wire.BTH) { h.SetAckReq(false) })
		}, "flags: kernel -, ours ackreq"},
		{"reserved bits", "rc_send", requester, func(t *testing.T, r *recording) {
			editBTH(t, r, 1, func(h *wire.BTH) { h[4] |= 1 })
		}, "headers: kernel"},
		{"traffic class", "rc_send", requester, func(t *testing.T, r *recording) {
			r.edit(t, 1, func(f []byte, _ *wire.Packet) { f[15] = 2 })
		}, "tclass: kernel 0x02"},
		{"don't fragment", "rc_send", requester, func(t *testing.T, r *recording) {
			r.edit(t, 1, func(f []byte, _ *wire.Packet) { f[20] = 0 })
		}, "headers: kernel"},
		{"Q_Key", "ud_send", requester, func(t *testing.T, r *recording) {
			r.edit(t, 1, func(_ []byte, p *wire.Packet) { p.DETH().SetQKey(5) })
		}, "qkey: kernel 0x00000005"},
		{"status", "rc_nak_len", requester, func(t *testing.T, r *recording) {
			r.convs[0].steps[1].wc.status = rxe.WCRemInvReqErr
		}, "completes with"},
		{"received bytes", "uc_send", responder, func(t *testing.T, r *recording) {
			r.convs[0].posts[2].recv.length++
		}, "receive completion"},
		{"immediate data", "ud_send_imm_v6", responder, func(t *testing.T, r *recording) {
			r.convs[0].posts[0].recv.imm++
		}, "receive completion"},
		{"memory of the responder", "rc_send", responder, func(t *testing.T, r *recording) {
			r.edit(t, 8, func(_ []byte, p *wire.Packet) { p.Data0[1] ^= 1 })
		}, "byte 0x8c01 of our memory"},
		{"memory of the requester", "rc_read", requester, func(t *testing.T, r *recording) {
			r.edit(t, 21, func(_ []byte, p *wire.Packet) { p.Data0[1] ^= 1 })
		}, "byte 0x4401 of our memory"},
		{"value in memory", "rc_atomic", responder, func(t *testing.T, r *recording) {
			r.convs[0].steps[0].value++
		}, "orig: kernel"},

		{"free: IP ID, TTL, source port", "rc_mix", requester, func(t *testing.T, r *recording) {
			r.edit(t, 1, func(f []byte, _ *wire.Packet) { f[18]++; f[22] = 3; f[35]++ })
		}, ""},
		{"free: flow label, hop limit", "rc_mix_v6", requester, func(t *testing.T, r *recording) {
			r.edit(t, 1, func(f []byte, _ *wire.Packet) { f[15] |= 5; f[17]++; f[21] = 3 })
		}, ""},
		{"free: MigReq, AckReq inside a message", "rc_write", requester, func(t *testing.T, r *recording) {
			editBTH(t, r, 6, func(h *wire.BTH) { h.SetMigReq(true); h.SetAckReq(true) })
		}, ""},
		{"free: credits", "rc_mix", responder, func(t *testing.T, r *recording) {
			editAETH(t, r, 10, func(h *wire.AETH) { h.SetSyndrome(wire.AckSyndrome(4)) })
		}, ""},
		{"free: coalescing", "rc_mix", responder, func(t *testing.T, r *recording) {
			r.remove(8)
		}, ""},
		{"free: more responses when lossy", "dup", responder, func(t *testing.T, r *recording) {
			r.remove(31)
			r.remove(75)
			r.remove(90)
		}, ""},
		{"free: a response that the network repeats", "dup", responder, func(t *testing.T, r *recording) {
			c := r.convs[0]
			c.packets = append(c.packets, &packetView{n: 99, from: endB, frame: c.packets[2].frame,
				p: c.packets[2].p, fields: c.packets[2].fields})
		}, ""},
		{"a response that the kernel repeats", "dup", responder, func(t *testing.T, r *recording) {
			c := r.convs[3]
			c.packets = append(c.packets, &packetView{n: 99, from: endB, frame: bytes.Clone(c.packets[2].frame),
				p: c.packets[2].p, fields: c.packets[2].fields})
			c.packets[len(c.packets)-1].frame[19]++
		}, "we send nothing like it"},
		{"free: fewer repeats when lossy", "dup", requester, func(t *testing.T, r *recording) {
			r.remove(32)
		}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			rec := readRecording(t, captureDir, c.capture)
			c.change(t, rec)
			said := judge(t, rec, readExceptions(t, differsFile), c.play)
			if c.want == "" && said != "" || !strings.Contains(said, c.want) {
				t.Errorf("the replay says %q, want %q", said, c.want)
			}
		})
	}
}

// TestReplayExceptions: a difference needs its line, a line needs its difference.
func TestReplayExceptions(t *testing.T) {
	good := "rc_nak_len\t2\tsyndrome\t0x63(nak_remote_op)\t0x61(nak_invalid_request)\trule\n"
	for _, c := range []struct{ name, text, said, unused string }{
		{"right", good, "", ""},
		{"missing", "", "syndrome: kernel 0x63", ""},
		{"another packet", strings.Replace(good, "2", "1", 1), "syndrome", "packet 1 syndrome"},
		{"another field", strings.Replace(good, "syndrome", "msn", 1), "syndrome", "packet 2 msn"},
		{"another value of the kernel", strings.Replace(good, "0x63", "0x64", 1), "syndrome",
			"packet 2 syndrome"},
		{"another value of ours", strings.Replace(good, "0x61", "0x62", 1), "syndrome", "packet 2 syndrome"},
		{"one too many", good + "rc_nak_len\t1\topcode\tSEND_ONLY\tSEND_FIRST\trule\n", "", "packet 1 opcode"},
		{"twice", good + good, "", ":2: rc_nak_len packet 2"},
		{"no such capture", good + "rc_nak_lem\t1\topcode\tA\tB\trule\n", "", "rc_nak_lem"},
	} {
		t.Run(c.name, func(t *testing.T) {
			x, err := parseExceptions("differs", c.text)
			if err != nil {
				t.Fatal(err)
			}
			said := judge(t, readRecording(t, captureDir, "rc_nak_len"), x, (*player).responder)
			if c.said == "" && said != "" || !strings.Contains(said, c.said) {
				t.Errorf("the replay says %q, want %q", said, c.said)
			}
			unused := strings.Join(x.unused(func(string) bool { return true }), "\n")
			if c.unused == "" && unused != "" || !strings.Contains(unused, c.unused) {
				t.Errorf("unused lines: %q, want %q", unused, c.unused)
			}
		})
	}
	for _, bad := range []string{
		"rc_send 1 msn 1 2 rule", "a\tx\tmsn\t1\t2\trule", "a\t1\tmsn\t1\t2\t", "a\t0\tmsn\t1\t2\tr",
	} {
		if _, err := parseExceptions("differs", bad); err == nil {
			t.Errorf("%q is taken for a line", bad)
		}
	}
}
