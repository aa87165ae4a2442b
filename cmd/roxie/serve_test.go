package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/roxie-rdma/roxie/internal/nettest"
	"github.com/roxie-rdma/roxie/internal/xfer"
	"github.com/roxie-rdma/roxie/verbs"
	"github.com/roxie-rdma/roxie/verbs/cm"
)

const basicConfig = `
interfaces:
  - name: veth0
services:
  rping:
  echo: {size: 4KiB}
  perftest:
    - test: write_bw
    - {test: send_lat, port: 18516}
exports:
  - name: scratch
    size: 8MiB
    access: read-write
    allow: [10.77.0.0/24, "fd77::/64"]
  - name: private
    size: 4096
    allow: [10.99.0.0/24]
  - name: image
    file: %s
    allow: [10.77.0.2]
`

// TestServe uses everything that an endpoint offers, then stops it in order.
func TestServe(t *testing.T) {
	needRoot(t)
	l := nettest.New(t, nettest.Config{})
	name, content := randomFile(t, 3<<20+17)
	dir := t.TempDir()
	out, socket := filepath.Join(dir, "out"), filepath.Join(dir, "run", "socket")
	p := endpoint(t, l.A, fmt.Sprintf(basicConfig, name), "--control", socket)

	good(t, l.B, "ping", "-d", "veth0", "-c", "-a", "10.77.0.1", "-C", "3", "-V")
	for range 2 { // one client after the other
		good(t, l.B, "perf", "write_bw", "-R", "-d", "veth0", "10.77.0.1", "-n", "50")
		good(t, l.B, "perf", "send_lat", "-R", "-p", "18516", "-d", "veth0", "10.77.0.1")
	}
	good(t, l.B, "get", "image@10.77.0.1", out)
	sameFile(t, out, content)
	if text := command(t, "stat", "--control", socket); !strings.Contains(text, "redirected") {
		t.Errorf("stat: %s", text)
	}
	good(t, l.B, "put", "scratch@10.77.0.1", name)
	var r xfer.Result
	text := good(t, l.B, "get", "scratch@[fd77::1]:7470", out+"6", "--json")
	if err := json.Unmarshal([]byte(text), &r); err != nil || r.Verified != int64(len(content)) || r.Moved != r.Bytes {
		t.Fatalf("%v: %s", err, text)
	}
	sameFile(t, out+"6", content)
	bad(t, l.B, "no such export: nothing", "get", "nothing@10.77.0.1", out)
	bad(t, l.B, "no such export: private", "get", "private@10.77.0.1", out)
	bad(t, l.B, "read-only", "put", "image@10.77.0.1", name)
	big, _ := randomFile(t, 8<<20+1)
	bad(t, l.B, "the export holds 8388608", "put", "scratch@10.77.0.1", big)

	c := newClient(t, l.B)
	echo(t, c)
	rights(t, c)
	stop(t, c, p)
}

// echo sends messages of some lengths to the echo, one with immediate data.
func echo(t *testing.T, c *client) {
	t.Helper()
	e, err := c.dial("10.77.0.1:7175", nil)
	if err != nil {
		t.Fatal(err)
	}
	b := e.mem.Bytes()
	for i, n := range []int{0, 1, 4096, 100} {
		copy(b, bytes.Repeat([]byte{byte('a' + i)}, n))
		if err := e.QP().PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{e.mem.SGE(8192, 4096)}}); err != nil {
			t.Fatal(err)
		}
		wr := verbs.SendWR{Opcode: verbs.WRSendWithImm, Imm: uint32(i), SGList: []verbs.SGE{e.mem.SGE(0, n)}}
		if err := e.QP().PostSend(&wr); err != nil {
			t.Fatal(err)
		}
		wc := e.next()
		for wc.Opcode != verbs.WCRecv { // which may come before the completion of its own SEND
			wc = e.next()
		}
		if wc.Status != verbs.WCSuccess || int(wc.ByteLen) != n || wc.Imm != uint32(i) ||
			!bytes.Equal(b[:n], b[8192:8192+n]) {
			t.Fatalf("echo of %d bytes: %+v", n, wc)
		}
	}
}

