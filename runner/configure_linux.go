package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"

	"golang.org/x/sys/unix"

	"warder/audit"
)

// configure tells the helper what to do and streams the inputs.
func (u *run) configure(ctx context.Context) error {
	if u.Outside != nil {
		u.outside = u.Outside(ctx)
	}
	root, err := u.rootPlan()
	if err != nil {
		return refusef("%w", err)
	}
	h := helperConfig{
		ID: u.t.Run.ID, Args: u.t.Argv, Env: u.environment(), Cwd: u.t.Workdir, UID: u.ident.uid, GID: u.ident.gid, Groups: u.groups, Root: root,
		NProc: uint64(u.limits.PIDs), NoFile: defaultNoFile,
		Disk: u.limits.Disk, Tmp: min(u.limits.Disk, maxTmp), Overlay: u.limits.overlay(u.image != nil),
		HasInputs: len(u.plan) > 0, Terminal: u.t.Terminal != nil, Network: u.t.Network,
	}
	if !path.IsAbs(h.Cwd) {
		h.Cwd = path.Join("/workspace", h.Cwd)
	}
	err = json.NewEncoder(u.feed).Encode(h)
	if cerr := u.feed.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		u.copied, err = u.sendInputs(ctx)
	}
	if err != nil {
		switch why := u.helperFailure(); {
		case why != nil && errors.Is(err, unix.EPIPE):
			err = why // it closed the pipe
		default:
			err = errors.Join(err, why)
		}
		if len(u.plan) > 0 {
			err = hinted(err, "inputs have to be yours to read, to stay as they are meanwhile, and to fit into --disk")
		}
	}
	if err != nil && u.cg.oomKilled() {
		return &Error{ExitOOM, errors.New("out of memory while the inputs were copied: /workspace and /out are in memory; hint: --memory")}
	}
	if err != nil {
		return refusef("sandbox: prepare: %w", err)
	}
	return nil
}

func (u *run) sendInputs(ctx context.Context) ([]audit.File, error) {
	defer u.inputs.Close()
	if len(u.plan) == 0 {
		return nil, nil
	}
	for i, e := range u.plan {
		if e.stdin != nil {
			u.plan[i].stdin = u.untilTheEnd(e.stdin)
		}
	}
	return packInputs(ctx, u.inputs, u.plan)
}

// helperFailure is what the helper says when a pipe to it broke.
func (u *run) helperFailure() error {
	m, _, err := u.ctl.recv()
	if errors.Is(err, io.EOF) {
		return errHelperKilled
	}
	if err == nil && m.Err != "" {
		return fmt.Errorf("%s: %s", m.Step, m.Err)
	}
	return nil
}

var errHelperKilled = errors.New("the helper process was killed")
