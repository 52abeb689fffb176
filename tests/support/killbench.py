"""One lab node on which runs are recorded, killed at a point, run again once, and judged.

The node's ``sync`` is a wrapper of the harness in /usr/local/sbin, which comes first in the path of
node programs: it counts the calls of the program and, at the chosen one, waits at a pipe. So the node
is exactly at that point when somebody is killed, whatever the machine is busy with, and no hook is
needed in what is tested.

A node that loses its power is a copy of its disk (all processes stopped at once, disk copied), put
back and booted: that is what a kill of everything leaves, without the order in which processes
happen to die. :meth:`Bench.live` with ``real=True`` kills the node itself instead.
"""

from __future__ import annotations

import json
import os
import re
import select
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import commandline
import killpoints
import ledger
import nodedisk
from killpoints import Stop

from gpustate.lab import api, process
from gpustate.model.asks import Answer
from gpustate.run import gate
from gpustate.run.ledger import AskLedger

WRAPPER = """#!/bin/sh
# The tests' own: counts what the node program forces to disk, and waits where it is told to.
k=/run/gpustate-kill
case ${R-}:${LOCK-} in /var/lib/gpustate/runs/*:?*) ;; *) exec /usr/bin/sync "$@";; esac
[ -d $k ] || exec /usr/bin/sync "$@"
read -r n <$k/count; n=$((n + 1)); echo $n >$k/count
read -r at <$k/at
case $at in
  every|$n) w=; for f in "$@"; do case $f in */journal) w=entry;; esac; done
    echo "$n ${R##*/} $w" >$k/reached; read -r go <$k/go;;
esac
exec /usr/bin/sync "$@"
"""

#: Files of others: nothing that gpustate does may change a byte, an owner, a mode or a time of them.
FOREIGN: Mapping[str, tuple[str, int]] = {
    "etc/modprobe.d/zz-site.conf": (
        "# the site's own\noptions nvme poll_queues=4\nblacklist pcspkr\n",
        0o640,
    ),
    "etc/modules-load.d/site.conf": ("# nothing yet\n", 0o644),
    "etc/apt/apt.conf.d/99site": ('Acquire::Retries "3";\n', 0o644),
    "etc/apt/preferences.d/site": (
        "Package: nosuchpackage\nPin: release *\nPin-Priority: -1\n",
        0o600,
    ),
    "etc/containerd/certs.d/registry.example/hosts.toml": (
        'server = "https://registry.example"\n',
        0o644,
    ),
    "etc/systemd/system/containerd.service.d/site.conf": (
        "[Service]\nLimitMEMLOCK=infinity\n",
        0o644,
    ),
    "etc/initramfs-tools/conf.d/site": ("# COMPRESS=zstd\n", 0o644),
    "etc/nvidia/site-notes.txt": ("ask Kim before touching these nodes\n", 0o604),
    "etc/default/grub.d/site.cfg": (
        'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX iommu=pt"\n',
        0o644,
    ),
    "srv/data/weights.bin": ("\0\1\2 not text \x7f\n" * 500, 0o400),
}
#: A file that gpustate edits and people write in: their lines stay as they are.
CONTAINERD = """# kept by hand -- talk to the storage people first
version = 2
root = "/var/lib/containerd"   # on the big disk

[plugins]
  [plugins."io.containerd.grpc.v1.cri"]
    # pinned on purpose
    sandbox_image = "registry.example/pause:3.9"
"""
_LONG_AGO = 1_600_000_000

#: Steps that look, or that fetch or write down what is: harmless when done again. Nothing on the node
#: is another afterwards, and what was fetched is not fetched twice (apt's own cache).
LOOKS = (
    "download the driver's",
    "read the package lists",
    "check what",
    "look for",
    "note that",
    "keep what",
    "hold the driver's packages",
    "wait until",
    "walk the chain of proofs",
)
#: What an initramfs holds; the archive itself tells the times at which it was packed.
_INITRAMFS = (
    "d=$(mktemp -d); unmkinitramfs /{0} $d; cd $d; "
    "{{ find . -type f -exec sha256sum {{}} +; find . -type l -printf '%p %l\\n'; }} "
    "| LC_ALL=C sort | sha256sum | cut -c1-16; rm -rf $d"
)
_OWN_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}


