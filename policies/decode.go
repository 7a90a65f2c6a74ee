package policies

import (
	"errors"
	"fmt"

	"github.com/open-policy-agent/opa/v1/ast"
)

// The keys of data.warder.decision.
var (
	keyVerdict      = ast.StringTerm("verdict")
	keyReason       = ast.StringTerm("reason")
	keyRule         = ast.StringTerm("rule")
	keyRules        = ast.StringTerm("rules")
	keyCredential   = ast.StringTerm("credential")
	keyLimits       = ast.StringTerm("limits")
	keyMessage      = ast.StringTerm("message")
	keyHint         = ast.StringTerm("hint")
	keyScope        = ast.StringTerm("scope")
	keyTimeout      = ast.StringTerm("timeout")
	keyEncodedSlash = ast.StringTerm("encoded_slash")
	keyDetail       = ast.StringTerm("detail")
)

// maxMessage bounds Decision.Message and Hint, in bytes: an entry can make them
// of what the sandbox sent.
const maxMessage = 4096

// stageVerdicts lists what may come out at each stage, and with which reasons.
var stageVerdicts = map[string]map[Verdict][]string{
	StageRequest: {
		Allow: {""},
		Ask:   {ReasonApprovalPending},
		Deny:  {ReasonDenied, ReasonNoRule, ReasonAmbiguousCredential, ReasonCredentialBinding, ReasonPolicyError},
	},
	StageConnection: {
		Intercept:   {""},
		Passthrough: {""},
		Tunnel:      {""},
		Deny:        {ReasonPolicyError},
	},
}

// decoder reads the result document; the first thing that is not as the
// composition makes it stops everything.
type decoder struct {
	object ast.Object
	err    error
}

func decode(term *ast.Term, stage string) (Decision, error) {
	object, ok := term.Value.(ast.Object)
	if !ok {
		return Decision{}, errors.New("data.warder.decision is not an object")
	}
	r := decoder{object: object}
	d := Decision{
		Verdict:      Verdict(r.text(keyVerdict, true)),
		Reason:       r.text(keyReason, true),
		Rule:         r.text(keyRule, true),
		Credential:   r.text(keyCredential, true),
		Message:      capped(r.text(keyMessage, true), maxMessage),
		Hint:         capped(r.text(keyHint, true), maxMessage),
		Scope:        r.text(keyScope, false),
		Timeout:      r.text(keyTimeout, false),
		Detail:       r.text(keyDetail, false),
		EncodedSlash: r.flag(keyEncodedSlash),
	}
	r.array(keyRules, func(t *ast.Term) { d.Rules = append(d.Rules, r.asText(t, "rules")) })
	r.array(keyLimits, func(t *ast.Term) { d.Limits = append(d.Limits, r.limit(t)) })
	if r.err != nil {
		return Decision{}, r.err
	}
	for _, reason := range stageVerdicts[stage][d.Verdict] {
		if reason == d.Reason {
			return d, nil
		}
	}
	return Decision{}, fmt.Errorf("data.warder.decision: verdict %q with reason %q cannot be at stage %q", d.Verdict, d.Reason, stage)
}

func (r *decoder) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("data.warder.decision: "+format, args...)
	}
}

func (r *decoder) text(key *ast.Term, required bool) string {
	term := r.object.Get(key)
	if term == nil {
		if required {
			r.fail("no %v", key)
		}
		return ""
	}
	return r.asText(term, key.String())
}

func (r *decoder) asText(term *ast.Term, what string) string {
	s, ok := term.Value.(ast.String)
	if !ok {
		r.fail("%s is not a string", what)
	}
	return string(s)
}

func (r *decoder) flag(key *ast.Term) bool {
	term := r.object.Get(key)
	if term == nil {
		return false
	}
	b, ok := term.Value.(ast.Boolean)
	if !ok {
		r.fail("%v is not a boolean", key)
	}
	return bool(b)
}

func (r *decoder) array(key *ast.Term, each func(*ast.Term)) {
	term := r.object.Get(key)
	if term == nil {
		r.fail("no %v", key)
		return
	}
	list, ok := term.Value.(*ast.Array)
	if !ok {
		r.fail("%v is not an array", key)
		return
	}
	list.Foreach(each)
}

func (r *decoder) limit(term *ast.Term) Limit {
	object, ok := term.Value.(ast.Object)
	if !ok {
		r.fail("a limit is not an object")
		return Limit{}
	}
	var l Limit
	object.Foreach(func(key, value *ast.Term) {
		name, _ := key.Value.(ast.String) // another type matches no case below
		switch name {
		case "requests":
			l.Requests = r.amount(value)
		case "bytes_out":
			l.BytesOut = r.amount(value)
		case "bytes_in":
			l.BytesIn = r.amount(value)
		case "cost":
			l.Cost = r.amount(value)
		case "per":
			l.Per = r.asText(value, "per")
		case "rule":
			l.Rule = r.asText(value, "rule")
		default:
			r.fail("a limit has unknown key %v", key)
		}
	})
	return l
}

func (r *decoder) amount(term *ast.Term) int64 {
	n, ok := term.Value.(ast.Number)
	if !ok {
		r.fail("a limit is not a number")
		return 0
	}
	i, ok := n.Int64()
	if !ok || i < 1 {
		r.fail("limit %v is not a whole number of at least 1", n)
		return 0
	}
	return i
}
