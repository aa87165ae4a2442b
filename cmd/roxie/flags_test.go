package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The flags of serve's log: which lines come, and in which form.
func TestLogFlags(t *testing.T) {
	for _, tt := range []struct {
		format, level string
		verbose       bool
		lines         string // the levels that come, by their first letters
	}{
		{"text", "debug", false, "DIWE"}, {"text", "info", false, "IWE"}, {"text", "warn", false, "WE"},
		{"json", "error", false, "E"}, {"json", "info", false, "IWE"}, {"json", "error", true, "DIWE"},
	} {
		var b bytes.Buffer
		log, err := newLog(&b, tt.format, tt.level, tt.verbose)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError} {
			log.Log(t.Context(), l, "interface opened", "interface", "eth0")
		}
		var got string
		for line := range strings.Lines(b.String()) {
			var m map[string]string
			isJSON := json.Unmarshal([]byte(line), &m) == nil
			if isJSON != (tt.format == "json") {
				t.Errorf("--log-format %s writes %s", tt.format, line)
			}
			level, _, _ := strings.Cut(line[strings.Index(line, "level")+len("level"):], " ")
			if isJSON {
				level = m["level"]
				if m["msg"] != "interface opened" || m["interface"] != "eth0" || m["time"] == "" {
					t.Errorf("%s", line)
				}
			} else if !strings.Contains(line, `msg="interface opened" interface=eth0`) {
				t.Errorf("%s", line)
			}
			got += strings.TrimLeft(level, "=\":")[:1]
		}
		if got != tt.lines {
			t.Errorf("%+v: %s", tt, got)
		}
	}
	config := filepath.Join(t.TempDir(), "x.yaml")
	if err := os.WriteFile(config, []byte("interfaces: [{name: nosuchif0}]\nservices: {rping: }\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	for flag, want := range map[string]string{
		"--log-level=loud":  "--log-level loud: want debug, info, warn or error",
		"--log-format=yaml": "--log-format yaml: want text or json",
	} {
		code, _, stderr := cli("serve", "--config", config, flag)
		if code != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d, %q", flag, code, stderr)
		}
	}
}

// SIGUSR1 has a ring written, as --trigger does.
func TestCaptureSignal(t *testing.T) {
	e := newCaptured(t)
	file := filepath.Join(t.TempDir(), "told")
	r := e.capture("-o", file, "--ring", "1m")
	if len(r.code) > 0 {
		t.Fatalf("exit %d: %s", <-r.code, r.said())
	}
	e.send(1)
	if err := syscall.Kill(os.Getpid(), syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	if code := <-r.code; code != 0 || !strings.Contains(r.said(), "triggered: told to") {
		t.Errorf("exit %d: %s", code, r.said())
	}
	code, stdout, stderr := cli("decode", file)
	if code != 0 || !strings.Contains(stdout, "opcode=SEND_ONLY") {
		t.Errorf("exit %d: %s%s", code, stdout, stderr)
	}
}

// A perf run with --control is one that top, stat and dump can look into, until it ends.
func TestPerfControl(t *testing.T) {
	needRoot(t)
	socket := filepath.Join(t.TempDir(), "s")
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	ended := make(chan string, 1)
	go func() {
		var out, errs bytes.Buffer
		code := run(ctx, []string{"perf", "write_bw", "--lab", "-D", "50", "-s", "4096", "-q", "2",
			"--control", socket}, &out, &errs)
		ended <- strings.TrimSpace(errs.String()) + " " + exitStatus(code).Error()
	}()
	var table topTable
	busy := func() bool {
		code, stdout, _ := cli("top", "--control", socket, "--json", "-i", "50ms")
		if code != exitOK || json.Unmarshal([]byte(stdout), &table) != nil || len(table.Devices) != 1 {
			return false
		}
		sending := 0
		for _, q := range table.Devices[0].QPs {
			if q.State == "RTS" && q.Sent.Pkts > 0 {
				sending++
			}
		}
		return sending == 2
	}
	for !busy() {
		select {
		case how := <-ended:
			t.Fatalf("perf ended: %s", how)
		case <-ctx.Done():
			t.Fatalf("perf's control socket shows no two busy QPs: %+v", table)
		default:
		}
	}
	if code, stdout, stderr := cli("stat", "--control", socket); code != exitOK ||
		!strings.Contains(stdout, "write") {
		t.Errorf("stat: exit code %d: %s%s", code, stdout, stderr)
	}
	stop()
	if how := <-ended; !strings.Contains(how, "interrupted") {
		t.Errorf("perf: %s", how)
	}
	if _, err := os.Stat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is left behind: %v", err)
	}
}
