package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"warder/audit"
	"warder/internal/identity"
	"warder/policies"
)

// Connections that policy lets through unread: passthrough is TLS to the name
// that the client asks for, tunnel is any bytes. Neither ever carries a
// credential, both are dialled through the guard and recorded as opaque.

// serverFirst is how long a client that has to wait for the server's first word
// keeps silent before a tunnel is opened for it.
const serverFirst = 300 * time.Millisecond

// connectionJudge is the engine when its policy has rules for connections.
func (p *Proxy) connectionJudge() Decider {
	if e := p.policy(); e != nil && e.Needs().Connection {
		return e
	}
	return nil
}

// judgeConnection asks what may be done with the connection as a whole. Every
// answer but passthrough and tunnel means: intercept, and judge each request.
func (c *clientConn) judgeConnection(e Decider, sni string) (policies.Decision, *policies.Input) {
	in := &policies.Input{
		Stage:       policies.StageConnection,
		Request:     policies.Request{ID: identity.NewID(), Host: c.arr.want.host, Port: c.arr.want.port, ContentLength: -1},
		Destination: policies.Destination{Transparent: c.arr.transparent, Literal: c.arr.want.literal, SNI: sni},
		Credentials: c.run.offered,
		TimeNS:      c.p.clock().UnixNano(),
	}
	if c.run.id != nil {
		in.Run = *c.run.id
	}
	return e.Decide(c.run.ctx, in), in
}

// carried is one opaque connection.
type carried struct {
	c        *clientConn
	client   *prefixConn
	mode     string
	id       string
	sni      string
	decision policies.Decision
	in       *policies.Input // that it was judged by
	by       Decider
	start    time.Time
	dst      *audit.Dst
	attempts int

	sent, received atomic.Int64
	up             atomic.Pointer[upstreamConn]
	halted         atomic.Pointer[refusal]
	late           Decider // judges the client's first bytes, which were not there yet
}

// opaque looks at the client's first bytes, asks the policy and, if it may,
// prepares to carry the connection. nil means: intercept.
//
// A passthrough needs an SNI that is the name of the connection. One that
// differs is refused for a tunnel too: what is sent there must be for the host
// that was judged. A ClientHello with an encrypted part is never let through,
// because the name inside could be another.
func (c *clientConn) opaque(e Decider, pre *prefixConn) (*carried, *refusal) {
	var h hello
	isTLS := pre.head[0] == 0x16
	if isTLS {
		var err error
		if h, err = readHello(c.run.ctx, pre, c.p.limits.HandshakeTimeout); err != nil {
			f := refuse(reasonNotTLS, "the TLS handshake was not completed")
			f.cause = err.Error()
			return nil, f
		}
	}
	d, in := c.judgeConnection(e, h.sni)
	named := h.sni == ""
	if !named {
		host, _, err := canonicalHost(h.sni)
		named = err == nil && host == c.arr.want.host
	}
	o := &carried{c: c, client: pre, id: identity.NewID(), sni: h.sni, decision: d, in: in, by: e, start: time.Now()}
	switch {
	case d.Verdict != policies.Passthrough && d.Verdict != policies.Tunnel, h.ech:
		return nil, nil
	case !named:
		f := mismatch(c.arr.want, h.sni)
		f.rule = d.Rule
		c.arr.sni = h.sni
		return nil, f
	case d.Verdict == policies.Tunnel:
		o.mode = "tunnel"
	case isTLS && h.sni != "":
		o.mode = "passthrough"
	default:
		return nil, nil
	}
	return o, nil
}

// silent is asked when nothing has come yet: only a tunnel may begin so.
func (c *clientConn) silent(e Decider, raw net.Conn) *carried {
	d, in := c.judgeConnection(e, "")
	if d.Verdict != policies.Tunnel {
		return nil
	}
	return &carried{
		c: c, client: &prefixConn{Conn: raw, arr: &c.arr}, mode: "tunnel", id: identity.NewID(),
		decision: d, in: in, by: e, start: time.Now(), late: e,
	}
}

// carry records, dials and copies until both sides have ended.
func (o *carried) carry() {
	c := o.c
	c.exchanges.Add(1)
	ctx := c.run.ctx
	defer c.run.end(o)
	f := o.join(o.in, o.by)
	if f == nil {
		c.run.total.requests.Add(1)
		f = o.reserve(ctx)
	}
	var up *upstreamConn
	if f == nil {
		up, f = o.dial(ctx)
	}
	if f == nil {
		f = o.copyBoth(up)
	}
	if halted := o.halted.Load(); halted != nil {
		f = halted
	}
	o.complete(f)
}

func (o *carried) reserve(ctx context.Context) *refusal {
	rec := o.record(audit.StageReserved)
	rec.Verdict = verdictAllow
	fut := o.c.p.audit.Append(ctx, rec)
	if fut == nil {
		return refuse(reasonAuditUnavailable, "the record could not be written")
	}
	if err := fut.Wait(ctx); err != nil {
		f := refuse(reasonAuditUnavailable, "the record could not be written")
		f.cause = err.Error()
		return f
	}
	return nil
}

func (o *carried) dial(ctx context.Context) (*upstreamConn, *refusal) {
	want := o.c.arr.want
	o.attempts = 1
	ctx, cancel := context.WithTimeout(ctx, o.c.p.limits.DialTimeout)
	defer cancel()
	up, err := o.c.run.dialer.connect(ctx, net.JoinHostPort(want.host, strconv.Itoa(want.port)))
	if err != nil {
		var own *refusal
		if !errors.As(err, &own) {
			own = &refusal{reason: reasonUpstreamRefused, detail: "the upstream did not accept the connection", cause: err.Error()}
		}
		return nil, own
	}
	o.dst = dstOf(up)
	up.use.Add(1) // a server may speak first
	if o.up.Store(up); o.halted.Load() != nil {
		_ = up.Close()
	}
	return up, nil
}

