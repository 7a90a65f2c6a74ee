package policies

import (
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"
)

// maxMessages bounds one JSON-RPC batch. A longer one is unparsed.
const maxMessages = 100

var (
	keyKind      = ast.StringTerm("kind")
	keyParams    = ast.StringTerm("params")
	keyBatched   = ast.StringTerm("batched")
	keyMessages  = ast.StringTerm("messages")
	keyTool      = ast.StringTerm("tool")
	keyArguments = ast.StringTerm("arguments")
	keyPrompt    = ast.StringTerm("prompt")
	keyResource  = ast.StringTerm("resource")
	keyURI       = ast.StringTerm("uri")
	keyJSONRPC   = ast.StringTerm("jsonrpc")
	keyID        = ast.StringTerm("id")
	keyResult    = ast.StringTerm("result")
	keyError     = ast.StringTerm("error")

	jsonrpcVersion = ast.String("2.0")
)

// rpcMessages is the messages of a body.
type rpcMessages struct {
	absent, batched bool
	list            []rpcMessage // nil: unparsed, unless absent
}

type rpcMessage struct {
	kind   string // request | notification | response
	method *ast.Term
	params *ast.Term // nil: none
}

// parseJSONRPC reads one message, or a batch, of JSON-RPC 2.0. A body that is
// anything else is unparsed: a server may make more of it than we do.
func parseJSONRPC(b *parsedBody) rpcMessages {
	if b.truncated || b.unparsed {
		return rpcMessages{}
	}
	if b.value == nil {
		return rpcMessages{absent: true}
	}
	items := []*ast.Term{b.value}
	array, batched := b.value.Value.(*ast.Array)
	if batched {
		if array.Len() == 0 || array.Len() > maxMessages {
			return rpcMessages{}
		}
		items = items[:0]
		array.Foreach(func(t *ast.Term) { items = append(items, t) })
	}
	m := rpcMessages{batched: batched, list: make([]rpcMessage, 0, len(items))}
	for _, item := range items {
		message, ok := readMessage(item)
		if !ok {
			return rpcMessages{}
		}
		m.list = append(m.list, message)
	}
	return m
}

// readMessage accepts exactly the members of the specification: one that a
// server reads with less care ("Method") could replace what is judged.
func readMessage(t *ast.Term) (m rpcMessage, ok bool) {
	object, ok := t.Value.(ast.Object)
	if !ok {
		return m, false
	}
	version := object.Get(keyJSONRPC)
	if version == nil || ast.Compare(version.Value, jsonrpcVersion) != 0 {
		return m, false
	}
	members := 1
	id := object.Get(keyID)
	if id != nil {
		members++
		switch id.Value.(type) {
		case ast.String, ast.Number, ast.Null:
		default:
			return m, false
		}
	}
	if m.method = object.Get(keyMethod); m.method == nil {
		// An answer to a request of the server, which MCP sends this way.
		m.kind = "response"
		result, failure := object.Get(keyResult), object.Get(keyError)
		return m, id != nil && (result == nil) != (failure == nil) && object.Len() == members+1
	}
	members++
	name, ok := m.method.Value.(ast.String)
	if !ok || name == "" || len(name) > maxName || !isPlainText(string(name)) {
		return m, false
	}
	if m.params = object.Get(keyParams); m.params != nil {
		members++
		switch m.params.Value.(type) {
		case ast.Object, *ast.Array:
		default:
			return m, false
		}
	}
	m.kind = "request"
	if id == nil {
		m.kind = "notification"
	}
	return m, object.Len() == members
}

// part makes the part of the input out of a description of each message.
func (m rpcMessages) part(describe func(rpcMessage) [][2]*ast.Term) *ast.Term {
	switch {
	case m.absent:
		return nil
	case m.list == nil:
		return unparsedPart()
	}
	terms := make([]*ast.Term, 0, len(m.list))
	for _, message := range m.list {
		pairs := describe(message)
		if pairs == nil {
			return unparsedPart()
		}
		terms = append(terms, ast.ObjectTerm(pairs...))
	}
	return ast.ObjectTerm(
		[2]*ast.Term{keyBatched, ast.InternedTerm(m.batched)},
		[2]*ast.Term{keyMessages, ast.ArrayTerm(terms...)},
	)
}

func (m rpcMessage) head() [][2]*ast.Term {
	pairs := [][2]*ast.Term{{keyKind, ast.StringTerm(m.kind)}}
	if m.method != nil {
		pairs = append(pairs, [2]*ast.Term{keyMethod, m.method})
	}
	return pairs
}

func (m rpcMessages) jsonrpc() *ast.Term {
	return m.part(func(m rpcMessage) [][2]*ast.Term {
		pairs := m.head()
		if m.params != nil {
			pairs = append(pairs, [2]*ast.Term{keyParams, m.params})
		}
		return pairs
	})
}

// mcp reads the calls of the Model Context Protocol that name something.
func (m rpcMessages) mcp() *ast.Term {
	return m.part(func(m rpcMessage) [][2]*ast.Term {
		pairs := m.head()
		if m.kind == "response" {
			return pairs
		}
		switch method, _ := m.method.Value.(ast.String); method {
		case "tools/call":
			name, arguments, ok := namedParams(m.params, keyName, keyArguments)
			if !ok {
				return nil
			}
			if arguments == nil {
				arguments = ast.ObjectTerm()
			}
			return append(pairs, [2]*ast.Term{keyTool, name}, [2]*ast.Term{keyArguments, arguments})
		case "prompts/get":
			name, arguments, ok := namedParams(m.params, keyName, keyArguments)
			if !ok {
				return nil
			}
			if arguments == nil {
				arguments = ast.ObjectTerm()
			}
			return append(pairs, [2]*ast.Term{keyPrompt, name}, [2]*ast.Term{keyArguments, arguments})
		case "resources/read", "resources/subscribe", "resources/unsubscribe":
			uri, _, ok := namedParams(m.params, keyURI, nil)
			if !ok {
				return nil
			}
			return append(pairs, [2]*ast.Term{keyResource, uri})
		}
		return pairs
	})
}

// namedParams reads the name of what is called and its arguments. A member
// that differs from those only in case is refused: some servers take it.
func namedParams(params, nameKey, argumentsKey *ast.Term) (name, arguments *ast.Term, ok bool) {
	if params == nil {
		return nil, nil, false
	}
	object, isObject := params.Value.(ast.Object)
	if !isObject {
		return nil, nil, false
	}
	ok = true
	object.Foreach(func(key, value *ast.Term) {
		for _, known := range []*ast.Term{nameKey, argumentsKey} {
			if known == nil {
				continue
			}
			a, _ := key.Value.(ast.String)
			b, _ := known.Value.(ast.String)
			if a != b && strings.EqualFold(string(a), string(b)) {
				ok = false
			}
		}
	})
	name = object.Get(nameKey)
	if argumentsKey != nil {
		arguments = object.Get(argumentsKey)
	}
	if name == nil || !ok {
		return nil, nil, false
	}
	text, isText := name.Value.(ast.String)
	if !isText || text == "" || !isPlainText(string(text)) {
		return nil, nil, false
	}
	if arguments != nil {
		if _, isObject := arguments.Value.(ast.Object); !isObject {
			return nil, nil, false
		}
	}
	return name, arguments, true
}
