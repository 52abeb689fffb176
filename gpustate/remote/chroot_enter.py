"""Run one command inside an image's root, isolated from the builder's devices and kernel settings.

    python -I -S chroot_enter.py [--guarded] [--gpus=8xH100] ROOT COMMAND

The command gets new mount, pid, ipc and uts namespaces. They end with the command, with this process,
and with the process that started it. No mount is visible to the builder, so none can be left behind.

The builder's file system is not in the namespace (``pivot_root``): no link in the image, absolute or
not, leads to a file of the builder. /sys is empty, and the builder's devices, modules and command line
in /proc are covered, so that no GPU is found there. /run, /tmp and /dev are new and small. The command
lacks the capabilities to load modules, create device nodes, set clock or network, or reboot.

``--guarded`` is for commands that install packages: policy-rc.d keeps services from starting, and the
image sees the builder's resolv.conf. An existing file of the image is covered by a mount and keeps its
bytes and times. For a missing one an empty placeholder is created, recorded first, and removed
afterwards; if this command is killed, the next guarded one removes it.

Run as a file by the builder's Python: standard library only.

Sources:
    mount(2), pivot_root(2), unshare(2), pid_namespaces(7), prctl(2), capabilities(7).
    Debian, invoke-rc.d: /usr/sbin/policy-rc.d, exit 101 "action forbidden by policy".
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import stat
import sys

NEWNS, NEWUTS, NEWIPC, NEWPID = 0x00020000, 0x04000000, 0x08000000, 0x20000000
RDONLY, NOSUID, NODEV, NOEXEC, REMOUNT, BIND, REC, PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
DETACH = 2
PR_SET_PDEATHSIG, PR_CAPBSET_DROP = 1, 24
#: Capabilities that affect more than the image, by number.
DROPPED = {
    "net_admin": 12,
    "sys_module": 16,
    "sys_rawio": 17,
    "sys_boot": 22,
    "sys_time": 25,
    "mknod": 27,
    "mac_override": 32,
    "mac_admin": 33,
    "syslog": 34,
    "wake_alarm": 35,
    "block_suspend": 36,
    "bpf": 39,
}
#: Exit status when the root cannot be entered; the reason is on standard error.
EXIT_CANNOT_ENTER = 125

#: Name, major, minor.
NODES = (
    ("null", 1, 3),
    ("zero", 1, 5),
    ("full", 1, 7),
    ("random", 1, 8),
    ("urandom", 1, 9),
    ("tty", 5, 0),
)
#: Files of /proc about the builder's hardware and kernel.
COVERED_FOLDERS = ("driver", "bus", "scsi", "asound", "acpi", "irq")
COVERED_FILES = ("modules", "devices", "cmdline", "kcore", "timer_list", "iomem", "ioports")
READ_ONLY = ("sys", "sysrq-trigger")
RUN_FOLDER = "/run/gpustate-bake"
NOTE = "/var/lib/gpustate/bake.made"
# A placeholder that a killed bake leaves behind must have no effect on a machine that boots the image.
POLICY_RC_D = f"#!/bin/sh\n# Written while gpustate bakes this image.\n[ ! -e {RUN_FOLDER} ] || exit 101\nexit 0\n"

_libc = ctypes.CDLL(None, use_errno=True)


class CannotEnter(Exception):
    """The root cannot be entered; the message is shown to the user."""


def _checked(action: str, result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{action}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    words = [word.encode() if word else None for word in (source, target, kind)]
    _checked(
        f"mount on {target}",
        _libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), data.encode() or None),
    )


def die_with_parent(parent: int) -> None:
    """Receive SIGKILL when the parent ends; exit if it has ended already."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(EXIT_CANNOT_ENTER)


def check_root(root: int) -> None:
    """Raise unless the mount points are directories; a link could lead out of the image."""
    for name in ("dev", "proc", "run", "sys", "tmp"):
        try:
            mode = os.stat(name, dir_fd=root, follow_symlinks=False).st_mode
        except FileNotFoundError:
            raise CannotEnter(f"/{name} is missing; this is not the root of an image") from None
        if not stat.S_ISDIR(mode):
            raise CannotEnter(f"/{name} is not a directory; this is not the root of an image")


