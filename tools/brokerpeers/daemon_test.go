package brokerpeers

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

var loopback = []net.IP{net.IPv4(127, 0, 0, 1)}

// account is who the servers run as: nobody when root tests, else the caller.
// PostgreSQL refuses to be root, and none of them needs to be.
const nobody = 65534

// home makes a folder that a server owns, away from t.TempDir, which only the
// caller can enter.
func home(t *testing.T, name string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "warder-peer-"+name+"-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// hand gives everything below dir to the account of the servers.
func hand(t *testing.T, dir string) {
	t.Helper()
	if os.Geteuid() != 0 {
		return
	}
	err := filepath.WalkDir(dir, func(p string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(p, nobody, nobody)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// as makes cmd run as the account of the servers, in a process group of its own
// that dies with the test.
func as(cmd *exec.Cmd) *exec.Cmd {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if os.Geteuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody, Groups: []uint32{}}
	}
	return cmd
}

// output is what a server wrote.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// daemon runs a server until the test ends and waits until ready says so.
func daemon(t *testing.T, dir string, env []string, ready func() error, argv ...string) {
	t.Helper()
	cmd := as(exec.Command(argv[0], argv[1:]...))
	cmd.Dir, cmd.Env = dir, append([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + dir, "LC_ALL=C.UTF-8"}, env...)
	out := &output{}
	cmd.Stdout, cmd.Stderr = out, out
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		<-ended
	})
	deadline := time.Now().Add(2 * time.Minute)
	for {
		err := ready()
		if err == nil {
			return
		}
		select {
		case <-ended:
			t.Fatalf("%s ended: %v\n%s", argv[0], err, out)
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s does not serve: %v\n%s", argv[0], err, out)
		}
		time.Sleep(50 * time.Millisecond) // polling a server that another process starts
	}
}

// must runs a command as the account of the servers and returns what it printed.
func must(t *testing.T, dir string, env []string, argv ...string) string {
	t.Helper()
	cmd := as(exec.Command(argv[0], argv[1:]...))
	cmd.Dir, cmd.Env = dir, append([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + dir, "LC_ALL=C.UTF-8"}, env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", argv[0], err, out)
	}
	return string(out)
}

// freePort is a port of loopback that nobody listens on now.
func freePort(t *testing.T) int {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).Port
}

func local(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// listens is ready when something accepts connections.
func listens(addr string) func() error {
	return func() error {
		c, err := net.DialTimeout("tcp", addr, time.Second)
		if err != nil {
			return fmt.Errorf("%s: %w", addr, err)
		}
		return c.Close()
	}
}
