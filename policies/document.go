package policies

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/open-policy-agent/opa/v1/ast"

	"warder/internal/identity"
)

// document is an input document that was recorded or written by hand, and
// what the engine has to know of it.
type document struct {
	value ast.Value
	in    Input // Stage, Approvals, Credentials and TimeNS alone
	body  parsedBody
}

// DecideDocument judges an input document: JSON as policies/schemas/input.json
// describes it. stage, approvals and credentials are read as Decide reads them
// from an Input; what else is not there is undefined for the policy. An error
// says that b is not such a document.
func (e *Engine) DecideDocument(ctx context.Context, b []byte) (Decision, error) {
	doc, err := e.readDocument(b)
	if err != nil {
		return Decision{}, err
	}
	d := e.decideDocument(ctx, doc)
	d.ID = identity.NewID()
	d.Revision, d.Digest, d.Mode = e.Revision(), e.digest, e.mode
	return d, nil
}

func (e *Engine) decideDocument(ctx context.Context, doc *document) (d Decision) {
	defer func() {
		if r := recover(); r != nil {
			d = refusal(ReasonPolicyError, messageError, fmt.Sprintf("panic: %v", r))
		}
	}()
	if e.denyAll != "" {
		return refusal(ReasonNoRule, e.denyAll, "")
	}
	e.Prepare()
	watch := e.watchdogs.start(e.timeout)
	defer watch.stop()
	d, err := e.judge(ctx, &doc.in, doc.value, &doc.body, watch.cancel)
	return e.outcome(d, err, watch, e.timeout)
}

func (e *Engine) readDocument(b []byte) (*document, error) {
	if len(b) > maxFileBytes {
		return nil, fmt.Errorf("policies: input: larger than %d MiB", maxFileBytes>>20)
	}
	p := &jsonParser{in: b, maxDepth: maxDataDepth, maxNumber: maxDataNumber}
	term := p.document()
	if term == nil || !utf8.Valid(b) {
		line, column, _ := checkJSON(b)
		return nil, fmt.Errorf("policies: input: line %d, column %d: not strict JSON (one value, no duplicate names)", line, column)
	}
	object, ok := term.Value.(ast.Object)
	if !ok {
		return nil, errors.New("policies: input: not an object\nhint: policies/schemas/input.json describes it")
	}
	if err := knownNames(object); err != nil {
		return nil, err
	}
	doc := &document{value: object}
	var err error
	if doc.in.Approvals, err = textList(object, keyApprovals); err != nil {
		return nil, err
	}
	if doc.in.Credentials, err = textList(object, keyCredentials); err != nil {
		return nil, err
	}
	stage, _ := valueAt(object, "stage").(ast.String)
	if doc.in.Stage = string(stage); stage != StageRequest && stage != StageConnection {
		return nil, fmt.Errorf("policies: input: stage is neither %q nor %q", StageRequest, StageConnection)
	}
	if n, ok := valueAt(object, "time").(ast.Number); ok {
		doc.in.TimeNS, _ = n.Int64() // another number is no time
	}
	doc.body = documentParts(object)
	doc.body.unseen &= e.parts
	return doc, nil
}

// documentParts reads which parts a document says it could not hold.
func documentParts(object ast.Object) parsedBody {
	var b parsedBody
	isTrue := func(path ...string) bool {
		v, ok := valueAt(object, path...).(ast.Boolean)
		return ok && bool(v)
	}
	b.truncated, b.unparsed = isTrue("request", "body_truncated"), isTrue("request", "unparsed")
	if b.truncated || b.unparsed {
		b.unseen = partBody
	}
	for name, p := range partNames {
		if p != partBody && isTrue("request", name, "unparsed") {
			b.unseen |= p
		}
	}
	return b
}

// knownNames refuses names that are not part of an input, so that a mistyped
// one is not taken for a part that is absent.
func knownNames(object ast.Object) error {
	refs := &reference{whole: true}
	groups := map[string][]field{"": topFields(), "run": runFields(refs), "request": requestFields(refs), "destination": destinationFields()}
	for _, group := range sortedKeys(groups) {
		part := object
		if group != "" {
			value := valueAt(object, group)
			if value == nil {
				continue
			}
			var ok bool
			if part, ok = value.(ast.Object); !ok {
				return fmt.Errorf("policies: input: %s is not an object", group)
			}
		}
		for _, key := range part.Keys() {
			name, _ := key.Value.(ast.String)
			known := slices.ContainsFunc(groups[group], func(f field) bool { return f.name == string(name) })
			if _, isGroup := groups[string(name)]; !known && (group != "" || !isGroup || name == "") {
				return fmt.Errorf("policies: input: %s is not known\nhint: policies/schemas/input.json describes it", strings.TrimPrefix(group+"."+string(name), "."))
			}
		}
	}
	return nil
}

// valueAt is what stands at a path of names, or nil.
func valueAt(object ast.Object, path ...string) ast.Value {
	var value ast.Value = object
	for _, name := range path {
		object, ok := value.(ast.Object)
		if !ok {
			return nil
		}
		term := object.Get(ast.StringTerm(name))
		if term == nil {
			return nil
		}
		value = term.Value
	}
	return value
}

// textList reads a list of texts that may be absent.
func textList(object ast.Object, key *ast.Term) ([]string, error) {
	term := object.Get(key)
	if term == nil {
		return nil, nil
	}
	array, ok := term.Value.(*ast.Array)
	var list []string
	if ok {
		array.Foreach(func(t *ast.Term) {
			text, isText := t.Value.(ast.String)
			ok = ok && isText
			list = append(list, string(text))
		})
	}
	if !ok {
		return nil, fmt.Errorf("policies: input: %v is not a list of texts", key)
	}
	return list, nil
}
