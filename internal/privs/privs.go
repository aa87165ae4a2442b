// Package privs gives up rights, for good and in every thread.
//
// The rights of a Linux process belong to its threads, and a Go program cannot reach them all: with
// cgo in the binary there is no way, without it only by means of the runtime. So nothing is changed
// in a running program here. Exec changes one thread and lets that thread execute the program anew:
// the kernel ends all others, and what starts has never had a right too many. The process, its
// number, descriptors, namespaces and limits stay. The cost is that memory does not, so that this
// comes before anything is built; what was opened with rights goes along as descriptors (package
// starter).
//
// What the package refuses: to keep user 0, whose files no capability guards.
package privs

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/roxie-rdma/roxie/internal/netdev"
)

// User is an ordinary user.
type User struct {
	Name     string
	UID, GID int
	Groups   []int // supplementary
}

// Lookup finds a user by name, or by number, then with the group of the same number unless it has an
// entry. User 0 is refused.
func Lookup(name string) (User, error) {
	u, err := user.Lookup(name)
	uid, numErr := strconv.Atoi(name)
	if err != nil && numErr == nil {
		u, err = user.LookupId(name)
	}
	if err != nil {
		if numErr != nil || uid < 1 {
			return User{}, fmt.Errorf("unknown user %q: `adduser --system --group %s` makes one", name, name)
		}
		return User{Name: name, UID: uid, GID: uid}, nil
	}
	out := User{Name: u.Username}
	if out.UID, err = strconv.Atoi(u.Uid); err != nil {
		return User{}, fmt.Errorf("user %q: %w", name, err)
	}
	if out.GID, err = strconv.Atoi(u.Gid); err != nil {
		return User{}, fmt.Errorf("user %q: %w", name, err)
	}
	if out.UID == 0 || out.GID == 0 {
		return User{}, fmt.Errorf("user %q is root, or of root's group: name an ordinary one", name)
	}
	ids, _ := u.GroupIds() // no supplementary groups are none
	for _, id := range ids {
		if g, err := strconv.Atoi(id); err == nil && g != 0 {
			out.Groups = append(out.Groups, g)
		}
	}
	return out, nil
}

// is reports whether the calling thread is that user already, with no other group.
func (u *User) is() bool {
	groups, err := unix.Getgroups()
	if err != nil || unix.Getuid() != u.UID || unix.Getgid() != u.GID {
		return false
	}
	return !slices.ContainsFunc(groups, func(g int) bool { return g != u.GID && !slices.Contains(u.Groups, g) })
}

// Exec executes this program anew, with the same arguments, as u, with no capability but those to
// keep, and with no way to gain any (no_new_privs). env is added to the environment, or replaces what
// it has. It returns only with an error; the process must end then, as one of its threads has changed.
func Exec(u User, keep []netdev.Cap, env ...string) error {
	runtime.LockOSThread() // for good
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	path, err := os.Executable()
	if err != nil {
		return err
	}
	if err := become(&u, keep); err != nil {
		return err
	}
	var environ []string // the first of a name counts for a Go program
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		if !slices.ContainsFunc(env, func(e string) bool { return strings.HasPrefix(e, name+"=") }) {
			environ = append(environ, v)
		}
	}
	environ = append(environ, env...)
	err = syscall.Exec(path, os.Args, environ)
	if err == unix.EACCES { // u may not walk there, and need not
		err = syscall.Exec(fmt.Sprintf("/proc/self/fd/%d", self.Fd()), os.Args, environ)
	}
	return fmt.Errorf("execute %s as %s: %w", path, u.Name, err)
}

