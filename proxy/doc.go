// Package proxy is the only way out of a run: one pipeline that every request
// passes, however it arrived (transparent connection, CONNECT, absolute form).
//
//	identify run → canonicalise → decide → reserve record → grant → inject →
//	guarded dial → forward → scrub → complete record
//
// pipeline.go holds that order and nothing else decides it.
//
// Invariants:
//   - No DNS query and no dial happens before an allow.
//   - What was judged is what is dialled, verified and sent: one authority, one
//     canonical form, method, target and body byte for byte.
//   - A credential is added only after an explicit allow, only over TLS that was
//     verified for the judged name, and never travels on a pooled connection of
//     another run or credential.
//   - Nothing is forwarded before its reserved record is durable; every accepted
//     connection and every reserved request ends in a completed record.
//   - Zero values deny; a panic in any goroutine becomes a recorded
//     internal-error and the process lives on.
package proxy

//go:generate go test -run=^TestReasonsDocument$ -update .
