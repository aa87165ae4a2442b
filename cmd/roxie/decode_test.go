package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

const captures = "../../rxe/testdata/captures/"

// decoded runs roxie decode on a file and returns its lines.
func decoded(t *testing.T, file string, wantCode int, wantErr string) []string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if code := run(context.Background(), []string{"decode", file}, &stdout, &stderr); code != wantCode {
		t.Fatalf("exit code %d, want %d: %s", code, wantCode, stderr.String())
	}
	if !strings.Contains(stderr.String(), wantErr) || wantErr == "" && stderr.Len() > 0 {
		t.Fatalf("standard error %q, want %q in it", stderr.String(), wantErr)
	}
	return strings.Split(strings.TrimSuffix(stdout.String(), "\n"), "\n")
}

// frames reads the Ethernet frames of a kernel capture.
func frames(t *testing.T, name string) (all [][]byte) {
	t.Helper()
	b, err := os.ReadFile(captures + name + ".pcap")
	if err != nil {
		t.Fatal(err)
	}
	r, err := pcapgo.NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	for {
		data, _, err := r.ReadPacketData()
		if err != nil {
			return all
		}
		all = append(all, data)
	}
}

// A format is one way to store frames in a file.
type format struct {
	name  string
	link  layers.LinkType
	write func(b *bytes.Buffer, link layers.LinkType, frames [][]byte) error
	wrap  func(frame []byte) []byte
}

var formats = []format{
	{"pcap", layers.LinkTypeEthernet, writePcap, func(f []byte) []byte { return f }},
	{"pcapng", layers.LinkTypeEthernet, writePcapng, func(f []byte) []byte { return f }},
	{"pcap SLL", layers.LinkTypeLinuxSLL, writePcap, cooked},
	{"pcapng SLL2", layers.LinkTypeLinuxSLL2, writePcapng, cooked2},
	{"big-endian nanoseconds SLL2", layers.LinkTypeLinuxSLL2, writeBigEndian, cooked2},
}

func cooked(f []byte) []byte {
	h := append([]byte{0, 4, 0, 1, 0, 6}, f[6:12]...)
	h = append(h, 0, 0)
	return append(append(h, f[12:14]...), f[14:]...)
}

func cooked2(f []byte) []byte {
	h := append(bytes.Clone(f[12:14]), 0, 0, 0, 0, 0, 2, 0, 1, 4, 6)
	h = append(append(h, f[6:12]...), 0, 0)
	return append(h, f[14:]...)
}

var began = time.Unix(1700000000, 0)

func infoOf(i int, f []byte) gopacket.CaptureInfo {
	at := began.Add(time.Duration(i) * time.Millisecond)
	return gopacket.CaptureInfo{Timestamp: at, CaptureLength: len(f), Length: len(f)}
}

func writePcap(b *bytes.Buffer, link layers.LinkType, frames [][]byte) error {
	w := pcapgo.NewWriter(b)
	if err := w.WriteFileHeader(65535, link); err != nil {
		return err
	}
	for i, f := range frames {
		if err := w.WritePacket(infoOf(i, f), f); err != nil {
			return err
		}
	}
	return nil
}

func writePcapng(b *bytes.Buffer, link layers.LinkType, frames [][]byte) error {
	w, err := pcapgo.NewNgWriter(b, link)
	if err != nil {
		return err
	}
	for i, f := range frames {
		if err := w.WritePacket(infoOf(i, f), f); err != nil {
			return err
		}
	}
	return w.Flush()
}

func writeBigEndian(b *bytes.Buffer, link layers.LinkType, frames [][]byte) error {
	be := binary.BigEndian
	h := be.AppendUint32(nil, 0xa1b23c4d)
	h = be.AppendUint32(h, 2<<16|4)
	h = append(h, make([]byte, 8)...)
	h = be.AppendUint32(be.AppendUint32(h, 65535), uint32(link))
	b.Write(h)
	for i, f := range frames {
		h = be.AppendUint32(nil, uint32(began.Unix()))
		h = be.AppendUint32(h, uint32(i*1_000_000))
		h = be.AppendUint32(be.AppendUint32(h, uint32(len(f))), uint32(len(f)))
		b.Write(append(h, f...))
	}
	return nil
}

