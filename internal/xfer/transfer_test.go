package xfer

import "testing"

// TestAccountOfAttempts: however often a transfer connects again, each block is verified once.
func TestAccountOfAttempts(t *testing.T) {
	for _, resume := range []bool{false, true} {
		x := newTransfer(nil, nil, &Config{Resume: resume}, true)
		x.size = 10 * BlockSize
		for i := range int64(4) {
			x.connected()
			if want := resume || i > 0; x.resume != want {
				t.Errorf("attempt %d compares first: %v, want %v", i, x.resume, want)
			}
			x.done.Add((7 + i) * BlockSize)
		}
		r, err := x.finish(nil)
		if err != nil || r.Verified != r.Bytes || r.Reconnects != 3 {
			t.Errorf("%+v, %v", r, err)
		}
	}
}
