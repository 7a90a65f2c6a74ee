package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"warder/policies"
)

func wsUpstream(t testing.TB) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		key := acceptKey(r.Header.Get("Sec-Websocket-Key"))
		if r.URL.Query().Get("bad") != "" {
			key = "wrong"
		}
		ext := r.Header.Get("Sec-Websocket-Extensions")
		fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\nX-Ext: %s.\r\n\r\n", key, ext)
		greeting := "server first, " + r.Header.Get("Authorization") + "|"
		rw.Write([]byte{0x81, byte(len(greeting))})
		rw.WriteString(greeting)
		rw.Flush()
		io.Copy(c, rw)
	}
}

func TestWebSocket_F057(t *testing.T) {
	for _, way := range []string{"clear text", "intercepted", "CONNECT", "absolute form"} {
		t.Run(way, func(t *testing.T) {
			host, set := "api.allowed.test", []setting{}
			if way == "clear text" || way == "absolute form" {
				host, set = "plain.allowed.test", []setting{plainUpstream}
			}
			e := newEnv(t, wsUpstream(t), set...)
			var c net.Conn
			target := "/ws"
			switch way {
			case "clear text":
				c = e.plain(host)
			case "intercepted":
				c = e.tls(host)
			case "CONNECT":
				c = e.tunnel(host)
			default:
				c, target = e.explicit(), "http://"+host+"/ws"
			}
			early := "\x81\x85early\n\n bare LF and \x00, before the 101"
			send(t, c, "GET "+target+" HTTP/1.1\r\nHost: "+host+"\r\nConnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n"+
				"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n"+early)
			br := bufio.NewReader(c)
			resp, err := http.ReadResponse(br, &http.Request{Method: "GET"})
			if err != nil || resp.StatusCode != 101 || resp.Header.Get("Sec-Websocket-Accept") != "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" {
				t.Fatalf("%v %v", resp, err)
			}
			if want := map[bool]string{true: ".", false: "permessage-deflate."}[host == "api.allowed.test"]; resp.Header.Get("X-Ext") != want {
				t.Errorf("extensions %q", resp.Header.Get("X-Ext"))
			}
			greeting, err := br.ReadString('|')
			if err != nil || strings.Contains(greeting, canary) || !strings.HasPrefix(greeting[2:], "server first, ") {
				t.Errorf("%q %v", greeting, err)
			}
			send(t, c, "more")
			echo := make([]byte, len(early)+4)
			if _, err := io.ReadFull(br, echo); err != nil || string(echo) != early+"more" {
				t.Errorf("%q %v", echo, err)
			}
			if e.tape.count("completed") != 0 {
				t.Error("completed before the end")
			}
			c.Close()
			rec := e.tape.completed(t, 1)[0]
			if rec.Response.Status != 101 || rec.Request.Bytes != int64(len(early)+4) || rec.Response.Bytes < int64(len(early)+4) || rec.Verdict != "allow" {
				t.Errorf("record %s", dump(e.tape.recs))
			}
		})
	}
}

func TestUpgradeOnlyByToken_F055_F058(t *testing.T) {
	e := newEnv(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "" {
			wsUpstream(t)(w, r)
			return
		}
		fmt.Fprintf(w, "%q %q", r.Header.Get("Connection"), r.Header.Get("Upgrade"))
	})
	for _, h := range []string{"Connection: notupgrade\r\nUpgrade: websocket", "Connection: Upgrade\r\nUpgrade: websocketx", "Connection: keep-alive\r\nUpgrade: websocket", "Connection: Upgrade\r\nUpgrade: h2c"} {
		r := ask(t, e.tls("plain.allowed.test"), "GET / HTTP/1.1\r\nHost: plain.allowed.test\r\n"+h+"\r\n\r\n")
		if r.StatusCode != 200 || r.body != `"" ""` {
			t.Errorf("%q: %d %q", h, r.StatusCode, r.body)
		}
	}
	// A wrong accept key is not an upgrade.
	raw := strings.Replace(wsRequest, "/ws", "/ws?bad=1", 1)
	if r := ask(t, e.tls("plain.allowed.test"), raw); r.StatusCode != 502 || r.reason() != "upstream-protocol" {
		t.Errorf("answer %d %q", r.StatusCode, r.body)
	}
	// A denied upgrade is an ordinary denial, and ends the connection.
	e.policy.mu.Lock()
	e.policy.fn = func(*policies.Input) policies.Decision {
		return policies.Decision{Verdict: policies.Deny, Reason: reasonNoRule}
	}
	e.policy.mu.Unlock()
	c := e.tls("plain.allowed.test")
	if r := ask(t, c, wsRequest); r.StatusCode != 403 || !r.Close {
		t.Errorf("answer %d %v", r.StatusCode, r.Header)
	}
}
