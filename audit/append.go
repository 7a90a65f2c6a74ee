package audit

import (
	"strconv"
	"strings"

	"warder/internal/identity"
)

// appendBody is encodeBody for what nearly every record is: the keys of requests and
// leases, nothing too long. It cleans and writes in one pass and gives the same bytes.
// ok is false for a record that needs the general encoder.
func appendBody(dst []byte, r *Record) (_ []byte, ok bool) {
	if r.RunStart != nil || r.RunEnd != nil || r.Drop != nil || r.Override != nil || r.Callers != nil {
		return dst, false
	}
	a := appender{b: dst}
	a.b = append(a.b, `"event":`...)
	a.quote(r.Event, capWord)
	a.word(`,"stage":`, r.Stage)
	if r.Run != nil {
		a.run(r.Run)
	}
	if r.Request != nil && !a.request(r.Request) {
		return dst, false
	}
	if d := r.Dst; d != nil {
		a.open(`,"dst":{`)
		a.member(`"ip":`, d.IP, capHost)
		a.number(`"port":`, int64(d.Port))
		a.member(`"sni":`, d.SNI, capHost)
		a.member(`"tls_version":`, d.TLSVersion, capWord)
		a.member(`"cert_sha256":`, d.CertSHA256, capWord)
		a.close()
	}
	a.word(`,"mode":`, r.Mode)
	a.word(`,"verdict":`, r.Verdict)
	a.word(`,"reason":`, r.Reason)
	a.word(`,"rule":`, r.Rule)
	a.word(`,"would":`, r.Would)
	if p := r.Policy; p != nil {
		a.open(`,"policy":{`)
		a.member(`"revision":`, p.Revision, capWord)
		a.member(`"digest":`, p.Digest, capWord)
		a.member(`"decision_id":`, p.DecisionID, capWord)
		a.member(`"mode":`, p.Mode, capWord)
		a.member(`"input_ref":`, p.InputRef, capWord)
		a.close()
	}
	if r.Credential != nil {
		a.credential(r.Credential)
	}
	if p := r.Response; p != nil {
		a.b = append(a.b, `,"response":{"status":`...)
		a.b = strconv.AppendInt(a.b, int64(p.Status), 10)
		a.b = append(a.b, `,"bytes":`...)
		a.b = strconv.AppendInt(a.b, p.Bytes, 10)
		a.b = append(a.b, `,"scrubbed":`...)
		a.b = strconv.AppendInt(a.b, p.Scrubbed, 10)
		a.b = append(a.b, '}')
	}
	if t := r.Timing; t != nil {
		a.b = append(a.b, `,"timing_us":{"decide":`...)
		a.b = strconv.AppendInt(a.b, t.Decide, 10)
		a.b = append(a.b, `,"grant":`...)
		a.b = strconv.AppendInt(a.b, t.Grant, 10)
		a.b = append(a.b, `,"upstream":`...)
		a.b = strconv.AppendInt(a.b, t.Upstream, 10)
		a.b = append(a.b, `,"total":`...)
		a.b = strconv.AppendInt(a.b, t.Total, 10)
		a.b = append(a.b, '}')
	}
	if r.Detail != "" {
		a.b = append(a.b, `,"detail":`...)
		a.quote(r.Detail, capText)
	}
	return a.b, len(a.b)-len(dst) < MaxLine-2048
}

// appender writes the members of objects.
type appender struct {
	b     []byte
	comma bool // a member stands before the next in the open object
}

func (a *appender) open(head string) {
	a.b = append(a.b, head...)
	a.comma = false
}

func (a *appender) close() { a.b = append(a.b, '}') }

func (a *appender) name(name string) {
	if a.comma {
		a.b = append(a.b, ',')
	}
	a.comma = true
	a.b = append(a.b, name...)
}

// member writes a string unless it is empty.
func (a *appender) member(name, s string, most int) {
	if s != "" {
		a.name(name)
		a.quote(s, most)
	}
}

// number writes an integer unless it is zero.
func (a *appender) number(name string, n int64) {
	if n != 0 {
		a.name(name)
		a.b = strconv.AppendInt(a.b, n, 10)
	}
}

// word writes a key of the record itself unless it is empty; name has its comma.
func (a *appender) word(name, s string) {
	if s != "" {
		a.b = append(a.b, name...)
		a.quote(s, capWord)
	}
}

