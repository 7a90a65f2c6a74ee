package policies

import (
	"encoding/binary"
	"strconv"

	"github.com/open-policy-agent/opa/v1/ast"
)

// InputVersion is input.version: it grows when the meaning of a field changes.
const InputVersion = 1

// field is one part of the input document.
type field struct {
	name string
	key  *ast.Term
	// get makes the value; nil when the part is absent from this input.
	get func(in *Input, body *parsedBody) *ast.Term
	// text takes the place of get where the value is a text.
	text func(in *Input) string
	// mix appends all that get depends on to the key of the decision cache, so
	// that two inputs with equal keys have equal values. Parsed parts have none: only
	// decisions about requests without one are cached.
	mix func(key []byte, in *Input) []byte
}

// inputPlan builds only those parts of the input that the policy refers to.
type inputPlan struct {
	needs     Needs
	parts     part // to be parsed
	cacheable bool
	refs      *reference
	constants map[string]*ast.Term // texts of the policy, which inputs often repeat
	runs      runTerms

	top     []field
	run     []field
	request []field
	dest    []field
	// connection holds the parts of request known at stage "connection".
	connection []field
}

var (
	keyRun         = ast.StringTerm("run")
	keyRequest     = ast.StringTerm("request")
	keyDestination = ast.StringTerm("destination")
	keyHost        = ast.StringTerm("host")
	keyRequests    = ast.StringTerm("requests")
	keyBytesOut    = ast.StringTerm("bytes_out")
	keyBytesIn     = ast.StringTerm("bytes_in")
	keyCost        = ast.StringTerm("cost")
)

func newInputPlan(refs *reference, time bool) *inputPlan {
	p := &inputPlan{refs: refs}
	p.top = wanted(refs, topFields())
	p.run = wanted(refs, runFields(refs), "run")
	p.request = wanted(refs, requestFields(refs), "request")
	p.dest = wanted(refs, destinationFields(), "destination")
	for _, f := range p.request {
		if f.name == "id" || f.name == "host" || f.name == "port" {
			p.connection = append(p.connection, f)
		}
	}
	p.parts = partsOf(refs, false)
	p.needs.Body = p.parts&^(partGRPC|partGit|ofPath) != 0 || refs.has("request", "git", "refs") || refs.has("request", "git", "unparsed")
	p.needs.Time = time || refs.has("time")
	// What differs in every request would only fill the cache.
	p.needs.Usage = refs.has("usage")
	p.cacheable = !p.needs.Time && !p.needs.Usage && !refs.has("request", "id")
	return p
}

func wanted(refs *reference, all []field, parent ...string) []field {
	var chosen []field
	for _, f := range all {
		if refs.has(append(parent[:len(parent):len(parent)], f.name)...) {
			chosen = append(chosen, f)
		}
	}
	return chosen
}

// requestParts are the parts of request at the input's stage.
func (p *inputPlan) requestParts(in *Input) []field {
	if in.Stage == StageConnection {
		return p.connection
	}
	return p.request
}

// build makes the input document.
func (p *inputPlan) build(in *Input, body *parsedBody) ast.Value {
	pairs := make([][2]*ast.Term, 0, len(p.top)+3)
	pairs = p.appendFields(pairs, p.top, in, body)
	if len(p.run) > 0 {
		pairs = append(pairs, [2]*ast.Term{keyRun, p.runTerm(in)})
	}
	if request := p.requestParts(in); len(request) > 0 {
		pairs = append(pairs, [2]*ast.Term{keyRequest, p.object(request, in, body)})
	}
	if len(p.dest) > 0 {
		pairs = append(pairs, [2]*ast.Term{keyDestination, p.object(p.dest, in, body)})
	}
	return ast.NewObject(pairs...)
}

func (p *inputPlan) object(fields []field, in *Input, body *parsedBody) *ast.Term {
	return ast.ObjectTerm(p.appendFields(make([][2]*ast.Term, 0, len(fields)), fields, in, body)...)
}

func (p *inputPlan) appendFields(pairs [][2]*ast.Term, fields []field, in *Input, body *parsedBody) [][2]*ast.Term {
	for i := range fields {
		var value *ast.Term
		if text := fields[i].text; text != nil {
			value = p.textTerm(text(in))
		} else {
			value = fields[i].get(in, body)
		}
		if value != nil {
			pairs = append(pairs, [2]*ast.Term{fields[i].key, value})
		}
	}
	return pairs
}

// cacheKey appends everything that a decision about an input without a body
// depends on. Each part says its own length, so no two inputs share a key.
func (p *inputPlan) cacheKey(key []byte, in *Input) []byte {
	key = mixText(key, in.Stage)
	key = mixList(key, in.Approvals)
	key = mixList(key, in.Credentials)
	for _, group := range [...][]field{p.top, p.run, p.requestParts(in), p.dest} {
		for i := range group {
			if group[i].mix != nil {
				key = group[i].mix(key, in)
			}
		}
	}
	return key
}

