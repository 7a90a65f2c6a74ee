package audit

import (
	"context"
	"errors"
	"time"
)

// Options configures Open.
type Options struct {
	Dir         string           // audit directory; made with mode 0700 if it does not exist
	Durable     string           // DurableAll (also when empty) or DurableCredentialed
	Clock       func() time.Time // nil: time.Now
	SegmentSize int64            // bytes preallocated per segment; 0: DefaultSegmentSize
	FS          FS               // nil: the operating system's
	Warn        func(string)     // operator messages (recovery, low space); nil: dropped
}

// Values of Options.Durable.
const (
	DurableAll          = "all"          // every record is on disk before its future resolves
	DurableCredentialed = "credentialed" // callers use AppendRelaxed for requests without a credential
)

// FS is the file system as the writer sees it.
type FS interface{}

// Log is one open stream of an audit directory.
type Log struct{ o Options }

var errStub = errors.New("audit: not built yet")

// Open starts a new stream in o.Dir.
func Open(ctx context.Context, o Options) (*Log, error) { return nil, errStub }

// Append queues r; the future resolves when it is durable.
func (l *Log) Append(ctx context.Context, r *Record) *Future {
	return &Future{err: errStub}
}

// AppendRelaxed queues r; the future resolves once the kernel has it.
func (l *Log) AppendRelaxed(ctx context.Context, r *Record) *Future { return l.Append(ctx, r) }

// Durable returns Options.Durable.
func (l *Log) Durable() string { return l.o.Durable }

// Healthy returns nil, or why what must be durable is refused now.
func (l *Log) Healthy() error { return errStub }

// Checkpoint signs the stream's present state.
func (l *Log) Checkpoint(ctx context.Context) error { return errStub }

// Close seals the stream.
func (l *Log) Close(ctx context.Context) error { return errStub }

// VerifyOptions configures Verify.
type VerifyOptions struct{}

// Report is the result of Verify.
type Report struct {
	Verdict     string    `json:"verdict"` // complete | gap | truncated | altered
	Records     uint64    `json:"records"`
	Runs        int       `json:"runs"`
	OpenStreams []string  `json:"open_streams"`
	Findings    []Finding `json:"findings"`
}

// Finding is one thing that is not as it was written.
type Finding struct {
	Kind    string `json:"kind"` // gap | truncated | altered
	Stream  string `json:"stream,omitempty"`
	Segment int    `json:"segment,omitempty"`
	Seq     uint64 `json:"seq"`
	What    string `json:"what"`
}

// Verify checks every byte of the records in dir.
func Verify(ctx context.Context, dir string, o VerifyOptions) (Report, error) {
	return Report{}, errStub
}
