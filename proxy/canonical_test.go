package proxy

import (
	"slices"
	"strings"
	"testing"
)

func TestCanonicalHost(t *testing.T) {
	good := []struct {
		in, out string
		literal bool
	}{
		{"api.allowed.test", "api.allowed.test", false},
		{"API.Allowed.TEST", "api.allowed.test", false},  // F002
		{"api.allowed.test.", "api.allowed.test", false}, // F001
		{"LocalHost", "localhost", false},                // F002
		{"bücher.test", "xn--bcher-kva.test", false},     // F020
		{"xn--bcher-kva.test", "xn--bcher-kva.test", false},
		{"api。allowed。test", "api.allowed.test", false}, // F020
		{"r3---sn-abc.video.test", "r3---sn-abc.video.test", false},
		{"3.test", "3.test", false},
		{"0xab.test", "0xab.test", false},
		{"10.1.2.3", "10.1.2.3", true},
		{"[::1]", "::1", true},
		{"[2001:DB8::1]", "2001:db8::1", true},
		{"[::ffff:127.0.0.1]", "127.0.0.1", true}, // F004
		{"[::ffff:a9fe:a9fe]", "169.254.169.254", true},
	}
	for _, c := range good {
		got, literal, err := canonicalHost(c.in)
		if err != nil || got != c.out || literal != c.literal {
			t.Errorf("%q: %q %v %v", c.in, got, literal, err)
		}
	}
	bad := []string{
		"", ".", "..", "evil.test..", "a..b", ".a", // F001
		"0x7f.1", "127.1", "2130706433", "0", "017700000001", "127.0.0.01", "0x7f000001", "1.2.3.4.5", "127.0.0.1.", "foo.0x1", // F003, F007
		"::1", "[::1%25eth0]", "[::1%eth0]", "[fe80::1%25.allowed.test]", "[127.0.0.1]", "[::1", "::1]", // F019
		"api%2eallowed.test", "a\x00b.test", "a b.test", "a/b", "a@b.test", "a\\b", "a_b.test", "а\u200dpi.test", // F018, F020
		"127。0。0。1", "１２７.0.0.1", "-a.test", "a-.test", "xn--a.test",
		strings.Repeat("a", 64) + ".test", strings.Repeat("abcdefgh.", 32) + "test",
	}
	for _, in := range bad {
		if got, _, err := canonicalHost(in); err == nil {
			t.Errorf("%q was taken as %q", in, got)
		}
	}
	// A Cyrillic look-alike is another name, visibly so (F020).
	if got, _, err := canonicalHost("аpi.allowed.test"); err == nil && !strings.HasPrefix(got, "xn--") {
		t.Errorf("look-alike became %q", got)
	}
}

func TestParseAuthorityPorts_F017(t *testing.T) {
	for _, in := range []string{
		"api.allowed.test:65979", "api.allowed.test:-1", "api.allowed.test:+443", "api.allowed.test:0443", "api.allowed.test:https",
		"api.allowed.test:", "api.allowed.test:0", "api.allowed.test:65536", "api.allowed.test:4 3", "[::1]443", "[::1]:", "a:1:2",
		"name:pass@internal.test:443", "api.allowed.test@evil.test:443",
	} {
		if a, err := parseAuthority(in, 443); err == nil {
			t.Errorf("%q was taken as %v", in, a)
		}
	}
	for in, want := range map[string]authority{
		"api.allowed.test:65535": {"api.allowed.test", 65535, false, true},
		"api.allowed.test":       {"api.allowed.test", 443, false, false},
		"[::1]:8443":             {"::1", 8443, true, true},
		"[::1]":                  {"::1", 443, true, false},
	} {
		if a, err := parseAuthority(in, 443); err != nil || a != want {
			t.Errorf("%q: %v %v", in, a, err)
		}
	}
	if _, err := parseAuthority("api.allowed.test", 0); err == nil {
		t.Error("a port was guessed")
	}
}

func TestHostFieldKeepsThePortAsStated_F043(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"a.test", "a.test"}, {"a.test:443", "a.test:443"}, {"a.test:8443", "a.test:8443"}, {"[::1]", "[::1]"}, {"[::1]:8443", "[::1]:8443"},
	} {
		a, err := parseAuthority(c.in, 443)
		if err != nil || a.field("https") != c.want {
			t.Errorf("%q: %q %v", c.in, a.field("https"), err)
		}
	}
}

