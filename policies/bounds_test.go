package policies

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// What is too deep, too large or too many ends in the right decision, and soon.

func TestF147RecursionDoesNotLoad(t *testing.T) {
	for name, rules := range map[string]string{
		"a rule":      "a := a\n",
		"two rules":   "a := b\n\nb := a\n",
		"a function":  "f(x) := f(x - 1)\n",
		"by data":     "a := data.warder.egress.b\n\nb := a + 1\n",
		"an entry":    "allow contains {\"rule\": \"r\"} if count(allow) == 0\n",
		"a variable":  "a contains x if {\n\tsome x\n\tdata.warder.egress[x]\n}\n",
		"through not": "a if not b\n\nb if not a\n",
	} {
		failure := loadFails(t, map[string]string{"p.rego": anyAllow + rules})
		if !strings.Contains(failure.Error(), "recursive") || failure.Problems[0].Line == 0 {
			t.Errorf("%s: %v", name, failure)
		}
	}
}

func TestF147LongChainsOfRulesAreJudged(t *testing.T) {
	const n = 400
	var b strings.Builder
	b.WriteString(anyAllow + "deny contains {\"rule\": \"d\"} if r0 == 8443\n")
	for i := range n {
		fmt.Fprintf(&b, "\nr%d := r%d\n", i, i+1)
	}
	fmt.Fprintf(&b, "\nr%d := input.request.port\n", n)
	e := load(t, b.String())
	want(t, decide(t, e), Allow, "")
	want(t, decide(t, e, func(in *Input) { in.Request.Port = 8443 }), Deny, ReasonDenied)
}

// Each rule holds twice the text of the one before: in all, 1 TiB.
func TestF147TextThatDoublesIsStopped(t *testing.T) {
	var b strings.Builder
	b.WriteString(anyAllow + "deny contains {\"rule\": \"d\"} if count(t40) == 1\n\nt0 := input.request.path\n")
	for i := range 40 {
		fmt.Fprintf(&b, "\nt%d := concat(\"\", [t%d, t%d])\n", i+1, i, i)
	}
	e, err := Load(Options{Dir: write(t, map[string]string{"p.rego": b.String()}), EvalTimeout: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	want(t, decide(t, e), Deny, ReasonPolicyTimeout)
}

func TestF147DeepInputIsJudged(t *testing.T) {
	e := load(t, anyAllow+"deny contains {\"rule\": \"d\"} if {\n\tinput.request.host == \"api.github.com\"\n\twalk(input.request.body, [_, \"secret\"])\n}\n")
	nested := func(depth int, leaf string) func(*Input) {
		return jsonBody(strings.Repeat(`{"a":`, depth) + fmt.Sprintf("%q", leaf) + strings.Repeat("}", depth))
	}
	want(t, decide(t, e, nested(maxBodyDepth-1, "plain")), Allow, "")
	want(t, decide(t, e, nested(maxBodyDepth-1, "secret")), Deny, ReasonDenied)
	want(t, decide(t, e, nested(maxBodyDepth+1, "plain")), Deny, ReasonDenied) // it cannot be judged
	want(t, decide(t, e, nested(100_000, "plain")), Deny, ReasonDenied)
}

// Data of 50 MB is compiled once; a decision looks up in it and copies nothing.
func TestLargeDataIsJudgedInBoundedMemory(t *testing.T) {
	const entries, size = 5_000, 10_000
	dir := write(t, map[string]string{"p.rego": "package warder.egress\n\nallow contains {\"rule\": \"known\"} if data.hosts[input.request.host]\n\nallow contains {\"rule\": \"team\"} if data.hosts[input.request.host].team == \"a\"\n"})
	file, err := os.Create(filepath.Join(dir, "data.json"))
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(file, `{"hosts": {`)
	note := strings.Repeat("n", size-40)
	for i := range entries {
		fmt.Fprintf(file, "%q:{\"team\":\"a\",\"note\":%q},", fmt.Sprintf("h%05d.test", i), note)
	}
	fmt.Fprint(file, `"last.test":{"team":"b"}}}`)
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	e, err := Load(Options{Dir: dir, EvalTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if grown := (heap() - before) >> 20; grown > 8*entries*size>>20 {
		t.Errorf("the policy takes %d MiB", grown)
	}
	for name, rules := range map[string]int{"h00000.test": 2, "h04999.test": 2, "last.test": 1, "other.test": 0} {
		if d := decide(t, e, host(name)); len(d.Rules) != rules || (d.Verdict == Allow) != (rules > 0) {
			t.Errorf("%s: %+v", name, d)
		}
	}
	e.cache = nil
	in := request(host("h04999.test"))
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	allocated := m.TotalAlloc
	for range 100 {
		want(t, e.Decide(t.Context(), in), Allow, "")
	}
	if runtime.ReadMemStats(&m); m.TotalAlloc-allocated > 10<<20 {
		t.Errorf("100 decisions allocate %d MiB", (m.TotalAlloc-allocated)>>20)
	}
}

func TestTenThousandRulesAreJudged(t *testing.T) {
	const n = 10_000
	e := load(t, benchPolicy(n))
	for _, i := range []int{0, n / 2, n - 1} {
		in := benchInput(n)
		in.Request.Host, in.Request.Path = benchHost(i), fmt.Sprintf("/v%d/x", i%4)
		in.Credentials = []string{fmt.Sprintf("c%d", i%50)}
		d := e.Decide(t.Context(), in)
		if d.Verdict != Allow || d.Rule != fmt.Sprintf("r%05d", i) || len(d.Rules) != 1 {
			t.Errorf("rule %d: %+v", i, d)
		}
	}
	in := benchInput(n)
	in.Request.Host = "denied.example.net"
	want(t, e.Decide(t.Context(), in), Deny, ReasonNoRule)
}

// The number of allocations is that of the goal in `make bench`, and does not grow
// with the number of rules.
func TestDecisionsAllocateLittle(t *testing.T) {
	for _, n := range []int{10, 1000} {
		e := load(t, benchPolicy(n))
		in := benchInput(n)
		decideOnce := func() { want(t, e.decide(t.Context(), in), Allow, "") }
		if got := testing.AllocsPerRun(100, decideOnce); got > 1 { // under the race detector pools forget
			t.Errorf("%d rules, remembered: %v allocations", n, got)
		}
		e.cache = nil
		if got := testing.AllocsPerRun(100, decideOnce); got > 100 {
			t.Errorf("%d rules: %v allocations", n, got)
		}
	}
}