@dataclass(slots=True)
class Recording:
    """A run that was held again and again, and let go on to its end."""

    stops: list[Stop] = field(default_factory=list[Stop])
    gaps: dict[int, float] = field(default_factory=dict[int, float])
    states: dict[str, str] = field(default_factory=dict[str, str])
    seconds: float = 0.0


@dataclass(slots=True)
class Result:
    """What became of one point."""

    point: str
    problems: list[str]
    seconds: float


class Trouble(AssertionError):
    """The harness could not bring a point about; that is a failure, too."""


@dataclass(slots=True)
class Run:
    """A gpustate process."""

    pid: int
    out: Path
    err: Path
    code: int | None = None

    def poll(self) -> int | None:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code

    def wait(self, seconds: float) -> int:
        end = time.monotonic() + seconds
        while self.poll() is None:
            if time.monotonic() > end:
                self.kill()
                raise Trouble(f"gpustate was not done within {seconds:.0f} s:\n{self.said()}")
            time.sleep(0.02)
        assert self.code is not None
        return self.code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            _, status = os.waitpid(self.pid, 0)
            self.code = os.waitstatus_to_exitcode(status)

    def said(self) -> str:
        return (
            self.out.read_text("utf-8", "replace")[-3000:]
            + self.err.read_text("utf-8", "replace")[-3000:]
        )


