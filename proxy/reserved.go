package proxy

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
)

// reservedHost is answered in-process, for the code inside the sandbox.
const reservedHost = "warder.internal"

// serveReserved answers http://warder.internal/: /, /ca.pem and /denials.
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
		body = asJSON(map[string]any{"run": x.run.identity(), "ca": "/ca.pem", "denials": x.run.deniedList()})
	case "/denials":
		body = asJSON(x.run.deniedList())
	case "/ca.pem":
		kind, body = "application/x-pem-file", x.run.CACertPEM()
	default:
		status, body = http.StatusNotFound, asJSON(map[string]any{"paths": []string{"/", "/ca.pem", "/denials"}})
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
