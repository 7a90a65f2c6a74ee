package policies

import (
	"net/http"
	"regexp"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
)

// The names of the OCI distribution specification, §"Pulling manifests".
var (
	ociRepository = regexp.MustCompile(`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$`)
	ociTag        = regexp.MustCompile(`^[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}$`)
	ociDigest     = regexp.MustCompile(`^[a-z0-9]+([+._-][a-z0-9]+)*:[a-zA-Z0-9=_-]{32,128}$`)
)

var (
	keyReference = ast.StringTerm("reference")
	keyFrom      = ast.StringTerm("from")
)

// parseOCI reads a request to a registry of container images (OCI distribution
// specification): what it does to which repository. It returns nil when the path is
// not below /v2.
func parseOCI(r *Request) *ast.Term {
	if len(r.Segments) == 0 || r.Segments[0] != "v2" {
		return nil
	}
	rest, ok := strings.CutPrefix(r.Path, "/v2/")
	if !ok || strings.Contains(r.Path, "%") {
		if r.Path == "/v2" {
			return ociPart(r, "base", "", "")
		}
		return unparsedPart()
	}
	switch {
	case rest == "":
		return ociPart(r, "base", "", "")
	case rest == "_catalog":
		return ociPart(r, "catalog", "", "")
	}
	if name, ok := strings.CutSuffix(rest, "/tags/list"); ok {
		return ociPart(r, "tags", name, "")
	}
	if name, ok := strings.CutSuffix(strings.TrimSuffix(rest, "/"), "/blobs/uploads"); ok {
		return ociPart(r, "upload", name, "")
	}
	before, last, _ := cutLast(rest)
	if name, ok := strings.CutSuffix(before, "/blobs/uploads"); ok && isPlainText(last) && last != "" {
		return ociPart(r, "upload", name, "")
	}
	name, kind, ok := cutLast(before)
	switch {
	case !ok:
	case kind == "manifests" && (ociTag.MatchString(last) || ociDigest.MatchString(last)):
		return ociPart(r, "manifest", name, last)
	case kind == "blobs" && ociDigest.MatchString(last):
		return ociPart(r, "blob", name, last)
	case kind == "referrers" && ociDigest.MatchString(last):
		return ociPart(r, "referrers", name, last)
	}
	return unparsedPart()
}

// ociMethods says what a method does to each kind of thing.
var ociMethods = map[string]map[string]string{
	"base":      {http.MethodGet: "pull", http.MethodHead: "pull"},
	"catalog":   {http.MethodGet: "list"},
	"tags":      {http.MethodGet: "list"},
	"referrers": {http.MethodGet: "list"},
	"manifest":  {http.MethodGet: "pull", http.MethodHead: "pull", http.MethodPut: "push", http.MethodDelete: "delete"},
	"blob":      {http.MethodGet: "pull", http.MethodHead: "pull", http.MethodDelete: "delete"},
	"upload":    {http.MethodGet: "push", http.MethodPost: "push", http.MethodPatch: "push", http.MethodPut: "push", http.MethodDelete: "push"},
}

func ociPart(r *Request, kind, repository, reference string) *ast.Term {
	action := ociMethods[kind][r.Method]
	inRepository := kind != "base" && kind != "catalog"
	if action == "" || inRepository && (len(repository) > maxName || !ociRepository.MatchString(repository)) {
		return unparsedPart()
	}
	pairs := [][2]*ast.Term{{keyAction, ast.StringTerm(action)}, {keyKind, ast.StringTerm(kind)}}
	if inRepository {
		pairs = append(pairs, [2]*ast.Term{keyRepository, ast.StringTerm(repository)})
	}
	if reference != "" {
		pairs = append(pairs, [2]*ast.Term{keyReference, ast.StringTerm(reference)})
	}
	// A blob can be mounted from another repository, which is then read.
	if from := r.Query["from"]; kind == "upload" && len(from) > 0 {
		if len(from) != 1 || !ociRepository.MatchString(from[0]) {
			return unparsedPart()
		}
		pairs = append(pairs, [2]*ast.Term{keyFrom, ast.StringTerm(from[0])})
	}
	return ast.ObjectTerm(pairs...)
}

// cutLast splits at the last slash.
func cutLast(s string) (before, after string, ok bool) {
	i := strings.LastIndexByte(s, '/')
	if i < 0 {
		return "", s, false
	}
	return s[:i], s[i+1:], true
}
