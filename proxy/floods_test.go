package proxy

import (
	"bytes"
	"io"
	"net/http"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"warder/audit"
)

// batch makes many frames of one write.
func batch(n int, frame func(fr *http2.Framer, i int)) []byte {
	var b bytes.Buffer
	fr := http2.NewFramer(&b, nil)
	fr.AllowIllegalWrites = true
	for i := range n {
		frame(fr, i)
	}
	return b.Bytes()
}

// Floods of HTTP/2: each ends by itself, in bounded memory, and is recorded; another
// connection of the same run is served.
func TestHTTP2FloodsAreBounded_I6_I9_F048(t *testing.T) {
	field := func(text string) []byte {
		var b bytes.Buffer
		_ = hpack.NewEncoder(&b).WriteField(hpack.HeaderField{Name: "x-a", Value: text, Sensitive: true}) // into memory
		return b.Bytes()
	}
	var head bytes.Buffer
	enc := hpack.NewEncoder(&head)
	for i, f := 0, ordinary(); i < len(f); i += 2 {
		_ = enc.WriteField(hpack.HeaderField{Name: f[i], Value: f[i+1], Sensitive: true}) // into memory
	}
	first := batch(1, func(fr *http2.Framer, _ int) {
		_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head.Bytes(), EndStream: true}) // into memory
	})
	stream := uint32(1)
	for name, c := range map[string]struct {
		first  []byte
		frame  func(fr *http2.Framer, i int)
		record bool // of a refusal; else the connection had no request
	}{
		"CONTINUATION":        {first, func(fr *http2.Framer, _ int) { _ = fr.WriteContinuation(1, false, field("aaaaaaaaaaaaaaaa")) }, true},
		"CONTINUATION, empty": {first, func(fr *http2.Framer, _ int) { _ = fr.WriteContinuation(1, false, nil) }, true},
		"SETTINGS":            {nil, func(fr *http2.Framer, _ int) { _ = fr.WriteSettings() }, false},
		"PING":                {nil, func(fr *http2.Framer, _ int) { _ = fr.WritePing(false, [8]byte{}) }, false},
		"the table's size": {nil, func(fr *http2.Framer, i int) {
			_ = fr.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: uint32(i)})
		}, false},
		"PRIORITY": {nil, func(fr *http2.Framer, i int) {
			_ = fr.WritePriority(uint32(2*i+1), http2.PriorityParam{Weight: 1})
		}, false},
		"WINDOW_UPDATE": {nil, func(fr *http2.Framer, _ int) { _ = fr.WriteWindowUpdate(0, 1) }, false},
		"reset without a stream": {nil, func(fr *http2.Framer, i int) {
			_ = fr.WriteRSTStream(uint32(2*i+1), http2.ErrCodeCancel)
		}, false},
		"rapid reset": {nil, func(fr *http2.Framer, _ int) {
			_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: head.Bytes(), EndStream: true, EndHeaders: true})
			_ = fr.WriteRSTStream(stream, http2.ErrCodeCancel)
			stream += 2
		}, true},
		"made to be reset": {nil, func(fr *http2.Framer, _ int) {
			_ = fr.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: head.Bytes(), EndStream: true, EndHeaders: true})
			_ = fr.WriteWindowUpdate(stream, 0)
			stream += 2
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			var flying, most atomic.Int64
			e := newEnv(t, func(w http.ResponseWriter, r *http.Request) {
				n := flying.Add(1)
				defer flying.Add(-1)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				io.WriteString(w, "hello")
			}, withLimits(Limits{IdleTimeout: time.Second}))
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			stream = 1
			conn := e.tlsALPN("plain.allowed.test", "h2")
			send(t, conn, http2.ClientPreface+string(batch(1, func(fr *http2.Framer, _ int) { _ = fr.WriteSettings() }))+string(c.first))
			ended := false
			for start, n := time.Now(), 0; time.Since(start) < 4*time.Second && n < 4_000_000 && !ended; n += 500 {
				_ = conn.SetWriteDeadline(time.Now().Add(time.Second))
				_, err := conn.Write(batch(500, c.frame)) // nothing is read meanwhile
				ended = err != nil
			}
			runtime.GC()
			runtime.ReadMemStats(&after)
			if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 64<<20 {
				t.Errorf("%d bytes more in use", grown)
			}
			other := e.tlsALPN("plain.allowed.test", "http/1.1")
			if r := ask(t, other, get("/control", "plain.allowed.test")); r.StatusCode != 200 {
				t.Errorf("another connection: %v", r.Response)
			}
			other.Close()
			wait := make(chan struct{})
			go func() {
				defer close(wait)
				_ = conn.SetDeadline(time.Now().Add(3 * time.Minute)) // it first takes what was sent, on a slow machine
				if _, err := io.Copy(io.Discard, conn.NetConn()); isTimeout(err) {
					t.Error("the connection outlives the idle limit")
				}
			}()
			<-wait
			conn.NetConn().Close()
			if err := e.run.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			if n := most.Load(); n > maxStreams {
				t.Errorf("%d requests at once at the upstream", n)
			}
			denied, allowed := 0, 0
			for _, rec := range e.tape.completed(t, e.tape.count(audit.StageCompleted)) {
				if rec.Verdict == verdictAllow {
					allowed++
				} else {
					denied++
				}
			}
			if allowed == 0 || denied == 0 && name != "rapid reset" {
				t.Errorf("%d allowed, %d denied", allowed, denied)
			}
			t.Log("ended by a write: "+strconv.FormatBool(ended)+"; records:", allowed, denied)
		})
	}
}
