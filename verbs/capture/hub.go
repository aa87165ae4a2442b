package capture

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/roxie-rdma/roxie/verbs"
)

// This file offers captures over HTTP:
//
//	POST /?filter=…&snaplen=…&count=…&duration=…&ring=…&interface=…
//	     the answer's body is the file, its header Capture-Id names the capture, its trailers
//	     Capture-Stats (JSON of Stats) and Capture-Error tell how it went
//	POST /ID/stop, /ID/trigger
//	POST /trigger          triggers all rings
//	GET  /                 the captures that run, as JSON

// maxCaptures is how many run at a time: each costs memory and some of every shard's time.
const maxCaptures = 8

const (
	headerID     = "Capture-Id"
	trailerStats = "Capture-Stats"
	trailerError = "Capture-Error"
)

// Hub knows the open devices of a program and records them for HTTP clients. The zero value is
// ready; its methods may be called from any goroutine. Who may reach it may read all traffic:
// serve it on a Unix socket that only root opens.
type Hub struct {
	mu       sync.Mutex
	devices  []*verbs.Context
	captures map[string]*running
	last     int
	closed   bool
}

// running is a capture of the hub.
type running struct {
	id    string
	iface string // empty: all
	cfg   Config
	*Capture
}

// Attach makes a device known. Captures that run and want it record it from now on.
func (h *Hub) Attach(dev *verbs.Context) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.devices = append(h.devices, dev)
	for _, r := range h.captures {
		if r.wants(dev) {
			r.Attach(dev)
		}
	}
}

// Detach forgets a device, before it is closed.
func (h *Hub) Detach(dev *verbs.Context) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.devices = slices.DeleteFunc(h.devices, func(d *verbs.Context) bool { return d == dev })
	for _, r := range h.captures {
		r.Detach(dev)
	}
}

// Close ends all captures, whose clients get what is recorded, and begins none any more.
func (h *Hub) Close() {
	h.mu.Lock()
	h.closed = true
	var rs []*running
	for _, r := range h.captures {
		rs = append(rs, r)
	}
	h.mu.Unlock()
	for _, r := range rs {
		r.once.Do(func() { close(r.stop) })
	}
}

func (r *running) wants(dev *verbs.Context) bool {
	return r.iface == "" || r.iface == dev.Port().LinkName
}

// ServeHTTP answers as the head of this file tells, below whatever path http.StripPrefix took off.
func (h *Hub) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /{$}", h.serveStart)
	mux.HandleFunc("GET /{$}", h.serveList)
	mux.HandleFunc("POST /trigger", func(w http.ResponseWriter, _ *http.Request) {
		n := 0
		for _, r := range h.list() {
			if r.history != nil {
				r.Trigger("told to")
				n++
			}
		}
		fmt.Fprintln(w, n)
	})
	mux.HandleFunc("POST /{id}/stop", h.serveOne(func(r *running) { r.once.Do(func() { close(r.stop) }) }))
	mux.HandleFunc("POST /{id}/trigger", h.serveOne(func(r *running) { r.Trigger("told to") }))
	if q.URL.Path == "" {
		q = q.Clone(q.Context())
		q.URL.Path = "/"
	}
	mux.ServeHTTP(w, q)
}

func (h *Hub) list() (out []*running) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.captures {
		out = append(out, r)
	}
	return out
}

// Info describes a capture that runs.
type Info struct {
	ID        string        `json:"id"`
	Interface string        `json:"interface,omitempty"` // empty: all
	Filter    string        `json:"filter,omitempty"`
	Ring      time.Duration `json:"ring_ns,omitempty"`
	Began     time.Time     `json:"began"`
}

