"""Machines that answer over ssh, the cluster in memory whose Nodes they are, and the real ``gpustate`` between them.

A machine is an sshd in namespaces of its own (``clusterhost.sh``): it has its own ids, processes and a kubelet or
slurmd that only sleeps. Nothing outside of the bed's folder is written.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import forkserver
from apigate import HOLD, Gate, Trap
from forkserver import Command
from killprocess import Hold
from killsite import WRAPPER
from stubcluster import TOKEN, StubCluster

SUPPORT = Path(__file__).parent
OLD, NEW = "1", "2"
BOUND_S = 120.0
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
SetEnv SHLVL=1
ListenAddress {address}:{port}
"""


@dataclass(slots=True)
class Machine:
    """One machine.

    Args:
        name: in the inventory, and of its Node.
        folder: its own.
        agents: programs of schedulers that run there.
        address, port: of its sshd.
        boot_id, machine_id: its ids.
    """

    name: str
    folder: Path
    agents: tuple[str, ...] = ("kubelet",)
    address: str = "127.0.0.1"
    port: int = 0
    boot_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    machine_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def ids(self) -> tuple[str, str, str]:
        """As its kubelet reports them; its system UUID is that of the machine that all of them run on."""
        return (self.boot_id, self.machine_id, f"uuid-of-{self.name}")

    def prepare(self) -> None:
        """Make its folder."""
        for name in ("state", "programs", "agents", "kill"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "machine-id").write_text(f"{self.machine_id}\n")
        (self.folder / "boot-id").write_text(f"{self.boot_id}\n")
        for name in self.agents:
            shutil.copy(shutil.which("sleep") or "/bin/sleep", self.folder / "agents" / name)
        for name in ("reached", "go"):
            os.mkfifo(self.folder / "kill" / name)
        self.stop_at("0")
        program = self.folder / "programs/sync"
        program.write_text(WRAPPER)
        program.chmod(0o755)

    def stop_at(self, call: str) -> None:
        """Hold the node program at a call of ``sync``, at ``every`` one, or at none: ``0``."""
        (self.folder / "kill/count").write_text("0\n")
        (self.folder / "kill/at").write_text(f"{call}\n")

    def start(self, keys: Path) -> None:
        """Boot it."""
        config = self.folder / "sshd_config"
        config.write_text(_CONFIG.format(folder=keys, address=self.address, port=self.port))
        words = ["unshare", "--mount", "--pid", "--uts", "--fork", "--mount-proc", "--kill-child"]
        script = str(SUPPORT / "clusterhost.sh")
        with (self.folder / "sshd.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*words, "sh", script, str(self.folder), self.name, str(config), *self.agents],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        for _ in range(200):
            try:
                socket.create_connection((self.address, self.port), timeout=1).close()
            except OSError:
                assert self._process.poll() is None, (self.folder / "sshd.log").read_text()
                time.sleep(0.05)
            else:
                return
        raise RuntimeError(f"sshd of {self.name} does not listen")

    def stop(self) -> None:
        """Cut its power."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def read(self, name: str) -> str:
        """Text of a file of its folder; empty where there is none."""
        path = self.folder / name
        return path.read_text().strip() if path.exists() else ""

    def reset(self) -> None:
        """As it was before gpustate ever came."""
        for path in (self.folder / "state").iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for name in ("firmware", "firmware.begun", "driver.count", "broken"):
            (self.folder / name).unlink(missing_ok=True)
        (self.folder / "driver").write_text(f"{OLD}\n")
        self.stop_at("0")

    def entries(self) -> list[dict[str, Any]]:
        """All journal entries of all runs."""
        found: list[dict[str, Any]] = []
        for journal in sorted((self.folder / "state/runs").glob("*-[0-9]*/journal")):
            found += [json.loads(line) for line in journal.read_text().splitlines()]
        return found


@dataclass(slots=True)
class Ran:
    """How a run of gpustate ended."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        """All that it printed."""
        return f"{self.out}\n{self.err}"

    @property
    def document(self) -> dict[str, Any]:
        """Standard output as JSON."""
        found: dict[str, Any] = json.loads(self.out)
        return found


class Bed:
    """Machines, their cluster, and an inventory of both.

    Args:
        folder: of the test.
        count: of machines.
        agents: of each; with slurmd there is a machine ``head`` with Slurm's tools (``slurmhead.py``), too.
    """

    #: The API server is away for a moment, or for longer than a run waits for it.
    away_s, long_s = 1.5, 8.0
    bound_s = BOUND_S

    def __init__(self, folder: Path, count: int, agents: tuple[str, ...] = ("kubelet",)) -> None:
        self.folder = folder
        for key in ("host", "user"):
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)]
            subprocess.run(words, check=True)
        with socket.create_server(("127.0.0.1", 0)) as one:
            port: int = one.getsockname()[1]
        self.machines = [
            Machine(f"n{number}", folder / f"n{number}", agents, f"127.11.0.{number + 1}", port)
            for number in range(count)
        ]
        self.head = Machine("head", folder / "head", (), "127.11.0.250", port)
        self.has_head = "slurmd" in agents
        for machine in (*self.machines, *([self.head] if self.has_head else [])):
            machine.prepare()
            machine.reset()
            machine.start(folder)
        self.cluster = self._new_cluster()
        self.gate = Gate(lambda request: self.cluster.answer(request))
        self.gate.open()
        self.kubeconfig = self.gate.kubeconfig(folder, TOKEN)
        self._write()

    def _new_cluster(self) -> StubCluster:
        def driver(name: str) -> str:
            return next(one.read("driver") for one in self.machines if one.name == name)

        return StubCluster({one.name: one.ids for one in self.machines}, driver)

    def write_policy(self) -> None:
        """Write the policy and its states."""
        shutil.copy(SUPPORT / "rolloutstates.py", self.folder)
        names = ("Driver", "Firmware")
        states = ", ".join(f'"rolloutstates:{name}"' for name in names)
        (self.folder / "gpustate.toml").write_text(f"states = [{states}]\n")
        (self.folder / "policy.py").write_text("from rolloutstates import policy\n")

    def _write(self) -> None:
        self.write_policy()
        key = " ".join((self.folder / "host.pub").read_text().split()[:2])
        (self.folder / "known_hosts").write_text(
            "".join(f"[{one.address}]:{one.port} {key}\n" for one in (*self.machines, self.head))
        )
        slurm = {"gpustate_slurm_host": self.head.address} if self.has_head else {}
        self.inventory(gpustate_kubeconfig=str(self.kubeconfig), **slurm)

    def inventory(self, **variables: str) -> Path:
        """Write the inventory with these variables of every machine."""
        hosts = {
            machine.name: {
                "ansible_host": machine.address,
                "ansible_port": machine.port,
                "gpustate": {
                    f"rollout-{what}": {"folder": str(machine.folder)}
                    for what in ("driver", "firmware")
                },
            }
            for machine in self.machines
        }
        shared = {
            "ansible_user": "root",
            "ansible_ssh_private_key_file": str(self.folder / "user"),
            "ansible_ssh_common_args": f"-o UserKnownHostsFile={self.folder}/known_hosts",
            **variables,
        }
        path = self.folder / "inventory.yml"
        path.write_text(json.dumps({"all": {"vars": shared, "hosts": hosts}}))
        return path

    def reset(self) -> None:
        """Machines with the old driver in a cluster that nobody has touched."""
        for machine in self.machines:
            machine.reset()
        self.cluster = self._new_cluster()

    def close(self) -> None:
        """End everything."""
        self.gate.close()
        for machine in (*self.machines, self.head):
            machine.stop()

    # --- runs --------------------------------------------------------------------------

    def start(self, *words: str, verb: str = "apply", hurry: bool = True) -> Command:
        """Start gpustate over all machines; an apply without a size of waves has all of them in one."""
        line = [verb, str(self.folder / "policy.py"), "-i", str(self.folder / "inventory.yml")]
        if verb == "apply":
            line += ["--yes"]
            for option in ("--serial", "--max-unavailable"):
                line += [] if option in words else [option, "100%"]
        return forkserver.start([*line, *words], str(SUPPORT / "hurry.py") if hurry else "")

    def run(self, *words: str, verb: str = "apply", hurry: bool = True) -> Ran:
        """Run gpustate over all machines."""
        return finish(self.start(*words, verb=verb, hurry=hurry), self.bound_s)

    def hold(self, machine: Machine) -> Hold:
        """The pipes at which the node program of a machine waits."""
        return Hold(machine.folder / "kill")

    # --- what holds --------------------------------------------------------------------

    def wrong(self, versions: Sequence[str] = (NEW,)) -> list[str]:
        """What is not as it has to be after a run that ended well, one line each."""
        found: list[str] = []
        plugins = {
            one["spec"]["nodeName"]: one
            for one in self.cluster.all("pods")
            if one["metadata"]["labels"]["app"] == "nvidia-device-plugin"
        }
        for machine in self.machines:
            node = self.cluster.node(machine.name)
            for file in ("driver", "firmware"):
                if machine.read(file) not in versions:
                    found.append(f"{machine.name}: {file} is {machine.read(file) or 'missing'}")
            if len(machine.read("driver.count").split()) > 1:
                found.append(f"{machine.name}: the driver was installed more than once")
            if node["spec"].get("unschedulable"):
                found.append(f"{machine.name}: still cordoned")
            if HOLD in node["metadata"]["annotations"]:
                record = node["metadata"]["annotations"][HOLD]
                found.append(f"{machine.name}: still held: {record}")
            old = plugins[machine.name]["metadata"]["annotations"]["driver"]
            if old != machine.read("driver"):
                found.append(f"{machine.name}: its device plugin uses driver {old}")
            if (machine.folder / "state/lock").exists():
                found.append(f"{machine.name}: its lock is left")
            found += self._changed_in_service(machine)
        return found

    def _changed_in_service(self, machine: Machine) -> list[str]:
        """Whether it was in service, or used by GPU pods, when it was changed."""
        path = machine.folder / "driver"
        if machine.read("driver") == OLD:
            return []
        at = path.stat().st_mtime
        moments = [one for one in self.cluster.history if one.at <= at]
        found: list[str] = []
        if machine.name not in moments[-1].held:
            found.append(f"{machine.name}: changed while it was schedulable")
        if machine.name in moments[-1].gpu_pods:
            found.append(f"{machine.name}: changed under a pod with GPUs")
        return found


def wait_until_sprung(trap: Trap, command: Command) -> None:
    """Wait for what a trap waits for; the run must not end before."""
    while not trap.sprung:
        assert not command.ended() or trap.sprung, finish(command).text
        time.sleep(0.02)


def finish(command: Command, bound_s: float = BOUND_S) -> Ran:
    """Wait for the end of a run."""
    done = command.wait(bound_s)
    return Ran(done.returncode, done.stdout, done.stderr)
