// What a program with nothing to lose tries on the kernel below it. Usage:
//   attacks NAME HOSTPID SHMKEY PATH…   NAME: of an abstract socket that others have
//   attacks wait NAME SHMKEY            is such another one, until its input ends
// It prints each attempt that succeeded ("worked: …"), and each control that did
// not ("no control: …").
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/if_packet.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <net/route.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>
#include <dirent.h>

static int tried;
static void attempt(const char *what, long r) { tried++; if (r >= 0) printf("worked: %s (%ld)\n", what, r); }
static void control(const char *what, int ok) { if (!ok) printf("no control: %s (%s)\n", what, strerror(errno)); }

static int abstractly(const char *name, int (*f)(int, const struct sockaddr *, socklen_t)) {
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	strncpy(a.sun_path + 1, name, sizeof a.sun_path - 2);
	int s = socket(AF_UNIX, SOCK_STREAM, 0);
	return f(s, (void *)&a, offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name)) < 0 ? -1 : s;
}

static void others(const char *name, int key) {
	int own = abstractly("warder-own", bind);
	control("an abstract socket", own >= 0 && listen(own, 1) == 0 && abstractly("warder-own", connect) >= 0);
	attempt("abstract socket of others", abstractly(name, connect));
	control("shared memory", shmget(key + 1, 4096, IPC_CREAT | 0600) >= 0);
	attempt("shared memory of others", shmget(key, 4096, 0));
	char keyname[64];
	snprintf(keyname, sizeof keyname, "warder-test-%d", key);
	attempt("key of others", syscall(SYS_request_key, "user", keyname, NULL, -3));
	attempt("search of keys", syscall(SYS_keyctl, 10, -4, "user", keyname, 0));
}

static void kernel(void) {
	char params[120] = {0}, attr[128] = {1, 0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 1};
	attempt("io_uring", syscall(425, 1, params));
	attempt("userfaultfd", syscall(SYS_userfaultfd, 0));
	attempt("bpf", syscall(SYS_bpf, 0, attr, sizeof attr));
	attempt("perf", syscall(SYS_perf_event_open, params, 0, -1, -1, 0));
	attempt("kexec", syscall(SYS_kexec_load, 0, 0, NULL, 0));
	attempt("module", syscall(SYS_init_module, attr, sizeof attr, ""));
	attempt("module by descriptor", syscall(SYS_finit_module, 0, "", 0));
	attempt("reboot", syscall(SYS_reboot, 0xfee1dead, 672274793, 0, NULL));
	attempt("swap", syscall(SYS_swapon, "/dev/zero", 0));
	attempt("accounting", syscall(SYS_acct, "/tmp/acct"));
	attempt("watch of everything", syscall(SYS_fanotify_init, 0, 0));
	struct { unsigned bytes; int type; char f[64]; } handle = {8, 1, {0}};
	attempt("open by handle", syscall(SYS_open_by_handle_at, AT_FDCWD, &handle, O_RDONLY));
	attempt("new root", syscall(SYS_pivot_root, "/", "/"));
	attempt("mount by descriptor", syscall(430, "tmpfs", 0));
	attempt("copy of the tree", syscall(428, AT_FDCWD, "/", 1));
	attempt("mount", mount("x", "/mnt", "tmpfs", 0, ""));
	attempt("mount of control groups", mount("x", "/mnt", "cgroup", 0, ""));
	attempt("another name space", syscall(SYS_setns, open("/proc/1/ns/net", O_RDONLY), 0));
	attempt("host name", sethostname("x", 1));
#ifdef SYS_iopl
	attempt("ports", syscall(SYS_iopl, 3));
	attempt("some ports", syscall(SYS_ioperm, 0x80, 1, 1));
#endif
}

