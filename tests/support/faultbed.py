"""Light nodes behind a relay that breaks connections: an sshd on loopback and folders for each.

Every process that a node's sshd starts carries the node's word in its environment, detached ones
too, so that what is left behind by a broken connection can be found.
"""

from __future__ import annotations

import getpass
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from commands import GPUSTATE
from faultproxy import C2S, CIPHER, MAC, S2C, Fault, Proxy
from faultstates import LARGE

from gpustate_lab.node import Node

SUPPORT = Path(__file__).parent
ALIVE_S, ALIVE_COUNT, CONNECT_S = 3, 2, 8
#: A run whose connections break may take so long, with every wait and every attempt.
BOUND_S = 180
#: Stands for the name of a node where it cannot be told which.
EVERY = "one of them"
DIRECTIONS = (C2S, S2C)
OLD = "as it was before\n"
SSHD = "/usr/sbin/sshd"
MARK = "GPUSTATE_LIGHT_NODE"

# With SHLVL a login shell that is bash leaves out ~/.bashrc, which costs more than all the rest.
_CONFIG = """
PidFile none
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
StrictModes no
UsePAM no
UseDNS no
PasswordAuthentication no
PermitRootLogin prohibit-password
MaxStartups 500
LogLevel ERROR
# Their packets can be told apart from outside.
Ciphers {cipher}
MACs {mac}
"""


@dataclass(frozen=True, slots=True)
class Point:
    """A place in a run where something goes wrong.

    Args:
        phase: what the run is about there.
        faults: what goes wrong.
    """

    phase: str
    faults: tuple[Fault, ...]

    @property
    def kind(self) -> str:
        """Of the last of them."""
        return self.faults[-1].kind

    def __str__(self) -> str:
        last = self.faults[-1]
        return f"{self.phase}/{last.kind}@{last.connection}.{last.direction}.{last.packet}"


@dataclass(slots=True)
class Ended:
    """A run that is over: exit code, document, everything on standard error, seconds."""

    code: int
    rows: dict[str, dict[str, Any]]
    err: str
    took_s: float


@dataclass(slots=True)
class Verdict:
    """What became of one point.

    Args:
        point: the point.
        fired: the run got there.
        status: of the node in the run that was broken.
        connections: that run made.
        took_s: all nodes of that run together.
        wrong: what must not be, one line each.
    """

    point: Point
    fired: bool
    status: str = ""
    connections: int = 0
    reason: str = ""
    took_s: float = 0.0
    wrong: list[str] = field(default_factory=list[str])

    @property
    def impatient(self) -> bool:
        """It gave up a connection that it had better sat out."""
        return self.point.kind in PATIENT and self.connections > 1


