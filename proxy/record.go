package proxy

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"warder/audit"
	"warder/internal/identity"
	"warder/policies"
)

// reserve makes the record that must stand before the first byte leaves.
func (x *exchange) reserve(r *http.Request) *refusal {
	rec := x.record(audit.StageReserved)
	rec.Verdict = verdictAllow
	x.reserved = true
	fut := x.append(r.Context(), rec)
	if fut == nil {
		return refuse(reasonAuditUnavailable, "the record could not be written")
	}
	if err := fut.Wait(r.Context()); err != nil {
		if r.Context().Err() != nil {
			return clientGone("before the request was sent")
		}
		f := refuse(reasonAuditUnavailable, "the record could not be written")
		f.cause = err.Error()
		return f
	}
	return nil
}

// clientGone ends an exchange whose client has closed its connection, or its
// sending side of it: the two look alike, and most clients mean the first. One that
// still listens is told.
func clientGone(when string) *refusal {
	f := badRequest("the client closed its side of the connection before the answer")
	f.hint, f.gone, f.cause = "keep the connection open until the answer has come", true, "the client went away "+when
	return f
}

// append chooses how durable a record of this exchange must be.
func (x *exchange) append(ctx context.Context, rec *audit.Record) *audit.Future {
	if x.credential() == "" && x.refusal == nil && x.p.audit.Durable() != audit.DurableAll {
		return x.p.audit.AppendRelaxed(ctx, rec)
	}
	return x.p.audit.Append(ctx, rec)
}

// complete makes the record that ends the exchange.
func (x *exchange) complete() {
	x.spendCost()
	x.timing.Total = micros(time.Since(x.start))
	rec := x.record(audit.StageCompleted)
	rec.Verdict = verdictAllow
	if f := x.refusal; f != nil && f.gone {
		rec.Detail = f.cause
	} else if f != nil {
		rec.Reason, rec.Verdict, rec.Detail = f.reason, reasonByCode(f.reason).verdict, x.withoutSecrets(f.cause)
		if f.decision != nil {
			rec.Rule, rec.Policy = f.decision.Rule, x.p.decided(f.decision)
		}
		if rec.Rule == "" {
			rec.Rule = f.rule
		}
		rec.Request.Asked = f.asked
		if !strings.HasPrefix(f.reason, "upstream-") {
			x.run.deny(x.denied())
		}
	}
	if g := x.grant; g != nil {
		rec.Credential = &audit.Credential{
			Name: g.Name, Kind: g.Kind, LeaseID: g.LeaseID, Accessor: g.Accessor, VaultRequestID: g.VaultRequestID,
			Stale: g.Stale,
		}
		if !g.Expires.IsZero() {
			rec.Credential.Expires = g.Expires.UTC().Format(time.RFC3339)
		}
	}
	rec.Dst = x.dst
	rec.Request.Bytes, rec.Request.Attempts, rec.Request.StandIns = x.sent.Load(), x.attempts, x.standIns.Load()
	rec.Timing = &x.timing
	if x.status != 0 {
		rec.Response = &audit.Response{Status: x.status, Bytes: x.received.Load(), Scrubbed: x.scrubbed()}
	}
	x.p.metrics.count(rec)
	// The client may be gone; the record is not its business.
	ctx, add := context.WithoutCancel(x.run.ctx), x.append
	if x.reserved {
		add = x.p.audit.AppendBehind
	}
	if fut := add(ctx, rec); fut != nil {
		x.run.keepFuture(fut)
	}
}

// withoutSecrets masks what was injected: an error may quote the upstream, and
// the upstream may have sent the value back.
func (x *exchange) withoutSecrets(text string) string {
	if x.grant == nil || text == "" {
		return text
	}
	h := http.Header{"Detail": {text}}
	x.scrubber.Header(h)
	return h.Get("Detail")
}

func (x *exchange) scrubbed() int64 {
	n := x.maskedHd
	for _, c := range x.masked {
		n += c.Load()
	}
	return n
}

