package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"warder/policies"
)

// overHTTP2 gives every name an upstream that speaks HTTP/2 alone.
func overHTTP2(t testing.TB, h http.HandlerFunc) setting {
	return func(e *env, o *Options, _ *RunOptions) {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ln.Close() })
		cfg := &tls.Config{Certificates: []tls.Certificate{e.up.cert}, NextProtos: []string{"h2"}}
		raw := rawListener{tls.NewListener(ln, cfg), e.up}
		go func() {
			for {
				c, err := raw.Accept()
				if err != nil {
					return
				}
				go (&http2.Server{}).ServeConn(c, &http2.ServeConnOpts{Handler: h})
			}
		}()
		for _, n := range testNames {
			o.Upstream.Hosts[n] = ln.Addr().String()
		}
		o.Upstream.AllowAddresses = append(o.Upstream.AllowAddresses, ln.Addr().String())
	}
}

func grpcRequest(t *testing.T, url string, body io.Reader) *http.Request {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, "POST", url, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{"Content-Type": {"application/grpc"}, "Te": {"trailers"}, "Grpc-Timeout": {"5S"}, "Grpc-Accept-Encoding": {"gzip, identity"}, "User-Agent": nil}
	return req
}

func message(s string) string { return fmt.Sprintf("\x00\x00\x00\x00%c%s", len(s), s) }

func TestGRPCGoesOverHTTP2WithTrailers_F061(t *testing.T) {
	var seen atomic.Pointer[http.Request]
	e := newEnv(t, nil, overHTTP2(t, func(w http.ResponseWriter, r *http.Request) {
		seen.Store(r)
		w.Header().Set("Content-Type", "application/grpc")
		w.(http.Flusher).Flush()
		io.Copy(w, r.Body)
		w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
		w.Header().Set(http.TrailerPrefix+"Grpc-Message", "fine "+r.Header.Get("Authorization"))
	}))
	cc, _ := e.h2("api.allowed.test")
	r := h2Do(t, cc, grpcRequest(t, "https://api.allowed.test/pkg.Service/Method", strings.NewReader(message("hello"))))
	if r.StatusCode != 200 || r.body != message("hello") || r.Trailer.Get("Grpc-Status") != "0" || r.Header.Get("Content-Type") != "application/grpc" {
		t.Errorf("%v %q %v", r.Response, r.body, r.Trailer)
	}
	if msg := r.Trailer.Get("Grpc-Message"); !strings.HasPrefix(msg, "fine Bearer ") || strings.Contains(msg, canary) {
		t.Errorf("trailer %q", msg)
	}
	got := seen.Load()
	if got == nil || got.Proto != "HTTP/2.0" || got.Header.Get("Te") != "trailers" || got.Header.Get("Grpc-Timeout") != "5S" ||
		got.Header.Get("Authorization") != "Bearer "+canary || got.Host != "api.allowed.test" || got.RequestURI != "/pkg.Service/Method" ||
		got.Header.Get("Grpc-Accept-Encoding") != "identity" || got.Header.Get("User-Agent") != "" {
		t.Errorf("upstream saw %+v", got)
	}
	rec := e.tape.completed(t, 1)[0]
	if rec.Request.Protocol != "h2" || rec.Request.Path != "/pkg.Service/Method" || rec.Verdict != verdictAllow || rec.Credential == nil ||
		rec.Response.Bytes != 10 || rec.Request.Bytes != 10 || rec.Dst.TLSVersion != "1.3" || rec.Request.Attempts != 1 {
		t.Errorf("record %s", dump(e.tape.recs))
	}
}

func TestGRPCStreamsBothWaysAtOnce(t *testing.T) {
	e := newEnv(t, nil, overHTTP2(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		w.(http.Flusher).Flush()
		buf := make([]byte, 64)
		for {
			n, err := r.Body.Read(buf)
			if n > 0 {
				w.Write(bytes.ToUpper(buf[:n]))
				w.(http.Flusher).Flush()
			}
			if err != nil {
				break
			}
		}
		w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
	}))
	cc, _ := e.h2("plain.allowed.test")
	pr, pw := io.Pipe()
	resp, err := cc.RoundTrip(grpcRequest(t, "https://plain.allowed.test/s/Chat", pr))
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"one", "two", "three"} {
		io.WriteString(pw, word)
		back := make([]byte, len(word))
		if _, err := io.ReadFull(resp.Body, back); err != nil || string(back) != strings.ToUpper(word) {
			t.Fatalf("%q %v", back, err)
		}
	}
	pw.Close()
	if rest, err := io.ReadAll(resp.Body); err != nil || len(rest) != 0 || resp.Trailer.Get("Grpc-Status") != "0" {
		t.Errorf("%q %v %v", rest, err, resp.Trailer)
	}
}

