package audit

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"warder/internal/identity"
)

// hostile is what a sandbox may try to write into the log or onto a terminal.
var hostile = strings.Join([]string{
	"\r\n", "%0d%0a", "\x1b]0;x\x07\x1b[2J", "\u2028\u2029", "\u202e\u2066", "\ufeff\u200b", "\x00\x7f\u0085\u009b",
	"\xff\xfe\xc3", `","verdict":"allow","hash":"`, "\t", "\ue000",
}, "a")

// fillStrings puts s in every string that v holds, and makes every pointer, slice and
// map hold something.
func fillStrings(v reflect.Value, s string) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(s)
	case reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		fillStrings(v.Elem(), s)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fillStrings(v.Field(i), s)
			}
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			fillStrings(v.Index(i), s)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		val := reflect.New(v.Type().Elem()).Elem()
		if val.Kind() == reflect.Interface {
			val.Set(reflect.ValueOf([]any{s, map[string]any{s: s}, []string{s}, math.Inf(1), 1.5}))
		} else {
			fillStrings(val, s)
		}
		v.SetMapIndex(reflect.ValueOf(s), val)
	case reflect.Int, reflect.Int64:
		v.SetInt(7)
	case reflect.Uint64:
		v.SetUint(7)
	case reflect.Bool:
		v.SetBool(true)
	}
}

// full is a record that has every key, with s in all strings.
func full(s string) *Record {
	r := new(Record)
	fillStrings(reflect.ValueOf(r).Elem(), s)
	r.Schema, r.ID, r.Time, r.Seq, r.Stream, r.Prev, r.Hash = "", "", "", 0, "", "", ""
	return r
}

// F158: no string of a record, wherever it stands, can end a line, forge a key or
// reach a terminal as a control.
func TestF158NoStringOfARecordForgesOrEscapes(t *testing.T) {
	g := start(t, Options{FS: &faulty{}})
	r := full(hostile)
	r.Event, r.Stage = EventRequest, StageCompleted
	g.must(t, r)
	name := g.segment(1)
	g.close(t)
	wantVerdict(t, g.dir, VerdictComplete)
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Count(b, []byte("\n")) != 1 {
		t.Errorf("%d lines for one record", bytes.Count(b, []byte("\n")))
	}
	checkSafe(t, "the file", string(b[:len(b)-1]))
	var any any
	if err := json.Unmarshal(b, &any); err != nil {
		t.Fatal(err)
	}
	decoded := 0
	eachString(any, func(s string) { decoded++; checkSafe(t, "a decoded string", s) })
	if decoded < 100 {
		t.Errorf("only %d strings were looked at", decoded)
	}
	rs := records(t, g.dir, Filter{})
	if len(rs) != 1 || rs[0].Verdict == "allow" || !strings.Contains(rs[0].Detail, `","verdict":"allow"`) {
		t.Errorf("the record came back as %+v", rs)
	}
	var story strings.Builder
	if err := Story(&story, Read(t.Context(), g.dir, Filter{})); err != nil {
		t.Fatal(err)
	}
	checkSafe(t, "the story", strings.TrimSuffix(story.String(), "\n"))
}

func checkSafe(t *testing.T, what, s string) {
	t.Helper()
	if !utf8.ValidString(s) {
		t.Errorf("%s is not UTF-8: %q", what, s)
	}
	for _, r := range s {
		if unicode.In(r, unicode.C, unicode.Zl, unicode.Zp) {
			t.Errorf("%s holds %U", what, r)
			return
		}
	}
}

func eachString(v any, f func(string)) {
	switch v := v.(type) {
	case string:
		f(v)
	case []any:
		for _, e := range v {
			eachString(e, f)
		}
	case map[string]any:
		for k, e := range v {
			f(k)
			eachString(e, f)
		}
	}
}

// F158: the searcher above finds what is not cleaned.
func TestF158ControlTheCheckFindsControls(t *testing.T) {
	found := false
	for _, r := range hostile {
		found = found || unicode.In(r, unicode.C, unicode.Zl, unicode.Zp)
	}
	if !found || utf8.ValidString(hostile) {
		t.Error("the hostile text is harmless")
	}
}

