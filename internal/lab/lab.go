package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Prefix starts the name of every lab, so that a lab is never taken for somebody else's namespace.
const Prefix = "roxie"

const (
	defaultMTU       = 9000
	defaultInterface = "veth0"
	maxQueues        = 4096 // of a veth
	minMTU, maxMTU   = 68, 65535
	minIPv6MTU       = 1280
)

// Config says what to build. The zero value is a lab of this process with MTU 9000 and one queue.
type Config struct {
	// Name of the lab; its namespaces are NAME-a and NAME-b. It starts with "roxie" and holds
	// letters, digits, dots, dashes and underscores. Empty: a name of this process,
	// roxie.PID.NUMBER.
	Name string
	// Queues is the number of receive and of transmit queues of each end, 1 to 4096; 0 means 1.
	Queues int
	// MTU is the link MTU in bytes, 68 to 65535; 0 means 9000. Below 1280 there is no IPv6.
	MTU int
	// Interface names both ends of the veth pair; empty means veth0.
	Interface string
	// Neighbours enters the other side's addresses in each neighbour table for good, so that
	// neither ARP nor neighbour discovery is needed.
	Neighbours bool
	// NoIPv6 leaves all IPv6 addresses out but the link-local one.
	NoIPv6 bool
	// A and B are the addresses of the two sides; nil means 10.77.0.1/24 and fd77::1/64 for A,
	// 10.77.0.2/24 and fd77::2/64 for B.
	A, B []netip.Prefix
}

var nameRule = regexp.MustCompile(`^` + Prefix + `[A-Za-z0-9._-]*$`)

// Check says what is wrong with a configuration.
func (c Config) Check() error { return c.validate() }

func (c *Config) validate() error {
	if c.Name == "" {
		c.Name = ownName()
	}
	if c.Queues == 0 {
		c.Queues = 1
	}
	if c.MTU == 0 {
		c.MTU = defaultMTU
	}
	if c.Interface == "" {
		c.Interface = defaultInterface
	}
	if c.A == nil {
		c.A = []netip.Prefix{netip.MustParsePrefix("10.77.0.1/24"),
			netip.MustParsePrefix("fd77::1/64")}
	}
	if c.B == nil {
		c.B = []netip.Prefix{netip.MustParsePrefix("10.77.0.2/24"),
			netip.MustParsePrefix("fd77::2/64")}
	}
	if err := checkName(c.Name); err != nil {
		return err
	}
	switch {
	case c.Queues < 1 || c.Queues > maxQueues:
		return fmt.Errorf("lab: %d queues, not 1 to %d", c.Queues, maxQueues)
	case c.MTU < minMTU || c.MTU > maxMTU:
		return fmt.Errorf("lab: link MTU %d, not %d to %d", c.MTU, minMTU, maxMTU)
	case len(c.Interface) >= unix.IFNAMSIZ:
		return fmt.Errorf("lab: interface name %q is longer than %d bytes",
			c.Interface, unix.IFNAMSIZ-1)
	}
	return nil
}

func checkName(name string) error {
	if !nameRule.MatchString(name) || len(name) > 200 {
		return fmt.Errorf("lab: the name %q does not start with %q or has other signs than "+
			"letters, digits, dots, dashes and underscores", name, Prefix)
	}
	return nil
}

var ownNumber atomic.Uint32

func ownName() string {
	return fmt.Sprintf("%s.%d.%d", Prefix, os.Getpid(), ownNumber.Add(1))
}

// Lab is two namespaces joined by a veth pair, up and with addresses.
type Lab struct {
	Name string
	A, B *Namespace

	once     sync.Once
	keep     atomic.Bool
	closeErr error
}

