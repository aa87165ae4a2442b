package observe

// routes are what every control socket offers.
func (s *Server) routes() {}