class Bench:
    """A node, a policy, and a folder for copies and outputs."""

    def __init__(self, lab: str, name: str, policy: Path, folder: Path) -> None:
        self.lab = api.find(lab)
        self.node = self.lab.node(name)
        self.policy = policy
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.environment = {"XDG_STATE_HOME": str(folder / "xdg")}
        self.copier = nodedisk.Copier(self.node)
        self.copies: dict[str, Path] = {}
        self.reference: dict[str, Any] = {}
        self._number = 0
        self._memory: dict[tuple[object, ...], str] = {}
        self._runs: list[Run] = []

    # --- the node ------------------------------------------------------------------------

    def prepare(self) -> None:
        """Make the disk that every point starts from: the image, foreign files, the wrapper."""
        self.node.reset()
        self.node.kill()
        root = self.node.root
        self.node.prepare()
        for name, (text, mode) in {
            **FOREIGN,
            "etc/containerd/config.toml": (CONTAINERD, 0o640),
        }.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode("latin-1"))
            path.chmod(mode)
            os.utime(path, (_LONG_AGO, _LONG_AGO))
        wrapper = root / "usr/local/sbin/sync"
        wrapper.write_text(WRAPPER)
        wrapper.chmod(0o755)
        self.copies["base"] = self.copier.copy(self.folder / "base")

    def copy_at(self, stop: Stop) -> Path:
        """The copy made at a stop; at the next one, where this node was faster than the clock."""
        if stop.name in self.copies:
            return self.copies[stop.name]
        later = [
            name for name in self.copies if name.startswith(f"{stop.stage}.{stop.line + 1:02d}-")
        ]
        if not (stop.clock and later):
            raise Trouble(f"this node's recorded run had no stop {stop.name}")
        return self.copies[later[0]]

    def fresh(self) -> None:
        """The node as :meth:`prepare` left it, booted."""
        nodedisk.put_back(self.node, self.copies["base"])
        self.boot()

    def boot(self) -> None:
        """Switch the node on; a busy machine is no reason to fail."""
        self.node.boot(timeout_s=600)

    def ledger(self) -> ledger.Ledger:
        """Everything on the disk that is neither gpustate's own nor volatile."""
        found = ledger.read(
            nodedisk.upper(self.node), self.node.layers, skip=lambda name: not ledger.foreign(name)
        )
        status = nodedisk.upper(self.node) / "var/lib/dpkg/status"
        if status.exists():
            stanzas = sorted(status.read_text("utf-8", "replace").strip().split("\n\n"))
            found["var/lib/dpkg/status"] = ledger.digest(dict.fromkeys(stanzas, ""))
        for name in found:
            if name.startswith("boot/initrd.img-"):
                found[name] = (
                    f"initramfs of {self.node.run(_INITRAMFS.format(name)).stdout.strip()}"
                )
        return found

    def digest(self) -> str:
        """Of all that counts on the disk, gpustate's own included, but for a run's own folder."""

        def skip(name: str) -> bool:
            return name.startswith(f"{ledger.OWN}/runs/") or not (
                ledger.own(name) or ledger.foreign(name)
            )

        upper, layers = nodedisk.upper(self.node), self.node.layers
        return ledger.digest(ledger.read(upper, layers, skip=skip, memory=self._memory))

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop every process of the node at once, and let them go on."""
        folders = [
            h / process.CGROUP_PREFIX / self.node.cgroup for h in process.cgroup_hierarchies()
        ]
        (group,) = [f / "cgroup.freeze" for f in folders if (f / "cgroup.freeze").exists()]
        group.write_text("1")
        events = group.with_name("cgroup.events")
        end = time.monotonic() + 120
        while "frozen 1" not in events.read_text():
            if time.monotonic() > end:
                raise Trouble("the node's processes do not stop")
            time.sleep(0.002)
        try:
            yield
        finally:
            group.write_text("0")

    def runs(self) -> list[Path]:
        """Folders of runs on the node, oldest first."""
        folder = self.node.root / ledger.OWN / "runs"
        return sorted(folder.glob("*-[0-9]*")) if folder.exists() else []

    # --- gpustate ------------------------------------------------------------------------

    def start(self, *words: str) -> Run:
        """Start gpustate, in a fork of this process."""
        self._number += 1
        outputs = [self.folder / f"out.{self._number}", self.folder / f"err.{self._number}"]
        for path in outputs:
            path.touch()
        command = (
            *words,
            str(self.policy),
            *("-i", str(self.lab.inventory), "-l", self.node.name),
        )
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            commandline._become_gpustate(command, self.folder, self.environment, outputs)
        run = Run(pid, outputs[0], outputs[1])
        self._runs.append(run)
        return run

    def apply(self, *words: str) -> Run:
        return self.start("apply", "--yes", *words)

    # --- holding -------------------------------------------------------------------------

    @contextmanager
    def armed(self, at: str) -> Iterator[Hold]:
        """Have the program held at a call of ``sync``, or at every one."""
        folder = Path(f"/proc/{self.node.leader()}/root/run/gpustate-kill")
        folder.mkdir()
        (folder / "count").write_text("0\n")
        (folder / "at").write_text(f"{at}\n")
        for name in ("reached", "go"):
            os.mkfifo(folder / name)
        hold = Hold(folder)
        try:
            yield hold
        finally:
            hold.close()

    def held(self, hold: Hold, run: Run, seconds: float = 600.0) -> tuple[int, str, bool] | None:
        """Wait for the program to be held: call, run and whether at an entry; None: gpustate ended."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            said = hold.wait(0.05)
            if said:
                number, name, *entry = said.split()
                return int(number), name, bool(entry)
            if run.poll() is not None:
                return None
        raise Trouble(f"the program neither went on nor ended:\n{run.said()}")

    # --- recording -----------------------------------------------------------------------

    def record(self, ticks: Mapping[int, tuple[float, ...]], *, keep: bool) -> Recording:
        """Hold a whole run at every call, and ``ticks`` seconds after some; copy the disk each time."""
        self.fresh()
        made = Recording()
        began = time.monotonic()
        with self.armed("every") as hold:
            run = self.apply("-o", "json")
            last: tuple[int, float] | None = None
            while (at := self.held(hold, run)) is not None:
                call, name, entry = at
                if last is not None:
                    made.gaps[last[0]] = time.monotonic() - last[1]
                stop = self._stop(call, name, entry)
                with self.frozen():
                    self._take(made, stop, keep=keep)
                hold.go()
                last = (call, time.monotonic())
                self._tick(made, stop, ticks.get(call, ()), hold, keep=keep)
        if run.wait(60) != 0:
            raise Trouble(f"the recorded run ended with {run.code}:\n{run.said()}")
        made.seconds = time.monotonic() - began
        rows = json.loads(run.out.read_text())["nodes"]
        made.states = {row["state"]: row["outcome"] for row in rows[0]["states"]}
        self.reference = self.summary()
        return made

    def _tick(
        self, made: Recording, stop: Stop, ticks: tuple[float, ...], hold: Hold, *, keep: bool
    ) -> None:
        """Stop by the clock, as long as the program has not come to its next call."""
        began = time.monotonic()
        stood = 0.0
        for tick in ticks:
            if hold.pending(max(0.0, tick - (time.monotonic() - began - stood))):
                return
            at = time.monotonic()
            with self.frozen():
                inner = replace(self._stop(stop.call, self.runs()[-1].name, False), clock=tick)
                self._take(made, inner, keep=keep)
            stood += time.monotonic() - at

    def _stop(self, call: int, name: str, entry: bool) -> Stop:
        folder = self.node.root / ledger.OWN / "runs" / name
        journal = folder / "journal"
        rows = (
            [json.loads(line) for line in journal.read_text().splitlines()]
            if journal.exists()
            else []
        )
        stage = [path.name for path in self.runs()].index(name) + 1
        step = ""
        last = rows[-1] if rows else {}
        if last.get("i") and (entry or last["e"] != "result"):
            step = " ".join(steps_of(folder)[last["i"] - 1])
        return Stop(call, stage, len(rows), str(last.get("e", "")) if entry else "", step)

    def _take(self, made: Recording, stop: Stop, *, keep: bool) -> None:
        if not keep:
            made.stops.append(stop)
            return
        stop = replace(stop, digest=self.digest())
        last = made.stops[-1] if made.stops else None
        if last is not None and not stop.kind and last.digest == stop.digest:
            # The journal is the same as well: what changed is the run's own work space.
            self.copies[stop.name] = self.copies[last.name]
        else:
            self.copies[stop.name] = self.copier.copy(self.folder / f"copy-{stop.name}")
        made.stops.append(stop)

    def summary(self) -> dict[str, Any]:
        """What is compared at the end of every point."""
        return {
            "ledger": self.ledger(),
            "foreign": self.foreign(),
            "left": ledger.left_behind(nodedisk.upper(self.node)),
            "containerd": self.containerd_starts(),
            "steps": [step for folder in self.runs() for step in steps_of(folder)],
        }

    def foreign(self) -> dict[str, tuple[Any, ...]]:
        """Bytes, mode, owner and time of the files of others."""
        found: dict[str, tuple[Any, ...]] = {}
        for name in FOREIGN:
            path = self.node.root / name
            status = path.stat()
            found[name] = (path.read_bytes(), status.st_mode, status.st_uid, status.st_mtime_ns)
        return found

    def containerd_starts(self) -> int:
        """How often containerd was started since boot."""
        said = self.node.run(
            "journalctl -b -u containerd -o cat --no-pager | grep -c '^Started containerd' || :"
        )
        return int(said.stdout.strip() or 0)

    def installed(self) -> dict[str, tuple[int, bool]]:
        """How often dpkg began to install each package, and whether it was ever done with it."""
        log = nodedisk.upper(self.node) / "var/log/dpkg.log"
        text = log.read_text() if log.exists() else ""
        begun: dict[str, int] = {}
        for name in re.findall(r"^\S+ \S+ (?:install|upgrade) (\S+) ", text, re.M):
            begun[name] = begun.get(name, 0) + 1
        done = set(re.findall(r"^\S+ \S+ status installed (\S+) ", text, re.M))
        return {name: (count, name in done) for name, count in begun.items()}

    def processes(self) -> dict[int, str]:
        """Command lines of the node's processes that belong to a run, by pid as seen from here."""
        found: dict[int, str] = {}
        for pid in process.cgroup_pids(self.node.cgroup):
            try:
                words = (
                    Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("latin-1")
                )
            except OSError:
                continue
            if "gpustate/runs/" in words:
                found[pid] = words
        return found


