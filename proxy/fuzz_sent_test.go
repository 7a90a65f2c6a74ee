package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/textproto"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"warder/policies"
)

// What the policy judges is what the upstream reads, by a parser that is neither
// ours nor net/http's: method, path, query, host, header and body, message by
// message, whatever a client sends (invariant 5).
func FuzzJudgedIsSent(f *testing.F) {
	const host = "Host: plain.allowed.test\r\n"
	for _, s := range []string{
		"GET /a/b?c=d&c=%20e HTTP/1.1\r\n" + host + "X-A: 1\r\nx-a:2\r\nAccept: */*\r\n\r\n",
		"POST /x HTTP/1.1\r\n" + host + "Content-Length: 5\r\n\r\nhelloGET /2 HTTP/1.1\r\n" + host + "\r\n",
		"POST /x HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n3;e=1\r\nabc\r\n0\r\nX-T: 1\r\n\r\nGET / HTTP/1.1\r\n" + host + "\r\n",
		"GET http://plain.allowed.test/abs?q HTTP/1.1\r\n" + host + "\r\n",
		"GET / HTTP/1.0\r\n\r\n", "\r\nHEAD /h HTTP/1.1\r\nhost:  PLAIN.allowed.test:80 \r\nConnection: close, X-A\r\nX-A: 1\r\n\r\n",
		"PUT /a%2Fb;c HTTP/1.1\r\n" + host + "Content-Length: 0\r\nExpect: 100-continue\r\nTE: trailers\r\n\r\n",
		"POST / HTTP/1.1\r\n" + host + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"GET / HTTP/1.1\r\n" + host + "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\nGET /smuggled HTTP/1.1\r\n" + host + "\r\n",
		"DELETE /%41//b HTTP/1.1\r\n" + host + " folded: x\r\n\r\n", "GET /a HTTP/1.1\r\n" + host + "X: a\nY: b\r\n\r\n",
		"CONNECT plain.allowed.test:80 HTTP/1.1\r\n" + host + "\r\nGET /in HTTP/1.1\r\n" + host + "\r\n",
	} {
		f.Add(s, false)
		f.Add(s, true)
	}
	peer := newOtherUpstream(f)
	e := newEnv(f, nil, func(_ *env, o *Options, _ *RunOptions) {
		o.Upstream.Hosts["plain.allowed.test"] = peer.addr
		o.Upstream.AllowAddresses = append(o.Upstream.AllowAddresses, peer.addr)
	})
	e.policy.need.Body = true
	control := e.plain("plain.allowed.test")
	ask(f, control, "POST /c?d=e HTTP/1.1\r\nHost: plain.allowed.test\r\nContent-Length: 4\r\nX-A: 1\r\n\r\nbody")
	got, judged := peer.take(), e.policy.inputs()
	if len(got) != 1 || len(judged) != 1 || !got[0].is(&judged[0].Request) || got[0].body != "body" || got[0].header["x-a"] == nil {
		f.Fatalf("control: %+v, judged %+v", got, judged)
	}
	f.Fuzz(func(t *testing.T, raw string, explicit bool) {
		peer.take()
		e.policy.mu.Lock()
		e.policy.seen = nil
		e.policy.mu.Unlock()
		client, server := unixPair(t)
		if explicit {
			e.run.ServeExplicit(server)
		} else {
			e.run.ServeConn(server, dest("plain.allowed.test", 80))
		}
		go func() {
			_, _ = io.WriteString(client, raw)
			_ = client.CloseWrite()
		}()
		if _, err := io.Copy(io.Discard, client); isTimeout(err) {
			t.Fatalf("%q never ends", raw)
		}
		judged := e.policy.inputs()
		for _, got := range peer.take() {
			for len(judged) > 0 && !got.is(&judged[0].Request) {
				judged = judged[1:]
			}
			if len(judged) == 0 {
				t.Fatalf("%q: the upstream reads %+v; judged was %+v", raw, got, e.policy.inputs())
			}
			judged = judged[1:]
		}
		e.tape.mu.Lock()
		e.tape.recs = nil
		e.tape.mu.Unlock()
	})
}

// unixPair needs no ports, of which a fuzzer would use up all.
func unixPair(t testing.TB) (client *net.UnixConn, server net.Conn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]net.Conn
	for i, fd := range fds {
		file := os.NewFile(uintptr(fd), "pair")
		if ends[i], err = net.FileConn(file); err != nil {
			t.Fatal(err)
		}
		file.Close()
	}
	t.Cleanup(func() { ends[0].Close() })
	client = ends[0].(*net.UnixConn)
	client.SetDeadline(time.Now().Add(time.Minute))
	return client, ends[1]
}