func (x *exchange) record(stage string) *audit.Record {
	both := &struct { // in one piece
		audit.Record
		request audit.Request
	}{}
	rec := &both.Record
	rec.Event, rec.Stage, rec.Run, rec.Mode, rec.Would = audit.EventRequest, stage, x.run.id, modeOf(x.scheme), x.would
	both.request = audit.Request{
		ID: x.id, Method: x.method, Scheme: x.scheme, Host: x.auth.host, Port: x.auth.port, Path: x.tgt.path,
		QueryKeys: x.queryKeys, Protocol: x.proto, HeaderNames: x.names,
	}
	rec.Request = &both.request
	if d := &x.decision; d.ID != "" {
		if x.policy == nil {
			x.policy = x.p.decided(d)
		}
		rec.Rule, rec.Policy = d.Rule, x.policy
	}
	return rec
}

// inputKeeper stores what decisions were made from, and never waits. *audit.Log is one.
type inputKeeper interface {
	KeepInput(ref string, content []byte)
}

// decided names the policy, and the input it decided from, which is kept.
func (p *Proxy) decided(d *policies.Decision) *audit.Policy {
	if k, ok := p.audit.(inputKeeper); ok && d.InputRef != "" {
		k.KeepInput(d.InputRef, d.Input)
	}
	return &audit.Policy{Revision: d.Revision, Digest: d.Digest, DecisionID: d.ID, Mode: d.Mode, InputRef: d.InputRef}
}

func modeOf(scheme string) string {
	if scheme == "https" {
		return "intercepted"
	}
	return "plain"
}

func (x *exchange) denied() Denial {
	return Denial{
		Host: clip(x.auth.host, 256), Port: x.auth.port, Method: clip(x.method, 32), Path: clip(x.tgt.path, 2048),
		Reason: x.refusal.reason, Rule: x.refusal.rule, Hint: x.refusal.hint, DecisionID: x.decision.ID,
	}
}

func clip(s string, most int) string {
	if len(s) > most {
		s = s[:most]
	}
	return strings.ToValidUTF8(s, "�")
}

// recordRefused records a connection or request that no handler saw.
func (c *clientConn) recordRefused(id string, f *refusal) {
	c.exchanges.Add(1)
	rec := c.closedRecord(id, f)
	c.run.deny(Denial{
		Host: clip(rec.Request.Host, 256), Port: rec.Request.Port, Method: clip(rec.Request.Method, 32),
		Path: clip(rec.Request.Path, 2048), Reason: f.reason, Rule: f.rule, Hint: f.hint,
	})
	c.keep(rec)
}

// recordClosed records a connection that came to nothing.
func (c *clientConn) recordClosed(f *refusal) {
	c.exchanges.Add(1)
	c.keep(c.closedRecord(identity.NewID(), f))
}

func (c *clientConn) keep(rec *audit.Record) {
	c.p.metrics.count(rec)
	if fut := c.p.audit.Append(context.WithoutCancel(c.run.ctx), rec); fut != nil {
		c.run.keepFuture(fut)
	}
}

func (c *clientConn) closedRecord(id string, f *refusal) *audit.Record {
	bad, want := c.fr.bad, c.arr.want
	rec := &audit.Record{
		Event: audit.EventRequest, Stage: audit.StageCompleted, Run: c.run.id, Mode: "refused",
		Verdict: reasonByCode(f.reason).verdict, Reason: f.reason, Detail: f.detail,
		Request: &audit.Request{ID: id, Method: bad.method, Host: want.host, Port: want.port, Asked: f.asked},
	}
	if f.cause != "" {
		rec.Detail += ": " + f.cause
	}
	if bad.method != "" {
		rec.Request.Scheme = c.arr.scheme()
	}
	if want.host == "" && bad.host != "" {
		if a, err := parseAuthority(bad.host, defaultPort("http")); err == nil {
			rec.Request.Host, rec.Request.Port = a.host, a.port
		}
	}
	rec.Request.Path, _, _ = strings.Cut(withoutUser(bad.target), "?")
	if c.arr.sni != "" || c.arr.tls {
		rec.Dst = &audit.Dst{SNI: c.arr.sni}
	}
	return rec
}

func sortedKeys(m map[string][]string) []string {
	if len(m) == 0 {
		return nil
	}
	return slices.Sorted(maps.Keys(m))
}

func micros(d time.Duration) int64 { return d.Microseconds() }
