package proxy

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"

	"warder/policies"
)

// reservedHost is answered in-process, for the code inside the sandbox.
const reservedHost = "warder.internal"

// callable is a rule as the code inside is told of it.
type callable struct {
	Kind       string `json:"kind"` // allow | deny | ask | passthrough | tunnel
	Rule       string `json:"rule"` // "" when the name is computed
	Title      string `json:"title,omitempty"`
	Hint       string `json:"hint,omitempty"`
	Message    string `json:"message,omitempty"`
	Credential string `json:"credential,omitempty"` // added by the proxy
}

// standInName tells of a stand-in: which variable holds it, never its value.
type standInName struct {
	Env         string   `json:"env"`
	Credentials []string `json:"credentials"`
}

// rules is what the policy says of itself. Rules that add a credential which this
// run is not offered are left out: they never allow it anything.
func (x *exchange) rules() []callable {
	out := []callable{}
	c, ok := x.p.policy().(interface{ Catalogue() []policies.RuleDoc })
	if !ok {
		return out
	}
	for _, d := range c.Catalogue() {
		if d.Credential == "" || slices.Contains(x.run.offered, d.Credential) {
			out = append(out, callable{d.Kind, d.Rule, d.Title, d.Hint, d.Message, d.Credential})
		}
	}
	return out
}

func (r *Run) standInNames() []standInName {
	out := []standInName{}
	for _, s := range r.standIns {
		out = append(out, standInName{s.Env, s.Credentials})
	}
	return out
}

// serveReserved answers http://warder.internal/: what this run may call, its
// stand-ins, its CA and what was denied to it.
func (x *exchange) serveReserved(r *http.Request) {
	if x.method != http.MethodGet && x.method != http.MethodHead {
		x.refuse(refuse(reasonMethodNotAllowed, "only GET and HEAD are answered here"))
		x.w.writeResponse(x.denial(r))
		return
	}
	var body []byte
	status, kind := http.StatusOK, "application/json"
	switch x.tgt.path {
	case "/":
		body = asJSON(map[string]any{
			"run": x.run.identity(), "ca": "/ca.pem", "rules": x.rules(), "stand_ins": x.run.standInNames(), "denials": x.run.deniedList(),
		})
	case "/rules":
		body = asJSON(x.rules())
	case "/stand-ins":
		body = asJSON(x.run.standInNames())
	case "/denials":
		body = asJSON(x.run.deniedList())
	case "/ca.pem":
		kind, body = "application/x-pem-file", x.run.CACertPEM()
	default:
		status, body = http.StatusNotFound, asJSON(map[string]any{"paths": []string{"/", "/rules", "/stand-ins", "/denials", "/ca.pem"}})
	}
	h := x.w.Header()
	h["Content-Type"] = []string{kind}
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	h["Cache-Control"] = []string{"no-store"}
	x.status = status
	x.w.WriteHeader(status)
	if x.method == http.MethodGet {
		n, _ := x.w.Write(body)
		x.received.Add(int64(n))
	}
}

// deniedList is never null in JSON.
func (r *Run) deniedList() []Denial { return append([]Denial{}, r.Denials()...) }

func asJSON(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v) // maps, slices and strings alone
	return b.Bytes()
}