// become changes the calling thread.
func become(u *User, keep []netdev.Cap) error {
	var mask uint64
	for _, c := range keep {
		mask |= 1 << c
	}
	for c := range uintptr(64) {
		if mask&(1<<c) == 0 {
			// Only with CAP_SETPCAP. Without it this set stays, and no_new_privs makes it worthless.
			_ = unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		}
	}
	if err := unix.Prctl(unix.PR_SET_KEEPCAPS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("keep capabilities: %w", err)
	}
	if !u.is() {
		if err := switchUser(u); err != nil {
			return fmt.Errorf("become user %s: %w", u.Name, err)
		}
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	low, high := uint32(mask), uint32(mask>>32)
	data := [2]unix.CapUserData{{Effective: low, Permitted: low, Inheritable: low},
		{Effective: high, Permitted: high, Inheritable: high}}
	if err := unix.Capset(&head, &data[0]); err != nil {
		return fmt.Errorf("keep only %v: %w", keep, err)
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("clear ambient capabilities: %w", err)
	}
	for _, c := range keep {
		if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, uintptr(c), 0, 0); err != nil {
			return fmt.Errorf("pass %v on: %w", c, err)
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	return nil
}

// switchUser changes the calling thread's user and groups. It calls the kernel itself, as package
// syscall would change all threads, those that still work for us among them.
func switchUser(u *User) error {
	if err := unix.Setgroups(u.Groups); err != nil {
		return fmt.Errorf("set groups: %w (needs CAP_SETGID)", err)
	}
	gid, uid := uintptr(u.GID), uintptr(u.UID)
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESGID, gid, gid, gid); e != 0 {
		return fmt.Errorf("set group: %w (needs CAP_SETGID)", e)
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, uid, uid, uid); e != 0 {
		return fmt.Errorf("set user: %w (needs CAP_SETUID)", e)
	}
	return nil
}

// StartBare starts a command as the present user with no capability and no way to gain any. The
// present user must not be 0. The command gets SIGTERM when this process dies.
func StartBare(cmd *exec.Cmd) error {
	if os.Geteuid() == 0 {
		return fmt.Errorf("start %s without rights: the user is root", cmd.Path)
	}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the command hears of the end of this thread
		u := User{Name: "the present one", UID: os.Getuid(), GID: os.Getgid()}
		u.Groups, _ = os.Getgroups()
		if cmd.SysProcAttr == nil {
			cmd.SysProcAttr = &syscall.SysProcAttr{}
		}
		cmd.SysProcAttr.Pdeathsig = syscall.SIGTERM
		err := become(&u, nil)
		if err == nil {
			err = cmd.Start()
		}
		started <- err
		if err == nil {
			select {}
		}
	}()
	return <-started
}

// Rights are what /proc tells of a thread.
type Rights struct {
	UID, GID                      int
	Effective, Permitted, Ambient uint64 // capabilities, bit n for capability n
	Inheritable, Bounding         uint64
	NoNewPrivs                    bool
}

// Of reads the rights of all threads of a process.
func Of(pid int) ([]Rights, error) {
	dir := fmt.Sprintf("/proc/%d/task", pid)
	threads, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []Rights
	for _, th := range threads {
		text, err := os.ReadFile(dir + "/" + th.Name() + "/status")
		if os.IsNotExist(err) || err == unix.ESRCH {
			continue // it has ended meanwhile
		}
		if err != nil {
			return nil, err
		}
		out = append(out, parseStatus(string(text)))
	}
	return out, nil
}

func parseStatus(text string) (r Rights) {
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		f := strings.Fields(value)
		if len(f) == 0 {
			continue
		}
		set := func(v *uint64) { *v, _ = strconv.ParseUint(f[0], 16, 64) }
		switch key {
		case "Uid":
			r.UID, _ = strconv.Atoi(f[len(f)-1])
		case "Gid":
			r.GID, _ = strconv.Atoi(f[len(f)-1])
		case "CapEff":
			set(&r.Effective)
		case "CapPrm":
			set(&r.Permitted)
		case "CapAmb":
			set(&r.Ambient)
		case "CapInh":
			set(&r.Inheritable)
		case "CapBnd":
			set(&r.Bounding)
		case "NoNewPrivs":
			r.NoNewPrivs = f[0] == "1"
		}
	}
	return r
}

// RaiseMemlock raises RLIMIT_MEMLOCK, which Exec leaves as it is, to n bytes, or as far as it may be
// raised without CAP_SYS_RESOURCE. It returns what the limit is then.
func RaiseMemlock(n uint64) (limit uint64, err error) {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l); err != nil {
		return 0, fmt.Errorf("read RLIMIT_MEMLOCK: %w", err)
	}
	if l.Cur >= n {
		return l.Cur, nil
	}
	for _, hard := range []uint64{max(l.Max, n), l.Max} { // to raise the hard limit takes a capability
		raised := unix.Rlimit{Cur: min(n, hard), Max: hard}
		if err = unix.Setrlimit(unix.RLIMIT_MEMLOCK, &raised); err == nil {
			return raised.Cur, nil
		}
	}
	return l.Cur, fmt.Errorf("raise RLIMIT_MEMLOCK: %w", err)
}

// KeepOnExec makes a descriptor survive Exec, and returns its number.
func KeepOnExec(f *os.File) (int, error) {
	fd := int(f.Fd())
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
		return -1, fmt.Errorf("keep %s: %w", f.Name(), err)
	}
	return fd, nil
}
