package audit

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"warder/internal/identity"
)

// record is a Record and the room for its parts, so that a cleaned copy of a request's
// record needs no allocation of its own.
type record struct {
	Record
	run   identity.Run
	req   Request
	dst   Dst
	pol   Policy
	cred  Credential
	resp  Response
	times Timing
}

// fill makes s a cleaned copy of r, with the writer's keys empty.
func (s *record) fill(r *Record, c caps) {
	s.Record = Record{
		Event: c.word(r.Event), Stage: c.word(r.Stage), Mode: c.word(r.Mode),
		Verdict: c.word(r.Verdict), Reason: c.word(r.Reason), Rule: c.word(r.Rule),
		Would: c.word(r.Would), Detail: c.text(r.Detail, capText),
	}
	if r.Run != nil {
		s.run = c.run(*r.Run)
		s.Run = &s.run
	}
	if r.Request != nil {
		s.req = c.request(*r.Request)
		s.Request = &s.req
	}
	if r.Dst != nil {
		s.dst = Dst{
			IP: c.text(r.Dst.IP, capHost), Port: r.Dst.Port, SNI: c.text(r.Dst.SNI, capHost),
			TLSVersion: c.word(r.Dst.TLSVersion), CertSHA256: c.word(r.Dst.CertSHA256),
		}
		s.Dst = &s.dst
	}
	if r.Policy != nil {
		s.pol = Policy{
			Revision: c.word(r.Policy.Revision), Digest: c.word(r.Policy.Digest),
			DecisionID: c.word(r.Policy.DecisionID), Mode: c.word(r.Policy.Mode), InputRef: c.word(r.Policy.InputRef),
		}
		s.Policy = &s.pol
	}
	if r.Credential != nil {
		s.cred = c.credential(*r.Credential)
		s.Credential = &s.cred
	}
	if r.Response != nil {
		s.resp = *r.Response
		s.Response = &s.resp
	}
	if r.Timing != nil {
		s.times = *r.Timing
		s.Timing = &s.times
	}
	s.fillEvent(r, c)
}

// fillEvent copies the keys that only some events have.
func (s *record) fillEvent(r *Record, c caps) {
	if in := r.RunStart; in != nil {
		s.RunStart = &RunStart{
			Argv: c.list(in.Argv, capList, capPath), EnvNames: c.list(in.EnvNames, capList, capWord),
			Inputs: c.files(in.Inputs), Limits: c.limitMap(in.Limits, 0), Image: c.text(in.Image, capHost), NoDigest: in.NoDigest,
		}
	}
	if in := r.RunEnd; in != nil {
		out := &RunEnd{
			Cause: c.word(in.Cause), ExitCode: in.ExitCode, Artifacts: c.files(in.Artifacts),
			Stdout: c.output(in.Stdout), Stderr: c.output(in.Stderr),
		}
		for _, cred := range in.Credentials[:min(len(in.Credentials), c.count(capList))] {
			out.Credentials = append(out.Credentials, c.credential(cred))
		}
		if n := len(in.Credentials) - len(out.Credentials); n > 0 {
			out.Credentials = append(out.Credentials, Credential{Name: "…(+" + strconv.Itoa(n) + ")"})
		}
		s.RunEnd = out
	}
	if r.Drop != nil {
		s.Drop = &Drop{Dropped: c.counts(r.Dropped)}
	}
	if r.Override != nil {
		s.Override = &Override{Setting: c.word(r.Setting), Value: c.text(r.Value, capText)}
	}
	if r.Callers != nil {
		s.Callers = &Callers{Clients: c.callers(r.Clients), Gone: c.list(r.Gone, capFiles, capWord)}
	}
}

func (c caps) callers(in []Caller) []Caller {
	out := []Caller{}
	for _, caller := range in[:min(len(in), c.count(capFiles))] {
		out = append(out, Caller{
			Name: c.word(caller.Name), KnownBy: c.word(caller.KnownBy), CertSHA256: c.word(caller.CertSHA256),
			Credentials: c.list(caller.Credentials, capList, capWord),
		})
	}
	if n := len(in) - len(out); n > 0 {
		out = append(out, Caller{Name: "…(+" + strconv.Itoa(n) + ")", Credentials: []string{}})
	}
	return out
}

func (c caps) request(in Request) Request {
	return Request{
		ID: c.word(in.ID), Method: c.word(in.Method), Scheme: c.word(in.Scheme),
		Host: c.text(in.Host, capHost), Port: in.Port, Path: c.text(in.Path, capPath),
		QueryKeys: c.list(in.QueryKeys, capList, capWord), Protocol: c.word(in.Protocol),
		HeaderNames: c.list(in.HeaderNames, capList, capWord),
		Bytes:       in.Bytes, Attempts: in.Attempts, StandIns: in.StandIns, Asked: c.text(in.Asked, capHost),
	}
}

func (c caps) output(in *Stream) *Stream {
	if in == nil {
		return nil
	}
	return &Stream{Bytes: in.Bytes, SHA256: c.word(in.SHA256), Truncated: in.Truncated}
}

// firstKeys returns the n smallest keys of m, so that a cut is the same each time.
func firstKeys[V any](m map[string]V, n int) []string {
	keys := slices.Sorted(maps.Keys(m))
	return keys[:min(n, len(keys))]
}

// mark adds an entry that says how many of total entries are missing in out.
func mark[V any](out map[string]V, total int, value func(string) V) map[string]V {
	if n := total - len(out); n > 0 {
		more := "…(+" + strconv.Itoa(n) + ")"
		out[more] = value(more)
	}
	return out
}

// finite turns the floats that JSON has no words for into text.
func finite(v float64) any {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return sprint(v)
	}
	return v
}

func sprint(v any) string { return fmt.Sprint(v) }

func hexSum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
