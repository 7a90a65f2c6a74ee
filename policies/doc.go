// Package policies judges requests with Rego.
//
// Authors write package warder.egress; Load compiles a folder of it once,
// together with the embedded composition (rego/decision.rego), and the Engine
// answers Decide for every request. Load first, then share the Engine: it is
// immutable and safe for concurrent use. A new policy is a new Engine.
//
// Invariants:
//   - The zero Decision denies, and so does every fault: an error of any
//     built-in, an undefined or wrongly typed result, a malformed entry, a
//     panic, an evaluation over its budget. Decide never returns an error.
//   - A policy has no effect and no sources other than its files and its input:
//     no network, no DNS, no environment, no randomness, and one clock, which
//     is the input's.
//   - The same input and the same policy give the same Decision (but for its ID).
//   - Only this package imports OPA.
package policies
