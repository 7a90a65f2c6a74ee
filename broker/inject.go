package broker

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"net/url"
	"strings"
	"time"

	"warder/internal/config"
	"warder/internal/secret"
)

// maxValue is the longest value that is injected, in bytes. Common servers
// accept 8 KiB for one header line and 32 KiB for all of them.
const maxValue = 16 << 10

// Grant is the right to inject one value into one judged request.
type Grant struct {
	Name           string
	Kind           string    // kv, read, env, file, command, jwt
	LeaseID        string    // of a leased value
	Accessor       string    // of the run's Vault token that fetched it
	VaultRequestID string    // request.id in Vault's audit log
	Expires        time.Time // zero: static
	Ranges         bool      // the credential lets Range through

	slot  config.Inject
	value secret.String
}

// Inject puts the value into its slot and removes whatever the client had there:
// every header of that name in any case, every query parameter of that name in
// any encoding. On error the request must not be sent.
func (g *Grant) Inject(req *http.Request) error {
	v := g.value.Reveal()
	if err := checkValue(v); err != nil {
		return fmt.Errorf("broker: inject: %s: %w", g.Name, err)
	}
	switch in := g.slot; {
	case in.Header != "":
		setHeader(req, in.Header, formatted(in.Format, v))
	case in.Basic != nil:
		setHeader(req, "Authorization", "Basic "+basicToken(in.Basic.Username, v))
	case in.Query != "":
		return g.setQuery(req.URL, in.Query, v)
	default:
		return fmt.Errorf("broker: inject: %s: no slot that can be injected", g.Name)
	}
	return nil
}

// Secrets returns what must be searched in the answer: the value, and with Basic
// the encoded pair too.
func (g *Grant) Secrets() []secret.String {
	out := []secret.String{g.value}
	if g.slot.Basic != nil && !g.value.IsZero() {
		out = append(out, secret.New(basicToken(g.slot.Basic.Username, g.value.Reveal())))
	}
	return out
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
	if strings.TrimSpace(v) != v {
		return errors.New("the value begins or ends with a space")
	}
	return nil
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
	want := textproto.CanonicalMIMEHeaderKey(name)
	for _, h := range []http.Header{req.Header, req.Trailer} {
		for k := range h {
			if strings.EqualFold(k, name) {
				delete(h, k)
			}
		}
	}
	req.Header[want] = []string{v}
}

// setQuery keeps every other byte of the query as it was. The query may stand in
// RawQuery, or behind a "?" of Opaque.
func (g *Grant) setQuery(u *url.URL, name, v string) error {
	if u == nil {
		return fmt.Errorf("broker: inject: %s: the request has no URL", g.Name)
	}
	add := url.QueryEscape(name) + "=" + url.QueryEscape(v)
	if path, query, found := strings.Cut(u.Opaque, "?"); found {
		if u.RawQuery != "" {
			return fmt.Errorf("broker: inject: %s: the URL has two queries", g.Name)
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
