package observe

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/roxie-rdma/roxie/verbs"
)

// DefaultPath is where commands look for a socket if they are not told otherwise.
const DefaultPath = "/run/roxie/control.sock"

// farewell is how long requests may take to end when a server closes.
const farewell = time.Second

// ErrInUse is returned by Listen when another process answers on the socket.
var ErrInUse = errors.New("another process answers on this control socket: give this one a path of its own")

// Server answers on a control socket. Its methods may be called from any goroutine.
type Server struct {
	path string
	mux  *http.ServeMux
	http http.Server
	stop context.CancelFunc
	done chan struct{}
	once sync.Once
	err  error

	mu      sync.Mutex
	devices []*verbs.Context
}

// Listen makes a control socket at path, with mode 0600: who may open it may read all that the
// devices do. The directory it lies in is made, with mode 0700, the ones above are not. A socket that a
// dead process has left is replaced. Errors: ErrInUse, and what the system says of the path.
func Listen(path string) (*Server, error) {
	l, err := listen(path)
	if err != nil {
		return nil, fmt.Errorf("control socket %s: %w", path, err)
	}
	s := &Server{path: path, mux: http.NewServeMux(), done: make(chan struct{})}
	s.http.Handler, s.http.ReadHeaderTimeout = s.mux, 10*time.Second
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.http.BaseContext = func(net.Listener) context.Context { return ctx }
	s.routes()
	go func() {
		defer close(s.done)
		_ = s.http.Serve(l)
	}()
	return s, nil
}

// listen binds a name of its own first and renames it when its mode is right: at no moment can
// others open the socket.
func listen(path string) (net.Listener, error) {
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = c.Close()
		return nil, ErrInUse
	}
	switch info, e := os.Lstat(path); {
	case errors.Is(e, fs.ErrNotExist):
	case e != nil:
		return nil, e
	case info.Mode().Type() != fs.ModeSocket:
		return nil, errors.New("there is a file of this name that is no socket")
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("another user's process has it, and user %d may not look: take another path",
			os.Getuid())
	case !errors.Is(err, syscall.ECONNREFUSED):
		return nil, err
	}
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("make its directory, writable for user %d: %w", os.Getuid(), err)
	}
	dir, err := os.MkdirTemp(filepath.Dir(path), ".roxie-") // mode 0700
	if err != nil {
		return nil, fmt.Errorf("user %d must be able to write into its directory: %w", os.Getuid(), err)
	}
	defer os.RemoveAll(dir)
	name := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	if err = os.Chmod(name, 0o600); err == nil {
		err = os.Rename(name, path)
	}
	if err != nil {
		_ = l.Close()
		return nil, err
	}
	return l, nil
}

// Serve is Listen for a program with these devices: one call makes it visible to `roxie top`.
func Serve(path string, devices ...*verbs.Context) (*Server, error) {
	s, err := Listen(path)
	if err != nil {
		return nil, err
	}
	for _, d := range devices {
		s.Attach(d)
	}
	return s, nil
}

// Path is where the socket is.
func (s *Server) Path() string { return s.path }

// Handle adds a handler for a pattern of http.ServeMux. The context of its requests ends with Close.
// It panics when the pattern is taken.
func (s *Server) Handle(pattern string, h http.Handler) { s.mux.Handle(pattern, h) }

// Attach makes a device visible. On a nil Server it does nothing, as Detach and Close do.
func (s *Server) Attach(dev *verbs.Context) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.devices = append(slices.Clone(s.devices), dev)
}

// Detach forgets a device. A device may also be closed without it: it is not seen any more then.
func (s *Server) Detach(dev *verbs.Context) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.devices = slices.DeleteFunc(slices.Clone(s.devices), func(d *verbs.Context) bool { return d == dev })
}

// attached are the devices there are.
func (s *Server) attached() []*verbs.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.devices
}

// Close ends the requests that run, removes the socket and waits. A second call does nothing.
func (s *Server) Close() error {
	if s == nil {
		return nil
	}
	s.once.Do(func() {
		s.stop()
		ctx, cancel := context.WithTimeout(context.Background(), farewell)
		defer cancel()
		if err := s.http.Shutdown(ctx); err != nil {
			s.err = s.http.Close()
		}
		<-s.done
		if err := os.Remove(s.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.err = errors.Join(s.err, err)
		}
	})
	return s.err
}
