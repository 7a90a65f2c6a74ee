package runner

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"warder/runner/image"
)

// ownTops are the top folders that are ours whatever an image has there: every
// mount point is a folder that we made, never something that an image chose.
var ownTops = []string{"dev", "out", "proc", "sys", "tmp", "workspace"}

// rootOwned are folders that root of the sandbox may write to, in the overlay,
// although the image's files belong to nobody who is mapped. /etc is among them
// because entries are put there anyway.
var rootOwned = []string{"/etc", "/home", "/opt", "/root", "/run", "/srv", "/var", "/var/cache", "/var/lib", "/var/log"}

// otherBundles are CA bundles of distributions besides those of the trust table.
var otherBundles = []string{"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/usr/share/ssl/certs/ca-bundle.crt", "/etc/ca-certificates/extracted/tls-ca-bundle.pem"}

const (
	aptConfig    = "/etc/apt/apt.conf.d/99warder"
	maxJavaHomes = 64 // looked at in each place
)

// maxPasswd bounds what is read of an image's account files, in bytes.
const maxPasswd = 1 << 20

// imageRoot plans a root file system out of an image: its tree, read-only, with
// what is ours laid over it inside the sandbox. Only gVisor resolves names in
// the image; here they are looked at without following a link.
func imageRoot(img *image.Image, t trust, o owner, cwd string) (rootPlan, error) {
	if !path.IsAbs(cwd) {
		cwd = path.Join("/workspace", cwd)
	}
	p := rootPlan{Image: img.Root, Erofs: img.Erofs}
	for _, d := range ownTops {
		mode := os.FileMode(0o755)
		if d == "tmp" {
			mode = 0o1777
		}
		p.Dirs = append(p.Dirs, planDir{"/" + d, mode})
	}
	if img.Erofs {
		var err error
		p.Upper, err = overErofs(t, o.uid, cwd)
		return p, err
	}
	root, err := os.OpenRoot(img.Root)
	if err != nil {
		return rootPlan{}, fmt.Errorf("image %s: %w", img.Ref, err)
	}
	defer root.Close()
	up := newUpper(root)
	for _, d := range rootOwned {
		if kindOf(root, d) == isDir {
			up.dir(d, 0o755, owner{})
		}
	}
	up.dir("/root", 0o700, owner{})
	up.dir("/var/tmp", 0o1777, owner{})
	passwd, group := accounts(o)
	up.file("/etc/passwd", withAccount(readSmall(root, "/etc/passwd"), o.uid, passwd))
	up.file("/etc/group", withAccount(readSmall(root, "/etc/group"), o.gid, group))
	up.names()
	up.trust(t, javaHome(img.Config.Env))
	up.apt()
	if top, _, _ := strings.Cut(strings.TrimPrefix(cwd, "/"), "/"); !slices.Contains(ownTops, top) && kindOf(root, cwd) == isMissing {
		up.dir(cwd, 0o755, o)
	}
	p.Upper, err = up.bytes()
	return p, err
}

// overErofs is what is laid over an EROFS image, which only gVisor reads: without
// a look at it, mount points and files of ours hide whatever is at their places.
// Owners are the image's, and so are its accounts.
func overErofs(t trust, uid uint32, cwd string) ([]byte, error) {
	up := newUpper(nil)
	for _, d := range ownTops {
		up.dir("/"+d, 0o755, owner{})
	}
	up.dir("/root", 0o700, owner{})
	up.dir("/var/tmp", 0o1777, owner{})
	up.names()
	up.apt()
	up.file(caOnlyPath, t.ca)
	for _, p := range slices.Concat([]string{caBundlePath}, otherBundles, slices.Sorted(maps.Keys(caBundleLinks))) {
		if strings.HasPrefix(p, "/etc/") && path.Base(p) != "cacerts" {
			up.file(p, t.bundle)
		}
	}
	if jks, err := javaTrustStore(t.bundle, time.Now()); err == nil {
		up.file(caJavaPath, jks)
		up.file("/etc/pki/java/cacerts", jks)
	}
	if top, _, _ := strings.Cut(strings.TrimPrefix(cwd, "/"), "/"); !slices.Contains(ownTops, top) && uid != 0 {
		return nil, fmt.Errorf("working directory %s: that of an EROFS image's task is below /workspace or /out; hint: --workdir", cwd)
	}
	return up.bytes()
}

// names lays the files over that say what is called how.
func (u *upper) names() {
	u.file("/etc/hosts", []byte(hostsFile))
	u.file("/etc/hostname", []byte(hostnameFile))
	u.file("/etc/resolv.conf", []byte(resolvFile))
}

// trust lays the run's CA over every store of authorities that the image has,
// and makes the two that the variables of the task name.
func (u *upper) trust(t trust, javaHome string) {
	u.file(caOnlyPath, t.ca)
	u.file(caBundlePath, t.bundle)
	stores := map[string][]byte{caBundlePath: t.bundle}
	if jks, err := javaTrustStore(t.bundle, time.Now()); err == nil {
		u.file(caJavaPath, jks)
		stores[caJavaPath] = jks
		for _, home := range append(u.javaHomes(), javaHome) {
			u.replace(path.Join(home, "lib/security/cacerts"), jks)
			u.replace(path.Join(home, "jre/lib/security/cacerts"), jks)
		}
	}
	for _, p := range otherBundles {
		u.replace(p, t.bundle)
	}
	for p, target := range caBundleLinks {
		u.replace(p, stores[path.Join(path.Dir(p), target)])
	}
}

