package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"
)

// sample is one measurement of one cell.
type sample struct {
	rps, cpuUS, p50US, p99US float64
	refused                  int
}

// measureProxy keeps c connections busy for d, one request after the other on
// each, and reads the proxy's CPU time before and after.
func measureProxy(p peer, dir string, c int, d time.Duration) (sample, error) {
	roots, err := pool(filepath.Join(dir, "ca.crt"))
	if err != nil {
		return sample{}, err
	}
	workers := make([]*worker, c)
	defer func() {
		for _, w := range workers {
			if w != nil {
				w.conn.Close()
			}
		}
	}()
	for i := range workers {
		if workers[i], err = dialWorker(p, roots); err != nil {
			return sample{}, err
		}
	}
	if err := each(workers, func(w *worker) error { return w.repeat(warmUp/c + 1) }); err != nil {
		return sample{}, err
	}
	before, err := cpuTime(p.cmd.Process.Pid)
	if err != nil {
		return sample{}, err
	}
	begin := time.Now()
	err = each(workers, func(w *worker) error { return w.until(begin.Add(d)) })
	elapsed := time.Since(begin)
	if err != nil {
		return sample{}, err
	}
	after, err := cpuTime(p.cmd.Process.Pid)
	if err != nil {
		return sample{}, err
	}
	var all []float64
	for _, w := range workers {
		all = append(all, w.micros...)
	}
	refused, said := 0, ""
	for _, w := range workers {
		if refused += w.refused; w.refused > 0 {
			said = w.said
		}
	}
	if refused*100 > len(all) { // a comparison of something else
		return sample{}, fmt.Errorf("%d of %d requests were refused: %s", refused, len(all), said)
	}
	n := float64(len(all))
	return sample{n / elapsed.Seconds(), float64((after - before).Microseconds()) / n, quantile(all, .5), quantile(all, .99), refused}, nil
}

// each runs f for all workers at once and returns the first error.
func each(workers []*worker, f func(*worker) error) error {
	errs := make([]error, len(workers))
	var wg sync.WaitGroup
	for i, w := range workers {
		wg.Go(func() { errs[i] = f(w) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// worker is one client connection, through CONNECT and verified TLS.
type worker struct {
	conn    *tls.Conn
	r       *bufio.Reader
	request []byte
	body    []byte
	micros  []float64
	refused int
	said    string // the last refusal
}

func dialWorker(p peer, roots *x509.CertPool) (*worker, error) {
	conn, err := net.DialTimeout("tcp", p.addr, 5*time.Second)
	if err != nil {
		return nil, err
	}
	fail := func(err error) (*worker, error) { return nil, errors.Join(err, conn.Close()) }
	if err := conn.SetDeadline(time.Now().Add(10 * time.Minute)); err != nil {
		return fail(err)
	}
	if _, err := fmt.Fprintf(conn, "CONNECT %[1]s:443 HTTP/1.1\r\nHost: %[1]s:443\r\n\r\n", originName); err != nil {
		return fail(err)
	}
	// Byte by byte: what follows the head belongs to TLS.
	var head []byte
	for one := make([]byte, 1); !bytes.HasSuffix(head, []byte("\r\n\r\n")) && len(head) < 4096; head = append(head, one...) {
		if _, err := io.ReadFull(conn, one); err != nil {
			return fail(err)
		}
	}
	if !bytes.HasPrefix(head, []byte("HTTP/1.1 200")) {
		return fail(fmt.Errorf("CONNECT: %q", head))
	}
	t := tls.Client(conn, &tls.Config{MinVersion: tls.VersionTLS13, ServerName: originName, RootCAs: roots, NextProtos: []string{"http/1.1"}})
	if err := t.Handshake(); err != nil {
		return fail(err)
	}
	request := "GET " + p.path + " HTTP/1.1\r\nHost: " + originName + "\r\nUser-Agent: bench/1\r\nAccept: application/json\r\n" +
		"Accept-Encoding: identity\r\nAuthorization: Bearer placeholder\r\nX-Run: bench\r\nX-Trace: 0123456789abcdef\r\n\r\n"
	return &worker{conn: t, r: bufio.NewReaderSize(t, 8<<10), request: []byte(request), body: make([]byte, 1024)}, nil
}

func (w *worker) repeat(n int) error {
	for range n {
		if err := w.once(); err != nil {
			return err
		}
	}
	return nil
}

func (w *worker) until(deadline time.Time) error {
	for {
		begin := time.Now()
		if !begin.Before(deadline) {
			return nil
		}
		if err := w.once(); err != nil {
			return err
		}
		w.micros = append(w.micros, float64(time.Since(begin).Nanoseconds())/1e3)
	}
}

// once sends the request and reads the answer: 200 with the origin's 1024 bytes,
// or a refusal (on a machine that is busy, a decision may run over its budget).
func (w *worker) once() error {
	if _, err := w.conn.Write(w.request); err != nil {
		return err
	}
	status, err := w.r.ReadSlice('\n')
	if err != nil {
		return err
	}
	ok := bytes.HasPrefix(status, []byte("HTTP/1.1 200"))
	said := string(status)
	length := -1
	for {
		line, err := w.r.ReadSlice('\n')
		if err != nil {
			return err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			break
		}
		if name, value, found := bytes.Cut(line, []byte(":")); found && bytes.EqualFold(name, []byte("content-length")) {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return err
			}
		}
	}
	if length < 0 || length > len(w.body) || ok && length != len(w.body) {
		return fmt.Errorf("answer %q with %d bytes", said, length)
	}
	body := w.body[:length]
	_, err = io.ReadFull(w.r, body)
	if !ok {
		w.refused++
		w.said = said + string(body)
	}
	return err
}

func median(v []float64) float64 { return quantile(v, .5) }

// quantile is the nearest-rank quantile; 0 for no values.
func quantile(v []float64, q float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	return s[int(q*float64(len(s)-1)+.5)]
}
