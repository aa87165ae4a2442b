package netdev

import "testing"

func TestPMTU(t *testing.T) {
	for _, tt := range []struct{ linkMTU, v4, v6 int }{
		{-1, 0, 0},
		{335, 0, 0},
		{336, 256, 0},
		{339, 256, 0},
		{340, 256, 256},
		{600, 512, 512},
		{1280, 1024, 1024},
		{1500, 1024, 1024},
		{4175, 2048, 2048},
		{4176, 4096, 2048},
		{4180, 4096, 4096},
		{9000, 4096, 4096},
		{65535, 4096, 4096},
	} {
		if got := PMTU(tt.linkMTU, false); got != tt.v4 {
			t.Errorf("PMTU(%d, IPv4) = %d, want %d", tt.linkMTU, got, tt.v4)
		}
		if got := PMTU(tt.linkMTU, true); got != tt.v6 {
			t.Errorf("PMTU(%d, IPv6) = %d, want %d", tt.linkMTU, got, tt.v6)
		}
	}
}
