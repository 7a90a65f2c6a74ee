package runner

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"time"

	"a.warder/early"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/runsc/cli/maincli"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/container"
	"gvisor.dev/gvisor/runsc/sandbox"
)

// Descriptors that the helper is started with, besides the task's stdio.
const (
	fdControl = 3 + iota
	fdConfig
	fdLink
	fdInputs
	fdStateLock // the lock of the state file lasts as long as this process
	fdImage     // only with a detached image
	fdEnd
)

// helperBase is where the helper mounts its private tmpfs, over the host's /run
// in its own mount namespace only. Short, because socket paths are.
const helperBase = "/run"

// Reexec must be the first call of main: when this process was started as a
// part of a sandbox (helper, sentry or gofer) it does that job and never returns.
func Reexec() {
	if isInner(os.Args[0]) {
		os.Exit(innerMain(os.Args))
	}
	switch early.RoleOf(os.Args) {
	case early.HelperRole:
		os.Exit(helperMain())
	case early.Runsc:
		deferCollection()
		usePrecompiledFilters()
		maincli.Main()
		os.Exit(0)
	}
}

// What a sentry or gofer does not collect while it starts.
const (
	startTime = 2 * time.Second
	startHeap = 48 << 20 // bytes; below memoryOverhead
	collectAt = 100      // percent, from then on: Go's default
)

// deferCollection leaves the garbage of a start alone: a short run ends before it
// is worth a collection, a longer one collects as ever, and gives back what the start
// left. Package heap has switched collections off.
func deferCollection() {
	limit := debug.SetMemoryLimit(startHeap) // past it there are collections
	time.AfterFunc(startTime, func() {
		debug.SetMemoryLimit(limit)
		debug.SetGCPercent(collectAt)
		debug.FreeOSMemory()
	})
}

// stepError names what the helper was doing.
type stepError struct {
	step string
	err  error
}

func (e *stepError) Error() string { return e.step + ": " + e.err.Error() }
func (e *stepError) Unwrap() error { return e.err }

func failed(step string, err error) error {
	if err == nil {
		return nil
	}
	return &stepError{step, err}
}

func helperMain() int {
	// The parent-death signals of sentry and gofer follow the thread that
	// started them: it must live as long as the process.
	runtime.LockOSThread()
	debug.SetGCPercent(-1) // as ever: it lives to start one sandbox and allocates little after that
	unix.Umask(0o022)      // the caller's would close the sandbox's root to the task
	for fd := 3; fd < fdEnd; fd++ {
		unix.CloseOnExec(fd)
	}
	log.SetTarget(&log.GoogleEmitter{Writer: &log.Writer{Next: io.Discard}})
	ctl := &control{f: os.NewFile(fdControl, "control")}
	h := &helper{ctl: ctl, orders: make(chan message, 16)}
	if err := h.run(); err != nil {
		m := message{Err: err.Error(), Code: h.code}
		var se *stepError
		if errors.As(err, &se) {
			m.Step, m.Err = se.step, se.err.Error()
		}
		_ = ctl.send(m) // the runner may be gone
		return 1
	}
	return 0
}

type helper struct {
	ctl    *control
	cfg    helperConfig
	orders chan message
	code   int

	// started is set when the task runs. Orders use it and not the container,
	// whose state belongs to the goroutine that awaits and destroys it.
	started atomic.Pointer[sandbox.Sandbox]
}

func (h *helper) run() error {
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return failed("parent-death signal", err)
	}
	cf := os.NewFile(fdConfig, "config")
	err := json.NewDecoder(cf).Decode(&h.cfg)
	_ = cf.Close()
	if err != nil {
		return failed("read configuration", err)
	}
	go h.listen()
	if err := h.prepare(); err != nil {
		return err
	}
	if err := h.ctl.send(message{Phase: phasePrepared}); err != nil {
		return err
	}
	return h.sandbox()
}

// listen is the lifeline: the end of the control socket means that the runner
// is dead, and everything of the run dies with this process.
func (h *helper) listen() {
	for {
		var err error
		var m message
		m, m.files, err = h.ctl.recv()
		if err != nil {
			os.Exit(1)
		}
		switch m.Op {
		case opKill:
			s := h.started.Load()
			if s == nil {
				os.Exit(1)
			}
			if s.SignalContainer(h.cfg.ID, unix.SIGKILL, true) != nil {
				if pid := s.Getpid(); pid > 0 {
					_ = unix.Kill(pid, unix.SIGKILL)
				}
			}
		case opSignal:
			if s := h.started.Load(); s != nil {
				_ = s.SignalContainer(h.cfg.ID, unix.Signal(m.Signal), false) // the task may just have ended
			}
		default:
			h.orders <- m
		}
	}
}

