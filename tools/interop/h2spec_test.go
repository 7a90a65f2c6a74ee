package interop

import (
	"encoding/xml"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/summerwind/h2spec"
	"github.com/summerwind/h2spec/config"
)

// h2specPort makes this test binary h2spec itself, against that port of localhost:
// it prints to the standard output, and ends the process where it cannot connect.
const h2specPort = "INTEROP_H2SPEC_PORT"

func TestMain(m *testing.M) {
	port, err := strconv.Atoi(os.Getenv(h2specPort))
	if err != nil {
		os.Exit(m.Run())
	}
	_, err = h2spec.Run(&config.Config{
		Host: "localhost", Port: port, Path: "/", TLS: true, Insecure: true, Strict: true, Timeout: 2 * time.Second,
		MaxHeaderLen: 4000, JUnitReport: os.Getenv("INTEROP_H2SPEC_REPORT"),
	})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// exempt are the cases of h2spec that may fail, each with its reason.
var exempt = map[string]string{
	"http2/6.5.3: Sends multiple values of SETTINGS_INITIAL_WINDOW_SIZE": "the HTTP/2 layer ends a connection whose SETTINGS frame names a setting twice, " +
		"as suspicious activity that RFC 9113 §10.5 lets an endpoint answer with a connection error",
	"http2/8.1.2.2: Sends a HEADERS frame that contains the connection-specific header field":                     "answered 400 before the stream ends, which RFC 9113 §8.1.1 allows",
	`http2/8.1.2.2: Sends a HEADERS frame that contains the TE header field with any value other than "trailers"`: "answered 400 before the stream ends, which RFC 9113 §8.1.1 allows",
}

// http://www.junit.org, as far as h2spec writes it
type junit struct {
	Suites []struct {
		Name  string `xml:"name,attr"`
		Cases []struct {
			Package string `xml:"package,attr"`
			Name    string `xml:"classname,attr"`
			Failure *struct {
				Text string `xml:",chardata"`
			} `xml:"failure"`
			Error *struct {
				Text string `xml:",chardata"`
			} `xml:"error"`
		} `xml:"testcase"`
	} `xml:"testsuite"`
}

func TestH2Spec(t *testing.T) {
	a := newAuthority(t)
	up := a.serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		io.WriteString(w, "hello from the upstream")
	}), "localhost")
	l := newLab(t, labOptions{authority: a, upstreams: map[string]string{"localhost": up}})
	_, port, _ := net.SplitHostPort(l.transparent("localhost", 0))
	report := filepath.Join(t.TempDir(), "report.xml")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(environ(), h2specPort+"="+port, "INTEROP_H2SPEC_REPORT="+report)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	text, err := os.ReadFile(report)
	if err != nil {
		t.Fatal(err)
	}
	var doc junit
	if err := xml.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	cases, failed := 0, map[string]bool{}
	for _, s := range doc.Suites {
		for _, c := range s.Cases {
			cases++
			name := c.Package + ": " + c.Name
			if c.Failure == nil && c.Error == nil {
				continue
			}
			failed[name] = true
			if exempt[name] == "" {
				t.Errorf("%s failed: %+v %+v", name, c.Failure, c.Error)
			}
		}
	}
	for name := range exempt {
		if !failed[name] {
			t.Errorf("%s does not fail any more: take it off the list", name)
		}
	}
	if cases < 140 || len(exempt) > 3 {
		t.Errorf("%d cases, %d of them exempt", cases, len(exempt))
	}
	allowed := 0
	for _, r := range l.completed() {
		if r.Verdict == "allow" && r.Request.Protocol == "h2" && strings.HasPrefix(r.Request.Host, "localhost") {
			allowed++
		}
	}
	if allowed < 20 {
		t.Errorf("%d requests went through", allowed)
	}
}
