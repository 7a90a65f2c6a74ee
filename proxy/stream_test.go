package proxy

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
)

func TestStreamsArriveAsTheyComeAndAreNotBuffered_F059(t *testing.T) {
	for _, kind := range []string{"text/event-stream", "application/x-ndjson", "application/octet-stream"} {
		for _, host := range []string{"plain.allowed.test", "api.allowed.test"} {
			t.Run(kind+" "+host, func(t *testing.T) {
				next := make(chan struct{})
				e := newEnv(t, func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Content-Type", kind)
					for i := range 3 {
						fmt.Fprintf(w, "data: %d\n", i)
						w.(http.Flusher).Flush()
						<-next
					}
				})
				c := e.tls(host)
				send(t, c, get("/", host))
				resp, err := http.ReadResponse(bufio.NewReader(c), nil)
				if err != nil {
					t.Fatal(err)
				}
				br := bufio.NewReader(resp.Body)
				for i := range 3 {
					line, err := br.ReadString('\n') // arrives although the upstream waits
					if err != nil || line != fmt.Sprintf("data: %d\n", i) {
						t.Fatalf("%q %v", line, err)
					}
					next <- struct{}{}
				}
				if _, err := br.ReadByte(); err != io.EOF {
					t.Errorf("end: %v", err)
				}
			})
		}
	}
}