// copyBoth passes on bytes and ends of both directions. Once one side has ended,
// or nothing moves either way, the idle limit ends the other.
func (o *carried) copyBoth(up *upstreamConn) *refusal {
	defer up.Close()
	var active atomic.Int64
	active.Store(time.Now().UnixNano())
	var ended atomic.Bool
	var out *refusal
	move := func(dst, src net.Conn, n *atomic.Int64) {
		o.move(dst, src, n, &active, &ended)
		ended.Store(true)
		_ = closeWrite(dst)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		defer o.recovered(up)
		if out = o.judgeLate(); out != nil {
			_ = up.Close()
			return
		}
		move(up, o.client, &o.sent)
	})
	func() {
		defer o.recovered(up)
		move(o.client, up, &o.received)
	}()
	// The upstream has ended; what the client still sends has the idle limit.
	wg.Wait()
	return out
}

func (o *carried) recovered(up net.Conn) {
	if v := recover(); v != nil {
		o.c.p.panicked("opaque", v)
		_ = up.Close()
		_ = o.client.Close()
	}
}

// judgeLate looks at the first bytes of a client that had kept silent: the
// tunnel was judged without an SNI.
func (o *carried) judgeLate() *refusal {
	if o.late == nil {
		return nil
	}
	first := make([]byte, 1024)
	n, err := o.client.Read(first)
	if n == 0 || err != nil {
		return nil
	}
	o.client.head = append(first[:n:n], o.client.head...)
	if first[0] != 0x16 {
		return nil
	}
	again, f := o.c.opaque(o.late, o.client)
	if f != nil {
		return f
	}
	if again == nil || again.mode != "tunnel" {
		f := refuse(reasonDenied, "the tunnel is not allowed for this TLS name")
		f.rule = o.decision.Rule
		return f
	}
	o.sni = again.sni
	return o.join(again.in, o.late)
}

func (o *carried) move(dst, src net.Conn, n, active *atomic.Int64, ended *atomic.Bool) {
	buf := o.c.p.buffers.Get().(*[]byte)
	defer o.c.p.buffers.Put(buf)
	limits := o.c.p.limits
	var reads, writes rearmed
	for {
		idle := limits.TunnelIdleTimeout
		if ended.Load() {
			idle = min(idle, limits.IdleTimeout)
		}
		reads.within(min(idle, limits.IdleTimeout), src.SetReadDeadline)
		got, err := src.Read(*buf)
		if got > 0 {
			o.c.run.flow.pass(o.c.run.ctx, got)
			active.Store(time.Now().UnixNano())
			writes.within(limits.TunnelIdleTimeout, dst.SetWriteDeadline)
			wrote, werr := dst.Write((*buf)[:got])
			n.Add(int64(wrote))
			if n == &o.sent {
				o.c.run.total.out.Add(int64(wrote))
			} else {
				o.c.run.total.in.Add(int64(wrote))
			}
			if werr != nil {
				_ = src.Close() // nobody wants the rest
				return
			}
		}
		switch {
		case err == nil:
		case isTimeout(err) && time.Since(time.Unix(0, active.Load())) < idle:
			// The other direction moves.
		default:
			if !errors.Is(err, io.EOF) {
				_ = dst.Close()
			}
			return
		}
	}
}

// rearmed is a deadline that moves on by steps: setting it costs more than a message.
type rearmed struct {
	limit time.Duration
	at    time.Time // when it was set
}

// within has what comes next end after limit, or up to a sixteenth of it sooner.
func (r *rearmed) within(limit time.Duration, set func(time.Time) error) {
	now := time.Now()
	if limit == r.limit && now.Sub(r.at) < limit/16 {
		return
	}
	r.limit, r.at = limit, now
	_ = set(now.Add(limit)) // fails on a connection that is closed
}

func (o *carried) complete(f *refusal) {
	rec := o.record(audit.StageCompleted)
	rec.Verdict = verdictAllow
	if f != nil {
		rec.Verdict, rec.Reason, rec.Detail = reasonByCode(f.reason).verdict, f.reason, f.cause
		rec.Request.Asked = f.asked
		if f.decision != nil {
			rec.Rule, rec.Policy = f.decision.Rule, o.c.p.decided(f.decision)
		}
		if !strings.HasPrefix(f.reason, "upstream-") {
			want := o.c.arr.want
			o.c.run.deny(Denial{Host: want.host, Port: want.port, Reason: f.reason, Rule: o.decision.Rule, Hint: f.hint, DecisionID: o.decision.ID})
		}
	} else {
		rec.Response = &audit.Response{Bytes: o.received.Load()}
	}
	rec.Timing = &audit.Timing{Total: micros(time.Since(o.start))}
	o.c.keep(rec)
}

func (o *carried) record(stage string) *audit.Record {
	d, want := o.decision, o.c.arr.want
	rec := &audit.Record{
		Event: audit.EventRequest, Stage: stage, Run: o.c.run.id, Mode: o.mode, Rule: d.Rule,
		Request: &audit.Request{ID: o.id, Host: want.host, Port: want.port, Bytes: o.sent.Load(), Attempts: o.attempts},
		Policy:  o.c.p.decided(&d),
	}
	if stage == audit.StageCompleted {
		rec.Dst = o.dst
		if o.sni != "" {
			if rec.Dst == nil {
				rec.Dst = &audit.Dst{}
			}
			rec.Dst.SNI = o.sni
		}
	}
	return rec
}
