package audit

// anchorPoint is one signed size and root that an anchor holds.
type anchorPoint struct {
	size uint64
	root string
}

func (v *verifier) anchor() error { return nil }