func TestUploadStreams_F060(t *testing.T) {
	got := make(chan string)
	e := newEnv(t, func(w http.ResponseWriter, r *http.Request) {
		br := bufio.NewReader(r.Body)
		for {
			line, err := br.ReadString('\n')
			if err != nil {
				break
			}
			got <- line
		}
		fmt.Fprintf(w, "trailer %q %q", r.Trailer.Get("X-T"), r.Trailer.Get("Authorization"))
	})
	c := e.tls("plain.allowed.test")
	send(t, c, "POST / HTTP/1.1\r\nHost: plain.allowed.test\r\nTransfer-Encoding: chunked\r\nTrailer: X-T, Authorization\r\n\r\n")
	for i := range 3 {
		line := fmt.Sprintf("line %d\n", i)
		send(t, c, fmt.Sprintf("%x\r\n%s\r\n", len(line), line))
		if l := <-got; l != line {
			t.Fatalf("%q", l)
		}
	}
	send(t, c, "0\r\nX-T: yes\r\nAuthorization: sneaky\r\n\r\n")
	if r := readReply(t, bufio.NewReader(c), "POST"); r.body != `trailer "yes" ""` { // F061
		t.Errorf("%q", r.body)
	}
	// Large, both ways, with a length; a second request on the connection works.
	sum := sha256.Sum256(make([]byte, 2<<20))
	e2 := newEnv(t, func(w http.ResponseWriter, r *http.Request) {
		h := sha256.New()
		n, _ := io.Copy(h, r.Body)
		w.Header().Set("Content-Length", fmt.Sprint(n+32))
		w.Write(h.Sum(nil))
		io.CopyN(w, zeros{}, n)
	})
	c = e2.tls("plain.allowed.test")
	br := bufio.NewReader(c)
	for range 2 {
		send(t, c, fmt.Sprintf("PUT / HTTP/1.1\r\nHost: plain.allowed.test\r\nContent-Length: %d\r\n\r\n", 2<<20))
		go c.Write(make([]byte, 2<<20))
		r := readReply(t, br, "PUT")
		if r.err != nil || len(r.body) != 2<<20+32 || r.body[:32] != string(sum[:]) || r.ContentLength != 2<<20+32 {
			t.Errorf("%d bytes, %v", len(r.body), r.err)
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestAnswerShapes_F052_F061_F062(t *testing.T) {
	e := newEnv(t, func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		switch r.URL.Path {
		case "/cookies":
			h.Add("Set-Cookie", "a=1")
			h.Add("Set-Cookie", "b=2")
		case "/204":
			w.WriteHeader(204)
			return
		case "/304":
			h.Set("Etag", `"x"`)
			w.WriteHeader(304)
			return
		case "/trailers":
			h.Set("Trailer", "X-T")
			io.WriteString(w, "body")
			h.Set("X-T", "end")
			return
		case "/hop":
			h.Set("Connection", "X-Hop")
			h.Set("X-Hop", "1")
			h.Set("Proxy-Authenticate", "Basic")
			h.Set("Alt-Svc", `h3=":443"`)
			h.Set("Keep-Alive", "5")
		case "/bare":
			h["Date"], h["Content-Type"] = nil, nil
			w.Write([]byte("<html>"))
			return
		case "/length":
			h.Set("Content-Length", "5")
		}
		io.WriteString(w, "hello")
	})
	c := e.tls("api.allowed.test")
	br := bufio.NewReader(c)
	on := func(method, path string) reply {
		send(t, c, strings.Replace(get(path, "api.allowed.test"), "GET", method, 1))
		return readReply(t, br, method)
	}
	if r := on("GET", "/cookies"); !slices.Equal(r.Header["Set-Cookie"], []string{"a=1", "b=2"}) {
		t.Errorf("cookies %v", r.Header)
	}
	if r := on("GET", "/204"); r.StatusCode != 204 || r.Proto != "HTTP/1.1" {
		t.Errorf("%v", r.Response)
	}
	if r := on("GET", "/304"); r.StatusCode != 304 || r.Header.Get("Etag") != `"x"` {
		t.Errorf("%v", r.Response)
	}
	if r := on("GET", "/trailers"); r.body != "body" || r.Trailer.Get("X-T") != "end" {
		t.Errorf("%v %v", r.body, r.Trailer)
	}
	if r := on("GET", "/hop"); len(r.Header["X-Hop"])+len(r.Header["Alt-Svc"])+len(r.Header["Proxy-Authenticate"])+len(r.Header["Keep-Alive"]) != 0 {
		t.Errorf("hop-by-hop fields %v", r.Header)
	}
	if r := on("GET", "/bare"); len(r.Header) > 1 || r.Header["Content-Type"] != nil || r.Header["Date"] != nil {
		t.Errorf("fields were added: %v", r.Header)
	}
	if r := on("GET", "/length"); r.ContentLength != 5 || r.TransferEncoding != nil {
		t.Errorf("length %d %v", r.ContentLength, r.TransferEncoding)
	}
	if r := on("HEAD", "/length"); r.ContentLength != 5 || r.body != "" {
		t.Errorf("HEAD %d %q", r.ContentLength, r.body)
	}
	old := e.tls("plain.allowed.test")
	send(t, old, "GET /length HTTP/1.0\r\n\r\n") // no Host at all
	b, err := io.ReadAll(old)
	if err != nil || !strings.HasSuffix(string(b), "\r\n\r\nhello") || strings.Contains(string(b), "chunked") {
		t.Errorf("HTTP/1.0: %q %v", b, err)
	}
	old = e.tls("plain.allowed.test")
	send(t, old, "GET /trailers HTTP/1.0\r\nHost: plain.allowed.test\r\n\r\n")
	b, _ = io.ReadAll(old)
	if !strings.HasSuffix(string(b), "\r\n\r\nbody") || strings.Contains(string(b), "chunked") {
		t.Errorf("HTTP/1.0: %q", b)
	}
}

func TestContinueComesOnlyAfterAnAllow(t *testing.T) {
	e := newEnv(t, func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) })
	raw := "POST / HTTP/1.1\r\nHost: %s\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"
	c := e.tls("evil.test")
	if r := ask(t, c, fmt.Sprintf(raw, "evil.test")); r.StatusCode != 403 {
		t.Errorf("answer %d", r.StatusCode)
	}
	c = e.tls("plain.allowed.test")
	send(t, c, fmt.Sprintf(raw, "plain.allowed.test"))
	br := bufio.NewReader(c)
	line, err := br.ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "HTTP/1.1 100") {
		t.Fatalf("%q %v", line, err)
	}
	br.ReadString('\n')
	send(t, c, "hello")
	if r := readReply(t, br, "POST"); r.StatusCode != 200 || r.body != "hello" {
		t.Errorf("answer %d %q", r.StatusCode, r.body)
	}
}

func TestInterimAnswers_F055(t *testing.T) {
	e := newEnv(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</a.css>; rel=preload")
		w.Header().Set("Connection", "X-A")
		w.Header().Set("X-A", "1")
		w.Header().Set("Proxy-Authenticate", "Basic")
		w.WriteHeader(http.StatusEarlyHints)
		io.WriteString(w, "hello")
	}, plainUpstream)
	c := e.plain("plain.allowed.test")
	send(t, c, get("/", "plain.allowed.test"))
	br := bufio.NewReader(c)
	r := readReply(t, br, "GET")
	if r.StatusCode != 103 || r.Header.Get("Link") == "" || r.Header.Get("X-A")+r.Header.Get("Proxy-Authenticate") != "" {
		t.Errorf("interim %v", r.Response)
	}
	if r := readReply(t, br, "GET"); r.StatusCode != 200 || r.body != "hello" {
		t.Errorf("final %v", r.Response)
	}
}
