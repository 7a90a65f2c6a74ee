package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// traffic is what one client of the proxy does.
type traffic struct {
	s          *soaked
	auth       string
	h1, h2, no *http.Client // kept HTTP/1.1 and HTTP/2 connections; none kept
	cut        *http.Client // kept too: those that a new policy may cut
	kinds      []kind

	mu     sync.Mutex
	counts map[string]int
	wrong  []string
	wrongs int
}

// kind is one thing to do; it returns an error when the outcome is not the one that
// was to be expected.
type kind struct {
	name   string
	weight int
	do     func(context.Context) error
}

func newTraffic(s *soaked, client string) (*traffic, error) {
	roots, err := pool(s.dir + "/ca.crt")
	if err != nil {
		return nil, err
	}
	t := &traffic{s: s, auth: client + ":" + tokenOf(client), counts: map[string]int{}}
	via := &url.URL{Scheme: "http", User: url.UserPassword(client, tokenOf(client)), Host: s.proxy.addr}
	make := func(two, keep bool) *http.Client {
		protocols := new(http.Protocols)
		protocols.SetHTTP1(!two)
		protocols.SetHTTP2(two)
		return &http.Client{Timeout: time.Minute, Transport: &http.Transport{
			Proxy: http.ProxyURL(via), TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
			Protocols: protocols, MaxIdleConnsPerHost: 64, DisableKeepAlives: !keep, DisableCompression: true,
		}}
	}
	t.h1, t.h2, t.no = make(false, true), make(true, true), make(false, false)
	t.cut = make(false, true)
	secure, clear := "https://"+originName, "http://"+plainName
	t.kinds = []kind{
		{"GET", 20, t.get(t.h1, secure+"/plain/j", 200, 1024)},
		{"GET, HTTP/2", 10, t.get(t.h2, secure+"/plain/j", 200, 1024)},
		{"GET, plain", 10, t.get(t.h1, clear+"/plain/j", 200, 1024)},
		{"GET, new connection", 4, t.get(t.no, secure+"/plain/j", 200, 1024)},
		{"POST, echoed", 8, t.post(t.h1, secure+"/plain/echo")},
		{"POST, echoed, HTTP/2", 4, t.post(t.h2, secure+"/plain/echo")},
		{"stream", 3, t.get(t.h1, secure+"/plain/piece", 200, pieceBytes)},
		{"chunks", 2, t.get(t.h1, secure+"/plain/trickle", 200, -1)},
		{"credential", 8, t.reflected(t.h1, secure+"/credential/reflect")},
		{"credential, HTTP/2", 4, t.reflected(t.h2, secure+"/credential/reflect")},
		{"denied", 4, t.get(t.h1, secure+"/elsewhere", 403, -1)},
		{"denied host", 2, t.get(t.h1, "https://other.bench.test/", 403, -1)},
		{"either policy", 4, t.either(secure + "/toggle/")},
		{"WebSocket", 2, t.webSocket},
		{"tunnel", 2, t.tunnel},
		{"client leaves", 2, t.leave(t.h1, secure+"/plain/piece")},
		{"client leaves, HTTP/2", 2, t.leave(t.h2, secure+"/plain/piece")},
		{"fault: 500", 2, t.get(t.h1, secure+"/plain/fails", 500, -1)},
		{"fault: slow", 1, t.get(t.h1, secure+"/plain/slow", 200, 4)},
		{"fault: reset", 2, t.get(t.h1, secure+"/plain/reset", 502, -1)},
		{"fault: garbage", 2, t.get(t.h1, secure+"/plain/garbage", 502, -1)},
		{"fault: cut", 2, t.broken(t.h1, secure+"/plain/cut")},
		{"fault: cut, HTTP/2", 2, t.broken(t.h2, secure+"/plain/cut")},
		{"fault: broken chunks", 2, t.broken(t.h1, secure+"/credential/broken")},
	}
	return t, nil
}

// work does one thing after the other until ctx ends.
func (t *traffic) work(ctx context.Context, w int) {
	rnd := rand.New(rand.NewPCG(uint64(w), 7))
	total := 0
	for _, k := range t.kinds {
		total += k.weight
	}
	for ctx.Err() == nil {
		n := rnd.IntN(total)
		for _, k := range t.kinds {
			if n -= k.weight; n >= 0 {
				continue
			}
			err := k.do(ctx)
			if ctx.Err() != nil {
				return // it may have been cut off
			}
			t.count(k.name, err)
			break
		}
	}
}

func (t *traffic) count(name string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts[name]++
	if err != nil {
		if t.wrongs++; len(t.wrong) < 20 {
			t.wrong = append(t.wrong, name+": "+err.Error())
		}
	}
}

func (t *traffic) print() {
	for _, k := range t.kinds {
		fmt.Printf("soak: %-26s %8d\n", k.name, t.counts[k.name])
	}
}

// verdict fails on any outcome that was not to be expected, and on kinds that did
// not happen.
func (t *traffic) verdict() error {
	var errs []error
	for _, k := range t.kinds {
		if t.counts[k.name] == 0 {
			errs = append(errs, fmt.Errorf("%s: not once", k.name))
		}
	}
	if t.wrongs > 0 {
		errs = append(errs, fmt.Errorf("%d outcomes were not to be expected, of the first:\n%s", t.wrongs, strings.Join(t.wrong, "\n")))
	}
	return errors.Join(errs...)
}