// javaHomes are the installations of Java in the places of distributions and of
// the images of vendors, as far as no link leads there; at most maxJavaHomes.
func (u *upper) javaHomes() []string {
	var homes []string
	for _, parent := range []string{"/usr/lib/jvm", "/opt", "/opt/java"} {
		if kindOf(u.root, parent) != isDir {
			continue
		}
		d, err := u.root.Open(strings.TrimPrefix(parent, "/"))
		if err != nil {
			continue
		}
		names, err := d.Readdirnames(maxJavaHomes)
		d.Close()
		if err != nil {
			continue
		}
		slices.Sort(names)
		for _, n := range names {
			homes = append(homes, path.Join(parent, n))
		}
	}
	return homes
}

// apt keeps its downloads under the user that started it: no other id is there
// for it to change to, and it has nothing to drop (apt.conf(5), APT::Sandbox::User).
// Whether an EROFS image (no root to look at) has apt is not known.
func (u *upper) apt() {
	if u.root == nil || kindOf(u.root, path.Dir(aptConfig)) == isDir {
		u.file(aptConfig, []byte("APT::Sandbox::User \"root\";\n"))
	}
}

// replace lays a file over one that the image has.
func (u *upper) replace(p string, data []byte) {
	if data != nil && path.IsAbs(p) && kindOf(u.root, p) != isMissing && kindOf(u.root, path.Dir(p)) == isDir {
		u.file(p, data)
	}
}

func javaHome(env []string) string {
	for _, e := range env {
		if dir, ok := strings.CutPrefix(e, "JAVA_HOME="); ok {
			return path.Clean(dir)
		}
	}
	return ""
}

// What stands at a path of an image.
type pathKind int

const (
	isMissing pathKind = iota
	isDir
	isOther // a file, or reached through a link
)

func kindOf(root *os.Root, p string) pathKind {
	at := "."
	parts := strings.Split(strings.Trim(p, "/"), "/")
	for i, part := range parts {
		at = path.Join(at, part)
		fi, err := root.Lstat(at)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return isMissing
		case err != nil || !fi.IsDir():
			return isOther
		case i == len(parts)-1:
			return isDir
		}
	}
	return isDir
}

// readSmall returns a regular file of the image, nil when it is none.
func readSmall(root *os.Root, name string) []byte {
	f, err := root.OpenFile(strings.TrimPrefix(name, "/"), os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe must not hold us
	if err != nil {
		return nil
	}
	defer f.Close()
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() || fi.Size() > maxPasswd {
		return nil
	}
	b, err := io.ReadAll(io.LimitReader(f, maxPasswd))
	if err != nil {
		return nil
	}
	return b
}

// withAccount adds the lines for root and the task's id that an account file (passwd(5), group(5)) lacks.
func withAccount(have []byte, own uint32, ours string) []byte {
	ids := map[string]bool{}
	for line := range strings.Lines(string(have)) {
		if f := strings.SplitN(strings.TrimSpace(line), ":", 4); len(f) >= 3 {
			ids[f[2]] = true
		}
	}
	out := bytes.TrimRight(have, "\n")
	for line := range strings.Lines(ours) {
		id := strings.SplitN(line, ":", 4)[2]
		if ids[id] || id != "0" && id != strconv.FormatUint(uint64(own), 10) {
			continue
		}
		if len(out) > 0 {
			out = append(out, '\n')
		}
		out = append(out, strings.TrimRight(line, "\n")...)
	}
	return append(out, '\n')
}

// upper collects what is laid over an image: a tar archive that gVisor puts into
// the upper layer of the root's overlay.
type upper struct {
	root *os.Root
	dirs map[string]*tar.Header
	list []upperFile
}

type upperFile struct {
	name string
	data []byte
}

func newUpper(root *os.Root) *upper {
	return &upper{root: root, dirs: map[string]*tar.Header{"./": {Typeflag: tar.TypeDir, Name: "./", Mode: 0o755}}}
}

// dir adds a folder and the ones above it, which keep the image's content.
func (u *upper) dir(p string, mode int64, o owner) {
	if parent := path.Dir(p); parent != "/" {
		if _, ok := u.dirs["."+parent+"/"]; !ok {
			u.dir(parent, 0o755, owner{})
		}
	}
	name := "." + p + "/"
	u.dirs[name] = &tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: mode, Uid: int(o.uid), Gid: int(o.gid)}
}

func (u *upper) file(p string, data []byte) {
	if _, ok := u.dirs["."+path.Dir(p)+"/"]; !ok {
		u.dir(path.Dir(p), 0o755, owner{})
	}
	u.list = append(u.list, upperFile{"." + p, data})
}

func (u *upper) bytes() ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	names := make([]string, 0, len(u.dirs))
	for n := range u.dirs {
		names = append(names, n)
	}
	slices.Sort(names)
	for _, n := range names {
		if err := w.WriteHeader(u.dirs[n]); err != nil {
			return nil, err
		}
	}
	for _, f := range u.list {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: 0o644, Size: int64(len(f.data))}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}