// rights: a read-only export gives READ only, a key is good on its own connection only.
func rights(t *testing.T, c *client) {
	t.Helper()
	for _, tt := range []struct {
		export string
		op     verbs.WROpcode
		want   verbs.WCStatus
	}{
		{"image", verbs.WRRDMARead, verbs.WCSuccess},
		{"image", verbs.WRRDMAWrite, verbs.WCRemInvReqErr},
		{"image", verbs.WRAtomicFetchAdd, verbs.WCRemInvReqErr},
		{"scratch", verbs.WRRDMARead, verbs.WCSuccess},
		{"scratch", verbs.WRRDMAWrite, verbs.WCSuccess},
		{"scratch", verbs.WRAtomicFetchAdd, verbs.WCSuccess},
	} {
		l := c.export(tt.export, false)
		if got := l.do(tt.op, 64, 8); got != tt.want {
			t.Errorf("%v on %s: %v, want %v", tt.op, tt.export, got, tt.want)
		}
		if err := l.Disconnect(t.Context()); err != nil {
			t.Error(err)
		}
	}
	x, y := c.export("scratch", true), c.export("scratch", true)
	if x.RKey == y.RKey {
		t.Fatal("two connections have one key")
	}
	y.RKey = x.RKey
	if got := y.do(verbs.WRRDMAWrite, 0, 8); got != verbs.WCRemAccessErr {
		t.Errorf("the key of another connection: %v", got)
	}
}

// stop ends the endpoint: connections hear of it, and it exits with 0 soon.
func stop(t *testing.T, c *client, p *process) {
	t.Helper()
	e := c.export("scratch", true)
	began := time.Now()
	p.signal(syscall.SIGTERM)
	select {
	case <-e.Done():
	case <-time.After(5 * time.Second):
		t.Error("no DREQ after 5 s")
	}
	if !errors.Is(e.Err(), cm.ErrEnded) || e.QP().State() != verbs.StateErr {
		t.Errorf("connection ended with %v, QP in %v", e.Err(), e.QP().State())
	}
	if err := p.end(10 * time.Second); err != nil {
		t.Errorf("endpoint ended with %v", err)
	}
	t.Logf("stopped after %v", time.Since(began))
}

// TestServeCheck: what is wrong is said with its line, and nothing is opened.
func TestServeCheck(t *testing.T) {
	file := filepath.Join(t.TempDir(), "roxie.yaml")
	writeFile(t, file, []byte("interfaces:\n  - name: eth0\nlimits:\n  qps: many\n"))
	var out, stderr bytes.Buffer
	if code := run(t.Context(), []string{"serve", "--config", file, "--check"}, &out, &stderr); code != exitFailure {
		t.Errorf("exit code %d", code)
	}
	if want := file + `:4: "many": want a number`; !strings.HasPrefix(stderr.String(), want) {
		t.Errorf("%q, want %q", stderr.String(), want)
	}
	stderr.Reset()
	if code := run(t.Context(), []string{"serve", "--config", file, "--check", "--max-qps", "7"}, &out, &stderr); code != exitOK {
		t.Errorf("exit code %d: %s", code, stderr.String())
	}
	if !strings.Contains(out.String(), "good: nothing on eth0") {
		t.Error(out.String())
	}
}

// TestServeCutFile: a file that is cut behind an export's back ends who touches what is missing, and
// nothing else.
func TestServeCutFile(t *testing.T) {
	needRoot(t)
	l := nettest.New(t, nettest.Config{})
	name, content := randomFile(t, 1<<20)
	p := endpoint(t, l.A, fmt.Sprintf(basicConfig, name)+`
  - name: disk
    file: `+name+`2
    size: 1MiB
    access: read-write
    allow: [10.77.0.2]
`)
	c := newClient(t, l.B)
	image, disk := c.export("image", false), c.export("disk", true)
	if got := image.do(verbs.WRRDMARead, 1<<19, 4096); got != verbs.WCSuccess || !bytes.Equal(image.mem.Bytes()[:4096], content[1<<19:1<<19+4096]) {
		t.Fatal(got)
	}
	if err := os.Truncate(name, 1<<19); err != nil {
		t.Fatal(err)
	}
	if got := image.do(verbs.WRRDMARead, 0, 4096); got != verbs.WCSuccess {
		t.Errorf("what is left: %v", got)
	}
	if got := image.do(verbs.WRRDMARead, 1<<19-4096, 3*4096); got != verbs.WCRemOpErr {
		t.Errorf("what is gone: %v", got)
	}
	eventually(t, "end of the QP", func() bool { return image.QP().State() == verbs.StateErr })
	if got := disk.do(verbs.WRRDMAWrite, 0, 64); got != verbs.WCRemOpErr { // a file that nobody has filled
		t.Errorf("WRITE behind the end of a file: %v", got)
	}
	image = c.export("image", false) // a new connection is as good as the file
	if got := image.do(verbs.WRRDMARead, 0, 4096); got != verbs.WCSuccess {
		t.Errorf("after a new connection: %v", got)
	}
	c.close()
	bad(t, l.B, "", "get", "image@10.77.0.1", filepath.Join(t.TempDir(), "no", "such", "folder"))
	good(t, l.B, "get", "image@10.77.0.1", filepath.Join(t.TempDir(), "half"))
	p.signal(syscall.SIGTERM)
	if err := p.end(10 * time.Second); err != nil {
		t.Error(err)
	}
}

