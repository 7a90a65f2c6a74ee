package policies

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/storage"
)

// DefaultEvalTimeout is the budget of one decision; over it: policy-timeout.
const DefaultEvalTimeout = 50 * time.Millisecond

// Options say what to load.
type Options struct {
	Dir  string // folder with *.rego and data (*.json, *.yaml); required without a Bundle
	Mode string // ModeEnforce (default) or ModeMonitor

	// Bundle is a signed OPA bundle in place of Dir, which then only names it in
	// messages. Its signature must be that of BundleKey.
	Bundle    []byte
	BundleKey *BundleKey

	// Roots are further folders whose files count as if they were in Dir, such
	// as those of other teams. Each must hold Rego; no two may set the same data.
	Roots []string
	// Floor is the operator's own policy folder, "" for none. It is compiled by
	// itself: what its deny and ask entries say holds, and a request must also be
	// allowed there, so that the other folders can only narrow it.
	Floor string

	// Credentials that the configuration defines, by name. Nil leaves the
	// checks about credentials out.
	Credentials map[string]CredentialInfo

	recorded bool // Dir is the text of a whole policy, laid out by Source.Path

	EvalTimeout time.Duration // budget of one decision; 0 means DefaultEvalTimeout
	KeepInput   bool          // fill Decision.Input and InputRef
}

// CredentialInfo is what Check needs to know of a configured credential.
type CredentialInfo struct {
	Hosts   []string  // "host" or "host:port"; "*" stands for one label
	Methods *[]string // nil: any; empty: none
	Paths   *[]string // nil: any; empty: none
}

// Source is one file of the policy.
type Source struct {
	Path    string // relative to the folder, with slashes
	SHA256  string // lower-case hex of Content
	Content []byte
}

// Engine judges with one loaded policy. It is immutable and safe for concurrent use.
type Engine struct {
	dir     string
	mode    string
	timeout time.Duration
	keep    bool
	kept    *inputPlan // what is kept of an input; nil: nothing
	digest  string
	sources []Source

	denyAll string // not "": there is no policy, and this is why

	parsed              map[string]*ast.Module
	compiler            *ast.Compiler
	store               storage.Store
	txn                 storage.Transaction // one read transaction for the life of the engine
	request, connection entryQuery
	composer            func() (*composer, error) // compiles it once, when it is first needed
	cache               *decisionCache            // nil: decisions differ in every request
	watchdogs           watchdogs
	guard               *bodyGuard // nil: no rule needs it
	foresight           *foresight // nil: no rule reads a body
	floor               *Engine    // nil: there is none
	parts               part       // to be parsed, for the floor too
	needs               Needs      // of the floor too
	plan                *inputPlan
	rules               []entryRule
	creds               map[string]CredentialInfo
}

// Load reads and compiles the policy in o.Dir. A missing folder, a folder
// without a policy, and anything that does not parse or compile is a
// *LoadError that names file, line and column where there is one.
func Load(o Options) (*Engine, error) {
	switch o.Mode {
	case "":
		o.Mode = ModeEnforce
	case ModeEnforce, ModeMonitor:
	default:
		return nil, fmt.Errorf("policies: mode: %q is neither %s nor %s\nhint: set policy.mode in the configuration", o.Mode, ModeEnforce, ModeMonitor)
	}
	if o.EvalTimeout <= 0 {
		o.EvalTimeout = DefaultEvalTimeout
	}
	files, err := o.read()
	if err != nil {
		return nil, err
	}
	e := &Engine{
		dir: o.Dir, mode: o.Mode, timeout: o.EvalTimeout, keep: o.KeepInput,
		digest: digestOf(files.sources), sources: files.sources, parsed: files.modules, creds: o.Credentials,
	}
	if err := e.compile(files); err != nil {
		return nil, err
	}
	e.parts, e.needs = e.plan.parts, e.plan.needs
	if o.Floor != "" {
		if e.floor, err = Load(Options{Dir: o.Floor, Mode: o.Mode, Credentials: o.Credentials, EvalTimeout: o.EvalTimeout}); err != nil {
			return nil, fmt.Errorf("the operator's floor: %w", err)
		}
		e.underFloor()
	}
	if e.keep {
		e.kept = e.keptPlan()
	}
	return e, nil
}

// read reads what is to be compiled together.
func (o *Options) read() (*folder, error) {
	if o.Bundle == nil && o.BundleKey == nil {
		f, err := readFolderWithout(o.Dir, o.recorded)
		if err != nil {
			return nil, err
		}
		return f, f.addRoots(o.Roots)
	}
	f, err := readBundle(o.Dir, o.Bundle, o.BundleKey)
	if err != nil {
		return nil, err
	}
	return f, f.addRoots(o.Roots)
}

// underFloor takes over from the floor what concerns every decision.
func (e *Engine) underFloor() {
	f := e.floor
	e.parts |= f.parts
	e.needs.Body, e.needs.Time = e.needs.Body || f.needs.Body, e.needs.Time || f.needs.Time
	e.needs.Usage = e.needs.Usage || f.needs.Usage
	if f.cache == nil {
		e.cache = nil
	}
	for _, s := range f.sources {
		s.Path = "floor:/" + s.Path
		e.sources = append(e.sources, s)
	}
	slices.SortFunc(e.sources, func(a, b Source) int { return strings.Compare(a.Path, b.Path) })
	e.digest = digestOf(e.sources)
}

// DenyAll returns an engine that refuses everything with no-rule and reason as
// its message: for a place that must go on although there is no policy.
func DenyAll(reason string) *Engine {
	if reason == "" {
		reason = "there is no policy"
	}
	return &Engine{mode: ModeEnforce, timeout: DefaultEvalTimeout, denyAll: reason, plan: &inputPlan{}}
}

// Digest is "sha256:" and the hex SHA-256 of the lines "<sha256 of the file>  <path>\n"
// of Sources, sorted by path: what `sha256sum` over the files prints, hashed
// again. It is "" for DenyAll.
func (e *Engine) Digest() string { return e.digest }

// Revision is a short name of the policy: the first 12 hex digits of its digest, or "none".
func (e *Engine) Revision() string {
	const prefix = len("sha256:")
	if len(e.digest) < prefix+12 {
		return "none"
	}
	return e.digest[prefix : prefix+12]
}

// Mode is ModeEnforce or ModeMonitor.
func (e *Engine) Mode() string { return e.mode }

// Sources lists the files the policy was loaded from, sorted by path. Those of
// Options.Roots have paths that begin with "root1:/", "root2:/" and so on, those
// of the floor "floor:/". Tests (*_test.rego) are not among them. The caller must not change the contents.
func (e *Engine) Sources() []Source { return append([]Source(nil), e.sources...) }

// Needs says what must be gathered for Decide.
func (e *Engine) Needs() Needs { return e.needs }
