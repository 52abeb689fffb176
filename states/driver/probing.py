"""Reads a node into the driver's observation, in one round of asks."""

from __future__ import annotations

from gpustate import Node
from gpustate.core.queries import Query
from gpustate.formats import driverset, fabric, modprobe
from gpustate.probes.fabric import BridgesQuery
from gpustate.probes.kernels import Kernel, Kernels, default_kernel
from gpustate.states.driver import files, repairs, repositories, scripts
from gpustate.states.driver.observed import (
    Apt,
    Live,
    LiveMigQuery,
    Observed,
    parse_params,
    plain_value,
    shown_as,
)

MODULES = tuple(module.replace("-", "_") for module in scripts.LOAD_ORDER)


def observe(node: Node, query: Query[Apt], parameters: tuple[str, ...]) -> Observed:
    """Everything but the holders, which matter only when something is to be unloaded."""
    facts = node.facts()
    kernels = node.query(Kernels())
    apt = node.query(query)
    live = node.query(LiveMigQuery())
    damaged = node.query(repairs.FILES)
    params = parse_params(node.read_text("/proc/driver/nvidia/params"))
    modules = node.modules()
    pin, options = (node.own_text(files.PATHS[f]) for f in ("pin_text", "options_text"))
    autoload = node.own_text(files.PATHS["autoload_text"])
    stream_kept = bool(node.stats(files.STREAM_KEPT))
    by_module = {name: node.read_text(_sysfs(name)) for name in parameters if "." in name}
    bridges = node.query(BridgesQuery())
    switches = facts.has_nvswitch or bridges > 0
    if facts.image:
        gpus = tuple(gpu.device_id for gpu in facts.gpus)
        switches = fabric.may_need(gpus, fabric.FABRIC_MANAGER)
    default = default_kernel(kernels)
    offers = repositories.sort(facts.os_id, apt)
    members = {
        n: p
        for n, p in apt.packages.items()
        if driverset.is_member(n, p.version) and p.status[1:2] != "c"
    }
    return Observed(
        packages={name: package.version for name, package in members.items()},
        held=tuple(sorted(name for name, package in members.items() if package.held)),
        broken=tuple(
            sorted({*apt.twice, *(name for name, package in members.items() if package.broken)})
        ),
        headers={k.release: k.headers for k in kernels if k.bootable or k.running},
        built={k.release: _built(k) for k in kernels if k.bootable or k.running},
        loaded=live.loaded if "nvidia" in modules else None,
        modules=tuple(module for module in MODULES if module in modules),
        library=live.library,
        pin_text=pin,
        options_text=options,
        autoload_text=autoload,
        parameters={name: _live(name, params, by_module) for name in parameters},
        stopped=live.stopped,
        left_stopped=live.left_stopped,
        manager=facts.package_manager,
        os_id=facts.os_id,
        running=facts.kernel,
        default_kernel=default.release if default else None,
        gpus=facts.gpus,
        offers=offers.allowed,
        holders=(),
        in_use=_in_use(live, "nvidia_drm" in modules),
        secure_boot=live.secure_boot,
        build_errors=dict(live.build_errors or {}),
        known_parameters=tuple(sorted(params)),
        installer=live.installer,
        operator=live.operator,
        pinned_away=offers.pinned_away,
        admitting_pins=offers.admitting_pins,
        kernel_pins=offers.kernel_pins,
        elsewhere=offers.elsewhere,
        repository=offers.in_use,
        # With 0 they are the administrator's.
        device_nodes=() if params.get("ModifyDeviceFiles") == "0" else live.device_nodes,
        missing=apt.missing,
        absent_holds=apt.absent_holds,
        can_hold=apt.can_hold,
        bare_kernels=tuple(k.release for k in kernels if k.bootable and k.lacks_video),
        relations=apt.relations,
        damaged=damaged,
        barred=tuple(filter(None, (modprobe.blocking(live.modprobe, m) for m in MODULES))),
        beside=live.beside,
        left_out=modprobe.left_out(live.modprobe, MODULES),
        overruled=_overruled(live.modprobe, parameters),
        stream=apt.stream,
        streams=apt.streams,
        stream_kept=stream_kept,
        image=facts.image,
        switches=switches,
    )


def _built(kernel: Kernel) -> str | None:
    if kernel.nvidia_version is None:
        return None
    return (
        f"{kernel.nvidia_version} {driverset.OPEN if kernel.nvidia_open else driverset.PROPRIETARY}"
    )


def _sysfs(name: str) -> str:
    module, _, parameter = name.partition(".")
    return f"/sys/module/{module.replace('-', '_')}/parameters/{parameter}"


def _live(name: str, params: dict[str, str], by_module: dict[str, str | None]) -> str | None:
    value = params.get(shown_as(name)) if "." not in name else by_module.get(name)
    return None if value is None else plain_value(value)


def _overruled(rows: tuple[str, ...], parameters: tuple[str, ...]) -> dict[str, tuple[str, str]]:
    overruled: dict[str, tuple[str, str]] = {}
    own_file = files.PATHS["options_text"].rpartition("/")[2]
    for name in parameters:
        module, _, parameter = name.rpartition(".")
        last = modprobe.given_after(rows, own_file, module or "nvidia", parameter)
        if last is not None:
            overruled[name] = last
    return overruled


def _in_use(live: Live, drm_loaded: bool) -> str | None:
    if live.in_use:
        return live.in_use
    # A console or a display server; unloading it under them crashes machines.
    return "nvidia_drm drives a display" if drm_loaded and live.drm_in_use else None
