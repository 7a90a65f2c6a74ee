package proxy

import (
	"bytes"
	"encoding/base64"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	"warder/broker"
)

// StandIn is a harmless value inside the sandbox in the place of a credential's.
type StandIn struct {
	Env         string   // variable that holds it
	Value       string   // made for this run alone
	Credentials []string // the requests that carry one of these may carry it, in the credential's slot
}

// StandInsOf lists the stand-ins of a session, by name of the variable.
func StandInsOf(s *broker.Session) []StandIn {
	uses := s.StandInUses()
	var out []StandIn
	for env, value := range s.StandIns() {
		out = append(out, StandIn{env, value, uses[env]})
	}
	slices.SortFunc(out, func(a, b StandIn) int { return strings.Compare(a.Env, b.Env) })
	return out
}

// maxForm is how much of a form is read ahead to find stand-ins, bytes. What is
// longer, and every other body, is streamed, and stand-ins in it are counted.
const maxForm = 64 << 10

// noStandIn refuses a request that carries a stand-in although it does not carry
// its credential. Those that do are searched again once the value is in its slot
// (noStandInLeft): by then no stand-in may be left.
func (x *exchange) noStandIn(r *http.Request) *refusal {
	list := x.run.standIns
	if len(list) == 0 {
		return nil
	}
	if name := x.credential(); name != "" {
		list = slices.DeleteFunc(slices.Clone(list), func(s StandIn) bool { return slices.Contains(s.Credentials, name) })
	}
	return x.findStandIn(r, list)
}

// noStandInLeft looks at the request as it would leave.
func (x *exchange) noStandInLeft(r *http.Request) *refusal {
	if x.credential() == "" {
		return nil
	}
	return x.findStandIn(r, x.run.standIns)
}

func (x *exchange) findStandIn(r *http.Request, list []StandIn) *refusal {
	if len(list) == 0 {
		return nil
	}
	where, env := inHeader(r.Header, list)
	if env == "" {
		where = "path"
		env = inText(x.tgt.path, list)
	}
	if env == "" {
		where = "query"
		env = inText(r.URL.RawQuery, list)
	}
	if env == "" {
		var f *refusal
		where = "form"
		if env, f = x.inForm(r, list); f != nil {
			return f
		}
	}
	if env == "" {
		return nil
	}
	return x.standInLeak(env, where)
}

func (x *exchange) standInLeak(env, where string) *refusal {
	f := refuse(reasonStandInLeak, "the stand-in of "+env+" was sent in the "+where+", which is not where its credential goes")
	f.rule, f.hint = x.decision.Rule, "send it only to the API it is for, in the place the API's clients use; http://"+reservedHost+"/ lists what this run may call"
	return f
}

// inHeader searches values as they stand, percent-decoded, and what Basic encodes
// (RFC 7617).
func inHeader(h http.Header, list []StandIn) (where, env string) {
	for name, values := range h {
		for _, v := range values {
			if env = inText(v, list); env != "" {
				return "header " + name, env
			}
			scheme, rest, _ := strings.Cut(v, " ")
			if !strings.EqualFold(scheme, "basic") {
				continue
			}
			rest = strings.TrimRight(strings.Trim(rest, " "), "=")
			for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
				if plain, err := enc.DecodeString(rest); err == nil {
					if env = inText(string(plain), list); env != "" {
						return "header " + name, env
					}
				}
			}
		}
	}
	return "", ""
}

// inText searches a text as it stands and percent-decoded, once and twice.
func inText(s string, list []StandIn) string {
	for range 3 {
		for i := range list {
			if strings.Contains(s, list[i].Value) {
				return list[i].Env
			}
		}
		plain := lenientUnescape(s)
		if plain == s {
			break
		}
		s = plain
	}
	return ""
}

// lenientUnescape decodes what is percent-encoding and leaves what is not.
func lenientUnescape(s string) string {
	if strings.IndexByte(s, '%') < 0 {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) && isHex(s[i+1]) && isHex(s[i+2]) {
			b.WriteByte(unhex(s[i+1])<<4 | unhex(s[i+2]))
			i += 2
		} else {
			b.WriteByte(s[i])
		}
	}
	return b.String()
}

// inForm reads a form of at most maxForm ahead and puts it back.
func (x *exchange) inForm(r *http.Request, list []StandIn) (string, *refusal) {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil && kind == "" || kind != "application/x-www-form-urlencoded" && kind != "multipart/form-data" {
		return "", nil
	}
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength > maxForm {
		return "", nil
	}
	got, err := x.peekBody(r, maxForm)
	if err != nil {
		f := badRequest("the body could not be read")
		f.cause = err.Error()
		return "", f
	}
	if len(got) > maxForm {
		return "", nil
	}
	return inText(string(got), list), nil
}

// standInCounter counts stand-ins in a stream, across the bounds of its parts.
type standInCounter struct {
	list []StandIn
	tail []byte
	n    int64
}

func (c *standInCounter) add(p []byte) {
	if len(c.list) == 0 || len(p) == 0 {
		return
	}
	most := 0
	for i := range c.list {
		v := []byte(c.list[i].Value)
		most = max(most, len(v))
		// What ends in p, with what of it came before.
		keep := min(len(v)-1, len(c.tail))
		seam := append(slices.Clone(c.tail[len(c.tail)-keep:]), p[:min(len(p), len(v)-1)]...)
		c.n += int64(bytes.Count(seam, v) + bytes.Count(p, v))
	}
	c.tail = append(c.tail, p[max(0, len(p)-most):]...)
	c.tail = c.tail[max(0, len(c.tail)-most):]
}

// peekBody reads at most most+1 bytes of the body and puts them back in front.
func (x *exchange) peekBody(r *http.Request, most int64) ([]byte, error) {
	ctl := http.NewResponseController(x.w.ResponseWriter)
	_ = ctl.SetReadDeadline(time.Now().Add(x.p.limits.HeaderTimeout))
	got, err := io.ReadAll(io.LimitReader(r.Body, most+1))
	_ = ctl.SetReadDeadline(time.Time{})
	if err != nil {
		return nil, err
	}
	r.Body = &aheadBody{Reader: io.MultiReader(bytes.NewReader(got), r.Body), Closer: r.Body}
	return got, nil
}
