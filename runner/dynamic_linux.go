//go:build cgo

package runner

const builtStatic = false
