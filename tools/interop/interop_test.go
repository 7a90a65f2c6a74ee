// Package interop holds the proxy against gRPC's own interoperability tests
// (grpc/doc/interop-test-descriptions.md): client and server of other people,
// with the interception between them. It is a module of its own, so that none of
// this is linked into the product.
package interop

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/interop"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"warder/audit"
	"warder/internal/config"
	"warder/internal/identity"
	"warder/policies"
	"warder/proxy"
)

// rules allow svc.test and deny everything else.
type rules struct{}

func (rules) Decide(_ context.Context, in *policies.Input) policies.Decision {
	d := policies.Decision{ID: identity.NewID(), Verdict: policies.Allow, Rule: "all", Mode: policies.ModeEnforce}
	if in.Request.Host != "svc.test" {
		d.Verdict, d.Reason, d.Rule, d.Hint = policies.Deny, policies.ReasonDenied, "closed", "call svc.test"
	}
	return d
}

func (rules) Needs() policies.Needs { return policies.Needs{} }

// server starts gRPC's test server and returns its address and certificate file.
func server(t *testing.T) (addr, caFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "interop"}, DNSNames: []string{"svc.test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	caFile = filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(caFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(grpc.Creds(credentials.NewServerTLSFromCert(&tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key})))
	pb.RegisterTestServiceServer(s, interop.NewTestServer())
	go s.Serve(ln)
	t.Cleanup(s.Stop)
	return ln.Addr().String(), caFile
}

// through is a client's connection to a name, whose every byte the run serves.
func through(t *testing.T, run *proxy.Run, name string) *grpc.ClientConn {
	t.Helper()
	front, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			c, err := front.Accept()
			if err != nil {
				return
			}
			run.ServeConn(c, proxy.Destination{Name: name, Addr: netip.MustParseAddrPort("100.64.0.1:443")})
		}
	}()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(run.CACertPEM())
	cc, err := grpc.NewClient("passthrough:///"+front.Addr().String(), grpc.WithTransportCredentials(credentials.NewClientTLSFromCert(pool, name)), grpc.WithAuthority(name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close(); front.Close() })
	return cc
}

func TestInterop(t *testing.T) {
	addr, caFile := server(t)
	lg, err := audit.Open(t.Context(), audit.Options{Dir: filepath.Join(t.TempDir(), "audit"), SegmentSize: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	p, err := proxy.New(proxy.Options{
		Policy: func() proxy.Decider { return rules{} }, Audit: lg,
		Upstream: config.Upstream{Hosts: map[string]string{"svc.test": addr}, CAFiles: []string{caFile}, AllowAddresses: []string{addr}},
	})
	if err != nil {
		t.Fatal(err)
	}
	run, err := p.NewRun(proxy.RunOptions{Run: identity.Run{ID: identity.NewRunID()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if err := lg.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	cc := through(t, run, "svc.test")
	tc := pb.NewTestServiceClient(cc)
	for name, do := range map[string]func(context.Context, pb.TestServiceClient, ...grpc.CallOption){
		"empty_unary": interop.DoEmptyUnaryCall, "large_unary": interop.DoLargeUnaryCall,
		"client_streaming": interop.DoClientStreaming, "server_streaming": interop.DoServerStreaming,
		"ping_pong": interop.DoPingPong, "empty_stream": interop.DoEmptyStream,
		"timeout_on_sleeping_server": interop.DoTimeoutOnSleepingServer,
		"cancel_after_begin":         interop.DoCancelAfterBegin, "cancel_after_first_response": interop.DoCancelAfterFirstResponse,
		"custom_metadata": interop.DoCustomMetadata, "status_code_and_message": interop.DoStatusCodeAndMessage,
		"special_status_message": interop.DoSpecialStatusMessage,
		"unimplemented_method": func(ctx context.Context, _ pb.TestServiceClient, _ ...grpc.CallOption) {
			interop.DoUnimplementedMethod(ctx, cc)
		},
		"unimplemented_service": func(ctx context.Context, _ pb.TestServiceClient, _ ...grpc.CallOption) {
			interop.DoUnimplementedService(ctx, pb.NewUnimplementedServiceClient(cc))
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			do(ctx, tc) // ends the process on a failure
		})
	}
	t.Run("denial", func(t *testing.T) {
		_, err := pb.NewTestServiceClient(through(t, run, "evil.test")).UnaryCall(t.Context(), &pb.SimpleRequest{})
		st, _ := status.FromError(err)
		if st.Code() != codes.PermissionDenied || len(st.Details()) != 1 {
			t.Fatalf("%v, details %v", st, st.Details())
		}
		info, ok := st.Details()[0].(*errdetails.ErrorInfo)
		if !ok || info.GetReason() != "denied" || info.GetDomain() != "warder.internal" || info.GetMetadata()["rule"] != "closed" || info.GetMetadata()["hint"] != "call svc.test" {
			t.Errorf("details %v", st.Details())
		}
	})
}