static void privileges(void) {
	control("no_new_privs", prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1);
	attempt("privileges again", prctl(PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0));
	for (int c = 0; c <= 40; c++) {
		attempt("capability in the bounding set", prctl(PR_CAPBSET_READ, c, 0, 0, 0) == 1 ? c : -1);
		attempt("ambient capability", prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, c, 0, 0));
	}
	struct __user_cap_header_struct h = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct d[2] = {{0}, {0}};
	control("capabilities can be read", syscall(SYS_capget, &h, d) == 0);
	for (int i = 0; i < 2; i++) attempt("capabilities", d[i].effective | d[i].permitted | d[i].inheritable ? 1 : -1);
	memset(d, 0xff, sizeof d);
	attempt("capabilities for the asking", syscall(SYS_capset, &h, d));
	attempt("a filter of system calls for others", syscall(SYS_seccomp, 1, 1 << 0, NULL));
}

// change asks the kernel for a change of the network, and takes its answer.
static int change(int type, const void *body, int size) {
	char buf[512] = {0};
	struct nlmsghdr *m = (void *)buf;
	m->nlmsg_len = NLMSG_LENGTH(size); m->nlmsg_type = type;
	m->nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | (type == RTM_GETLINK ? 0x300 : NLM_F_CREATE);
	memcpy(NLMSG_DATA(m), body, size);
	int s = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);
	struct pollfd p = {s, POLLIN, 0};
	if (s < 0 || send(s, buf, m->nlmsg_len, 0) < 0 || poll(&p, 1, 10000) != 1) return -1;
	char out[8192];
	int n = recv(s, out, sizeof out, 0);
	close(s);
	m = (void *)out;
	if (n < (int)sizeof *m) return -1;
	if (m->nlmsg_type == NLMSG_ERROR) return ((struct nlmsgerr *)NLMSG_DATA(m))->error;
	return m->nlmsg_type;
}

static void network(const char *as) {
	char what[128];
#define A(name, r) (snprintf(what, sizeof what, "%s%s", as, name), attempt(what, r))
	A("packet socket", socket(AF_PACKET, SOCK_RAW, htons(3)));
	A("packets without a link header", socket(AF_PACKET, SOCK_DGRAM, htons(0x0806))); // ARP
	for (int p = 1; p < 256; p += (p == 1 ? 5 : p == 6 ? 11 : 238)) A("raw socket", socket(AF_INET, SOCK_RAW, p)); // 1, 6, 17, 255
	A("raw IPv6", socket(AF_INET6, SOCK_RAW, 58));
	int other[] = {AF_VSOCK, 38 /* ALG */, 44 /* XDP */, 31 /* Bluetooth */, 29 /* CAN */, 30 /* TIPC */, 21 /* RDS */, 27 /* IB */, 9 /* X.25 */, 17 /* again packet */};
	for (unsigned i = 0; i < sizeof other / sizeof *other; i++) A("odd family", socket(other[i], SOCK_SEQPACKET, 0));
	struct { struct ifinfomsg i; struct rtattr a; char kind[8]; } link = {{.ifi_family = AF_UNSPEC, .ifi_index = 2, .ifi_change = 0xffffffff, .ifi_flags = IFF_UP | IFF_PROMISC}, {12, IFLA_ADDRESS}, "\2\2\2\2\2\2"};
	struct { struct ifaddrmsg i; struct rtattr a; unsigned ip; } addr = {{AF_INET, 8, 0, 0, 2}, {8, IFA_LOCAL}, htonl(0x0a090909)};
	struct { struct rtmsg r; struct rtattr a; unsigned ip; } route = {{AF_INET, 32, 0, 0, RT_TABLE_MAIN, 4, 0, 1, 0}, {8, RTA_DST}, htonl(0x7f000009)};
	control("links can be listed", change(RTM_GETLINK, &link.i, sizeof link.i) == RTM_NEWLINK);
	A("hardware address", change(RTM_NEWLINK, &link, sizeof link)); A("hardware address, set", change(RTM_SETLINK, &link, sizeof link));
	A("address", change(RTM_NEWADDR, &addr, sizeof addr)); A("route", change(RTM_NEWROUTE, &route, sizeof route)); A("no link", change(RTM_DELLINK, &link.i, sizeof link.i));
	int s = socket(AF_INET, SOCK_DGRAM, 0), on = 1;
	struct ifreq r = {.ifr_name = "eth0"};
	A("address by ioctl", ioctl(s, SIOCSIFADDR, &r)); A("hardware address by ioctl", ioctl(s, SIOCSIFHWADDR, &r));
	r.ifr_flags = IFF_UP | IFF_PROMISC; A("promiscuous", ioctl(s, SIOCSIFFLAGS, &r));
	struct rtentry rt = {0}; A("route by ioctl", ioctl(s, SIOCADDRT, &rt));
	struct arpreq arp = {0}; A("ARP entry", ioctl(s, SIOCSARP, &arp));
	A("mark", setsockopt(s, SOL_SOCKET, SO_MARK, &on, sizeof on));
	unsigned false_sources[] = {0x0a000203, 0x0a000202, 0xc0000209, 0xa9fea9fe, 0xc6120001};
	for (int i = 0; i < 5; i++) {
		struct sockaddr_in a = {AF_INET, 0, {htonl(false_sources[i])}};
		int f = socket(AF_INET, SOCK_DGRAM, 0);
		setsockopt(f, IPPROTO_IP, 15 /* IP_FREEBIND */, &on, sizeof on);
		setsockopt(f, IPPROTO_IP, IP_TRANSPARENT, &on, sizeof on);
		A("another's address", bind(f, (void *)&a, sizeof a));
	}
#undef A
}

