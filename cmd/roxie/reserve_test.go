package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func TestReserve(t *testing.T) {
	dir := t.TempDir()
	if _, err := reserve(filepath.Join(dir, "none", "x")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in no directory: %v", err)
	}
	if _, err := reserve(dir); err == nil {
		t.Error("a directory can be written")
	}
	for _, tt := range []struct {
		name  string
		old   string // "-": there is no file
		wrote string
		err   error
		left  string // "-": no file
	}{
		{"success", "-", "new", nil, "new"},
		{"nothing came of it", "-", "", errors.New("interrupted"), "-"},
		{"bytes arrived wrong", "-", "new", errors.New("1 byte arrived wrong"), "new"},
		{"disk full", "-", "ne", &fs.PathError{Op: "write", Path: filepath.Join(dir, "x"),
			Err: errors.New("no space")}, "-"},
		{"old file, nothing came of it", "old", "", errors.New("interrupted"), "old"},
		{"old file, success", "old", "new", nil, "new"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			name := filepath.Join(dir, "x")
			_ = os.Remove(name)
			if tt.old != "-" {
				if err := os.WriteFile(name, []byte(tt.old), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			release, err := reserve(name)
			if err != nil {
				t.Fatal(err)
			}
			if tt.wrote != "" {
				if err := os.WriteFile(name, []byte(tt.wrote), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			release(tt.err)
			left := "-"
			if b, err := os.ReadFile(name); err == nil {
				left = string(b)
			}
			if left != tt.left {
				t.Errorf("left %q, want %q", left, tt.left)
			}
		})
	}
}
