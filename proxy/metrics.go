package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"warder/audit"
)

// metrics are the process's own, in a registry of their own. Labels are codes of
// ours alone: nothing that a sandbox or an upstream chose.
type metrics struct {
	registry *prometheus.Registry
	requests *prometheus.CounterVec // mode, verdict, reason
	out, in  prometheus.Counter     // bytes
	standIns prometheus.Counter
	total    prometheus.Histogram
	decide   prometheus.Histogram
}

func (p *Proxy) newMetrics() *metrics {
	m := &metrics{registry: prometheus.NewRegistry()}
	opts := func(name, help string) prometheus.CounterOpts { return prometheus.CounterOpts{Name: name, Help: help} }
	m.requests = prometheus.NewCounterVec(opts("warder_requests_total", "Completed records of requests and connections."), []string{"mode", "verdict", "reason"})
	bytes := prometheus.NewCounterVec(opts("warder_body_bytes_total", "Bytes of bodies and of opaque connections, towards (out) and from (in) upstreams."), []string{"direction"})
	m.out, m.in = bytes.WithLabelValues("out"), bytes.WithLabelValues("in")
	m.standIns = prometheus.NewCounter(opts("warder_stand_ins_total", "Stand-ins seen in streamed bodies."))
	m.total = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "warder_request_seconds", Help: "From a request's head to the end of its answer.", Buckets: prometheus.ExponentialBuckets(0.001, 4, 10),
	})
	m.decide = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "warder_decide_seconds", Help: "Time that the policy took.", Buckets: prometheus.ExponentialBuckets(0.000005, 4, 8),
	})
	gauge := func(name, help string, value func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, value)
	}
	m.registry.MustRegister(m.requests, bytes, m.standIns, m.total, m.decide,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		gauge("warder_runs", "Runs that are open.", func() float64 { runs, _ := p.open(); return float64(runs) }),
		gauge("warder_connections", "Connections of clients that are open.", func() float64 { _, conns := p.open(); return float64(conns) }),
		gauge("warder_requests_in_flight", "Requests that are under way.", func() float64 { return float64(p.inFlight.Load()) }),
		prometheus.NewCounterFunc(opts("warder_bandwidth_wait_seconds_total", "Time that transfers waited for the bandwidth of their run."), func() float64 { return time.Duration(p.heldBack.Load()).Seconds() }),
		prometheus.NewCounterFunc(opts("warder_panics_total", "Faults of the proxy itself that it survived."), func() float64 { return float64(p.panics.Load()) }),
	)
	return m
}

// open counts runs and their connections.
func (p *Proxy) open() (runs, conns int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for r := range p.runs {
		r.mu.Lock()
		conns += len(r.conns)
		r.mu.Unlock()
	}
	return len(p.runs), conns
}

// count takes in a completed record.
func (m *metrics) count(rec *audit.Record) {
	m.requests.WithLabelValues(rec.Mode, rec.Verdict, rec.Reason).Inc()
	if q := rec.Request; q != nil {
		m.out.Add(float64(q.Bytes))
		m.standIns.Add(float64(q.StandIns))
	}
	if rec.Response != nil && rec.Verdict == verdictAllow {
		m.in.Add(float64(rec.Response.Bytes))
	}
	if t := rec.Timing; t != nil {
		m.total.Observe(float64(t.Total) / 1e6)
		if t.Decide > 0 {
			m.decide.Observe(float64(t.Decide) / 1e6)
		}
	}
}

// ServeAdmin answers /metrics, /healthz and /readyz on a loopback address until
// ctx ends. ready says why the process cannot do its work yet; nil: it can. No
// run can reach ln, whatever its policy and the configuration allow.
func (p *Proxy) ServeAdmin(ctx context.Context, ln net.Listener, ready func() error) error {
	if !onLoopback(ln.Addr()) {
		return fmt.Errorf("proxy: admin: %s is not a loopback address", ln.Addr())
	}
	p.keepAway(ln.Addr())
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(p.metrics.registry, promhttp.HandlerOpts{ErrorLog: p.server.ErrorLog}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		err := ready()
		if err == nil && p.policy() == nil {
			err = errors.New("no policy is in force")
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "ok")
	})
	s := &http.Server{
		Handler: sameHost(mux), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute,
		WriteTimeout: time.Minute, ErrorLog: p.server.ErrorLog,
	}
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	if err := s.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("proxy: admin: %w", err)
	}
	return nil
}

// sameHost refuses names: a page in a browser on this machine must not read the
// metrics through a name that it has pointed here.
func sameHost(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		a, err := netip.ParseAddr(strings.Trim(host, "[]"))
		if host != "localhost" && (err != nil || !a.IsLoopback()) {
			http.Error(w, "not this host", http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// keepAway forbids to dial an address of our own.
func (p *Proxy) keepAway(a net.Addr) {
	t, ok := a.(*net.TCPAddr)
	if !ok {
		return
	}
	addr, _ := netip.AddrFromSlice(t.IP)
	p.dialer.up.keepAway(addr.Unmap(), uint16(t.Port))
}