// TestDecodeFormats: the same frames give the same lines, however they are stored.
func TestDecodeFormats(t *testing.T) {
	stamp := regexp.MustCompile(`^\d+ \d+\.\d{6} `)
	for _, capture := range []string{"rc_mix", "rc_send_v6", "cm_rping_v4"} {
		all := frames(t, capture)
		want := decoded(t, captures+capture+".pcap", exitOK, "")
		if len(want) != len(all) {
			t.Fatalf("%s: %d lines of %d packets", capture, len(want), len(all))
		}
		for _, x := range formats {
			t.Run(capture+"/"+x.name, func(t *testing.T) {
				var b bytes.Buffer
				wrapped := make([][]byte, len(all))
				for i, f := range all {
					wrapped[i] = x.wrap(f)
				}
				if err := x.write(&b, x.link, wrapped); err != nil {
					t.Fatal(err)
				}
				file := filepath.Join(t.TempDir(), "x")
				if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
					t.Fatal(err)
				}
				got := decoded(t, file, exitOK, "")
				for i, line := range got {
					at := fmt.Sprintf("%d %.6f ", i+1, float64(i)/1000)
					if !strings.HasPrefix(line, at) {
						t.Errorf("line %q, want it to begin with %q", line, at)
					}
					if stamp.ReplaceAllString(line, "") != stamp.ReplaceAllString(want[i], "") {
						t.Fatalf("line %d\n got %s\nwant %s", i+1, line, want[i])
					}
				}
			})
		}
	}
}

// TestDecodeKernelCaptures: every packet the kernel's rxe made has a right ICRC.
func TestDecodeKernelCaptures(t *testing.T) {
	files, _ := filepath.Glob(captures + "*.pcap")
	if len(files) == 0 {
		t.Fatal("no captures")
	}
	for _, f := range files {
		for _, line := range decoded(t, f, exitOK, "") {
			if !strings.HasSuffix(line, " icrc=ok") || !strings.Contains(line, " opcode=") {
				t.Errorf("%s: %s", f, line)
			}
		}
	}
}

func TestDecodeFields(t *testing.T) {
	for _, tt := range []struct {
		capture string
		line    int
		want    string
	}{
		{"ackloss_1", 56, "src=192.168.7.2 dst=192.168.7.1 service=RC opcode=READ_RESP_LAST " +
			"qpn=0x000047 psn=0x000109 flags=- syndrome=0x1f(ack) msn=7 len=476 pad=0 icrc=ok"},
		{"rc_mix_v6", 1, "src=fd00:7::1 dst=fd00:7::2 service=RC opcode=WRITE_FIRST qpn=0x00002f " +
			"psn=0x000100 flags=- va=0x0000000020000000 rkey=0x00003cea dmalen=1200 len=1024 pad=0 icrc=ok"},
		{"ud_send", 2, "opcode=SEND_ONLY qpn=0x000027 psn=0x000101 flags=- qkey=0x11223344 " +
			"srcqp=0x000026 len=1 pad=3 icrc=ok"},
		{"rc_rnr", 2, "opcode=ACKNOWLEDGE qpn=0x000018 psn=0x000100 flags=- " +
			"syndrome=0x32(rnr_5.12ms) msn=0 icrc=ok"},
		{"cm_reject_v4", 2, `mad=CM_REJ tid=0x00000004e185b935 id=0x00000000 rid=0x35b985e1 ` +
			`cm="REJ 00000000>35b985e1 of REQ, reason 8: `},
	} {
		line := decoded(t, captures+tt.capture+".pcap", exitOK, "")[tt.line-1]
		if !strings.Contains(line, tt.want) {
			t.Errorf("%s packet %d\n got %s\nwant %s", tt.capture, tt.line, line, tt.want)
		}
	}
}