// otherRequest is one request as the other parser reads it.
type otherRequest struct {
	method, target string
	header         map[string][]string // lower-case names
	body           string
	wrong          string // what kept the parser from reading it
}

// is compares with what was judged, but for the fields of the hop between the
// proxy and the upstream.
func (o otherRequest) is(r *policies.Request) bool {
	path, query, _ := strings.Cut(o.target, "?")
	want := map[string][]string{}
	for name, values := range r.Headers {
		want[name] = values
	}
	got := map[string][]string{}
	for name, values := range o.header {
		got[name] = values
	}
	for _, hop := range []string{"content-length", "transfer-encoding", "connection", "trailer"} {
		delete(want, hop)
		delete(got, hop)
	}
	host, port := o.header["host"], "80"
	if len(host) != 1 {
		return false
	}
	name, text, stated := strings.Cut(host[0], ":")
	if stated {
		port = text
	}
	return o.wrong == "" && o.method == r.Method && path == r.Path && name == r.Host && port == strconv.Itoa(r.Port) &&
		reflect.DeepEqual(parseQuery(query), r.Query) && reflect.DeepEqual(got, want) && o.body == string(r.Body)
}

// otherUpstream reads requests in a way of its own, as lenient as old servers are:
// a line ends at LF, a number at the first byte that is no digit.
type otherUpstream struct {
	addr string
	mu   sync.Mutex
	got  []otherRequest
}

func newOtherUpstream(t testing.TB) *otherUpstream {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	u := &otherUpstream{addr: ln.Addr().String()}
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go u.serve(c)
		}
	}()
	return u
}

func (u *otherUpstream) take() []otherRequest {
	u.mu.Lock()
	defer u.mu.Unlock()
	got := u.got
	u.got = nil
	return got
}

func (u *otherUpstream) serve(c net.Conn) {
	defer c.Close()
	br := bufio.NewReader(c)
	for {
		if _, err := br.Peek(1); err != nil {
			return
		}
		r := otherRequest{header: map[string][]string{}}
		if err := r.read(br); err != nil {
			r.wrong = err.Error()
		}
		u.mu.Lock()
		u.got = append(u.got, r)
		u.mu.Unlock()
		if _, err := io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"); err != nil || r.wrong != "" {
			return
		}
	}
}

func (o *otherRequest) read(br *bufio.Reader) error {
	line := func() (string, error) {
		s, err := br.ReadString('\n')
		return strings.TrimRight(s, "\r\n"), err
	}
	first, err := line()
	words := strings.Split(first, " ")
	if err != nil || len(words) != 3 || words[2] != "HTTP/1.1" {
		return fmt.Errorf("request line %q: %v", first, err)
	}
	o.method, o.target = words[0], words[1]
	for {
		s, err := line()
		if err != nil {
			return err
		}
		if s == "" {
			break
		}
		name, value, ok := strings.Cut(s, ":")
		if !ok {
			return fmt.Errorf("header line %q", s)
		}
		name = strings.ToLower(textproto.TrimString(name))
		o.header[name] = append(o.header[name], textproto.TrimString(value))
	}
	chunked := slices.ContainsFunc(o.header["transfer-encoding"], func(v string) bool { return strings.Contains(strings.ToLower(v), "chunked") })
	if lengths := o.header["content-length"]; !chunked && len(lengths) > 0 {
		b := make([]byte, number(lengths[0], 10))
		_, err := io.ReadFull(br, b)
		o.body = string(b)
		return err
	}
	for chunked {
		s, err := line()
		if err != nil {
			return err
		}
		b := make([]byte, number(s, 16))
		if _, err := io.ReadFull(br, b); err != nil {
			return err
		}
		o.body += string(b)
		for end := len(b) > 0; ; end = false { // the end of the chunk, or the trailers
			s, err := line()
			if err != nil {
				return err
			}
			if s == "" || end {
				break
			}
		}
		chunked = len(b) > 0
	}
	return nil
}

// number reads digits up to the first byte that is none.
func number(s string, base int) int {
	end := 0
	for end < len(s) {
		if _, err := strconv.ParseUint(s[end:end+1], base, 8); err != nil {
			break
		}
		end++
	}
	n, _ := strconv.ParseInt(s[:end], base, 32)
	return int(n)
}
