package proxy

import (
	"fmt"
	"io"
	"net/http"
	"strings"

	"warder/policies"
)

// The reason codes. Their meaning never changes; new ones may be added.
const (
	reasonNoRule                = "no-rule"
	reasonDenied                = "denied"
	reasonAmbiguousCredential   = "ambiguous-credential"
	reasonPolicyError           = "policy-error"
	reasonPolicyTimeout         = "policy-timeout"
	reasonApprovalPending       = "approval-pending"
	reasonApprovalDenied        = "approval-denied"
	reasonApprovalTimeout       = "approval-timeout"
	reasonInternalAddress       = "internal-address"
	reasonCredentialBinding     = "credential-binding"
	reasonStandInLeak           = "stand-in-leak"
	reasonClearTextCredential   = "clear-text-credential"
	reasonNotTLS                = "not-tls"
	reasonUnauthenticated       = "unauthenticated"
	reasonLimitExceeded         = "limit-exceeded"
	reasonTooMany               = "too-many"
	reasonBadRequest            = "bad-request"
	reasonMethodNotAllowed      = "method-not-allowed"
	reasonTooLarge              = "too-large"
	reasonAuthorityMismatch     = "authority-mismatch"
	reasonCredentialUnavailable = "credential-unavailable"
	reasonAuditUnavailable      = "audit-unavailable"
	reasonInternalError         = "internal-error"
	reasonUnknownAddress        = "unknown-address"
	reasonUpstreamDNS           = "upstream-dns"
	reasonUpstreamRefused       = "upstream-refused"
	reasonUpstreamTLS           = "upstream-tls"
	reasonUpstreamProtocol      = "upstream-protocol"
	reasonUpstreamTimeout       = "upstream-timeout"
)

// Verdicts of a record.
const (
	verdictAllow = "allow"
	verdictDeny  = "deny"
	verdictError = "error"
)

// reason is one row of the table that the denial document, the gRPC status, the
// record's verdict and docs/reasons.md all come from.
type reason struct {
	code    string
	status  int    // HTTP; 0: the connection is reset
	grpc    string // "": not reachable by gRPC
	retry   string // no | yes | later
	after   int    // Retry-After in seconds, 0: not sent
	verdict string
	title   string
	meaning string
}

// reasonTable returns the rows in the order of the documentation.
func reasonTable() []reason {
	const policyTitle = "Denied by policy"
	return []reason{
		{reasonNoRule, 403, "PERMISSION_DENIED", "no", 0, verdictDeny, policyTitle, "No rule allows this request."},
		{reasonDenied, 403, "PERMISSION_DENIED", "no", 0, verdictDeny, policyTitle, "A rule forbids this request."},
		{reasonAmbiguousCredential, 403, "PERMISSION_DENIED", "no", 0, verdictDeny, policyTitle, "Matching rules name more than one credential."},
		{reasonPolicyError, 403, "PERMISSION_DENIED", "no", 0, verdictDeny, policyTitle, "The policy could not be evaluated; the operator's log says why."},
		{reasonPolicyTimeout, 403, "PERMISSION_DENIED", "no", 0, verdictDeny, policyTitle, "The policy took longer than its time budget."},
		{reasonApprovalDenied, 403, "PERMISSION_DENIED", "no", 0, verdictDeny, policyTitle, "A person refused the request."},
		{reasonApprovalTimeout, 403, "PERMISSION_DENIED", "no", 0, verdictDeny, policyTitle, "Nobody answered the question in time."},
		{reasonInternalAddress, 403, "PERMISSION_DENIED", "no", 0, verdictDeny, "Internal address", "The name leads to a loopback, private, link-local, metadata or otherwise internal address."},
		{reasonCredentialBinding, 403, "PERMISSION_DENIED", "no", 0, verdictDeny, "Credential not bound here", "The credential is not offered to this run, or not bound to this host, port, method or path."},
		{reasonStandInLeak, 403, "PERMISSION_DENIED", "no", 0, verdictDeny, "Stand-in outside its place", "A stand-in for a credential was sent to a place that the credential is not bound to."},
		{reasonClearTextCredential, 403, "PERMISSION_DENIED", "no", 0, verdictDeny, "Credential needs TLS", "The rule names a credential and the request is in clear text; use https."},
		{reasonNotTLS, 403, "PERMISSION_DENIED", "no", 0, verdictDeny, "Not TLS and not HTTP", "The connection carried neither TLS nor HTTP, or nothing at all."},
		{reasonApprovalPending, 403, "FAILED_PRECONDITION", "yes", 5, verdictDeny, "Approval pending", "A person must approve the request first; ask again after Retry-After."},
		{reasonUnauthenticated, 407, "UNAUTHENTICATED", "no", 0, verdictDeny, "Unknown client", "The caller of the proxy did not show a known token."},
		{reasonLimitExceeded, 429, "RESOURCE_EXHAUSTED", "later", 0, verdictDeny, "Limit exceeded", "A limit that a matching rule sets is used up."},
		{reasonTooMany, 429, "RESOURCE_EXHAUSTED", "later", 0, verdictDeny, "Too many at once", "The run holds too many connections or requests at once."},
		{reasonBadRequest, 400, "INVALID_ARGUMENT", "no", 0, verdictDeny, "Bad request", "The request is malformed, or not in canonical form."},
		{reasonMethodNotAllowed, 405, "INVALID_ARGUMENT", "no", 0, verdictDeny, "Method not allowed", "The method is unknown, in the wrong case, or not possible here."},
		{reasonTooLarge, 413, "INVALID_ARGUMENT", "no", 0, verdictDeny, "Too large", "The request's body (413) or head (431) is too large."},
		{reasonAuthorityMismatch, 421, "INVALID_ARGUMENT", "no", 0, verdictDeny, "Authority mismatch", "The connection was made for one name and the request (or the TLS handshake) names another."},
		{reasonCredentialUnavailable, 503, "UNAVAILABLE", "yes", 5, verdictError, "Credential unavailable", "The credential could not be had; nothing was sent."},
		{reasonAuditUnavailable, 503, "UNAVAILABLE", "yes", 5, verdictError, "Audit unavailable", "The record could not be written; nothing was sent."},
		{reasonInternalError, 500, "INTERNAL", "later", 0, verdictError, "Internal error", "A fault of the proxy itself; nothing more was sent."},
		{reasonUnknownAddress, 0, "", "no", 0, verdictDeny, "Unknown address", "The address stands for no name; the connection is reset and recorded."},
		{reasonUpstreamDNS, 502, "UNAVAILABLE", "yes", 0, verdictError, "Upstream failed", "The allowed name could not be resolved."},
		{reasonUpstreamRefused, 502, "UNAVAILABLE", "yes", 0, verdictError, "Upstream failed", "The upstream did not accept the connection."},
		{reasonUpstreamTLS, 502, "UNAVAILABLE", "yes", 0, verdictError, "Upstream failed", "The upstream's TLS handshake failed or its certificate was not trusted for the name."},
		{reasonUpstreamProtocol, 502, "UNAVAILABLE", "yes", 0, verdictError, "Upstream failed", "The upstream's answer was not valid HTTP, or could not be searched for injected values."},
		{reasonUpstreamTimeout, 504, "DEADLINE_EXCEEDED", "yes", 0, verdictError, "Upstream failed", "The upstream did not answer in time."},
	}
}

