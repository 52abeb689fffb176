"""Warnings: problems that fail no check. They are listed beside the checks and are never a cause.

Root can open every device and every specification; users and rootless containers may not. The driver
creates its device nodes with the mode it was loaded with, so a site's own mode is no problem, and a mode that
was changed later is.

Sources:
    NVIDIA driver README, chapter on device nodes: NVreg_DeviceFileMode (0666), NVreg_ModifyDeviceFiles, shown
    in /proc/driver/nvidia/params; podman and the CDI specification: rootless runtimes read the same folders.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpustate.diagnosis import chain
from gpustate.diagnosis import remedies as remedies
from gpustate.errors import ProbeError
from gpustate.explain import blocked_modules, damaged, gpus, runtimes, services
from gpustate.explain.causes import View, in_use, is_missed, is_serving, some
from gpustate.explain.script import UNITS
from gpustate.formats import cdi, toolkit_config

_DEFAULT_MODE = 0o666
_FOR_USERS = 0o006


def of(view: View) -> tuple[str, ...]:
    """All warnings, one line each, with the remedy."""
    return (
        *(
            *_devices(view),
            *_specifications(view),
            *_left_out(view),
            *_toolkit(view),
            *blocked_modules.warnings(view),
        ),
        *_cycles(view),
        *_incomplete(view),
        *_unused_runtimes(view),
        *runtimes.warnings(view),
        *(*_persistence(view), *_layout(view), *_metrics(view), *_results(view), *_kernels(view)),
    )


def _modes(rows: Iterable[list[str]]) -> Iterator[tuple[str, int]]:
    for path, text, *_ in rows:
        if text and len(text) < 6 and set(text) <= set("01234567"):
            yield path, int(text, 8)


def _devices(view: View) -> Iterator[str]:
    parameters = dict(view.clues.fields("params", 2))
    rows = view.clues.fields("device_mode", 3)
    text = parameters.get("DeviceFileMode", "").strip()
    expected = int(text) if text.isdecimal() and len(text) < 6 else _DEFAULT_MODE
    by_site = parameters.get("ModifyDeviceFiles", "").strip() == "0"
    wrong: dict[int, list[str]] = {}
    for path, mode in _modes(rows):
        if by_site:  # the driver does not set modes; one that users cannot open is still a problem
            bad = mode & _FOR_USERS != _FOR_USERS and mode & 0o060 != 0o060
        else:
            bad = mode & expected & 0o777 != expected & 0o777
        if bad:
            wrong.setdefault(mode, []).append(path)
    for mode, paths in wrong.items():
        right = expected & 0o777
        yield (
            f"{', '.join(paths)} {'has' if len(paths) == 1 else 'have'} mode {mode:04o} instead of {right:04o}: "
            f"users and rootless containers cannot open it: chmod {right:04o} {' '.join(paths)}"
        )
    ids = [parameters.get(f"DeviceFile{n}", "").strip() for n in ("UID", "GID")]
    if by_site or expected & _FOR_USERS == _FOR_USERS or not all(n.isdecimal() for n in ids):
        return  # all users can open them, or nobody knows whose they should be
    owner = ":".join(ids)
    if foreign := [path for path, _, has in rows if has != owner]:
        yield (
            f"{', '.join(foreign)} {'belongs' if len(foreign) == 1 else 'belong'} to others than {owner}, the owner and "
            f"group of the driver's parameters: their users cannot open it: chown {owner} {' '.join(foreign)}"
        )


def _specifications(view: View) -> Iterator[str]:
    for path, mode in _modes(view.clues.fields("toolkit_mode", 2)):
        if mode & 0o004 != 0o004:
            yield (
                f"{path} has mode {mode:04o}: rootless containers cannot read it; "
                f"{remedies.by_apply(f'chmod 0644 {path}', 'container-toolkit')}"
            )
    for path, mode in _modes(view.clues.fields("cdi_mode", 2)):
        folder = path.rpartition("/")[2] == "cdi"
        needed = 0o005 if folder else 0o004
        if mode & needed != needed:
            action = "list no CDI specification in it" if folder else "read it"
            yield (
                f"{path} has mode {mode:04o}: users and rootless podman cannot {action}: "
                f"chmod {'0755' if folder else '0644'} {path}"
            )


def _toolkit(view: View) -> Iterator[str]:
    """Settings of the toolkit that break a way in which containers get their GPUs."""
    docker = "dockerd" in view.observed.other_runtimes
    return toolkit_config.harmful(damaged.toolkit_text(view), docker=docker)


def _left_out(view: View) -> Iterator[str]:
    for why in damaged.broken_specifications(view).values():
        yield f"{why}; {remedies.CDI_BROKEN}"


def _cycles(view: View) -> Iterator[str]:
    """Services beside the runtime, of which the check says so."""
    used = [name for name in ("containerd", "docker", "crio") if in_use(view, name)]
    for units in view.observed.cycles:
        if not chain.judges(units, used) and not set(UNITS).isdisjoint(units):
            yield f"{chain.ordering_cycle(units)}; {remedies.ordering_cycle(units)}"


def _incomplete(view: View) -> Iterator[str]:
    """Only the file that the state cdi writes; others are foreign."""
    text = damaged.cdi_texts(view).get(cdi.SPEC_PATH, "")
    try:
        spec = cdi.parse(text)
    except ProbeError:
        return
    lacking = cdi.lacking_files(spec, view.clues.all("there"))
    if lacking and spec.generated and cdi.lists_library(spec):
        yield f"{cdi.SPEC_PATH} lacks {some(lacking)}, so no container gets it; {remedies.CDI_STALE.replace('FILE', cdi.SPEC_PATH)}"


def _persistence(view: View) -> Iterator[str]:
    name = "nvidia-persistenced"
    unit = view.clues.unit(name)
    masked = services.is_masked(unit)
    if unit.failure:
        problem = services.drop_in(view, name) or unit.failure
        fix = f"fix that, then: systemctl restart {name}"
    elif masked or unit.missed:
        if all(gpu.persistence_mode is not False for gpu in view.observed.nvml.gpus):
            return  # persistence mode is on anyway, for example by nvidia-smi -pm
        problem = f"{name} {'is masked' if masked else 'is enabled and does not run'}"
        fix = f"{f'systemctl unmask {name}; ' if masked else ''}systemctl start {name}"
    else:
        return
    yield f"{problem}; without it every GPU is reinitialised for its next client; {fix}"


def _unused_runtimes(view: View) -> Iterator[str]:
    for name in ("docker", "crio"):
        if is_serving(view, name) or is_missed(view, name):
            continue
        if failure := view.clues.unit(name).failure:
            yield f"{failure}; another runtime serves containers; if nothing uses it: systemctl disable --now {name}"
        elif name in view.observed.registered and name in view.observed.down:
            fix = f"systemctl unmask {name} && systemctl enable --now {name}"
            yield f"{chain.not_running(name)}, and another runtime serves containers; if something is to use it: {fix}"


def _layout(view: View) -> Iterator[str]:
    """The unit and the layout are gpustate's own, so they are intended."""
    unit = view.clues.unit("gpustate-mig")
    if unit.failure:
        problem = services.drop_in(view, unit.name) or unit.failure
        yield f"{problem}; this boot did not create all MIG devices; {remedies.by_apply('fix that, then apply', 'mig')}"
    elif unit.exists and unit.enabled == "disabled":
        yield f"{unit.name} is not enabled: the next boot creates no MIG devices; {remedies.by_apply('enable it', 'mig')}"
    # It may still be creating them.
    if unit.active != "activating" and (lost := gpus.lost_devices(view)):
        yield f"{lost}; {remedies.by_apply('recreate them', 'mig')}"


def _metrics(view: View) -> Iterator[str]:
    """A running host engine without an exporter."""
    name = "nvidia-dcgm-exporter"
    if (
        services.is_masked(view.clues.unit(name))
        and view.clues.unit("nvidia-dcgm").active == "active"
    ):
        yield f"{name} is masked, so no metrics of nvidia-dcgm are exported; if that is not intended: systemctl unmask {name}"


def _results(view: View) -> Iterator[str]:
    problem = damaged.no_results(view)
    if problem and not view.clues.has("results_wanted"):  # with gpustate's validator it is a cause
        yield f"{problem}, and the GPU Operator's pods wait for them; move it away"


def _kernels(view: View) -> Iterator[str]:
    """If the running kernel has a module, every other bootable kernel should."""
    for kernel in view.clues.all("bare_kernel") if view.observed.on_disk else ():
        yield (
            f"kernel {kernel} is bootable and has no nvidia module; remove that kernel, or "
            + remedies.by_apply("build the module, if headers are available", "driver")
        )
