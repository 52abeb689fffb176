"""A node of a lab: boot, reboot, power loss, reset, commands and faults.

The disk is an overlay; ``reset`` deletes its upper folder. ``kill`` ends every process at once, like a power
loss; ``reboot`` goes through systemd and changes ``/proc/sys/kernel/random/boot_id``. Unlike in a real power
loss, data that was not flushed survives ``kill``, since the page cache is the controller's.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpustate.errors import LabError
from gpustate_lab import containerd, daemon, host, network, process, setup, simulation, slurm_files
from gpustate_lab.command import run, tail
from gpustate_lab.kubernetes import machine
from gpustate_lab.kubernetes.layout import Layout
from gpustate_lab.network import Network
from gpustate_lab.paths import write_text
from gpustate_lab.spec import NodeSpec

READY_TIMEOUT_S = 90.0
#: Folder in the node's directory that is mounted as ``/var/lib/containerd``.
CONTAINERD = "containerd"
#: systemd(1), signals: reboot.target.
_REBOOT = signal.SIGRTMIN + 5
_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
}


@dataclass(frozen=True, slots=True)
class Node:
    """A node of a lab. All its state is in files, so several processes may use one node.

    Args:
        lab_directory: the lab's folder.
        network: the lab's addresses.
        spec: its specification.
        layers: of the image, topmost first.
        sources: initial apt source files.
    """

    lab_directory: Path
    network: Network
    spec: NodeSpec
    layers: tuple[Path, ...]
    sources: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def image(self) -> str:
        return self.spec.image

    @property
    def gpus(self) -> str:
        return self.spec.gpus

    @property
    def address(self) -> str:
        return str(self.network.address(self.spec.number))

    @property
    def directory(self) -> Path:
        return self.lab_directory / "nodes" / self.name

    @property
    def root(self) -> Path:
        """The node's ``/`` on the controller, mounted while the lab is running."""
        return self.directory / "root"

    @property
    def cgroup(self) -> str:
        return f"{self.network.tag}/{self.name}"

    @property
    def machine(self) -> str:
        return self.network.namespace(self.name)

    # --- power ---------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether the container is running, including the gap during a reboot."""
        state = self._state()
        return daemon.alive(state.get("supervisor"))

    def boot(self, *, wait: bool = True, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Boot the node unless it is running; ``wait=False`` does not wait until it is ready."""
        if not self.running:
            process.kill_cgroup(self.cgroup)
            self.prepare()
            config = {"argv": self._argv(), "cgroups": process.make_cgroups(self.cgroup)}
            write_text(self.directory / "container.json", json.dumps(config))
            process.start_daemon(
                ["supervise", str(self.directory)],
                self.directory / "supervisor.json",
                self.directory / "console.log",
            )
        if wait:
            self.wait_ready(timeout_s)

    def kill(self) -> bool:
        """Simulate a power loss: SIGKILL all processes, the supervisor first so that it restarts nothing."""
        was_running = process.end(self._state().get("supervisor"))
        killed = process.kill_cgroup(self.cgroup)
        self._clean_nspawn()
        return was_running or killed > 0

    def reboot(self, timeout_s: float = READY_TIMEOUT_S) -> str:
        """Reboot through systemd; return the new boot id once the node is ready again.

        systemd receives its reboot signal from outside. With ``nsenter systemctl reboot`` the shutdown would
        hang: systemd stops all processes first, and a stopped nsenter does not reap its child.
        """
        before = self.boot_id()
        os.kill(self.leader(), _REBOOT)
        deadline = time.monotonic() + timeout_s
        status = "the old boot id"
        while time.monotonic() < deadline:
            try:
                if self.boot_id() != before:
                    self.wait_ready(max(1.0, deadline - time.monotonic()))
                    return self.boot_id()
            except LabError as error:
                if not self.running:
                    raise LabError(
                        "the node is off after the reboot", place=self.name, fix=self._hint()
                    ) from error
                status = str(error)
            time.sleep(0.05)
        raise LabError(
            f"reboot timed out after {timeout_s:.0f} s; last status: {status}", place=self.name
        )

    def reset(self, *, wait: bool = True) -> None:
        """Delete the disk and boot from the image; address and host key stay."""
        self.kill()
        host.unmount_all(self.root)
        for name in ("filled", "faults.json"):
            (self.directory / name).unlink(missing_ok=True)
        for folder in ("upper", "work", CONTAINERD):
            shutil.rmtree(self.directory / folder, ignore_errors=True)
        self.boot(wait=wait)

    def on_top(self, layer: Path) -> Node:
        """Return the node with ``layer``, the upper folder of an overlay, over its image; ``reset`` boots it.

        Its apt sources are those of the layer.
        """
        return replace(self, layers=(layer, *self.layers), sources=())

    def prepare(self) -> None:
        """Mount the disk and connect the network; initialise a new disk."""
        filled = self.directory / "filled"
        host.mount_overlay(
            self.root, self.layers, self.directory / "upper", self.directory / "work"
        )
        (self.directory / CONTAINERD).mkdir(exist_ok=True)
        cluster = self.spec.kubernetes
        network.attach(self.network, self.name, self.spec.number, cluster=cluster)
        if not filled.exists():
            setup.fill(self.root, self.directory, self.lab_directory, self.spec.name, self.sources)
            if cluster:
                layout = Layout(self.lab_directory, self.lab_directory.name, self.network)
                machine.fill(self.root, layout, self.spec)
            containerd.configure(self.root, cgroup_driver=self.spec.cgroups)
            if not machine.may_lower_oom_score():
                containerd.allow_oom_scores(self.root)
            simulation.write_hardware(self.root, self.name, self.gpus, self.faults)
            for fault in self.faults:
                simulation.switch_fault(self.root, fault, True)
            if self.spec.slurm:
                slurm_files.fill(self.root, self.lab_directory)
            filled.touch()

    # --- queries -------------------------------------------------------------------------------

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until sshd sends its banner and systemd has finished booting."""
        deadline = time.monotonic() + timeout_s
        status, greeted = "no connection", False
        while time.monotonic() < deadline:
            if not greeted:
                # Once: sshd penalises addresses that connect repeatedly without a login.
                status = self._banner()
                greeted = status.startswith("SSH-")
            if greeted:
                status = self._system_state()
                if status in ("running", "degraded"):
                    return
            if not self.running:
                raise LabError("the node stopped while booting", place=self.name, fix=self._hint())
            time.sleep(0.05)
        raise LabError(
            f"not ready within {timeout_s:.0f} s ({self.address} port 22); last status: {status}",
            place=self.name,
            fix=self._hint(),
        )

    def run(
        self, command: str | Sequence[str], *, timeout_s: float = 60.0, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the node as root, without ssh; a string is run by ``sh -c``."""
        argv = ["sh", "-c", command] if isinstance(command, str) else list(command)
        enter = ["nsenter", "-t", str(self.leader()), "-m", "-u", "-i", "-n", "-p", "-C", "--"]
        try:
            return run([*enter, *argv], timeout_s=timeout_s, check=check, env=_ENVIRONMENT)
        except LabError as error:
            raise LabError(error.message, place=self.name, fix=error.fix) from error

    def ssh_args(self, user: str = "root") -> list[str]:
        """Return the ``ssh`` command line, without a remote command."""
        return [
            *("ssh", "-F", "none", "-i", str(self.lab_directory / "id_ed25519")),
            *("-o", f"UserKnownHostsFile={self.lab_directory / 'known_hosts'}"),
            *("-o", "StrictHostKeyChecking=yes", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"),
            f"{user}@{self.address}",
        ]

    def boot_id(self) -> str:
        """Return the boot id, read from outside the node."""
        path = Path(f"/proc/{self.leader()}/root/proc/sys/kernel/random/boot_id")
        try:
            return path.read_text().strip()
        except OSError as error:
            raise LabError(f"{path}: {error.strerror}", place=self.name) from error

    def logs(self) -> str:
        """Return the console of all boots, and the journal of this boot if the node is running."""
        console = self.directory / "console.log"
        text = console.read_text(errors="replace") if console.exists() else ""
        if self.running:
            text += self.run("journalctl --no-pager -b", check=False).stdout
        return text

    def leader(self) -> int:
        """Return the pid of the node's process 1, as the controller sees it."""
        container = self._state().get("container")
        if daemon.alive(container):
            for pid in _children(container["pid"]):
                if _is_init(pid):
                    return pid
        raise LabError(
            "the node is off or rebooting", place=self.name, fix="gpustate lab up, or Node.boot()"
        )

    # --- faults --------------------------------------------------------------------------------

    @property
    def faults(self) -> tuple[str, ...]:
        """The active faults; initially those of the specification."""
        path = self.directory / "faults.json"
        return tuple(json.loads(path.read_text())) if path.exists() else self.spec.faults

    def fault(self, text: str, on: bool) -> None:
        """Switch one fault (``name`` or ``name:argument``) on or off."""
        if self.root not in host.mount_points(self.root):
            raise LabError("the disk is not mounted", place=self.name, fix="gpustate lab up")
        others = [fault for fault in self.faults if fault != text]
        faults = [*others, text] if on else others
        try:
            changed_units = simulation.switch_fault(self.root, text, on)
        except LabError as error:
            raise LabError(error.message, place=self.name, fix=error.fix) from error
        simulation.write_hardware(self.root, self.name, self.gpus, faults)
        write_text(self.directory / "faults.json", json.dumps(faults))
        if changed_units and self.running:
            self.run(["systemctl", "daemon-reload"])

    # --- inner ---------------------------------------------------------------------------------

    def _state(self) -> dict[str, Any]:
        return process.read_state(self.directory / "supervisor.json")

    def _argv(self) -> list[str]:
        return [
            "systemd-nspawn",
            f"--directory={self.root}",
            f"--machine={self.machine}",
            f"--hostname={self.name}",
            f"--network-namespace-path={network.namespace_path(self.machine)}",
            # Do not use systemd or machined of the controller, if there is one.
            *("--register=no", "--keep-unit"),
            *("--resolv-conf=off", "--timezone=off", "--link-journal=no", "--console=read-only"),
            # For containers in the node: runc creates session keys and BPF device filters.
            *("--capability=CAP_NET_ADMIN", "--system-call-filter=add_key keyctl bpf"),
            # Container image layers cannot be mounted on the node's own overlay.
            f"--bind={self.directory / CONTAINERD}:/var/lib/containerd",
            *(machine.binds(self.lab_directory) if self.spec.kubernetes else ()),
            "--boot",
        ]

    def _clean_nspawn(self) -> None:
        """Remove the lock and exchange folders that a killed nspawn leaves."""
        nspawn = Path("/run/systemd/nspawn")
        if self.root.exists():
            status = self.root.stat()
            (nspawn / "locks" / f"inode-{status.st_dev}:{status.st_ino}").unlink(missing_ok=True)
        for folder in (nspawn / "propagate", nspawn / "unix-export"):
            host.unmount_all(folder / self.machine)
            shutil.rmtree(folder / self.machine, ignore_errors=True)

    def _banner(self) -> str:
        try:
            with socket.create_connection((self.address, 22), timeout=2) as connection:
                return connection.recv(64).decode(errors="replace").strip() or "empty banner"
        except OSError as error:
            return str(error)

    def _system_state(self) -> str:
        try:
            return self.run(
                ["systemctl", "is-system-running"], timeout_s=10, check=False
            ).stdout.strip()
        except LabError as error:
            return error.message

    def _hint(self) -> str:
        console = self.directory / "console.log"
        text = console.read_text(errors="replace") if console.exists() else ""
        return f"last lines of the console: {tail(text, 3)}"


def _children(pid: int) -> list[int]:
    try:
        return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        pass
    # Kernels without CONFIG_PROC_CHILDREN.
    children = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and _status(int(entry), "PPid") == str(pid):
            children.append(int(entry))
    return children


def _is_init(pid: int) -> bool:
    numbers = (_status(pid, "NSpid") or "").split()
    return len(numbers) > 1 and numbers[-1] == "1"


def _status(pid: int, key: str) -> str | None:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(":")
        if name == key:
            return value.strip()
    return None
