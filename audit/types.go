package audit

import (
	"context"
	"sync"

	"warder/internal/identity"
)

// Schema is the value of every record's "schema" key.
const Schema = "warder.audit/v1"

// Events and stages of the fixed format.
const (
	EventRequest    = "request"
	EventRunStart   = "run.start"
	EventRunEnd     = "run.end"
	EventPolicyLoad = "policy.load"
	EventClients    = "clients.load"
	EventDrop       = "drop"
	EventOverride   = "override"
	EventApproval   = "approval"
	EventAnomaly    = "audit.anomaly" // what befell the log itself; the detail tells it
	EventLease      = "lease."        // prefix: lease.issue, lease.revoke, …

	StageReserved    = "reserved"
	StageCompleted   = "completed"
	StageInterrupted = "interrupted"
)

// Record is one line of the log. Schema, ID, Time, Seq, Stream, Prev and Hash
// are filled in by the writer; callers leave them empty (ID may be preset).
type Record struct {
	Schema     string        `json:"schema"`
	ID         string        `json:"id"`
	Time       string        `json:"time"` // RFC 3339 with nanoseconds, UTC
	Seq        uint64        `json:"seq"`
	Stream     string        `json:"stream"`
	Event      string        `json:"event"`
	Stage      string        `json:"stage,omitempty"`
	Run        *identity.Run `json:"run,omitempty"`
	Request    *Request      `json:"request,omitempty"`
	Dst        *Dst          `json:"dst,omitempty"`
	Mode       string        `json:"mode,omitempty"`    // intercepted|plain|passthrough|tunnel|refused
	Verdict    string        `json:"verdict,omitempty"` // allow|deny|error
	Reason     string        `json:"reason,omitempty"`
	Rule       string        `json:"rule,omitempty"`
	Would      string        `json:"would,omitempty"` // monitor mode: "deny"
	Policy     *Policy       `json:"policy,omitempty"`
	Credential *Credential   `json:"credential,omitempty"`
	Response   *Response     `json:"response,omitempty"`
	Timing     *Timing       `json:"timing_us,omitempty"`
	Detail     string        `json:"detail,omitempty"` // for operators; capped, control-free
	*RunStart
	*RunEnd
	*Drop
	*Override
	*Callers
	Prev string `json:"prev"`
	Hash string `json:"hash"`

	line []byte // as it was read
}

// Line returns the exact bytes of the line that the record was read from, without the
// newline; nil for one that Read did not yield.
func (r *Record) Line() []byte { return r.line }

// Request describes the canonical request. Values of query and headers are never recorded.
type Request struct {
	ID          string   `json:"id"`
	Method      string   `json:"method,omitempty"`
	Scheme      string   `json:"scheme,omitempty"`
	Host        string   `json:"host,omitempty"`
	Port        int      `json:"port,omitempty"`
	Path        string   `json:"path,omitempty"`
	QueryKeys   []string `json:"query_keys,omitempty"`
	Protocol    string   `json:"protocol,omitempty"`
	HeaderNames []string `json:"header_names,omitempty"`
	Bytes       int64    `json:"bytes"`
	Attempts    int      `json:"attempts"`
	StandIns    int64    `json:"stand_ins,omitempty"` // seen in the streamed body, and sent on as they were
	Asked       string   `json:"asked,omitempty"`     // the other name of an authority mismatch
}

// Dst is what was really dialled.
type Dst struct {
	IP         string `json:"ip,omitempty"`
	Port       int    `json:"port,omitempty"`
	SNI        string `json:"sni,omitempty"`
	TLSVersion string `json:"tls_version,omitempty"`
	CertSHA256 string `json:"cert_sha256,omitempty"`
}

// Policy names the text that decided.
type Policy struct {
	Revision   string `json:"revision,omitempty"`
	Digest     string `json:"digest,omitempty"`
	DecisionID string `json:"decision_id,omitempty"`
	Mode       string `json:"mode,omitempty"`
	InputRef   string `json:"input_ref,omitempty"`
}

// Credential names what was injected; never the value, not even hashed.
type Credential struct {
	Name           string `json:"name"`
	Kind           string `json:"kind,omitempty"`
	LeaseID        string `json:"lease_id,omitempty"`
	Accessor       string `json:"accessor,omitempty"`
	VaultRequestID string `json:"vault_request_id,omitempty"`
	Expires        string `json:"expires,omitempty"` // RFC 3339
	Stale          bool   `json:"stale,omitempty"`   // past its time: Vault was away and a grace is configured
	Status         string `json:"status,omitempty"`  // at run end: revoked | expires | static | unconfirmed
	Detail         string `json:"detail,omitempty"`
}

