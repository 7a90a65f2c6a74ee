package policies

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/topdown"
)

// Composition is a pure function of the entries that matched, the approvals
// and the offered credentials. A policy has few combinations of those, so each
// is composed in Rego once and remembered; judging a request then costs only
// the evaluation of the entries.

// bridge gives the composition its entries through the input, so that it
// compiles once and without the policy.
const bridge = `package warder.egress

allow := input.entries.allow

deny := input.entries.deny

ask := input.entries.ask

passthrough := input.entries.passthrough

tunnel := input.entries.tunnel
`

// floorBridge does the same for the operator's floor, which is there when the
// input has one.
const floorBridge = `package warder.floor

active if input.floor

allow := input.floor.allow

deny := input.floor.deny

ask := input.floor.ask

passthrough := input.floor.passthrough

tunnel := input.floor.tunnel
`

// Bounds of the memory of composed decisions. Entries can hold text that the
// sandbox chose (a message with a path in it), so large ones are not kept.
const (
	maxComposed      = 4096
	maxComposedBytes = 2048
	maxSameHash      = 8 // the hash has no secret: text can be made to collide
)

type composer struct {
	store storage.Store
	txn   storage.Transaction
	query *query
	limit int // of count

	mu       sync.RWMutex
	composed map[int][]composedDecision // by hash; guarded by mu
	count    int                        // of composed; guarded by mu
}

// composedDecision is one remembered result, with all that it depends on.
type composedDecision struct {
	stage       string
	entries     []*ast.Term
	approvals   []string
	credentials []string
	decision    Decision
}

func newComposer() (*composer, error) {
	ctx := context.Background()
	c := &composer{store: newStore(map[string]any{}), composed: map[int][]composedDecision{}, limit: maxComposed}
	txn, err := c.store.NewTransaction(ctx)
	if err != nil {
		return nil, fmt.Errorf("policies: composition: %w", err)
	}
	c.txn = txn
	composition, problems := parseModule(compositionFile, []byte(compositionSource))
	bridged, more := parseModule("warder:bridge.rego", []byte(bridge))
	floor, others := parseModule("warder:floor.rego", []byte(floorBridge))
	if problems = append(append(problems, more...), others...); len(problems) > 0 {
		return nil, fmt.Errorf("policies: composition: %s", problems[0])
	}
	compiler := ast.NewCompiler().WithCapabilities(capabilities(false))
	if compiler.Compile(map[string]*ast.Module{compositionFile: composition, "bridge": bridged, "floor": floor}); compiler.Failed() {
		return nil, fmt.Errorf("policies: composition: %w", compiler.Errors)
	}
	c.query, err = prepare(ctx, compiler, c.store, c.txn, "data.warder.decision")
	return c, err
}

// entrySets are the entries that matched, by kind, in the order of stageKinds;
// behind those of the policy may stand those of the floor, in the same order.
type entrySets []*ast.Term

// stageKinds are the kinds of entries that each stage judges.
var stageKinds = map[string][]string{
	StageRequest:    {"allow", "deny", "ask"},
	StageConnection: {"deny", "passthrough", "tunnel"},
}

var keyEntries, keyFloor, keyStage, keyApprovals, keyCredentials = ast.StringTerm("entries"), ast.StringTerm("floor"), ast.StringTerm("stage"), ast.StringTerm("approvals"), ast.StringTerm("credentials")

// compose returns the decision for the entries that matched.
func (c *composer) compose(ctx context.Context, in *Input, sets entrySets, cancel topdown.Cancel) (Decision, error) {
	hash := 0
	for i, set := range sets {
		hash = hash*31 + set.Hash() + i
	}
	if d, ok := c.recall(hash, in, sets); ok {
		return d, nil
	}
	kinds := stageKinds[in.Stage]
	pairs := [][2]*ast.Term{
		{keyStage, ast.StringTerm(in.Stage)},
		{keyApprovals, stringArray(in.Approvals)},
		{keyCredentials, stringArray(in.Credentials)},
		{keyEntries, sets[:len(kinds)].object(kinds)},
	}
	if len(sets) > len(kinds) {
		pairs = append(pairs, [2]*ast.Term{keyFloor, sets[len(kinds):].object(kinds)})
	}
	term, err := c.query.eval(ctx, ast.NewObject(pairs...), cancel, in.TimeNS)
	if err != nil {
		return Decision{}, err
	}
	d, err := decode(term, in.Stage)
	if err != nil {
		return Decision{}, err
	}
	c.remember(hash, in, sets, d)
	return d, nil
}

// object is the sets by the names of their kinds.
func (s entrySets) object(kinds []string) *ast.Term {
	pairs := make([][2]*ast.Term, 0, len(kinds))
	for i, kind := range kinds {
		pairs = append(pairs, [2]*ast.Term{ast.StringTerm(kind), s[i]})
	}
	return ast.ObjectTerm(pairs...)
}

func (c *composer) recall(hash int, in *Input, sets entrySets) (Decision, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for i := range c.composed[hash] {
		known := &c.composed[hash][i]
		if known.stage == in.Stage && slices.Equal(known.approvals, in.Approvals) &&
			slices.Equal(known.credentials, in.Credentials) && slices.EqualFunc(known.entries, sets, equalTerms) {
			return known.decision, true
		}
	}
	return Decision{}, false
}

func (c *composer) remember(hash int, in *Input, sets entrySets, d Decision) {
	size := 0
	for _, set := range sets {
		size += textSize(set)
	}
	for _, list := range [][]string{in.Approvals, in.Credentials} {
		for _, s := range list {
			size += len(s)
		}
	}
	if size > maxComposedBytes {
		return
	}
	known := composedDecision{
		stage: strings.Clone(in.Stage), entries: slices.Clone(sets),
		approvals: slices.Clone(in.Approvals), credentials: slices.Clone(in.Credentials), decision: d,
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.composed[hash]) >= maxSameHash {
		return
	}
	if c.count >= c.limit {
		clear(c.composed)
		c.count = 0
	}
	c.composed[hash] = append(c.composed[hash], known)
	c.count++
}

func equalTerms(a, b *ast.Term) bool { return a.Equal(b) }

// textSize is the length of all texts and numbers in a term.
func textSize(t *ast.Term) int {
	size := 0
	ast.WalkTerms(t, func(t *ast.Term) bool {
		switch v := t.Value.(type) {
		case ast.String:
			size += len(v)
		case ast.Number:
			size += len(v)
		}
		size += 8
		return false
	})
	return size
}
