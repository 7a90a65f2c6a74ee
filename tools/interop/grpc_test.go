package interop

import (
	"context"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/interop"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/orca"
	"google.golang.org/grpc/status"
)

// grpcServer starts gRPC's test server.
func grpcServer(t *testing.T, a *authority) string {
	t.Helper()
	cert, _, _ := a.leaf(t, "svc.test")
	ln := listen(t)
	s := grpc.NewServer(grpc.Creds(credentials.NewServerTLSFromCert(&cert)), orca.CallMetricsServerOption(nil))
	pb.RegisterTestServiceServer(s, interop.NewTestServer(interop.NewTestServerOptions{MetricsRecorder: orca.NewServerMetricsRecorder()}))
	go s.Serve(ln)
	t.Cleanup(s.Stop)
	return ln.Addr().String()
}

// grpcClient is a client's connection to a name, whose every byte the run serves.
func (l *lab) grpcClient(name string, more ...grpc.DialOption) *grpc.ClientConn {
	l.t.Helper()
	opts := append([]grpc.DialOption{
		grpc.WithTransportCredentials(credentials.NewClientTLSFromCert(l.trust(), name)), grpc.WithAuthority(name),
	}, more...)
	cc, err := grpc.NewClient("passthrough:///"+l.transparent(name, 443), opts...)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { cc.Close() })
	return cc
}

// Every case of gRPC's client (grpc/doc/interop-test-descriptions.md) but those
// that need an identity of Google's, and orca_oob, whose reports come every 30 s
// without a switch that is gRPC's own. A case that fails ends the process.
func TestGRPCInterop(t *testing.T) {
	a := newAuthority(t)
	l := newLab(t, labOptions{authority: a, upstreams: map[string]string{"svc.test": grpcServer(t, a)}})
	cc := l.grpcClient("svc.test")
	tc := pb.NewTestServiceClient(cc)
	simple := func(do func(context.Context, pb.TestServiceClient, ...grpc.CallOption)) func(context.Context) {
		return func(ctx context.Context) { do(ctx, tc) }
	}
	cases := map[string]func(context.Context){
		"empty_unary": simple(interop.DoEmptyUnaryCall), "large_unary": simple(interop.DoLargeUnaryCall),
		"client_streaming": simple(interop.DoClientStreaming), "server_streaming": simple(interop.DoServerStreaming),
		"ping_pong": simple(interop.DoPingPong), "empty_stream": simple(interop.DoEmptyStream),
		"timeout_on_sleeping_server": simple(interop.DoTimeoutOnSleepingServer),
		"cancel_after_begin":         simple(interop.DoCancelAfterBegin), "cancel_after_first_response": simple(interop.DoCancelAfterFirstResponse),
		"custom_metadata": simple(interop.DoCustomMetadata), "status_code_and_message": simple(interop.DoStatusCodeAndMessage),
		"special_status_message": simple(interop.DoSpecialStatusMessage),
		"unimplemented_method":   func(ctx context.Context) { interop.DoUnimplementedMethod(ctx, cc) },
		"unimplemented_service": func(ctx context.Context) {
			interop.DoUnimplementedService(ctx, pb.NewUnimplementedServiceClient(cc))
		},
		"orca_per_rpc": func(ctx context.Context) {
			balanced := l.grpcClient("svc.test", grpc.WithDefaultServiceConfig(`{"loadBalancingConfig": [{"test_backend_metrics_load_balancer": {}}]}`))
			interop.DoORCAPerRPCTest(ctx, pb.NewTestServiceClient(balanced))
		},
		"rpc_soak":     l.soak(func() (*grpc.ClientConn, func()) { return cc, func() {} }),
		"channel_soak": l.soak(func() (*grpc.ClientConn, func()) { c := l.grpcClient("svc.test"); return c, func() { c.Close() } }),
	}
	for name, do := range cases {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			do(ctx)
		})
	}
	t.Run("denial", func(t *testing.T) {
		_, err := pb.NewTestServiceClient(l.grpcClient("evil.test")).UnaryCall(t.Context(), &pb.SimpleRequest{})
		st, _ := status.FromError(err)
		if st.Code() != codes.PermissionDenied || len(st.Details()) != 1 {
			t.Fatalf("%v, details %v", st, st.Details())
		}
		info, ok := st.Details()[0].(*errdetails.ErrorInfo)
		if !ok || info.GetReason() != "no-rule" || info.GetDomain() != "warder.internal" || info.GetMetadata()["hint"] == "" {
			t.Errorf("details %v", st.Details())
		}
	})
	calls := 0
	for _, r := range l.completed() {
		if r.Verdict == "allow" && r.Request.Protocol == "h2" {
			calls++
		}
	}
	if calls < len(cases) {
		t.Errorf("%d calls recorded", calls)
	}
}

func (l *lab) soak(channel func() (*grpc.ClientConn, func())) func(context.Context) {
	return func(ctx context.Context) {
		interop.DoSoakTest(ctx, interop.SoakTestConfig{
			RequestSize: 271828, ResponseSize: 314159, PerIterationMaxAcceptableLatency: time.Minute,
			OverallTimeout: time.Minute, NumWorkers: 2, Iterations: 20, ChannelForTest: channel,
		})
	}
}
