"""Runs sh scripts for real where they can do no harm, and tells whether a planted command was run.

A script runs as root, but in namespaces of its own: the machine's files are there and cannot be
written, what scripts write to (``/etc``, ``/var``, ``/run`` and so on) is empty and in memory, there is
no network, and programs that change a system are stand-ins that only look at how they were called. A
planted command shows as a file below ``/tmp/canary``; a planted option too, when it reaches a stand-in as a
word of its own.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

#: Programs of a node that are only asked, or only told something.
STAND_INS = (
    "apt-cache", "apt-get", "apt-helper", "apt-mark", "chown", "containerd", "ctr", "depmod", "dkms", "dpkg",
    "dpkg-query", "dracut", "journalctl", "kubectl", "ldconfig", "lsinitramfs", "lsmod", "mkinitramfs", "modinfo",
    "modprobe", "mokutil", "nvidia-ctk", "nvidia-persistenced", "nvidia-smi", "python3", "reboot", "restorecon",
    "rmmod", "setsid", "shutdown", "sleep", "ssh", "sync", "systemctl", "systemd-run", "unmkinitramfs",
    "update-initramfs",
)  # fmt: skip

_STAND_IN = """#!/bin/sh
for word in "$@"; do
  [ "$word" != -- ] || break
  case $word in -oCanary* | --canary* | -canary*) : >"/tmp/canary/option-of-${0##*/}" ;; esac
done
[ ! -s /mnt/scripts/said ] || cat /mnt/scripts/said
exit 0
"""

#: Folders that scripts write to, empty in the sandbox.
_EMPTY = ("boot", "etc", "home", "mnt", "opt", "root", "run", "srv", "tmp", "var")

_ENTER = r"""
set -e
mount --make-rprivate /
R=$1/root; W=$1/scripts; B=$1/bin
mkdir -p "$R"
mount --bind / "$R"
mount -o remount,ro,bind "$R"
for d in @EMPTY@; do [ -d "$R/$d" ] && [ ! -L "$R/$d" ] && mount -t tmpfs -o size=64m tmpfs "$R/$d"; done
mount -t tmpfs tmpfs "$R/mnt"; mkdir "$R/mnt/bin" "$R/mnt/scripts"
mount --bind "$W" "$R/mnt/scripts"; mount --bind "$B" "$R/mnt/bin"
mount -t tmpfs tmpfs "$R/dev"
for n in "null c 1 3" "zero c 1 5" "random c 1 8" "urandom c 1 9"; do set -- $n; mknod -m 666 "$R/dev/$1" $2 $3 $4; done
mkdir "$R/dev/shm"; ln -s /proc/self/fd "$R/dev/fd"
mount -t proc proc "$R/proc" 2>/dev/null || :
printf 'root:x:0:0::/root:/bin/sh\n' >"$R/etc/passwd"; printf 'root:x:0:\n' >"$R/etc/group"
exec chroot "$R" setpriv --no-new-privs --bounding-set=-all,+chown,+dac_override,+fowner,+fsetid /bin/sh /mnt/scripts/driver
"""

_DRIVER = r"""
PATH=/mnt/bin:$PATH; export PATH
for s in /mnt/scripts/*.sh; do
  rm -rf /var/lib/gpustate /tmp/canary; mkdir -p /tmp/canary /var/lib/gpustate/runs/r/pre /var/lib/gpustate/originals
  cp /mnt/scripts/library /var/lib/gpustate/runs/r/library 2>/dev/null
  : >/var/lib/gpustate/runs/r/journal
  G=/var/lib/gpustate R=/var/lib/gpustate/runs/r PROC=/proc SYS=/sys SHIPPED=/var/lib/gpustate/lib STEP=1 LOCK=r \
    timeout -k 1 20 sh "$s" >"$s.out" 2>&1 </dev/null
  printf '%s' "$?" >"$s.status"
  ls -A /tmp/canary >"$s.canary"
done
"""


@dataclass(frozen=True, slots=True)
class Ran:
    """How a script ended, what it printed, and which planted commands were run."""

    status: int
    output: str
    canaries: tuple[str, ...]


@functools.cache
def missing() -> str:
    """Why there is no sandbox on this machine; empty when there is one."""
    if os.geteuid() != 0:
        return "root is needed for namespaces"
    for program in ("unshare", "setpriv", "mount", "chroot"):
        if shutil.which(program) is None:
            return f"{program} is not installed (util-linux, coreutils)"
    ran = run({"probe": "touch /tmp/canary/works; touch /usr/x 2>/dev/null && echo written"})[
        "probe"
    ]
    if ran.canaries != ("works",) or "written" in ran.output:
        return f"namespaces cannot be made here: {ran.output[-200:]}"
    return ""


def run(scripts: Mapping[str, str | bytes], library: str = "", said: str = "") -> dict[str, Ran]:
    """Run scripts one after the other, each with an empty state folder.

    Args:
        scripts: by name; in their text ``/tmp/canary`` is where planted commands leave their mark.
        library: what steps source as ``$R/library``.
        said: what every stand-in prints.
    """
    with tempfile.TemporaryDirectory(prefix="gpustate-sandbox-") as made:
        folder = Path(made)
        for name in ("scripts", "bin"):
            (folder / name).mkdir()
        for name in STAND_INS:
            (folder / "bin" / name).write_text(_STAND_IN)
            (folder / "bin" / name).chmod(0o755)
        (folder / "scripts/driver").write_text(_DRIVER)
        (folder / "scripts/library").write_text(library)
        (folder / "scripts/said").write_bytes(said.encode("utf-8", "surrogatepass"))
        files = {
            name: folder / "scripts" / f"{number:04}.sh" for number, name in enumerate(scripts)
        }
        for name, text in scripts.items():
            data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
            files[name].write_bytes(data)
        enter = _ENTER.replace("@EMPTY@", " ".join(_EMPTY))
        done = subprocess.run(
            ["unshare", "--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child", "sh", "-c", enter, "sh", made],
            capture_output=True,
            timeout=30 + 25 * len(scripts),
        )  # fmt: skip
        return {name: _read(path, done.stderr) for name, path in files.items()}


def _read(path: Path, said: bytes) -> Ran:
    status = path.with_suffix(".sh.status")
    if not status.exists():
        return Ran(-1, said.decode("utf-8", "replace"), ())
    output = path.with_suffix(".sh.out").read_text("utf-8", "replace")
    canaries = path.with_suffix(".sh.canary").read_text("utf-8", "replace").split("\n")
    return Ran(int(status.read_text()), output, tuple(name for name in canaries if name))
