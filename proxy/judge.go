package proxy

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"warder/policies"
)

// canonicalise pins the one authority and brings the request into the form that
// is judged, recorded and sent.
func (x *exchange) canonicalise(r *http.Request) *refusal {
	tgt, pathErr := parseTarget(r.RequestURI)
	x.tgt = tgt
	if x.tgt.path == "" {
		x.tgt.path, _, _ = strings.Cut(withoutUser(r.RequestURI), "?")
	}
	if f := x.pinAuthority(); f != nil {
		return f
	}
	if !knownMethod(x.method) {
		f := refuse(reasonMethodNotAllowed, "the method is not known, or not possible here")
		f.hint = "methods are case-sensitive; CONNECT and TRACE are not forwarded"
		return f
	}
	if pathErr != nil {
		return badRequest("%v", pathErr)
	}
	x.upgrade = x.head.upgrade && x.method == http.MethodGet
	removeHopByHop(r.Header, x.upgrade)
	removeMethodOverrides(r.Header)
	r.Host = x.auth.field(x.scheme)
	x.header, x.names = lowerHeaders(r.Header)
	x.header["host"] = []string{r.Host}
	r.URL = &url.URL{
		Scheme: x.scheme, Host: net.JoinHostPort(x.auth.host, strconv.Itoa(x.auth.port)), Opaque: x.tgt.path,
		RawQuery: x.tgt.query, ForceQuery: x.tgt.hasQuery,
	}
	return nil
}

// pinAuthority makes destination, SNI, URL and Host field one name.
func (x *exchange) pinAuthority() *refusal {
	arr := x.conn.arr
	named, f := x.namedAuthorities()
	if f != nil {
		return f
	}
	if arr.proxying {
		if x.tgt.scheme == "" {
			f := badRequest("a proxy needs the whole URL in the request line")
			f.hint = "use http://HOST/PATH, or CONNECT for https"
			return f
		}
		x.auth = named[0]
	} else {
		x.auth = arr.want
		x.auth.stated = false
	}
	for _, a := range named {
		if a.host != x.auth.host || a.port != x.auth.port {
			return mismatch(x.auth, net.JoinHostPort(a.host, strconv.Itoa(a.port)))
		}
		x.auth.stated = x.auth.stated || a.stated
	}
	if arr.sni != "" {
		if sni, _, err := canonicalHost(arr.sni); err != nil || sni != x.auth.host {
			return mismatch(x.auth, arr.sni)
		}
	}
	return nil
}

// namedAuthorities are those of the URL, if it is in absolute form, and of the
// Host field, if there is one.
func (x *exchange) namedAuthorities() ([]authority, *refusal) {
	var named []authority
	if x.tgt.scheme != "" {
		if x.tgt.scheme != x.scheme {
			return nil, badRequest("the URL has another scheme than the connection")
		}
		a, err := parseAuthority(x.tgt.authority, defaultPort(x.scheme))
		if err != nil {
			return nil, badRequest("%v", err)
		}
		named = append(named, a)
	}
	if x.head.hosts > 0 {
		a, err := parseAuthority(x.head.host, defaultPort(x.scheme))
		if err != nil {
			return nil, badRequest("Host field: %v", err)
		}
		named = append(named, a)
	}
	for _, host := range x.head.also {
		a, err := parseAuthority(host, defaultPort(x.scheme))
		if err != nil {
			return nil, badRequest("Host field: %v", err)
		}
		named = append(named, a)
	}
	return named, nil
}

func mismatch(want authority, asked string) *refusal {
	f := refuse(reasonAuthorityMismatch, fmt.Sprintf("the connection is for %s port %d and the request names another", want.host, want.port))
	f.asked = asked
	f.hint = "open a connection for each host"
	return f
}

// decide asks the policy in force. One that comes into force meanwhile is asked
// too: what goes on from here is known to PolicyChanged, what is judged by the
// older one after that would not be.
func (x *exchange) decide(r *http.Request) *refusal {
	query := parseQuery(x.tgt.query)
	x.queryKeys = sortedKeys(query)
	in := &policies.Input{
		Stage: policies.StageRequest,
		Request: policies.Request{
			ID: x.id, Method: x.method, Scheme: x.scheme, Host: x.auth.host, Port: x.auth.port,
			Path: x.tgt.path, Segments: x.tgt.segments, Query: query, Headers: x.header,
			Protocol: x.proto, ContentType: r.Header.Get("Content-Type"), ContentLength: r.ContentLength,
		},
		Destination: policies.Destination{Transparent: x.conn.arr.transparent, Literal: x.auth.literal, SNI: x.conn.arr.sni},
		Credentials: x.run.offered,
	}
	if x.run.id != nil {
		in.Run = *x.run.id
	}
	for {
		engine := x.p.policy()
		if engine == nil {
			return refuse(reasonPolicyError, "no policy is in force")
		}
		x.observe(engine, in)
		if engine.Needs().Body && !in.Request.BodyRead && (x.body == nil || engine.NeedsBody(r.Context(), in)) {
			if f := x.readAhead(r, &in.Request); f != nil {
				return f
			}
		}
		began := time.Now()
		x.decision = engine.Decide(r.Context(), in)
		x.timing.Decide = micros(time.Since(began))
		if f := x.obey(x.decision); f != nil {
			return f
		}
		if x.begin(in, engine); x.p.policy() == engine {
			return nil
		}
		anew := *in // the other may be in use
		in = &anew
	}
}