// prepare builds everything below helperBase.
func (h *helper) prepare() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return failed("private mounts", err)
	}
	img, err := imageSource(h.cfg.Root)
	if err != nil {
		return failed("open image", err)
	}
	if err := unix.Mount("tmpfs", helperBase, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=64m"); err != nil {
		return failed("mount private folder", err)
	}
	root := filepath.Join(helperBase, "root")
	if err := buildRoot(root, h.cfg.Root); err != nil {
		return failed("build root", err)
	}
	if err := mountImage(img, h.cfg.Root, helperBase, root); err != nil {
		return failed("mount image", err)
	}
	ws := filepath.Join(helperBase, "ws")
	if err := os.Mkdir(ws, 0o755); err != nil {
		return failed("workspace", err)
	}
	opts := "mode=0755,size=" + strconv.FormatInt(h.cfg.Disk, 10) + ",nr_inodes=" + strconv.FormatInt(inodes(h.cfg.Disk), 10)
	if err := unix.Mount("tmpfs", ws, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, opts); err != nil {
		return failed("mount workspace", err)
	}
	for _, d := range []string{"workspace", "out"} {
		p := filepath.Join(ws, d)
		if err := os.Mkdir(p, 0o755); err != nil {
			return failed("workspace", err)
		}
		if err := os.Chown(p, int(h.cfg.UID), int(h.cfg.GID)); err != nil {
			return failed("workspace", err)
		}
	}
	in := os.NewFile(fdInputs, "inputs")
	defer in.Close()
	if h.cfg.HasInputs {
		if err := unpackInputs(in, ws, owner{h.cfg.UID, h.cfg.GID}); err != nil {
			return failed("copy inputs", err)
		}
	}
	return failed("working directory", h.makeCwd(ws))
}

// inodes bounds the files of a disk limit: each takes kernel memory that no
// other limit counts, however small it is.
func inodes(disk int64) int64 { return max(disk/4096, 1024) }

// makeCwd makes a working directory below /workspace or /out, the task's own.
func (h *helper) makeCwd(ws string) error {
	cwd := path.Clean(h.cfg.Cwd)
	if !below(cwd, "/workspace") && !below(cwd, "/out") {
		return nil
	}
	root, err := os.OpenRoot(ws)
	if err != nil {
		return err
	}
	defer root.Close()
	return mkdirsAs(root, cwd[1:], owner{h.cfg.UID, h.cfg.GID})
}

// buildRoot makes the planned tree. Folders of the host are bound into it here,
// in the helper's mount namespace, so that gVisor sees one file system: each of
// its own mounts costs milliseconds at the start.
func buildRoot(root string, p rootPlan) error {
	for _, d := range p.Dirs {
		dst := filepath.Join(root, d.Path)
		if err := os.MkdirAll(dst, 0o755); err != nil {
			return err
		}
		mode := d.Mode.Perm()
		if d.Mode&0o1000 != 0 {
			mode |= os.ModeSticky
		}
		if err := os.Chmod(dst, mode); err != nil {
			return err
		}
	}
	for _, l := range p.Links {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, l.Path)), 0o755); err != nil {
			return err
		}
		if err := os.Symlink(l.Target, filepath.Join(root, l.Path)); err != nil {
			return err
		}
	}
	for _, f := range p.Files {
		dst := filepath.Join(root, f.Path)
		if err := os.MkdirAll(filepath.Dir(dst), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(dst, f.Data, 0o644); err != nil {
			return err
		}
	}
	for _, b := range p.Binds {
		if err := bindReadOnly(b.Source, filepath.Join(root, b.Target)); err != nil {
			return fmt.Errorf("%s: %w", b.Source, err)
		}
	}
	return nil
}

