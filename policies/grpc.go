package policies

import (
	"net/http"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/open-policy-agent/opa/v1/ast"
)

var keyService, keyMethod = ast.StringTerm("service"), ast.StringTerm("method")

// parseGRPC reads service and method of a gRPC or gRPC-Web call (gRPC over
// HTTP/2: the content type begins with "application/grpc", the path is
// "/service/method"). It returns nil for other requests.
func parseGRPC(r *Request) *ast.Term {
	types := r.Headers["content-type"]
	if len(types) == 0 && r.ContentType != "" {
		types = []string{r.ContentType}
	}
	calls := 0
	for _, t := range types {
		if strings.HasPrefix(strings.ToLower(strings.TrimSpace(t)), "application/grpc") {
			calls++
		}
	}
	if calls == 0 {
		return nil
	}
	media, _, _ := strings.Cut(strings.ToLower(types[0]), ";")
	media = strings.TrimSpace(media)
	path, rooted := strings.CutPrefix(r.Path, "/")
	service, method, ok := strings.Cut(path, "/")
	if !rooted || len(types) != 1 || r.Method != http.MethodPost || !isGRPCType(media) || !ok || !isServiceName(service) || !isIdentifier(method) {
		return unparsedPart()
	}
	return ast.ObjectTerm([2]*ast.Term{keyService, ast.StringTerm(service)}, [2]*ast.Term{keyMethod, ast.StringTerm(method)})
}

// isGRPCType accepts application/grpc, -web and -web-text, with any "+format".
func isGRPCType(media string) bool {
	base, format, formatted := strings.Cut(media, "+")
	if formatted && format == "" {
		return false
	}
	return base == "application/grpc" || base == "application/grpc-web" || base == "application/grpc-web-text"
}

// isServiceName accepts identifiers with dots between them.
func isServiceName(s string) bool {
	for part := range strings.SplitSeq(s, ".") {
		if !isIdentifier(part) {
			return false
		}
	}
	return true
}

// isIdentifier accepts the names of Protocol Buffers and GraphQL: [_A-Za-z][_0-9A-Za-z]*.
func isIdentifier(s string) bool {
	for i := range len(s) {
		if !isNameByte(s[i], i > 0) {
			return false
		}
	}
	return s != "" && len(s) <= maxName
}

// maxName bounds an identifier, in bytes.
const maxName = 256

func isNameByte(c byte, inside bool) bool {
	return c == '_' || c|0x20 >= 'a' && c|0x20 <= 'z' || inside && c >= '0' && c <= '9'
}

// isPlainText reports whether s is UTF-8 without control characters.
func isPlainText(s string) bool {
	return utf8.ValidString(s) && strings.IndexFunc(s, unicode.IsControl) < 0
}
