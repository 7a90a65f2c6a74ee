package proxy

import (
	"bytes"
	"net/http"
	"slices"
	"strconv"
)

// A limit by cost counts what an answer says that it cost: the header field
// Warder-Cost, or the tokens that APIs of models report in JSON. An answer that
// says neither is counted by its size, bytesPerUnit for one.

const (
	costField    = "Warder-Cost"
	bytesPerUnit = 4
	costTail     = 96 // more than a key, its colon and a number
)

// costKeys are the members that hold numbers of tokens. Those of a pair add up;
// of all others the largest counts, because streams repeat them as they grow.
func costKeys() [][]string {
	return [][]string{
		{`"total_tokens"`},
		{`"totalTokenCount"`},
		{`"prompt_tokens"`, `"completion_tokens"`},
		{`"input_tokens"`, `"output_tokens"`},
	}
}

// costMeter reads the cost out of an answer as it passes.
type costMeter struct {
	stated int64 // by the header; -1: not
	found  map[string]int64
	tail   []byte
}

// meterCost is nil unless a limit of the decision counts cost.
func (x *exchange) meterCost(h http.Header) *costMeter {
	if !x.limitsCost() {
		return nil
	}
	m := &costMeter{stated: -1, found: make(map[string]int64)}
	if n, err := strconv.ParseInt(h.Get(costField), 10, 64); err == nil && n >= 0 {
		m.stated = n
	}
	return m
}

func (x *exchange) limitsCost() bool {
	for _, l := range x.decision.Limits {
		if l.Cost > 0 {
			return true
		}
	}
	return false
}

// add looks for the keys in p and what came just before. A key inside of a JSON
// text has its quotes escaped, so that an answer's content does not pass for it.
func (m *costMeter) add(p []byte, last bool) {
	if m == nil || m.stated >= 0 {
		return
	}
	window := slices.Concat(m.tail, p)
	for _, group := range costKeys() {
		for _, key := range group {
			for rest := window; ; {
				i := bytes.Index(rest, []byte(key))
				if i < 0 {
					break
				}
				rest = rest[i+len(key):]
				if n, ok := numberAfterColon(rest, last); ok {
					m.found[key] = max(m.found[key], n)
				}
			}
		}
	}
	m.tail = window[max(0, len(window)-costTail):]
}

// numberAfterColon reads ": 123"; a number that touches the end may go on unless
// it is the last part.
func numberAfterColon(b []byte, last bool) (int64, bool) {
	b = bytes.TrimLeft(b, " \t\r\n")
	if len(b) == 0 || b[0] != ':' {
		return 0, false
	}
	b = bytes.TrimLeft(b[1:], " \t\r\n")
	end := 0
	for end < len(b) && b[end] >= '0' && b[end] <= '9' {
		end++
	}
	if end == len(b) && !last {
		return 0, false
	}
	n, err := strconv.ParseInt(string(b[:end]), 10, 64)
	return n, err == nil
}

// cost is what the answer of size bytes is counted as.
func (m *costMeter) cost(size int64) int64 {
	if m.stated >= 0 {
		return m.stated
	}
	var most int64
	for _, group := range costKeys() {
		var sum int64
		for _, key := range group {
			sum += m.found[key]
		}
		most = max(most, sum)
	}
	if most == 0 {
		most = (size + bytesPerUnit - 1) / bytesPerUnit
	}
	return most
}

// spendCost counts the answer at its end.
func (x *exchange) spendCost() {
	if x.cost == nil {
		return
	}
	x.cost.add(nil, true)
	n := x.cost.cost(x.received.Load())
	for _, c := range x.counted {
		c.cost.Add(n)
	}
}