class Hold:
    """The pipes at which the node's program waits."""

    def __init__(self, folder: Path) -> None:
        self._at = folder / "at"
        self._reached = os.open(folder / "reached", os.O_RDWR | os.O_NONBLOCK)
        self._go = os.open(folder / "go", os.O_RDWR)
        self.holding = False

    def pending(self, seconds: float) -> bool:
        """Whether the program has come to a call, or does within so many seconds."""
        return bool(select.select([self._reached], [], [], seconds)[0])

    def wait(self, seconds: float) -> str:
        if not self.pending(seconds):
            return ""
        self.holding = True
        return os.read(self._reached, 4096).decode()

    def go(self) -> None:
        """Let it go on."""
        self.holding = False
        os.write(self._go, b"go\n")

    def never_again(self) -> None:
        """No later call is to be held."""
        self._at.write_text("0\n")

    def close(self) -> None:
        os.close(self._reached)
        os.close(self._go)


def steps_of(folder: Path) -> list[tuple[str, str]]:
    """State and label of a run's steps."""
    return [(row["state"], row["label"]) for row in json.loads((folder / "steps.json").read_text())]


def ended_well(folder: Path, *, changing: bool = False) -> list[tuple[str, str]]:
    """Those of a run's steps whose good result is on disk.

    Args:
        folder: of the run.
        changing: without those that told that everything was as it should be already.
    """
    journal = folder / "journal"
    done: list[tuple[str, str]] = []
    effects: list[str] = []
    for line in journal.read_text("utf-8", "replace").splitlines() if journal.exists() else []:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if row.get("e") == "intent":
            effects = []
        elif row.get("e") == "effect":
            effects.append(row.get("did", ""))
        elif row.get("e") == "result" and row.get("rc") == 0:
            idle = bool(effects) and set(effects) == {"same"}
            if not (changing and idle):
                done.append(steps_of(folder)[row["i"] - 1])
    return done


