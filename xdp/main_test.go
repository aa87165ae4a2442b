package xdp

import (
	"flag"
	"fmt"
	"os"
	"testing"
)

// TestMain leaves the example out without root, as an example cannot skip itself.
func TestMain(m *testing.M) {
	flag.Parse()
	if os.Geteuid() != 0 && flag.Lookup("test.skip").Value.String() == "" {
		fmt.Println("the example needs root: skipped")
		_ = flag.Set("test.skip", "^Example$")
	}
	os.Exit(m.Run())
}
