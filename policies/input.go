package policies

import (
	"strconv"

	"github.com/open-policy-agent/opa/v1/ast"
)

// InputVersion is input.version: it grows when the meaning of a field changes.
const InputVersion = 1

// field is one part of the input document. get returns nil when the part is
// absent from this input.
type field struct {
	name string
	key  *ast.Term
	get  func(in *Input, body *parsedBody) *ast.Term
}

func newField(name string, get func(in *Input, body *parsedBody) *ast.Term) field {
	return field{name: name, key: ast.StringTerm(name), get: get}
}

// inputPlan builds only those parts of the input that the policy refers to.
type inputPlan struct {
	needs   Needs
	refs    *reference
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
	for _, part := range bodyParts {
		p.needs.Body = p.needs.Body || refs.has("request", part)
	}
	p.needs.Body = p.needs.Body || refs.has("request", "body_truncated") || refs.has("request", "unparsed")
	p.needs.Time = time || refs.has("time")
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

// build makes the input document.
func (p *inputPlan) build(in *Input, body *parsedBody) ast.Value {
	pairs := make([][2]*ast.Term, 0, len(p.top)+3)
	pairs = appendFields(pairs, p.top, in, body)
	if len(p.run) > 0 {
		pairs = append(pairs, [2]*ast.Term{keyRun, object(p.run, in, body)})
	}
	request := p.request
	if in.Stage == StageConnection {
		request = p.connection
	}
	if len(request) > 0 {
		pairs = append(pairs, [2]*ast.Term{keyRequest, object(request, in, body)})
	}
	if len(p.dest) > 0 {
		pairs = append(pairs, [2]*ast.Term{keyDestination, object(p.dest, in, body)})
	}
	return ast.NewObject(pairs...)
}

func object(fields []field, in *Input, body *parsedBody) *ast.Term {
	return ast.ObjectTerm(appendFields(make([][2]*ast.Term, 0, len(fields)), fields, in, body)...)
}

func appendFields(pairs [][2]*ast.Term, fields []field, in *Input, body *parsedBody) [][2]*ast.Term {
	for i := range fields {
		if value := fields[i].get(in, body); value != nil {
			pairs = append(pairs, [2]*ast.Term{fields[i].key, value})
		}
	}
	return pairs
}

func topFields() []field {
	return []field{
		newField("version", func(*Input, *parsedBody) *ast.Term { return ast.InternedTerm(InputVersion) }),
		newField("stage", func(in *Input, _ *parsedBody) *ast.Term { return ast.InternedTerm(in.Stage) }),
		newField("usage", func(*Input, *parsedBody) *ast.Term { return ast.ObjectTerm() }),
		newField("approvals", func(in *Input, _ *parsedBody) *ast.Term { return stringArray(in.Approvals) }),
		newField("credentials", func(in *Input, _ *parsedBody) *ast.Term { return stringArray(in.Credentials) }),
		newField("time", func(in *Input, _ *parsedBody) *ast.Term { return integer(in.TimeNS) }),
	}
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

func runFields(refs *reference) []field {
	labels := func(in *Input, _ *parsedBody) *ast.Term { return stringObject(in.Run.Labels) }
	if keys, ok := refs.keysOf("run", "labels"); ok {
		labels = func(in *Input, _ *parsedBody) *ast.Term { return chosen(in.Run.Labels, keys, ast.StringTerm) }
	}
	text := func(get func(in *Input) string) func(*Input, *parsedBody) *ast.Term {
		return func(in *Input, _ *parsedBody) *ast.Term { return ast.StringTerm(get(in)) }
	}
	return []field{
		newField("id", text(func(in *Input) string { return in.Run.ID })),
		newField("task", text(func(in *Input) string { return in.Run.Task })),
		newField("agent", text(func(in *Input) string { return in.Run.Agent })),
		newField("user", text(func(in *Input) string { return in.Run.User })),
		newField("image_digest", text(func(in *Input) string { return in.Run.ImageDigest })),
		newField("labels", labels),
	}
}

// lists makes the field of a map with many values, restricted to keys if that is all that is read.
func lists(refs *reference, name string, get func(r *Request) map[string][]string) field {
	keys, ok := refs.keysOf("request", name)
	if !ok {
		return newField(name, func(in *Input, _ *parsedBody) *ast.Term { return listObject(get(&in.Request)) })
	}
	return newField(name, func(in *Input, _ *parsedBody) *ast.Term { return chosen(get(&in.Request), keys, stringArray) })
}

func requestFields(refs *reference) []field {
	text := func(get func(r *Request) string) func(*Input, *parsedBody) *ast.Term {
		return func(in *Input, _ *parsedBody) *ast.Term { return ast.InternedTerm(get(&in.Request)) }
	}
	return []field{
		newField("id", text(func(r *Request) string { return r.ID })),
		newField("method", text(func(r *Request) string { return r.Method })),
		newField("scheme", text(func(r *Request) string { return r.Scheme })),
		newField("host", text(func(r *Request) string { return r.Host })),
		newField("port", func(in *Input, _ *parsedBody) *ast.Term { return ast.InternedTerm(in.Request.Port) }),
		newField("path", text(func(r *Request) string { return r.Path })),
		newField("segments", func(in *Input, _ *parsedBody) *ast.Term { return stringArray(in.Request.Segments) }),
		lists(refs, "query", func(r *Request) map[string][]string { return r.Query }),
		lists(refs, "headers", func(r *Request) map[string][]string { return r.Headers }),
		newField("protocol", text(func(r *Request) string { return r.Protocol })),
		newField("content_type", text(func(r *Request) string { return r.ContentType })),
		newField("content_length", func(in *Input, _ *parsedBody) *ast.Term { return integer(in.Request.ContentLength) }),
		newField("body", func(_ *Input, b *parsedBody) *ast.Term { return b.value }),
		newField("body_truncated", func(_ *Input, b *parsedBody) *ast.Term { return ast.InternedTerm(b.truncated) }),
		newField("unparsed", func(_ *Input, b *parsedBody) *ast.Term { return ast.InternedTerm(b.unparsed) }),
	}
}

func destinationFields() []field {
	return []field{
		newField("transparent", func(in *Input, _ *parsedBody) *ast.Term { return ast.InternedTerm(in.Destination.Transparent) }),
		newField("literal", func(in *Input, _ *parsedBody) *ast.Term { return ast.InternedTerm(in.Destination.Literal) }),
		newField("sni", func(in *Input, _ *parsedBody) *ast.Term { return ast.InternedTerm(in.Destination.SNI) }),
	}
}

// chosen makes an object of the members of m that have one of keys.
func chosen[V any](m map[string]V, keys []string, term func(V) *ast.Term) *ast.Term {
	pairs := make([][2]*ast.Term, 0, len(keys))
	for _, k := range keys {
		if v, ok := m[k]; ok {
			pairs = append(pairs, [2]*ast.Term{ast.StringTerm(k), term(v)})
		}
	}
	return ast.ObjectTerm(pairs...)
}

func stringArray(list []string) *ast.Term {
	terms := make([]*ast.Term, len(list))
	for i, s := range list {
		terms[i] = ast.StringTerm(s)
	}
	return ast.ArrayTerm(terms...)
}

func stringObject(m map[string]string) *ast.Term {
	pairs := make([][2]*ast.Term, 0, len(m))
	for k, v := range m {
		pairs = append(pairs, [2]*ast.Term{ast.StringTerm(k), ast.StringTerm(v)})
	}
	return ast.ObjectTerm(pairs...)
}

func listObject(m map[string][]string) *ast.Term {
	pairs := make([][2]*ast.Term, 0, len(m))
	for k, v := range m {
		pairs = append(pairs, [2]*ast.Term{ast.StringTerm(k), stringArray(v)})
	}
	return ast.ObjectTerm(pairs...)
}

// integer keeps all 64 bits, which a floating-point number would not.
func integer(n int64) *ast.Term {
	if int64(int32(n)) == n {
		return ast.InternedTerm(int(n))
	}
	return ast.NewTerm(ast.Number(strconv.FormatInt(n, 10)))
}
