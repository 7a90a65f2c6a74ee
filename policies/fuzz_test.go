package policies

import (
	"bytes"
	"compress/gzip"
	"context"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/open-policy-agent/opa/v1/ast"
)

// FuzzForm: what is parsed is UTF-8, and nothing is lost or made up.
func FuzzForm(f *testing.F) {
	for _, s := range []string{"a=1&a=2&b=%20", "a", "=", "&&", "a=%zz", "a;b", "%C3%28=1", "a=1+1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		term := parseForm(s)
		if term == nil {
			return
		}
		values := 0
		object := term.Value.(ast.Object)
		object.Foreach(func(k, v *ast.Term) {
			v.Value.(*ast.Array).Foreach(func(v *ast.Term) {
				values++
				if !utf8.ValidString(string(v.Value.(ast.String))) || !utf8.ValidString(string(k.Value.(ast.String))) {
					t.Errorf("%q: not UTF-8", s)
				}
			})
		})
		pairs := 0
		for part := range strings.SplitSeq(s, "&") {
			if part != "" {
				pairs++
			}
		}
		if values != pairs || strings.Contains(s, ";") {
			t.Errorf("%q: %d values of %d pairs", s, values, pairs)
		}
	})
}

// FuzzGRPC: service and method are those of the path, or it is unparsed.
func FuzzGRPC(f *testing.F) {
	f.Add("POST", "/a.B/C", "application/grpc+proto")
	f.Add("GET", "/a.B/%43", "application/grpc; x")
	f.Add("POST", "A/A", "AppliCAtion/grpC")
	f.Fuzz(func(t *testing.T, method, path, contentType string) {
		term := parseGRPC(&Request{Method: method, Path: path, ContentType: contentType})
		if term == nil {
			return
		}
		object := term.Value.(ast.Object)
		if object.Get(keyUnparsed) != nil {
			return
		}
		service, _ := object.Get(keyService).Value.(ast.String)
		called, _ := object.Get(keyMethod).Value.(ast.String)
		if path != "/"+string(service)+"/"+string(called) || method != "POST" {
			t.Errorf("%s %q is read as %s of %s", method, path, called, service)
		}
	})
}

// FuzzRequest: all parsers over one request, then a decision of a policy that looks
// at all they make; whatever comes is judged without a fault.
func FuzzRequest(f *testing.F) {
	f.Add("POST", "/graphql", "application/json", `{"query": "{ a }"}`, "")
	f.Add("POST", "/a.git/git-receive-pack", "application/x-git-receive-pack-request", "0000", "gzip")
	f.Add("GET", "/v2/a/blobs/x", "application/x-www-form-urlencoded", "a=b", "")
	e := load(f, "package warder.egress\n\nallow contains {\"rule\": \"all\"} if true\n\ndeny contains {\"rule\": \"d\"} if walk(input, [_, \"nobody says this\"])\n")
	f.Fuzz(func(t *testing.T, method, path, contentType, body, coding string) {
		in := request(pathOf("/" + path))
		in.Request.Method, in.Request.ContentType = method, contentType
		in.Request.Headers = map[string][]string{"content-type": {contentType}, "content-encoding": {coding}}
		in.Request.Body, in.Request.BodyRead, in.Request.ContentLength = []byte(body), true, int64(len(body))
		if d := e.Decide(context.Background(), in); d.Reason == ReasonPolicyError {
			t.Fatalf("%+v", d)
		}
	})
}

// FuzzBundle: the files of an archive are altered, added and taken away; it never
// loads but as it was signed, and never panics.
func FuzzBundle(f *testing.F) {
	sign := newSigner(f)
	good := build(f, bundled, &sign)
	z, err := gzip.NewReader(bytes.NewReader(good))
	if err != nil {
		f.Fatal(err)
	}
	var plain bytes.Buffer
	if _, err := plain.ReadFrom(z); err != nil {
		f.Fatal(err)
	}
	f.Add(plain.Bytes())
	f.Add([]byte("no archive"))
	before, err := Load(Options{Dir: "b.tar.gz", Bundle: good, BundleKey: sign.key})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, archive []byte) {
		var out bytes.Buffer
		w := gzip.NewWriter(&out)
		if _, err := w.Write(archive); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		e, err := Load(Options{Dir: "b.tar.gz", Bundle: out.Bytes(), BundleKey: sign.key})
		if err == nil && e.Digest() != before.Digest() {
			t.Errorf("loads with digest %s", e.Digest())
		}
		if err != nil && !IsLoadError(err) {
			t.Errorf("%v", err)
		}
	})
}

// FuzzDocument: an input document is read as it stands or refused with a place.
func FuzzDocument(f *testing.F) {
	f.Add([]byte(`{"stage": "request", "request": {"host": "a"}, "credentials": ["c"]}`))
	f.Add([]byte(`{"stage": "request", "stage": "connection"}`))
	e := load(f, entries)
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := e.DecideDocument(context.Background(), b)
		if err == nil && d.Verdict == Allow && !bytes.Contains(b, []byte("credentials")) {
			t.Errorf("%q: %+v", b, d)
		}
	})
}