def build_namespace(path: str, resolver: bytes) -> None:
    """Mount the image's root at /image of this namespace, without the builder's hardware."""
    mount("none", "/", "", REC | PRIVATE)
    # The source is the current directory, so it may be below a path that is covered now.
    os.chdir(path)
    mount("tmpfs", "/tmp", "tmpfs", NOSUID | NODEV, "mode=755,size=1m")
    os.mkdir("/tmp/image")
    os.mkdir("/tmp/old")
    mount(".", "/tmp/image", "", BIND | REC)
    os.chdir("/tmp/image")
    check_root(os.open(".", os.O_PATH))
    os.chdir("/tmp")
    mount("proc", "image/proc", "proc", NOSUID | NODEV | NOEXEC)
    mount("tmpfs", "image/run", "tmpfs", NOSUID | NODEV, "mode=755")
    mount("tmpfs", "image/tmp", "tmpfs", NOSUID | NODEV, "mode=1777")
    mount("tmpfs", "image/dev", "tmpfs", NOSUID, "mode=755,size=4m")
    make_devices("image/dev")
    mount("tmpfs", "image/sys", "tmpfs", NOSUID | NODEV | NOEXEC | RDONLY, "mode=555,size=4k")
    cover_proc("image/proc", "image/dev/null")
    os.mkdir(f"image{RUN_FOLDER}", 0o755)
    write(f"image{RUN_FOLDER}/resolv.conf", resolver, 0o644)
    write(f"image{RUN_FOLDER}/policy-rc.d", POLICY_RC_D.encode(), 0o755)
    os.mkdir("image/run/lock", 0o1777)
    _checked("pivot_root", _libc.syscall(_pivot_root(), b".", b"old"))
    os.chdir("/")
    _checked("umount", _libc.umount2(b"/old", DETACH))
    os.rmdir("/old")


def _pivot_root() -> int:
    numbers = {"x86_64": 155, "aarch64": 41, "ppc64le": 203}
    machine = os.uname().machine
    if machine not in numbers:
        raise CannotEnter(f"baking is not supported on {machine}")
    return numbers[machine]


def make_devices(dev: str) -> None:
    """Create the device nodes that every program needs; no disk, no GPU."""
    os.umask(0)
    for name, major, minor in NODES:
        path = f"{dev}/{name}"
        try:
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(major, minor))
        except PermissionError:
            # A container may not create device nodes, but has these.
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o666))
            mount(f"/dev/{name}", path, "", BIND)
    for name in ("pts", "shm"):
        os.mkdir(f"{dev}/{name}", 0o755)
    mount(
        "devpts",
        f"{dev}/pts",
        "devpts",
        NOSUID | NOEXEC,
        "newinstance,ptmxmode=0666,mode=620,gid=5",
    )
    mount("tmpfs", f"{dev}/shm", "tmpfs", NOSUID | NODEV, "mode=1777")
    os.symlink("pts/ptmx", f"{dev}/ptmx")
    os.symlink("/proc/self/fd", f"{dev}/fd")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.symlink(f"/proc/self/fd/{number}", f"{dev}/{name}")
    os.umask(0o022)


def cover_proc(proc: str, null: str) -> None:
    """Hide the builder's hardware and kernel, and make its settings read-only."""
    for name in COVERED_FOLDERS:
        if os.path.isdir(f"{proc}/{name}"):
            mount("tmpfs", f"{proc}/{name}", "tmpfs", NOSUID | NODEV | NOEXEC | RDONLY, "size=4k")
    for name in COVERED_FILES:
        if os.path.exists(f"{proc}/{name}"):
            mount(null, f"{proc}/{name}", "", BIND)
    for name in READ_ONLY:
        if os.path.exists(f"{proc}/{name}"):
            mount(f"{proc}/{name}", f"{proc}/{name}", "", BIND | REC)
            mount("none", f"{proc}/{name}", "", BIND | REMOUNT | RDONLY | NOSUID | NODEV | NOEXEC)


def write(path: str, data: bytes, mode: int) -> None:
    """Write a new file and flush it to disk."""
    file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, mode)
    os.write(file, data)
    os.fsync(file)
    os.close(file)


# --- inside the image's root -------------------------------------------------------------------


def in_root(work: object, *arguments: str) -> int:
    """Call ``work`` in a child whose root is the image; return its exit status."""
    pid = os.fork()
    if pid == 0:
        code = EXIT_CANNOT_ENTER
        try:
            os.chroot("/image")
            os.chdir("/")
            work(*arguments)  # type: ignore[operator]
            code = 0
        except (OSError, CannotEnter) as error:
            report(error)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def remove_placeholders() -> None:
    """Remove the placeholders of this command, or of one that was killed."""
    try:
        with open(NOTE, encoding="utf-8", errors="surrogateescape") as file:
            recorded = file.read().splitlines()
    except FileNotFoundError:
        return
    for path in reversed(recorded):
        try:
            if stat.S_ISDIR(os.lstat(path).st_mode):
                os.rmdir(path)
                continue
            _libc.umount2(os.fsencode(path), DETACH)
            with open(path, "rb") as placeholder:
                unchanged = placeholder.read(4096) in (b"", POLICY_RC_D.encode())
            if unchanged:
                os.unlink(path)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                raise
    os.unlink(NOTE)


