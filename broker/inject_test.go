package broker

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"warder/internal/config"
	"warder/internal/secret"
)

const value = "S3CR3T-CANARY+/ =&%x"

func TestInjectReplacesTheClientsOwnValue(t *testing.T) {
	pair := "Basic " + base64.StdEncoding.EncodeToString([]byte("bot:"+value))
	for name, c := range map[string]struct {
		slot   config.Inject
		header http.Header
		want   http.Header
	}{
		"absent":      {config.Inject{Header: "X-Api-Key"}, nil, http.Header{"X-Api-Key": {value}}},
		"format":      {config.Inject{Header: "Authorization", Format: "Bearer {value}"}, http.Header{"Accept": {"a"}}, http.Header{"Accept": {"a"}, "Authorization": {"Bearer " + value}}},
		"all values":  {config.Inject{Header: "x-api-key"}, http.Header{"X-Api-Key": {"a", "b"}}, http.Header{"X-Api-Key": {value}}},
		"any case":    {config.Inject{Header: "X-Api-Key"}, http.Header{"x-api-KEY": {"a"}, "X-API-KEY": {"b"}, "X-Api-Key2": {"c"}}, http.Header{"X-Api-Key": {value}, "X-Api-Key2": {"c"}}},
		"basic":       {config.Inject{Basic: &config.Basic{Username: "bot"}}, http.Header{"authorization": {"Bearer own"}}, http.Header{"Authorization": {pair}}},
		"no username": {config.Inject{Basic: &config.Basic{}}, nil, http.Header{"Authorization": {"Basic " + base64.StdEncoding.EncodeToString([]byte(":"+value))}}},
	} {
		req := &http.Request{Header: c.header, Trailer: http.Header{"X-Api-Key": {"late"}, "Authorization": {"late"}}}
		g := &Grant{Name: "n", slot: c.slot, value: secret.New(value)}
		if err := g.Inject(req); err != nil {
			t.Fatal(name, err)
		}
		if len(req.Header) != len(c.want) || len(req.Trailer) != 1 {
			t.Errorf("%s: fields %d, trailers %d", name, len(req.Header), len(req.Trailer))
		}
		for k, v := range c.want {
			if got := req.Header[k]; len(got) != 1 || got[0] != v[0] {
				t.Errorf("%s: %s is wrong", name, k)
			}
		}
	}
}

func TestInjectQueryKeepsEverythingElse(t *testing.T) {
	enc := "key=" + url.QueryEscape(value)
	for in, want := range map[string]string{
		"":                            enc,
		"a=1":                         "a=1&" + enc,
		"a=%7e&b=+&c":                 "a=%7e&b=+&c&" + enc,
		"key=own":                     enc,
		"key":                         enc,
		"a=1&key=own&b=2&key=again":   "a=1&b=2&" + enc,
		"k%65y=own&%6B%65%79=x&keys=": "keys=&" + enc,
		"a=1;key=own":                 "a=1&" + enc,
		"Key=kept":                    "Key=kept&" + enc,
		"%zz=1":                       "%zz=1&" + enc,
	} {
		g := &Grant{Name: "n", slot: config.Inject{Query: "key"}, value: secret.New(value)}
		req := &http.Request{URL: &url.URL{Path: "/p", RawQuery: in}}
		if err := g.Inject(req); err != nil || req.URL.RawQuery != want {
			t.Errorf("%q: %q %v", in, req.URL.RawQuery, err)
		}
		req = &http.Request{URL: &url.URL{Opaque: "//h.test/p?" + in}}
		if err := g.Inject(req); err != nil || req.URL.Opaque != "//h.test/p?"+want || req.URL.RawQuery != "" {
			t.Errorf("opaque %q: %q %v", in, req.URL.Opaque, err)
		}
	}
	g := &Grant{Name: "n", slot: config.Inject{Query: "key"}, value: secret.New(value)}
	if g.Inject(&http.Request{}) == nil || g.Inject(&http.Request{URL: &url.URL{Opaque: "//h/?a", RawQuery: "b"}}) == nil {
		t.Error("no error")
	}
}

func TestInjectRefusesWhatCannotBeAValue(t *testing.T) {
	slots := map[string]config.Inject{"header": {Header: "A"}, "basic": {Basic: &config.Basic{Username: "u"}}, "query": {Query: "k"}}
	for what, v := range map[string]string{
		"empty": "", "line feed": "S3CR3T-CANARY\n", "header injection": "S3CR3T-CANARY\r\nX: y", "NUL": "S3CR3T-CANARY\x00",
		"DEL": "S3CR3T-CANARY\x7f", "tab": "S3CR3T\tCANARY", "too long": strings.Repeat("S3CR3T-CANARY", 2000), "a space before": " S3CR3T-CANARY",
		"no UTF-8": "S3CR3T-CANARY\xff",
	} {
		for name, slot := range slots {
			req := &http.Request{Header: http.Header{"A": {"own"}}, URL: &url.URL{RawQuery: "k=own"}}
			err := (&Grant{Name: "the-name", slot: slot, value: secret.New(v)}).Inject(req)
			if err == nil || !strings.Contains(err.Error(), "the-name") || strings.Contains(err.Error(), "CANARY") {
				t.Errorf("%s, %s: %v", what, name, err)
			}
			if req.Header.Get("A") != "own" || req.Header.Get("Authorization") != "" || req.URL.RawQuery != "k=own" {
				t.Errorf("%s, %s: the request was changed", what, name)
			}
		}
	}
	// Shown back from a header (read as Latin-1, escaped, quoted, …) such a value
	// would have forms that nobody searches for (I2).
	for name, slot := range slots {
		req := &http.Request{Header: http.Header{}, URL: &url.URL{}}
		err := (&Grant{Name: "the-name", slot: slot, value: secret.New("S3CR3T-CANARY-é")}).Inject(req)
		if (err != nil) != (name == "header") || err != nil && (strings.Contains(err.Error(), "CANARY") || len(req.Header) > 0) {
			t.Errorf("not ASCII, %s: %v", name, err)
		}
	}
	if err := new(Grant).Inject(&http.Request{URL: &url.URL{}}); err == nil {
		t.Error("the zero grant injects")
	}
	if err := (&Grant{value: secret.New(value)}).Inject(&http.Request{URL: &url.URL{}}); err == nil {
		t.Error("a grant without a slot injects")
	}
}

func TestSecretsOfBasicAreThePasswordAndThePair(t *testing.T) {
	g := &Grant{slot: config.Inject{Basic: &config.Basic{Username: "bot"}}, value: secret.New(value)}
	s := g.Secrets()
	if len(s) != 2 || s[0].Reveal() != value || s[1].Reveal() != base64.StdEncoding.EncodeToString([]byte("bot:"+value)) {
		t.Fatal("not both")
	}
	if s := (&Grant{slot: config.Inject{Header: "A"}, value: secret.New(value)}).Secrets(); len(s) != 1 {
		t.Fatal("not one")
	}
}
