package proxy

import (
	"context"
	"errors"
	"net"
)

// Granter will be *broker.Session's Grant method.
type Granter any

type CA struct{}
type Proxy struct{}
type Run struct{}

var errStub = errors.New("proxy: not built yet")

func NewCA() (*CA, error)                          { return nil, errStub }
func LoadCA(certFile, keyFile string) (*CA, error) { return nil, errStub }
func (c *CA) CertPEM() []byte                      { return nil }
func New(o Options) (*Proxy, error)                { return nil, errStub }
func (p *Proxy) NewRun(o RunOptions) (*Run, error) { return nil, errStub }
func (p *Proxy) Close(ctx context.Context) error   { return nil }
func (p *Proxy) ServeListener(ctx context.Context, ln net.Listener, o ListenOptions) error {
	return errStub
}
func (r *Run) CACertPEM() []byte                   { return nil }
func (r *Run) ServeConn(c net.Conn, d Destination) { _ = c.Close() }
func (r *Run) ServeExplicit(c net.Conn)            { _ = c.Close() }
func (r *Run) Refuse(d Destination, reason string) {}
func (r *Run) Denials() []Denial                   { return nil }
func (r *Run) Close(ctx context.Context) error     { return nil }
