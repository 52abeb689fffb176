"""Create, list and remove labs.

``lab.json`` is written first and lists every kernel object of the lab. ``down`` needs only that file: it works
after an ``up`` that was killed, and after a reboot of the controller, when only files are left.
"""

from __future__ import annotations

import difflib
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
from gpustate_lab.spec import DEFAULT_NAME, NO_GPUS, LabSpec, NodeSpec, check_name

FORMAT = "gpustate.lab/1"
LOCK_WAIT_S = 300.0
DISCLAIMER = (
    "simulated: GPUs, PCI devices, kernel modules, NVML, CUDA, nvidia-smi and NVIDIA's other packages; "
    "real: systemd, sshd, apt, dpkg, containerd, NVIDIA's container toolkit and the file system (docs/lab.md)"
)

__all__ = ["FORMAT", "Lab", "describe_absent", "document", "down", "find", "labs", "up"]

Say = Callable[[str], None]


def _silent(line: str) -> None:
    del line


def labs() -> list[Lab]:
    """Return all labs, sorted by name."""
    found = []
    for file in sorted(paths.state_dir().glob("*/lab.json")):
        try:
            found.append(load(file))
        except LabError:
            if file.exists():  # otherwise it was removed just now
                raise
    return found


def document(found: list[Lab]) -> dict[str, Any]:
    """Return the document of ``gpustate lab list -o json``.

    The top-level ``inventory``, ``kubeconfig`` and ``programs`` are those of the only lab, or of the one with the
    default name; ``null`` if there is neither, or if it has no cluster.
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
    """Return a lab by name."""
    file = paths.state_dir() / check_name(name) / "lab.json"
    if not file.exists():
        message, suggestion = describe_absent(name)
        others = any(paths.state_dir().glob("*/lab.json"))
        create = (
            f"{'choose one of them with --name, or ' * others}create it: gpustate lab up {name}"
        )
        raise LabError(message, fix=suggestion or create)
    return load(file)


def describe_absent(name: str) -> tuple[str, str | None]:
    """Return the message for a lab that does not exist, with those that do, and the nearest name, if any."""
    existing = sorted(file.parent.name for file in paths.state_dir().glob("*/lab.json"))
    near = difflib.get_close_matches(name, existing, 1)
    message = f"lab {name!r} does not exist (labs: {', '.join(existing) or 'none'})"
    return message, f"did you mean {near[0]!r}" if near else None


def up(spec: LabSpec, say: Say = _silent, toolkits: Sequence[str] = ()) -> Lab:
    """Create or start a lab and wait until every node is ready; a running lab is left unchanged.

    Args:
        spec: the lab.
        say: called with lines of progress.
        toolkits: versions of NVIDIA's container toolkit that the packages of all labs have beside the newest.

    Raises:
        LabError: a requirement is missing on this machine, a lab of that name has other nodes, or a
            node does not start. Everything that this call created is removed then.
    """
    for node in spec.node_specs():
        images.recipe_of(node.image)
        simulation.check(node.gpus, node.faults)
    checks.require()
    with _lab_lock(spec.name):
        lab = _reusable(spec, say)
        if lab is not None and _runs(lab):
            simulation.build_toolkits(paths.repository_dir(), toolkits, say)
            say(
                f"lab {lab.name} is already running: {len(lab.nodes)} nodes, inventory {lab.inventory}"
            )
            return lab
        prepared = images.prepare(
            spec.images,
            say,
            slurm=spec.slurm,
            toolkits=toolkits,
            cluster=lambda: clusters.prepare(spec, say),
        )
        try:
            lab = lab or _create(spec, prepared)
            _start(lab, prepared.repository, say)
        except BaseException:
            # An existing lab keeps its disks; a new one is removed.
            if lab is None or not lab.complete:
                _remove(spec.name)
            raise
        lab = load(write_record(lab, complete=True))
    say(f"lab {lab.name} is running: inventory {lab.inventory}")
    say(DISCLAIMER)
    return lab


def down(name: str = DEFAULT_NAME, say: Say = _silent) -> list[str]:
    """Remove a lab in any state; return one line for each removed object.

    A lab that does not exist is not an error.
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


