package runner

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// identitySet says which host ids the processes of a run have. As an ordinary
// user there is one: the caller's, as id 0 inside. As root there are two out of
// sandbox.uid_range, distinct for every concurrent run: one for helper, sentry
// and gofer (0 inside), one for the task (taskUID inside, or the ids asked for).
type identitySet struct {
	owner     // the task's ids inside
	slots int // id pairs in the range, 0 when not root
	base  uint32
	slot  int
}

// maxUID is the largest id that a task can have: what fits into an int of every tool.
const maxUID = 1<<31 - 1

func chooseIDs(user string, idRange [2]uint32) (identitySet, error) {
	var s identitySet
	if os.Geteuid() == 0 {
		if idRange[1] < 2 || idRange[0] == 0 {
			return s, fmt.Errorf("sandbox.uid_range [%d, %d] holds no pair of unprivileged ids", idRange[0], idRange[1])
		}
		s = identitySet{owner: owner{taskUID, taskUID}, slots: int(idRange[1] / 2), base: idRange[0]}
	}
	if user == "" {
		return s, nil
	}
	name, group, grouped := strings.Cut(user, ":")
	switch name {
	case "root":
		name = "0"
	case "task":
		name = strconv.Itoa(taskUID)
	}
	if !grouped {
		group = name
	}
	for _, id := range []struct {
		what, text string
		to         *uint32
	}{{"user", name, &s.uid}, {"group", group, &s.gid}} {
		n, err := strconv.ParseUint(id.text, 10, 32)
		switch {
		case err != nil && id.what == "user":
			return s, fmt.Errorf("user %q: neither root, task nor a number", user)
		case err != nil:
			return s, fmt.Errorf("user %q: the group is no number", user)
		case n > maxUID:
			return s, fmt.Errorf("%s %d: an id is at most %d", id.what, n, maxUID)
		case n != 0 && s.slots == 0:
			return s, fmt.Errorf("%s %d is not mapped into the sandbox: an ordinary user has one id there, 0; hint: leave --user out, or run as root", id.what, n)
		}
		*id.to = uint32(n)
	}
	return s, nil
}

// hostIDs are the ids of a slot.
func (s identitySet) hostIDs(slot int) []uint32 {
	first := s.base + uint32(slot)*2
	return []uint32{first, first + 1}
}

// sysProcAttr starts the helper as root of a new user namespace that maps
// nothing but the run's ids, with its own mounts.
func (s identitySet) sysProcAttr() *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{
		Pdeathsig:  syscall.SIGKILL,
		Setsid:     true, // a terminal's signals reach us, and we decide
		Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
		Credential: &syscall.Credential{Uid: 0, Gid: 0, NoSetGroups: true},
	}
	if s.slots == 0 {
		a.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		a.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
		return a
	}
	ids := s.hostIDs(s.slot)
	pair := func(second uint32) []syscall.SysProcIDMap {
		if second == 0 {
			second = taskUID
		}
		return []syscall.SysProcIDMap{
			{ContainerID: 0, HostID: int(ids[0]), Size: 1},
			{ContainerID: int(second), HostID: int(ids[1]), Size: 1},
		}
	}
	a.UidMappings, a.GidMappings = pair(s.uid), pair(s.gid)
	a.GidMappingsEnableSetgroups = true
	a.Credential.NoSetGroups = false // drops the groups of root
	return a
}
