package policies

import (
	"github.com/open-policy-agent/opa/v1/ast"
)

// maxOperations bounds the operations of one request, over its whole batch.
const maxOperations = 100

var (
	keyOperations    = ast.StringTerm("operations")
	keyFields        = ast.StringTerm("fields")
	keyQuery         = ast.StringTerm("query")
	keyOperationName = ast.StringTerm("operationName")
	keyVariables     = ast.StringTerm("variables")
	keyExtensions    = ast.StringTerm("extensions")
)

// graphqlParams are the members of a GraphQL request over HTTP, in a body and
// in a URL. Any other could name a stored document, whose text is not here.
var graphqlParams = map[string]bool{"query": true, "operationName": true, "variables": true, "extensions": true}

// parseGraphQL reads the operations of a GraphQL request (GraphQL over HTTP).
// It returns nil when the request has neither a body nor a query in its URL.
// All operations of a document are listed, also when operationName picks one.
func parseGraphQL(r *Request, b *parsedBody) *ast.Term {
	inURL := false
	for key := range r.Query {
		inURL = inURL || graphqlParams[key]
	}
	hasBody := b.truncated || b.unparsed || b.value != nil
	switch {
	case !inURL && !hasBody:
		return nil
	case inURL && hasBody:
		return unparsedPart() // servers differ in which of the two they take
	case inURL:
		return graphqlPart(false, graphqlForm(r.Query))
	case b.truncated:
		return unparsedPart()
	case b.unparsed:
		if plainMedia(r) != "application/graphql" {
			return unparsedPart()
		}
		return graphqlPart(false, parseDocument(string(r.Body)))
	}
	switch v := b.value.Value.(type) {
	case ast.Object:
		if plainMedia(r) == "application/x-www-form-urlencoded" {
			form, ok := formOf(v)
			if !ok {
				return unparsedPart()
			}
			return graphqlPart(false, graphqlForm(form))
		}
		return graphqlPart(false, graphqlObject(v))
	case *ast.Array:
		var all []graphqlOperation
		for i := range v.Len() {
			object, ok := v.Elem(i).Value.(ast.Object)
			if !ok {
				return unparsedPart()
			}
			operations := graphqlObject(object)
			if operations == nil {
				return unparsedPart()
			}
			if all = append(all, operations...); len(all) > maxOperations {
				return unparsedPart()
			}
		}
		return graphqlPart(true, all)
	}
	return unparsedPart()
}

func graphqlPart(batched bool, operations []graphqlOperation) *ast.Term {
	if len(operations) == 0 {
		return unparsedPart()
	}
	terms := make([]*ast.Term, 0, len(operations))
	for _, o := range operations {
		terms = append(terms, ast.ObjectTerm(
			[2]*ast.Term{keyKind, ast.StringTerm(o.kind)},
			[2]*ast.Term{keyName, ast.StringTerm(o.name)},
			[2]*ast.Term{keyFields, stringArray(o.fields)},
		))
	}
	return ast.ObjectTerm(
		[2]*ast.Term{keyBatched, ast.InternedTerm(batched)},
		[2]*ast.Term{keyOperations, ast.ArrayTerm(terms...)},
	)
}

// formOf turns a parsed form back into lists.
func formOf(object ast.Object) (map[string][]string, bool) {
	form := make(map[string][]string, object.Len())
	good := true
	object.Foreach(func(k, v *ast.Term) {
		name, ok1 := k.Value.(ast.String)
		list, ok2 := v.Value.(*ast.Array)
		if good = good && ok1 && ok2; !good {
			return
		}
		list.Foreach(func(t *ast.Term) {
			text, ok := t.Value.(ast.String)
			good = good && ok
			form[string(name)] = append(form[string(name)], string(text))
		})
	})
	return form, good
}

// graphqlForm reads a request written as parameters.
func graphqlForm(form map[string][]string) []graphqlOperation {
	for key, values := range form {
		if !graphqlParams[key] || len(values) != 1 {
			return nil
		}
	}
	for _, key := range []string{"variables", "extensions"} {
		values := form[key]
		if len(values) == 0 || values[0] == "" {
			continue
		}
		object := parseJSON([]byte(values[0]))
		if object == nil || !isObjectOrNull(object) || key == "extensions" && namesStoredDocument(object) {
			return nil
		}
	}
	if len(form["query"]) == 0 {
		return nil
	}
	name := ""
	if len(form["operationName"]) > 0 {
		name = form["operationName"][0]
	}
	return chosen(parseDocument(form["query"][0]), name)
}

// graphqlObject reads a request written as JSON.
func graphqlObject(object ast.Object) []graphqlOperation {
	members := 0
	for _, key := range []*ast.Term{keyQuery, keyOperationName, keyVariables, keyExtensions} {
		if object.Get(key) != nil {
			members++
		}
	}
	query := object.Get(keyQuery)
	if query == nil || object.Len() != members {
		return nil
	}
	for _, key := range []*ast.Term{keyVariables, keyExtensions} {
		if value := object.Get(key); value != nil && !isObjectOrNull(value) {
			return nil
		}
	}
	if extensions := object.Get(keyExtensions); extensions != nil && namesStoredDocument(extensions) {
		return nil
	}
	text, ok := query.Value.(ast.String)
	if !ok {
		return nil
	}
	name := ""
	if value := object.Get(keyOperationName); value != nil {
		switch v := value.Value.(type) {
		case ast.String:
			name = string(v)
		case ast.Null:
		default:
			return nil
		}
	}
	return chosen(parseDocument(string(text)), name)
}

func isObjectOrNull(t *ast.Term) bool {
	switch t.Value.(type) {
	case ast.Object, ast.Null:
		return true
	}
	return false
}

// namesStoredDocument reports whether extensions hold more than we know to be
// harmless, which is nothing: persistedQuery picks another document.
func namesStoredDocument(extensions *ast.Term) bool {
	object, ok := extensions.Value.(ast.Object)
	return ok && object.Len() > 0
}

// chosen returns all operations when a server can tell which one to run.
func chosen(operations []graphqlOperation, name string) []graphqlOperation {
	if name == "" {
		if len(operations) > 1 {
			return nil
		}
		return operations
	}
	for _, o := range operations {
		if o.name == name {
			return operations
		}
	}
	return nil
}