// TestDecodeFaults: what is wrong with a packet shows in its line and in the exit code.
func TestDecodeFaults(t *testing.T) {
	good := frames(t, "rc_mix")[:3]
	changed := func(f func([]byte) []byte) [][]byte {
		return [][]byte{good[0], f(bytes.Clone(good[1])), good[2]}
	}
	flip := func(at int) func([]byte) []byte {
		return func(b []byte) []byte { b[at] ^= 0x10; return b }
	}
	for _, tt := range []struct {
		name   string
		frames [][]byte
		code   int
		err    string
		line   string // a part of the second one
	}{
		{"payload", changed(flip(70)), exitFailure, "1 of 3 packets have a wrong ICRC", "icrc=wrong got=0x"},
		{"P_Key", changed(flip(45)), exitFailure, "1 of 3 packets have a wrong ICRC", "pkey=0xffef"},
		{"address", changed(flip(30)), exitFailure, "cannot be checked", "refused=ip_checksum"},
		{"opcode", changed(func(b []byte) []byte { b[42] = 0x1f; return b }), exitFailure,
			"the ICRCs of 1 of 3 packets cannot be checked", "refused=opcode"},
		{"cut", changed(func(b []byte) []byte { return b[:90] }), exitFailure, "cannot be checked",
			"refused=cut_by_capture bytes=90 of=1082"},
		{"not UDP", changed(func(b []byte) []byte { b[23], b[24], b[25] = 6, 0, 0; return resum(b) }),
			exitOK, "", "refused=not_udp"},
		{"another port", changed(func(b []byte) []byte { b[37]++; return b }), exitOK, "", "refused=udp_port"},
		{"ARP", changed(func(b []byte) []byte { b[13] = 6; return b }), exitOK, "", "refused=ethertype"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "x.pcap")
			var b bytes.Buffer
			w := pcapgo.NewWriter(&b)
			if err := w.WriteFileHeader(65535, layers.LinkTypeEthernet); err != nil {
				t.Fatal(err)
			}
			for i, f := range tt.frames {
				info := infoOf(i, f)
				info.Length = max(len(f), len(good[i]))
				if len(f) == 90 {
					info.Length = 1082
				}
				if err := w.WritePacket(info, f); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
				t.Fatal(err)
			}
			lines := decoded(t, file, tt.code, tt.err)
			if len(lines) != 3 || !strings.Contains(lines[1], tt.line) {
				t.Errorf("got %q, want %q in the second line", lines, tt.line)
			}
		})
	}
}

// resum writes the IPv4 header checksum of a frame anew.
func resum(b []byte) []byte {
	var sum uint32
	for i := 14; i < 34; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(b[24:], ^uint16(sum))
	return b
}

func TestDecodeBadFiles(t *testing.T) {
	whole, err := os.ReadFile(captures + "rc_mix.pcap")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, x := range map[string]struct {
		data []byte
		err  string
	}{
		"empty":    {nil, "shorter than 4 bytes"},
		"text":     {[]byte("module github.com/example\n"), "not a pcap or pcapng file"},
		"header":   {whole[:20], "not a pcap or pcapng file"},
		"cut off":  {whole[:len(whole)-7], "packet 14: unexpected EOF"},
		"only ngs": {[]byte{0x0a, 0x0d, 0x0d, 0x0a, 0, 0}, "read pcapng header"},
	} {
		file := filepath.Join(dir, strings.ReplaceAll(name, " ", "_"))
		if err := os.WriteFile(file, x.data, 0o600); err != nil {
			t.Fatal(err)
		}
		decoded(t, file, exitFailure, x.err)
	}
	decoded(t, filepath.Join(dir, "missing"), exitFailure, "no such file")
	for _, args := range [][]string{{"decode"}, {"decode", "a", "b"}, {"decode", "--x", "a"}} {
		var stdout, stderr bytes.Buffer
		if code := run(context.Background(), args, &stdout, &stderr); code != exitUsage {
			t.Errorf("%q: exit code %d, want %d", args, code, exitUsage)
		}
	}
}
