package bench

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// TestKeysRun: all figures are there, under the names that are promised.
func TestKeysRun(t *testing.T) {
	k, err := KeysRun(t.Context(), KeysOptions{Quick: true})
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := k.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"chase_ns", "reg_inv_pairs_per_s", "regmr_per_s"} {
		if v, ok := got[name].(float64); !ok || v <= 0 {
			t.Errorf("%s is %v", name, got[name])
		}
	}
	if v, ok := got["allocs_per_pair"].(float64); !ok || v != 0 {
		t.Errorf("allocs_per_pair is %v", got["allocs_per_pair"])
	}
	if _, ok := got["srp_over_persistent"]; !ok {
		t.Error("no srp_over_persistent")
	}
	checks, _ := got["check_ns"].(map[string]any)
	for _, name := range []string{"1", "1k_hot", "1k_far", "1m_random"} {
		if v, ok := checks[name].(float64); !ok || v <= 0 {
			t.Errorf("check_ns of %s is %v", name, checks[name])
		}
	}
	for name, v := range map[string]float64{"calm": k.Storm.Calm, "spin": k.Storm.Spin,
		"busy":  k.Storm.Busy,
		"storm": k.Storm.Storm, "independent": k.Independent.Random,
		"loads": k.Independent.Loads} {
		if v <= 0 {
			t.Errorf("%s is %v", name, v)
		}
	}
	var text strings.Builder
	if err := k.Write(&text); err != nil || strings.Contains(text.String(), "SRP") {
		t.Errorf("%v:\n%s", err, &text)
	}
}

// TestKeyTable: the chain goes through every key once, and the loops read what they say.
func TestKeyTable(t *testing.T) {
	k, err := newKeyTable(1000)
	if err != nil {
		t.Fatal(err)
	}
	defer k.close()
	at := k.ring[0]
	for range 999 {
		if at = k.chase(at, 1); at == k.ring[0] {
			t.Fatal("the chain is short")
		}
	}
	if k.checkChain(k.ring[0], 1000) != k.ring[0] || k.chase(k.ring[0], 1000) != k.ring[0] {
		t.Error("the chain does not close after all keys")
	}
	var sum uint64
	for _, key := range k.ring {
		sum += uint64(key)
	}
	if k.load(k.ring) != sum {
		t.Error("the loads are of something else")
	}
	k.check(sample(k.hot(1)))
	k.check(sample(k.hot(7)))
}