func TestParseTargetRefuses(t *testing.T) {
	for _, in := range []string{
		"/public/../secret", "/public/./../secret", "/public/..", "/.", "/..", "/./a", // F031
		"/public/%2e%2e/secret", "/public/%2E./secret", "/public/.%2e", "/%2e", "/a%2f..%2fb", "/a/%2e%2e%2fb", // F032
		"/public/%252e%252e/secret", "/a/%25252e%25252e/b", "/%c0%ae%c0%ae/x", "/a%c0%afb", "/%e0%80%ae/x",
		"/public/..;/secret", "/public;x=1/../secret", "//secret", "/public//..//secret", "/a//b", "/a/..;x=1", "/a/;..", "/a/.;/b", "/a/..%3b/b", // F033
		"/a\\b", "/a%5cb", "/a%5Cb", "/a%255cb", "/a%00b", "/a%2500b" + "/..", // backslash and NUL
		"/a%", "/a%2", "/a%zz", "/a#b", "*", "", "a/b", "api.allowed.test:443", "http:/x", // form
		"http://u:p@plain.allowed.test/", "http://plain.allowed.test@evil.test/", // F018
	} {
		if tgt, err := parseTarget(in); err == nil {
			t.Errorf("%q was taken as %+v", in, tgt)
		}
	}
}

func TestParseTargetKeepsTheBytes_F034_F041(t *testing.T) {
	for _, c := range []struct {
		in       string
		segments []string
		slash    bool
	}{
		{"/", nil, false},
		{"/a/b", []string{"a", "b"}, false},
		{"/a/", []string{"a", ""}, false},
		{"/o/dir%2Fname?alt=media", []string{"o", "dir/name"}, true},
		{"/a%20b+c%3Bd;e=1", []string{"a b+c;d;e=1"}, false},
		{"/a.b/..c/...", []string{"a.b", "..c", "..."}, false},
		{"/v1?x=1&x=2&%61=b;c", []string{"v1"}, false},
		{"/v1?", []string{"v1"}, false},
		{"/v1?a=/../x//y", []string{"v1"}, false},
		{"/100%25", []string{"100%"}, false},
	} {
		tgt, err := parseTarget(c.in)
		if err != nil || tgt.uri() != c.in || !slices.Equal(tgt.segments, c.segments) || tgt.encodedSlash != c.slash {
			t.Errorf("%q: %+v %v", c.in, tgt, err)
		}
	}
	abs, err := parseTarget("HTTP://Plain.Allowed.Test:80?x=1")
	if err != nil || abs.scheme != "http" || abs.authority != "Plain.Allowed.Test:80" || abs.uri() != "/?x=1" {
		t.Errorf("absolute form: %+v %v", abs, err)
	}
}

func TestParseQueryGivesEveryValueInOrder_F041(t *testing.T) {
	q := parseQuery("x=1&x=2&%61=b;c&d+e=f%20g&bad=%zz&k")
	if !slices.Equal(q["x"], []string{"1", "2"}) || q["a"][0] != "b;c" || q["d e"][0] != "f g" || q["bad"][0] != "%zz" || len(q["k"]) != 1 {
		t.Errorf("%v", q)
	}
}

func TestKnownMethodIsCaseSensitive_F037(t *testing.T) {
	for _, m := range []string{"get", "Get", "TRACE", "CONNECT", "FOO", "", "GET ", strings.Repeat("A", 8192)} {
		if knownMethod(m) {
			t.Errorf("%.20q is known", m)
		}
	}
	if !knownMethod("GET") || !knownMethod("PROPFIND") {
		t.Error("GET or PROPFIND is not known")
	}
}

func FuzzCanonicalHost(f *testing.F) {
	for _, s := range []string{"api.allowed.test", "API.test.", "[::ffff:1.2.3.4]", "127.1", "xn--bcher-kva.test", "a。b", "0x7f.1", "[::1%25a]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		host, literal, err := canonicalHost(s)
		if err != nil {
			return
		}
		again := host
		if literal && strings.Contains(host, ":") {
			again = "[" + host + "]"
		}
		h2, l2, err := canonicalHost(again)
		if err != nil || h2 != host || l2 != literal {
			t.Fatalf("%q became %q and then %q (%v, %v)", s, host, h2, l2, err)
		}
		if strings.ContainsAny(host, "%@/\\ \t\r\n\x00") || strings.ToLower(host) != host || strings.HasSuffix(host, ".") {
			t.Fatalf("%q became %q", s, host)
		}
	})
}

func FuzzParseTarget(f *testing.F) {
	for _, s := range []string{"/a/b?c=d", "http://h/x", "/a%2fb", "/..;/", "/%2e%2e/", "*", "//x", "/%252e"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		tgt, err := parseTarget(s)
		if err != nil {
			return
		}
		if tgt.scheme == "" && tgt.uri() != s {
			t.Fatalf("%q is sent as %q", s, tgt.uri())
		}
		for _, seg := range tgt.segments {
			for part := range strings.SplitSeq(seg, "/") {
				if part == "." || part == ".." {
					t.Fatalf("%q has a dot segment after decoding: %q", s, tgt.segments)
				}
			}
			if strings.ContainsAny(seg, "\\\x00") {
				t.Fatalf("%q has %q", s, seg)
			}
		}
		if again, err := parseTarget(tgt.uri()); err != nil || again.path != tgt.path || again.query != tgt.query {
			t.Fatalf("%q: not stable: %+v %v", s, again, err)
		}
	})
}