// Response is the upstream's answer (or ours, for a denial).
type Response struct {
	Status   int   `json:"status"`
	Bytes    int64 `json:"bytes"`
	Scrubbed int64 `json:"scrubbed"`
}

// Timing is in microseconds.
type Timing struct {
	Decide   int64 `json:"decide"`
	Grant    int64 `json:"grant"`
	Upstream int64 `json:"upstream"`
	Total    int64 `json:"total"`
}

// RunStart holds the keys of a run.start line.
type RunStart struct {
	Argv     []string       `json:"argv,omitempty"`
	EnvNames []string       `json:"env_names,omitempty"`
	Inputs   []File         `json:"inputs,omitempty"`
	Limits   map[string]any `json:"limits,omitempty"` // effective limits, and "not_enforced": [names]
	Image    string         `json:"image,omitempty"`
	NoDigest bool           `json:"no_digest,omitempty"` // there is no run.image_digest that the image could be known by
}

// RunEnd holds the keys of a run.end line.
type RunEnd struct {
	Cause       string       `json:"cause,omitempty"` // exit|signal|timeout|oom|error|interrupted
	ExitCode    *int         `json:"exit_code,omitempty"`
	Stdout      *Stream      `json:"stdout,omitempty"`
	Stderr      *Stream      `json:"stderr,omitempty"`
	Artifacts   []File       `json:"artifacts,omitempty"`
	Credentials []Credential `json:"credentials,omitempty"`
}

// Stream summarises an output stream of the task.
type Stream struct {
	Bytes     int64  `json:"bytes"`
	SHA256    string `json:"sha256"`
	Truncated bool   `json:"truncated"`
}

// File is an input or an artefact.
type File struct {
	Path    string `json:"path"`
	Size    int64  `json:"size"`
	Mode    string `json:"mode,omitempty"`
	SHA256  string `json:"sha256,omitempty"`
	Refused string `json:"refused,omitempty"`
}

// Drop counts packets that led nowhere, by kind: udp, icmp, ipv6, raw, fragment, …
type Drop struct {
	Dropped map[string]uint64 `json:"dropped,omitempty"`
}

// Override says that a narrow exception of the configuration was used.
type Override struct {
	Setting string `json:"setting,omitempty"`
	Value   string `json:"value,omitempty"`
}

// Callers holds the keys of a clients.load line.
type Callers struct {
	Clients []Caller `json:"clients"`        // all that are known from here on
	Gone    []string `json:"gone,omitempty"` // who was known and no longer is, or not as before: their runs end
}

// Caller is a client of the proxy, and what it is known by; never its token.
type Caller struct {
	Name        string   `json:"name"`
	KnownBy     string   `json:"known_by"`              // token|certificate
	CertSHA256  string   `json:"cert_sha256,omitempty"` // of the certificate's DER
	Credentials []string `json:"credentials"`           // it is offered these; null: all
}

// Future resolves once its record is durable, or never will be.
type Future struct {
	mu       sync.Mutex
	resolved bool
	err      error         // once resolved
	done     chan struct{} // made by the first Wait that has to wait, closed when resolved
	log      *Log          // whom to press; nil for what is resolved from the start
	urgent   bool          // whoever waits wants the record written, not durable
}

// Failed returns a future that has already failed with err.
func Failed(err error) *Future { return &Future{resolved: true, err: err} }

// answer resolves the future; only the first answer counts.
func (f *Future) answer(err error) {
	f.mu.Lock()
	if f.resolved {
		f.mu.Unlock()
		return
	}
	f.resolved, f.err = true, err
	waited := f.done
	f.mu.Unlock()
	if waited != nil {
		close(waited)
	}
}

// Wait returns nil once the record is on disk (fdatasync has returned), the
// writer's error, or the context's. A record whose Wait was cut short by the
// context may still become durable. While the disk is quick and nobody else writes, the
// caller writes and syncs itself, and the context is looked at afterwards.
func (f *Future) Wait(ctx context.Context) error {
	if f.log != nil {
		f.log.press(f)
	}
	f.mu.Lock()
	if f.resolved {
		f.mu.Unlock()
		return f.err
	}
	if f.done == nil {
		f.done = make(chan struct{})
	}
	f.mu.Unlock()
	if ctx.Done() == nil {
		<-f.done
		return f.err
	}
	select {
	case <-f.done:
		return f.err
	case <-ctx.Done():
		return ctx.Err()
	}
}
