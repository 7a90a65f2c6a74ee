package audit

import "context"

// AppendBehind is Append for the end of what is reserved already, which nobody waits
// for: the future resolves once the kernel has the record, within 2 ms, and the record
// then outlives this process. It is on the disk with the next record that somebody waits
// for, at most 0.2 s later. What is lost of such records is recovered as interrupted.
func (l *Log) AppendBehind(ctx context.Context, r *Record) *Future {
	return l.add(ctx, &entry{rec: r, relaxed: true})
}
