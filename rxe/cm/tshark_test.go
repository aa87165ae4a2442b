package cm

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/roxie-rdma/roxie/rxe/wire"
)

// frame is a MAD in Ethernet, IPv4, UDP, BTH and DETH. Wireshark does not check the ICRC.
func frame(mad *MAD) []byte {
	src, dst := ourGID.IPv4(), peerGID.IPv4()
	var b []byte
	b = append(b, 2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0)
	b = append(b, 0x45, 0, 308>>8, 308&0xff, 0, 0, 0x40, 0, 64, 17, 0, 0)
	b = append(b, src[:]...)
	b = append(b, dst[:]...)
	b = append(b, 0xc0, 0, 4791>>8, 4791&0xff, 288>>8, 288&0xff, 0, 0)
	b = append(b, byte(wire.UDSendOnly), 0, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 0)
	b = append(b, 0x80, 1, 0, 0, 0, 0, 0, 1)
	b = append(b, mad[:]...)
	return append(b, 0, 0, 0, 0)
}

// TestTshark: an independent decoder reads out of our messages what was put in.
func TestTshark(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		t.Skip("tshark is not installed (apt-get install tshark)")
	}
	info := [ARISize]byte{1, 2, 3}
	req := REQ{
		LocalID: 0x11223344, Service: 0x1122334455667788, CAGUID: 0x99aabbccddeeff00,
		QKey: 0x12345678, QPN: 0xabcdef, ResponderResources: 0x12, InitiatorDepth: 0x34,
		RemoteTimeout: 0x15,
		Transport:     1, FlowControl: true, PSN: 0xfedcba, LocalTimeout: 0x0a, RetryCount: 5,
		PKey: 0x8123, MTU: 3, RNRRetry: 6, MaxRetries: 9, SRQ: true,
		Primary: PathRecord{
			LocalLID: 0x1234, RemoteLID: 0x5678, Local: ourGID, Remote: peerGID,
			TClass: 0x55, HopLimit: 0x66, SL: 7, SubnetLocal: true, AckTimeout: 0x13,
		},
		Alternate: PathRecord{LocalLID: 0x4321, RemoteLID: 0x8765, Local: peerGID, Remote: ourGID},
	}
	cases := []struct {
		msg    Message
		fields string // name value name value …
	}{
		{&req, `req 0x11223344 req.serviceid 0x1122334455667788
			req.localcaguid 0x99aabbccddeeff00 req.localqkey 0x12345678 req.localqpn 0xabcdef
			req.responderres 0x12 req.initdepth 0x34 req.remoteresptout 0x15 req.transpsvctype 0x01
			req.e2eflowctrl 0x01 req.startpsn 0xfedcba req.localresptout 0x0a req.retrcount 0x05
			req.pkey 0x8123 req.pppmtu 0x03 req.rnrretrcount 0x06 req.maxcmretr 0x09 req.srq 0x01
			req.prim_locallid 4660 req.prim_remotelid 22136 req.prim_localgid_ipv4 10.0.0.5
			req.prim_remotegid_ipv4 10.0.0.9 req.prim_tfcclass 0x55 req.prim_hoplim 0x66
			req.prim_sl 0x07 req.prim_subnetlocal 0x01 req.prim_localacktout 0x13
			req.alt_locallid 17185 req.alt_remotelid 34661`},
		{&MRA{LocalID: 1, RemoteID: 2, Message: KindREP, ServiceTimeout: 0x19}, ""},
		{&REJ{
			LocalID: 0xa1a2a3a4, RemoteID: 0xb1b2b3b4, Message: KindREP, InfoLength: 3,
			Reason: ReasonConsumer, Info: info,
		}, `rej.localcommid 0xa1a2a3a4 rej.remotecommid 0xb1b2b3b4 rej.msgrej 0x01
			rej.rejinfolen 0x03 rej.reason 0x001c`},
		{&REP{
			LocalID: 0xa1a2a3a4, RemoteID: 0xb1b2b3b4, QKey: 0x12345678, QPN: 0xabcdef,
			PSN: 0xfedcba, ResponderResources: 7, InitiatorDepth: 8, AckDelay: 0x15, Failover: 2,
			FlowControl: true, RNRRetry: 5, SRQ: true, CAGUID: 0x99aabbccddeeff00,
		}, `rep 0xa1a2a3a4 rep.remotecommid 0xb1b2b3b4 rep.localqkey 0x12345678
			rep.localqpn 0xabcdef rep.startpsn 0xfedcba rep.respres 0x07 rep.initdepth 0x08
			rep.tgtackdelay 0x15 rep.failoveracc 0x02 rep.e2eflowctrl 0x01 rep.rnrretrcount 0x05
			rep.srq 0x01 rep.localcaguid 0x99aabbccddeeff00`},
		{&RTU{LocalID: 0xa1a2a3a4, RemoteID: 0xb1b2b3b4},
			"rtu.localcommid 0xa1a2a3a4 rtu.remotecommid 0xb1b2b3b4"},
		{&DREQ{LocalID: 0xa1a2a3a4, RemoteID: 0xb1b2b3b4, QPN: 0xabcdef},
			"dreq.localcommid 0xa1a2a3a4 dreq.remotecommid 0xb1b2b3b4 req.remoteqpneecn 0xabcdef"},
		{&DREP{LocalID: 0xa1a2a3a4, RemoteID: 0xb1b2b3b4},
			"drsp.localcommid 0xa1a2a3a4 drsp.remotecommid 0xb1b2b3b4"},
		{&SIDRREQ{RequestID: 0xa1a2a3a4, PKey: 0x8123, Service: udp}, ""},
		{&SIDRREP{RequestID: 0xa1a2a3a4, QPN: 5}, ""},
		{&LAP{LocalID: 1, RemoteID: 2}, ""},
		{&APR{LocalID: 1, RemoteID: 2, Status: 2}, ""},
	}
	b := binary.LittleEndian.AppendUint32(nil, 0xa1b2c3d4)
	b = append(b, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0)
	column := map[string]int{}
	args := []string{"-n", "-r", filepath.Join(t.TempDir(), "mad.pcap"), "-T", "fields",
		"-E", "separator=|"}
	addField := func(name string) {
		if _, ok := column[name]; !ok {
			column[name] = len(column)
			args = append(args, "-e", name)
		}
	}
	const malformed, tid = "_ws.malformed", "infiniband.mad.transactionid"
	const attr, cm = "infiniband.mad.attributeid", "infiniband.cm."
	addField(malformed)
	addField(tid)
	addField(attr)
	for _, tc := range cases {
		mad := Encode(0x0102030405060708, tc.msg)
		f := frame(&mad)
		b = append(b, 0, 0, 0, 0, 0, 0, 0, 0)
		b = binary.LittleEndian.AppendUint32(b, uint32(len(f)))
		b = binary.LittleEndian.AppendUint32(b, uint32(len(f)))
		b = append(b, f...)
		words := strings.Fields(tc.fields)
		for i := 0; i < len(words); i += 2 {
			addField(cm + words[i])
		}
	}
	must(t, os.WriteFile(args[2], b, 0o644))
	var stderr bytes.Buffer
	cmd := exec.Command(tshark, args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.Bytes())
	}
	lines := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if len(lines) != len(cases) {
		t.Fatalf("%d packets, want %d:\n%s", len(lines), len(cases), out)
	}
	for n, tc := range cases {
		got := strings.Split(lines[n], "|")
		check := func(name, want string) {
			if g := got[column[name]]; g != want {
				t.Errorf("%v: %s is %q, want %q", tc.msg.Attr(), name, g, want)
			}
		}
		check(malformed, "")
		check(tid, "0x0102030405060708")
		check(attr, fmt.Sprintf("0x%04x", uint16(tc.msg.Attr())))
		words := strings.Fields(tc.fields)
		for i := 0; i < len(words); i += 2 {
			check(cm+words[i], words[i+1])
		}
	}
}