def _reusable(spec: LabSpec, say: Say) -> Lab | None:
    """Return the existing lab if it can be reused; incomplete ones are removed."""
    file = paths.state_dir() / spec.name / "lab.json"
    if not file.exists():
        _remove(spec.name)
        return None
    lab = load(file)
    if not lab.complete:
        say(f"lab {lab.name} is incomplete; removing it")
        _remove(lab.name)
        return None
    if lab.spec != spec:
        raise LabError(
            f"lab {lab.name} exists with other options ({_summary(lab.spec)})",
            fix=f"gpustate lab down {lab.name}, or choose another name",
        )
    gone = [layer for node in lab.machines for layer in node.layers if not layer.exists()]
    if gone:
        say(f"lab {lab.name}: image {gone[0].parent.name} no longer exists; recreating the lab")
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


def _create(spec: LabSpec, prepared: images.Prepared) -> Lab:
    """Choose a subnet; write ``lab.json``, keys and inventory."""
    directory = paths.state_dir() / spec.name
    tag = network.tag_of(directory)
    # Concurrent calls must choose different subnets, also those with another state folder: the lock is the
    # machine's, and the bridge that takes the subnet is made under it. Labs that are down have only their record.
    with paths.locked(paths.SUBNET_LOCK, wait_s=60, what="subnets"):
        taken = [*network.networks_in_use(), *(lab.network.subnet for lab in labs())]
        taken += [lab.network.cluster for lab in labs() if lab.spec.kubernetes]
        subnet = network.choose_subnet(taken, cluster=bool(spec.kubernetes))
        chosen = Network(tag=tag, subnet=subnet)
        directory.mkdir(parents=True, exist_ok=True)
        url = f"http://{chosen.gateway}:{REPOSITORY_PORT}"

        def machine(node: NodeSpec, layers: tuple[Path, ...]) -> Node:
            distribution = images.recipe_of(node.image).distribution
            sources = simulation.sources(prepared.repository, distribution, url)
            return Node(directory, chosen, node, layers, tuple(sources.items()))

        nodes = tuple(machine(one, prepared.stacks[one.image]) for one in spec.node_specs())
        head_spec = spec.head_spec()
        head = None if head_spec is None else machine(head_spec, prepared.slurm_head)
        lab = Lab(spec, directory, chosen, nodes, complete=False, head=head)
        write_record(lab, complete=False)
        network.make_bridge(chosen, cluster=bool(spec.kubernetes))
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


def _start(lab: Lab, repository: simulation.Repository, say: Say) -> None:
    """Start the missing parts of a lab and wait for the nodes."""
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
    say(f"nodes: waiting for {len(lab.machines)} to boot")
    _wait_ready(lab.machines)
    for node in lab.nodes:
        gpus = "no GPUs" if node.gpus == NO_GPUS else f"GPUs {node.gpus} (simulated)"
        say(f"{node.name}: {node.address}, {node.image}, {gpus}")
    for cluster in clusters.of(lab):
        cluster.up(say)


def _wait_ready(nodes: Sequence[Node]) -> None:
    """Wait for nodes that boot in parallel; raise one error for all that do not start."""
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
    """Whether nodes, repository server and clusters are running."""
    return lab.running and _server_runs(lab) and all(one.running for one in clusters.of(lab))


def _server_runs(lab: Lab) -> bool:
    return daemon.alive(process.read_state(lab.directory / "server.json").get("server"))


def _remove(name: str) -> list[str]:
    """Remove everything in the record, dependents first."""
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
        # A process started just before `up` was killed may have no state file and not be in its cgroup yet.
        process.kill_named(lab.directory)
        process.wait_for_orphans(lab.directory)
        process.kill_cgroup(lab.network.tag)
        if process.remove_cgroups(lab.network.tag):
            removed.append(f"cgroup {lab.network.tag}")
        if network.remove_bridge(lab.network):
            removed.append(f"bridge {lab.network.bridge}")
    removed += [f"mount {point}" for point in host.unmount_all(directory)]
    if directory.exists():
        # The record is removed last, so that an interrupted `down` can be repeated.
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
