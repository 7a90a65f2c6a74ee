package policies

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/open-policy-agent/opa/v1/ast"
)

func TestF154JSONIsStrict(t *testing.T) {
	good := []string{
		`null`, `true`, `false`, `0`, `-0`, `12.5e-3`, `1E+2`, `""`, `"a\"\\\/\b\f\n\r\tZ"`, `"é\u00e9"`, `"\ud83d\ude00"`,
		`[]`, `[1, [2], {"a": []}]`, `{}`, ` { "a" : 1 , "b" : [ ] } `, "\t\r\n1",
		strings.Repeat("[", maxBodyDepth) + strings.Repeat("]", maxBodyDepth),
	}
	for _, s := range good {
		term := parseJSON([]byte(s))
		if term == nil {
			t.Errorf("%.60s is refused", s)
			continue
		}
		var want any
		if err := json.Unmarshal([]byte(s), &want); err != nil {
			t.Fatal(err)
		}
		got, err := ast.JSON(term.Value)
		if err != nil {
			t.Fatal(err)
		}
		if normalised(t, got) != normalised(t, want) {
			t.Errorf("%s is read as %v", s, got)
		}
	}
	bad := []string{
		``, ` `, `nul`, `True`, `01`, `-`, `1.`, `.5`, `1e`, `+1`, `1e1000`, `0x1`, `NaN`, `Infinity`, strings.Repeat("1", 41),
		`t`, `tru`, `[tru`, `nulL`, `"\ud800`, `"\ud800\`, `"\ud800x`, `"\ud800\n0000"`, `"\ud800xu0000"`, `"`, `"a`, `'a'`, `"\x"`, `"\u12"`, `"\ud800"`, `"\ud800\u0041"`, `"\udc00"`, "\"\n\"", "\"\x00\"",
		`[`, `[1`, `[1,]`, `[,1]`, `[1 2]`, `{`, `{"a"}`, `{"a":}`, `{"a":1,}`, `{a:1}`, `{"a":1 "b":2}`, `{1:1}`,
		`{"a":1,"a":1}`, `{"a":1,"\u0061":1}`, `{"x":{"a":1,"a":2}}`, `1 2`, `{}{}`, `[]x`, "\ufeff{}", `/* c */ 1`, `1 // c`,
		strings.Repeat("[", maxBodyDepth+1) + strings.Repeat("]", maxBodyDepth+1), strings.Repeat("[", 1<<20),
	}
	for _, s := range bad {
		if term := parseJSON([]byte(s)); term != nil {
			t.Errorf("%.60q is read as %v", s, term)
		}
	}
}

func normalised(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var x any
	if err := json.Unmarshal(b, &x); err != nil {
		t.Fatal(err)
	}
	if b, err = json.Marshal(x); err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// What we read, encoding/json reads in the same way.
func FuzzJSON(f *testing.F) {
	for _, s := range []string{`{"a": [1, "\u00e9", null, {"b": -1.5e3}]}`, `"\ud83d\ude00"`, `{"a":1,"a":2}`, "[[[", `1e400`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		term := parseJSON(b)
		if term == nil || !utf8.Valid(b) { // callers refuse other bytes first
			return
		}
		decoder := json.NewDecoder(bytes.NewReader(b))
		decoder.UseNumber()
		var want any
		if err := decoder.Decode(&want); err != nil {
			t.Fatalf("%q: we read %v, encoding/json fails: %v", b, term, err)
		}
		got, err := ast.JSON(term.Value)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.ContainsRune(b, '\ufffd') && !reflect.DeepEqual(got, want) && normalised(t, got) != normalised(t, want) {
			t.Fatalf("%q: we read %#v, encoding/json reads %#v", b, got, want)
		}
	})
}

func TestF154BodiesAreParsedOrUnparsed(t *testing.T) {
	const form = "application/x-www-form-urlencoded"
	tests := []struct {
		name, contentType, body, value string // value "" means unparsed
		change                         func(*Request)
	}{
		{"JSON", "application/json", `{"a": 1}`, `{"a": 1}`, nil},
		{"JSON with charset", `Application/JSON; charset="UTF-8"`, `{"a": 1}`, `{"a": 1}`, nil},
		{"JSON suffix", "application/vnd.api+json", `[1]`, `[1]`, nil},
		{"other charset", "application/json; charset=utf-16", `{"a": 1}`, "", nil},
		{"no type", "", `{"a": 1}`, "", nil},
		{"malformed type", "application/json; charset", `{"a": 1}`, "", nil},
		{"two types", "application/json", `{"a": 1}`, "", func(r *Request) {
			r.Headers["content-type"] = []string{"application/json", "text/plain"}
		}},
		{"other type", "text/plain", `{"a": 1}`, "", nil},
		{"broken JSON", "application/json", `{"a": 1`, "", nil},
		{"invalid UTF-8", "application/json", "\"\xff\"", "", nil},
		{"gzip", "application/json", `{"a": 1}`, "", func(r *Request) { r.Headers["content-encoding"] = []string{"gzip"} }},
		{"identity", "application/json", `{"a": 1}`, `{"a": 1}`, func(r *Request) { r.Headers["content-encoding"] = []string{"identity"} }},
		{"form", form, "a=1&b=x+y%26&a=2&c", `{"a": ["1", "2"], "b": ["x y&"], "c": [""]}`, nil},
		{"form with semicolon", form, "a=1;b=2", "", nil},
		{"form with broken escape", form, "a=%zz", "", nil},
		{"form that is not UTF-8 inside", form, "a=%ff", "", nil},
		{"form with too many entries", form, strings.Repeat("a&", maxFormEntries), "", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in := request(jsonBody(tt.body))
			in.Request.ContentType = tt.contentType
			if tt.change != nil {
				tt.change(&in.Request)
			}
			got := parseBody(&in.Request)
			if tt.value == "" {
				if got.value != nil || !got.unparsed || got.truncated || got.judged() {
					t.Fatalf("%+v", got)
				}
				return
			}
			if got.value == nil || !got.judged() || !got.value.Equal(ast.MustParseTerm(tt.value)) {
				t.Fatalf("%+v %v", got, got.value)
			}
		})
	}
}