// quote writes s, cleaned, as a JSON string.
func (a *appender) quote(s string, most int) {
	if len(s) > most || !unescaped(s) {
		s = Clean(s, most)
		if strings.ContainsAny(s, `"\`) {
			a.escape(s)
			return
		}
	}
	a.b = append(a.b, '"')
	a.b = append(a.b, s...)
	a.b = append(a.b, '"')
}

// escape writes a cleaned s, in which only two characters need it.
func (a *appender) escape(s string) {
	a.b = append(a.b, '"')
	for i := range len(s) {
		if s[i] == '"' || s[i] == '\\' {
			a.b = append(a.b, '\\')
		}
		a.b = append(a.b, s[i])
	}
	a.b = append(a.b, '"')
}

// unescaped reports whether s is plain and stands in JSON as it is.
func unescaped(s string) bool {
	const ones = 0x0101010101010101 // times a byte: eight of it
	for ; len(s) >= 8; s = s[8:] {
		w := uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
			uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
		// Each term has the top bit of some byte set only if one of the eight is, in
		// turn: not ASCII, below space, DEL, a quote, a backslash.
		bad := w | (w - 0x20*ones) | (w + ones) | ((w ^ '"'*ones) - ones) | ((w ^ '\\'*ones) - ones)
		if bad&(0x80*ones) != 0 {
			return false
		}
	}
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c > 0x7e || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

func (a *appender) list(name string, list []string) {
	if len(list) == 0 {
		return
	}
	a.name(name)
	a.b = append(a.b, '[')
	for i, s := range list {
		if i > 0 {
			a.b = append(a.b, ',')
		}
		a.quote(s, capWord)
	}
	a.b = append(a.b, ']')
}

func (a *appender) run(r *identity.Run) {
	a.b = append(a.b, `,"run":{"id":`...)
	a.quote(r.ID, capWord)
	a.comma = true
	a.member(`"task":`, r.Task, capWord)
	a.member(`"agent":`, r.Agent, capWord)
	a.member(`"user":`, r.User, capWord)
	if len(r.Labels) > 0 {
		a.name(`"labels":{`)
		a.comma = false
		labels := caps{1}.labels(r.Labels)
		for _, k := range firstKeys(labels, len(labels)) {
			if a.comma {
				a.b = append(a.b, ',')
			}
			a.comma = true
			a.quote(k, len(k)) // clean already
			a.b = append(a.b, ':')
			a.quote(labels[k], len(labels[k]))
		}
		a.close()
		a.comma = true
	}
	a.member(`"image_digest":`, r.ImageDigest, capWord)
	a.close()
}

func (a *appender) request(q *Request) (ok bool) {
	if len(q.QueryKeys) > capList || len(q.HeaderNames) > capList {
		return false
	}
	a.b = append(a.b, `,"request":{"id":`...)
	a.quote(q.ID, capWord)
	a.comma = true
	a.member(`"method":`, q.Method, capWord)
	a.member(`"scheme":`, q.Scheme, capWord)
	a.member(`"host":`, q.Host, capHost)
	a.number(`"port":`, int64(q.Port))
	a.member(`"path":`, q.Path, capPath)
	a.list(`"query_keys":`, q.QueryKeys)
	a.member(`"protocol":`, q.Protocol, capWord)
	a.list(`"header_names":`, q.HeaderNames)
	a.b = append(a.b, `,"bytes":`...)
	a.b = strconv.AppendInt(a.b, q.Bytes, 10)
	a.b = append(a.b, `,"attempts":`...)
	a.b = strconv.AppendInt(a.b, int64(q.Attempts), 10)
	a.number(`"stand_ins":`, q.StandIns)
	a.member(`"asked":`, q.Asked, capHost)
	a.close()
	return true
}

func (a *appender) credential(c *Credential) {
	a.b = append(a.b, `,"credential":{"name":`...)
	a.quote(c.Name, capWord)
	a.comma = true
	a.member(`"kind":`, c.Kind, capWord)
	a.member(`"lease_id":`, c.LeaseID, capHost)
	a.member(`"accessor":`, c.Accessor, capWord)
	a.member(`"vault_request_id":`, c.VaultRequestID, capWord)
	a.member(`"expires":`, c.Expires, capWord)
	if c.Stale {
		a.name(`"stale":true`)
	}
	a.member(`"status":`, c.Status, capWord)
	a.member(`"detail":`, c.Detail, capText)
	a.close()
}
