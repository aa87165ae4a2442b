package observe

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/roxie-rdma/roxie/rxe"
)

// routes are what every control socket offers:
//
//	GET /metrics          for Prometheus
//	GET /state            a Snapshot
//	GET /dump/QPN         a QP in full, as text; ?format=json; ?device=NAME if there are several
func (s *Server) routes() {
	reg := prometheus.NewRegistry()
	reg.MustRegister(NewCollector(s.attached), collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	s.mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	s.mux.HandleFunc("GET /state", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(Take(s.attached()...)) // the client has gone
	})
	s.mux.HandleFunc("GET /dump/{qpn}", s.serveDump)
}

func (s *Server) serveDump(w http.ResponseWriter, q *http.Request) {
	n, err := strconv.ParseUint(q.PathValue("qpn"), 0, 24)
	if err != nil {
		http.Error(w, fmt.Sprintf("%s is no QPN: give a number of 24 bits, as 0x11 or 17", q.PathValue("qpn")),
			http.StatusBadRequest)
		return
	}
	device, found := q.URL.Query().Get("device"), false
	for _, d := range s.attached() {
		if d.Closed() || device != "" && d.Port().LinkName != device {
			continue
		}
		i, ok := d.InspectQP(rxe.QPN(n))
		if !ok {
			continue
		}
		if found = true; q.URL.Query().Get("format") == "json" {
			w.Header().Set("Content-Type", "application/json")
			_ = writeJSON(w, dump(d, &i))
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_ = writeText(w, dump(d, &i))
	}
	if !found {
		http.Error(w, fmt.Sprintf("no QP %#x here: `roxie top` lists those there are", n), http.StatusNotFound)
	}
}
