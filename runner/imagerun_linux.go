package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"warder/runner/image"
)

// useImage fetches the image and takes from it what the caller left open.
func (u *run) useImage(ctx context.Context) error {
	if u.t.Image == "" {
		return nil
	}
	if u.Images == nil {
		return errors.New("images are not available here")
	}
	var err error
	if u.image, err = u.fetchImage(ctx); err != nil {
		return err
	}
	u.t.Run.ImageDigest = u.image.Digest
	cfg := u.image.Config
	u.t.Argv = imageCommand(cfg.Entrypoint, cfg.Cmd, u.t.Entrypoint, u.t.Argv)
	if u.t.Workdir == "" {
		u.t.Workdir = cfg.Workdir
	}
	if u.t.User == "" {
		u.t.User, u.groups = u.imageUser(cfg.User, os.Geteuid() == 0)
	}
	return nil
}

// fetchImage may take minutes: a signal calls it off.
func (u *run) fetchImage(ctx context.Context) (*image.Image, error) {
	ctx, cancel := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case s, open := <-u.t.Signals:
			if !open {
				<-ctx.Done()
				return
			}
			if sig, ok := s.(syscall.Signal); ok {
				u.early.Store(int32(sig))
			}
			cancel()
		case <-ctx.Done():
		}
	}()
	img, err := u.Images.Get(ctx, u.t.Image)
	cancel()
	<-watched
	if err == nil && u.early.Load() != 0 {
		err = errors.Join(context.Canceled, img.Close())
	}
	return img, err
}

// imageCommand is the command line: the caller's words after the entry point, or
// the image's own. An entry point of the caller's leaves the image's words out.
func imageCommand(entrypoint, words []string, ours *string, argv []string) []string {
	if ours != nil {
		if entrypoint = nil; *ours != "" {
			entrypoint = []string{*ours}
		}
		words = nil
	}
	if len(argv) == 0 {
		argv = words
	}
	return slices.Concat(entrypoint, argv)
}

// imageRef is the root file system as it is recorded.
func (u *run) imageRef() string {
	switch {
	case u.image != nil:
		return u.image.Ref
	case u.t.Image != "":
		return u.t.Image // it could not be had
	}
	return "host:curated"
}

// detachedTree is the image as a mount that belongs to nowhere yet, read-only.
// As root the helper has no right on the cache, and gets this instead; see
// mapTree for whose its files are. Nil as an ordinary user: the helper has the
// caller's rights.
func (u *run) detachedTree() (*os.File, error) {
	if u.image == nil || os.Geteuid() != 0 {
		return nil, nil
	}
	fd, err := unix.OpenTree(unix.AT_FDCWD, u.image.Root, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("image %s: open_tree: %w", u.image.Ref, err)
	}
	f := os.NewFile(uintptr(fd), "image")
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, imageAttr()); err != nil {
		f.Close()
		return nil, fmt.Errorf("image %s: mount_setattr: %w", u.image.Ref, err)
	}
	return f, nil
}

// mapTree makes what the tree has of root and of the task's id theirs inside as
// well (an id-mapped mount by the helper's user namespace, mount_setattr(2)).
// Files of other ids belong to nobody inside. Where that cannot be done,
// all of them do: root of the sandbox then owns only what is laid
// over the image.
func mapTree(tree *os.File, helper int) error {
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", helper))
	if err != nil {
		return err
	}
	defer ns.Close()
	err = unix.MountSetattr(int(tree.Fd()), "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns.Fd())})
	// EINVAL: not that file system; EPERM: root of a container, which does not own it.
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("mount_setattr: %w", err)
	}
	return nil
}

func imageAttr() *unix.MountAttr {
	return &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
}

// imageSource opens the image's folder in the helper, before its own mounts hide
// anything of the host.
func imageSource(p rootPlan) (*os.File, error) {
	switch {
	case p.Image == "":
		return nil, nil
	case p.Detached:
		return os.NewFile(fdImage, "image"), nil
	}
	flags := unix.O_PATH | unix.O_CLOEXEC
	if !p.Erofs {
		flags |= unix.O_DIRECTORY
	}
	fd, err := unix.Open(p.Image, flags, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "image"), nil
}

// mountImage binds what stands at the top of the image into root, which the
// helper made, read-only. Mounts below a folder of the host do not come along.
func mountImage(src *os.File, p rootPlan, base, root string) error {
	if src == nil {
		return nil
	}
	defer src.Close()
	at := filepath.Join(base, imageName)
	if err := makeMountPoint(at, p.Erofs); err != nil {
		return err
	}
	if p.Detached {
		if err := unix.MoveMount(int(src.Fd()), "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("move_mount: %w", err)
		}
	} else if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", src.Fd()), at, "", unix.MS_BIND, ""); err != nil {
		if errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("bind: %w; hint: the folder has other file systems mounted below it", err)
		}
		return fmt.Errorf("bind: %w", err)
	}
	if err := unix.MountSetattr(unix.AT_FDCWD, at, 0, imageAttr()); err != nil {
		return fmt.Errorf("mount_setattr: %w", err)
	}
	if !p.Erofs {
		entries, err := os.ReadDir(at)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if err := bindTop(at, root, e); err != nil {
				return fmt.Errorf("%s: %w", e.Name(), err)
			}
		}
	} else if f, err := os.Open(at); err != nil { // gVisor would say it less plainly
		return fmt.Errorf("%w; hint: the image has to be readable by root of the sandbox: by everybody, or by the caller", err)
	} else if err := f.Close(); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(base, upperName), p.Upper, 0o644) // the sentry reads it
}

func makeMountPoint(at string, file bool) error {
	if file {
		return os.WriteFile(at, nil, 0o644)
	}
	return os.Mkdir(at, 0o755)
}

func bindTop(at, root string, e os.DirEntry) error {
	from, to := filepath.Join(at, e.Name()), filepath.Join(root, e.Name())
	switch {
	case slices.Contains(ownTops, e.Name()):
		return nil
	case e.Type()&os.ModeSymlink != 0:
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	case e.IsDir():
		if err := os.Mkdir(to, 0o755); err != nil {
			return err
		}
	case e.Type().IsRegular():
		if err := os.WriteFile(to, nil, 0o644); err != nil {
			return err
		}
	default:
		return nil
	}
	return unix.Mount(from, to, "", unix.MS_BIND, "") // as read-only as what it is a part of
}
