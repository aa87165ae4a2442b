package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/roxie-rdma/roxie/internal/nettest"
	"github.com/roxie-rdma/roxie/internal/srp"
	"github.com/roxie-rdma/roxie/internal/srp/ramdisk"
	"github.com/roxie-rdma/roxie/verbs"
	"github.com/roxie-rdma/roxie/verbs/cm"
)

// TestSRP: a disk in memory is checked over a veth, and one that holds something is left alone.
func TestSRP(t *testing.T) {
	l := nettest.New(t, nettest.Config{})
	var dev *verbs.Context
	if err := l.A.DoErr(func() (err error) {
		dev, err = verbs.Open(l.A.Interface, nil)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	m, err := cm.New(dev, nil)
	if err != nil {
		t.Fatal(err)
	}
	guid := guidOf([6]byte(l.A.MAC)) // as `roxie srp` finds it
	disk, err := ramdisk.New(dev, m, ramdisk.Config{Blocks: 8 << 11, ID: srp.PortID{Ext: guid,
		GUID: guid}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- disk.Serve(ctx) }()
	defer func() {
		stop()
		for _, err := range []error{<-served, m.Close(), dev.Close()} {
			if err != nil {
				t.Error(err)
			}
		}
	}()
	srpRun := func(args ...string) (code int, stdout, stderr string) {
		var out, errs bytes.Buffer
		l.B.Do(func() {
			code = run(context.Background(), append([]string{"srp", l.B.Interface}, args...), &out, &errs)
		})
		return code, out.String(), errs.String()
	}
	to := l.A.IPv4.String()
	dir := t.TempDir()
	file, pcap := filepath.Join(dir, "report"), filepath.Join(dir, "pcap")
	code, out, errs := srpRun(to, "-n", "60", "-s", "16384", "--area", "1", "--logins", "1", "--json",
		file, "--pcap", pcap)
	if code != exitOK || !strings.Contains(out,
		"ROXIE RAMDISK 1, a disk: 16384 blocks of 512 bytes; 2 channels") ||
		!strings.Contains(out, "\n60 commands of 512 bytes to 16 KiB in ") || !strings.Contains(out,
		" 0 commands with wrong data\n") {
		t.Fatalf("exit code %d: %s%s", code, out, errs)
	}
	var r srp.Report
	b, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil || r.Commands != 60 || r.Errors != 0 || r.Verified == 0 {
		t.Errorf("report %+v, %v", r, err)
	}
	if st, err := os.Stat(pcap); err != nil || st.Size() < 1<<20 {
		t.Errorf("capture: %v, %v", st, err)
	}
	code, _, errs = srpRun(to, "--guid", "5")
	if code != exitFailure || !strings.Contains(errs,
		"the target refuses the login: unable to associate") {
		t.Errorf("exit code %d: %s", code, errs)
	}
	code, _, errs = srpRun(to + ":9")
	if code != exitFailure || !strings.Contains(errs, "nothing listens at "+to+":9") {
		t.Errorf("exit code %d: %s", code, errs)
	}
	disk.Poke(3*512, 7)
	code, out, errs = srpRun(to, "--json", "-")
	if err := json.Unmarshal([]byte(out), &r); code != exitFailure || err != nil || r.Errors != 1 ||
		!strings.Contains(errs, "block 3 of the disk is not empty") {
		t.Errorf("exit code %d: %s%s", code, out, errs)
	}
}

func TestSRPUsage(t *testing.T) {
	for _, tt := range []struct{ args, says string }{
		{"srp eth0", "see roxie srp --help"},
		{"srp eth0 host", "host is no address, nor ADDRESS:PORT"},
		{"srp eth0 192.0.2.1:0", "port 0 is none"},
		{"srp eth0 192.0.2.1 -n 0", "-n 0 is out of range"},
		{"srp eth0 192.0.2.1 --channels 65", "--channels 65 is out of range, 1 to 64"},
		{"srp eth0 192.0.2.1 -s 100", "-s 100 is out of range"},
		{"srp eth0 192.0.2.1 --timeout 0s", "--timeout 0s"},
		{"srp eth0 192.0.2.1 --guid xyz", "--guid xyz: 16 hexadecimal digits"},
	} {
		var out, errs bytes.Buffer
		if code := run(context.Background(), strings.Fields(tt.args), &out, &errs); code != exitUsage ||
			!strings.Contains(errs.String(), tt.says) {
			t.Errorf("%s: exit code %d, %q, want %q", tt.args, code, errs.String(), tt.says)
		}
	}
}
