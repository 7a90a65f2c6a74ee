package secret

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/goccy/go-yaml"
)

const canary = "S3CR3T-CANARY-secret"

type holder struct {
	Public  string
	Secret  String
	Pointer *String
	List    []String
	Map     map[string]String
	private String
}

func hold() holder {
	s := New(canary)
	return holder{"S3CR3T-PUBLIC", s, &s, []String{s}, map[string]String{"k": s}, s}
}

// printers turn any value into text in every way that the product may.
func printers(t *testing.T) map[string]func(any) string {
	t.Helper()
	out := map[string]func(any) string{
		"Sprint":   func(v any) string { return fmt.Sprint(v) },
		"Sprintln": func(v any) string { return fmt.Sprintln(v) },
		"Errorf":   func(v any) string { return fmt.Errorf("x: %v", v).Error() },
		"panic": func(v any) (s string) {
			defer func() { s = fmt.Sprint(recover()) }()
			panic(v)
		},
		"json": func(v any) string { b, err := json.Marshal(v); return string(b) + fmt.Sprint(err) },
		"yaml": func(v any) string { b, err := yaml.Marshal(v); return string(b) + fmt.Sprint(err) },
		"xml":  func(v any) string { b, err := xml.Marshal(v); return string(b) + fmt.Sprint(err) },
		"slog text": func(v any) string {
			var b bytes.Buffer
			slog.New(slog.NewTextHandler(&b, nil)).Info("x", "v", v)
			return b.String()
		},
		"slog json": func(v any) string {
			var b bytes.Buffer
			slog.New(slog.NewJSONHandler(&b, nil)).Info("x", "v", v)
			return b.String()
		},
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t", "%p", "%T", "%o", "%b", "%c", "%U", "%e"} {
		out[verb] = func(v any) string { return fmt.Sprintf(verb, v) }
	}
	return out
}

// holds reports whether text shows s as it is, in hexadecimal, as numbers or in Base64.
func holds(text, s string) bool {
	nums := strings.Trim(fmt.Sprint([]byte(s)), "[]")
	octal := strings.Trim(fmt.Sprintf("%o", []byte(s)), "[]")
	binary := strings.Trim(fmt.Sprintf("%b", []byte(s)), "[]")
	low := strings.ToLower(text)
	return strings.Contains(text, s) || strings.Contains(low, hex.EncodeToString([]byte(s))) || strings.Contains(text, nums) ||
		strings.Contains(text, octal) || strings.Contains(text, binary) || strings.Contains(text, base64.StdEncoding.EncodeToString([]byte(s)))
}

func TestF077NoWayOfPrintingShowsTheValue(t *testing.T) {
	s := New(canary)
	for name, print := range printers(t) {
		for what, v := range map[string]any{"value": s, "pointer": &s, "struct": hold(), "pointer to struct": ptr(hold()), "slice": []any{s}, "error": errors.Join(fmt.Errorf("%v", s))} {
			if got := print(v); holds(got, canary) {
				t.Errorf("%s of a %s shows the value", name, what)
			}
		}
	}
}

func ptr[T any](v T) *T { return &v }

func TestPrintersWouldShowAPlainText(t *testing.T) { // the control of the test above
	for name, print := range printers(t) {
		switch name {
		case "%d", "%t", "%p", "%T", "%o", "%b", "%c", "%U", "%e": // verbs that a string does not have
			continue
		}
		if !holds(print(canary), canary) {
			t.Errorf("%s: the search does not see a plain text", name)
		}
	}
	for _, verb := range []string{"%d", "%o", "%b"} {
		if !holds(fmt.Sprintf(verb, []byte(canary)), canary) {
			t.Errorf("%s: the search does not see plain bytes", verb)
		}
	}
}

func TestZeroValueIsEmptyAndHarmless(t *testing.T) {
	var s String
	s.Wipe()
	if s.Reveal() != "" || s.Len() != 0 || !s.IsZero() || s.String() != Mask {
		t.Fatal("the zero value is not empty")
	}
}

func TestWipeClearsAllCopiesAndTheMemory(t *testing.T) {
	raw := []byte(canary)
	s := FromBytes(raw)
	other := s
	if other.Reveal() != canary || other.Len() != len(canary) {
		t.Fatal("the value is not there before")
	}
	s.Wipe()
	if other.Reveal() != "" || !other.IsZero() || bytes.ContainsAny(raw, canary) {
		t.Fatal("a copy or the memory still has the value")
	}
}

func TestNewDoesNotShareMemory(t *testing.T) {
	raw := []byte(canary)
	s := New(string(raw))
	clear(raw)
	if s.Reveal() != canary {
		t.Fatal("the value changed")
	}
}

func TestConcurrentUseIsSafe(t *testing.T) { // for the race detector
	s := New(canary)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if v := s.Reveal(); v != "" && v != canary {
				t.Error("a torn value")
			}
			s.Wipe()
		})
	}
	wg.Wait()
}