func topFields() []field {
	return []field{
		fixed("version", ast.InternedTerm(InputVersion)),
		text("stage", func(in *Input) string { return in.Stage }),
		{name: "usage", key: ast.StringTerm("usage"), get: func(in *Input, _ *parsedBody) *ast.Term { return in.Usage.term() }},
		list("approvals", func(in *Input) []string { return in.Approvals }),
		list("credentials", func(in *Input) []string { return in.Credentials }),
		number("time", func(in *Input) int64 { return in.TimeNS }),
	}
}

// term is the document of a usage; without one nothing was used.
func (u *Usage) term() *ast.Term {
	if u == nil {
		u = &Usage{}
	}
	credentials := make([][2]*ast.Term, 0, len(u.Credentials))
	for name, used := range u.Credentials {
		credentials = append(credentials, [2]*ast.Term{ast.StringTerm(name), used.term()})
	}
	return ast.ObjectTerm(
		[2]*ast.Term{keyRun, u.Run.term()}, [2]*ast.Term{keyHost, u.Host.term()},
		[2]*ast.Term{keyCredentials, ast.ObjectTerm(credentials...)},
	)
}

func (a Amounts) term() *ast.Term {
	return ast.ObjectTerm(
		[2]*ast.Term{keyRequests, integer(a.Requests)}, [2]*ast.Term{keyBytesOut, integer(a.BytesOut)},
		[2]*ast.Term{keyBytesIn, integer(a.BytesIn)}, [2]*ast.Term{keyCost, integer(a.Cost)},
	)
}

func runFields(refs *reference) []field {
	return []field{
		text("id", func(in *Input) string { return in.Run.ID }),
		text("task", func(in *Input) string { return in.Run.Task }),
		text("agent", func(in *Input) string { return in.Run.Agent }),
		text("user", func(in *Input) string { return in.Run.User }),
		text("image_digest", func(in *Input) string { return in.Run.ImageDigest }),
		members("labels", refs, "run", func(in *Input) map[string]string { return in.Run.Labels }, ast.StringTerm, mixText),
	}
}

func requestFields(refs *reference) []field {
	return []field{
		text("id", func(in *Input) string { return in.Request.ID }),
		text("method", func(in *Input) string { return in.Request.Method }),
		text("scheme", func(in *Input) string { return in.Request.Scheme }),
		text("host", func(in *Input) string { return in.Request.Host }),
		number("port", func(in *Input) int64 { return int64(in.Request.Port) }),
		text("path", func(in *Input) string { return in.Request.Path }),
		list("segments", func(in *Input) []string { return in.Request.Segments }),
		members("query", refs, "request", func(in *Input) map[string][]string { return in.Request.Query }, stringArray, mixList),
		members("headers", refs, "request", func(in *Input) map[string][]string { return in.Request.Headers }, stringArray, mixList),
		text("protocol", func(in *Input) string { return in.Request.Protocol }),
		text("content_type", func(in *Input) string { return in.Request.ContentType }),
		number("content_length", func(in *Input) int64 { return in.Request.ContentLength }),
		ofBody("body", func(b *parsedBody) *ast.Term { return b.value }),
		ofBody("body_truncated", func(b *parsedBody) *ast.Term { return ast.InternedTerm(b.truncated) }),
		ofBody("unparsed", func(b *parsedBody) *ast.Term { return ast.InternedTerm(b.unparsed) }),
		ofBody("graphql", func(b *parsedBody) *ast.Term { return b.graphql }),
		ofBody("jsonrpc", func(b *parsedBody) *ast.Term { return b.jsonrpc }),
		ofBody("mcp", func(b *parsedBody) *ast.Term { return b.mcp }),
		ofBody("grpc", func(b *parsedBody) *ast.Term { return b.grpc }),
		ofBody("git", func(b *parsedBody) *ast.Term { return b.git }),
		byPath("oci", func(b *parsedBody) *ast.Term { return b.oci }),
		byPath("npm", func(b *parsedBody) *ast.Term { return b.npm }),
		byPath("pypi", func(b *parsedBody) *ast.Term { return b.pypi }),
		byPath("golang", func(b *parsedBody) *ast.Term { return b.golang }),
		byPath("debian", func(b *parsedBody) *ast.Term { return b.debian }),
	}
}

func destinationFields() []field {
	return []field{
		flag("transparent", func(in *Input) bool { return in.Destination.Transparent }),
		flag("literal", func(in *Input) bool { return in.Destination.Literal }),
		text("sni", func(in *Input) string { return in.Destination.SNI }),
	}
}

