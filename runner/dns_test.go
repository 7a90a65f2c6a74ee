package runner

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

func query(t testing.TB, name string, typ dnsmessage.Type, class dnsmessage.Class) []byte {
	t.Helper()
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 7, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: typ, Class: class}},
	}
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func reply(t testing.TB, b []byte) dnsmessage.Message {
	t.Helper()
	var m dnsmessage.Message
	if err := m.Unpack(b); err != nil {
		t.Fatalf("unreadable reply: %v", err)
	}
	return m
}

func TestDNSGivesEachNameOneAddressForTheRun(t *testing.T) {
	n := newNames(100)
	first := reply(t, n.answer(query(t, "Api.Example.TEST.", dnsmessage.TypeA, dnsmessage.ClassINET)))
	again := reply(t, n.answer(query(t, "api.example.test.", dnsmessage.TypeA, dnsmessage.ClassINET)))
	other := reply(t, n.answer(query(t, "other.example.test.", dnsmessage.TypeA, dnsmessage.ClassINET)))
	addr := func(m dnsmessage.Message) netip.Addr {
		return netip.AddrFrom4(m.Answers[0].Body.(*dnsmessage.AResource).A)
	}
	if addr(first) != addr(again) || addr(first) == addr(other) {
		t.Errorf("addresses %v %v %v", addr(first), addr(again), addr(other))
	}
	if name, ok := n.lookup(addr(first)); !ok || name != "api.example.test" {
		t.Errorf("address stands for %q, %v", name, ok)
	}
	if _, ok := n.lookup(netip.MustParseAddr("198.18.9.9")); ok {
		t.Error("an unassigned pool address has a name")
	}
	if first.ID != 7 || !first.Response || first.RCode != dnsmessage.RCodeSuccess {
		t.Errorf("header %+v", first.Header)
	}
}

func TestDNSAnswersEveryOtherTypeEmpty(t *testing.T) {
	n := newNames(100)
	for _, typ := range []dnsmessage.Type{dnsmessage.TypeAAAA, dnsmessage.TypeTXT, dnsmessage.TypeMX, dnsmessage.TypeSRV, dnsmessage.TypeNS, dnsmessage.TypePTR, dnsmessage.TypeALL, 64, 65} {
		m := reply(t, n.answer(query(t, "secret-data.evil.test.", typ, dnsmessage.ClassINET)))
		if m.RCode != dnsmessage.RCodeSuccess || len(m.Answers)+len(m.Authorities)+len(m.Additionals) != 0 {
			t.Errorf("type %v: %v with %d answers", typ, m.RCode, len(m.Answers))
		}
	}
	if len(n.byName) != 0 {
		t.Error("a query without an address took a place in the table")
	}
}

func TestDNSRefusesWhatNoHostIsNamed(t *testing.T) {
	n := newNames(100)
	for _, name := range []string{"a b.test.", "a/b.test.", "user@x.test.", "100%.test.", "."} {
		m := reply(t, n.answer(query(t, name, dnsmessage.TypeA, dnsmessage.ClassINET)))
		if m.RCode != dnsmessage.RCodeNameError {
			t.Errorf("%q: %v", name, m.RCode)
		}
	}
	if m := reply(t, n.answer(query(t, "x.test.", dnsmessage.TypeA, dnsmessage.ClassCHAOS))); m.RCode != dnsmessage.RCodeRefused {
		t.Errorf("class CHAOS: %v", m.RCode)
	}
}