// A user name space of one's own gives capabilities in it, and in nothing that was
// there before.
static void userspace(void) {
	fflush(stdout);
	if (fork() == 0) {
		int got = unshare(CLONE_NEWUSER) == 0;
		network(got ? "in a user name space: " : "without a user name space: ");
		attempt("device in a user name space", mknod("/tmp/mem", S_IFCHR | 0666, makedev(1, 1)));
		attempt("mount in a user name space", mount("x", "/mnt", "tmpfs", 0, ""));
		attempt("clock in a user name space", syscall(SYS_settimeofday, (long[]){1, 0}, NULL));
		exit(0);
	}
	wait(NULL);
}

static void processes(int hostpid) {
	pid_t child = fork();
	if (child == 0) { pause(); exit(0); }
	control("a child can be traced", ptrace(PTRACE_ATTACH, child, 0, 0) == 0);
	kill(child, SIGKILL);
	attempt("signal to a host process", kill(hostpid, 0));
	attempt("trace of a host process", ptrace(PTRACE_ATTACH, hostpid, 0, 0));
	attempt("descriptor of a host process", syscall(434, hostpid, 0));
	char local[8], path[64];
	struct { void *p; size_t n; } here = {local, 8}, there = {(void *)0x400000, 8};
	attempt("memory of a host process", syscall(SYS_process_vm_readv, hostpid, &here, 1, &there, 1, 0));
	snprintf(path, sizeof path, "/proc/%d", hostpid);
	attempt("sight of a host process", access(path, F_OK));
	DIR *d = opendir("/proc");
	int n = 0;
	for (struct dirent *e; d && (e = readdir(d));) n += e->d_name[0] >= '1' && e->d_name[0] <= '9';
	control("its own processes", n >= 1);
	attempt("processes of others", n > 6 ? n : -1);
}

static void devices(const char *dir) {
	DIR *d = opendir(dir);
	for (struct dirent *e; d && (e = readdir(d));) {
		char p[512];
		struct stat st;
		snprintf(p, sizeof p, "%s/%s", dir, e->d_name);
		if (e->d_name[0] == '.' || lstat(p, &st) < 0) continue;
		if (S_ISDIR(st.st_mode)) devices(p);
		int major = major(st.st_rdev), minor = minor(st.st_rdev);
		int harmless = S_ISCHR(st.st_mode) && (major == 1 && strchr("\3\5\7\10\11", minor) || major == 5 && (minor == 0 || minor == 2) || major == 136);
		if ((S_ISCHR(st.st_mode) && !harmless) || S_ISBLK(st.st_mode)) {
			int f = open(p, O_RDWR);
			struct ifreq r = {.ifr_flags = 0x1002, .ifr_name = "tap0"}; // TUNSETIFF: what opens is no card yet
			long got = f < 0 ? -1 : strstr(p, "tun") ? ioctl(f, 0x400454ca, &r) : strstr(p, "fuse") ? -1 : f;
			attempt(p, got);
		}
	}
	if (d) closedir(d);
}