func fixed(name string, value *ast.Term) field {
	return field{name: name, key: ast.StringTerm(name), get: func(*Input, *parsedBody) *ast.Term { return value }}
}

func ofBody(name string, get func(*parsedBody) *ast.Term) field {
	return field{name: name, key: ast.StringTerm(name), get: func(_ *Input, b *parsedBody) *ast.Term { return get(b) }}
}

// byPath is a part that method, path and query decide.
func byPath(name string, get func(*parsedBody) *ast.Term) field {
	f := ofBody(name, get)
	f.mix = func(key []byte, in *Input) []byte {
		r := &in.Request
		key = mixText(mixText(key, r.Method), r.Path)
		return mixList(mixList(key, r.Segments), r.Query["from"])
	}
	return f
}

func text(name string, get func(*Input) string) field {
	return field{
		name: name, key: ast.StringTerm(name), text: get,
		mix: func(key []byte, in *Input) []byte { return mixText(key, get(in)) },
	}
}

func number(name string, get func(*Input) int64) field {
	return field{
		name: name, key: ast.StringTerm(name),
		get: func(in *Input, _ *parsedBody) *ast.Term { return integer(get(in)) },
		mix: func(key []byte, in *Input) []byte { return binary.AppendVarint(key, get(in)) },
	}
}

func flag(name string, get func(*Input) bool) field {
	return field{
		name: name, key: ast.StringTerm(name),
		get: func(in *Input, _ *parsedBody) *ast.Term { return ast.InternedTerm(get(in)) },
		mix: func(key []byte, in *Input) []byte { return strconv.AppendBool(key, get(in)) },
	}
}

func list(name string, get func(*Input) []string) field {
	return field{
		name: name, key: ast.StringTerm(name),
		get: func(in *Input, _ *parsedBody) *ast.Term { return stringArray(get(in)) },
		mix: func(key []byte, in *Input) []byte { return mixList(key, get(in)) },
	}
}

// members makes the field of a map, restricted to those members that the
// policy reads when it reads them by constant names.
func members[V any](name string, refs *reference, parent string, get func(*Input) map[string]V, term func(V) *ast.Term, mix func([]byte, V) []byte) field {
	f := field{name: name, key: ast.StringTerm(name)}
	keys, constant := refs.keysOf(parent, name)
	names := func(map[string]V) []string { return keys }
	if !constant {
		names = sortedKeys[V]
	}
	f.get = func(in *Input, _ *parsedBody) *ast.Term {
		m := get(in)
		names := names(m)
		pairs := make([][2]*ast.Term, 0, len(names))
		for _, k := range names {
			if v, ok := m[k]; ok {
				pairs = append(pairs, [2]*ast.Term{ast.InternedTerm(k), term(v)})
			}
		}
		return ast.ObjectTerm(pairs...)
	}
	f.mix = func(key []byte, in *Input) []byte {
		m := get(in)
		names := names(m)
		key = binary.AppendUvarint(key, uint64(len(names)))
		for _, k := range names {
			v, ok := m[k]
			if key = strconv.AppendBool(mixText(key, k), ok); ok {
				key = mix(key, v)
			}
		}
		return key
	}
	return f
}

func mixText(key []byte, s string) []byte {
	return append(binary.AppendUvarint(key, uint64(len(s))), s...)
}

func mixList(key []byte, list []string) []byte {
	key = binary.AppendUvarint(key, uint64(len(list)))
	for _, s := range list {
		key = mixText(key, s)
	}
	return key
}

// keysOf returns the constant keys under which a map of the input is read, and
// false when all of it is.
func (r *reference) keysOf(path ...string) ([]string, bool) {
	node := r
	for _, step := range path {
		if node == nil || node.whole {
			return nil, false
		}
		node = node.parts[step]
	}
	if node == nil || node.whole {
		return nil, false
	}
	return sortedKeys(node.parts), true
}

func stringArray(list []string) *ast.Term {
	terms := make([]*ast.Term, len(list))
	for i, s := range list {
		terms[i] = ast.StringTerm(s)
	}
	return ast.ArrayTerm(terms...)
}

// integer keeps all 64 bits, which a floating-point number would not.
func integer(n int64) *ast.Term {
	if int64(int32(n)) == n {
		return ast.InternedTerm(int(n))
	}
	return ast.NewTerm(ast.Number(strconv.FormatInt(n, 10)))
}

// listObject makes an object of lists.
func listObject(m map[string][]string) *ast.Term {
	pairs := make([][2]*ast.Term, 0, len(m))
	for k, v := range m {
		pairs = append(pairs, [2]*ast.Term{ast.StringTerm(k), stringArray(v)})
	}
	return ast.ObjectTerm(pairs...)
}
