package demo

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"
)

// jwtShape is what a token looks like (RFC 7519, compact serialisation).
var jwtShape = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{16,}`)
})

// planted proves that the search finds what is there: it is built at run time,
// so that the program's own file does not hold it.
func planted() string {
	return strings.Join([]string{"eyJ" + strings.Repeat("Q0FOQVJZ", 4), "eyJ" + strings.Repeat("Q0FOQVJZ", 4), strings.Repeat("Q0FOQVJZ", 6)}, ".")
}

// plantedPrefix is how a finding of the planted token is told from a real one.
const plantedPrefix = "eyJQ0FOQVJZ"

// Client runs inside the sandbox: it works, is refused, looks for the token and
// tries to get out. hostPort is where the API really listens on the host.
func Client(w io.Writer, hostPort string) error {
	c := &client{w: w, http: &http.Client{Timeout: 20 * time.Second}}
	c.allowed()
	c.denied()
	c.search()
	c.metadata()
	c.udp()
	c.direct(hostPort)
	if len(c.faults) > 0 {
		return errors.New("demo client: " + strings.Join(c.faults, "; "))
	}
	return nil
}

type client struct {
	w      io.Writer
	http   *http.Client
	faults []string
}

func (c *client) say(format string, args ...any) { fmt.Fprintf(c.w, "  [task] "+format+"\n", args...) }

func (c *client) fault(format string, args ...any) {
	c.faults = append(c.faults, fmt.Sprintf(format, args...))
	c.say("UNEXPECTED: "+format, args...)
}

func (c *client) allowed() {
	resp, err := c.http.Get("https://" + Host + "/items")
	if err != nil {
		c.fault("GET /items: %v", err)
		return
	}
	defer resp.Body.Close()
	var body struct {
		Caller  string   `json:"caller"`
		Items   []string `json:"items"`
		YouSent string   `json:"you_sent"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&body); err != nil || resp.StatusCode != http.StatusOK {
		c.fault("GET /items: status %d, %v", resp.StatusCode, err)
		return
	}
	c.say("GET https://%s/items -> 200, items %v, known to the API as %q; I sent no token", Host, body.Items, body.Caller)
	if jwtShape().MatchString(body.YouSent) {
		c.fault("the reflected token came back readable")
		return
	}
	scheme, masked, _ := strings.Cut(body.YouSent, " ")
	if strings.Trim(masked, "*") != "" || len(masked) < 100 {
		c.fault("the reflected token came back as %q", body.YouSent)
		return
	}
	c.say("the API reflects the token it got; what reaches me is %q and %d asterisks", scheme, len(masked))
}

func (c *client) denied() {
	resp, err := c.http.Post("https://"+Host+"/orders", "application/json", strings.NewReader(`{"item":"anvil"}`))
	if err != nil {
		c.fault("POST /orders: %v", err)
		return
	}
	defer resp.Body.Close()
	var p struct{ Reason, Detail, Hint string }
	if err := json.NewDecoder(resp.Body).Decode(&p); err != nil || resp.StatusCode != http.StatusForbidden {
		c.fault("POST /orders: status %d, %v", resp.StatusCode, err)
		return
	}
	c.say("POST https://%s/orders -> 403, reason %q: %s (hint: %s)", Host, p.Reason, p.Detail, p.Hint)
}

// search looks for a token in every place a program can read, with a planted
// one in each to show that the search works.
func (c *client) search() {
	const envName, file = "DEMO_PLANTED", "/tmp/planted"
	if err := os.Setenv(envName, planted()); err != nil {
		c.fault("search: %v", err)
	}
	if err := os.WriteFile(file, []byte("token="+planted()), 0o600); err != nil {
		c.fault("search: %v", err)
	}
	var controls, real []string
	note := func(where string, data []byte) {
		for _, m := range jwtShape().FindAll(data, -1) {
			if strings.HasPrefix(string(m), plantedPrefix) {
				controls = append(controls, where)
			} else {
				real = append(real, where)
			}
		}
	}
	note("environment", []byte(strings.Join(os.Environ(), "\n")))
	files := 0
	for _, top := range []string{"/etc", "/tmp", "/workspace", "/out", "/root", "/home", "/run", "/var", "/proc"} {
		_ = filepath.WalkDir(top, func(p string, d os.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() || strings.HasSuffix(p, "/warder") {
				return nil // unreadable is as good as absent; the program itself holds no token
			}
			if strings.HasPrefix(p, "/proc/") && (strings.HasSuffix(p, "/pagemap") || strings.Contains(p, "/kmsg")) {
				return nil
			}
			files++
			note(p, head(p, 1<<20))
			return nil
		})
	}
	if len(real) > 0 {
		c.fault("a token was found in %v", real)
	}
	if len(controls) < 2 {
		c.fault("the search did not find the tokens planted in the environment and in a file")
		return
	}
	c.say("looked for a token in the environment and %d files of /etc, /tmp, /proc and others: none (the %d that I planted were found)", files, len(controls))
}

func head(p string, n int64) []byte {
	f, err := os.Open(p)
	if err != nil {
		return nil
	}
	defer f.Close()
	_ = f.SetReadDeadline(time.Now().Add(time.Second)) // some files of /proc block; most cannot have a deadline
	b, _ := io.ReadAll(io.LimitReader(f, n))
	return b
}

func (c *client) metadata() {
	resp, err := c.http.Get("http://169.254.169.254/latest/meta-data/")
	if err != nil {
		c.say("GET http://169.254.169.254/ -> %v", err)
		return
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	var p struct{ Reason string }
	if resp.StatusCode != http.StatusForbidden || json.Unmarshal(b, &p) != nil {
		c.fault("the metadata address answered %d", resp.StatusCode)
		return
	}
	c.say("GET http://169.254.169.254/ (cloud metadata) -> 403, reason %q", p.Reason)
}

func (c *client) udp() {
	conn, err := net.Dial("udp", "192.0.2.1:53")
	if err != nil {
		c.say("UDP to 192.0.2.1:53 -> %v", err)
		return
	}
	defer conn.Close()
	_, _ = conn.Write([]byte("hello"))
	_ = conn.SetReadDeadline(time.Now().Add(time.Second))
	if n, err := conn.Read(make([]byte, 100)); err == nil {
		c.fault("a UDP answer of %d bytes arrived", n)
		return
	}
	c.say("UDP to 192.0.2.1:53 -> nothing comes back, nothing leaves")
}

func (c *client) direct(hostPort string) {
	if conn, err := net.DialTimeout("tcp", hostPort, 3*time.Second); err == nil {
		conn.Close()
		c.fault("the API's real address %s answers from inside", hostPort)
		return
	}
	c.say("direct connection to the API's real address %s -> refused: that loopback is the sandbox's own", hostPort)
	resp, err := c.http.Get("http://192.0.2.7:8080/")
	if err != nil {
		c.say("direct connection to 192.0.2.7:8080 -> %v", err)
		return
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusForbidden {
		c.fault("192.0.2.7:8080 answered %d", resp.StatusCode)
		return
	}
	c.say("direct connection to 192.0.2.7:8080 -> it ends at the proxy: 403")
}
