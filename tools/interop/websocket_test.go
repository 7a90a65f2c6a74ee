package interop

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	_ "embed"
	"errors"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"warder/internal/config"
)

// wsEcho sends back each message as it came, with compression where the client
// offers it, and answers "close" with 4001.
func wsEcho(w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionContextTakeover, CompressionThreshold: 1, Subprotocols: []string{"chat"}})
	if err != nil {
		return
	}
	defer c.CloseNow()
	c.SetReadLimit(8 << 20)
	for {
		kind, msg, err := c.Read(r.Context())
		switch {
		case websocket.CloseStatus(err) == 4002:
			return // the library has answered with the same code
		case err != nil:
			return
		case string(msg) == "close":
			c.Close(4001, "as you wish")
			return
		case string(msg) == "key":
			msg = []byte("you are " + r.Header.Get("Authorization") + " with " + r.Header.Get("Sec-Websocket-Extensions"))
		case string(msg) == "ping me":
			if err := c.Ping(c.CloseRead(r.Context())); err != nil {
				return
			}
			msg = []byte("ponged")
			c.Write(r.Context(), kind, msg)
			return
		}
		if c.Write(r.Context(), kind, msg) != nil {
			return
		}
	}
}

const wsPolicy = `allow contains {"rule": "free"} if input.request.host == "ws.test"

allow contains {"rule": "bound", "credential": "api"} if input.request.host == "api.test"
`

func wsLab(t *testing.T, addr string, a *authority) *lab {
	return newLab(t, labOptions{
		authority: a, upstreams: map[string]string{"ws.test": addr, "api.test": addr}, policy: wsPolicy,
		credentials: map[string]config.Credential{"api": {
			Source: config.Source{Local: &config.LocalSource{Env: "API_TOKEN"}}, Inject: config.Inject{Header: "Authorization", Format: "Bearer {value}"}, Hosts: []string{"api.test"},
		}},
		secrets: map[string]string{"API_TOKEN": canary},
	})
}

// Two ends of github.com/coder/websocket, every kind of frame, compressed where
// nothing has to be searched.
func TestWebSocketOfGo(t *testing.T) {
	a := newAuthority(t)
	l := wsLab(t, a.serve(t, http.HandlerFunc(wsEcho), "ws.test", "api.test"), a)
	proxy, err := url.Parse("http://" + l.explicit())
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(proxy), TLSClientConfig: &tls.Config{RootCAs: l.trust()}}}
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	for _, host := range []string{"ws.test", "api.test"} {
		t.Run(host, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			dial := func() *websocket.Conn {
				t.Helper()
				c, resp, err := websocket.Dial(ctx, "wss://"+host+"/echo", &websocket.DialOptions{HTTPClient: client, CompressionMode: websocket.CompressionContextTakeover, CompressionThreshold: 1, Subprotocols: []string{"chat"}})
				if err != nil {
					t.Fatal(err)
				}
				if compressed := strings.Contains(resp.Header.Get("Sec-Websocket-Extensions"), "permessage-deflate"); compressed != (host == "ws.test") || c.Subprotocol() != "chat" {
					t.Errorf("%v", resp.Header)
				}
				c.SetReadLimit(8 << 20)
				return c
			}
			c := dial()
			for kind, msgs := range map[websocket.MessageType][][]byte{
				websocket.MessageText: {[]byte("text"), {}, []byte(strings.Repeat("wörter ", 1000))}, websocket.MessageBinary: {{0, 1, 0xff}, big},
			} {
				for _, msg := range msgs {
					if err := c.Write(ctx, kind, msg); err != nil {
						t.Fatal(err)
					}
					gotKind, got, err := c.Read(ctx)
					if err != nil || gotKind != kind || !bytes.Equal(got, msg) {
						t.Fatalf("%v of %d bytes came back as %v of %d, %v", kind, len(msg), gotKind, len(got), err)
					}
				}
			}
			w, err := c.Writer(ctx, websocket.MessageBinary) // a frame for each write
			if err != nil {
				t.Fatal(err)
			}
			for i := 0; i < len(big); i += 100_000 {
				w.Write(big[i:min(i+100_000, len(big))])
			}
			w.Close()
			if _, got, err := c.Read(ctx); err != nil || !bytes.Equal(got, big) {
				t.Errorf("fragments: %d bytes, %v", len(got), err)
			}
			c.Write(ctx, websocket.MessageText, []byte("key"))
			_, got, err := c.Read(ctx)
			if err != nil || strings.Contains(string(got), canary) || strings.Contains(string(got), "Bearer") != (host == "api.test") {
				t.Errorf("%q %v", got, err)
			}
			c.Write(ctx, websocket.MessageText, []byte("close"))
			_, _, err = c.Read(ctx)
			var ce websocket.CloseError
			if !errors.As(err, &ce) || ce.Code != 4001 || ce.Reason != "as you wish" {
				t.Errorf("the server's close: %v", err)
			}
			c = dial()
			if err := c.Ping(c.CloseRead(ctx)); err != nil {
				t.Errorf("ping: %v", err)
			}
			c.CloseNow()
			c = dial()
			c.Write(ctx, websocket.MessageText, []byte("ping me"))
			if _, got, err := c.Read(ctx); string(got) != "ponged" {
				t.Errorf("the server's ping: %q %v", got, err)
			}
			c.CloseNow()
			c = dial()
			if err := c.Close(4002, "enough"); err != nil {
				t.Errorf("the client's close: %v", err)
			}
		})
	}
	for _, r := range l.completed() {
		if r.Verdict != "allow" || r.Response == nil || r.Response.Status != 101 {
			t.Errorf("record %+v %+v", r, r.Response)
		}
	}
}

//go:embed testdata/websocket.py
var wsPython string

// python finds an interpreter that has the library (Debian: python3-websockets).
func python(t *testing.T) string {
	t.Helper()
	for _, p := range []string{"/usr/bin/python3", "python3"} {
		if exec.CommandContext(t.Context(), p, "-c", "import websockets").Run() == nil {
			return p
		}
	}
	t.Fatal("no python3 with websockets; hint: apt-get install python3-websockets")
	return ""
}

// Two ends of Python's websockets.
func TestWebSocketOfPython(t *testing.T) {
	py := python(t)
	script := filepath.Join(t.TempDir(), "ws.py")
	if err := os.WriteFile(script, []byte(wsPython), 0o600); err != nil {
		t.Fatal(err)
	}
	a := newAuthority(t)
	_, certFile, keyFile := a.leaf(t, "ws.test", "api.test")
	server := exec.CommandContext(t.Context(), py, script, "serve", certFile, keyFile)
	server.Env = environ()
	out, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Process.Kill(); server.Wait() })
	addr, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	l := wsLab(t, strings.TrimSpace(addr), a)
	for _, host := range []string{"ws.test", "api.test"} {
		got := output(t, nil, "", py, script, "talk", host, l.transparent(host, 443), l.caFile)
		want := "text binary empty big fragments ping pong deflate=True closed=4001 closing=4003 key=\n"
		if host == "api.test" {
			want = "text binary empty big fragments ping pong deflate=False closed=4001 closing=4003 key=Bearer " + strings.Repeat("*", len(canary)) + "\n"
		}
		if got != want {
			t.Errorf("%s: %q", host, got)
		}
	}
	if n := len(l.completed()); n != 4 {
		t.Errorf("%d records", n)
	}
}