// TestServeReload: what has not changed goes on, connections included; what has ends.
func TestServeReload(t *testing.T) {
	needRoot(t)
	l := nettest.New(t, nettest.Config{})
	config := func(services, exports string) string {
		return "interfaces: [{name: veth0}]\nservices: {" + services + "}\nexports:\n" + exports
	}
	const (
		kept   = "  - {name: kept, size: 1MiB, access: read-write, allow: [10.77.0.0/24]}\n"
		strict = "  - {name: kept, size: 1MiB, access: read-write, allow: [10.77.0.9]}\n"
		gone   = "  - {name: gone, size: 1MiB, allow: [10.77.0.0/24]}\n"
		fresh  = "  - {name: fresh, size: 2MiB, allow: [10.77.0.0/24]}\n"
	)
	p := endpoint(t, l.A, config("echo: ", kept+gone))
	c := newClient(t, l.B)
	stays, goes := c.export("kept", true), c.export("gone", false)
	answers, err := c.dial("10.77.0.1:7175", nil)
	if err != nil {
		t.Fatal(err)
	}
	p.reload("interfaces: [{name: veth0}]\nlimits: {qps: x}\n", "configuration not taken")
	if stays.Err() != nil || goes.Err() != nil || answers.Err() != nil {
		t.Fatal("a configuration with problems has changed something")
	}

	p.reload(config("rping: ", kept+fresh), "configuration taken")
	for what, l := range map[string]*link{"export": goes, "echo": answers} {
		select {
		case <-l.Done():
		case <-time.After(10 * time.Second):
			t.Errorf("the connection to the %s that has gone has not ended", what)
		}
	}
	if got := stays.do(verbs.WRRDMAWrite, 0, 8); got != verbs.WCSuccess {
		t.Errorf("what has not changed: %v", got)
	}
	if got := c.export("fresh", false); got.Length != 2<<20 {
		t.Errorf("new export of %d bytes", got.Length)
	}
	if _, err := c.dial("10.77.0.1:7470", xfer.Hello{Name: "gone"}.Marshal()); err == nil {
		t.Error("what has gone can be connected to")
	}

	p.reload(config("rping: ", strict+fresh), "configuration taken")
	select {
	case <-stays.Done():
	case <-time.After(10 * time.Second):
		t.Error("who is not on the list any more has not been put out")
	}
	c.close()
	good(t, l.B, "ping", "-d", "veth0", "-c", "-a", "10.77.0.1", "-C", "3", "-V")
	p.signal(syscall.SIGTERM)
	if err := p.end(10 * time.Second); err != nil {
		t.Error(err)
	}
}

// TestServeLimits: connections beyond a limit are refused with the reason, and possible again when
// others have gone.
func TestServeLimits(t *testing.T) {
	needRoot(t)
	l := nettest.New(t, nettest.Config{})
	config := func(limits string) string {
		return "interfaces: [{name: veth0}]\nlimits: {" + limits + "}\nservices: {echo: {size: 64KiB}}\n" +
			"exports: [{name: a, size: 1MiB, allow: [10.77.0.0/24]}]\n"
	}
	p := endpoint(t, l.A, config("connections-per-peer: 3"))
	c := newClient(t, l.B)
	refused := func(text string) {
		t.Helper()
		_, err := c.dial("10.77.0.1:7175", nil)
		var rej *cm.RejectError
		if !errors.As(err, &rej) || !strings.Contains(xfer.ParseRefusal(rej.Private), text) {
			t.Fatalf("one too many: %v, want %q", err, text)
		}
	}
	var links []*link
	for range 3 {
		links = append(links, c.export("a", false))
	}
	refused("10.77.0.2 has 3 connections")
	if err := links[0].Disconnect(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "room", func() bool { _, err := c.dial("10.77.0.1:7175", nil); return err == nil })
	p.reload(config("qps: 3"), "configuration taken") // three are there
	refused("3 QPs are in use of 3")
	p.reload(config("memory: 2MiB"), "configuration taken")
	refused("are in use of 2 MiB")
	if got := links[1].do(verbs.WRRDMARead, 0, 8); got != verbs.WCSuccess {
		t.Errorf("a connection within the limits: %v", got)
	}
	p.signal(syscall.SIGTERM)
	if err := p.end(10 * time.Second); err != nil {
		t.Error(err)
	}
}