func TestCleanCutsAndMarks(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"plain text stays", "GET /repos?x=1", "GET /repos?x=1"},
		{"letters of the world stay", "Zürich 東京 🙂", "Zürich 東京 🙂"},
		{"controls become pictures", "a\nb\x1b[0m\x7f", "a␊b␛[0m␡"},
		{"formatting and separators become U+FFFD", "a\u2028b\u202ec\u0085", "a\ufffdb\ufffdc\ufffd"},
		{"invalid bytes become U+FFFD", "a\xffb", "a\ufffdb"},
		{"the cut is marked", strings.Repeat("x", 70), strings.Repeat("x", 64) + "…(+6)"},
		{"no character is cut apart", strings.Repeat("x", 63) + "üü", strings.Repeat("x", 63) + "…(+4)"},
	} {
		if got := Clean(c.in, 64); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// A record without strange text is written as it is: every key of the format, each
// value unchanged, in the order of the type.
func TestEveryKeyIsWrittenAndComesBack(t *testing.T) {
	r := full("plain")
	r.Event, r.Stage = EventRequest, StageCompleted
	body, err := encodeBody(r)
	if err != nil {
		t.Fatal(err)
	}
	got := new(Record)
	if err := json.Unmarshal([]byte("{"+string(body)+"}"), got); err != nil {
		t.Fatal(err)
	}
	r.Limits["plain"] = []any{"plain", map[string]any{"plain": "plain"}, []any{"plain"}, "+Inf", 1.5}
	want, _ := json.Marshal(r)
	back, _ := json.Marshal(got)
	if !bytes.Equal(want, back) {
		t.Errorf("came back as\n%s, want\n%s", back, want)
	}
}

// Zero values that mean something are written; absent parts are not.
func TestOptionalKeys(t *testing.T) {
	body, err := encodeBody(&Record{Event: EventRequest, Stage: StageReserved, Request: &Request{ID: "q"}, Response: &Response{}})
	if err != nil {
		t.Fatal(err)
	}
	want := `"event":"request","stage":"reserved","request":{"id":"q","bytes":0,"attempts":0},"response":{"status":0,"bytes":0,"scrubbed":0}`
	if string(body) != want {
		t.Errorf("%s, want %s", body, want)
	}
}

// F158, F167: whatever a record holds, its line is bounded, and says what was cut.
func TestF158ALineIsBounded(t *testing.T) {
	g := start(t, Options{FS: &faulty{}})
	many := make([]string, 100_000)
	files := make([]File, 20_000)
	labels := map[string]string{}
	for i := range many {
		many[i] = strings.Repeat("n", 1000)
	}
	for i := range files {
		files[i] = File{Path: strings.Repeat("p", 5000), Size: 1}
	}
	for i := range 10_000 {
		labels[strconv.Itoa(i)] = strings.Repeat("v", 5000)
	}
	g.run.Labels = labels
	g.must(t,
		&Record{Event: EventRequest, Stage: StageCompleted, Run: &identity.Run{ID: "r-1"}, Request: &Request{ID: "q", Path: "/" + strings.Repeat("a", 1<<20), HeaderNames: many, QueryKeys: many}},
		&Record{Event: EventRunEnd, Run: g.run, RunEnd: &RunEnd{Artifacts: files}},
		&Record{Event: EventRunStart, Run: g.run, RunStart: &RunStart{Argv: many, EnvNames: many, Inputs: files}})
	g.close(t)
	wantVerdict(t, g.dir, VerdictComplete)
	rs := records(t, g.dir, Filter{})
	for i, r := range rs[:3] {
		if n := len(r.Line()); n >= MaxLine {
			t.Errorf("record %d has %d bytes", i, n)
		}
	}
	if q := rs[0].Request; !strings.HasSuffix(q.Path, "…(+1040385)") || len(q.HeaderNames) != capList+1 || q.HeaderNames[capList] != "…(+99744)" {
		t.Errorf("cut to %d bytes and %d names", len(q.Path), len(q.HeaderNames))
	}
}

func TestARecordThatCannotBeWrittenFailsItsFuture(t *testing.T) {
	g := start(t, Options{FS: &faulty{}})
	for name, r := range map[string]*Record{
		"nil": nil, "no event": {}, "an id that forges": {Event: "x", ID: `","seq":1`},
	} {
		if err := g.Append(t.Context(), r).Wait(t.Context()); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	g.close(t)
	if err := g.Append(t.Context(), g.reserved("q")).Wait(t.Context()); err == nil {
		t.Error("after Close: no error")
	}
	if rep := wantVerdict(t, g.dir, VerdictComplete); rep.Records != 0 {
		t.Errorf("%d records", rep.Records)
	}
}

func FuzzClean(f *testing.F) {
	f.Add(hostile, 40)
	f.Fuzz(func(t *testing.T, s string, most int) {
		if most < 0 || most > 1<<16 {
			return
		}
		got := Clean(s, most)
		checkSafe(t, "Clean", got)
		if len(got) > most+32 {
			t.Errorf("%d bytes of at most %d", len(got), most)
		}
		if again := Clean(got, len(got)); again != got {
			t.Errorf("cleaning twice changes %q to %q", got, again)
		}
	})
}

// F158: what somebody put into the files by hand is told without reaching the terminal.
func TestF158AForgedRecordIsToldSafely(t *testing.T) {
	for _, event := range []string{EventRequest, EventRunStart, EventRunEnd, EventDrop, EventOverride, EventPolicyLoad, EventClients, "lease.x", hostile} {
		r := full(hostile)
		r.Event, r.Time = event, hostile
		var b strings.Builder
		no(t, Tell(&b, r))
		told, ok := strings.CutSuffix(b.String(), "\n")
		if !ok || len(told) < 10 {
			t.Errorf("%q is told as %q", event, told)
		}
		checkSafe(t, "the story of "+event, told)
	}
}