// Status and details stand in the head of an answer without a body, whether the
// upstream or the proxy gives it.
func TestGRPCAnswersOfTrailersAlone(t *testing.T) {
	e := newEnv(t, nil, overHTTP2(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Grpc-Status", "5")
		w.Header()["Content-Length"] = nil // as gRPC servers do
	}))
	for host, want := range map[string]string{"plain.allowed.test": "5", "evil.test": "7"} {
		r := e.rawH2(host)
		r.headers(1, ":method", "POST", ":scheme", "https", ":path", "/s/M", ":authority", host, "content-type", "application/grpc+proto", "te", "trailers")
		for {
			f, err := r.fr.ReadFrame()
			if err != nil {
				t.Fatalf("%s: %v", host, err)
			}
			h, ok := f.(*http2.MetaHeadersFrame)
			if !ok {
				continue
			}
			fields := map[string]string{}
			for _, hf := range h.Fields {
				fields[hf.Name] = hf.Value
			}
			if !h.StreamEnded() || fields["grpc-status"] != want || fields[":status"] != "200" || fields["content-type"] != "application/grpc" {
				t.Errorf("%s: ended %v, %v", host, h.StreamEnded(), fields)
			}
			break
		}
	}
}

// protoFields reads one protobuf message of varints and byte strings.
func protoFields(t *testing.T, b []byte) map[uint64][][]byte {
	t.Helper()
	out := map[uint64][][]byte{}
	number := func() uint64 {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			t.Fatal("broken message")
		}
		b = b[n:]
		return v
	}
	for len(b) > 0 {
		switch tag := number(); tag & 7 {
		case 0:
			out[tag>>3] = append(out[tag>>3], []byte(fmt.Sprint(number())))
		case 2:
			n := number()
			out[tag>>3], b = append(out[tag>>3], b[:n]), b[n:]
		default:
			t.Fatalf("type %d", tag&7)
		}
	}
	return out
}

func TestGRPCDenialsTellTheAgentWhatToDo(t *testing.T) {
	e := newEnv(t, nil)
	e.policy.fn = func(in *policies.Input) policies.Decision {
		if in.Request.Path == "/s/Pending" {
			return policies.Decision{Verdict: policies.Ask, Rule: "ask-first"}
		}
		return policies.Decision{Verdict: policies.Deny, Reason: reasonDenied, Rule: "closed", Message: "not 100% like this\n", Hint: "call s/Other"}
	}
	cc, _ := e.h2("plain.allowed.test")
	r := h2Do(t, cc, grpcRequest(t, "https://plain.allowed.test/s/M", strings.NewReader(message("x"))))
	if r.StatusCode != 200 || r.Header.Get("Grpc-Status") != "7" || r.Header.Get("Grpc-Message") != "denied: not 100%25 like this%0A; hint: call s/Other" {
		t.Errorf("%v %v", r.Response, r.Header)
	}
	b, err := base64.RawStdEncoding.DecodeString(r.Header.Get("Grpc-Status-Details-Bin"))
	if err != nil {
		t.Fatal(err)
	}
	status := protoFields(t, b)
	details := protoFields(t, status[3][0])
	info := protoFields(t, details[2][0])
	if string(status[1][0]) != "7" || !strings.HasPrefix(string(status[2][0]), "denied: ") || string(details[1][0]) != "type.googleapis.com/google.rpc.ErrorInfo" ||
		string(info[1][0]) != "denied" || string(info[2][0]) != "warder.internal" {
		t.Errorf("%q", b)
	}
	meta := map[string]string{}
	for _, entry := range info[3] {
		kv := protoFields(t, entry)
		meta[string(kv[1][0])] = string(kv[2][0])
	}
	if meta["rule"] != "closed" || meta["hint"] != "call s/Other" || meta["decision_id"] == "" || meta["run"] != e.run.identity() {
		t.Errorf("metadata %v", meta)
	}
	r = h2Do(t, cc, grpcRequest(t, "https://plain.allowed.test/s/Pending", nil))
	if r.Header.Get("Grpc-Status") != "9" || r.Header.Get("Grpc-Retry-Pushback-Ms") != "5000" {
		t.Errorf("%v", r.Header)
	}
	for i, want := range []string{"denied", "approval-pending"} {
		if rec := e.tape.completed(t, 2)[i]; rec.Reason != want || rec.Verdict != verdictDeny || rec.Response.Status != 200 {
			t.Errorf("record %s", dump(e.tape.recs))
		}
	}
	if n := e.up.connections(); n != 0 {
		t.Errorf("%d connections to the upstream", n)
	}
	// The same request without the content type gets the document.
	if r := h2Ask(t, cc, "POST", "https://plain.allowed.test/s/M", nil); r.StatusCode != 403 || r.reason() != "denied" {
		t.Errorf("%d %q", r.StatusCode, r.body)
	}
}