// TestServeInterfaceReturns: the interface is deleted and made anew, and served as before.
func TestServeInterfaceReturns(t *testing.T) {
	needRoot(t)
	l := nettest.New(t, nettest.Config{})
	p := endpoint(t, l.A, "interfaces: [{name: veth0}, {name: veth7}]\nservices: {rping: }\n")
	p.logs("waiting for the interface")
	ping := func() {
		t.Helper()
		good(t, l.B, "ping", "-d", "veth0", "-c", "-a", "10.77.0.1", "-C", "3", "-V")
	}
	ping()
	ip(t, l.A, "link", "del", "veth0")
	p.logs("interface has gone")
	ip(t, l.A, "link", "add", "veth0", "mtu", "9000", "type", "veth", "peer", "name", "veth0", "mtu", "9000", "netns", l.B.Name)
	ip(t, l.A, "addr", "add", "10.77.0.1/24", "dev", "veth0")
	ip(t, l.B, "addr", "add", "10.77.0.2/24", "dev", "veth0")
	ip(t, l.A, "link", "set", "veth0", "up")
	ip(t, l.B, "link", "set", "veth0", "up")
	eventually(t, "interface", func() bool { return strings.Count(p.logged(), "interface opened") == 2 })
	ping()
	p.signal(syscall.SIGTERM)
	if err := p.end(10 * time.Second); err != nil {
		t.Error(err)
	}
}

// TestTransferKilled: 64 MiB; the endpoint is killed during a put and started again, a get is killed
// and resumed.
func TestTransferKilled(t *testing.T) {
	needRoot(t)
	l := nettest.New(t, nettest.Config{})
	name, content := randomFile(t, 64<<20)
	dir := t.TempDir()
	conf := filepath.Join(dir, "roxie.yaml")
	writeFile(t, conf, []byte(`
interfaces: [{name: veth0}]
exports:
  - {name: disk, file: `+dir+`/disk, size: 100MiB, access: read-write, allow: [10.77.0.2]}
`))
	p := serveFile(t, l.A, conf)
	put := start(t, l.B, "put", "disk@10.77.0.1", name, "--json", "--wait", "20s")
	p.logs("peer connected")
	// Eight blocks of 1 MiB are on their way at a time: when the 17th arrives, nine are verified.
	eventually(t, "content", func() bool { return arrived(dir+"/disk", content, 16<<20) })
	p.kill()
	_ = p.end(5 * time.Second)
	p = serveFile(t, l.A, conf)
	if err := put.end(55 * time.Second); err != nil {
		t.Fatalf("put: %v %s", err, put.logged())
	}
	r := put.result()
	if r.Verified != 64<<20 || r.Reconnects != 1 || r.Skipped < 9<<20 {
		t.Errorf("put: %+v", r)
	}
	sameFile(t, dir+"/disk", content)

	out := filepath.Join(dir, "out")
	get := start(t, l.B, "get", "disk@10.77.0.1", out, "--json")
	eventually(t, "part", func() bool { return written(out+xfer.PartSuffix) > 4<<20 })
	get.kill()
	_ = get.end(5 * time.Second)
	if _, err := os.Stat(out); err == nil {
		t.Fatal("the get was over before it could be killed")
	}
	get = start(t, l.B, "get", "disk@10.77.0.1", out, "--json", "--resume")
	if err := get.end(30 * time.Second); err != nil {
		t.Fatalf("get: %v %s", err, get.logged())
	}
	if r := get.result(); r.Verified != 64<<20 || r.Skipped < 4<<20 || r.Moved+r.Skipped != 64<<20 {
		t.Errorf("get: %+v", r)
	}
	sameFile(t, out, content)
	if _, err := os.Stat(out + xfer.PartSuffix); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("part file is left: %v", err)
	}

	out = filepath.Join(dir, "again")
	get = start(t, l.B, "get", "disk@10.77.0.1", out, "--wait", "1s")
	eventually(t, "part", func() bool { return written(out+xfer.PartSuffix) > 4<<20 })
	p.kill()
	_ = p.end(5 * time.Second)
	if err := get.end(30 * time.Second); err == nil || !strings.Contains(get.logged(), "with --resume, the same") {
		t.Errorf("get from an endpoint that was killed: %v %s", err, get.logged())
	}
	out = filepath.Join(dir, "none")
	began := time.Now()
	get = start(t, l.B, "get", "disk@10.77.0.1", out, "--wait", "1s")
	if err := get.end(30 * time.Second); err == nil || time.Since(began) > 9*time.Second {
		t.Errorf("get --wait 1s from nobody: %v after %v", err, time.Since(began))
	}
	if _, err := os.Stat(out + xfer.PartSuffix); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an empty part file is left: %v", err)
	}
}

// arrived reports whether a file has the content at an offset.
func arrived(name string, content []byte, off int) bool {
	f, err := os.Open(name)
	if err != nil {
		return false
	}
	defer f.Close()
	var b [64]byte
	_, err = f.ReadAt(b[:], int64(off))
	return err == nil && bytes.Equal(b[:], content[off:off+len(b)])
}

// written is how much of a file is not a hole.
func written(name string) int64 {
	info, err := os.Stat(name)
	if err != nil {
		return 0
	}
	return info.Sys().(*syscall.Stat_t).Blocks * 512
}
