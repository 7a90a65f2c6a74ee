package faults

import (
	"slices"
	"strings"
	"testing"
)

const good = "# Faults\n\n| number | severity | fault | tests |\n|---|---|---|---|\n" +
	"| F001 | C | a trailing dot | `TestDots_F001` `TestTable/F001*` |\n" +
	"| F017 | H | ports | `TestPorts_F017_F018` |\n"

func TestParse(t *testing.T) {
	rows, err := Parse([]byte(good))
	if err != nil || len(rows) != 2 || rows[0].Severity != "C" || rows[0].Line != 5 || !slices.Equal(rows[0].Tests, []string{"TestDots_F001", "TestTable/F001*"}) {
		t.Fatalf("%+v %v", rows, err)
	}
	for name, line := range map[string]string{
		"no test":           "| F020 | C | x |  |",
		"no severity":       "| F020 | X | x | `TestX_F020` |",
		"another number":    "| F020 | C | x | `TestX_F021` |",
		"not in backticks":  "| F020 | C | x | TestX_F020 |",
		"not a test":        "| F020 | C | x | `F020` |",
		"a star in between": "| F020 | C | x | `TestX*F020` |",
		"twice":             "| F017 | C | x | `TestX_F017` |",
		"out of order":      "| F002 | C | x | `TestX_F002` |",
	} {
		if _, err := Parse([]byte(good + line + "\n")); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	if _, err := Parse([]byte("nothing\n")); err == nil {
		t.Error("an empty table was taken")
	}
}

func TestCompare(t *testing.T) {
	rows, err := Parse([]byte(good))
	if err != nil {
		t.Fatal(err)
	}
	whole := map[string]string{
		"TestDots_F001": "pass", "TestDots_F001/plain": "pass", "TestTable": "pass", "TestTable/F001_a": "pass", "TestTable/F001_b": "pass",
		"TestPorts_F017_F018": "pass", "TestOther": "fail",
	}
	for name, c := range map[string]struct {
		test, outcome string // "": did not run
		want          []string
	}{
		"F018 has no row":         {"TestOther", "fail", nil},
		"a test is gone":          {"TestDots_F001", "", []string{"line 5: F001: TestDots_F001 did not run"}},
		"a test failed":           {"TestPorts_F017_F018", "fail", []string{"line 6: F017: TestPorts_F017_F018 failed"}},
		"one of several failed":   {"TestTable/F001_b", "fail", []string{"line 5: F001: TestTable/F001* failed"}},
		"a test was skipped":      {"TestTable/F001_b", "skip", []string{"line 5: F001: TestTable/F001* was skipped"}},
		"a new one is not listed": {"TestNew/F017_x", "pass", []string{"TestNew/F017_x bears the number F017, whose row does not name it: add `TestNew/F017_x`"}},
		"nor one with no row":     {"TestNew_F099", "pass", []string{"TestNew_F099 bears the number F099, whose row does not name it: add `TestNew_F099`"}},
	} {
		ran := Ran{}
		for test, out := range whole {
			ran.Add(test, out)
		}
		delete(ran, c.test)
		if c.outcome != "" {
			ran.Add(c.test, c.outcome)
		}
		want := append(c.want, "TestPorts_F017_F018 bears the number F018, whose row does not name it: add `TestPorts_F017_F018`")
		if got := Compare(rows, ran); !slices.Equal(got, want) {
			t.Errorf("%s: %s", name, strings.Join(got, "\n"))
		}
	}
}

func TestATestThatIsRunAgainIsThatTest(t *testing.T) {
	ran := Ran{}
	ran.Add("TestX_F001", "pass")
	ran.Add("TestAgain/TestX_F001", "fail")
	if len(ran) != 1 || ran["TestX_F001"] != "fail" {
		t.Error(ran)
	}
}

func TestAWorseOutcomeStands(t *testing.T) {
	ran := Ran{}
	for _, out := range []string{"pass", "fail", "pass"} {
		ran.Add("TestX", out)
	}
	if ran["TestX"] != "fail" {
		t.Error(ran["TestX"])
	}
}

func TestNumbers(t *testing.T) {
	for name, want := range map[string]string{
		"TestDots_F001": "F001", "TestF146Conflict": "F146", "FuzzF001": "F001", "TestX_I5_F034_F041_F043": "F034 F041 F043", "TestX/mixed_answers_(F012)": "F012",
		"TestX/F017_a_port": "F017", "TestX/%2F123": "", "TestX/UTF800": "", "TestX/F1234": "", "TestX": "", "(I5, F023, F025)": "F023 F025",
	} {
		if got := strings.Join(Numbers(name), " "); got != want {
			t.Errorf("%s: %q", name, got)
		}
	}
}
