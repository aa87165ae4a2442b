package srp

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// unhex reads golden bytes: hexadecimal digits, with spaces between.
func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Golden bytes were written by hand from the layouts in T10 SRP revision 16a, section 6, and, for
// the login request, from the fields of struct srp_login_req_rdma in Linux's include/scsi/srp.h.
const (
	goldenLogin = `1122334455667788 0006 01 00 00000100
		0000000000000007 0052 6ffffe786965 505400fffe123456 505400fffe123456 0000 000000000000`
	goldenGrant = `c0 000000 00000080 1122334455667788 00002084 00000100 0006 02
		00 0000000000000000 0000000000000000 0000000000000000`
	goldenRefusal = `c2 000000 00010003 1122334455667788 0000000000000000 0006 000000000000`
	goldenDirect  = `02 00 000000 01 00 00 0000000000050003 00000000 0001000000000000 00 00 00 00
		28000000001000000800000000000000 00007f0000001200 00001234 00001000`
	goldenIndirect = `02 00 000000 20 02 00 0000000000050003 00000000 0000000000000000 00 00 00 00
		8a000000000000001000000000100000 0000000000000000 00000000 00000020 00002000
		00007f0000001200 00001234 00000e00 00007f0000009000 00001334 00001200`
	goldenAbort = `01 00 000000000000 0000000000060010 00000000 0000000000000000 0000 01 00
		0000000000050003 0000000000000000`
	goldenAnswer = `c1 00 0000 00000001 0000000000050003 0000 22 02 00000000 00000200 00000012 00000000
		70 00 05 00000000 0a 00000000 21 00 00 000000`
	goldenTask = `c1 00 0000 00000002 0000000000060010 0000 01 00
		00000000 00000000 00000000 00000004 00000005`
	goldenCredit = `81 00 0000 00000010 00000000000000aa`
)

func TestUnitsGolden(t *testing.T) {
	id := PortID{0x505400fffe123456, 0x505400fffe123456}
	login := LoginReq{Tag: 0x1122334455667788, MaxITIU: 256, Formats: 6, Multi: true,
		Initiator: PortID{7, 0x00526ffffe786965}, Target: id}
	grant := LoginRsp{Tag: login.Tag, Credits: 128, MaxITIU: 8324, MaxTIIU: 256, Formats: 6, Result: 2}
	refusal := LoginRej{Tag: login.Tag, Reason: LoginUnableToAssociate, Formats: 6}
	direct := Cmd{Tag: 0x50003, LUN: LUN(1), CDB: cdbTransfer(false, false, 16, 8), Dir: DataIn,
		Data: []Desc{{0x7f0000001200, 0x1234, 4096}}}
	indirect := Cmd{Tag: 0x50003, CDB: cdbTransfer(true, true, 16, 0x10), Dir: DataOut,
		Data: []Desc{{0x7f0000001200, 0x1234, 0xe00}, {0x7f0000009000, 0x1334, 0x1200}}}
	indirect.CDB[9], indirect.CDB[11], indirect.CDB[12], indirect.CDB[13] = 0x10, 0x10, 0, 0
	abort := TskMgmt{Tag: 0x60010, Func: AbortTask, TaskTag: 0x50003}
	answer := Rsp{Tag: 0x50003, Credits: 1, Status: CheckCondition, InRes: 512,
		Sense: Sense{Key: SenseIllegalRequest, ASC: 0x21}.Encode()}
	task := Rsp{Tag: 0x60010, Credits: 2, Resp: []byte{0, 0, 0, byte(TaskFailed)}}
	credit := Notice{Op: OpCredReq, Tag: 0xaa, Credits: 16}
	indirect.CDB = [16]byte(unhex(t, "8a000000000000001000000000100000"))

	for _, tt := range []struct {
		name, golden string
		encoded      []byte
		decode       func(b []byte) (any, error)
		want         any
	}{
		{"login", goldenLogin, login.Encode(), func(b []byte) (any, error) {
			var q LoginReq
			return &q, q.Decode(b)
		}, &login},
		{"grant", goldenGrant, grant.Encode(), func(b []byte) (any, error) {
			var q LoginRsp
			return &q, q.Decode(b)
		}, &grant},
		{"refusal", goldenRefusal, refusal.Encode(), func(b []byte) (any, error) {
			var q LoginRej
			return &q, q.Decode(b)
		}, &refusal},
		{"direct", goldenDirect, direct.Append(nil), func(b []byte) (any, error) {
			var q Cmd
			return &q, q.Decode(b)
		}, &direct},
		{"indirect", goldenIndirect, indirect.Append(nil), func(b []byte) (any, error) {
			var q Cmd
			err := q.Decode(b)
			q.Table.Len = 0
			return &q, err
		}, &indirect},
		{"abort", goldenAbort, abort.Append(nil), func(b []byte) (any, error) {
			var q TskMgmt
			return &q, q.Decode(b)
		}, &abort},
		{"answer", goldenAnswer, answer.Append(nil), func(b []byte) (any, error) {
			var q Rsp
			err := q.Decode(b)
			q.Resp = nil
			return &q, err
		}, &answer},
		{"task", goldenTask, task.Append(nil), func(b []byte) (any, error) {
			var q Rsp
			err := q.Decode(b)
			q.Sense = nil
			return &q, err
		}, &task},
		{"credit", goldenCredit, credit.Append(nil), func(b []byte) (any, error) {
			var q Notice
			return &q, q.Decode(b)
		}, &credit},
	} {
		golden := unhex(t, tt.golden)
		if d := cmp.Diff(hex.Dump(golden), hex.Dump(tt.encoded)); d != "" {
			t.Errorf("%s, encoded:\n%s", tt.name, d)
		}
		got, err := tt.decode(golden)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if d := cmp.Diff(tt.want, got); d != "" {
			t.Errorf("%s, decoded:\n%s", tt.name, d)
		}
		for n := range len(golden) { // cut off anywhere
			if tt.name == "login" && n > 11 || tt.name != "login" {
				if _, err := tt.decode(golden[:n]); err == nil {
					t.Errorf("%s of %d bytes instead of %d is taken", tt.name, n, len(golden))
				}
			}
		}
	}
}