// observe completes an input with what differs from one moment to the next.
func (x *exchange) observe(engine Decider, in *policies.Input) {
	in.TimeNS = x.p.clock().UnixNano()
	if x.usage = engine.Needs().Usage; x.usage {
		in.Usage = x.run.usage(x.auth.host)
	}
}

func (x *exchange) obey(d policies.Decision) *refusal {
	switch {
	case d.Verdict == policies.Allow:
	case d.MonitorPasses():
		x.would = "deny"
	case d.Verdict == policies.Ask:
		return x.policyRefusal(reasonApprovalPending, d)
	default:
		return x.policyRefusal(d.Reason, d)
	}
	if x.tgt.encodedSlash && !(d.Verdict == policies.Allow && d.EncodedSlash) {
		f := badRequest("encoded slash (%%2F) in the path")
		f.rule, f.hint = d.Rule, "a rule can allow it with encoded_slash"
		return f
	}
	name := x.credential()
	if name == "" {
		return nil
	}
	f := refuse(reasonClearTextCredential, "the rule names a credential and the request is in clear text")
	f.rule, f.hint = d.Rule, "use https"
	if x.scheme == "https" {
		if slices.Contains(x.run.offered, name) {
			return nil
		}
		f = refuse(reasonCredentialBinding, "the credential is not offered to this run")
		f.rule = d.Rule
	}
	return f
}

// credential names what the exchange carries: nothing unless explicitly allowed.
func (x *exchange) credential() string {
	if x.decision.Verdict != policies.Allow {
		return ""
	}
	return x.decision.Credential
}

func (x *exchange) policyRefusal(code string, d policies.Decision) *refusal {
	if reasonByCode(code).code != code {
		code = reasonPolicyError // an answer that we do not know denies too
	}
	f := refuse(code, d.Message)
	f.rule, f.hint, f.cause = d.Rule, d.Hint, d.Detail
	if f.detail == "" {
		f.detail = reasonByCode(code).meaning
		if code == reasonNoRule {
			f.detail = fmt.Sprintf("no rule allows %s %s%s", x.method, x.auth.field(x.scheme), clip(x.tgt.path, 512))
		}
	}
	if f.hint == "" && code == reasonNoRule {
		f.hint = "http://" + reservedHost + "/ lists what this run may call"
	}
	return f
}

// readAhead reads what the policy may look at and puts it back in front of the
// body. The upstream gets the same bytes. A client that waits with its body is told
// to go on (100 Continue): by then all has been judged that can be without it.
func (x *exchange) readAhead(r *http.Request, in *policies.Request) *refusal {
	in.BodyRead = true
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	most := x.p.limits.BodyCap
	got, err := x.peekBody(r, most)
	if err != nil {
		f := badRequest("the body could not be read")
		f.cause = err.Error()
		return f
	}
	in.Body = got
	if int64(len(got)) > most {
		in.Body, in.BodyTruncated = got[:most], true
	}
	return nil
}

type aheadBody struct {
	io.Reader
	io.Closer
}

// lowerHeaders is the header section as the policy sees it, and its names, sorted.
func lowerHeaders(h http.Header) (section map[string][]string, names []string) {
	section, names = make(map[string][]string, len(h)+1), make([]string, 0, len(h))
	for k, v := range h {
		low := lowerName(k)
		section[low] = v
		names = append(names, low)
	}
	slices.Sort(names)
	return section, slices.Compact(names)
}

// lowerName is strings.ToLower; it makes no new text for the usual names.
func lowerName(name string) string {
	if low, ok := usualNames[name]; ok {
		return low
	}
	return strings.ToLower(name)
}

// usualNames are the fields of most requests. The map is never changed.
var usualNames = func() map[string]string {
	m := make(map[string]string)
	for name := range strings.FieldsSeq("Accept Accept-Charset Accept-Encoding Accept-Language Access-Control-Request-Headers " +
		"Access-Control-Request-Method Authorization Cache-Control Content-Encoding Content-Length Content-Type Cookie " +
		"Forwarded Idempotency-Key If-Match If-Modified-Since If-None-Match Origin Pragma Range Referer " +
		"Sec-Fetch-Dest Sec-Fetch-Mode Sec-Fetch-Site Traceparent Tracestate User-Agent X-Api-Key X-Request-Id") {
		m[name] = strings.ToLower(name)
	}
	return m
}()
