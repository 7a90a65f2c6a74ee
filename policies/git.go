package policies

import (
	"bytes"
	"net/http"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
)

// Bounds of a parsed push. One beyond them is unparsed.
const (
	maxPushedRefs = 1000
	maxRefName    = 1024 // bytes
)

// Git's smart HTTP protocol (gitprotocol-http(5)): a request is one by its path
// alone, because that is what a server goes by.
const (
	gitUploadPack  = "git-upload-pack"
	gitReceivePack = "git-receive-pack"
)

var (
	keyOperation  = ast.StringTerm("operation")
	keyRepository = ast.StringTerm("repository")
	keyPhase      = ast.StringTerm("phase")
	keyRefs       = ast.StringTerm("refs")
	keyName       = ast.StringTerm("name")
	keyAction     = ast.StringTerm("action")
	keyOld        = ast.StringTerm("old")
	keyNew        = ast.StringTerm("new")
)

// parseGit tells clone (which is also fetch) from push, and of a push which
// references it changes. It returns nil when the path is none of Git's.
func parseGit(r *Request) *ast.Term {
	path := r.Path
	if strings.Contains(path, "%") {
		// A server decodes; what it would find decides whether this is Git's.
		path = "/" + strings.Join(r.Segments, "/")
		if _, service, _ := splitGitPath(path); service == "" {
			return nil
		}
		return unparsedPart()
	}
	repository, service, advertise := splitGitPath(path)
	if service == "" {
		return nil
	}
	phase := "exchange"
	if advertise {
		phase = "advertise"
		// Without the parameter it is the old protocol, which only reads.
		services := r.Query["service"]
		switch {
		case len(services) > 1:
			return unparsedPart()
		case len(services) == 1:
			service = services[0]
		}
	}
	known := [][2]*ast.Term{{keyRepository, ast.StringTerm(repository)}, {keyPhase, ast.StringTerm(phase)}}
	switch service {
	case gitUploadPack:
		return ast.ObjectTerm(append(known, [2]*ast.Term{keyOperation, ast.StringTerm("clone")})...)
	case gitReceivePack:
		known = append(known, [2]*ast.Term{keyOperation, ast.StringTerm("push")})
	default:
		return unparsedPart(known...)
	}
	if advertise {
		return ast.ObjectTerm(known...)
	}
	refs := pushedRefs(r)
	if refs == nil {
		return unparsedPart(known...)
	}
	return ast.ObjectTerm(append(known, [2]*ast.Term{keyRefs, refs})...)
}

// splitGitPath takes "/acme/site.git/info/refs" apart. The service of info/refs
// is the reading one until the query says otherwise.
func splitGitPath(path string) (repository, service string, advertise bool) {
	for _, suffix := range []string{"/info/refs", "/" + gitUploadPack, "/" + gitReceivePack} {
		rest, ok := strings.CutSuffix(path, suffix)
		if !ok {
			continue
		}
		service = suffix[1:]
		if advertise = suffix == "/info/refs"; advertise {
			service = gitUploadPack
		}
		return strings.TrimSuffix(strings.TrimPrefix(rest, "/"), ".git"), service, advertise
	}
	return "", "", false
}

// pushedRefs reads the commands that a push begins with. The pack behind them
// may be of any size: only the commands must be within what was read ahead.
func pushedRefs(r *Request) *ast.Term {
	if !r.BodyRead || r.Method != http.MethodPost || plainMedia(r) != "application/x-git-receive-pack-request" {
		return nil
	}
	lines, rest, ok := pktLines(r.Body)
	if !ok {
		return nil
	}
	if len(lines) == 0 {
		// Git asks with a lone flush whether it may push, before a large one.
		if len(rest) > 0 || r.BodyTruncated {
			return nil
		}
		return ast.ArrayTerm()
	}
	refs := make([]*ast.Term, 0, len(lines))
	seen := map[string]bool{}
	commands := 0
	for _, line := range lines {
		line = bytes.TrimSuffix(line, []byte("\n"))
		if id, ok := bytes.CutPrefix(line, []byte("shallow ")); ok && commands == 0 && isObjectID(string(id)) {
			continue
		}
		if commands++; commands == 1 {
			line, _, _ = bytes.Cut(line, []byte{0}) // capabilities follow the first
		}
		ref, name := pushCommand(string(line))
		if ref == nil || seen[name] {
			return nil
		}
		seen[name] = true
		refs = append(refs, ref)
	}
	if commands == 0 {
		return nil
	}
	return ast.ArrayTerm(refs...)
}

// pktLines returns the lines up to the first flush (gitprotocol-common(5)).
func pktLines(b []byte) (lines [][]byte, rest []byte, ok bool) {
	const head, most = 4, 65520
	for len(lines) <= maxPushedRefs {
		if len(b) < head {
			return nil, nil, false
		}
		size := 0
		for _, c := range b[:head] {
			digit := strings.IndexByte("0123456789abcdef", c|0x20)
			if digit < 0 || c < '0' {
				return nil, nil, false
			}
			size = size<<4 | digit
		}
		if size == 0 {
			return lines, b[head:], true
		}
		if size <= head || size > most || size > len(b) {
			return nil, nil, false
		}
		lines, b = append(lines, b[head:size]), b[size:]
	}
	return nil, nil, false
}

// pushCommand reads "old new name".
func pushCommand(line string) (ref *ast.Term, name string) {
	before, rest, ok1 := strings.Cut(line, " ")
	after, name, ok2 := strings.Cut(rest, " ")
	if !ok1 || !ok2 || !isObjectID(before) || !isObjectID(after) || len(before) != len(after) || !isRefName(name) {
		return nil, ""
	}
	action := "update"
	switch none := strings.Repeat("0", len(before)); {
	case before == none && after == none:
		return nil, ""
	case before == none:
		action = "create"
	case after == none:
		action = "delete"
	}
	return ast.ObjectTerm(
		[2]*ast.Term{keyName, ast.StringTerm(name)}, [2]*ast.Term{keyAction, ast.StringTerm(action)},
		[2]*ast.Term{keyOld, ast.StringTerm(before)}, [2]*ast.Term{keyNew, ast.StringTerm(after)},
	), name
}

// isObjectID accepts SHA-1 and SHA-256 names in lower-case hex.
func isObjectID(s string) bool {
	return (len(s) == 40 || len(s) == 64) && strings.Trim(s, "0123456789abcdef") == ""
}

// isRefName follows git-check-ref-format(1), in ASCII or UTF-8 without control characters.
func isRefName(s string) bool {
	if len(s) > maxRefName || !strings.HasPrefix(s, "refs/") || !isPlainText(s) {
		return false
	}
	if strings.ContainsAny(s, " ~^:?*[\\") || strings.Contains(s, "..") || strings.Contains(s, "@{") {
		return false
	}
	for part := range strings.SplitSeq(s, "/") {
		if part == "" || part[0] == '.' || strings.HasSuffix(part, ".lock") || strings.HasSuffix(part, ".") {
			return false
		}
	}
	return true
}
