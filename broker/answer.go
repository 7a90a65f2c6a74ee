package broker

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/vault/api"
)

// vaultClass says what an answer, or its absence, means for the caller.
type vaultClass int

const (
	classUnavailable vaultClass = iota // no usable answer: the call may be repeated later
	classDenied                        // 401, 403
	classNotFound                      // 404, or an answer without data
	classInvalid                       // 400 and the rest of 4xx: repeating does not help
)

// vaultError is for the operator: path and status, Vault's own short text, no value.
type vaultError struct {
	class      vaultClass
	op         string // "GET secret/data/github"
	text       string
	status     int // 0 without an answer
	retryAfter time.Duration
	gated      bool   // not even tried
	said       bool   // the answer is Vault's own
	wrapped    string // accessor of the token in a wrapped answer
	err        error
}

func (e *vaultError) Error() string {
	s := "vault: " + e.op
	if e.status != 0 {
		s += ": status " + strconv.Itoa(e.status)
	}
	if e.text != "" {
		s += ": " + e.text
	}
	if e.err != nil {
		s += ": " + e.err.Error()
	}
	return s
}

func (e *vaultError) Unwrap() error { return e.err }

func isClass(err error, c vaultClass) bool {
	var ve *vaultError
	return errors.As(err, &ve) && ve.class == c
}

// answer sorts a complete answer. What is not Vault's JSON is no answer of
// Vault's, whatever its status. hide masks its texts.
func (c *conn) answer(resp *http.Response, raw []byte, op string, hide func(string) string) (*api.Secret, error) {
	status := resp.StatusCode
	if status == http.StatusNoContent {
		return nil, nil
	}
	ve := &vaultError{op: op, status: status}
	if status >= 300 && status < 400 {
		ve.text = "redirected to another address, which is never followed; hint: name the active server in vault.address"
		return nil, ve
	}
	if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		ve.retryAfter = retryAfter(resp.Header.Get("Retry-After"))
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if status == http.StatusOK {
		sec := new(api.Secret)
		if err := dec.Decode(sec); err != nil {
			ve.text = "the answer is not Vault's JSON"
			return nil, ve
		}
		if w := sec.WrapInfo; w != nil { // its token opens the answer to whoever has it
			ve.class, ve.said, ve.wrapped = classNotFound, true, w.WrappedAccessor
			ve.text = "the answer is wrapped, which was not asked for; hint: nothing between Warder and Vault may add X-Vault-Wrap-TTL"
			return nil, ve
		}
		return sec, nil
	}
	var body api.ErrorResponse
	if err := dec.Decode(&body); err != nil {
		ve.text = "the answer is not Vault's JSON"
		return nil, ve
	}
	ve.text, ve.said = shortText(hide(strings.Join(body.Errors, "; "))), true // masked first: a cut value is one still
	switch {
	case status == http.StatusForbidden || status == http.StatusUnauthorized:
		ve.class = classDenied
	case status == http.StatusNotFound:
		ve.class = classNotFound
	case status == http.StatusPreconditionFailed || status == http.StatusTooManyRequests || status == 472 || status == 473:
		ve.class = classUnavailable
	case status >= 400 && status < 500:
		ve.class = classInvalid
	}
	return nil, ve
}

// shortText keeps a foreign text printable and short.
func shortText(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < 0x20 || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	if s = strings.Join(strings.Fields(s), " "); len(s) > 200 {
		s = strings.ToValidUTF8(s[:200], "") + "…"
	}
	return s
}

// retryAfter reads seconds (RFC 9110, section 10.2.3), capped: the other side
// does not decide how long we are silent.
func retryAfter(h string) time.Duration {
	n, err := strconv.Atoi(h)
	if err != nil || n <= 0 {
		return 0
	}
	return min(time.Duration(min(n, 3600))*time.Second, maxRetryAfter)
}