func (h *Hub) serveList(w http.ResponseWriter, _ *http.Request) {
	out := []Info{}
	for _, r := range h.list() {
		out = append(out, Info{ID: r.id, Interface: r.iface, Filter: r.cfg.Filter, Ring: r.cfg.Ring, Began: r.began})
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(out) // a client that has gone needs no answer
}

func (h *Hub) serveOne(f func(*running)) http.HandlerFunc {
	return func(w http.ResponseWriter, q *http.Request) {
		h.mu.Lock()
		r := h.captures[q.PathValue("id")]
		h.mu.Unlock()
		if r == nil {
			http.Error(w, "no such capture: it may have ended", http.StatusNotFound)
			return
		}
		f(r)
	}
}

// flusher sends on at once what is written to it.
type flusher struct {
	mu sync.Mutex
	w  io.Writer
	rc *http.ResponseController
}

func (f *flusher) Write(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.w.Write(b)
	if err == nil {
		err = f.rc.Flush()
	}
	return n, err
}

// serveStart records to the client until the capture ends or the client goes.
func (h *Hub) serveStart(w http.ResponseWriter, q *http.Request) {
	cfg, err := configOf(q.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/x-pcapng")
	w.Header().Set("Trailer", trailerStats+", "+trailerError)
	out := &flusher{w: w, rc: http.NewResponseController(w)}
	if cfg.Ring > 0 {
		out.mu.Lock()
	}
	r, err := h.begin(out, cfg, q.URL.Query().Get("interface"), w.Header())
	if cfg.Ring > 0 { // the file begins when it is triggered, the answer when packets are kept
		if err == nil {
			w.WriteHeader(http.StatusOK)
			_ = out.rc.Flush() // a client that has gone is noticed below
		}
		out.mu.Unlock()
	}
	if err != nil {
		w.Header().Del("Trailer")
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	defer func() {
		h.mu.Lock()
		delete(h.captures, r.id)
		h.mu.Unlock()
	}()
	select {
	case <-q.Context().Done():
	case <-r.Done():
	}
	stats, err := r.Stop()
	text, _ := json.Marshal(stats)
	w.Header().Set(trailerStats, string(text))
	if err != nil {
		w.Header().Set(trailerError, err.Error())
	}
}

// begin starts a capture of one device or all, whose ID it puts in the header.
func (h *Hub) begin(out io.Writer, cfg Config, iface string, header http.Header) (*running, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := &running{iface: iface, cfg: cfg}
	var devices []*verbs.Context
	var names []string
	for _, d := range h.devices {
		names = append(names, d.Port().LinkName)
		if r.wants(d) {
			devices = append(devices, d)
		}
	}
	switch {
	case h.closed:
		return nil, errors.New("the endpoint is about to end")
	case len(h.captures) >= maxCaptures:
		return nil, fmt.Errorf("%d captures run already, as many as may", maxCaptures)
	case len(devices) == 0 && iface != "":
		return nil, fmt.Errorf("interface %s is not open; open are %q", iface, names)
	case len(devices) == 0:
		return nil, errors.New("no interface is open: the endpoint waits for one")
	}
	h.last++
	r.id = strconv.Itoa(h.last)
	header.Set(headerID, r.id)
	var err error
	if r.Capture, err = Start(out, cfg, devices...); err != nil {
		return nil, err
	}
	if h.captures == nil {
		h.captures = map[string]*running{}
	}
	h.captures[r.id] = r
	return r, nil
}

// configOf reads what a query asks for.
func configOf(v url.Values) (c Config, err error) {
	c.Filter = v.Get("filter")
	for key, to := range map[string]*int{"snaplen": &c.SnapLen, "count": &c.Count, "ring-size": &c.RingSize,
		"buffer": &c.Buffer} {
		if s := v.Get(key); s != "" {
			if *to, err = strconv.Atoi(s); err != nil {
				return c, fmt.Errorf("%s=%s: want a number", key, s)
			}
		}
	}
	for key, to := range map[string]*time.Duration{"duration": &c.Duration, "ring": &c.Ring} {
		if s := v.Get(key); s != "" {
			if *to, err = time.ParseDuration(s); err != nil {
				return c, fmt.Errorf("%s=%s: want a time, as 10s", key, s)
			}
		}
	}
	if _, err := ParseFilter(c.Filter); err != nil {
		return c, err
	}
	_, err = c.withDefaults()
	return c, err
}

// query is what configOf reads.
func (c *Config) query() url.Values {
	v := url.Values{}
	for key, n := range map[string]int{"snaplen": c.SnapLen, "count": c.Count, "ring-size": c.RingSize,
		"buffer": c.Buffer} {
		if n != 0 {
			v.Set(key, strconv.Itoa(n))
		}
	}
	for key, d := range map[string]time.Duration{"duration": c.Duration, "ring": c.Ring} {
		if d != 0 {
			v.Set(key, d.String())
		}
	}
	if c.Filter != "" {
		v.Set("filter", c.Filter)
	}
	return v
}
