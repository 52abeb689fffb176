"""Bring labs up and down.

``lab.json`` is written before anything else is made and names everything in the kernel that belongs
to the lab, so ``down`` needs nothing but that file: it works on a lab whose ``up`` was killed, and
after a reboot of the controller, when only files are left.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpustate.errors import LabError
from gpustate_lab import (
    access,
    checks,
    clusters,
    daemon,
    host,
    images,
    network,
    paths,
    process,
    setup,
    simulation,
)
from gpustate_lab.network import Network
from gpustate_lab.node import READY_TIMEOUT_S, Node
from gpustate_lab.record import REPOSITORY_PORT, Lab, load, write_record
from gpustate_lab.spec import LabSpec, NodeSpec, check_name

FORMAT = "gpustate.lab/1"
#: The lab that is meant when no name is given.
DEFAULT_NAME = "lab"
LOCK_WAIT_S = 300.0
DISCLAIMER = (
    "simulated: GPUs, PCI devices, kernel modules, NVML, CUDA, nvidia-smi and NVIDIA's other packages; "
    "real: systemd, sshd, apt, dpkg, containerd, NVIDIA's container toolkit and the file system (docs/lab.md)"
)

__all__ = ["FORMAT", "Lab", "document", "down", "find", "labs", "up"]

Say = Callable[[str], None]


def _silent(line: str) -> None:
    del line


def labs() -> list[Lab]:
    """Every lab there is, by name."""
    found = []
    for file in sorted(paths.state_dir().glob("*/lab.json")):
        try:
            found.append(load(file))
        except LabError:
            if file.exists():  # otherwise somebody took it down just now
                raise
    return found


def document(found: list[Lab]) -> dict[str, Any]:
    """What ``gpustate lab list -o json`` prints.

    ``inventory``, ``kubeconfig`` and ``programs`` on top are what most people ask for: those of the only
    lab, or of the one with the default name; ``null`` when neither can be said, or when it has no cluster.
    """
    entries = [_entry(lab) for lab in found]
    default = [entry for entry in entries if entry["name"] == DEFAULT_NAME] or entries
    entry = default[0] if len(default) == 1 else {}
    return {
        "format": FORMAT,
        **{key: entry.get(key) for key in ("inventory", "kubeconfig", "programs")},
        "labs": entries,
    }


def _entry(lab: Lab) -> dict[str, Any]:
    entry = lab.to_json()
    for cluster in clusters.of(lab):
        entry |= cluster.describe()
    return entry


def find(name: str) -> Lab:
    """The lab of that name."""
    file = paths.state_dir() / check_name(name) / "lab.json"
    if not file.exists():
        there = ", ".join(lab.name for lab in labs()) or "none"
        raise LabError(
            f"there is no lab {name!r} (labs: {there})", fix=f"gpustate lab up --name {name}"
        )
    return load(file)


def up(spec: LabSpec, say: Say = _silent) -> Lab:
    """Bring a lab up and wait until every node answers; what is up already stays as it is.

    Raises:
        LabError: something is missing on this machine, a lab of that name has other nodes, or a
            node does not come up. What this call made is then gone again.
    """
    for node in spec.node_specs():
        images.recipe_of(node.image)
        simulation.check(node.gpus, node.faults)
    checks.require()
    with _lab_lock(spec.name):
        lab = _standing(spec, say)
        if lab is not None and _runs(lab):
            say(f"lab {lab.name} is up already: {len(lab.nodes)} nodes, inventory {lab.inventory}")
            return lab
        prepared = images.prepare(
            spec.images, say, kubernetes=bool(spec.kubernetes), slurm=spec.slurm
        )
        clusters.prepare(spec, say)
        try:
            lab = lab or _found(spec, prepared)
            _raise(lab, prepared.repository, say)
        except BaseException:
            # A lab that was up before keeps its disks; a new one leaves nothing.
            if lab is None or not lab.complete:
                _remove(spec.name)
            raise
        lab = load(write_record(lab, complete=True))
    say(f"lab {lab.name} is up: inventory {lab.inventory}")
    say(DISCLAIMER)
    return lab


def down(name: str = DEFAULT_NAME, say: Say = _silent) -> list[str]:
    """Take a lab down, whatever state it is in; return what was removed, one line each.

    A lab that does not exist is not an error: nothing is left of it, which is what was asked for.
    """
    check_name(name)
    checks.require_root()
    with _lab_lock(name):
        removed = _remove(name)
    for line in removed:
        say(f"removed {line}")
    return removed


# --- inner -------------------------------------------------------------------------------------


def _lab_lock(name: str) -> Any:
    lock = paths.state_dir() / ".locks" / f"{name}.lock"
    return paths.locked(lock, wait_s=LOCK_WAIT_S, what=f"the lab {name}")


def _standing(spec: LabSpec, say: Say) -> Lab | None:
    """The lab of that name when it can be used again; half-made ones are removed."""
    file = paths.state_dir() / spec.name / "lab.json"
    if not file.exists():
        _remove(spec.name)
        return None
    lab = load(file)
    if not lab.complete:
        say(f"lab {lab.name} was left half-made; removing it")
        _remove(lab.name)
        return None
    if lab.spec != spec:
        raise LabError(
            f"lab {lab.name} is there with other nodes ({_summary(lab.spec)})",
            fix=f"gpustate lab down --name {lab.name}, or take another --name",
        )
    gone = [layer for node in lab.machines for layer in node.layers if not layer.exists()]
    if gone:
        say(f"lab {lab.name}: its image {gone[0].parent.name} is gone; recreating it")
        _remove(lab.name)
        return None
    return lab


def _summary(spec: LabSpec) -> str:
    faults = (
        f", faults {', '.join(f'{f.text}@{f.node}' for f in spec.faults)}" if spec.faults else ""
    )
    return (
        f"{spec.nodes} nodes, images {', '.join(spec.images)}, GPUs {', '.join(spec.gpus)}{faults}"
    )


def _found(spec: LabSpec, prepared: images.Prepared) -> Lab:
    """Choose a network, write ``lab.json`` and the keys."""
    directory = paths.state_dir() / spec.name
    tag = network.tag_of(directory)
    # Two labs that come up at once must not choose one subnet: until its bridge is made, a lab's
    # choice can only be read in its record.
    with paths.locked(paths.state_dir() / ".locks" / ".subnet", wait_s=30, what="subnets"):
        taken = [*network.networks_in_use(), *(lab.network.subnet for lab in labs())]
        taken += [lab.network.cluster for lab in labs() if lab.spec.kubernetes]
        subnet = network.choose_subnet(taken, cluster=bool(spec.kubernetes))
        chosen = Network(tag=tag, subnet=subnet)
        directory.mkdir(parents=True, exist_ok=True)
        url = f"http://{chosen.gateway}:{REPOSITORY_PORT}"

        def machine(wanted: NodeSpec, layers: tuple[Path, ...]) -> Node:
            distribution = images.recipe_of(wanted.image).distribution
            sources = simulation.sources(prepared.repository, distribution, url)
            return Node(directory, chosen, wanted, layers, tuple(sources.items()))

        nodes = tuple(machine(one, prepared.stacks[one.image]) for one in spec.node_specs())
        wanted = spec.head_spec()
        head = None if wanted is None else machine(wanted, prepared.slurm_head)
        lab = Lab(spec, directory, chosen, nodes, complete=False, head=head)
        write_record(lab, complete=False)
    setup.make_key(lab.private_key, f"gpustate-lab {spec.name}")
    for node in lab.machines:
        node.directory.mkdir(parents=True)
        setup.make_key(setup.host_key_of(node.directory), node.name)
    lab.repository_key.write_bytes(prepared.repository.key.read_bytes())
    _write_access(lab)
    return lab


def _write_access(lab: Lab) -> None:
    keys = {
        node.address: setup.host_key_of(node.directory).with_suffix(".pub").read_text()
        for node in lab.machines
    }
    paths.write_text(lab.known_hosts, access.known_hosts(keys))
    text = access.inventory(
        lab=lab.name,
        directory=lab.directory,
        repository_url=lab.repository_url,
        nodes=[
            (node.name, node.address, node.image, images.recipe_of(node.image).distribution)
            for node in lab.nodes
        ],
        variables=clusters.variables(lab),
    )
    paths.write_text(lab.inventory, text)


def _raise(lab: Lab, repository: simulation.Repository, say: Say) -> None:
    """Make everything of the lab that is not there, and wait for the nodes."""
    network.make_bridge(lab.network, cluster=bool(lab.spec.kubernetes))
    if not _server_runs(lab):
        process.start_daemon(
            [
                *("serve", str(repository.root), str(lab.network.gateway)),
                *(str(REPOSITORY_PORT), str(lab.directory / "server.json")),
                *process.make_cgroups(lab.network.tag),
            ],
            lab.directory / "server.json",
            lab.directory / "server.log",
        )
    for cluster in clusters.of(lab):
        cluster.start(say)
    for machine in lab.machines:
        machine.boot(wait=False)
    _wait_ready(lab.machines)
    for node in lab.nodes:
        say(f"{node.name}: {node.address}, {node.image}, GPUs {node.gpus} (simulated)")
    for cluster in clusters.of(lab):
        cluster.up(say)


def _wait_ready(nodes: Sequence[Node]) -> None:
    """Wait for nodes that boot at the same time, and name every one that does not come up."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    errors = []
    for node in nodes:
        try:
            node.wait_ready(max(1.0, deadline - time.monotonic()))
        except LabError as error:
            errors.append(str(error))
    if errors:
        raise LabError("; ".join(errors))