def cover_files() -> None:
    """Cover policy-rc.d and resolv.conf of the image with our own."""
    remove_placeholders()
    cover("/usr/sbin/policy-rc.d", f"{RUN_FOLDER}/policy-rc.d", POLICY_RC_D.encode(), 0o755)
    if os.path.getsize(f"{RUN_FOLDER}/resolv.conf"):
        cover("/etc/resolv.conf", f"{RUN_FOLDER}/resolv.conf", b"", 0o644)


def cover(path: str, source: str, placeholder: bytes, mode: int) -> None:
    """Mount ``source`` over a file, or over a new placeholder, which is recorded first."""
    real = os.path.realpath(path)
    if not os.path.lexists(real):
        missing: list[str] = []
        folder = os.path.dirname(real)
        while not os.path.isdir(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        if not real.startswith("/run/"):
            record([*reversed(missing), real])
        for missing_folder in reversed(missing):
            os.mkdir(missing_folder)
        write(real, placeholder, mode)
    mount(source, real, "", BIND)


def record(paths: list[str]) -> None:
    """Record paths before they are created, so that they can be removed after a kill."""
    folder = os.path.dirname(NOTE)
    # If it is a dangling link, create its target.
    os.makedirs(os.path.realpath(folder), mode=0o700, exist_ok=True)
    with open(NOTE, "a", encoding="utf-8", errors="surrogateescape") as file:
        file.write("".join(f"{path}\n" for path in paths))
        file.flush()
        os.fsync(file.fileno())
    place = os.open(folder, os.O_RDONLY)
    os.fsync(place)
    os.close(place)


def exec_command(command: str, gpus: str) -> None:
    """Replace this process with the command, with fewer capabilities."""
    try:
        with open("/etc/hostname", encoding="utf-8") as file:
            name = file.read(64).split()[0].encode()
    except (OSError, UnicodeDecodeError, IndexError):
        name = b"localhost"
    _libc.sethostname(name, len(name))
    for number in DROPPED.values():
        _libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0)
    environment = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/root",
        "LC_ALL": "C",
        "SYSTEMD_OFFLINE": "1",
        "DRACUT_NO_MKNOD": "1",
        # Probes and programs recognise an image by these.
        "GPUSTATE_IMAGE": "1",
        "GPUSTATE_IMAGE_GPUS": gpus,
    }
    for key in ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy"):
        if key in os.environ:
            environment[key] = os.environ[key]
    try:
        os.execve("/bin/sh", ["sh", "-c", command], environment)
    except OSError as error:
        if error.errno == errno.ENOEXEC:
            raise CannotEnter("the image is for another architecture than this machine") from None
        if error.errno == errno.ENOENT:
            raise CannotEnter("/bin/sh is missing; this is not the root of an image") from None
        raise


# --- processes -----------------------------------------------------------------------------------


def init(path: str, resolver: bytes, command: str, gpus: str, *, guarded: bool) -> int:
    """Run as process 1 of the namespace: the kernel kills everything in it when this ends."""
    build_namespace(path, resolver)
    if guarded and (code := in_root(cover_files)):
        return code
    main = os.fork()
    if main == 0:
        try:
            os.chroot("/image")
            os.chdir("/")
            exec_command(command, gpus)
        except (OSError, CannotEnter) as error:
            report(error)
        os._exit(EXIT_CANNOT_ENTER)
    # Close our copies, so that the reader sees the end of output when the child ends.
    for number in (0, 1):
        os.close(number)
    while True:
        pid, status = os.wait()
        if pid == main:
            break
    if guarded:
        in_root(remove_placeholders)
    return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def report(error: Exception) -> None:
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    print(f"gpustate-bake: {text}", file=sys.stderr, flush=True)


def main(argv: list[str]) -> int:
    *flags, path, command = argv
    guarded = "--guarded" in flags
    gpus = "".join(flag.removeprefix("--gpus=") for flag in flags if flag.startswith("--gpus="))
    parent = os.getppid()
    die_with_parent(parent)
    # The caller handles Ctrl-C: the running step is finished.
    os.setsid()
    try:
        try:
            with open("/etc/resolv.conf", "rb") as file:
                resolver = file.read(65536)
        except OSError:
            resolver = b""
        _checked("namespaces", _libc.unshare(NEWNS | NEWUTS | NEWIPC | NEWPID))
    except OSError as error:
        report(error)
        return EXIT_CANNOT_ENTER
    lifeline, parents_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = EXIT_CANNOT_ENTER
        try:
            # Seen from the new namespace, the parent is process 0, dead or alive.
            _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            os.close(parents_end)
            if select.select([lifeline], [], [], 0)[0]:
                os._exit(code)
            code = init(path, resolver, command, gpus, guarded=guarded)
        except (OSError, CannotEnter) as error:
            report(error)
        finally:
            os._exit(code)
    for number in (0, 1):
        os.close(number)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))
