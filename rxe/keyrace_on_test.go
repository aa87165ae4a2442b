//go:build race

package rxe_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

const raceEnabled = true

const plantedEnv = "ROXIE_RXE_PLANTED"

// TestPlantedMissingGrace: with shards that nobody waits for, the race detector reports the
// application's stores, whichever way its memory was given back. The mistake runs in a process of its
// own, which must fail.
func TestPlantedMissingGrace(t *testing.T) {
	if name := os.Getenv(plantedEnv); name != "" {
		for _, e := range endings {
			if e.name == name {
				w := newRaceWorld(t, true)
				defer w.close()
				e.run(w, 5000)
			}
		}
		return
	}
	for _, e := range endings {
		t.Run(e.name, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run=^TestPlantedMissingGrace$")
			cmd.Env = append(os.Environ(), plantedEnv+"="+e.name, "GORACE=halt_on_error=1")
			out, err := cmd.CombinedOutput()
			text := string(out)
			if err == nil || !strings.Contains(text, "DATA RACE") {
				t.Fatalf("not reported: %v\n%s", err, out)
			}
			if !strings.Contains(text, "raceWorld).reuse") || !strings.Contains(text, "mr.(*List).") {
				t.Errorf("the report is not about the application's memory:\n%s", out)
			}
		})
	}
}
