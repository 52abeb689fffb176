"""A real machine, without one: Debian 12 under qemu's software emulation, with its own kernel.

What a container cannot show happens here for real: modprobe and modules that stay in use, the
initramfs that the next boot runs, GRUB choosing the kernel, a reboot, and a power cut after which
what was not forced to disk is gone. It needs no KVM and takes about half a minute to boot.

Simulated: the GPU (a PCI device that is nothing but a config space) and the modules ``nouveau`` and
``nvidia`` that bind to it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

from gpustate_lab.command import search_path
from gpustate_lab.requirements import PROGRAMS, TEST_PROGRAMS

MEMORY_MIB = 1024
#: Few features: it boots in two thirds of the time that it takes with all that qemu can emulate.
MACHINE = (
    *("-accel", "tcg,thread=single", "-cpu", "qemu64,+ssse3,+sse4.1,+sse4.2,+popcnt", "-smp", "1"),
    *("-m", str(MEMORY_MIB), "-nodefaults", "-display", "none"),
    *("-rtc", "base=utc,clock=host", "-device", "virtio-rng-pci"),
)
BOOT_TIMEOUT_S = 300.0
FRESH = "fresh"


class Vm:
    """One machine on a disk of its own.

    Args:
        folder: where disk, console and sockets lie; the disk is a copy-on-write layer.
        key: private key that root takes.
        host_key: the machine's public host key.
    """

    def __init__(self, folder: Path, key: Path, host_key: str) -> None:
        self.folder = folder
        self.key = key
        self.host_key = host_key
        self.disk = folder / "disk.qcow2"
        self.console = folder / "console.log"
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._qmp: Qmp | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    # --- power -----------------------------------------------------------------------------------

    def power_on(self, snapshot: str | None = None, *, ready: bool = True) -> None:
        """Switch on; with a snapshot, where that was taken.

        Args:
            snapshot: name given to :meth:`save`.
            ready: wait until root can log in, and set the clock, which stood still.
        """
        assert not self.running, "the machine is on already"
        self.port = self.port or _free_port()
        # A socket by number: one with a path fails where the folder's own is long.
        ours, theirs = socket.socketpair()
        argv = [
            *("setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64", *MACHINE),
            *("-drive", f"file={self.disk},if=virtio,format=qcow2,cache=writeback"),
            *("-netdev", f"user,id=net,hostfwd=tcp:127.0.0.1:{self.port}-:22"),
            *("-device", "virtio-net-pci,netdev=net", "-serial", f"file:{self.console}"),
            *(
                "-chardev",
                f"socket,id=qmp,fd={theirs.fileno()}",
                "-mon",
                "chardev=qmp,mode=control",
            ),
            *(("-loadvm", snapshot) if snapshot else ()),
        ]
        with theirs, (self.folder / "qemu.log").open("ab") as log:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=[theirs.fileno()],
            )
        # Linux shares the processors out by session first, so that a niceness counts inside of one only. A
        # machine is one process, and what runs beside it here has a session for every service of a node.
        with contextlib.suppress(OSError):
            Path(f"/proc/{self._process.pid}/autogroup").write_text("-12")
        self._qmp = Qmp(ours, self.folder / "qemu.log")
        if snapshot and ready:
            self.wait_ready()
            self.run(f"date -s @{time.time():.0f}")

    def cut_power(self) -> None:
        """As if the cord were pulled: what the machine did not force to disk is lost.

        SIGKILL drops what qemu had not been told to flush: the tables of newly written clusters.
        """
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
        self._close()

    def reset(self) -> None:
        """Press the reset button: nothing is shut down, the machine boots again."""
        self.qmp("system_reset")

    def _close(self) -> None:
        if self._qmp is not None:
            self._qmp.close()
        self._process = self._qmp = None

    def shut_down(self) -> None:
        """Shut down in order, and wait for it."""
        self.qmp("system_powerdown")
        assert self._process is not None
        self._process.wait(BOOT_TIMEOUT_S)
        self._close()

    # --- monitor ---------------------------------------------------------------------------------

    def qmp(self, command: str, **arguments: Any) -> Any:
        """Ask qemu's monitor."""
        assert self._qmp is not None, "the machine is off"
        return self._qmp.query(command, **arguments)

    def save(self, snapshot: str) -> None:
        """Keep disk and memory under a name, inside the disk's file."""
        said = self.qmp("human-monitor-command", **{"command-line": f"savevm {snapshot}"})
        assert not said, said

    # --- ssh -------------------------------------------------------------------------------------

    @property
    def known_hosts(self) -> Path:
        path = self.folder / "known_hosts"
        path.write_text(f"[127.0.0.1]:{self.port} {self.host_key}\n")
        return path

    def _ssh(self, script: str) -> list[str]:
        options = {
            "BatchMode": "yes",
            "ConnectTimeout": "20",
            "LogLevel": "ERROR",
            "StrictHostKeyChecking": "yes",
            "UserKnownHostsFile": str(self.known_hosts),
        }
        words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        where = ["-i", str(self.key), "-p", str(self.port), "root@127.0.0.1"]
        return ["ssh", "-F", "none", *words, *where, "sh -c " + shlex.quote(script)]

    def run(self, script: str, *, check: bool = True, timeout_s: float = 300) -> str:
        """Run sh as root, and return what it printed."""
        done = subprocess.run(
            self._ssh(script),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
        )
        assert not check or done.returncode == 0, (
            script,
            done.returncode,
            done.stdout,
            done.stderr,
        )
        return done.stdout.strip()

    def answers(self) -> bool:
        """Root can log in."""
        try:
            done = subprocess.run(
                self._ssh("true"), capture_output=True, stdin=subprocess.DEVNULL, timeout=40
            )
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0

    def wait_ready(self, seconds: float = BOOT_TIMEOUT_S) -> None:
        """Wait until root can log in."""
        deadline = time.monotonic() + seconds
        while not self.answers():
            assert self.running, (self.folder / "qemu.log").read_text()
            assert time.monotonic() < deadline, f"no login within {seconds} s: {self.last_words()}"
            time.sleep(0.5)

    def waiting_for(self, script: str) -> subprocess.Popen[bytes]:
        """A process that ends when a script, tried again and again on the machine, succeeds."""
        loop = f"until {{ {script}; }} >/dev/null 2>&1; do sleep 0.1; done"
        return subprocess.Popen(
            self._ssh(loop), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )

    def last_words(self) -> str:
        """The end of the console."""
        text = self.console.read_text(errors="replace") if self.console.exists() else ""
        return text[-1500:]

    @property
    def boot_id(self) -> str:
        return self.run("cat /proc/sys/kernel/random/boot_id")


class Qmp:
    """The monitor of one qemu.

    Args:
        end: our end of its socket.
        log: what qemu printed, shown when it is gone.
    """

    def __init__(self, end: socket.socket, log: Path) -> None:
        self._socket = end
        self._log = log
        self._file = self._socket.makefile("rb")
        self._socket.settimeout(300)
        self._read()
        self.query("qmp_capabilities")

    def _read(self) -> dict[str, Any]:
        line = self._file.readline()
        assert line, f"qemu is gone: {self._log.read_text()[-2000:]}"
        message: dict[str, Any] = json.loads(line)
        return message

    def query(self, command: str, **arguments: Any) -> Any:
        self._socket.sendall(json.dumps({"execute": command, "arguments": arguments}).encode())
        while True:
            answer = self._read()
            assert "error" not in answer, answer
            if "return" in answer:
                return answer["return"]

    def close(self) -> None:
        self._file.close()
        self._socket.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def missing() -> list[str]:
    """What this machine lacks to run one, in words."""
    found = [
        f"{program} (Debian package {package})"
        for program, package in {**PROGRAMS, **TEST_PROGRAMS}.items()
        if shutil.which(program, path=search_path()) is None
    ]
    return found if os.geteuid() == 0 else ["root", *found]
