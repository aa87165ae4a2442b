package nettest_test

import (
	"slices"
	"testing"

	"github.com/roxie-rdma/roxie/internal/lab"
	"github.com/roxie-rdma/roxie/internal/nettest"
)

// TestNew shows that a lab goes with its test, also if the test fails in one of the namespaces.
func TestNew(t *testing.T) {
	var names []string
	for range 2 {
		t.Run("lab", func(t *testing.T) {
			l := nettest.New(t, nettest.Config{Queues: 2})
			names = append(names, l.Name)
			l.A.Do(func() { t.SkipNow() }) // ends the test like t.FailNow
			t.Error("the test went on")
		})
	}
	left, err := lab.List()
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range names {
		if slices.Contains(left, name) || slices.Index(names, name) != i {
			t.Errorf("labs %v, left %v", names, left)
		}
	}
}