def _runs(lab: Lab) -> bool:
    """Whether nodes, repository server and clusters all run."""
    return lab.running and _server_runs(lab) and all(one.running for one in clusters.of(lab))


def _server_runs(lab: Lab) -> bool:
    return daemon.alive(process.read_state(lab.directory / "server.json").get("server"))


def _remove(name: str) -> list[str]:
    """Remove everything the record names, in the order in which one thing holds the next."""
    directory = paths.state_dir() / name
    record = directory / "lab.json"
    removed = []
    if record.exists():
        lab = load(record)
        for cluster in clusters.of(lab):
            removed += cluster.down()
        for node in lab.machines:
            removed += _remove_node(lab, node)
        if process.end(process.read_state(lab.directory / "server.json").get("server")):
            removed.append("repository server")
        # What was started a moment before `up` was killed may not have said who it is, nor be in its cgroup.
        process.kill_named(lab.directory)
        process.wait_for_orphans(lab.directory)
        process.kill_cgroup(lab.network.tag)
        if process.remove_cgroups(lab.network.tag):
            removed.append(f"cgroup {lab.network.tag}")
        if network.remove_bridge(lab.network):
            removed.append(f"bridge {lab.network.bridge}")
    removed += [f"mount {point}" for point in host.unmount_all(directory)]
    if directory.exists():
        # The record goes last: until then a second `down` knows what the first one missed.
        for path in directory.iterdir():
            if path != record:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.rmtree(directory)
        removed.append(f"directory {directory}")
    return removed


def _remove_node(lab: Lab, node: Node) -> list[str]:
    removed = [f"node {node.name} (processes)"] if node.kill() else []
    removed += [f"mount {point}" for point in host.unmount_all(node.directory)]
    removed += [
        f"network {name}" for name in network.detach(lab.network, node.name, node.spec.number)
    ]
    return removed
