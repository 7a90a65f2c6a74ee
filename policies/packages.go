package policies

import (
	"net/http"
	"regexp"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
)

// Requests of package managers are told by their paths alone; which of them a host
// speaks is for the policy to say. What a path does not say without doubt is unparsed.

var (
	keyVersion      = ast.StringTerm("version")
	keyFile         = ast.StringTerm("file")
	keyModule       = ast.StringTerm("module")
	keySuite        = ast.StringTerm("suite")
	keyComponent    = ast.StringTerm("component")
	keySource       = ast.StringTerm("source")
	keyPackage      = ast.StringTerm("package")
	keyArchitecture = ast.StringTerm("architecture")
)

var (
	npmName     = regexp.MustCompile(`^(@[A-Za-z0-9~-][A-Za-z0-9._~-]*/)?[A-Za-z0-9~-][A-Za-z0-9._~-]*$`)
	version     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.+_~!:-]*$`)
	projectName = regexp.MustCompile(`^([A-Za-z0-9]|[A-Za-z0-9][A-Za-z0-9._-]*[A-Za-z0-9])$`)
	separators  = regexp.MustCompile(`[-_.]+`)
	debianName  = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]+$`)
	archiveFile = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.+_~!%-]*$`)
)

// said makes a part of names and values; empty values are left out.
func said(pairs ...any) *ast.Term {
	var members [][2]*ast.Term
	for i := 0; i+1 < len(pairs); i += 2 {
		if text := pairs[i+1].(string); text != "" {
			members = append(members, [2]*ast.Term{pairs[i].(*ast.Term), ast.StringTerm(text)})
		}
	}
	return ast.ObjectTerm(members...)
}

// readable reports whether the path is a short one of plain segments, none empty
// but for the last.
func readable(r *Request) bool {
	if len(r.Segments) == 0 || len(r.Segments) > 64 || len(r.Path) > 4096 {
		return false
	}
	for i, s := range r.Segments {
		if !isPlainText(s) || s == "" && i < len(r.Segments)-1 || s == "." || s == ".." {
			return false
		}
	}
	return true
}

func isRead(r *Request) bool { return r.Method == http.MethodGet || r.Method == http.MethodHead }

// parseNPM reads a request to an npm registry: /name, /@scope/name (also with %2F),
// /name/version, /name/-/name-1.0.0.tgz; what is below /-/ is a service.
func parseNPM(r *Request) *ast.Term {
	if !readable(r) {
		return unparsedPart()
	}
	parts := r.Segments
	if parts[0] == "-" {
		return said(keyAction, "service")
	}
	name := parts[0]
	parts = parts[1:]
	if strings.HasPrefix(name, "@") && !strings.Contains(name, "/") && len(parts) > 0 {
		name, parts = name+"/"+parts[0], parts[1:]
	}
	if len(name) > maxName || !npmName.MatchString(name) {
		return unparsedPart()
	}
	switch {
	case len(parts) == 0 && isRead(r):
		return said(keyAction, "metadata", keyName, name)
	case len(parts) == 0 && r.Method == http.MethodPut:
		return said(keyAction, "publish", keyName, name)
	case len(parts) == 1 && isRead(r) && version.MatchString(parts[0]):
		return said(keyAction, "metadata", keyName, name, keyVersion, parts[0])
	case len(parts) == 2 && parts[0] == "-" && isRead(r):
		_, bare, ok := cutLast(name)
		if !ok {
			bare = name
		}
		v, isTar := strings.CutSuffix(strings.TrimPrefix(parts[1], bare+"-"), ".tgz")
		if isTar && strings.HasPrefix(parts[1], bare+"-") && version.MatchString(v) {
			return said(keyAction, "download", keyName, name, keyVersion, v)
		}
	case len(parts) > 0 && (parts[0] == "-rev" || parts[0] == "-") && (r.Method == http.MethodPut || r.Method == http.MethodDelete):
		return said(keyAction, "publish", keyName, name)
	}
	return unparsedPart()
}

// parsePyPI reads a request to a Python index: /simple/project/ (PEP 503),
// /pypi/project[/version]/json, /packages/…/file, and uploads to /legacy/. Names are
// normalised as PEP 503 says. It returns nil for another path.
func parsePyPI(r *Request) *ast.Term {
	if len(r.Segments) == 0 {
		return nil
	}
	top := r.Segments[0]
	if top != "simple" && top != "pypi" && top != "packages" && top != "legacy" {
		return nil
	}
	parts := r.Segments[1:]
	if len(parts) > 0 && parts[len(parts)-1] == "" {
		parts = parts[:len(parts)-1]
	}
	switch {
	case !readable(r):
	case top == "legacy" && len(parts) == 0 && r.Method == http.MethodPost:
		return said(keyAction, "publish")
	case !isRead(r):
	case top == "simple" && len(parts) == 0:
		return said(keyAction, "list")
	case top == "simple" && len(parts) == 1 && projectName.MatchString(parts[0]):
		return said(keyAction, "metadata", keyName, normalProject(parts[0]))
	case top == "pypi" && len(parts) == 2 && parts[1] == "json" && projectName.MatchString(parts[0]):
		return said(keyAction, "metadata", keyName, normalProject(parts[0]))
	case top == "pypi" && len(parts) == 3 && parts[2] == "json" && projectName.MatchString(parts[0]) && version.MatchString(parts[1]):
		return said(keyAction, "metadata", keyName, normalProject(parts[0]), keyVersion, parts[1])
	case top == "packages" && len(parts) > 1 && archiveFile.MatchString(parts[len(parts)-1]):
		return pythonFile(parts[len(parts)-1])
	}
	return unparsedPart()
}

func normalProject(project string) string {
	return strings.ToLower(separators.ReplaceAllString(project, "-"))
}

// pythonFile reads the name of a wheel (PEP 427) or of a source distribution, also
// with ".metadata" (PEP 658) or ".asc" behind it.
func pythonFile(file string) *ast.Term {
	bare := strings.TrimSuffix(strings.TrimSuffix(file, ".asc"), ".metadata")
	if wheel, ok := strings.CutSuffix(bare, ".whl"); ok {
		parts := strings.Split(wheel, "-")
		if (len(parts) == 5 || len(parts) == 6) && projectName.MatchString(parts[0]) && version.MatchString(parts[1]) {
			return said(keyAction, "download", keyName, normalProject(parts[0]), keyVersion, parts[1], keyFile, file)
		}
		return unparsedPart()
	}
	for _, ending := range []string{".tar.gz", ".zip", ".tar.bz2", ".tar.xz"} {
		source, ok := strings.CutSuffix(bare, ending)
		if !ok {
			continue
		}
		i := strings.LastIndexByte(source, '-')
		if i > 0 && projectName.MatchString(source[:i]) && version.MatchString(source[i+1:]) {
			return said(keyAction, "download", keyName, normalProject(source[:i]), keyVersion, source[i+1:], keyFile, file)
		}
	}
	return unparsedPart()
}

// parseGolang reads a request to a Go module proxy (GOPROXY protocol): /module/@v/…
// and /module/@latest; what is below /sumdb/ is the checksum database. It returns nil
// for another path.
func parseGolang(r *Request) *ast.Term {
	if strings.HasPrefix(r.Path, "/sumdb/") {
		if !isRead(r) || !readable(r) {
			return unparsedPart()
		}
		return said(keyAction, "checksums")
	}
	plain := strings.Join(r.Segments, "/")
	if !strings.Contains(plain, "/@v/") && !strings.HasSuffix(plain, "/@latest") {
		return nil
	}
	if strings.Contains(r.Path, "%") || !isRead(r) || !readable(r) {
		return unparsedPart()
	}
	var path, action, v string
	if module, ok := strings.CutSuffix(plain, "/@latest"); ok {
		path, action = module, "latest"
	} else {
		module, file, _ := strings.Cut(plain, "/@v/")
		path = module
		if file == "list" {
			action = "list"
		} else if i := strings.LastIndexByte(file, '.'); i > 0 && strings.Contains(" info mod zip ", " "+file[i+1:]+" ") {
			action, v = file[i+1:], file[:i]
		}
	}
	module, ok1 := unescaped(path)
	v, ok2 := unescaped(v)
	if action == "" || !ok1 || !ok2 || module == "" || strings.Contains(module, "@") || v != "" && !version.MatchString(v) {
		return unparsedPart()
	}
	return said(keyAction, action, keyModule, module, keyVersion, v)
}

// unescaped undoes the escape of upper case in paths of modules: "!a" is "A". A path
// has no upper case of its own.
func unescaped(s string) (string, bool) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c >= 'A' && c <= 'Z' || c >= 0x80:
			return "", false
		case c != '!':
			b.WriteByte(c)
		case i+1 < len(s) && s[i+1] >= 'a' && s[i+1] <= 'z':
			i++
			b.WriteByte(s[i] - 'a' + 'A')
		default:
			return "", false
		}
	}
	return b.String(), true
}

// parseDebian reads a request to a Debian archive: …/dists/suite/… is an index,
// …/pool/component/prefix/source/package_version_architecture.deb a file. It returns
// nil for another path.
func parseDebian(r *Request) *ast.Term {
	at := -1
	for i, s := range r.Segments {
		if s == "dists" || s == "pool" {
			if at >= 0 {
				return unparsedPart() // which of the two is the archive's
			}
			at = i
		}
	}
	if at < 0 {
		return nil
	}
	rest := r.Segments[at+1:]
	switch {
	case !isRead(r) || !readable(r) || len(rest) == 0:
	case r.Segments[at] == "dists" && len(rest) > 1 && archiveFile.MatchString(rest[0]):
		return said(keyAction, "index", keySuite, rest[0], keyFile, strings.Join(rest[1:], "/"))
	case r.Segments[at] == "pool" && len(rest) == 4:
		component, source, file := rest[0], rest[2], rest[3]
		prefix := source[:min(1, len(source))]
		if strings.HasPrefix(source, "lib") && len(source) > 3 {
			prefix = source[:4]
		}
		if rest[1] != prefix || !debianName.MatchString(component) || !debianName.MatchString(source) || !archiveFile.MatchString(file) {
			break
		}
		if deb, ok := strings.CutSuffix(file, ".deb"); ok {
			parts := strings.Split(deb, "_")
			if len(parts) != 3 || !debianName.MatchString(parts[0]) || !version.MatchString(strings.ReplaceAll(parts[1], "%3a", ":")) {
				break
			}
			return said(keyAction, "download", keyComponent, component, keySource, source, keyPackage, parts[0], keyVersion, parts[1], keyArchitecture, parts[2], keyFile, file)
		}
		return said(keyAction, "download", keyComponent, component, keySource, source, keyFile, file)
	}
	return unparsedPart()
}
