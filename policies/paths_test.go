package policies

import (
	"strings"
	"testing"
	"unicode/utf8"
)

const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// What a path says, as JSON; "" is absent, "?" unparsed.
func TestPathsOfRegistriesAndPackageManagers(t *testing.T) {
	for part, tests := range map[part][][3]string{
		partOCI: {
			{"GET", "/v2/", `{"action": "pull", "kind": "base"}`},
			{"GET", "/v2", `{"action": "pull", "kind": "base"}`},
			{"GET", "/v2/_catalog", `{"action": "list", "kind": "catalog"}`},
			{"GET", "/v2/acme/app/tags/list", `{"action": "list", "kind": "tags", "repository": "acme/app"}`},
			{"HEAD", "/v2/acme/app/manifests/v1.0", `{"action": "pull", "kind": "manifest", "repository": "acme/app", "reference": "v1.0"}`},
			{"PUT", "/v2/app/manifests/latest", `{"action": "push", "kind": "manifest", "repository": "app", "reference": "latest"}`},
			{"DELETE", "/v2/app/manifests/" + digest, `{"action": "delete", "kind": "manifest", "repository": "app", "reference": "` + digest + `"}`},
			{"GET", "/v2/app/blobs/" + digest, `{"action": "pull", "kind": "blob", "repository": "app", "reference": "` + digest + `"}`},
			{"GET", "/v2/app/referrers/" + digest, `{"action": "list", "kind": "referrers", "repository": "app", "reference": "` + digest + `"}`},
			{"POST", "/v2/app/blobs/uploads/", `{"action": "push", "kind": "upload", "repository": "app"}`},
			{"POST", "/v2/app/blobs/uploads/?mount=x&from=secret/base", `{"action": "push", "kind": "upload", "repository": "app", "from": "secret/base"}`},
			{"POST", "/v2/app/blobs/uploads/?from=a&from=b", "?"},
			{"PATCH", "/v2/app/blobs/uploads/0-1_2=", `{"action": "push", "kind": "upload", "repository": "app"}`},
			// Words of the protocol inside of a name: the last ones count.
			{"GET", "/v2/a/blobs/manifests/latest", `{"action": "pull", "kind": "manifest", "repository": "a/blobs", "reference": "latest"}`},
			{"GET", "/v2/Acme/tags/list", "?"},
			{"GET", "/v2/app/manifests/latest/", "?"},
			{"GET", "/v2/%61pp/manifests/latest", "?"},
			{"PATCH", "/v2/app/manifests/latest", "?"},
			{"PATCH", "/v2/app/blobs/uploads/x%2F..%2Fy", "?"},
			{"GET", "/v2/app/blobs/latest", "?"},
			{"GET", "/v2/chat", "?"},
			{"GET", "/v1/app", ""},
		},
		partNPM: {
			{"GET", "/left-pad", `{"action": "metadata", "name": "left-pad"}`},
			{"GET", "/@acme%2fapp", `{"action": "metadata", "name": "@acme/app"}`},
			{"GET", "/@acme/app", `{"action": "metadata", "name": "@acme/app"}`},
			{"GET", "/left-pad/1.3.0", `{"action": "metadata", "name": "left-pad", "version": "1.3.0"}`},
			{"GET", "/left-pad/-/left-pad-1.3.0.tgz", `{"action": "download", "name": "left-pad", "version": "1.3.0"}`},
			{"GET", "/@acme/app/-/app-1.0.0-rc.1.tgz", `{"action": "download", "name": "@acme/app", "version": "1.0.0-rc.1"}`},
			{"PUT", "/left-pad", `{"action": "publish", "name": "left-pad"}`},
			{"DELETE", "/left-pad/-/left-pad-1.3.0.tgz/-rev/1", `{"action": "publish", "name": "left-pad"}`},
			{"POST", "/-/npm/v1/security/advisories/bulk", `{"action": "service"}`},
			{"GET", "/left-pad/-/right-pad-1.3.0.tgz", "?"},
			{"GET", "/left-pad/-/left-pad-.tgz", "?"},
			{"POST", "/left-pad", "?"},
			{"GET", "/a%2fb", "?"},
			{"GET", "/@acme", "?"},
			{"GET", "/", "?"},
		},
		partPyPI: {
			{"GET", "/simple/", `{"action": "list"}`},
			{"GET", "/simple/Flask_SQLAlchemy/", `{"action": "metadata", "name": "flask-sqlalchemy"}`},
			{"GET", "/pypi/requests/json", `{"action": "metadata", "name": "requests"}`},
			{"GET", "/pypi/requests/2.0/json", `{"action": "metadata", "name": "requests", "version": "2.0"}`},
			{"GET", "/packages/ab/cd/ef/Foo_Bar-1.0-py3-none-any.whl", `{"action": "download", "name": "foo-bar", "version": "1.0", "file": "Foo_Bar-1.0-py3-none-any.whl"}`},
			{"GET", "/packages/ab/cd/ef/foo-bar-1.0.tar.gz.metadata", `{"action": "download", "name": "foo-bar", "version": "1.0", "file": "foo-bar-1.0.tar.gz.metadata"}`},
			{"POST", "/legacy/", `{"action": "publish"}`},
			{"POST", "/simple/x/", "?"},
			{"GET", "/simple/-x-/", "?"},
			{"GET", "/packages/ab/cd/x.whl", "?"},
			{"GET", "/packages/ab/cd/readme", "?"},
			{"GET", "/other", ""},
		},
		partGolang: {
			{"GET", "/github.com/!azure/sdk/@v/list", `{"action": "list", "module": "github.com/Azure/sdk"}`},
			{"GET", "/github.com/x/y/@latest", `{"action": "latest", "module": "github.com/x/y"}`},
			{"GET", "/github.com/x/y/@v/v1.2.3.zip", `{"action": "zip", "module": "github.com/x/y", "version": "v1.2.3"}`},
			{"GET", "/github.com/x/y/@v/v1.2.3-!r!c.mod", `{"action": "mod", "module": "github.com/x/y", "version": "v1.2.3-RC"}`},
			{"GET", "/sumdb/sum.golang.org/lookup/x@v1", `{"action": "checksums"}`},
			{"GET", "/github.com/Azure/sdk/@v/list", "?"}, // upper case has to be escaped
			{"GET", "/github.com/!!x/@v/list", "?"},
			{"GET", "/github.com/%78/@v/list", "?"},
			{"GET", "/x/@v/v1.exe", "?"},
			{"GET", "/x/@v/y/@v/list", "?"},
			{"PUT", "/x/@v/list", "?"},
			{"GET", "/github.com/x/y", ""},
		},
		partDebian: {
			{"GET", "/debian/dists/bookworm/InRelease", `{"action": "index", "suite": "bookworm", "file": "InRelease"}`},
			{"GET", "/debian/dists/bookworm/main/binary-amd64/Packages.xz", `{"action": "index", "suite": "bookworm", "file": "main/binary-amd64/Packages.xz"}`},
			{"GET", "/debian/pool/main/h/hello/hello_2.10-3_amd64.deb", `{"action": "download", "component": "main", "source": "hello", "package": "hello", "version": "2.10-3", "architecture": "amd64", "file": "hello_2.10-3_amd64.deb"}`},
			{"GET", "/debian/pool/main/libx/libxml2/libxml2_2.9_amd64.deb", `{"action": "download", "component": "main", "source": "libxml2", "package": "libxml2", "version": "2.9", "architecture": "amd64", "file": "libxml2_2.9_amd64.deb"}`},
			{"GET", "/debian/pool/main/h/hello/hello_2.10.orig.tar.gz", `{"action": "download", "component": "main", "source": "hello", "file": "hello_2.10.orig.tar.gz"}`},
			{"GET", "/debian/pool/main/e/hello/hello_2.10-3_amd64.deb", "?"}, // not where it belongs
			{"GET", "/debian/pool/dists/h/hello/x.deb", "?"},
			{"GET", "/debian/pool/main/h/hello/hello.deb", "?"},
			{"POST", "/debian/dists/bookworm/InRelease", "?"},
			{"GET", "/debian/", ""},
		},
	} {
		for _, tt := range tests {
			path, query, _ := strings.Cut(tt[1], "?")
			in := &Input{}
			pathOf(path)(in)
			in.Request.Method, in.Request.Query = tt[0], map[string][]string{}
			for pair := range strings.SplitSeq(query, "&") {
				k, v, _ := strings.Cut(pair, "=")
				in.Request.Query[k] = append(in.Request.Query[k], v)
			}
			t.Run(tt[0]+" "+tt[1], func(t *testing.T) { wantPart(t, *parseParts(&in.Request, part).ofPath(part), tt[2]) })
		}
	}
}