func TestDNSTableFullIsServerFailureAndCounted(t *testing.T) {
	n := newNames(2)
	for _, name := range []string{"a.test.", "b.test."} {
		n.answer(query(t, name, dnsmessage.TypeA, dnsmessage.ClassINET))
	}
	if m := reply(t, n.answer(query(t, "c.test.", dnsmessage.TypeA, dnsmessage.ClassINET))); m.RCode != dnsmessage.RCodeServerFailure {
		t.Errorf("full table: %v", m.RCode)
	}
	if m := reply(t, n.answer(query(t, "a.test.", dnsmessage.TypeA, dnsmessage.ClassINET))); len(m.Answers) != 1 {
		t.Error("a known name is no longer answered")
	}
	if _, err := n.assign("d.test"); !errors.Is(err, errTableFull) {
		t.Errorf("assign: %v", err)
	}
	if n.refused() != 2 {
		t.Errorf("refused %d, want 2", n.refused())
	}
}

func TestDNSPoolNeverLeavesItsRange(t *testing.T) {
	n := newNames(maxNames)
	for i := range maxNames {
		a, err := n.assign(string(rune('a'+i%26)) + "-" + netip.AddrFrom4([4]byte{0, 0, byte(i >> 8), byte(i)}).String())
		if err != nil || !poolPrefix.Contains(a) {
			t.Fatalf("name %d: %v %v", i, a, err)
		}
	}
}

// TestDNSTellsWhatItCannotRead: a client learns at once that its query was no
// good, and an answer is never answered.
func TestDNSTellsWhatItCannotRead(t *testing.T) {
	good := query(t, "a.test.", dnsmessage.TypeA, dnsmessage.ClassINET)
	change := func(f func(b []byte) []byte) []byte { return f(append([]byte(nil), good...)) }
	for name, c := range map[string]struct {
		query []byte
		want  dnsmessage.RCode
	}{
		"cut off in its header":   {good[:7], dnsmessage.RCodeFormatError},
		"cut off in its question": {good[:len(good)-3], dnsmessage.RCodeFormatError},
		"no question":             {change(func(b []byte) []byte { b[5] = 0; return b[:dnsHeader] }), dnsmessage.RCodeFormatError},
		"two questions":           {change(func(b []byte) []byte { b[5] = 2; return append(b, b[dnsHeader:]...) }), dnsmessage.RCodeFormatError},
		"a name that never ends":  {change(func(b []byte) []byte { b[12], b[13] = 0xc0, 12; return b }), dnsmessage.RCodeFormatError},
		"an update":               {change(func(b []byte) []byte { b[2] |= 5 << 3; return b }), dnsmessage.RCodeNotImplemented},
		"control":                 {good, dnsmessage.RCodeSuccess},
	} {
		n := newNames(4)
		m := reply(t, n.answer(c.query))
		if m.ID != 7 || !m.Response || m.RCode != c.want || !m.RecursionDesired {
			t.Errorf("%s: %+v", name, m.Header)
		}
		if want := map[bool]int{true: 1}[c.want == dnsmessage.RCodeSuccess]; len(n.byName) != want {
			t.Errorf("%s: %d names", name, len(n.byName))
		}
	}
	for name, b := range map[string][]byte{
		"nothing": {}, "no room for an identity": good[:1], "an identity alone": good[:2],
		"an answer": change(func(b []byte) []byte { b[2] |= 0x80; return b }), "a torn answer": {0, 7, 0x81},
	} {
		if out := newNames(4).answer(b); out != nil {
			t.Errorf("%s is answered: % x", name, out)
		}
	}
}

func FuzzDNSAnswer(f *testing.F) {
	f.Add(query(f, "a.test.", dnsmessage.TypeA, dnsmessage.ClassINET))
	f.Add(query(f, "a.test.", dnsmessage.TypeAAAA, dnsmessage.ClassINET))
	f.Add([]byte{})
	f.Add([]byte{0, 1, 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		n := newNames(4)
		out := n.answer(b)
		if out == nil {
			if len(b) >= 3 && b[2]&0x80 == 0 {
				t.Error("a query is not answered")
			}
			return
		}
		m := reply(t, out)
		if !m.Response || len(out) > 1500 {
			t.Errorf("reply of %d bytes, response %v", len(out), m.Response)
		}
	})
}
