package runner

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/urpc"

	"warder/audit"
	"warder/broker"
	"warder/internal/identity"
	"warder/proxy"
)

// TestMain lets the test binary be each of the sandbox's processes.
func TestMain(m *testing.M) {
	Reexec()
	os.Exit(m.Run())
}

// rig is a runner with an empty policy and a log.
type rig struct {
	*Runner
	dir string
	log *audit.Log

	mu   sync.Mutex
	said bytes.Buffer
}

func (g *rig) Write(b []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.said.Write(b)
}

func (g *rig) warnings() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.said.String()
}

func newRig(t *testing.T) *rig {
	t.Helper()
	g := &rig{dir: t.TempDir()}
	lg, err := audit.Open(t.Context(), audit.Options{Dir: filepath.Join(g.dir, "audit")})
	if err != nil {
		t.Fatal(err)
	}
	g.log = lg
	out := slog.New(slog.NewTextHandler(g, nil))
	p, err1 := proxy.New(proxy.Options{Policy: func() proxy.Decider { return nil }, Audit: lg, Log: out})
	b, err2 := broker.New(broker.Options{StateDir: g.dir})
	state, err3 := OpenState(filepath.Join(g.dir, "state"))
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	g.Runner = &Runner{Proxy: p, Broker: b, State: state, Log: out, Ready: func(context.Context) (*audit.Log, error) { return lg, nil }}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := errors.Join(p.Close(ctx), lg.Close(ctx)); err != nil {
			t.Error(err)
		}
	})
	return g
}

func (g *rig) run(t *testing.T, network, script string) (Result, error) {
	t.Helper()
	return g.Run(t.Context(), Task{
		Run: identity.Run{ID: identity.NewRunID()}, Argv: []string{"/bin/sh", "-c", script},
		UIDRange: [2]uint32{200000, 65536}, Network: network, Limits: Limits{Timeout: 2 * time.Minute},
	})
}

// noCard is a link whose inner end no sentry can use as a card.
func noCard() (int, *os.File, error) {
	host, guest, err := linkPair()
	if err != nil {
		return -1, nil, err
	}
	guest.Close()
	fd, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0)
	return host, os.NewFile(uintptr(fd), "no card"), err
}

