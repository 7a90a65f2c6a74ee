package policies

import "testing"

func BenchmarkLoad(b *testing.B) {
	dir := write(b, map[string]string{"policy.rego": entries})
	for b.Loop() {
		if _, err := Load(Options{Dir: dir}); err != nil {
			b.Fatal(err)
		}
	}
}