def verdict(copy: Path, when: str) -> str:
    """What the first look of a re-run makes of the lock and journal that a kill leaves."""
    own = copy / ledger.OWN
    newest = sorted((own / "runs").glob("*-[0-9]*"))[-1:]
    journals = {path / "journal": (path / "journal").read_bytes() for path in newest}
    try:
        for path, text in journals.items():
            _write_anew(path, killpoints.cut(text, when))
        script = f"G={shlex.quote(str(own))}; PROC=/proc; SYS=/sys\n{AskLedger().script()}"
        said = subprocess.run(
            ["sh", "-c", script], capture_output=True, env=_OWN_ENVIRONMENT, check=False
        )
    finally:
        for path, text in journals.items():
            _write_anew(path, text)
    seen = AskLedger().parse(Answer(said.returncode, said.stdout))
    holder = gate.Holder(seen.lock.holder if seen.lock else "", 1, lambda name, pid: False)
    return (
        f"program {seen.program is not None}, alive {bool(seen.program and seen.program.alive)}, "
        f"lock {seen.lock is not None}, dead {gate.dead(seen, holder)}"
    )


def _write_anew(path: Path, text: bytes) -> None:
    """Copies are linked to one another: a file of one is replaced, never written into."""
    status = path.stat()
    new = path.with_name(path.name + ".harness")
    new.write_bytes(text)
    os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns))
    os.chmod(new, status.st_mode & 0o7777)
    new.replace(path)
