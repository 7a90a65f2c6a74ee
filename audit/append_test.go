package audit

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"
)

// general encodes r without the quick way.
func general(t *testing.T, r *Record) []byte {
	t.Helper()
	body, err := new(scratch).encode(nil, r)
	no(t, err)
	return body
}

// The quick encoder gives the bytes of encoding/json, whatever stands in a record.
func TestTheQuickEncoderIsTheGeneralOne(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	words := []string{
		"", "a", "GET", "plain text", `say "hi" \ there`, "<a href='x'>&", "é ü 日本", hostile, "\ufffd", "\U0001f600", "\x7f", "\u2028",
		strings.Repeat("x", capWord), strings.Repeat("x", capWord+1), strings.Repeat("é", capWord), strings.Repeat(`"`, capText+1), strings.Repeat("p", capPath+3),
	}
	quick := 0
	for range 20_000 {
		r := &Record{}
		shuffle(reflect.ValueOf(r).Elem(), rng, words)
		r.RunStart, r.RunEnd, r.Drop, r.Override, r.Callers = nil, nil, nil, nil, nil
		if r.Event == "" {
			r.Event = EventRequest
		}
		got, ok := appendBody([]byte("before"), r)
		if !ok {
			continue
		}
		quick++
		if want := general(t, r); string(got) != "before"+string(want) {
			at := 0
			for at < min(len(got)-6, len(want)) && got[at+6] == want[at] {
				at++
			}
			t.Fatalf("at byte %d: quick\n%.200q\ngeneral\n%.200q", at, got[at+6:], want[at:])
		}
	}
	if quick < 15_000 {
		t.Errorf("only %d of the records went the quick way", quick)
	}
}

// What the quick encoder does not do goes the general way.
func TestWhatIsNotQuickIsGeneral(t *testing.T) {
	many := make([]string, capList+1)
	for i := range many {
		many[i] = fmt.Sprint("k", i)
	}
	for name, r := range map[string]*Record{
		"a run's start": {Event: EventRunStart, RunStart: &RunStart{Argv: []string{"true"}}},
		"a run's end":   {Event: EventRunEnd, RunEnd: &RunEnd{Cause: "exit"}},
		"drops":         {Event: EventDrop, Drop: &Drop{Dropped: map[string]uint64{"udp": 1}}},
		"clients":       {Event: EventClients, Callers: &Callers{Clients: []Caller{{Name: "a"}}}},
		"an override":   {Event: EventOverride, Override: &Override{Setting: "a"}},
		"a long list":   {Event: EventRequest, Request: &Request{ID: "q", QueryKeys: many}},
	} {
		if _, ok := appendBody(nil, r); ok {
			t.Errorf("%s: went the quick way", name)
		}
		body, err := encodeBody(r)
		if err != nil || !bytes.Equal(body, general(t, r)) {
			t.Errorf("%s: %v, %s", name, err, body)
		}
	}
}

// shuffle fills v with any of the words, numbers, and absent parts.
func shuffle(v reflect.Value, rng *rand.Rand, words []string) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(words[rng.IntN(len(words))])
	case reflect.Pointer:
		if rng.IntN(3) > 0 {
			v.Set(reflect.New(v.Type().Elem()))
			shuffle(v.Elem(), rng, words)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				shuffle(v.Field(i), rng, words)
			}
		}
	case reflect.Slice:
		if n := rng.IntN(4); n > 0 && v.Type().Elem().Kind() != reflect.Uint8 {
			v.Set(reflect.MakeSlice(v.Type(), n-1, n))
			for i := range n - 1 {
				shuffle(v.Index(i), rng, words)
			}
		}
	case reflect.Map:
		if n := rng.IntN(4); n > 0 && v.Type().Elem().Kind() == reflect.String {
			v.Set(reflect.MakeMap(v.Type()))
			for range n - 1 {
				v.SetMapIndex(reflect.ValueOf(words[rng.IntN(len(words))]), reflect.ValueOf(words[rng.IntN(len(words))]))
			}
		}
	case reflect.Int, reflect.Int64:
		v.SetInt(rng.Int64N(5)*rng.Int64() - 3)
	case reflect.Bool:
		v.SetBool(rng.IntN(2) == 0)
	}
}

func TestStampIsTheLayouts(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	zone := time.FixedZone("x", -12345)
	for range 10_000 {
		at := time.Unix(rng.Int64N(1<<38), rng.Int64N(1e9)).In(zone)
		if got, want := stamp(at), at.UTC().Format(stampLayout); got != want {
			t.Fatalf("%s, want %s", got, want)
		}
	}
}

// Every byte at every place of a string of two words and a rest.
func TestUnescapedKnowsEveryByte(t *testing.T) {
	for at := range 19 {
		for c := range 256 {
			s := []byte("abcdefgh~~~~ !!#[]^")
			s[at] = byte(c)
			want := c >= 0x20 && c < 0x7f && c != '"' && c != '\\'
			if got := unescaped(string(s)); got != want {
				t.Errorf("%q: %v", s, got)
			}
		}
	}
}
