"""Causes at the links ``driver`` and ``device-nodes``: a line below modprobe.d keeps NVIDIA's modules from loading.

``install nvidia /bin/false`` and ``alias nvidia off`` hold against everybody, ``modprobe nvidia`` too, so such a line
breaks the link while the module is still loaded: the next boot brings it no more. ``blacklist nvidia`` holds
against udev and modules-load.d only, and many a node loads the module by its name: it is a reason where the module
is not there, and a warning where it is: whatever needs the driver before somebody loads it, as Fabric Manager
does, fails at the next boot. gpustate takes no such line away, for none is its own.

Surprising: of two ``install`` lines the first one read decides, in the order of the files' names.

Sources:
    modprobe.d(5); modules-load.d(5), systemd-modules-load.service(8): it heeds blacklist; gpustate.formats.modprobe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpustate.explain import gpus, services
from gpustate.explain.causes import Cause, View
from gpustate.formats import modprobe


def _blocked(view: View, module: str) -> str:
    """Where a module is kept from loading by whomever; empty where it is not."""
    return modprobe.blocking(view.clues.all("modprobe"), module)


def _blacklisted(view: View, module: str) -> str:
    rows = modprobe.read(view.clues.all("modprobe"))
    return next((place for place, says in rows if module in says.blacklist), "")


def _blocks(module: str, there: Callable[[View], bool]) -> Callable[[View], str]:
    def look(view: View) -> str:
        place = "" if view.clues.has("operator_driver") else _blocked(view, module)
        if not place or not (view.observed.on_disk or view.observed.loaded):
            return ""
        now = (
            f"{module} is loaded now, and will not be at the next boot"
            if there(view)
            else f"{module} is not loaded"
        )
        return f"{now}: {place} keeps it from loading"

    return look


def _blacklist(module: str, there: Callable[[View], bool]) -> Callable[[View], str]:
    def look(view: View) -> str:
        place = _blacklisted(view, module)
        if not place or there(view) or not view.observed.on_disk:
            return ""
        return f"{view.broken}; {place} (blacklist {module}) keeps it from loading at boot"

    return look


def _named(view: View) -> list[str]:
    """NVIDIA's modules that modules-load.d names."""
    return [line.split()[0] for _, line in view.clues.fields("autoload", 2) if line.strip()]


def _left_out(view: View) -> dict[str, str]:
    """Modules that no boot loads by itself, with the line that keeps it from that."""
    return modprobe.left_out(view.clues.all("modprobe"), ["nvidia", *_named(view)])


def _manager_before_driver(view: View) -> str:
    place = _left_out(view).get("nvidia", "")
    unit = view.clues.unit("nvidia-fabricmanager")
    if not place or not unit.failed or not gpus.needs_manager(view):
        return ""
    if gpus.manager_version(view) or services.drop_in(view, unit.name):
        return ""  # it would fail with the driver loaded, too
    return f"{unit.failure}; {place} keeps the driver from being loaded at boot, before Fabric Manager starts"


def _driver(view: View) -> bool:
    return bool(view.observed.loaded)


def _uvm(view: View) -> bool:
    return "nvidia-uvm" in dict(view.observed.majors)


def _remedy(module: str) -> str:
    return f"remove that line, which no apply does, and from the initramfs if it is there too; then modprobe {module}"


#: Told after what keeps a module from loading for sure.
BLACKLISTED = Cause(
    "module-blacklisted", "driver", _blacklist("nvidia", _driver), _remedy("nvidia")
)
CAUSES = (
    Cause("module-kept-from-loading", "driver", _blocks("nvidia", _driver), _remedy("nvidia"), explains=False),
    Cause("fabric-manager-before-the-driver", "fabric", _manager_before_driver,
          "remove that line, which no apply does, or every boot ends so; then gpustate apply with the state fabric-manager",
          explains=False),
    Cause("uvm-kept-from-loading", "device-nodes", _blocks("nvidia_uvm", _uvm), _remedy("nvidia-uvm"), explains=False),
    Cause("uvm-blacklisted", "device-nodes", _blacklist("nvidia_uvm", _uvm), _remedy("nvidia-uvm")),
)  # fmt: skip


def warnings(view: View) -> Iterator[str]:
    """Modules that are missed later: nvidia-modeset by displays and what draws, any by what the next boot starts."""
    place = _blocked(view, "nvidia_modeset")
    if place and view.observed.loaded:
        yield (
            f"{place} keeps nvidia-modeset from loading: CUDA does without it, displays and Vulkan do not; remove "
            "that line if they are wanted"
        )
    # Where nobody asks for them at boot, somebody means to load them by name.
    asked = view.observed.loaded and _named(view) and not view.clues.has("operator_driver")
    left_out = _left_out(view) if asked else {}
    for module, where in left_out.items():
        yield (
            f"{where} keeps the next boot from loading {module.replace('_', '-')}, for udev and modules-load.d "
            "heed it: what needs it before somebody loads it by name fails; remove that line"
        )