func TestGRPCStatusOfEveryReason(t *testing.T) {
	known := map[string]int{
		"INVALID_ARGUMENT": 3, "DEADLINE_EXCEEDED": 4, "PERMISSION_DENIED": 7, "RESOURCE_EXHAUSTED": 8,
		"FAILED_PRECONDITION": 9, "INTERNAL": 13, "UNAVAILABLE": 14, "UNAUTHENTICATED": 16,
	}
	for _, r := range reasonTable() {
		if want, ok := known[r.grpc]; r.grpc != "" && (!ok || grpcCode(r.grpc) != want) {
			t.Errorf("%s: %s is %d", r.code, r.grpc, grpcCode(r.grpc))
		}
	}
}

func TestCompressedGRPCMessagesAreNotPassedWithACredential_I2(t *testing.T) {
	up := overHTTP2(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Grpc-Encoding", "gzip")
		io.WriteString(w, "\x01compressed")
		w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
	})
	e := newEnv(t, nil, up)
	for host, want := range map[string]string{"api.allowed.test": "14", "plain.allowed.test": ""} {
		cc, _ := e.h2(host)
		r := h2Do(t, cc, grpcRequest(t, "https://"+host+"/s/M", strings.NewReader(message("x"))))
		if r.Header.Get("Grpc-Status") != want || (r.body == "") != (want != "") {
			t.Errorf("%s: %v %q", host, r.Header, r.body)
		}
	}
}

// What a client calls gRPC, and its upstream does not, has no messages: an end that the
// client chose, in the middle of a reflected value, lets nothing of it through.
func TestMessagesEndWhereTheUpstreamSaysSo_I2(t *testing.T) {
	cut, begun := len(canary)/2, make(chan struct{})
	up := overHTTP2(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		value := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		if value != canary {
			t.Errorf("the control: the upstream got %d bytes of a value", len(value))
		}
		io.WriteString(w, message("sent back: "+value[:cut]))
		_ = http.NewResponseController(w).Flush()
		<-begun // the proxy has read up to the false end
		io.WriteString(w, value[cut:]+".")
	})
	e := newEnv(t, nil, up)
	cc, _ := e.h2("api.allowed.test")
	resp, err := cc.RoundTrip(grpcRequest(t, "https://api.allowed.test/s/M", strings.NewReader(message("x"))))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.ReadFull(resp.Body, make([]byte, len(message("sent back: ")))); err != nil {
		t.Fatal(err)
	}
	close(begun)
	rest, err := io.ReadAll(resp.Body)
	if want := strings.Repeat("*", len(canary)) + "."; err != nil || string(rest) != want {
		t.Errorf("the answer ends with %d bytes that are not all masked, %v", len(rest), err)
	}
}

func TestGRPCNeedsAnUpstreamWithHTTP2(t *testing.T) {
	e := newEnv(t, nil) // speaks HTTP/1.1 alone
	cc, _ := e.h2("plain.allowed.test")
	r := h2Do(t, cc, grpcRequest(t, "https://plain.allowed.test/s/M", strings.NewReader(message("x"))))
	if r.Header.Get("Grpc-Status") != "14" || e.tape.completed(t, 1)[0].Reason != reasonUpstreamProtocol {
		t.Errorf("%v, records %s", r.Header, dump(e.tape.recs))
	}
	if strings.Contains(e.up.bytes(), "s/M") {
		t.Errorf("upstream saw %q", e.up.bytes())
	}
}

// Connections are parted by name and credential although names share address and
// certificate.
func TestGRPCConnectionsAreNotCoalesced_F051_F082(t *testing.T) {
	e := newEnv(t, nil, overHTTP2(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Grpc-Status", "0")
	}))
	for range 2 {
		for _, host := range []string{"api.allowed.test", "plain.allowed.test", "other.allowed.test"} {
			cc, _ := e.h2(host)
			if r := h2Do(t, cc, grpcRequest(t, "https://"+host+"/s/M", nil)); r.Header.Get("Grpc-Status") != "0" {
				t.Errorf("%s: %v", host, r.Header)
			}
		}
	}
	if n := e.up.connections(); n != 3 {
		t.Errorf("%d connections to the upstream", n)
	}
}

// A server that answers before it has read the request ends the stream at once.
func TestGRPCAnswersOfTrailersAloneBeforeTheRequestHasEnded(t *testing.T) {
	e := newEnv(t, nil, overHTTP2(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Grpc-Status", "12")
		w.Header()["Content-Length"] = nil
	}))
	r := e.rawH2("plain.allowed.test")
	r.open(1, ":method", "POST", ":scheme", "https", ":path", "/s/M", ":authority", "plain.allowed.test", "content-type", "application/grpc")
	for {
		f, err := r.fr.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		if h, ok := f.(*http2.MetaHeadersFrame); ok {
			if !h.StreamEnded() {
				t.Error("the head does not end the stream")
			}
			return
		}
	}
}
