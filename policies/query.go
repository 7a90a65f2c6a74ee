package policies

import (
	"context"
	"errors"
	"time"

	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/metrics"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/open-policy-agent/opa/v1/storage"
	"github.com/open-policy-agent/opa/v1/topdown"
)

var errUndefined = errors.New("the decision is undefined")

// query is one compiled expression. Errors of built-ins are errors of the
// evaluation.
type query struct {
	prepared rego.PreparedEvalQuery
	txn      storage.Transaction
}

func prepare(ctx context.Context, compiler *ast.Compiler, store storage.Store, txn storage.Transaction, expression string) (*query, error) {
	prepared, err := rego.New(
		rego.Query(expression),
		rego.Compiler(compiler),
		rego.Store(store),
		rego.Transaction(txn),
		rego.StrictBuiltinErrors(true),
	).PrepareForEval(ctx)
	if err != nil {
		return nil, err
	}
	return &query{prepared: prepared, txn: txn}, nil
}

// rawTerm hands the result out as it is, without a conversion to JSON types.
func rawTerm(t *ast.Term, _ *rego.EvalContext) (any, error) { return t, nil }

// eval returns the value of the expression. cancel stops the evaluation; now
// is its clock, in nanoseconds since 1970.
func (q *query) eval(ctx context.Context, input ast.Value, cancel topdown.Cancel, now int64, more ...rego.EvalOption) (*ast.Term, error) {
	// One option that applies all costs one allocation in place of one for each.
	results, err := q.prepared.Eval(ctx, func(e *rego.EvalContext) {
		rego.EvalTransaction(q.txn)(e)
		rego.EvalMetrics(metrics.NoOp())(e)
		rego.EvalGenerateJSON(rawTerm)(e)
		rego.EvalParsedInput(input)(e)
		rego.EvalExternalCancel(cancel)(e)
		rego.EvalTime(time.Unix(0, now).UTC())(e)
		for _, option := range more {
			option(e)
		}
	})
	if err != nil {
		return nil, err
	}
	if len(results) != 1 || len(results[0].Expressions) != 1 {
		return nil, errUndefined
	}
	term, ok := results[0].Expressions[0].Value.(*ast.Term)
	if !ok {
		return nil, errUndefined
	}
	return term, nil
}
