"""What does not break a node and will hurt somebody on it: told beside the chain, never as a cause.

A look as root finds every device and every specification; users, and containers whose root is nobody on the
host, may find none. The driver gives its device nodes the mode it was loaded with, so a site's own mode is
no fault, and one that was changed behind its back is.

Sources:
    NVIDIA driver README, chapter on device nodes: NVreg_DeviceFileMode (0666), NVreg_ModifyDeviceFiles, shown
    in /proc/driver/nvidia/params; podman and the CDI specification: rootless runtimes read the same folders.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpustate.errors import ProbeError
from gpustate.explain import damaged, gpus, kept_away, services
from gpustate.explain.causes import View, some
from gpustate.formats import cdi

_DEFAULT_MODE = 0o666
_FOR_USERS = 0o006


def of(view: View) -> tuple[str, ...]:
    """Every warning, one line each, with what helps."""
    return (
        *(*_devices(view), *_specifications(view), *_left_out(view), *kept_away.warnings(view)),
        *_incomplete(view),
        *(*_persistence(view), *_layout(view), *_metrics(view), *_results(view), *_kernels(view)),
    )


def _modes(view: View, key: str) -> Iterator[tuple[str, int]]:
    for path, text in view.clues.fields(key, 2):
        if text and len(text) < 6 and set(text) <= set("01234567"):
            yield path, int(text, 8)


def _devices(view: View) -> Iterator[str]:
    told = dict(view.clues.fields("params", 2))
    given = told.get("DeviceFileMode", "").strip()
    wanted = int(given) if given.isdecimal() and len(given) < 6 else _DEFAULT_MODE
    by_site = told.get("ModifyDeviceFiles", "").strip() == "0"
    wrong: dict[int, list[str]] = {}
    for path, mode in _modes(view, "device_mode"):
        if by_site:  # then somebody else gives the modes; nobody's is still a fault
            bad = mode & _FOR_USERS != _FOR_USERS and mode & 0o060 != 0o060
        else:
            bad = mode & wanted & 0o777 != wanted & 0o777
        if bad:
            wrong.setdefault(mode, []).append(path)
    for mode, paths in wrong.items():
        right = wanted & 0o777
        yield (
            f"{', '.join(paths)} {'has' if len(paths) == 1 else 'have'} mode {mode:04o}, not {right:04o}: root "
            f"opens it anyway, users and rootless containers do not; chmod {right:04o} {' '.join(paths)}"
        )


def _specifications(view: View) -> Iterator[str]:
    for path, mode in _modes(view, "cdi_mode"):
        folder = path.rpartition("/")[2] == "cdi"
        needed = 0o005 if folder else 0o004
        if mode & needed != needed:
            what = "sees no CDI specification in it" if folder else "cannot read it"
            yield (
                f"{path} has mode {mode:04o}: who is not root (rootless podman) {what}; "
                f"chmod {'0755' if folder else '0644'} {path}"
            )


def _left_out(view: View) -> Iterator[str]:
    for why in damaged.broken_specifications(view).values():
        yield f"{why}; runtimes leave it out: remove it"


def _incomplete(view: View) -> Iterator[str]:
    """The file that the state cdi keeps; of another one it is its writer's business."""
    text = damaged.cdi_texts(view).get(cdi.SPEC_PATH, "")
    try:
        spec = cdi.parse(text)
    except ProbeError:
        return
    lacking = cdi.lacking_files(spec, view.clues.all("there"))
    if lacking and spec.generated:
        yield f"{cdi.SPEC_PATH} lacks {some(lacking)}, so that no container has it: gpustate apply with the state cdi"


def _persistence(view: View) -> Iterator[str]:
    name = "nvidia-persistenced"
    unit = view.clues.unit(name)
    masked = services.is_masked(unit)
    if unit.failure:
        found = services.drop_in(view, name) or unit.failure
        then = f"fix that, then systemctl restart {name}"
    elif masked or unit.missed:
        if all(gpu.persistence_mode is not False for gpu in view.observed.nvml.gpus):
            return  # set by nvidia-smi -pm, say
        found = f"{name} {'is masked' if masked else 'is enabled and does not run'}"
        then = f"{f'systemctl unmask {name}, then ' if masked else ''}systemctl start {name}"
    else:
        return
    yield f"{found}; without it every GPU starts anew for its next client: {then}"


def _layout(view: View) -> Iterator[str]:
    """The unit and the layout are gpustate's own, so somebody has asked for them."""
    unit = view.clues.unit("gpustate-mig")
    if unit.failure:
        found = services.drop_in(view, unit.name) or unit.failure
        yield f"{found}; this boot has not divided the GPUs: fix that, then gpustate apply with the state mig"
    elif unit.exists and unit.enabled == "disabled":
        yield f"{unit.name} is not enabled: the next boot divides no GPU; gpustate apply with the state mig"
    # At boot it is still at work.
    if unit.active != "activating" and (lost := gpus.lost_devices(view)):
        yield f"{lost}: gpustate apply with the state mig makes them again"


def _metrics(view: View) -> Iterator[str]:
    """Whoever runs a host engine wants its numbers read."""
    name = "nvidia-dcgm-exporter"
    if (
        services.is_masked(view.clues.unit(name))
        and view.clues.unit("nvidia-dcgm").active == "active"
    ):
        yield f"{name} is masked, so that nothing starts it, and nobody reads what nvidia-dcgm knows: systemctl unmask {name} if it is wanted"


def _results(view: View) -> Iterator[str]:
    found = damaged.no_results(view)
    if found and not view.clues.has("results_wanted"):  # with a validator of ours it is a cause
        yield f"{found}, and the GPU Operator's pods wait for them: move it away"


def _kernels(view: View) -> Iterator[str]:
    """Where the running kernel has a module, every other that can boot should."""
    for kernel in view.clues.all("bare_kernel") if view.observed.on_disk else ():
        yield (
            f"kernel {kernel} can boot and has no nvidia module: gpustate apply with the state driver builds one where "
            "headers are to be had; otherwise remove that kernel"
        )
