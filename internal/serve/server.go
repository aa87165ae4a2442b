package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"

	"github.com/roxie-rdma/roxie/verbs/capture"
	"github.com/roxie-rdma/roxie/verbs/observe"
)

// Server is an endpoint that runs. Its methods may be called from any goroutine.
type Server struct {
	log    *slog.Logger
	limits *limiter
	hold   hashing
	hub    capture.Hub // knows the interfaces that are open

	control *observe.Server // nil: none

	opener Opener // nil: own rights

	reload sync.Mutex // one Run or Reload at a time

	mu       sync.Mutex
	cfg      *Config
	stores   map[string]*store
	stations map[string]*station
	ctx      context.Context // nil: does not run
}

// maxHashing is how many connections are served by hashing at a time.
const maxHashing = 1

// New makes an endpoint for a configuration that Load has checked.
func New(cfg *Config, log *slog.Logger) *Server {
	return &Server{log: log, cfg: cfg, limits: newLimiter(cfg.Limits), hold: make(hashing, maxHashing),
		stores: map[string]*store{}, stations: map[string]*station{}}
}

// Run serves until ctx ends. Then services take no more connections, those that are there are ended
// with a DREQ, what is posted is completed or flushed, and all is given back. ready, if not nil, is
// called once the services of every interface listen, or it is being waited for. An error says what
// could not be opened; nothing is left behind then.
func (s *Server) Run(ctx context.Context, ready func()) error {
	s.reload.Lock()
	run, stop := context.WithCancel(ctx)
	defer stop()
	err := s.openControl()
	if err == nil {
		defer s.closeControl()
		err = s.openStores(s.cfg.Exports)
	}
	if err == nil {
		s.mu.Lock()
		s.ctx = run
		s.mu.Unlock()
		s.openStations(s.cfg.Interfaces)
		for _, st := range s.stations {
			if err = st.await(ctx); err != nil {
				break
			}
		}
	}
	s.reload.Unlock()
	if err == nil {
		if ready != nil {
			ready()
		}
		<-ctx.Done()
		s.log.Info("stopping", "connections", s.limits.usage().QPs)
	}
	s.hub.Close()
	stop()
	s.reload.Lock()
	defer s.reload.Unlock()
	s.mu.Lock()
	s.ctx = nil
	s.mu.Unlock()
	s.closeStations(nil)
	s.closeStores(nil)
	return err
}

// Reload takes a new configuration, also one that Load has checked. What has not changed goes on:
// interfaces, services, exports, connections. What has is ended, with its connections, and begun
// anew, which on open interfaces goes on for a moment after the return; peers that a list does not name
// any more are put out. It returns what could not be opened; the rest is in force.
func (s *Server) Reload(cfg *Config) error {
	s.reload.Lock()
	defer s.reload.Unlock()
	s.mu.Lock()
	running := s.ctx != nil
	s.mu.Unlock()
	if !running {
		return fmt.Errorf("the endpoint does not run")
	}
	if cfg.Control != s.cfg.Control {
		s.log.Warn("another control socket takes a restart", "control", cfg.Control)
		cfg.Control = s.cfg.Control
	}
	s.limits.set(cfg.Limits)
	s.closeStores(cfg.Exports)
	s.mu.Lock()
	s.cfg = cfg
	s.mu.Unlock()
	err := s.openStores(cfg.Exports)
	s.closeStations(cfg.Interfaces)
	for _, st := range s.stations {
		select {
		case st.change <- struct{}{}:
		default:
		}
	}
	for _, st := range s.openStations(cfg.Interfaces) {
		err = errors.Join(err, st.await(s.ctx))
	}
	return err
}

// Captures offers captures of the interfaces over HTTP, see [capture.Hub].
func (s *Server) Captures() http.Handler { return &s.hub }

// Usage returns what connections and exports take at the moment.
func (s *Server) Usage() Usage { return s.limits.usage() }

// services are those of the configuration, by key.
func (s *Server) services() map[string]service {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]service{}
	for _, v := range s.cfg.services() {
		out[v.key] = v
	}
	return out
}

// export finds an export; nil if there is none of that name.
func (s *Server) export(name string) *store {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stores[name]
}

// openStores gives those that are open their list of peers, and opens the others. One that cannot be
// opened keeps nobody from the rest.
func (s *Server) openStores(exports []Export) error {
	var errs []error
	for _, e := range exports {
		if st := s.export(e.Name); st != nil {
			st.relist(e)
			continue
		}
		st, err := openStore(e, s.limits, s.hold, s.log)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		s.mu.Lock()
		s.stores[e.Name] = st
		s.mu.Unlock()
	}
	return errors.Join(errs...)
}

// closeStores closes those that are not to be kept as they are.
func (s *Server) closeStores(keep []Export) {
	specs := map[string]bool{}
	for i := range keep {
		specs[specOf(&keep[i])] = true
	}
	var going []*store
	s.mu.Lock()
	for name, st := range s.stores {
		if !specs[st.spec] {
			going = append(going, st)
			delete(s.stores, name)
		}
	}
	s.mu.Unlock()
	for _, st := range going {
		st.close()
	}
}

func specOfInterface(i Interface) string { return fmt.Sprintf("%+v", i) }

// openStations starts those that do not run, and returns them.
func (s *Server) openStations(interfaces []Interface) (fresh []*station) {
	for _, i := range interfaces {
		if s.stations[i.Name] == nil {
			st := s.startStation(s.ctx, i)
			s.stations[i.Name] = st
			fresh = append(fresh, st)
		}
	}
	return fresh
}

// closeStations ends those that are not to be kept as they are.
func (s *Server) closeStations(keep []Interface) {
	specs := map[string]bool{}
	for _, i := range keep {
		specs[specOfInterface(i)] = true
	}
	var going []*station
	for name, st := range s.stations {
		ended := false
		select {
		case <-st.done: // it could not be opened: once more
			ended = true
		default:
		}
		if ended || !specs[specOfInterface(st.iface)] {
			st.stop()
			going = append(going, st)
			delete(s.stations, name)
		}
	}
	for _, st := range going {
		<-st.done
	}
}