// bindReadOnly binds a folder with what is mounted below it, read-only, without
// set-id and devices (mount_setattr(2); Linux 5.12).
func bindReadOnly(source, target string) error {
	if err := unix.Mount(source, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	return unix.MountSetattr(unix.AT_FDCWD, target, unix.AT_RECURSIVE, &attr)
}

// sandbox creates, starts and awaits the container, and hands over what it left.
func (h *helper) sandbox() error {
	if h.cfg.Network == NetworkSocket {
		if err := h.openSocket(""); err != nil {
			return failed("proxy's socket", err)
		}
	}
	c, conf, err := h.create()
	if err != nil {
		return err
	}
	defer func() { _ = c.Destroy() }() // a second call after the one below does nothing
	if err := h.ctl.send(message{Phase: phaseCreated, SandboxPID: c.Sandbox.Getpid()}); err != nil {
		return err
	}
	if m := <-h.orders; m.Op != opStart {
		return failed("start", fmt.Errorf("unexpected order %q", m.Op))
	}
	task, err := h.start(c, conf)
	var noCard errNoCard
	if errors.As(err, &noCard) && h.cfg.Network != NetworkCard {
		if c, task, err = h.startWithoutCard(c, noCard); c != nil {
			defer func() { _ = c.Destroy() }()
		}
	}
	if err != nil {
		h.code = execCode(err)
		return failed("start task", err)
	}
	h.started.Store(c.Sandbox)
	time.AfterFunc(startTime, debug.FreeOSMemory) // a longer run gives back what the start left
	if err := h.ctl.send(message{Phase: phaseStarted, SandboxPID: c.Sandbox.Getpid()}); err != nil {
		return err
	}
	status, lost, err := task.wait()
	if err != nil {
		return failed("wait for task", err)
	}
	if err := c.Destroy(); err != nil {
		return failed("destroy sandbox", err)
	}
	return h.handOver(message{Phase: phaseExited, Status: uint32(status), Lost: lost})
}

func (h *helper) start(c *container.Container, conf *config.Config) (*startedTask, error) {
	if h.cfg.Socket {
		return startBehindSocket(c, conf)
	}
	return startTask(c, fdLink)
}

// create makes the container, and passes its terminal on.
func (h *helper) create() (*container.Container, *config.Config, error) {
	conf, err := runscConfig(h.cfg)
	if err != nil {
		return nil, nil, failed("configure gVisor", err)
	}
	if err := os.MkdirAll(conf.RootDir, 0o700); err != nil {
		return nil, nil, failed("configure gVisor", err)
	}
	spec := buildSpec(h.cfg, helperBase)
	raw, err := json.Marshal(spec)
	if err != nil {
		return nil, nil, failed("specification", err)
	}
	if err := os.WriteFile(filepath.Join(helperBase, "config.json"), raw, 0o644); err != nil { // the sentry reads it from there
		return nil, nil, failed("specification", err)
	}
	args := container.Args{ID: h.cfg.ID, Spec: spec, BundleDir: helperBase, Attached: true}
	var console *consoleListener
	if h.cfg.Terminal {
		if console, err = listenConsole(helperBase); err != nil {
			return nil, nil, failed("terminal", err)
		}
		args.ConsoleSocket = console.path
	}
	c, err := container.New(conf, args)
	if err != nil {
		return nil, nil, failed("create sandbox", err)
	}
	if console == nil {
		return c, conf, nil
	}
	master, err := console.master()
	if err == nil {
		err = h.ctl.send(message{Phase: phaseConsole}, master)
		_ = master.Close()
	}
	if err != nil {
		_ = c.Destroy()
		return nil, nil, failed("terminal", err)
	}
	return c, conf, nil
}

// handOver sends the descriptors of what the dead sandbox left and waits until
// the runner has read it. The mounts go with this process.
func (h *helper) handOver(end message) error {
	var files []*os.File
	for _, d := range []string{"workspace", "out"} {
		f, err := os.Open(filepath.Join(helperBase, "ws", d))
		if err != nil {
			return failed("open results", err)
		}
		files = append(files, f)
	}
	if err := h.ctl.send(end, files...); err != nil {
		return err
	}
	<-h.orders
	return nil
}

// runscConfig sets every gVisor flag that matters explicitly.
func runscConfig(c helperConfig) (*config.Config, error) {
	fs := flag.NewFlagSet("runsc", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	config.RegisterFlags(fs)
	flags := []string{
		"--root=" + filepath.Join(helperBase, "s"),
		"--rootless", "--platform=systrap", "--network=none",
		"--host-settings=ignore", "--net-raw=false",
		"--overlay2=root:memory,size=" + strconv.FormatInt(c.Overlay, 10),
		"--ignore-cgroups",
	}
	if c.Socket {
		flags = append(flags, "--host-uds=open") // of all sockets the sandbox sees one, the proxy's
	} else {
		flags = append(flags, "--host-uds=none")
	}
	if c.Root.Image != "" {
		flags = append(flags, "--allow-rootfs-tar-annotation")
	}
	if err := fs.Parse(flags); err != nil {
		return nil, err
	}
	return config.NewFromFlags(fs)
}