// A rule about a package is guarded, needs no body, and is cached by what it reads.
func TestRulesAboutPathsAreGuardedAndCached(t *testing.T) {
	e := load(t, anyAllow+"deny contains {\"rule\": \"no-lodash\"} if {\n\tinput.request.host == \"registry.test\"\n\tinput.request.npm.name == \"lodash\"\n}\n")
	if e.Needs().Body || e.cache == nil {
		t.Errorf("%+v, cache %v", e.Needs(), e.cache != nil)
	}
	registry := host("registry.test")
	for range 2 {
		want(t, decide(t, e, registry, pathOf("/left-pad")), Allow, "")
		want(t, decide(t, e, registry, pathOf("/lodash/-/lodash-4.17.21.tgz")), Deny, ReasonDenied)
		want(t, decide(t, e, registry, pathOf("/lodash/-/LODASH-4.tgz")), Deny, ReasonDenied) // nobody knows what it is
		want(t, decide(t, e, pathOf("/lodash/-/LODASH-4.tgz")), Allow, "")                    // of another host
	}
	if n := e.cache.len(); n != 4 {
		t.Errorf("%d decisions kept", n)
	}
}

func FuzzPaths(f *testing.F) {
	for _, s := range []string{"/v2/a/manifests/b", "/@a%2fb", "/simple/x/", "/packages/a/b/c-1-2-3-4.whl", "/a/@v/v1.zip", "/x/pool/main/l/libx/libx_1_all.deb"} {
		f.Add("GET", s, "from")
	}
	f.Fuzz(func(t *testing.T, method, path, from string) {
		in := &Input{}
		if !strings.HasPrefix(path, "/") || !utf8.ValidString(path) {
			return
		}
		pathOf(path)(in)
		in.Request.Method, in.Request.Query = method, map[string][]string{"from": {from}}
		b := parseParts(&in.Request, ofPath|partGRPC|partGit)
		if b.npm == nil {
			t.Error("npm is absent")
		}
		again := parseParts(&in.Request, ofPath|partGRPC|partGit)
		for p := range pathParsers {
			one, two := *b.ofPath(p), *again.ofPath(p)
			if (one == nil) != (two == nil) || one != nil && !one.Equal(two) {
				t.Errorf("%v and %v", one, two)
			}
		}
	})
}
