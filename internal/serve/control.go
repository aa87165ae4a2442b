package serve

import (
	"net/http"

	"github.com/roxie-rdma/roxie/verbs/observe"
)

// openControl makes the control socket, if the configuration has one.
func (s *Server) openControl() (err error) {
	if s.cfg.Control == "" {
		return nil
	}
	if s.control, err = observe.Listen(s.cfg.Control); err != nil {
		return err
	}
	s.control.Handle("/capture", http.StripPrefix("/capture", s.Captures()))
	s.control.Handle("/capture/", http.StripPrefix("/capture", s.Captures()))
	s.log.Info("control socket", "path", s.cfg.Control)
	return nil
}

// closeControl removes it.
func (s *Server) closeControl() {
	if err := s.control.Close(); err != nil {
		s.log.Warn("control socket", "error", err)
	}
}
