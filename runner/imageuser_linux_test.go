package runner

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"warder/runner/image"
)

const (
	testPasswd = "root:x:0:0:root:/root:/bin/sh\napp:x:1001:50:an app:/app:/bin/sh\nodd:x:many:50::/:\nhuge:x:2147483648:50::/:\nshort:x:7\n"
	testGroup  = "root:x:0:\nstaff:x:50:app\nvideo:x:44:other,app\naudio:x:29:app,root\naudio2:x:29:app\nbad:x:none:app\nhuge:x:2147483648:app\n"
)

// As the OCI image specification has it (config.md, User).
func TestTheImagesUser(t *testing.T) {
	for user, want := range map[string]string{
		"app": "1001:50 [29 44]", "1001": "1001:50 [29 44]", "app:video": "1001:44 []", "app:7": "1001:7 []", "app:staff": "1001:50 []",
		"1234": "1234:1234 []", "1234:50": "1234:50 []", "1234:staff": "1234:50 []", "0": "0:0 [29]", "root": "0:0 [29]", "root:staff": "0:50 []", "0:0": "0:0 []",
		"nobody": "none", "app:nogroup": "none", "odd": "none", "huge": "none", "short": "none", "2147483648": "none", "app:huge": "none", "app:2147483648": "none",
		":50": "none", "app:": "none", "-1": "none", "app:50:50": "none",
	} {
		got := "none"
		if o, groups, ok := resolveUser(user, []byte(testPasswd), []byte(testGroup)); ok {
			got = fmt.Sprintf("%d:%d %v", o.uid, o.gid, groups)
		}
		if got != want {
			t.Errorf("%s: %s, want %s", user, got, want)
		}
	}
	if o, _, ok := resolveUser("root", nil, nil); !ok || o != (owner{}) {
		t.Errorf("root of an image without accounts: %v, %v", o, ok)
	}
	var many strings.Builder
	for i := range 3 * maxGroups {
		fmt.Fprintf(&many, "g%d:x:%d:app\n", i, 5000+i)
	}
	if _, groups, _ := resolveUser("app", []byte(testPasswd), []byte(many.String())); len(groups) != maxGroups {
		t.Errorf("%d groups", len(groups))
	}
}

// An ordinary user has one id to give, 0: another of the image's is the default, and
// has no group of the image's user either.
func TestTheImagesUserIsMappedOrNone(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"passwd": testPasswd, "group": testGroup} {
		if err := os.MkdirAll(dir+"/etc", 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, dir+"/etc/"+name, text, 0o644)
	}
	u := &run{image: &image.Image{Root: dir}}
	for user, want := range map[string]string{"app": "1001:50", "1234:0": "1234:0", "root:staff": "0:50", "root": "0:0", "": "", "nobody": ""} {
		for _, all := range []bool{true, false} {
			if !all && want != "0:0" {
				want = ""
			}
			got, groups := u.imageUser(user, all)
			if has := len(groups) > 0; got != want || has != (want == "0:0" || user == "app" && all) {
				t.Errorf("%q, all %v: %q %v, want %q", user, all, got, groups, want)
			}
		}
	}
}

func TestAccountsOfTheTask(t *testing.T) {
	for o, want := range map[owner]string{
		{}: "task:x:1000:1000 root 0,task 1000,nogroup 65534", {1000, 1000}: "task:x:1000:1000 root 0,task 1000,nogroup 65534",
		{1234, 50}: "task:x:1234:50 root 0,task 50,nogroup 65534", {1234, 0}: "task:x:1234:0 root 0,nogroup 65534", {0, 50}: "task:x:1000:50 root 0,task 50,nogroup 65534",
		{65534, 50}: "task:x:65534:50 root 0,task 50,nogroup 65534", {50, 65534}: "task:x:50:65534 root 0,task 65534",
	} {
		passwd, group := accounts(o)
		var names []string
		for line := range strings.Lines(group) {
			f := strings.Split(line, ":")
			names = append(names, f[0]+" "+f[2])
		}
		if got := strings.Join(names, ","); !strings.Contains(passwd, "\n"+strings.SplitN(want, " ", 2)[0]+":") || !strings.HasSuffix(want, " "+got) {
			t.Errorf("%+v: %s%s", o, passwd, group)
		}
	}
}