class Bed:
    """Nodes, their sshd, the relay, and an inventory of them.

    Args:
        folder: of the test.
        count: nodes.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.names = [f"n{number:03}" for number in range(count)]
        self.word = f"gpustate-light-{os.getpid()}-{folder.name}"
        for key in ("host", "user"):
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)]
            subprocess.run(words, check=True)
        self._daemons: list[subprocess.Popen[bytes]] = []
        targets = self.start()
        for target in targets:
            _wait_listening(*target)
        self.proxy = Proxy(targets)
        self._write()

    def start(self) -> list[tuple[str, int]]:
        """Start sshd for each node; give their addresses and ports."""
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        return [("127.0.0.1", self._daemon(name)) for name in self.names]

    def _daemon(self, name: str) -> int:
        """Start a node's sshd; give its port."""
        port = _free_port()
        config = self.folder / f"sshd_config.{name}"
        config.write_text(
            _CONFIG.format(folder=self.folder, cipher=CIPHER, mac=MAC)
            + f"ListenAddress 127.0.0.1:{port}\nSetEnv {MARK}={self.word}-{name} SHLVL=1\n"
        )
        words = [SSHD, "-D", "-e", "-f", str(config)]
        with (self.folder / "sshd.log").open("ab") as log:
            self._daemons.append(subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=log))
        return port

    def _write(self) -> None:
        (self.folder / "gpustate.toml").write_text(
            'states = ["faultstates:Large", "faultstates:Counted", "faultstates:Last"]\n'
        )
        (self.folder / "policy.py").write_text("from faultstates import policy\n")
        key = " ".join((self.folder / "host.pub").read_text().split()[:2])
        (self.folder / "known_hosts").write_text(
            "".join(f"[127.0.0.1]:{port} {key}\n" for port in self.proxy.ports)
        )
        args = (
            f"-o UserKnownHostsFile={self.folder}/known_hosts -o ConnectTimeout={CONNECT_S} "
            f"-o ServerAliveInterval={ALIVE_S} -o ServerAliveCountMax={ALIVE_COUNT}"
        )
        hosts = {
            name: {
                "ansible_port": port,
                "gpustate_state_folder": f"{self.inside(name)}/state",
                "gpustate": {
                    state: {"folder": self.inside(name)}
                    for state in ("fault-large", "fault-counted", "fault-last")
                },
            }
            for name, port in zip(self.names, self.proxy.ports, strict=True)
        }
        shared = {
            "ansible_host": "127.0.0.1",
            "ansible_user": getpass.getuser(),
            "ansible_ssh_private_key_file": str(self.folder / "user"),
            "ansible_ssh_common_args": args,
        }
        inventory = {"all": {"vars": shared, "hosts": hosts}}
        # JSON is YAML.
        (self.folder / "inventory.yml").write_text(json.dumps(inventory, indent=1))

    def at(self, name: str) -> Path:
        """A node's folder, seen from here."""
        return self.folder / "nodes" / name

    def inside(self, name: str) -> str:
        """A node's folder, as the node calls it."""
        return str(self.at(name))

    def close(self) -> None:
        """End everything."""
        self.proxy.close()
        for pid in self.left():
            _end(pid)
        for daemon in self._daemons:
            daemon.terminate()
        for daemon in self._daemons:
            daemon.wait(timeout=10)
        shutil.rmtree(self.folder / "nodes", ignore_errors=True)

    # --- runs --------------------------------------------------------------------------

    def reset(self, names: Sequence[str]) -> None:
        """Nodes that gpustate never saw, with an old file where a new one shall be."""
        for name in names:
            shutil.rmtree(self.at(name), ignore_errors=True)
            self.at(name).mkdir(parents=True)
            (self.at(name) / "large").write_text(OLD)

    def apply(self, names: Sequence[str]) -> Ended:
        """Run ``gpustate apply`` over some nodes; fails when it does not end in time."""
        words = [GPUSTATE, "apply", "policy.py", "-i", "inventory.yml", "--yes", "-o", "json"]
        # All in one wave: a look for the waves has a connection of its own, on which the faults would be.
        words += ["-l", ":".join(names), "--forks", str(len(names))]
        words += ["--serial", "100%", "--max-unavailable", "100%"]
        paths = os.pathsep.join((str(SUPPORT), *sys.path))
        began = time.monotonic()
        process = subprocess.Popen(
            words,
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": paths, "PYTHONFAULTHANDLER": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            out, err = process.communicate(timeout=BOUND_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # it says where all its threads are
            _, err = process.communicate()
            raise AssertionError(f"gpustate did not end within {BOUND_S} s\n{err}") from None
        took_s = time.monotonic() - began
        try:
            rows = {row["name"]: row for row in json.loads(out)["nodes"]}
        except (ValueError, KeyError):
            rows = {}
        return Ended(process.returncode, rows, err, took_s)

    # --- what is left behind -----------------------------------------------------------

    def left(self) -> dict[int, str]:
        """Processes that the nodes' sshd started and that are still there: node and command."""
        found: dict[int, str] = {}
        mark = MARK.encode() + b"=" + self.word.encode() + b"-"
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                environment = Path("/proc", entry, "environ").read_bytes()
                if mark not in environment:
                    continue
                words = Path("/proc", entry, "cmdline").read_bytes()
            except OSError:
                continue
            name = environment.split(mark, 1)[1].split(b"\0", 1)[0].decode()
            if words:  # a zombie has none
                command = words.replace(b"\0", b" ").decode("utf-8", "replace")
                found[int(entry)] = f"{name}: {command[:150]}"
        return found

    def sessions(self) -> int:
        """Connections that sshd still serves."""
        return sum(
            len(Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children").read_text().split())
            for daemon in self._daemons
        )

    def settle(self, seconds: float) -> dict[int, str]:
        """Wait until nothing of the nodes runs any more; what is there after so many seconds."""
        end = time.monotonic() + seconds
        while (left := self.left()) or self.sessions():
            if time.monotonic() > end:
                return left or {0: f"{EVERY}: {self.sessions()} sessions of sshd"}
            time.sleep(0.1)
        return {}

    def litter(self, name: str) -> list[str]:
        """What must not lie about on a node where nothing runs: temporary things, locks, torn journals."""
        at, wrong = self.at(name), []
        expected = {"large", "counted", "last", "counted.count", "last.count", "state"}
        for path in at.iterdir():
            if path.name not in expected:
                wrong.append(f"left beside the files: {path.name}")
        state = at / "state"
        if not state.is_dir():
            return wrong
        for path in state.iterdir():
            if path.name not in {"runs", "before", "originals", "lib", "cache", "proof.json"}:
                wrong.append(f"left in the state folder: {path.name}")
        for run in (state / "runs").iterdir() if (state / "runs").is_dir() else ():
            journal = run / "journal"
            if run.name.endswith(".new"):
                wrong.append(f"left in the state folder: runs/{run.name}")
            elif not journal.is_file() or '"e":"end"' not in journal.read_text():
                wrong.append(f"journal of {run.name} has no end")
            wrong += [f"left in {run.name}: {p.name}" for p in run.rglob("*.new*")]
        for path in [*(state / "originals").glob("*.new"), *(state / "lib").rglob(".new.*")]:
            wrong.append(f"left in the state folder: {path.relative_to(state)}")
        return wrong

    def torn(self, name: str) -> list[str]:
        """Files that are neither as they were nor as they shall be."""
        wanted = {"large": (OLD, LARGE), "counted": (None, "done\n"), "last": (None, "done\n")}
        wrong = []
        for file, texts in wanted.items():
            path = self.at(name) / file
            text = path.read_text() if path.exists() else None
            if text not in texts:
                wrong.append(f"{file} is torn: {len(text or '')} bytes")
        return wrong

    def counts(self, name: str) -> dict[str, int]:
        """How often each step that is to be done once was done."""
        found: dict[str, int] = {}
        for file in ("counted", "last"):
            path = self.at(name) / f"{file}.count"
            found[file] = len(path.read_text().splitlines()) if path.exists() else 0
        return found


class BootedBed(Bed):
    """One node that boots: its own sshd and systemd, which starts the programs.

    Args:
        folder: of the test.
        node: booted.
    """

    def __init__(self, folder: Path, node: Node) -> None:
        self.node = node
        super().__init__(folder, 1)

    def start(self) -> list[tuple[str, int]]:
        node = self.node
        config = (
            f"Ciphers {CIPHER}\nMACs {MAC}\nUseDNS no\nSetEnv {MARK}={self.word}-{self.names[0]}\n"
        )
        (node.root / "etc/ssh/sshd_config.d/00-test.conf").write_text(config)
        (node.root / "root/.ssh/authorized_keys").write_text((self.folder / "user.pub").read_text())
        key = node.root / "etc/ssh/ssh_host_ed25519_key.pub"
        (self.folder / "host.pub").write_text(key.read_text())
        node.run("systemctl restart ssh")
        return [(node.address, 22)]

    def at(self, name: str) -> Path:
        return self.node.root / "srv" / name

    def inside(self, name: str) -> str:
        return f"/srv/{name}"

    def sessions(self) -> int:
        return int(self.node.run("pgrep -c -f '[s]shd: .*@notty' || :").stdout)

    def left(self) -> dict[int, str]:
        units = "systemctl list-units --all --no-legend --plain 'gpustate-[0-9]*'"
        found = self.node.run(f"pgrep -a -f '[/]srv/{self.names[0]}/' || :; {units}").stdout
        told = {-n: f"{self.names[0]}: {line}" for n, line in enumerate(found.splitlines(), 1)}
        return told | super().left()

    def close(self) -> None:
        self.proxy.close()


def _end(pid: int) -> None:
    if pid:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def _wait_listening(address: str, port: int) -> None:
    for _ in range(100):
        try:
            socket.create_connection((address, port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError(f"sshd does not listen on {address}:{port}")


def phase_of(at: float, events: Sequence[tuple[float, str]], number: int) -> str:
    """Name what a run was about at some time, from its events; ``number``: of the packet."""
    kinds = [kind for when, kind in events if when <= at]
    if "probing" not in kinds:
        # Banner, algorithms, key exchange, new keys: what comes behind them is encrypted.
        return "kex" if number <= 3 else "login"
    stage = kinds.count("started")
    last = [kind for kind in kinds if kind in ("probing", "started", "step", "verifying")][-1]
    if last == "probing":
        return f"verify{stage}" if stage else "probe"
    return {"started": "upload", "step": "follow", "verifying": "verify"}[last] + str(stage)


def record(bed: Bed, faults: Sequence[Fault] = ()) -> list[list[tuple[str, int, str]]]:
    """Run once over the first node: for each connection its packets with direction, number, phase.

    Args:
        bed: its first node is used.
        faults: what goes wrong in that run; the packets behind it belong to what comes of it.
    """
    from gpustate import inventory, policies
    from gpustate.engine import fleet

    name = bed.names[0]
    bed.reset([name])
    bed.proxy.arm(0, faults)
    events: list[tuple[float, str]] = []
    request = fleet.Request(
        policies.load(str(bed.folder / "policy.py")),
        inventory.load(str(bed.folder / "inventory.yml"), limit=name),
        apply=True,
    )
    result = fleet.run(request, lambda event: events.append((time.monotonic(), event.kind)))
    if result.exit_code:
        raise RuntimeError(f"the run to be recorded failed: {result.nodes[0].reason}")
    connections = []
    for trace in bed.proxy.state(trace=True)[0]["trace"]:
        counts = dict.fromkeys(DIRECTIONS, 0)
        packets: list[tuple[str, int, str]] = []
        for at, direction, _size in trace:
            number = counts[direction]
            counts[direction] += 1
            phase = phase_of(at, events, number)
            asked = sum(packet[0] == C2S and packet[2] == "probe" for packet in packets)
            if phase == "probe" and direction == S2C and asked < 2:
                phase = "login"  # what sshd says unasked once somebody is logged in
            packets.append((direction, number, phase))
        connections.append(packets)
    bed.proxy.release()
    return connections


def trial(bed: Bed, points: Sequence[Point]) -> list[Verdict]:
    """Break one run at each point, on a node each and all at the same time; then look at it all.

    What hangs goes on hanging until a second, unbroken run has ended.
    """
    names = bed.names[: len(points)]
    bed.reset(names)
    with Sampler(bed, names) as sampler:
        verdicts = _trial(bed, names, points)
    for name, verdict in zip(names, verdicts, strict=True):
        verdict.wrong += sampler.torn.get(name, [])
    return verdicts


def _trial(bed: Bed, names: Sequence[str], points: Sequence[Point]) -> list[Verdict]:
    for number, point in enumerate(points):
        bed.proxy.arm(number, point.faults)
    broken = bed.apply(names)
    states = bed.proxy.state()
    verdicts = [
        Verdict(point, state["fired"], connections=len(state["connections"]))
        for point, state in zip(points, states, strict=False)
    ]
    for name, verdict in zip(names, verdicts, strict=True):
        _judge_broken(bed, name, verdict, broken)
    for number in range(len(points)):
        bed.proxy.allow(number)
    again = bed.apply(names)
    bed.proxy.thaw()
    if any(point.kind == "ghost" for point in points):
        time.sleep(2.0)
    bed.proxy.release()
    left = bed.settle(20)
    for name, verdict in zip(names, verdicts, strict=True):
        row = again.rows.get(name, {})
        if row.get("status") != "ok":
            verdict.wrong.append(f"the next run ended {row.get('status')}: {row.get('reason')}")
        verdict.wrong += [
            f"left: {text}" for text in left.values() if text.startswith((name, EVERY))
        ]
        verdict.wrong += bed.litter(name) + bed.torn(name)
        for file, count in bed.counts(name).items():
            if count != 1:
                verdict.wrong.append(f"the step of {file} was done {count} times")
    return verdicts


def _judge_broken(bed: Bed, name: str, verdict: Verdict, ended: Ended) -> None:
    row = ended.rows.get(name)
    if row is None or "Traceback" in ended.err or "a bug in gpustate" in str(row):
        trace = ended.err.find("Traceback")
        said = ended.err[max(trace, 0) :][:1500] if row is None or trace >= 0 else row.get("reason")
        verdict.wrong.append(f"exit {ended.code}: {said}")
        return
    verdict.status = row["status"]
    verdict.took_s = ended.took_s
    verdict.reason = row.get("reason") or ""
    verdict.wrong += bed.torn(name)
    if verdict.fired and row["status"] not in allowed(verdict.point):
        verdict.wrong.append(f"it ended {row['status']}: {verdict.reason}")
    if verdict.impatient:
        verdict.wrong.append(f"it made {verdict.connections} connections where one was enough")
    if row["status"] != "ok" and (not verdict.reason or "\n" in verdict.reason):
        verdict.wrong.append(f"it does not say in a line why it ended so: {verdict.reason!r}")


#: What a run sits out on the connection it has.
PATIENT = ("stall", "delay")


def allowed(point: Point) -> tuple[str, ...]:
    """How a run may end that is broken at a point: well, unless the node cannot be reached any more.

    A node that cannot be logged in to at first is told as such; what was begun is gone on with.
    """
    if point.kind in PATIENT:
        return ("ok",)
    if point.phase in ("kex", "login") or point.kind in ("gone", "ghost"):
        return ("ok", "unreachable")
    return ("ok",)


class Sampler:
    """Looks at the large file of each node all the time: it is never anything but old or new."""

    def __init__(self, bed: Bed, names: Sequence[str]) -> None:
        self.torn: dict[str, list[str]] = {}
        self._paths = {name: bed.at(name) / "large" for name in names}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        sizes = {len(OLD), len(LARGE)}
        while not self._over.wait(0.02):
            for name, path in self._paths.items():
                size = path.stat().st_size if path.exists() else -1
                if size not in sizes:
                    self.torn[name] = [f"large was of {size} bytes for a moment"]