func (t *traffic) close() {
	for _, c := range []*http.Client{t.h1, t.h2, t.no, t.cut} {
		c.CloseIdleConnections()
	}
}

// send returns the whole answer.
func (t *traffic) send(ctx context.Context, c *http.Client, method, to string, body []byte) (*http.Response, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, to, bytes.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	resp, err := c.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	return resp, got, err
}

// get expects a status and so many bytes; -1: any.
func (t *traffic) get(c *http.Client, to string, status, length int) func(context.Context) error {
	return func(ctx context.Context) error {
		resp, got, err := t.send(ctx, c, http.MethodGet, to, nil)
		if err == nil && (resp.StatusCode != status || length >= 0 && len(got) != length) {
			err = fmt.Errorf("answer %d with %d bytes: %.300s", resp.StatusCode, len(got), got)
		}
		return err
	}
}

func (t *traffic) post(c *http.Client, to string) func(context.Context) error {
	return func(ctx context.Context) error {
		body := bytes.Repeat([]byte{byte('a' + rand.IntN(26))}, 1+rand.IntN(64<<10))
		resp, got, err := t.send(ctx, c, http.MethodPost, to, body)
		if err == nil && (resp.StatusCode != http.StatusOK || !bytes.Equal(got, body)) {
			err = fmt.Errorf("answer %d: %d bytes for %d", resp.StatusCode, len(got), len(body))
		}
		return err
	}
}

// reflected expects the credential's place masked, in the body and in a field.
func (t *traffic) reflected(c *http.Client, to string) func(context.Context) error {
	want := strings.Repeat("*", len(soakToken))
	return func(ctx context.Context) error {
		resp, got, err := t.send(ctx, c, http.MethodGet, to, nil)
		if err == nil && (resp.StatusCode != http.StatusOK || !strings.HasSuffix(string(got), "Bearer "+want) || resp.Header.Get("X-Reflected") != "Bearer "+want) {
			err = fmt.Errorf("answer %d %.300q, field %q", resp.StatusCode, got, resp.Header.Get("X-Reflected"))
		}
		return err
	}
}

// either asks for what one of the two policies allows. The other may come into force
// while the answer is on its way, and then cuts it.
func (t *traffic) either(to string) func(context.Context) error {
	return func(ctx context.Context) error {
		resp, got, err := t.send(ctx, t.cut, http.MethodGet, to+"0", nil)
		t.s.mu.Lock()
		defer t.s.mu.Unlock()
		switch {
		case errors.Is(err, io.ErrUnexpectedEOF):
			t.s.cut++
		case err != nil:
			return err
		case resp.StatusCode == http.StatusOK:
			t.s.toggled[0]++
		case resp.StatusCode == http.StatusForbidden && bytes.Contains(got, []byte(`"no-rule"`)):
			t.s.toggled[1]++
		default:
			return fmt.Errorf("answer %d %.300s", resp.StatusCode, got)
		}
		return nil
	}
}

// leave goes away in the middle of an answer.
func (t *traffic) leave(c *http.Client, to string) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, to, nil)
		if err != nil {
			return err
		}
		resp, err := c.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		_, err = io.ReadFull(resp.Body, make([]byte, 4096))
		return err
	}
}

// broken expects an answer that does not look whole.
func (t *traffic) broken(c *http.Client, to string) func(context.Context) error {
	return func(ctx context.Context) error {
		resp, got, err := t.send(ctx, c, http.MethodGet, to, nil)
		if err == nil {
			return fmt.Errorf("answer %d looks whole: %.300q", resp.StatusCode, got)
		}
		return nil
	}
}

func (t *traffic) target(path string) (target, error) {
	roots, err := pool(t.s.dir + "/ca.crt")
	return target{peer: t.s.proxy, roots: roots, path: path, auth: t.auth}, err
}

func (t *traffic) webSocket(context.Context) error {
	to, err := t.target("/plain/ws")
	if err != nil {
		return err
	}
	w, err := openWebSocket(to)
	if err != nil {
		return err
	}
	defer w.close()
	for range 20 {
		if _, _, err := w.once(); err != nil {
			return err
		}
	}
	return nil
}

// tunnel speaks clear HTTP through a tunnel that policy lets through unread.
func (t *traffic) tunnel(context.Context) error {
	conn, err := dialProxy(t.s.proxy.addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := connectTo(conn, throughName+":80", t.auth); err != nil {
		return err
	}
	c := newClient(conn, "/plain/j", throughName)
	for range 5 {
		if _, _, err := c.once(); err != nil {
			return err
		}
		if n, said := c.refused(); n > 0 {
			return errors.New(said)
		}
	}
	return nil
}

// paced asks every few milliseconds, one after the other, and returns how long each
// took, in microseconds.
func (t *traffic) paced(ctx context.Context, to string) (micros []float64, err error) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	ask := t.get(t.h1, to, 200, 1024)
	for {
		select {
		case <-ctx.Done():
			return slices.Clip(micros), nil
		case <-tick.C:
			begin := time.Now()
			if err := ask(ctx); err != nil {
				if ctx.Err() != nil {
					return micros, nil
				}
				return micros, err
			}
			micros = append(micros, float64(time.Since(begin).Microseconds()))
		}
	}
}
