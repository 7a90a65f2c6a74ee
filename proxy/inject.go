package proxy

import (
	"context"
	"crypto/sha1" //nolint:gosec // RFC 6455 §4.2.2 prescribes it; nothing depends on its strength
	"encoding/base64"
	"errors"
	"net/http"
	"time"

	"warder/broker"
	"warder/internal/scrub"
)

// grantCredential asks for the credential that the decision names.
func (x *exchange) grantCredential(r *http.Request) *refusal {
	name := x.credential()
	if name == "" {
		return nil
	}
	if x.run.granter == nil {
		return x.grantRefusal(errors.New("no source of credentials"))
	}
	began := time.Now()
	g, err := x.run.granter.Grant(r.Context(), name, broker.Target{
		RequestID: x.id, Scheme: x.scheme, Host: x.auth.host, Port: x.auth.port, Method: x.method, Path: x.tgt.path,
	})
	x.timing.Grant = micros(time.Since(began))
	if err == nil && g == nil {
		err = errors.New("no grant and no error")
	}
	if err != nil {
		if r.Context().Err() != nil && errors.Is(err, context.Canceled) {
			return clientGone("before the credential was there")
		}
		return x.grantRefusal(err)
	}
	x.grant = g
	return nil
}

func (x *exchange) grantRefusal(err error) *refusal {
	f := &refusal{reason: reasonCredentialUnavailable, cause: err.Error()}
	var be *broker.Error
	if errors.As(err, &be) {
		switch be.Reason {
		case reasonCredentialBinding, reasonClearTextCredential:
			f.reason = be.Reason
		}
		f.after = int((be.RetryAfter + time.Second - 1) / time.Second)
	}
	f.rule = x.decision.Rule
	f.detail = "credential " + x.credential() + ": " + reasonByCode(f.reason).meaning
	if be != nil && be.Detail != "" {
		f.detail = "credential " + x.credential() + ": " + be.Detail
	}
	return f
}

// inject puts the granted value into its slot, and first removes what would make
// the answer impossible to search.
func (x *exchange) inject(r *http.Request) *refusal {
	if x.grant == nil {
		return nil
	}
	limitAcceptEncoding(r.Header)
	removeExtensions(r.Header)
	limitMessageEncoding(r.Header)
	if !x.grant.Ranges {
		removeRange(r.Header)
	}
	defer x.readDeadline()()
	err := x.grant.Inject(r)
	// Now, while nothing can have been wiped: what is sent is searched in the answer.
	x.scrubber = x.run.scrubber(x.grant.Name, x.grant.Secrets())
	if err != nil {
		return x.grantRefusal(err)
	}
	x.present()
	return nil
}

// acceptable checks the kind of the answer.
func (x *exchange) acceptable(resp *http.Response) *refusal {
	x.rejected(resp.StatusCode)
	if resp.StatusCode != http.StatusSwitchingProtocols {
		cleanResponse(resp.Header, false)
		if resp.StatusCode == http.StatusNoContent {
			delete(resp.Header, "Content-Length") // it has none (RFC 9110 §8.6); HTTP/2 would pass it on
		}
		return nil
	}
	ok := x.upgrade && hasToken(resp.Header.Get("Connection"), "upgrade") &&
		hasToken(resp.Header.Get("Upgrade"), "websocket") &&
		resp.Header.Get("Sec-Websocket-Accept") == acceptKey(resp.Request.Header.Get("Sec-Websocket-Key"))
	if !ok {
		return refuse(reasonUpstreamProtocol, "the upstream switched protocols without being asked")
	}
	cleanResponse(resp.Header, true)
	return nil
}

// acceptKey is Sec-WebSocket-Accept for a key (RFC 6455 §4.2.2).
func acceptKey(key string) string {
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11")) //nolint:gosec // as above
	return base64.StdEncoding.EncodeToString(sum[:])
}

// scrub masks what was injected in this exchange, in header, body and trailers.
func (x *exchange) scrub(resp *http.Response) *refusal {
	if x.grant == nil {
		return nil
	}
	if x.grpc && !readableMessages(resp.Header) {
		return refuse(reasonUpstreamProtocol, "the answer's messages are compressed and cannot be searched")
	}
	s := x.scrubber
	x.maskedHd += s.Header(resp.Header)
	outer, ok := resp.Body.(*answerBody)
	if !ok {
		return refuse(reasonInternalError, "internal error")
	}
	view := resp
	var ends *scrub.Ends
	switch {
	case x.grpc && isGRPC(resp.Header): // the upstream's word: the client's would move the ends
		ends = scrub.GRPCEnds()
	case resp.StatusCode == http.StatusSwitchingProtocols:
		ends = scrub.WebSocketEnds()
		view = &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, ContentLength: -1, Request: resp.Request}
	}
	view.Body = outer.in
	body, n, err := s.Messages(view, ends)
	if err != nil {
		return &refusal{reason: reasonUpstreamProtocol, detail: "the answer has a coding that cannot be searched", cause: err.Error()}
	}
	x.masked = append(x.masked, n)
	outer.in = body
	resp.Body = outer
	return nil
}
