package broker

import (
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"warder/internal/config"
	"warder/internal/secret"
)

// maxValue is the longest value that is injected, in bytes. Common servers
// accept 8 KiB for one header line and 32 KiB for all of them.
const maxValue = 16 << 10

// Grant is the right to inject one value into one judged request. It is used by
// one goroutine at a time.
type Grant struct {
	Name           string
	Kind           string    // one of the Kind constants
	LeaseID        string    // of a leased value
	Accessor       string    // of the run's Vault token that fetched it
	VaultRequestID string    // request.id in Vault's audit log
	Expires        time.Time // zero: static
	Ranges         bool      // the credential lets Range through
	Stale          bool      // the value is past its time: Vault is away and a grace is configured

	slot      config.Inject
	value     secret.String
	m         *material
	clock     func() time.Time
	requestID string
	sent      []secret.String // what Inject made and the request now has
}

// Inject puts the value into its slot and removes whatever the client had there:
// every header of that name in any case, every query parameter or form field of
// that name in any encoding. A slot that signs may read the body, up to 1 MiB, and
// may ask Vault. On error, which is an *Error, the request must not be sent.
func (g *Grant) Inject(req *http.Request) error {
	err := g.inject(req)
	var body *errBody
	switch {
	case err == nil:
		return nil
	case errors.As(err, &body):
		return &Error{Reason: ReasonBinding, Credential: g.Name, Cause: err, Detail: body.text}
	}
	return &Error{Reason: ReasonUnavailable, Credential: g.Name, Cause: fmt.Errorf("inject: %w", err)}
}

// ReadsBody reports whether Inject reads the request's body.
func (g *Grant) ReadsBody() bool {
	switch in := g.slot; {
	case in.Form != "", in.SigV4 != nil:
		return true
	case in.HMAC != nil:
		return slices.Contains(in.HMAC.Parts, partBody) || slices.Contains(in.HMAC.Parts, partBodyHash)
	}
	return false
}

// ClientCertificate returns the certificate, with its key, that the connection
// must present; nil when the credential is not one. Connections made with one are
// for its run and credential alone.
func (g *Grant) ClientCertificate() *tls.Certificate {
	if g.slot.MTLS == nil || g.m == nil {
		return nil
	}
	return g.m.cert
}

func (g *Grant) inject(req *http.Request) error {
	switch in := g.slot; {
	case in.MTLS != nil:
		if g.ClientCertificate() == nil {
			return errors.New("no client certificate")
		}
		return nil
	case in.HMAC != nil:
		return g.signHMAC(req)
	case in.SigV4 != nil:
		return g.signAWS(req)
	}
	v := g.value.Reveal()
	if err := checkValue(v); err != nil {
		return err
	}
	switch in := g.slot; {
	case in.Header != "":
		if !isASCII(v) {
			return errors.New("the value is not ASCII, and a header that is shown back has then more forms than can be searched; hint: basic, query and form take it")
		}
		setHeader(req, in.Header, formatted(in.Format, v))
	case in.Basic != nil:
		setHeader(req, "Authorization", "Basic "+basicToken(g.username(), v))
	case in.Query != "":
		return g.setQuery(req.URL, in.Query, v)
	case in.Form != "":
		return setForm(req, in.Form, v)
	default:
		return errors.New("no slot that can be injected")
	}
	return nil
}

// username of Basic: as configured, or as the source gave it.
func (g *Grant) username() string {
	if g.slot.Basic.UsernameField != "" && g.m != nil {
		return g.m.user.Reveal()
	}
	return g.slot.Basic.Username
}

// Secrets returns what must be searched in the answer to a request after Inject:
// the value; with Basic the encoded pair too, with a leased user its name, with
// signatures the signature, the session token and the key.
func (g *Grant) Secrets() []secret.String {
	var out []secret.String
	if !g.value.IsZero() {
		out = append(out, g.value)
	}
	if g.slot.Basic != nil && !g.value.IsZero() {
		out = append(out, secret.Brief(basicToken(g.username(), g.value.Reveal())))
	}
	if g.m != nil {
		for _, s := range []secret.String{g.m.user, g.m.session} {
			if !s.IsZero() {
				out = append(out, s)
			}
		}
	}
	return append(out, g.sent...)
}

// checkValue refuses what could break a message open or stand for nothing. It
// says what is wrong and nothing about the value.
func checkValue(v string) error {
	switch {
	case v == "":
		return errors.New("the value is empty")
	case len(v) > maxValue:
		return fmt.Errorf("the value is longer than %d bytes", maxValue)
	}
	for i := range len(v) {
		if v[i] < 0x20 || v[i] == 0x7f {
			return errors.New("the value has control characters; hint: look for a line break at its end")
		}
	}
	if !utf8.ValidString(v) {
		return errors.New("the value is not valid UTF-8")
	}
	if strings.TrimSpace(v) != v {
		return errors.New("the value begins or ends with a space")
	}
	return nil
}

func isASCII(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r > unicode.MaxASCII }) < 0
}

func formatted(format, v string) string {
	if format == "" {
		return v
	}
	return strings.Replace(format, valueMark, v, 1)
}

func basicToken(user, v string) string {
	return base64.StdEncoding.EncodeToString([]byte(user + ":" + v))
}

// setHeader leaves exactly one value of that name, in the header and nowhere else.
func setHeader(req *http.Request, name, v string) {
	if req.Header == nil {
		req.Header = http.Header{}
	}
	removeHeader(req, name)
	req.Header[textproto.CanonicalMIMEHeaderKey(name)] = []string{v}
}

// removeHeader drops every field of that name, in header and trailers.
func removeHeader(req *http.Request, name string) {
	for _, h := range []http.Header{req.Header, req.Trailer} {
		for k := range h {
			if strings.EqualFold(k, name) {
				delete(h, k)
			}
		}
	}
}

// setQuery keeps every other byte of the query as it was. The query may stand in
// RawQuery, or behind a "?" of Opaque.
func (g *Grant) setQuery(u *url.URL, name, v string) error {
	if u == nil {
		return errors.New("the request has no URL")
	}
	add := url.QueryEscape(name) + "=" + url.QueryEscape(v)
	if path, query, found := strings.Cut(u.Opaque, "?"); found {
		if u.RawQuery != "" {
			return errors.New("the URL has two queries")
		}
		u.Opaque = path + "?" + joinQuery(withoutParam(query, name), add)
		return nil
	}
	u.RawQuery = joinQuery(withoutParam(u.RawQuery, name), add)
	return nil
}

func joinQuery(query, add string) string {
	if query == "" {
		return add
	}
	return query + "&" + add
}

// withoutParam drops the parameters whose decoded name is name. Both separators
// that servers know, "&" and ";", are seen.
func withoutParam(query, name string) string {
	var b strings.Builder
	for query != "" {
		end := strings.IndexAny(query, "&;")
		piece, sep := query, ""
		if end >= 0 {
			piece, sep = query[:end], query[end:end+1]
			query = query[end+1:]
		} else {
			query = ""
		}
		k, _, _ := strings.Cut(piece, "=")
		if d, err := url.QueryUnescape(k); k == name || (err == nil && d == name) {
			continue
		}
		b.WriteString(piece)
		b.WriteString(sep)
	}
	return strings.TrimRight(b.String(), "&;")
}
