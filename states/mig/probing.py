"""One look at the MIG side of a node; everything leaves in the exec of all states."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from gpustate import Node, NodeFacts, shell
from gpustate.core.file_queries import noted
from gpustate.formats import keyed
from gpustate.formats.numbers import parse_uint
from gpustate.formats.nvml_report import Gpu, NvmlFacts, sysfs_address
from gpustate.mig import live
from gpustate.probes import device_nodes
from gpustate.probes.excluded_gpus import ExcludedGpusQuery
from gpustate.states.mig.observed import (
    MANAGER,
    NO_RESET_PATH,
    UNIT,
    UNIT_LINK,
    UNIT_PATH,
    Observed,
)
from gpustate.states.mig.planning import current_layout

FILES = "$G/mig/*"
_PROBE = (
    shell.load("probe", "gpustate.states.mig", TRIED=NO_RESET_PATH)
    + device_nodes.CAPABILITIES
    + ":"
)


def observe(node: Node, facts: NodeFacts, nvml: NvmlFacts, clients: tuple[str, ...]) -> Observed:
    """Everything but who uses what, which matters only when something is to change."""
    answer = node.shell(_PROBE)
    texts, stats = node.read_texts(FILES), node.stats(FILES)
    unit_text = node.own_text(UNIT_PATH)
    link = node.stats(UNIT_LINK)
    drop_ins = tuple(node.drop_ins(UNIT))
    units = node.units(MANAGER, *clients)
    modules = node.modules()
    keys = keyed.lists(answer.stdout)
    state = keyed.first(keys, "state", "/var/lib/gpustate")
    files = {path.rpartition("/")[2]: text for path, text in texts.items()}
    for path, stat in stats.items():
        name, mismatch = path.rpartition("/")[2], stat.otherwise()
        if mismatch and name in ("layout", "restore"):
            files[name] = noted(mismatch, files.get(name, ""))
    gpus = _with_minors(live.in_order(nvml, facts.gpus), keys.get("minor", []))
    quarantine = node.query(ExcludedGpusQuery())
    excluded = tuple(n for n, gpu in enumerate(gpus) if quarantine.holds(gpu.uuid, gpu.pci))
    problem = "" if nvml.error is None else nvml.error_text or nvml.error_name
    if not problem and gpus and all(gpu.error is not None for gpu in gpus):
        problem = f"GPU {gpus[0].pci or gpus[0].index}: error {gpus[0].error}"
    modes, instances = current_layout(gpus, excluded) if not problem else ({}, {})
    manager = units.get(MANAGER)
    return Observed(
        modes=modes,
        instances=instances,
        saved=files.get("layout"),
        before=files.get("before"),
        program=files.get("restore"),
        unit=unit_text,
        enabled=UNIT_LINK in link,
        stopped=tuple(files.get("stopped", "").split()),
        device_nodes=device_nodes.wrong(keys.get("cap", []), keys.get("found", [])),
        gpus=gpus if not problem else (),
        excluded=excluded,
        problem=problem,
        clients=tuple(name for name in clients if (unit := units.get(name)) and unit.active),
        no_reset=_no_reset(gpus, keys, drm="nvidia_drm" in modules),
        drop_ins=drop_ins,
        manager=manager is not None and manager.enabled,
        folder=f"{state}/mig",
        image=facts.image,
        systemd=facts.systemd,
    )


def _with_minors(gpus: Iterable[Gpu], rows: Iterable[str]) -> tuple[Gpu, ...]:
    """GPUs with their minor numbers, by which is known who has one open; nvidia-smi does not report them."""
    minors = {address: minor for address, _, minor in (row.partition(" ") for row in rows)}
    return tuple(
        gpu if gpu.minor is not None else replace(gpu, minor=parse_uint(minors.get(gpu.pci, "")))
        for gpu in gpus
    )


def _no_reset(gpus: tuple[Gpu, ...], keys: Mapping[str, list[str]], *, drm: bool) -> dict[str, str]:
    """Why GPUs cannot be reset, by their numbers."""
    reasons = {}
    for number, gpu in enumerate(gpus):
        if gpu.pci in keys.get("no_reset", []):
            reasons[str(number)] = (
                "it does not support a reset, such as a GPU passed through to a virtual machine"
            )
        elif drm:
            reasons[str(number)] = "nvidia_drm is loaded and holds it"
        elif gpu.pci in map(sysfs_address, keys.get("tried", [])):
            reasons[str(number)] = "a reset was tried and did not work"
    return reasons
