package proxy

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// sized is how much a test does: the size of the catalogue of faults where the
// environment says so (make soak), else one that is cheap.
func sized(t *testing.T, variable string, cheap int) int {
	t.Helper()
	n, err := strconv.Atoi(os.Getenv(variable))
	if err != nil {
		return cheap
	}
	return n
}

// unrecorded gives plain.allowed.test an upstream that keeps nothing of what it reads.
func unrecorded(h http.HandlerFunc) setting {
	return func(e *env, o *Options, _ *RunOptions) {
		ln, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{e.up.cert}})
		if err != nil {
			e.t.Fatal(err)
		}
		s := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
		go s.Serve(ln)
		e.t.Cleanup(func() { s.Close() })
		o.Upstream.Hosts["plain.allowed.test"] = ln.Addr().String()
		o.Upstream.AllowAddresses = append(o.Upstream.AllowAddresses, ln.Addr().String())
	}
}

// Large bodies both ways at once, with a length and without, pass in memory that
// does not grow with them, and the connection goes on after each.
func TestLargeBodiesInConstantMemory_F060(t *testing.T) {
	size := int64(sized(t, "WARDER_SOAK_BODY_MIB", 64)) << 20
	e := newEnv(t, nil, unrecorded(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			w.Header().Set("Content-Length", fmt.Sprint(size))
			io.CopyN(w, zeros{}, size)
			return
		}
		n, _ := io.Copy(io.Discard, r.Body)
		fmt.Fprint(w, n)
	}))
	before := liveHeap()
	var most atomic.Uint64
	look := time.NewTicker(100 * time.Millisecond)
	done := make(chan struct{})
	var looking sync.WaitGroup
	looking.Go(func() {
		for {
			select {
			case <-look.C:
				most.Store(max(most.Load(), liveHeap()))
			case <-done:
				return
			}
		}
	})
	var wg sync.WaitGroup
	conn := func() (*tls.Conn, *bufio.Reader) {
		c := e.tls("plain.allowed.test")
		c.SetDeadline(time.Time{})
		return c, bufio.NewReader(c)
	}
	up, upAnswers := conn()
	down, downAnswers := conn()
	wg.Go(func() {
		for _, framing := range []string{fmt.Sprintf("Content-Length: %d", size), "Transfer-Encoding: chunked"} {
			fmt.Fprintf(up, "PUT / HTTP/1.1\r\nHost: plain.allowed.test\r\n%s\r\n\r\n", framing)
			if framing[0] == 'C' {
				io.CopyN(up, zeros{}, size)
			} else {
				chunk := append([]byte("100000\r\n"), make([]byte, 1<<20)...)
				for range size >> 20 {
					up.Write(append(chunk, '\r', '\n'))
				}
				io.WriteString(up, "0\r\n\r\n")
			}
			resp, err := http.ReadResponse(upAnswers, nil)
			if err != nil {
				t.Errorf("%s: %v", framing, err)
				return
			}
			if b, err := io.ReadAll(resp.Body); string(b) != fmt.Sprint(size) || err != nil {
				t.Errorf("%s: %q %v", framing, b, err)
			}
		}
	})
	wg.Go(func() {
		for range 2 {
			io.WriteString(down, get("/", "plain.allowed.test"))
			resp, err := http.ReadResponse(downAnswers, nil)
			if err != nil {
				t.Error(err)
				return
			}
			if n, err := io.Copy(io.Discard, resp.Body); n != size || err != nil {
				t.Errorf("%d bytes, %v", n, err)
			}
		}
	})
	wg.Wait()
	close(done)
	looking.Wait()
	if most.Load() > before+32<<20 {
		t.Errorf("%d bytes of memory, %d before", most.Load(), before)
	}
	e.tape.completed(t, 4)
}

// 1,000 tunnels at once, whose first bytes come 0 to 2 ms after the 200: none
// loses a byte.
func TestManyTunnelsAtOnce_F063(t *testing.T) {
	const tunnels = 1000
	e := newEnv(t, nil, withLimits(Limits{MaxConnsPerRun: 2 * tunnels, HandshakeTimeout: 10 * time.Minute, FirstByteTimeout: 10 * time.Minute, DialTimeout: 10 * time.Minute}))
	cfg := e.clientTLS("plain.allowed.test")
	var wg sync.WaitGroup
	for range tunnels {
		client, server := unixPair(t)
		client.SetDeadline(time.Now().Add(10 * time.Minute))
		e.run.ServeExplicit(server)
		wg.Go(func() {
			defer client.Close()
			if err := tunnelled(client, cfg); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	e.tape.completed(t, tunnels)
}

func tunnelled(c net.Conn, cfg *tls.Config) error {
	if _, err := io.WriteString(c, "CONNECT plain.allowed.test:443 HTTP/1.1\r\nHost: plain.allowed.test:443\r\n\r\n"); err != nil {
		return err
	}
	granted := make([]byte, len("HTTP/1.1 200 Connection Established\r\n\r\n"))
	if _, err := io.ReadFull(c, granted); err != nil {
		return err
	}
	time.Sleep(rand.N(2 * time.Millisecond)) // the fault is one of bytes that come at such a moment
	tc := tls.Client(c, cfg)
	if _, err := io.WriteString(tc, get("/", "plain.allowed.test")); err != nil {
		return err
	}
	resp, err := http.ReadResponse(bufio.NewReader(tc), nil)
	if err != nil {
		return err
	}
	if b, err := io.ReadAll(resp.Body); string(b) != "hello" || err != nil {
		return fmt.Errorf("%s %q %w", resp.Status, b, err)
	}
	return nil
}
