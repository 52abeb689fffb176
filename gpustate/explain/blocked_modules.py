"""Causes at the checks ``driver`` and ``device-nodes``: a line in modprobe.d prevents loading NVIDIA's modules.

``install nvidia /bin/false`` and ``alias nvidia off`` affect every way to load a module, ``modprobe nvidia``
included. Such a line fails the check even while the module is loaded, since the next boot will not load it.
``blacklist nvidia`` affects only udev and modules-load.d, and many nodes load the module by name. It is a cause if
the module is not loaded, and a warning if it is: a service that needs the driver earlier, like Fabric Manager,
fails at the next boot. gpustate removes no such line, because all of them are foreign.

Surprising: of two ``install`` lines the first one counts, in the order of the files' names.

Sources:
    modprobe.d(5); modules-load.d(5), systemd-modules-load.service(8): it heeds blacklist; gpustate.formats.modprobe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpustate.diagnosis import remedies as remedies
from gpustate.explain import gpus, services
from gpustate.explain.causes import Cause, View
from gpustate.formats import modprobe


def _blocked(view: View, module: str) -> str:
    """The line that prevents loading a module in every way; empty if there is none."""
    return modprobe.blocking(view.clues.all("modprobe"), module)


def _blacklisted(view: View, module: str) -> str:
    rows = modprobe.read(view.clues.all("modprobe"))
    return next((place for place, settings in rows if module in settings.blacklist), "")


def _blocks(module: str, loaded: Callable[[View], bool]) -> Callable[[View], str]:
    def detect(view: View) -> str:
        place = "" if view.observed.driver_root else _blocked(view, module)
        if not place or not (view.observed.on_disk or view.observed.loaded):
            return ""
        status = (
            f"{module} is loaded now, but the next boot will not load it"
            if loaded(view)
            else f"{module} is not loaded"
        )
        return f"{status}: {place} prevents it"

    return detect


def _blacklist(module: str, loaded: Callable[[View], bool]) -> Callable[[View], str]:
    def detect(view: View) -> str:
        place = _blacklisted(view, module)
        if not place or loaded(view) or not view.observed.on_disk:
            return ""
        return f"{view.broken}; {place} (blacklist {module}) prevents loading it at boot"

    return detect


def _named(view: View) -> list[str]:
    """NVIDIA's modules in modules-load.d."""
    return [line.split()[0] for _, line in view.clues.fields("autoload", 2) if line.strip()]


def _left_out(view: View) -> dict[str, str]:
    """Modules that a boot does not load, with the line that prevents it."""
    return modprobe.left_out(view.clues.all("modprobe"), ["nvidia", *_named(view)])


def _manager_before_driver(view: View) -> str:
    place = _left_out(view).get("nvidia", "")
    unit = view.clues.unit("nvidia-fabricmanager")
    if not place or not unit.failed or not gpus.needs_manager(view):
        return ""
    if gpus.manager_version(view) or services.drop_in(view, unit.name):
        return ""  # it fails with the driver loaded, too
    return (
        f"{unit.failure}; {place} prevents loading the driver at boot, before Fabric Manager starts"
    )


def _driver(view: View) -> bool:
    return bool(view.observed.loaded)


def _uvm(view: View) -> bool:
    return "nvidia-uvm" in dict(view.observed.majors)


def _remedy(module: str) -> str:
    return f"remove that foreign line, and rebuild the initramfs if it contains it; then: modprobe {module}"


#: Comes after the lines that prevent loading a module in every way.
BLACKLISTED = Cause(
    "module-blacklisted", "driver", _blacklist("nvidia", _driver), _remedy("nvidia")
)
CAUSES = (
    Cause("module-kept-from-loading", "driver", _blocks("nvidia", _driver), _remedy("nvidia"), explains=False),
    Cause("fabric-manager-before-the-driver", "fabric", _manager_before_driver,
          remedies.by_apply("remove that foreign line, or every boot fails like this; then apply", "fabric-manager"),
          explains=False),
    Cause("uvm-kept-from-loading", "device-nodes", _blocks("nvidia_uvm", _uvm), _remedy("nvidia-uvm"), explains=False),
    Cause("uvm-blacklisted", "device-nodes", _blacklist("nvidia_uvm", _uvm), _remedy("nvidia-uvm")),
)  # fmt: skip


def warnings(view: View) -> Iterator[str]:
    """Modules that will be missing: nvidia-modeset for displays, others at the next boot."""
    place = _blocked(view, "nvidia_modeset")
    if place and view.observed.loaded:
        yield (
            f"{place} prevents loading nvidia-modeset: CUDA does not need it, displays and Vulkan do; if the node needs "
            "them, remove that line; then: modprobe nvidia-modeset"
        )
    # Without an entry in modules-load.d the modules are meant to be loaded by name.
    at_boot = view.observed.loaded and _named(view) and not view.observed.driver_root
    left_out = _left_out(view) if at_boot else {}
    for module, where in left_out.items():
        yield (
            f"{where} prevents the next boot from loading {module.replace('_', '-')}, by udev and modules-load.d: "
            "services that need it fail until it is loaded by name; remove that line"
        )
