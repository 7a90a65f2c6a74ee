package proxy

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"net/netip"
	"time"

	"warder/audit"
	"warder/internal/config"
	"warder/internal/identity"
	"warder/policies"
)

// Decider judges requests. *policies.Engine implements it.
type Decider interface {
	Decide(ctx context.Context, in *policies.Input) policies.Decision
	Needs() policies.Needs
	// NeedsBody says whether the body of a request, which was not read yet, matters.
	NeedsBody(ctx context.Context, in *policies.Input) bool
}

// Recorder keeps records. *audit.Log implements it. Append resolves once the
// record is durable, AppendRelaxed once it is written; Durable says which of
// the two a reservation without a credential may use ("all" or "credentialed").
// AppendBehind is for what nobody waits for: it is written with what is waited for
// next, or soon.
type Recorder interface {
	Append(ctx context.Context, r *audit.Record) *audit.Future
	AppendRelaxed(ctx context.Context, r *audit.Record) *audit.Future
	AppendBehind(ctx context.Context, r *audit.Record) *audit.Future
	Durable() string
}

// Options configure a Proxy. Policy and Audit are required.
type Options struct {
	// Policy returns the engine in force; it is asked once per request. A nil
	// result denies with policy-error.
	Policy   func() Decider
	Audit    Recorder
	Upstream config.Upstream
	Log      *slog.Logger     // nil: discarded
	Clock    func() time.Time // nil: time.Now
	Limits   Limits
}

// Limits bound what one run may hold. Zero fields mean the default.
type Limits struct {
	MaxHeaderBytes        int           // one request's head, bytes; default 64 KiB
	MaxHeaders            int           // header lines in one head; default 256
	BodyCap               int64         // bytes of a body read ahead for policy; default 1 MiB
	MaxConnsPerRun        int           // open client connections; default 512
	MaxRequestsPerRun     int           // requests under way; default 1024
	BytesPerSecond        int64         // of bodies and opaque connections, a run, both ways together; default no limit
	MaxDenials            int           // kept for Run.Denials; default 1000
	FirstByteTimeout      time.Duration // silence after accept; default 30 s
	HandshakeTimeout      time.Duration // TLS with the client; default 15 s
	HeaderTimeout         time.Duration // one request's head; default 30 s
	IdleTimeout           time.Duration // between requests of a connection, and of a tunnel that one side has ended; default 2 min
	TunnelIdleTimeout     time.Duration // an opaque connection, or what was let through, on which nothing moves; default 1 h
	DialTimeout           time.Duration // DNS, TCP and TLS towards an upstream; default 20 s
	UpstreamHeaderTimeout time.Duration // until an upstream's response head; default 15 min
}

// RunOptions describe one run.
type RunOptions struct {
	Run     identity.Run
	Offered []string // names of the credentials that policy may choose
	Granter Granter  // nil: every credential is unavailable
	CA      *CA      // nil: a fresh one in memory

	// NameOf says which name an address of the run's pool stands for ("": none),
	// and whether it is one. nil: there is no pool.
	NameOf func(netip.Addr) (name string, pool bool)

	// StandIns are recognised wherever they are sent; see StandInsOf.
	StandIns []StandIn
}

// Destination is where a transparent connection was going.
type Destination struct {
	Name string         // the name that a pool address stands for; "" for a real address
	Addr netip.AddrPort // the original destination
}

// Denial is one refused request, as told to the task's owner and to the task.
type Denial struct {
	Host       string `json:"host"`
	Port       int    `json:"port"`
	Method     string `json:"method"`
	Path       string `json:"path"`
	Reason     string `json:"reason"`
	Rule       string `json:"rule"`
	Hint       string `json:"hint"`
	DecisionID string `json:"decision_id"`
}

// ListenOptions configure ServeListener.
type ListenOptions struct {
	// Clients are the callers known by token. Empty: one anonymous caller (its
	// name is ""), which ServeListener accepts only on a loopback address.
	Clients []Client
	// Updates brings other lists of clients while the listener serves; nil: none. The run
	// of a client that is not in the new list, or not as it was, ends with all it has open.
	// An empty list is taken over on a loopback address alone.
	Updates <-chan []Client
	// Open begins the run of a client at its first use. Close is told when it has
	// ended: after IdleEnd without an open connection, or with the listener. The
	// Run itself is closed by then; ctx ends after EndTime. It is called for several
	// runs at once.
	Open    func(ctx context.Context, client Client) (*Run, error)
	Close   func(ctx context.Context, client string, r *Run)
	IdleEnd time.Duration // default 10 min
	EndTime time.Duration // default 30 s
	CA      *CA           // signs the listener's own certificate; nil: it is not spoken to over TLS
}

// Client is a caller of ServeListener, known by a token or by its certificate.
type Client struct {
	Name        string
	Token       [sha256.Size]byte // SHA-256 of the token; zero: none
	Certificate [sha256.Size]byte // SHA-256 of the certificate (DER), see CertificateOf; zero: none
	Grants      string            // what Open gives its run, in any form: with another it is another client
}
