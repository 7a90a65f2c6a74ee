//go:build !cgo

package runner

// builtStatic says that this binary needs no dynamic loader. The sandbox's
// processes execute it again where there is none.
const builtStatic = true
