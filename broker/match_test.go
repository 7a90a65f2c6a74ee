package broker

import (
	"strings"
	"testing"
	"time"
)

func TestMatchHost_F013(t *testing.T) {
	for _, c := range []struct {
		pattern, host string
		port          int
		want          bool
	}{
		{"api.github.com", "api.github.com", 443, true},
		{"API.GitHub.com", "api.github.com", 443, true},
		{"api.github.com", "api.github.com", 8443, false},
		{"api.github.com", "api.github.com", 80, false},
		{"api.github.com", "api.github.com", 0, false},
		{"api.github.com", "xapi.github.com", 443, false},
		{"api.github.com", "api.github.com.evil.test", 443, false},
		{"api.github.com", "", 443, false},
		{"", "", 443, false},
		{"api.github.com:8443", "api.github.com", 8443, true},
		{"api.github.com:8443", "api.github.com", 443, false},
		{"*.example.com", "a.example.com", 443, true},
		{"*.example.com", "example.com", 443, false},
		{"*.example.com", "a.b.example.com", 443, false},
		{"*.example.com", ".example.com", 443, false},
		{"*.example.com", "aexample.com", 443, false},
		{"*.example.com", "a.example.com.evil.test", 443, false},
		{"*.example.com", "10.1.2.3", 443, false},
		{"a.*.example.com", "a.b.example.com", 443, true},
		{"*.*.example.com", "a.b.example.com", 443, true},
		{"*.2.3.4", "1.2.3.4", 443, false},
		{"10.1.2.3:8443", "10.1.2.3", 8443, true},
		{"10.1.2.3", "10.1.2.30", 443, false},
		{"[fd00::1]", "fd00::1", 443, true},
		{"[fd00:0::1]:8443", "fd00::1", 8443, true},
		{"fd00::1", "fd00::1", 443, false},
		{"*", "localhost", 443, false},
		{"**", "a.example.com", 443, false},
		{"*.com", "evil.com", 443, false},
		{"api.github.com:0", "api.github.com", 0, false},
		{"api.github.com:", "api.github.com", 443, false},
	} {
		if got := MatchHost(c.pattern, c.host, c.port); got != c.want {
			t.Errorf("MatchHost(%q, %q, %d) = %v", c.pattern, c.host, c.port, got)
		}
	}
}

func TestMatchMethod(t *testing.T) {
	for _, c := range []struct {
		pattern, method string
		want            bool
	}{
		{"GET", "GET", true},
		{"GET", "HEAD", true},
		{"HEAD", "GET", false},
		{"GET", "POST", false},
		{"GET", "get", false},
		{"POST", "POST", true},
		{"", "", false},
		{"GET", "", false},
	} {
		if got := MatchMethod(c.pattern, c.method); got != c.want {
			t.Errorf("MatchMethod(%q, %q) = %v", c.pattern, c.method, got)
		}
	}
}

func TestMatchPath_F040(t *testing.T) {
	for _, c := range []struct {
		pattern, path string
		want          bool
	}{
		{"/user", "/user", true},
		{"/user", "/user/", false},
		{"/user", "/users", false},
		{"/user", "/USER", false},
		{"/user", "", false},
		{"/user", "user", false},
		{"/", "/", true},
		{"/", "", false},
		{"/", "*", false},
		{"/**", "/", true},
		{"/**", "/a/b", true},
		{"/**", "*", false},
		{"/repos/*/issues", "/repos/acme/issues", true},
		{"/repos/*/issues", "/repos//issues", false},
		{"/repos/*/issues", "/repos/a/b/issues", false},
		{"/repos/*/issues", "/repos/a%2Fb/issues", false},
		{"/repos/*", "/repos/", false},
		{"/repos/**", "/repos", true},
		{"/repos/**", "/repos/", true},
		{"/repos/**", "/repos/a/b", true},
		{"/repos/**", "/repos/a%2Fb", true},
		{"/repos/**", "/reposx", false},
		{"/repos/**", "/repos/../admin", false},
		{"/repos/**", "/repos/%2e%2E/admin", false},
		{"/repos/**", "/repos/..%2fadmin", false},
		{"/repos/**", "/repos/x%2f..%2fadmin", false},
		{"/repos/**", "/repos/..;x=1/admin", false},
		{"/repos/**", "/repos/.", false},
		{"/repos/**", "/repos/..x", true},
		{"/repos/**", `/repos/\admin`, false},
		{"/repos/**", "/repos/%5cadmin", false},
		{"/repos/**", "/repos/%00", false},
		{"/repos/**", "/repos/%zz", false},
		{"/repos/acme", "/repos/%61cme", true},
		{"/caf%C3%A9", "/caf%c3%a9", true},
		{"/a/**/z", "/a/z", true},
		{"/a/**/z", "/a/b/c/z", true},
		{"/a/**/z", "/a/b/c", false},
		{"/a/**/m/**/z", "/a/1/m/2/m/z", true},
		{"/a/**/m/*/z", "/a/m/1/m/2/z", true},
		{"a", "a", false},
		{"", "", false},
	} {
		if got := MatchPath(c.pattern, c.path); got != c.want {
			t.Errorf("MatchPath(%q, %q) = %v", c.pattern, c.path, got)
		}
	}
}

func TestMatchPathTakesNoMoreThanQuadraticTime(t *testing.T) {
	long := "/" + strings.Repeat("a/", 20_000) + "b"
	done := make(chan bool, 1)
	go func() { done <- MatchPath("/**/a/**/a/**/a/**/a/**/c", long) }()
	select {
	case got := <-done:
		if got {
			t.Fatal("matched")
		}
	case <-time.After(time.Minute):
		t.Fatal("a long path holds the matcher up")
	}
}

func TestZeroBindingAndTargetAreRefused(t *testing.T) {
	host := []hostPattern{{"a.test", 443}}
	good := Target{Scheme: "https", Host: "a.test", Port: 443, Method: "GET", Path: "/"}
	for name, c := range map[string]struct {
		b    binding
		t    Target
		want string
	}{
		"zero binding":  {binding{}, good, "host or port"},
		"zero target":   {binding{hosts: host}, Target{}, "host or port"},
		"no method":     {binding{hosts: host}, Target{Host: "a.test", Port: 443, Path: "/"}, "method"},
		"no methods":    {binding{hosts: host, methods: &[]string{}}, good, "method"},
		"no paths":      {binding{hosts: host, paths: &[]string{}}, good, "path"},
		"nil: any":      {binding{hosts: host}, good, ""},
		"another path":  {binding{hosts: host, paths: &[]string{"/x"}}, good, "path"},
		"GET is a HEAD": {binding{hosts: host, methods: &[]string{"GET"}}, Target{Host: "a.test", Port: 443, Method: "HEAD", Path: "/"}, ""},
	} {
		if got := c.b.refuses(c.t); got != c.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func FuzzMatchPath(f *testing.F) {
	f.Add("/a/**", "/a/b%2f..")
	f.Fuzz(func(t *testing.T, pattern, path string) {
		if !MatchPath(pattern, path) {
			return
		}
		low := strings.ToLower(path)
		for _, bad := range []string{"/../", "/./", "%2e%2e/", "/..%2f", "\\", "%5c", "%00", "/..;"} {
			if strings.Contains(low+"/", bad) && !strings.Contains(bad, "%2e%2e/") {
				t.Fatalf("%q matches %q", pattern, path)
			}
		}
	})
}