// has is an open file, or the entries of a folder: an empty one says nothing.
static long has(const char *path) {
	DIR *d = opendir(path);
	if (!d) return open(path, O_RDONLY);
	int n = 0;
	for (struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
	closedir(d);
	return n ? n : -1;
}

static void files(char **paths) {
	const char *no_reading[] = {"/proc/kcore", "/proc/keys", "/proc/kallsyms", "/proc/kpageflags", "/proc/kpagecount", "/proc/config.gz", "/proc/sched_debug", "/proc/timer_list", "/proc/latency_stats",
		"/proc/scsi/scsi", "/proc/acpi", "/proc/asound/cards", "/proc/vmallocinfo", "/proc/slabinfo", "/proc/iomem", "/proc/bus/pci", "/proc/diskstats", "/proc/partitions", "/sys/firmware", "/sys/kernel/debug", "/sys/kernel/security",
		"/sys/class/dmi", "/sys/block", "/sys/fs/bpf", "/sys/kernel/tracing", "/dev/mem", "/dev/kmsg", "/dev/port", "/dev/sda", "/dev/vda", "/dev/kvm", "/dev/disk", "/run/docker.sock", "/var/run/docker.sock", "/run/containerd/containerd.sock", "/run/dbus/system_bus_socket", "/run/systemd", "/host", "/var/lib/warder", "/etc/sudoers"};
	const char *no_writing[] = {"/proc/sys/kernel/modprobe", "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/randomize_va_space", "/proc/sys/vm/overcommit_memory", "/proc/sys/vm/drop_caches", "/proc/sys/fs/binfmt_misc/register", "/proc/sys/net/ipv4/ip_forward",
		"/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/memory/tasks", "/sys/fs/cgroup/release_agent", "/sys/power/state", "/sys/kernel/mm/transparent_hugepage/enabled", "/usr/bin/sh", "/usr/lib/x", "/lib/x"};
	for (unsigned i = 0; i < sizeof no_reading / sizeof *no_reading; i++) attempt(no_reading[i], has(no_reading[i]));
	for (unsigned i = 0; i < 13; i++) {
		int f = open(no_writing[i], O_WRONLY);
		attempt(no_writing[i], f < 0 ? -1 : write(f, "1", 1));
	}
	attempt("control group", mkdir("/sys/fs/cgroup/x", 0755));
	attempt("control group of memory", mkdir("/sys/fs/cgroup/memory/x", 0755));
	for (; *paths; paths++) attempt(*paths, access(*paths, F_OK));
	control("its own files", has("/proc/self") > 0 && access("/proc/self/status", R_OK) == 0 && open("/dev/null", O_RDWR) >= 0 && open("/tmp/own", O_CREAT | O_RDWR, 0600) >= 0);
}

int main(int argc, char **argv) {
	setvbuf(stdout, NULL, _IOLBF, 0);
	signal(SIGPIPE, SIG_IGN);
	if (argc == 4 && strcmp(argv[1], "wait") == 0) {
		int s = abstractly(argv[2], bind);
		control("a socket", s >= 0 && listen(s, 1) == 0 && abstractly(argv[2], connect) >= 0);
		control("shared memory", shmget(atoi(argv[3]), 4096, IPC_CREAT | 0666) >= 0 && shmget(atoi(argv[3]), 4096, 0) >= 0);
		puts("ready");
		while (getchar() != EOF) {}
		return 0;
	}
	// Never on a host: there, as root, most of it works.
	struct utsname u;
	if (uname(&u) != 0 || strcmp(u.nodename, "sandbox") != 0 || access("/workspace", F_OK) != 0 || access("/out", F_OK) != 0) {
		fputs("this is no sandbox\n", stderr);
		return 3;
	}
	if (argc < 4) return 2;
	privileges();
	kernel();
	network("");
	userspace();
	processes(atoi(argv[2]));
	devices("/dev");
	files(argv + 4);
	others(argv[1], atoi(argv[3]));
	printf("tried %d\n", tried);
	return 0;
}
