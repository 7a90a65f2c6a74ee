package proxy

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"testing"

	"warder/audit"
	"warder/policies"
)

// What a client sends behind a request: it is a request of its own, judged as one,
// or it is nothing, and never goes out unjudged.
func TestWhatFollowsARequest_I5_I6(t *testing.T) {
	const second = "GET /second HTTP/1.1\r\nHost: plain.allowed.test\r\n\r\n"
	const hidden = "GET /hidden HTTP/1.1\r\nHost: plain.allowed.test\r\n\r\n"
	const upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
	set := policy(func(in *policies.Input) policies.Decision {
		if strings.HasPrefix(in.Request.Path, "/denied") {
			return policies.Decision{Verdict: policies.Deny, Reason: reasonDenied, Rule: "closed"}
		}
		return allowEverything(in)
	})
	request := func(line, fields, body string) string {
		return line + "\r\nHost: plain.allowed.test\r\n" + fields + "\r\n" + body
	}
	length := fmt.Sprintf("Content-Length: %d\r\n", len(hidden))
	for name, c := range map[string]struct {
		raw    string
		status []int // of the answers, in order; then the connection ends, or waits
		ends   bool
	}{
		"Connection: close":                     {request("GET / HTTP/1.1", "Connection: close\r\n", hidden), []int{200}, true},
		"Connection: close among others":        {request("GET / HTTP/1.1", "Connection: keep-alive, Close\r\n", hidden), []int{200}, true},
		"Connection: close in a second line":    {request("GET / HTTP/1.1", "Connection: x\r\nConnection: close\r\n", hidden), []int{200}, true},
		"Connection: close, denied":             {request("GET /denied HTTP/1.1", "Connection: close\r\n", hidden), []int{403}, true},
		"Connection: close with a body":         {request("POST / HTTP/1.1", "Connection: close\r\nContent-Length: 3\r\n", "abc"+hidden), []int{200}, true},
		"Connection: close with chunks":         {request("POST / HTTP/1.1", "Connection: close\r\nTransfer-Encoding: chunked\r\n", "3\r\nabc\r\n0\r\n\r\n"+hidden), []int{200}, true},
		"HTTP/1.0":                              {request("GET / HTTP/1.0", "", hidden), []int{200}, true},
		"HTTP/1.0 with a body":                  {request("POST / HTTP/1.0", "Content-Length: 3\r\n", "abc"+hidden), []int{200}, true},
		"HTTP/1.0, denied":                      {request("GET /denied HTTP/1.0", "", hidden), []int{403}, true},
		"HTTP/1.0 that is kept":                 {request("GET / HTTP/1.0", "Connection: keep-alive\r\n", second), []int{200, 200}, false},
		"kept":                                  {request("GET / HTTP/1.1", "", second), []int{200, 200}, false},
		"WebSocket, denied":                     {request("GET /denied HTTP/1.1", upgrade, hidden), []int{403}, true},
		"WebSocket, not acceptable":             {request("GET /a/../b HTTP/1.1", upgrade, hidden), []int{400}, true},
		"WebSocket, of another name":            {"GET / HTTP/1.1\r\nHost: evil.test\r\n" + upgrade + "\r\n" + hidden, []int{421}, true},
		"WebSocket, not granted":                {request("GET / HTTP/1.1", upgrade, hidden), []int{200}, true},
		"WebSocket by POST":                     {request("POST / HTTP/1.1", upgrade, hidden), []int{200}, true},
		"WebSocket, unknown method":             {request("BREW / HTTP/1.1", upgrade, hidden), []int{405}, true},
		"WebSocket of HTTP/1.0":                 {request("GET / HTTP/1.0", upgrade, hidden), []int{200}, true},
		"Upgrade to something else":             {request("GET / HTTP/1.1", "Connection: Upgrade\r\nUpgrade: tls/1.2\r\n", second), []int{200, 200}, false},
		"CONNECT":                               {"CONNECT plain.allowed.test:80 HTTP/1.1\r\nHost: plain.allowed.test:80\r\n\r\n" + hidden, []int{405}, true},
		"CONNECT of another name":               {"CONNECT evil.test:80 HTTP/1.1\r\nHost: evil.test:80\r\n\r\n" + hidden, []int{421}, true},
		"CONNECT with a length":                 {"CONNECT plain.allowed.test:80 HTTP/1.1\r\nHost: plain.allowed.test:80\r\n" + length + "\r\n" + hidden, []int{405}, true},
		"the body of a denied one":              {request("POST /denied HTTP/1.1", length, hidden+second), []int{403, 200}, false},
		"the chunks of a denied one":            {request("POST /denied HTTP/1.1", "Transfer-Encoding: chunked\r\n", fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(hidden), hidden)+second), []int{403, 200}, false},
		"the body of one of another name":       {"POST / HTTP/1.1\r\nHost: evil.test\r\n" + length + "\r\n" + hidden + second, []int{421, 200}, false},
		"the body of a GET that is denied":      {request("GET /denied HTTP/1.1", length, hidden+second), []int{403, 200}, false},
		"the body of a HEAD that is denied":     {request("HEAD /denied HTTP/1.1", length, hidden+second), []int{403, 200}, false},
		"a denied one that waits with its body": {request("POST /denied HTTP/1.1", "Expect: 100-continue\r\n"+length, hidden+hidden), []int{403}, true},
		"an unreadable one behind":              {request("GET / HTTP/1.1", "", "GET /hidden HTTP/1.1\nHost: plain.allowed.test\n\n"+hidden), []int{200, 400}, true},
		"the end of a request line behind":      {request("GET /denied HTTP/1.1", "", " HTTP/1.1\r\nHost: plain.allowed.test\r\n\r\n"+hidden), []int{403, 400}, true},
		"chunks with an unreadable end, denied": {request("POST /denied HTTP/1.1", "Transfer-Encoding: chunked\r\n", "3\r\nabc\r\nzz\r\n"+hidden), []int{403}, true},
	} {
		for _, w := range ways() {
			if w.name != "plain" && w.name != "intercepted" {
				continue
			}
			t.Run(name+", "+w.name, func(t *testing.T) {
				all := []setting{set}
				raw := c.raw
				if !w.tls {
					all = append(all, plainUpstream)
				} else {
					raw = strings.ReplaceAll(raw, "test:80", "test:443")
				}
				e := newEnv(t, nil, all...)
				conn := e.open(w, "plain.allowed.test")
				send(t, conn, raw)
				br := bufio.NewReader(conn)
				method, _, _ := strings.Cut(raw, " ")
				for i, want := range c.status {
					r := readReply(t, br, method)
					if r.StatusCode != want {
						t.Errorf("answer %d: %d %q", i, r.StatusCode, r.body)
					}
					method = "GET"
				}
				if c.ends {
					if more, err := io.ReadAll(br); len(more) != 0 || isTimeout(err) {
						t.Errorf("more came, or it stays open: %q %v", more, err)
					}
				} else if r := ask2(t, conn, br, get("/third", "plain.allowed.test")); r.StatusCode != 200 {
					t.Errorf("the next one: %v", r.Response)
				}
				conn.Close()
				n := len(c.status)
				if !c.ends {
					n++
				}
				if err := e.run.Close(t.Context()); err != nil {
					t.Fatal(err)
				}
				// What was left unread may have a record of its own.
				recs := e.tape.completed(t, e.tape.count(audit.StageCompleted))
				if len(recs) < n || len(recs) > n+1 || len(recs) > n && (recs[n].Reason != reasonBadRequest || !c.ends) {
					t.Errorf("%d answers, records %s", n, dump(recs))
				}
				for i, rec := range recs[:min(n, len(recs))] {
					if i < len(c.status) && (rec.Verdict == verdictAllow) != (c.status[i] == 200) {
						t.Errorf("record %s", dump(recs))
					}
				}
				// A body may hold it; a line of a request it never is.
				if got := e.up.bytes(); strings.Contains(got, "GET /hidden ") {
					t.Errorf("upstream saw %q", got)
				}
				if want := strings.Contains(c.raw, "/second"); strings.Contains(e.up.bytes(), "GET /second ") != want {
					t.Errorf("control: upstream saw %q", e.up.bytes())
				}
			})
		}
	}
}

// ask2 asks on a connection that is read through br.
func ask2(t testing.TB, c io.Writer, br *bufio.Reader, raw string) reply {
	t.Helper()
	if _, err := io.WriteString(c, raw); err != nil {
		t.Fatal(err)
	}
	method, _, _ := strings.Cut(raw, " ")
	return readReply(t, br, method)
}

// The same with the name that is answered by ourselves.
func TestWhatFollowsAnUpgradeOfTheReservedName_I5(t *testing.T) {
	e := newEnv(t, nil, plainUpstream, policy(allowEverything))
	c := e.plain(reservedHost)
	send(t, c, "GET / HTTP/1.1\r\nHost: "+reservedHost+"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nGET /denials HTTP/1.1\nHost: "+reservedHost+"\n\n")
	br := bufio.NewReader(c)
	if r := readReply(t, br, "GET"); r.StatusCode != 200 || !r.Close {
		t.Errorf("%v", r.Response)
	}
	if more, err := io.ReadAll(br); len(more) != 0 || isTimeout(err) {
		t.Errorf("%q %v", more, err)
	}
	e.sawNothing(t)
}
