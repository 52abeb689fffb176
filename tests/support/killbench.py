"""One lab node on which runs are recorded, killed at a point, run again once, and judged.

The node's ``sync`` is a wrapper of the harness in /usr/local/sbin, which comes first in the path of
node programs: it counts the calls of the program and, at the chosen one, waits at a pipe. So the node
is exactly at that point when somebody is killed, whatever the machine is busy with, and no hook is
needed in what is tested.

A node that loses its power is a copy of its disk (all processes stopped at once, disk copied), put
back and booted: that is what a kill of everything leaves, without the order in which processes
happen to die. Every sixth time the node itself is killed instead.

What a re-run has to do after the stage that somebody died in is what the recorded run did there, if the disk is
then what it was there. So most re-runs end with that stage: their policy has the states that have done something
by then, and what they leave is compared with what the recorded run had then. Every tenth goes on to the end.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import commandline
import ledger
import nodedisk
from killjournal import steps_of
from killpoints import Stop
from killprocess import Hold, Run, Trouble
from killsite import CONTAINERD, FOREIGN, INITRAMFS, LONG_AGO, WRAPPER

from gpustate_lab import api, process

_UNTIL = "policy = Policy(*(state for state in policy.states if state.name in {now!r}))\n"


@dataclass(slots=True)
class Recording:
    """A run that was held again and again, and let go on to its end."""

    stops: list[Stop] = field(default_factory=list[Stop])
    states: dict[str, str] = field(default_factory=dict[str, str])
    seconds: float = 0.0
    converged: dict[str, Any] = field(default_factory=dict[str, Any])
    looked_s: float = 0.0  # processor time of the login that looked at the converged node
    login_s: float = 0.0  # and of one that did nothing


@dataclass(slots=True)
class Result:
    """What became of one point."""

    point: str
    problems: list[str]
    seconds: float


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
        self.stops: list[Stop] = []
        self.reference: dict[str, Any] = {}
        #: By stage: a policy without the states that come later, and what is on the disk then.
        self.ends: dict[int, tuple[Path, ledger.Ledger]] = {}
        self.hurry = 1  # a point by the clock comes so many times as early
        self.stage = 0  # the re-runs end with it; 0: they go on to the end
        self._number = 0
        self._memory: dict[tuple[object, ...], str] = {}
        self._runs: list[Run] = []

    # --- the node ------------------------------------------------------------------------

    def prepare(self, spare_kernel: str) -> None:
        """Make the disk that every point starts from: the image, foreign files, the wrapper.

        Args:
            spare_kernel: release of a kernel that is not to be there; empty: all stay.
        """
        self.node.reset()
        self.node.kill()
        root = self.node.root
        self.node.prepare()
        for path in root.glob(f"boot/*-{spare_kernel}") if spare_kernel else ():
            path.unlink()
        if spare_kernel:
            shutil.rmtree(root / "lib/modules" / spare_kernel)
        for name, (text, mode) in {
            **FOREIGN,
            "etc/containerd/config.toml": (CONTAINERD, 0o640),
        }.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode("latin-1"))
            path.chmod(mode)
            os.utime(path, (LONG_AGO, LONG_AGO))
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

    def at_stage(self, stage: int) -> int:
        """The node as it stood between two stages of the recorded run, booted; how many calls were before.

        What is done there next is that stage, by a run of its own.
        """
        last = [s for s in self.stops if s.stage == stage - 1 and s.kind == "end"][-1]
        nodedisk.put_back(self.node, self.copies[last.name])
        shutil.rmtree(nodedisk.upper(self.node) / ledger.OWN / "lock", ignore_errors=True)
        self.boot()
        return last.call

    def boot(self) -> None:
        """Switch the node on; a busy machine is no reason to fail."""
        self.node.boot(timeout_s=600)

    def ledger(self) -> ledger.Ledger:
        """Everything on the disk that is neither gpustate's own nor volatile."""
        found = ledger.read(
            nodedisk.upper(self.node), self.node.layers, skip=lambda name: not ledger.foreign(name)
        )
        status = nodedisk.upper(self.node) / "var/lib/dpkg/status"
        if "var/lib/dpkg/status" in found:
            del found["var/lib/dpkg/status"]  # its order tells what was installed when
            for stanza in status.read_text("utf-8", "replace").strip().split("\n\n"):
                name, _, rest = stanza.partition("\n")
                says = re.search(r"^Status: (.*)$", rest, re.M)
                found[f"dpkg, {name}"] = f"{says and says[1]}, {ledger.digest({rest: ''})}"
        for name in found:
            if name.startswith("boot/initrd.img-"):
                found[name] = f"initramfs of {self.node.run(INITRAMFS.format(name)).stdout.strip()}"
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

    def start(self, *words: str, policy: Path | None = None) -> Run:
        """Start gpustate, in a fork of this process; with the whole policy, where none is given."""
        self._number += 1
        outputs = [self.folder / f"out.{self._number}", self.folder / f"err.{self._number}"]
        for path in outputs:
            path.touch()
        command = (
            *words,
            str(policy or self.policy),
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

    def again(self, verb: str, *words: str) -> Run:
        """What comes after a kill, as far as it goes this time."""
        return self.start(verb, *words, policy=self.ends[self.stage][0] if self.stage else None)

    @property
    def wanted(self) -> ledger.Ledger:
        """What has to be on the disk after that."""
        found: ledger.Ledger = self.reference["ledger"]
        return self.ends[self.stage][1] if self.stage else found

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

    def record(self, ticks: tuple[float, ...]) -> Recording:
        """Hold a whole run at every call, and ``ticks`` seconds after each; copy the disk each time."""
        self.fresh()
        made, ends = Recording(), dict[int, ledger.Ledger]()
        began = time.monotonic()
        with self.armed("every") as hold:
            run = self.apply("-o", "json")
            while (at := self.held(hold, run)) is not None:
                call, name, entry = at
                stop = self._stop(call, name, entry)
                with self.frozen():
                    self._take(made, stop)
                if stop.kind == "end":
                    ends[stop.stage] = self.ledger()
                hold.go()
                self._tick(made, stop, ticks, hold)
        if run.wait(60) != 0:
            raise Trouble(f"the recorded run ended with {run.code}:\n{run.said()}")
        made.seconds = time.monotonic() - began
        self.stops = made.stops
        rows = json.loads(run.out.read_text())["nodes"]
        made.states = {row["state"]: row["outcome"] for row in rows[0]["states"]}
        self.reference = self.summary()
        self._end_stages(ends)
        self._look(made)
        return made

    def _end_stages(self, ends: dict[int, ledger.Ledger]) -> None:
        """Write the policies that end with a stage, where no state has something to do before and after it."""
        names = [{state for state, _ in steps_of(folder)} for folder in self.runs()]
        for stage, found in ends.items():
            now, later = set[str]().union(*names[:stage]), set[str]().union(*names[stage:])
            if later and not now & later:
                path = self.folder / f"until-{stage}.py"
                path.write_text(f"{self.policy.read_text()}\n{_UNTIL.format(now=sorted(now))}")
                self.ends[stage] = path, found

    def _look(self, made: Recording) -> None:
        """What a look at the converged node costs; the second one, for daemons have just been started."""
        for _ in range(2):
            before = self.processor_s()
            run = self.start("drift", "-o", "json")
            if run.wait(300) != 0:
                raise Trouble(f"drift after the recorded run ended with {run.code}:\n{run.said()}")
            made.looked_s = self.processor_s() - before
            made.converged = json.loads(run.out.read_text())["nodes"][0]
        before = self.processor_s()
        subprocess.run([*self.node.ssh_args(), "true"], check=True, capture_output=True, timeout=60)
        made.login_s = self.processor_s() - before

    def processor_s(self) -> float:
        """Processor time of every login that has ended, with all that was started in it, in seconds."""
        stat = "cat /proc/$(systemctl show -p MainPID --value ssh)/stat"
        fields = self.node.run(stat).stdout.rpartition(")")[2].split()
        return sum(map(int, fields[13:15])) / os.sysconf("SC_CLK_TCK")

    def _tick(self, made: Recording, stop: Stop, ticks: tuple[float, ...], hold: Hold) -> None:
        """Stop by the clock, as long as the program has not come to its next call."""
        began = time.monotonic()
        stood = 0.0
        for tick in ticks:
            if hold.pending(max(0.0, tick - (time.monotonic() - began - stood))):
                return
            at = time.monotonic()
            with self.frozen():
                inner = replace(self._stop(stop.call, self.runs()[-1].name, False), clock=tick)
                self._take(made, inner)
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

    def _take(self, made: Recording, stop: Stop) -> None:
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