// reasonByCode finds a row; an unknown code is our own fault and denies as one.
func reasonByCode(code string) reason {
	var own reason
	for _, r := range reasonTable() {
		if r.code == code {
			return r
		}
		if r.code == reasonInternalError {
			own = r
		}
	}
	return own
}

// refusal is why a request goes no further. Reason, detail, hint and rule are
// shown to the sandbox; cause is for the record and the operator alone.
type refusal struct {
	reason string
	status int // 0: the table's
	rule   string
	detail string
	hint   string
	cause  string
	after  int    // Retry-After in seconds; 0: the table's
	asked  string // the other name of an authority mismatch
	gone   bool   // nothing was refused: the client or the run went away

	decision *policies.Decision // of a policy that came into force later; nil: the one that let it through
}

func (f *refusal) Error() string { return f.reason + ": " + f.detail }

func refuse(code, detail string) *refusal { return &refusal{reason: code, detail: detail} }

func badRequest(format string, args ...any) *refusal {
	return &refusal{reason: reasonBadRequest, detail: fmt.Sprintf(format, args...)}
}

// httpStatus is what the client is answered with.
func (f *refusal) httpStatus() int {
	if f.status != 0 {
		return f.status
	}
	if s := reasonByCode(f.reason).status; s != 0 {
		return s
	}
	return http.StatusForbidden
}

// WriteReasons writes the table as a Markdown document (docs/reasons.md).
func WriteReasons(w io.Writer) error {
	var b strings.Builder
	b.WriteString("# Reasons\n\n" +
		"Every refusal carries one of these codes: in the denial document (`reason`), in the audit record, and in the\n" +
		"`denied` list of `warder run -o json`. A code never changes its meaning; new codes may be added.\n\n" +
		"The denial document is `application/problem+json` (RFC 9457) with `type`, `title`, `status`, `reason`, `rule`\n" +
		"(null when no rule decided), `detail`, `hint`, `decision_id` and `run`.\n\n" +
		"*Retry* says whether the same request can succeed unchanged: `yes` soon, `later` when something was freed or\n" +
		"mended, `no` never. Where seconds stand beside it, the answer has a `Retry-After` header.\n\n" +
		"| reason | HTTP | gRPC | retry | verdict | meaning |\n|---|---|---|---|---|---|\n")
	for _, r := range reasonTable() {
		status, code, retry := "reset", "–", r.retry
		switch {
		case r.code == reasonTooLarge:
			status = "413 or 431"
		case r.status != 0:
			status = fmt.Sprint(r.status)
		}
		if r.grpc != "" {
			code = r.grpc
		}
		if r.after > 0 {
			retry = fmt.Sprintf("%s (%d s)", r.retry, r.after)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s |\n", r.code, status, code, retry, r.verdict, r.meaning)
	}
	b.WriteString("\nThis file is written by `go generate ./proxy`.\n")
	_, err := io.WriteString(w, b.String())
	return err
}
