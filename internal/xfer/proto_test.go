package xfer

import (
	"bytes"
	"errors"
	"testing"
)

// TestMessages encodes and decodes what travels, and refuses what is cut or foreign.
func TestMessages(t *testing.T) {
	pad := func(b []byte, n int) []byte { return append(b, make([]byte, n-len(b))...) } // as RDMA-CM does
	for _, h := range []Hello{{Name: "a"}, {Name: "0123456789012345678901234567890123456789", Write: true}} {
		if got, err := ParseHello(pad(h.Marshal(), 56)); err != nil || got != h {
			t.Errorf("got %+v, %v", got, err)
		}
	}
	g := Grant{Rights: Read | Atomics, RKey: 0x12345678, Slots: 3, Addr: 1 << 60, Length: 1 << 40}
	if got, err := ParseGrant(pad(g.Marshal(), 196)); err != nil || got != g {
		t.Errorf("got %+v, %v", got, err)
	}
	if got := ParseRefusal(pad(Refusal("not today"), 148)); got != "not today" {
		t.Errorf("got %q", got)
	}
	m := Message{Op: OpDigest, Status: StatusIO, ID: 7, Offset: 1 << 50, Length: 9, Digest: [32]byte{1, 31: 2}}
	var b [MessageSize]byte
	m.Put(b[:])
	if got, err := ParseMessage(b[:]); err != nil || got != m {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := ParseMessage(b[:63]); !errors.Is(err, ErrProtocol) {
		t.Error(err)
	}
	good := Hello{Name: "abc"}.Marshal()
	for name, b := range map[string][]byte{
		"empty": nil, "cut": good[:8], "foreign": bytes.Repeat([]byte{7}, 56),
		"version": append([]byte("RXEX\x02"), good[5:]...), "no name": Hello{}.Marshal(),
		"flags":     append([]byte("RXEX\x01\x02"), good[6:]...),
		"long name": Hello{Name: string(make([]byte, MaxName+1))}.Marshal(),
	} {
		if _, err := ParseHello(b); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
	g.Addr = 1<<64 - 5
	if _, err := ParseGrant(g.Marshal()); !errors.Is(err, ErrProtocol) {
		t.Errorf("wrapping grant: %v", err)
	}
}

// FuzzParse: no bytes from a peer do harm.
func FuzzParse(f *testing.F) {
	f.Add(Hello{Name: "abc"}.Marshal())
	f.Add(Grant{Slots: 1}.Marshal())
	f.Add(Refusal("text"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := ParseHello(b); err == nil && (h.Name == "" || len(h.Name) > MaxName) {
			t.Errorf("name %q", h.Name)
		}
		if g, err := ParseGrant(b); err == nil && g.Addr+g.Length < g.Addr {
			t.Errorf("grant %+v", g)
		}
		if s := ParseRefusal(b); len(s) > len(b) {
			t.Errorf("text %q", s)
		}
		_, _ = ParseMessage(b)
	})
}
