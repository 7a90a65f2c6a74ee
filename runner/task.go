package runner

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"
	"unicode/utf8"

	"warder/audit"
	"warder/internal/identity"
	"warder/proxy"
)

// Task is one command to run.
type Task struct {
	Run      identity.Run
	Argv     []string
	Env      []string // NAME=value, declared by the caller
	Workdir  string   // a relative one is below /workspace
	User     string   // "", a uid, "root" or "task"; ":" and a gid may follow
	Limits   Limits
	Image    string    // reference of the root file system; "" is the host's /usr
	UIDRange [2]uint32 // first host id and count, used as root

	Network string // NetworkAuto (also ""), NetworkCard or NetworkSocket

	Entrypoint   *string // in place of the image's; "" for none
	Inputs       []Input
	InputStdin   io.Reader // what an input named "-" is; nil: there is none
	Artifacts    []string  // patterns below /workspace or /out
	ArtifactsDir string

	Credentials []string // names offered; nil means all configured ones

	Terminal       *Terminal // nil: pipes
	Stdin          io.Reader // nil: /dev/null
	Stdout, Stderr io.Writer // nil: kept for the JSON result
	Signals        <-chan os.Signal
	Trace          func(Phase)

	// Called when the task runs, with what sends a packet there and back.
	onStart func(probe func(context.Context) error)
}

// Terminal asks for a pseudo-terminal in place of the task's stdio (pty(7)). Its
// output is one stream: what the task writes to stdout and to stderr.
type Terminal struct {
	Name    string                     // TERM inside; "" means xterm
	Size    func() (rows, cols uint16) // of the caller's terminal; 0 means unknown
	Resized <-chan os.Signal           // SIGWINCH
}

// Phase is one step of a run's life as it happens, for tests and diagnosis.
type Phase struct {
	Name       string    `json:"phase"`
	Run        string    `json:"run"`
	Time       time.Time `json:"time"`
	PID        int       `json:"pid,omitempty"`
	HelperPID  int       `json:"helper_pid,omitempty"`
	SandboxPID int       `json:"sandbox_pid,omitempty"`
}

// Causes of a run's end.
const (
	CauseExit    = "exit"    // the task ended by itself
	CauseSignal  = "signal"  // a signal ended the task
	CauseTimeout = "timeout" // the wall clock limit
	CauseOOM     = "oom"     // the memory limit
	CauseError   = "error"   // the task could not be run, or Warder failed
)

// Exit codes that are ours (docs/cli.md).
const (
	ExitTimeout       = 124
	ExitWarder        = 125
	ExitNotExecutable = 126
	ExitNotFound      = 127
	ExitOOM           = 137
)

// Result is what a run leaves. ExitCode follows docs/cli.md.
type Result struct {
	RunID       string
	ExitCode    int
	Cause       string
	Detail      string // with CauseError: why, for a person
	Stdout      []byte
	Stderr      []byte
	Truncated   bool
	Duration    time.Duration
	Denied      []proxy.Denial
	Artifacts   []audit.File
	Credentials []audit.Credential
	NotEnforced []string
	Network     string // what is in place of the network card, and why; "" is nothing
}

// MarshalJSON gives the documented result object.
func (r Result) MarshalJSON() ([]byte, error) {
	type artifact struct {
		Path    string `json:"path"`
		Size    *int64 `json:"size,omitempty"`
		Mode    string `json:"mode,omitempty"` // octal, such as 0644
		SHA256  string `json:"sha256,omitempty"`
		Refused string `json:"refused,omitempty"`
	}
	arts := make([]artifact, 0, len(r.Artifacts))
	for _, a := range r.Artifacts {
		x := artifact{Path: a.Path, Mode: a.Mode, SHA256: a.SHA256, Refused: a.Refused}
		if a.Refused == "" {
			x.Size = &a.Size
		}
		arts = append(arts, x)
	}
	denied := r.Denied
	if denied == nil {
		denied = []proxy.Denial{}
	}
	m := map[string]any{
		"run_id": r.RunID, "exit_code": r.ExitCode, "cause": r.Cause,
		"truncated": r.Truncated, "duration_ms": r.Duration.Milliseconds(),
		"denied": denied, "artifacts": arts,
	}
	if r.Detail != "" {
		m["detail"] = r.Detail
	}
	if len(r.Credentials) > 0 {
		m["credentials"] = r.Credentials
	}
	if len(r.NotEnforced) > 0 {
		m["not_enforced"] = r.NotEnforced
	}
	if r.Network != "" {
		m["network"] = r.Network
	}
	putOutput(m, "stdout", r.Stdout)
	putOutput(m, "stderr", r.Stderr)
	return json.Marshal(m)
}

func putOutput(m map[string]any, name string, b []byte) {
	if utf8.Valid(b) {
		m[name] = string(b)
		return
	}
	m[name+"_base64"] = base64.StdEncoding.EncodeToString(b)
}

// Error is a run that Warder refused or could not finish. Code is the exit code.
type Error struct {
	Code int
	Err  error
}

func (e *Error) Error() string { return e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

func refusef(format string, args ...any) error {
	return &Error{ExitWarder, fmt.Errorf(format, args...)}
}
