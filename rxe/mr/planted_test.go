//go:build race

package mr

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

const raceEnabled = true

const plantedEnv = "ROXIE_MR_PLANTED"

// TestPlantedMissingGrace: the race detector reports when the application does not wait for grace
// before it writes its memory, and when the table's views are recycled by a grace that is not
// the shards'. The mistakes run in a process of their own, which must fail.
func TestPlantedMissingGrace(t *testing.T) {
	plants := map[string]*invalidation{
		"memory": {noWait: true},
		"views":  {noWait: true, noTouch: true},
	}
	if name := os.Getenv(plantedEnv); name != "" {
		in := plants[name]
		in.grace = NewGrace(3)
		in.tab, in.rounds = New(8, 0, in.grace), rounds(2000)
		if name == "views" {
			in.tab.grace = NewGrace(1)
		}
		in.run(t)
		return
	}
	for name := range plants {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run=^TestPlantedMissingGrace$")
			cmd.Env = append(os.Environ(), plantedEnv+"="+name, "GORACE=halt_on_error=1")
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), "DATA RACE") {
				t.Errorf("not reported: %v\n%s", err, out)
			}
			ofTable := strings.Contains(string(out), "mr.(*Table).")
			if ofTable != (name == "views") {
				t.Errorf("the report is not about %s:\n%s", name, out)
			}
		})
	}
}
