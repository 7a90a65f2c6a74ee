package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
	"time"
)

// hello is what a TLS ClientHello (RFC 8446 §4.1.2) says in the clear.
type hello struct {
	sni string // as received
	ech bool   // the extension of an encrypted ClientHello (RFC 9849) is there
}

// extensionECH is encrypted_client_hello.
const extensionECH = 0xfe0d

var errHelloRead = errors.New("proxy: the ClientHello is read")

// readHello reads a ClientHello and gives the connection back as if nothing had
// been read. It is parsed by crypto/tls, as the interception would parse it.
func readHello(ctx context.Context, c *prefixConn, limit time.Duration) (hello, error) {
	var h hello
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })
	rec := &recordingConn{Conn: c}
	err := tls.Server(rec, &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(info *tls.ClientHelloInfo) (*tls.Config, error) {
			h.sni, h.ech = info.ServerName, slices.Contains(info.Extensions, extensionECH)
			return nil, errHelloRead
		},
	}).HandshakeContext(context.WithoutCancel(ctx))
	c.head = append(rec.read, c.head...)
	if !stop() {
		return h, context.DeadlineExceeded
	}
	if errors.Is(err, errHelloRead) {
		return h, nil
	}
	return h, err
}

// recordingConn keeps what is read and sends nothing.
type recordingConn struct {
	net.Conn
	read []byte
}

// maxHello bounds a ClientHello, bytes; crypto/tls has a limit of the same size.
const maxHello = 64 << 10

func (c *recordingConn) Read(p []byte) (int, error) {
	if len(c.read) > maxHello {
		return 0, io.ErrUnexpectedEOF
	}
	n, err := c.Conn.Read(p)
	c.read = append(c.read, p[:n]...)
	return n, err
}

func (c *recordingConn) Write(p []byte) (int, error)      { return len(p), nil }
func (c *recordingConn) Close() error                     { return nil }
func (c *recordingConn) SetDeadline(time.Time) error      { return nil }
func (c *recordingConn) SetWriteDeadline(time.Time) error { return nil }
