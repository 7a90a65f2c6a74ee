package proxy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
)

// document is the denial document (RFC 9457 with members of ours).
type document struct {
	Type       string  `json:"type"`
	Title      string  `json:"title"`
	Status     int     `json:"status"`
	Reason     string  `json:"reason"`
	Rule       *string `json:"rule"`
	Detail     string  `json:"detail"`
	Hint       string  `json:"hint"`
	DecisionID string  `json:"decision_id"`
	Run        string  `json:"run"`
}

func (f *refusal) document(decisionID, run string) []byte {
	row := reasonByCode(f.reason)
	d := document{
		Type: "about:blank", Title: row.title, Status: f.httpStatus(), Reason: f.reason,
		Detail: f.detail, Hint: f.hint, DecisionID: decisionID, Run: run,
	}
	if d.Detail == "" {
		d.Detail = row.meaning
	}
	if f.rule != "" {
		d.Rule = &f.rule
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(d) // strings and numbers alone
	return b.Bytes()
}

func (f *refusal) header(length int) http.Header {
	h := http.Header{
		"Content-Type":   {"application/problem+json"},
		"Content-Length": {strconv.Itoa(length)},
		"Cache-Control":  {"no-store"},
	}
	after := f.after
	if row := reasonByCode(f.reason); row.after > 0 && after == 0 {
		after = row.after
	}
	if after > 0 {
		h["Retry-After"] = []string{strconv.Itoa(after)}
	}
	if f.reason == reasonUnauthenticated {
		h["Proxy-Authenticate"] = []string{`Basic realm="warder"`}
	}
	return h
}

// denial is the answer to a refused request. r may be nil.
func (x *exchange) denial(r *http.Request) *http.Response {
	f := x.refusal
	if x.grpc {
		x.w.whole = true
		return &http.Response{
			StatusCode: http.StatusOK, ProtoMajor: 2, Request: r, Body: http.NoBody,
			Header: f.grpcHeader(x.decision.ID, x.run.identity()),
		}
	}
	body := f.document(x.decision.ID, x.run.identity())
	resp := &http.Response{
		StatusCode: f.httpStatus(), ProtoMajor: 1, ProtoMinor: 1, Request: r,
		Header: f.header(len(body)), ContentLength: int64(len(body)),
	}
	if x.method != http.MethodHead {
		x.received.Store(int64(len(body)))
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return resp
}

// writeResponse sends an answer of ours.
func (w *responseWriter) writeResponse(resp *http.Response) {
	for k, v := range resp.Header {
		w.Header()[k] = v
	}
	w.WriteHeader(resp.StatusCode)
	if w.x.method != http.MethodHead {
		_, _ = io.Copy(w, resp.Body)
	}
}

// rawDenial is a whole HTTP/1.1 answer, for what net/http refuses by itself.
func rawDenial(run string, f *refusal, _ string) []byte {
	body := f.document("", run)
	var b bytes.Buffer
	fmt.Fprintf(&b, "HTTP/1.1 %d %s\r\n", f.httpStatus(), http.StatusText(f.httpStatus()))
	h := f.header(len(body))
	h["Connection"] = []string{"close"}
	_ = h.Write(&b) // into memory
	b.WriteString("\r\n")
	b.Write(body)
	return b.Bytes()
}
