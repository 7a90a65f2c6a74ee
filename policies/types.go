package policies

import "warder/internal/identity"

// Verdict is the outcome of a decision. The zero value denies.
type Verdict string

// The verdicts of data.warder.decision.
const (
	Deny        Verdict = "deny"
	Allow       Verdict = "allow"
	Ask         Verdict = "ask"
	Passthrough Verdict = "passthrough"
	Tunnel      Verdict = "tunnel"
	// Intercept is the answer at stage "connection" when no rule says
	// otherwise: terminate TLS and judge each request. It allows nothing.
	Intercept Verdict = "intercept"
)

// Reason codes that a decision can carry; part of the proxy's fixed table.
const (
	ReasonNoRule              = "no-rule"
	ReasonDenied              = "denied"
	ReasonAmbiguousCredential = "ambiguous-credential"
	ReasonCredentialBinding   = "credential-binding"
	ReasonPolicyError         = "policy-error"
	ReasonPolicyTimeout       = "policy-timeout"
	ReasonApprovalPending     = "approval-pending"
)

// Modes of an engine.
const (
	ModeEnforce = "enforce"
	ModeMonitor = "monitor"
)

// Stages of input.stage.
const (
	StageRequest    = "request"
	StageConnection = "connection"
)

// Input is what a policy sees: the documented, versioned `input` document
// (policies/schemas/input.json).
type Input struct {
	Stage       string
	Run         identity.Run
	Request     Request
	Destination Destination
	Credentials []string // names offered to the run
	Approvals   []string // rules approved so far
	Usage       *Usage   // nil unless Needs.Usage
	TimeNS      int64
}

// Request is the canonical request. At stage "connection" only ID, Host and Port are set.
type Request struct {
	ID            string
	Method        string
	Scheme        string // http | https
	Host          string // canonical: lower case, no trailing dot, A-label
	Port          int
	Path          string   // as received, percent-encoded
	Segments      []string // decoded one by one
	Query         map[string][]string
	Headers       map[string][]string // lower-case names
	Protocol      string              // http/1.0 | http/1.1 | h2
	ContentType   string
	ContentLength int64  // -1 when unknown
	Body          []byte // read ahead only when Needs.Body; nil otherwise
	BodyRead      bool   // Body holds what was read (possibly empty)
	BodyTruncated bool
}

// Usage is what a run has used so far. It is read before the request is counted,
// so requests under way together see the same.
type Usage struct {
	Run         Amounts
	Host        Amounts            // for the host of the request
	Credentials map[string]Amounts // by name; those that were used
}

// Amounts are numbers of requests, of bytes of bodies, and of units of cost.
type Amounts struct {
	Requests, BytesOut, BytesIn, Cost int64
}

// Destination says how the connection arrived.
type Destination struct {
	Transparent bool
	Literal     bool   // the host is an IP literal
	SNI         string // "" in clear text
}

// Limit is one limit named by an allow.
type Limit struct {
	Requests int64  `json:"requests,omitempty"`
	BytesOut int64  `json:"bytes_out,omitempty"`
	BytesIn  int64  `json:"bytes_in,omitempty"`
	Cost     int64  `json:"cost,omitempty"`
	Per      string `json:"per"`            // run | host | credential | a key the policy made
	Rule     string `json:"rule,omitempty"` // the allow that set it; its traffic is what is counted
}

// Decision is the composed result. The zero Decision denies.
type Decision struct {
	ID           string // decision id, UUIDv7
	Verdict      Verdict
	Reason       string // reason code of the proxy's table, "" for allow
	Rule         string // smallest matching name
	Rules        []string
	Credential   string
	Limits       []Limit
	Message      string
	Hint         string
	EncodedSlash bool   // every matching allow sets encoded_slash
	Scope        string // of an ask: once | run | a duration; "" means once
	Timeout      string // of an ask: a duration; "" means the proxy's default
	Revision     string // of the policy that decided
	Digest       string // "sha256:…" of its sources
	Mode         string // enforce | monitor
	Detail       string // for operators and the log: why a policy-error happened; never sent to the sandbox

	// With Options.KeepInput: those parts of the input that the policy refers to, as
	// canonical JSON in which Masked stands for what may be a secret, and "sha256:" and
	// the hex digest of it. Nil and "" when it is over 64 KiB. Must not be changed.
	Input    []byte
	InputRef string
}

// MonitorPasses reports whether monitor mode lets this refusal through
// (without a credential, recorded as "would: deny"). Only no-rule and denied
// pass; errors, timeouts and credential conflicts block in every mode.
func (d Decision) MonitorPasses() bool {
	if d.Mode != ModeMonitor || d.Verdict != Deny {
		return false
	}
	return d.Reason == ReasonNoRule || d.Reason == ReasonDenied
}

// Needs says what the compiled policy refers to, so that nothing else is gathered.
type Needs struct {
	Connection bool // there are passthrough or tunnel rules: connections have to be judged too
	Body       bool // any reference to input.request.body, graphql, jsonrpc, mcp or a non-constant one
	Time       bool
	Usage      bool // any reference to input.usage
}
