package config

import "testing"

func TestCacheDirFollowsTheCaller(t *testing.T) {
	env := func(kv ...string) func(string) string {
		return func(name string) string {
			for i := 0; i < len(kv); i += 2 {
				if kv[i] == name {
					return kv[i+1]
				}
			}
			return ""
		}
	}
	for _, tc := range []struct {
		name string
		env  func(string) string
		euid int
		want string
	}{
		{"a user's home", env(), 1000, "/home/u/.cache/warder"},
		{"XDG", env("XDG_CACHE_HOME", "/c"), 1000, "/c/warder"},
		{"a relative XDG is not one", env("XDG_CACHE_HOME", "c"), 1000, "/home/u/.cache/warder"},
		{"root, whatever sudo carried over", env("XDG_CACHE_HOME", "/home/u/.cache"), 0, "/var/cache/warder"},
		{"ours", env("WARDER_CACHE_DIR", "/w/", "XDG_CACHE_HOME", "/c"), 1000, "/w"},
		{"ours has to be absolute", env("WARDER_CACHE_DIR", "w"), 0, "/var/cache/warder"},
	} {
		if got := cacheDir(tc.env, tc.euid, "/home/u"); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.name, got, tc.want)
		}
	}
}
