"""The files that the driver's state writes: three of its own, and the one in which dnf keeps the enabled stream.

Sources: apt_preferences(5), modprobe.d(5), modules-load.d(5); dnf 4.14, libdnf/module/ModulePackageContainer.cpp
(the file of an enabled stream).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from gpustate import Step, ops
from gpustate.formats import aptsources, driverset
from gpustate.ops.library import original_path
from gpustate.ops.transaction import PIN_PATH
from gpustate.states.driver.observed import Observed
from gpustate.states.driver.rpmask import MODULE, STREAM_PATH
from gpustate.states.driver.scripts import LOAD_ORDER

#: Field of the observation to path.
PATHS = {
    "pin_text": PIN_PATH,
    "options_text": "/etc/modprobe.d/gpustate-nvidia.conf",
    "autoload_text": "/etc/modules-load.d/gpustate-nvidia.conf",
    "stream": STREAM_PATH,
}
#: Where the path of that file is kept together with what was in it before gpustate.
STREAM_KEPT = f"{original_path(STREAM_PATH)}.path"
#: Those that decide what packages are to be had.
EARLY = frozenset({"pin_text", "stream"})
#: Of the driver's own pins.
PIN_PRIORITY = 1000
_WRITTEN = "# Written by gpustate; changes are overwritten.\n"
#: The driver's packages by what they are built from, of every architecture, as NVIDIA's installation guide pins them: no list of
#: names is complete, and a copy for another architecture leaves when its package is pinned for the native one alone.
SOURCES = (
    "src:*nvidia*:any",
    "src:cuda-drivers*:any",
    "src:*fabric*manager*:any",
    "src:*nvsdm*:any",
)
_MODULES_FIT = "signed modules of this driver, for one kernel each"
_MODULES_PIN = re.compile(
    rf"Explanation: {_MODULES_FIT}\nPackage: (?P<names>.+)\nPin: version (?P<version>\S+)\nPin-Priority: {PIN_PRIORITY}"
)
AUTOLOAD_TEXT = _WRITTEN + "".join(f"{module}\n" for module in LOAD_ORDER)


def pin_text(
    version: str,
    empty: Mapping[str, str] | None = None,
    modules: Mapping[str, str] | None = None,
    release: str | None = None,
) -> str:
    """Pins that make whatever the packages pull in fit them.

    Args:
        version: of the driver.
        release: of Ubuntu, as ``24.04``, whose archive the packages are from: NVIDIA's builds do not fit them.
        empty: version of the empty packages of an ended branch, by branch and flavour in their names.
        modules: version of every package of signed modules for one kernel; it does not tell the driver's.
    """
    # The first pin that fits decides.
    stanzas = [
        aptsources.render_pin(
            (f"src:nvidia-graphics-drivers{suffix}:any",),
            f"version {build}",
            -1,
            "empty packages of a branch that has ended",
        )
        for suffix, build in sorted((empty or {}).items())
    ]
    builds = f"{version}*"
    if release is not None:
        builds = f"/^{re.escape(version)}-[^-]*ubuntu[0-9]+\\.{re.escape(release)}\\.[0-9]+/"
    stanzas.append(
        aptsources.render_pin(
            SOURCES,
            f"version {builds}",
            PIN_PRIORITY,
            "what packages of the driver pull in fits it",
        )
    )
    by_version: dict[str, list[str]] = {}
    for name, build in sorted((modules or {}).items()):
        by_version.setdefault(build, []).append(name)
    stanzas += [
        aptsources.render_pin(tuple(some), f"version {build}", PIN_PRIORITY, _MODULES_FIT)
        for build, some in sorted(by_version.items())
    ]
    return _WRITTEN + "\n".join(stanzas)


def pinned_modules(text: str | None) -> dict[str, str]:
    """The packages of signed modules, with their versions, in a text of :func:`pin_text`."""
    versions: dict[str, str] = {}
    for stanza in (text or "").split("\n\n"):
        match = _MODULES_PIN.fullmatch(stanza.strip())
        if match:
            versions |= dict.fromkeys(match["names"].split(), match["version"])
    return versions


def pins_of(
    version: str,
    packages: Mapping[str, str],
    empty: Mapping[str, str] | None = None,
    removed: Mapping[str, str] | None = None,
) -> str:
    """The pins of a set of packages, all of whose modules are in it except those that are gone."""
    modules = {name: full for name, full in packages.items() if driverset.is_for_kernel(name)}
    releases = {
        driverset.release_of(full)
        for full in packages.values()
        if driverset.driver_version(full) == version
    }
    release = releases.pop() if len(releases) == 1 else None
    return pin_text(version, empty, {**(removed or {}), **modules}, release)


def settled_pin_text(version: str, observed: Observed, packages: Mapping[str, str]) -> str:
    """The pins of a set of packages.

    Where a kernel was removed together with its modules, their pins harm nobody: they stay until the
    file changes for another reason, so that this is no drift.
    """
    empty = observed.relations.empty_builds(version)
    text = pins_of(version, packages, empty)
    removed = {
        name: full
        for name, full in pinned_modules(observed.pin_text).items()
        if name not in packages and name not in observed.packages
    }
    with_gone = pins_of(version, packages, empty, removed)
    return with_gone if with_gone == observed.pin_text else text


def options_text(parameters: Mapping[str, int | str]) -> str | None:
    """Module options; no file for none."""
    lines: list[str] = []
    for name, value in sorted(parameters.items()):
        module, _, parameter = name.rpartition(".")
        lines.append(f"options {module or 'nvidia'} {parameter}={value}\n")
        if not module:
            # Debian's own packages call the module nvidia-current.
            lines.append(f"options nvidia-current {parameter}={value}\n")
    return _WRITTEN + "".join(lines) if lines else None


def parameters_in(text: str | None) -> dict[str, str] | None:
    """Parameters whose options are this text; ``None`` if it is of something else."""
    values: dict[str, str] = {}
    for line in (text or "").splitlines():
        words = line.split()
        if words[:1] != ["options"] or len(words) != 3 or words[1] == "nvidia-current":
            continue
        name, _, value = words[2].partition("=")
        values[name if words[1] == "nvidia" else f"{words[1]}.{name}"] = value
    return values if options_text(values) == text else None


def write(desired: Observed, fields: Iterable[str]) -> Iterator[Step]:
    """Steps that make some of the files as they should be."""
    for field, path in PATHS.items():
        if field in fields:
            text = getattr(desired, field)
            text = stream_text(text) if field == "stream" and text else text
            yield ops.RemoveFile(path) if text is None else ops.PutText(path, text, mode=0o644)


def stream_text(stream: str) -> str:
    """An enabled stream, as dnf itself writes it down."""
    return f"[{MODULE}]\nname={MODULE}\nstream={stream}\nprofiles=\nstate=enabled\n"


def is_signed(package: str) -> bool:
    """Its modules were built and signed by Ubuntu."""
    return package.startswith("linux-modules-nvidia-")
