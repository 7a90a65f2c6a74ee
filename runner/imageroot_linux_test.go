package runner

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"warder/runner/image"
)

const testCA = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"

// upperOf plans the root of an image with these files and returns what is laid over it.
func upperOf(t *testing.T, cwd string, env []string, files map[string]string) (rootPlan, map[string]*tar.Header, map[string]string) {
	t.Helper()
	dir := t.TempDir()
	for name, data := range files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if target, ok := strings.CutPrefix(data, "-> "); ok {
			if err := os.Symlink(target, p); err != nil {
				t.Fatal(err)
			}
			continue
		}
		write(t, p, data, 0o644)
	}
	plan, err := imageRoot(&image.Image{Ref: "test", Root: dir, Config: image.Config{Env: env}}, newTrust([]byte(testCA), nil), owner{taskUID, taskUID}, cwd)
	if err != nil {
		t.Fatal(err)
	}
	headers, content := readUpper(t, plan.Upper)
	return plan, headers, content
}

// readUpper reads what is laid over an image, by absolute names.
func readUpper(t *testing.T, archive []byte) (headers map[string]*tar.Header, content map[string]string) {
	t.Helper()
	headers, content = map[string]*tar.Header{}, map[string]string{}
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return headers, content
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(strings.TrimPrefix(h.Name, "."), "/")
		headers[name], content[name] = h, string(b)
	}
}

func TestWhatIsLaidOverAnImage(t *testing.T) {
	plan, headers, content := upperOf(t, "/srv/app", []string{"JAVA_HOME=/opt/java"}, map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/ash\nme:x:1000:1000::/home/me:/bin/ash", "etc/group": "wheel:x:10:\n",
		"etc/resolv.conf": "-> ../run/resolv.conf", "etc/ssl/cert.pem": "theirs", "etc/pki/tls/certs/ca-bundle.crt": "theirs",
		"home/me/.profile": "", "opt/java/lib/security/cacerts": "theirs", "usr/bin/sh": "",
	})
	for name, want := range map[string]string{
		"/etc/passwd": "root:x:0:0:root:/root:/bin/ash\nme:x:1000:1000::/home/me:/bin/ash\n",
		"/etc/group":  "wheel:x:10:\nroot:x:0:\ntask:x:1000:\n", "/etc/resolv.conf": resolvFile, "/etc/hosts": hostsFile, "/etc/hostname": hostnameFile,
		caBundlePath: testCA, caOnlyPath: testCA, "/etc/ssl/cert.pem": testCA, "/etc/pki/tls/certs/ca-bundle.crt": testCA,
	} {
		if content[name] != want || headers[name] == nil {
			t.Errorf("%s: %q, want %q", name, content[name], want)
		}
	}
	for _, absent := range []string{"/etc/pki/tls/cert.pem", "/etc/ssl/ca-bundle.pem", "/usr", "/srv", "/opt/java/jre/lib/security/cacerts"} {
		if absent != "/srv" && headers[absent] != nil {
			t.Errorf("%s is laid over what the image does not have", absent)
		}
	}
	if h := headers["/srv/app"]; h == nil || h.Uid != taskUID || h.Typeflag != tar.TypeDir {
		t.Errorf("working directory: %+v", h)
	}
	for name, mode := range map[string]int64{"/root": 0o700, "/var/tmp": 0o1777, "/home": 0o755, "/etc": 0o755, "": 0o755} {
		if h := headers[name]; h == nil || h.Mode != mode || h.Uid != 0 {
			t.Errorf("folder %q: %+v", name, h)
		}
	}
	var tops []string
	for _, d := range plan.Dirs {
		tops = append(tops, strings.TrimPrefix(d.Path, "/"))
	}
	if !slices.Equal(tops, ownTops) {
		t.Errorf("mount points %v", tops)
	}
}

// F117: a link of the image never decides where something of ours lands.
func TestLinksOfAnImageAreNotFollowed_F117(t *testing.T) {
	_, headers, content := upperOf(t, "/app/work", nil, map[string]string{
		"etc/passwd": "-> /proc/self/environ", "etc/ssl/certs": "-> /usr/share/certs", "usr/share/certs/x": "", "app": "-> /usr",
		"etc/pki/tls/certs": "-> ../../ssl/certs", "tmp": "-> /usr", "workspace": "-> /etc",
	})
	if content["/etc/passwd"] != "root:x:0:0:root:/root:/bin/sh\ntask:x:1000:1000:task:/workspace:/bin/sh\n" {
		t.Errorf("passwd: %q", content["/etc/passwd"])
	}
	if h := headers["/etc/ssl/certs"]; h == nil || h.Typeflag != tar.TypeDir || content[caBundlePath] != testCA {
		t.Errorf("the bundle is not at its place: %+v", h)
	}
	for _, name := range []string{"/app", "/app/work", "/etc/pki/tls/certs/ca-bundle.crt", "/tmp", "/workspace", "/usr"} {
		if headers[name] != nil {
			t.Errorf("%s was laid over a link", name)
		}
	}
}

func TestImageCommand(t *testing.T) {
	none, other := "", "/bin/other"
	for _, tc := range []struct {
		name        string
		entry, cmd  []string
		ours        *string
		argv, wants []string
	}{
		{"the image's own", []string{"e"}, []string{"c"}, nil, nil, []string{"e", "c"}},
		{"words of the caller", []string{"e"}, []string{"c"}, nil, []string{"a"}, []string{"e", "a"}},
		{"no entry point", nil, []string{"c"}, nil, nil, []string{"c"}},
		{"another entry point", []string{"e"}, []string{"c"}, &other, []string{"a"}, []string{"/bin/other", "a"}},
		{"another entry point alone", []string{"e"}, []string{"c"}, &other, nil, []string{"/bin/other"}},
		{"entry point taken away", []string{"e"}, []string{"c"}, &none, []string{"a"}, []string{"a"}},
		{"nothing at all", nil, nil, nil, nil, nil},
	} {
		if got := imageCommand(tc.entry, tc.cmd, tc.ours, tc.argv); !slices.Equal(got, tc.wants) {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.wants)
		}
	}
}
