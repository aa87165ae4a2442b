package wire

import (
	"encoding/binary"
	"os"
	"os/exec"
	"testing"
)

// TestCase60GoldenICRC: the two public vectors, byte by byte, and that any other value is refused.
func TestCase60GoldenICRC(t *testing.T) {
	for name, want := range map[string][4]byte{
		"vector_uc": {0x78, 0xf3, 0x53, 0xf3}, "vector_cnp": {0x82, 0xfd, 0x00, 0x2a},
	} {
		frame := readHex(t, "testdata/"+name+".hex")
		at := frame[len(frame)-icrcLen:]
		_, _, icrc := CheckICRC(Frame{Head: frame})
		var got [4]byte
		binary.LittleEndian.PutUint32(got[:], icrc)
		if got != want || [4]byte(at) != want {
			t.Errorf("%s: computed % x, frame holds % x, want % x", name, got, at, want)
		}
		at[0], at[3] = at[3], at[0] // as a big-endian machine might have it
		if r := Parse(Frame{Head: frame}, new(Packet)); r != ReasonICRC {
			t.Errorf("%s with its ICRC the wrong way round: %v", name, r)
		}
	}
}

// TestCase61BigEndian runs the golden frames and the kernel's captures on a big-endian processor.
func TestCase61BigEndian(t *testing.T) {
	if testing.Short() {
		t.Skip("builds for another processor")
	}
	emulator, err := exec.LookPath("qemu-s390x-static")
	if err != nil {
		if emulator, err = exec.LookPath("qemu-s390x"); err != nil {
			t.Skip("no qemu-user for s390x here")
		}
	}
	cmd := exec.CommandContext(t.Context(), "go", "test", "-short", "-exec", emulator, "-run",
		"TestGolden|TestCaptures|TestHeaderBytes|TestCase60", ".")
	cmd.Env = append(os.Environ(), "GOARCH=s390x", "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