func TestCommandsThatMakeNoSense(t *testing.T) {
	base := Cmd{Tag: 1, Dir: DataOut, Data: []Desc{{1, 2, 3}, {4, 5, 6}}}
	for _, tt := range []struct {
		name   string
		change func(b []byte)
	}{
		{"both directions", func(b []byte) { b[5] |= 1 }},
		{"immediate data", func(b []byte) { b[5] = 3 << 4 }},
		{"list elsewhere", func(b []byte) { b[6] = 1 }},
		{"longer list", func(b []byte) { b[6], b[63] = 200, 200 }},
		{"longer CDB", func(b []byte) { b[31] = 0xfc }},
		{"opcode", func(b []byte) { b[0] = byte(OpRsp) }},
	} {
		b := base.Append(nil)
		tt.change(b)
		var q Cmd
		if err := q.Decode(b); err == nil {
			t.Errorf("%s is taken: %+v", tt.name, q)
		}
	}
	var n Notice
	if err := n.Decode(make([]byte, 64)); err == nil {
		t.Error("a login from a target is taken")
	}
}

// FuzzUnits: no bytes make a decoder panic, and what a decoder takes is encoded to something that
// it takes again.
func FuzzUnits(f *testing.F) {
	for _, s := range []string{goldenLogin, goldenGrant, goldenRefusal, goldenDirect, goldenIndirect,
		goldenAbort, goldenAnswer, goldenTask, goldenCredit} {
		f.Add(unhex(f, s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var (
			login LoginReq
			grant LoginRsp
			rej   LoginRej
			tm    TskMgmt
			n     Notice
		)
		for _, d := range []interface{ Decode([]byte) error }{&login, &grant, &rej, &tm, &n} {
			_ = d.Decode(b)
		}
		var c, again Cmd
		if c.Decode(b) == nil && len(c.Data) > 0 {
			if err := again.Decode(c.Append(nil)); err != nil || len(again.Data) != len(c.Data) {
				t.Errorf("%+v comes back as %+v, %v", c, again, err)
			}
		}
		var r, r2 Rsp
		if r.Decode(b) == nil {
			if err := r2.Decode(r.Append(nil)); err != nil || r2.Tag != r.Tag || r2.InRes != r.InRes &&
				r.InRes >= 0 {
				t.Errorf("%+v comes back as %+v, %v", r, r2, err)
			}
		}
		_, _ = DecodeSense(b)
		_, _ = DecodeInquiry(b)
		_, _ = DecodeCapacity(b)
		_ = maxTransfer(b)
	})
}

func TestTexts(t *testing.T) {
	for got, want := range map[string]string{
		LoginUnableToAssociate.String(): "unable to associate the channel: no such target port, " +
			"or nobody of this name may log in",
		LoginReason(7).String(): "reason 0x7",
		TaskFailed.String():     "failed",
		TaskStatus(9).String():  "task management response 9",
		Status(0x28).String():   "TASK SET FULL",
		Status(0x99).String():   "status 0x99",
		OpTskMgmt.String():      "SRP_TSK_MGMT",
		Opcode(9).String():      "SRP opcode 0x09",
		(&StatusError{Status: CheckCondition, Sense: Sense{5, 0x21,
			0}}).Error(): "CHECK CONDITION: illegal request (asc 0x21, ascq 0x00)",
		PortID{1, 2}.String(): "00000000000000010000000000000002",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if OfLUN(LUN(3)) != 3 || OfLUN(LUN(300)) != 300 || LUN(1) != 1<<48 {
		t.Error("logical unit numbers")
	}
	desc := []byte{0x72, 5, 0x21, 1}
	if s, ok := DecodeSense(desc); !ok || s != (Sense{5, 0x21, 1}) {
		t.Errorf("sense of descriptor format: %v", s)
	}
	q, err := DecodeInquiry(Inquiry{Vendor: "LIO-ORG", Product: "rig", Revision: "4.0"}.Encode())
	if err != nil || q.String() != "LIO-ORG rig 4.0, a disk" {
		t.Errorf("inquiry: %v %v", q, err)
	}
	c, err := DecodeCapacity(Capacity{65536, 512}.Encode())
	if err != nil || c.Bytes() != 32<<20 {
		t.Errorf("capacity: %v %v", c, err)
	}
}