// New builds a lab. If it cannot, it takes down what it built. A lab of that name that is there
// already is an error (os.ErrExist) and stays as it is. Without the right to build one: an error
// that matches os.ErrPermission.
func New(cfg Config) (*Lab, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	a, err := newNamespace(cfg.Name + "-a")
	if err != nil {
		return nil, explain(cfg.Name, err)
	}
	b, err := newNamespace(cfg.Name + "-b")
	if err != nil {
		return nil, errors.Join(explain(cfg.Name, err), a.close(), removeNamespace(a.Name))
	}
	l := &Lab{Name: cfg.Name, A: a, B: b}
	if err := l.build(&cfg); err != nil {
		err = explain(cfg.Name, fmt.Errorf("build lab %s: %w", cfg.Name, err))
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func explain(name string, err error) error {
	switch {
	case errors.Is(err, os.ErrExist):
		return fmt.Errorf("lab %s is there already: %w", name, err)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("a lab needs root, or CAP_SYS_ADMIN and CAP_NET_ADMIN: %w", err)
	}
	return err
}

// Open finds a lab that was built and kept, by another process perhaps. Close of such a lab takes
// nothing down; [Remove] does. No lab of that name: os.ErrNotExist.
func Open(name string) (*Lab, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	a, err := openNamespace(name + "-a")
	if err != nil {
		return nil, fmt.Errorf("lab %s: %w", name, err)
	}
	b, err := openNamespace(name + "-b")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lab %s: %w", name, err), a.close())
	}
	l := &Lab{Name: name, A: a, B: b}
	l.Keep()
	for _, n := range []*Namespace{a, b} {
		if err := n.DoErr(n.discover); err != nil {
			return nil, errors.Join(fmt.Errorf("lab %s: %w", name, err), l.Close())
		}
	}
	return l, nil
}

// Keep lets the lab outlive this process: Close afterwards only gives handles back.
func (l *Lab) Keep() { l.keep.Store(true) }

// Close takes the lab down, unless it was kept. Processes that still run in it keep a namespace
// without interface and name. Closing twice is fine.
func (l *Lab) Close() error {
	l.once.Do(func() {
		var err error
		if !l.keep.Load() {
			err = errors.Join(l.A.removeVeth(), removeNamespace(l.A.Name),
				removeNamespace(l.B.Name))
		}
		l.closeErr = errors.Join(err, l.A.close(), l.B.close())
	})
	return l.closeErr
}

// List returns the names of all labs, also half-built ones, sorted.
func List() ([]string, error) {
	entries, err := os.ReadDir(runDir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	var names []string
	for _, e := range entries { // sorted: -b follows -a
		name, ok := strings.CutSuffix(e.Name(), "-a")
		if !ok {
			name, ok = strings.CutSuffix(e.Name(), "-b")
		}
		if ok && checkName(name) == nil && !contains(names, name) {
			names = append(names, name)
		}
	}
	return names, nil
}

func contains(names []string, name string) bool {
	return len(names) > 0 && names[len(names)-1] == name
}

var ownNameRule = regexp.MustCompile(`^` + Prefix + `\.([0-9]+)\.[0-9]+$`)

// Stale returns the names of labs whose process has died without taking them down.
func Stale() ([]string, error) {
	all, err := List()
	var stale []string
	for _, name := range all {
		m := ownNameRule.FindStringSubmatch(name)
		if m == nil {
			continue
		}
		pid, err := strconv.Atoi(m[1])
		if err == nil && unix.Kill(pid, 0) == unix.ESRCH {
			stale = append(stale, name)
		}
	}
	return stale, err
}

// Remove takes down the lab of that name, whoever built it, also if only half of it is there. No
// such lab: os.ErrNotExist.
func Remove(name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	var errs []error
	found := false
	for _, side := range []string{name + "-a", name + "-b"} {
		if _, err := os.Lstat(runDir + "/" + side); err != nil {
			continue
		}
		found = true
		if n, err := openNamespace(side); err == nil {
			err := n.removeVeth()
			if errors.Is(err, unix.EINVAL) { // no namespace yet, only its file
				err = nil
			}
			errs = append(errs, err, n.close())
		}
		errs = append(errs, removeNamespace(side))
	}
	if !found {
		return fmt.Errorf("lab %s: %w", name, os.ErrNotExist)
	}
	return errors.Join(errs...)
}
