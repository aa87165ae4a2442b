package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/internal/nettest"
)

// TestErrorsTell: what a newcomer gets wrong is answered with what is wrong and what to do, in one line.
func TestErrorsTell(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text.yaml")
	if err := os.WriteFile(text, []byte("interfaces: [{name: nosuch0}]\nservices: {rping: }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	none := filepath.Join(dir, "none", "x")
	dead := filepath.Join(dir, "dead.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	other := filepath.Join(dir, "other.sock")
	foreign, err := net.Listen("unix", other)
	if err != nil {
		t.Fatal(err)
	}
	defer foreign.Close()
	go func() {
		for c, err := foreign.Accept(); err == nil; c, err = foreign.Accept() {
			_, _ = c.Read(make([]byte, 4096)) // else who closes first decides what the client sees
			_, _ = c.Write([]byte("220 good morning\r\n"))
			_ = c.Close()
		}
	}()
	for _, tt := range []struct {
		// words; TEXT and EMPTY are files, DEAD and OTHER sockets, DIR a directory, FILE a path in it,
		// NONE a path in a directory that is not there
		line string
		code int
		want []string
	}{
		// Arguments and flags.
		{"get", exitUsage, []string{"`roxie get NAME@HOST FILE`: there are none", "roxie get --help"}},
		{"get disk@h", exitUsage, []string{"`roxie get NAME@HOST FILE`", `only "disk@h"`}},
		{"get disk@h a b", exitUsage, []string{`there are 3: ["disk@h" "a" "b"]`}},
		{"get disk f", exitUsage, []string{"want NAME@HOST or NAME@HOST:PORT"}},
		{"get disk@127.0.0.1 -", exitUsage, []string{"- is none"}},
		{"version x", exitUsage, []string{"no arguments are taken", `"x"`}},
		{"perf read_bw a b", exitUsage, []string{"`roxie perf read_bw [SERVER]`", "2: "}},
		{"perf read_bw -n abc", exitUsage, []string{`-n, --iters: "abc" is not a whole number`}},
		{"perf read_bw -n 99999999999999999999", exitUsage, []string{"is too large"}},
		{"perf read_bw --verify=7", exitUsage, []string{`--verify: "7" is not true or false`}},
		{"sim --drop x", exitUsage, []string{`--drop: "x" is not a number`}},
		{"sim --seed -1", exitUsage, []string{"not negative"}},
		{"get a@b c --wait 10", exitUsage, []string{`"10" is not a time, as 500ms, 10s`}},
		{"lab up --queues 0", exitUsage, []string{"--queues 0", "1 to 4096"}},
		{"lab up --link-mtu 5", exitUsage, []string{"68 to 65535"}},
		{"ping", exitUsage, []string{"server (-s) or a client (-c)"}},
		{"ping -c -d lo -a h", exitUsage, []string{"not an IP address, and names are not"}},
		{"ping -c -d lo -a 10.0.0.1 --wait 0", exitUsage, []string{"--wait 0s: give how long"}},
		{"ping -c -d lo", exitUsage, []string{"address with -a"}},
		{"dump xyz", exitUsage, []string{"xyz is no QPN", "0x11"}},
		{"top --sort foo", exitUsage, []string{"inflight, peer"}},
		{"pingpong rc", exitUsage, []string{"which interface? give it with -d"}},
		// What is not there.
		{"perf read_bw -d nosuch0", exitFailure, []string{`no such interface "nosuch0"`, "it has lo"}},
		{"pingpong rc -d nosuch0", exitFailure, []string{"it has lo"}},
		{"ping -s -d nosuch0", exitFailure, []string{"it has lo"}},
		{"ping -s -d lo -a 192.0.2.99", exitFailure, []string{"no address of lo, which has"}},
		{"srp nosuch0 192.0.2.1", exitFailure, []string{"it has lo"}},
		{"stat --control NONE", exitFailure, []string{"no control socket at", "start `roxie serve`"}},
		{"dump 1 --control NONE", exitFailure, []string{"no control socket at", "start `roxie serve`"}},
		{"capture -o FILE --control NONE", exitFailure, []string{"no control socket at", "start `roxie serve`"}},
		{"capture -o FILE --control TEXT", exitFailure, []string{"is no socket", "say with --control"}},
		{"stat --control TEXT", exitFailure, []string{"is no socket", "say with --control"}},
		{"top --json --control DIR", exitFailure, []string{"is no socket", "say with --control"}},
		{"stat --control DEAD", exitFailure, []string{"nobody answers at", "is gone; start it again"}},
		{"capture -o FILE --control DEAD", exitFailure, []string{"nobody answers at"}},
		{"stat --control OTHER", exitFailure, []string{"is another program's socket"}},
		{"capture -o FILE --control OTHER", exitFailure, []string{"is another program's socket"}},
		{"serve --config NONE", exitFailure, []string{"no such file or directory"}},
		{"serve --config TEXT --user no-such-user", exitFailure, []string{"unknown user", "adduser --system"}},
		{"lab exec --name roxie-none A -- ls", exitFailure, []string{"`roxie lab up"}},
		// Files.
		{"decode NONE", exitFailure, []string{"no such file"}},
		{"decode TEXT", exitFailure, []string{"not a pcap or pcapng file"}},
		{"decode DIR", exitFailure, []string{"is a directory: name a file in it"}},
		{"decode EMPTY", exitFailure, []string{"shorter than 4 bytes"}},
		{"bench --json NONE", exitFailure, []string{"there is no directory", "make it, or name another file"}},
		{"bench --json DIR", exitFailure, []string{"is a directory: name a file in it"}},
		{"sim --pcap NONE", exitFailure, []string{"there is no directory"}},
		{"capture -o NONE --ring 10s", exitFailure, []string{"there is no directory"}},
		{"capture -o DIR --ring 10s", exitFailure, []string{"name a file in it"}},
		// What does not go together.
		{"capture -o FILE --ring-size 3MiB", exitUsage, []string{"--ring-size is the memory of --ring"}},
		{"capture --trigger -o FILE", exitUsage, []string{"goes without --output"}},
		{"capture -o FILE -c -1", exitUsage, []string{"count -1: want 1 or more"}},
		{"capture -o FILE foo", exitUsage, []string{`"foo" is no test`, "roxie capture --help"}},
		{"get a@127.0.0.1 FILE --vlan 9999", exitUsage, []string{"--vlan 9999: tags go from 1 to 4094"}},
		{"ping -s -d lo --vlan -1", exitUsage, []string{"--vlan -1"}},
		{"get a@127.0.0.1 FILE --wait -3s", exitUsage, []string{"--wait -3s: give how long"}},
		{"ping -s -d lo -p 99999", exitUsage, []string{`-p, --port: "99999" is too large`}},
		{"doctor --peer 127.0.0.1", exitFailure, []string{"is this machine", "roxie doctor IF --peer 127.0.0.1"}},
	} {
		args := strings.Fields(tt.line)
		for i := range args {
			switch args[i] {
			case "TEXT":
				args[i] = text
			case "EMPTY":
				args[i] = empty
			case "OTHER":
				args[i] = other
			case "DEAD":
				args[i] = dead
			case "DIR":
				args[i] = dir
			case "FILE":
				args[i] = filepath.Join(dir, "new")
			case "NONE":
				args[i] = none
			}
		}
		code, stdout, stderr := cli(args...)
		if code != tt.code || stdout != "" || strings.Count(stderr, "\n") != 1 ||
			!strings.HasPrefix(stderr, "roxie: ") {
			t.Errorf("roxie %s: exit code %d, want %d and one line on standard error: %q %q", tt.line, code,
				tt.code, stdout, stderr)
		}
		for _, want := range tt.want {
			if !strings.Contains(stderr, want) {
				t.Errorf("roxie %s: %q, want %q in it", tt.line, stderr, want)
			}
		}
		for _, noise := range []string{"strconv", "http://", "arg(s)", "context "} {
			if strings.Contains(stderr, noise) {
				t.Errorf("roxie %s: %q means nothing to who reads %q", tt.line, noise, stderr)
			}
		}
	}
}

// TestErrorsOfFullDisks: a packet file, or a file that is fetched, which does not fit is an error.
func TestErrorsOfFullDisks(t *testing.T) {
	needRoot(t)
	l := nettest.New(t, nettest.Config{})
	full := t.TempDir()
	if err := unix.Mount("none", full, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(full, unix.MNT_DETACH)
	endpoint(t, l.A, `
interfaces: [{name: veth0}]
services: {rping: }
exports:
  - {name: disk, size: 1MiB, allow: [10.77.0.0/24]}
`)
	file := filepath.Join(full, "file")
	bad(t, l.B, "no space left on device: make room", "ping", "-d", "veth0", "-c", "-a", "10.77.0.1", "-C", "2",
		"-S", "60000", "--pcap", file)
	bad(t, l.B, "no space left on device: make room", "get", "disk@10.77.0.1", file)
	bad(t, l.B, "is no regular file, and would be replaced", "get", "disk@10.77.0.1", "/dev/null")
	if info, err := os.Stat(os.DevNull); err != nil || info.Mode().IsRegular() {
		t.Errorf("%v, %v", info, err)
	}
	bad(t, l.B, "is it an SRP target", "srp", "veth0", "10.77.0.1:7470")
	bad(t, l.B, "no route to 10.77.0.1", "get", "disk@10.77.0.1", file, "-d", "lo", "--wait", "2s")
}

// TestErrorsOnInterfaces: the same, of what only shows on an interface.
func TestErrorsOnInterfaces(t *testing.T) {
	needRoot(t)
	name := fmt.Sprintf("roxie.%d.errors", os.Getpid())
	if code, _, stderr := cli("lab", "up", "--name", name); code != exitOK {
		t.Fatal(stderr)
	}
	defer cli("lab", "down", "--name", name)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(runMain, "1")
	inside := func(command ...string) (code int, stderr string) {
		code, _, stderr = cli(append([]string{"lab", "exec", "--name", name, "B", "--"}, command...)...)
		return code, stderr
	}
	for _, tt := range []struct {
		before string // a command
		line   string
		code   int
		want   string
	}{
		{"", "perf write_bw -d veth0 10.77.0.1", exitFailure, "start the same command there first, without an address"},
		{"", "pingpong rc -d veth0 10.77.0.1", exitFailure, "start the same command there first, without an address"},
		{"", "perf write_bw -d veth0 192.0.2.1", exitFailure, "check its address, and the way to it"},
		{"", "pingpong rc -d veth0 192.0.2.1", exitFailure, "check its address, and the way to it"},
		{"", "pingpong rc -d veth0 -g 9", exitFailure, "`roxie devinfo -v` lists them"},
		{"", "perf write_bw -d veth0 --queues 5", exitFailure, "take fewer, or `ethtool -L`"},
		{"", "get disk@10.77.0.1 DIR/f --wait 1ms", exitFailure, "is `roxie serve` with exports running there?"},
		{"", "get disk@no-such-host.invalid DIR/f", exitFailure, "give an address"},
		{"", "ping -c -d veth0 -a 10.77.0.1 --wait 1ms", exitFailure, "in time: is rping -s or"},
		{"", "ping -c -d veth0 -a 192.0.2.1 --wait 2s", exitFailure, "no route to 192.0.2.1"},
		{"", "get disk@10.77.0.1 DIR", exitFailure, "is a directory: name the file that is to be there"},
		{"", "get disk@192.0.2.1 DIR/f", exitFailure, "no route to 192.0.2.1"},
		{"", "srp veth0 192.0.2.1", exitFailure, "check its address, and the way to it"},
		{"", "doctor --peer 192.0.2.1", exitFailure, "no route to 192.0.2.1"},
		{"ip link set veth0 mtu 300", "perf write_bw -d veth0", exitFailure, "mtu 340"},
		{"ip link set veth0 down", "perf write_bw -d veth0", exitFailure, "`ip link set veth0 up`"},
	} {
		if tt.before != "" {
			if code, stderr := inside(strings.Fields(tt.before)...); code != 0 {
				t.Fatalf("%s: %s", tt.before, stderr)
			}
		}
		line := strings.ReplaceAll(tt.line, "DIR", t.TempDir())
		code, stderr := inside(append([]string{exe}, strings.Fields(line)...)...)
		if code != tt.code || !strings.Contains(stderr, tt.want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("roxie %s: exit code %d, %q; want %d, %q in it", tt.line, code, stderr, tt.code, tt.want)
		}
	}
}
