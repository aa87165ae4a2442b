package qemu

import (
	"os"
	"path/filepath"
	"testing"
)

// fakeApt is an apt-get that knows the kernel wanted only after an update, as with lists of packages
// older than it; both kernels can be downloaded.
const fakeApt = `#!/bin/sh
case " $* " in
*" update "*) touch updated ;;
*" install linux-image-6.12-amd64 "*)
	[ -e updated ] || { echo "E: Unable to locate package" >&2; exit 100; }
	echo "Inst linux-image-6.12.99-amd64 (6.12.99-1 Debian:12/security [amd64])" ;;
*" install linux-image-amd64 "*) echo "Inst linux-image-6.1.0-48-amd64 (6.1.170-1 Debian:12/stable [amd64])" ;;
*" install "*) echo "Inst libibverbs1 (44.0-2 Debian:12/stable [amd64])" ;;
*" download "*) : >a.deb; : >b.deb ;;
esac
`

// An archive that has the kernel wanted is asked again before another one is taken.
func TestOldPackageLists(t *testing.T) {
	bin, dir := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{"apt-get": fakeApt, "dpkg-deb": "#!/bin/sh\n"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	a := &apt{dir: dir, log: t.Logf}
	kernel, debs, err := a.get(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if kernel.name != "linux-image-6.12.99-amd64" {
		t.Errorf("the kernel is %s", kernel.name)
	}
	if len(debs) != 1 || debs[0] != (deb{"libibverbs1", "44.0-2"}) {
		t.Errorf("the packages are %v", debs)
	}
}
