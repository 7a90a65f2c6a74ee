package runner

import (
	"os"
	"slices"
	"strconv"
	"strings"
)

// maxGroups bounds the groups that an image's user is given.
const maxGroups = 1024

// imageUser is the user that the image asks for (USER of a Dockerfile), in the form of
// Task.User, with the groups that it has besides. One that the image does not know, or
// that this host does not map (all maps other ids than 0), is the run's default user.
func (u *run) imageUser(user string, all bool) (string, []uint32) {
	if user == "" {
		return "", nil
	}
	var passwd, group []byte
	if root, err := os.OpenRoot(u.image.Root); err == nil { // no folder: the image has no accounts that we read
		defer root.Close()
		passwd, group = readSmall(root, "/etc/passwd"), readSmall(root, "/etc/group")
	}
	o, groups, ok := resolveUser(user, passwd, group)
	if !ok || !all && o != (owner{}) {
		return "", nil
	}
	return strconv.FormatUint(uint64(o.uid), 10) + ":" + strconv.FormatUint(uint64(o.gid), 10), groups
}

// resolveUser reads "user", "uid", and either with ":group" or ":gid", by the accounts
// of the image (passwd(5), group(5)). As the OCI image specification has it (config.md,
// User): without a group these are the user's own and those that it is a member of;
// with one it is the only one. A number that has no account is its group as well.
func resolveUser(user string, passwd, group []byte) (o owner, groups []uint32, ok bool) {
	name, asked, grouped := strings.Cut(user, ":")
	account := findLine(passwd, name, 4)
	uid, err := parseID(name)
	if account == nil && err == nil {
		account = findID(passwd, uid)
	}
	switch {
	case account != nil:
		if o.uid, err = parseID(account[2]); err != nil {
			return owner{}, nil, false
		}
		if o.gid, err = parseID(account[3]); err != nil {
			return owner{}, nil, false
		}
	case name == "root":
	case err == nil:
		o = owner{uid, uid}
	default:
		return owner{}, nil, false
	}
	if grouped {
		if g := findLine(group, asked, 3); g != nil {
			asked = g[2]
		}
		o.gid, err = parseID(asked)
		return o, nil, err == nil
	}
	if account != nil {
		name = account[0]
	}
	return o, groupsOf(group, name, o.gid), true
}

// groupsOf are the groups but own that the user is a member of, in order.
func groupsOf(group []byte, user string, own uint32) (gids []uint32) {
	for line := range strings.Lines(string(group)) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) < 4 || !slices.Contains(strings.Split(f[3], ","), user) {
			continue
		}
		if gid, err := parseID(f[2]); err == nil && gid != own {
			gids = append(gids, gid)
		}
	}
	slices.Sort(gids)
	gids = slices.Compact(gids)
	return gids[:min(len(gids), maxGroups)]
}

// findLine is the first line of an account file with that name, split, nil when there
// is none with at least that many fields.
func findLine(accounts []byte, name string, fields int) []string {
	return find(accounts, func(f []string) bool { return len(f) >= fields && name != "" && f[0] == name })
}

func findID(passwd []byte, id uint32) []string {
	return find(passwd, func(f []string) bool {
		if len(f) < 4 {
			return false
		}
		n, err := parseID(f[2])
		return err == nil && n == id
	})
}

func find(accounts []byte, is func([]string) bool) []string {
	for line := range strings.Lines(string(accounts)) {
		if f := strings.Split(strings.TrimSpace(line), ":"); is(f) {
			return f
		}
	}
	return nil
}

// parseID reads an id that a task can have.
func parseID(s string) (uint32, error) {
	id, err := strconv.ParseUint(s, 10, 32)
	switch {
	case err != nil:
		return 0, err
	case id > maxUID:
		return 0, strconv.ErrRange
	}
	return uint32(id), nil
}
