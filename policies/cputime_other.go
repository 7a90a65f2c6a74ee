//go:build !unix

package policies

import "time"

// processTime is not known here; budgets are wall time.
func processTime() (time.Duration, bool) { return 0, false }
