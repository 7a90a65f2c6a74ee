package main

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"
)

// client is one connection to a proxy that sends requests, one after the other.
type client struct {
	conn   net.Conn
	r      *bufio.Reader
	body   []byte
	target string // of the request line
	host   string
	paths  func() string // nil: target each time

	request []byte
	no      int
	said    string // the last refusal
}

func openKeepAlive(t target) (worker, error) {
	conn, err := dialThrough(t, originName)
	if err != nil {
		return nil, err
	}
	return newClient(conn, t.path, originName), nil
}

// openPlain asks in clear text, with the whole URL in the request line.
func openPlain(t target) (worker, error) {
	conn, err := dialProxy(t.peer.addr)
	if err != nil {
		return nil, err
	}
	return newClient(conn, "http://"+plainName+t.path, plainName), nil
}

// openFreshPaths never asks twice for the same, so that no decision is known.
func openFreshPaths(t target) (worker, error) {
	w, err := openKeepAlive(t)
	if err != nil {
		return nil, err
	}
	c := w.(*client)
	n, base := 0, t.path+strconv.FormatInt(time.Now().UnixNano(), 36)+"-"
	c.paths = func() string { n++; return base + strconv.Itoa(n) }
	return c, nil
}

func newClient(conn net.Conn, target, host string) *client {
	return &client{conn: conn, r: bufio.NewReaderSize(conn, 8<<10), body: make([]byte, 1024), target: target, host: host}
}

func (c *client) close()                 { c.conn.Close() }
func (c *client) refused() (int, string) { return c.no, c.said }

// head is the request: seven fields.
func (c *client) head(target string) []byte {
	if c.request == nil || c.paths != nil {
		c.request = append(c.request[:0], "GET "+target+" HTTP/1.1\r\nHost: "+c.host+"\r\nUser-Agent: bench/1\r\nAccept: application/json\r\n"+
			"Accept-Encoding: identity\r\nAuthorization: Bearer placeholder\r\nX-Run: bench\r\nX-Trace: 0123456789abcdef\r\n\r\n"...)
	}
	return c.request
}

// once sends the request and reads the answer: 200 with the origin's 1024 bytes,
// or a refusal (on a machine that is busy, a decision may run over its budget).
func (c *client) once() (units, micros float64, err error) {
	target := c.target
	if c.paths != nil {
		target = c.paths()
	}
	begin := time.Now()
	if _, err := c.conn.Write(c.head(target)); err != nil {
		return 0, 0, err
	}
	a, err := readHead(c.r)
	if err != nil {
		return 0, 0, err
	}
	if a.length < 0 || a.length > len(c.body) || a.ok && a.length != len(c.body) {
		return 0, 0, fmt.Errorf("answer %q with %d bytes", a.status, a.length)
	}
	if _, err = io.ReadFull(c.r, c.body[:a.length]); err != nil {
		return 0, 0, err
	}
	if !a.ok {
		c.no++
		c.said = a.status + string(c.body[:a.length])
	}
	return 1, float64(time.Since(begin).Nanoseconds()) / 1e3, nil
}

// answer is the head of an answer.
type answer struct {
	ok      bool
	status  string
	length  int // -1: not said
	chunked bool
}

func readHead(r *bufio.Reader) (answer, error) {
	a := answer{length: -1}
	status, err := r.ReadSlice('\n')
	if err != nil {
		return a, err
	}
	if a.ok = bytes.HasPrefix(status, []byte("HTTP/1.1 200")) || bytes.HasPrefix(status, []byte("HTTP/1.1 101")); !a.ok {
		a.status = string(status)
	}
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return a, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			return a, nil
		}
		name, value, found := bytes.Cut(line, []byte(":"))
		switch {
		case found && bytes.EqualFold(name, []byte("content-length")):
			if a.length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return a, err
			}
		case found && bytes.EqualFold(name, []byte("transfer-encoding")):
			a.chunked = true
		}
	}
}

// dialer opens a connection for each request.
type dialer struct {
	t    target
	no   int
	said string
}

func openDialer(t target) (worker, error) { return &dialer{t: t}, nil }

func (d *dialer) close()                 {}
func (d *dialer) refused() (int, string) { return d.no, d.said }

func (d *dialer) once() (units, micros float64, err error) {
	begin := time.Now()
	w, err := openKeepAlive(d.t)
	if err != nil {
		return 0, 0, err
	}
	defer w.close()
	if _, _, err := w.once(); err != nil {
		return 0, 0, err
	}
	n, said := w.refused()
	if d.no += n; n > 0 {
		d.said = said
	}
	return 1, float64(time.Since(begin).Nanoseconds()) / 1e3, nil
}

func dialProxy(addr string) (net.Conn, error) {
	conn, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		return nil, err
	}
	if err := conn.SetDeadline(time.Now().Add(10 * time.Minute)); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// dialThrough opens a tunnel with CONNECT and verified TLS in it.
func dialThrough(t target, host string) (net.Conn, error) {
	conn, err := dialProxy(t.peer.addr)
	if err != nil {
		return nil, err
	}
	if err = connectTo(conn, host+":443", t.auth); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	tc, err := handshake(conn, host, t.roots)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return tc, nil
}

// connectTo asks the proxy for a tunnel.
func connectTo(conn net.Conn, authority, auth string) error {
	known := ""
	if auth != "" {
		known = "Proxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(auth)) + "\r\n"
	}
	if _, err := fmt.Fprintf(conn, "CONNECT %[1]s HTTP/1.1\r\nHost: %[1]s\r\n%[2]s\r\n", authority, known); err != nil {
		return err
	}
	// Byte by byte: what follows the head belongs to the tunnel.
	var head []byte
	for one := make([]byte, 1); !bytes.HasSuffix(head, []byte("\r\n\r\n")) && len(head) < 4096; head = append(head, one...) {
		if _, err := io.ReadFull(conn, one); err != nil {
			return err
		}
	}
	if !bytes.HasPrefix(head, []byte("HTTP/1.1 200")) && !bytes.HasPrefix(head, []byte("HTTP/1.0 200")) {
		return fmt.Errorf("CONNECT: %q", head)
	}
	return nil
}

func handshake(conn net.Conn, host string, roots *x509.CertPool) (net.Conn, error) {
	t := tls.Client(conn, &tls.Config{MinVersion: tls.VersionTLS13, ServerName: host, RootCAs: roots, NextProtos: []string{"http/1.1"}})
	return t, t.Handshake()
}