// TestASandboxWithoutACardHasTheSocket_I1_F131: the sentry really refuses the card;
// the same run goes on with the proxy's socket alone, and says so everywhere.
func TestASandboxWithoutACardHasTheSocket_I1_F131(t *testing.T) {
	const script = `cat /proc/net/dev | sed -n 's/ *\(.*\):.*/card \1/p'; curl -sS -m 60 http://warder.internal/ && exit 7`
	g := newRig(t)
	res, err := g.run(t, "", script)
	if err != nil || res.ExitCode != 7 || res.Network != "" || !strings.Contains(string(res.Stdout), "card eth0") || g.warnings() != "" {
		t.Fatalf("control: with a card: %v, %+v, %s%s%s", err, res, res.Stdout, res.Stderr, g.warnings())
	}
	g.link = noCard
	res, err = g.run(t, NetworkAuto, script)
	if err != nil || res.ExitCode != 7 || res.Cause != CauseExit || !strings.HasPrefix(res.Network, "socket: network card: ") {
		t.Fatalf("%v, %+v\n%s%s", err, res, res.Stdout, res.Stderr)
	}
	if out := string(res.Stdout); strings.Contains(out, "card eth") || !strings.Contains(out, "card lo") || !strings.Contains(out, `"run":"`+res.RunID) {
		t.Errorf("inside: %s%s", out, res.Stderr)
	}
	if !strings.Contains(g.warnings(), "network card could not be attached") {
		t.Errorf("said: %s", g.warnings())
	}
	var said []string
	for r, err := range audit.Read(t.Context(), filepath.Join(g.dir, "audit"), audit.Filter{}) {
		if err != nil {
			t.Fatal(err)
		}
		if r.Override != nil {
			said = append(said, r.Run.ID+" "+r.Override.Setting+" "+r.Override.Value)
		}
	}
	if len(said) != 1 || said[0] != res.RunID+" sandbox.network "+res.Network {
		t.Errorf("the log says %v", said)
	}
	// An operator who wants none of it gets a refusal, and nothing ran.
	res, err = g.run(t, NetworkCard, "echo ran")
	if err == nil || !strings.Contains(err.Error(), "network card") || res.ExitCode != ExitWarder || len(res.Stdout) != 0 {
		t.Errorf("%v, %+v", err, res)
	}
	if checks := g.SelfTest(t.Context(), Task{Run: identity.Run{ID: identity.NewRunID()}, UIDRange: [2]uint32{200000, 65536}}); len(checks) != 2 || checks[1].Status != CheckWarn {
		t.Errorf("doctor: %+v", checks)
	}
	res, err = g.Run(t.Context(), Task{
		Run: identity.Run{ID: identity.NewRunID()}, Argv: []string{"sh", "-c", "test -t 1 && echo a terminal"}, Terminal: &Terminal{},
		UIDRange: [2]uint32{200000, 65536}, Limits: Limits{Timeout: 2 * time.Minute},
	})
	if err != nil || res.ExitCode != 0 || !strings.Contains(string(res.Stdout), "a terminal") {
		t.Errorf("the second sandbox's terminal: %v, %+v, %q", err, res, res.Stdout)
	}
	if left, _ := filepath.Glob(filepath.Join(g.dir, "state/runs/*.jsonl")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// Only the sentry's own no counts: a sentry that died, or a command that is not
// there, is what it is.
func TestWhatIsNoRefusalOfTheCard(t *testing.T) {
	var no errNoCard
	const files = "starting sandbox: failed to setupFS: creating mount namespace: mounting root with overlay: input/output error"
	for _, err := range []error{errors.New("EOF"), urpc.RemoteError{Message: files}, urpc.RemoteError{Message: `starting sandbox: failed to load /x: no such file or directory`}} {
		if errors.As(refusedCard(err), &no) {
			t.Errorf("%v is taken for a refusal", err)
		}
	}
	if !errors.As(refusedCard(urpc.RemoteError{Message: "unknown method"}), &no) {
		t.Error("control: an unknown method is not")
	}
}

// TestAProbeIsAnsweredOnce: of all ICMP only the answer to our own question counts.
func TestAProbeIsAnsweredOnce(t *testing.T) { // I1
	n, fd := guestEnd(t, nil)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := n.probe(ended); !errors.Is(err, errNoAnswer) {
		t.Errorf("nobody answered: %v", err)
	}
	old := receivePacket(t, fd)
	done := make(chan error, 1)
	go func() { done <- n.probe(t.Context()) }()
	ask := receivePacket(t, fd)
	if header.ICMPv4(ask[20:]).Type() != header.ICMPv4Echo || !header.IPv4(ask).IsChecksumValid() {
		t.Fatalf("% x", ask)
	}
	reply := func(p []byte) []byte {
		p = slices.Clone(p)
		p[20] = byte(header.ICMPv4EchoReply)
		return p
	}
	for _, p := range [][]byte{reply(old), ask, ipv4Packet(1, "10.0.2.2", []byte{0, 0, 0, 0, 0, 0, 0, 1}, nil)} {
		sendPacket(t, fd, p) // an answer to another question, no answer, and a cut one
	}
	for limit := time.Now().Add(10 * time.Second); n.drops.icmp.Load() < 3 && time.Now().Before(limit); {
		select {
		case err := <-done:
			t.Fatalf("one of these passes for the answer: %v", err)
		case <-time.After(time.Millisecond): // nothing tells of a drop
		}
	}
	sendPacket(t, fd, reply(ask))
	if err := <-done; err != nil {
		t.Error(err)
	}
	sendPacket(t, fd, reply(ask)) // once more
	n.close()                     // after the last packet
	if got := n.drops.icmp.Load(); got < 3 || got > 4 {
		t.Errorf("%d packets dropped", got)
	}
}

func TestWhatDoctorSaysOfTheNetwork(t *testing.T) {
	for _, c := range []struct {
		instead string
		probed  error
		want    string
	}{
		{"", nil, CheckOK},
		{"", errNoAnswer, CheckFail},
		{NetworkSocket, nil, CheckOK},
		{NetworkSocket + ": no such call", nil, CheckWarn},
	} {
		got := networkCheck(c.instead, c.probed)
		if got.Status != c.want || (got.Fix == "") != (c.want == CheckOK) {
			t.Errorf("%q, %v: %+v", c.instead, c.probed, got)
		}
	}
}

// Variables of the caller's win.
func TestProxyVariablesOfTheFallback(t *testing.T) {
	env := innerEnv([]string{"A=b", "https_proxy=http://mine:1"})
	if env[1] != "https_proxy=http://mine:1" || !slices.Contains(env, "http_proxy=http://127.0.0.1:3128") || len(env) != 8 {
		t.Errorf("%q", env)
	}
}
