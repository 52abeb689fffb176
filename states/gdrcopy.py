"""GDRCopy: gdrdrv is built for the driver that runs, loaded, and its device can be opened.

gdrdrv maps GPU memory for the CPU, which makes small copies fast. Its module is built by DKMS against
one tree of the NVIDIA driver.

Surprising: a module built against the open driver's tree refuses to load beside the proprietary
driver, and the other way round it loads and is slow on Grace: so a change of the driver's kind means
to rebuild it, which no package does. And /dev/gdrdrv does not come by itself with every
version: up to 2.5 an init script makes it, later udev and a line of modprobe.d do. SUSE's package gives
it to the group video only, at every load; that is left as it is.

Which kind of driver a module was built for only its description says; its license is the same for both.

Sources:
    NVIDIA/gdrcopy v2.6: README.md, src/gdrdrv/gdrdrv.c (description), src/gdrdrv/Makefile, packages/dkms.conf, packages/modprobe.d/gdrdrv.conf,
    packages/udev/rules.d/70-gdrdrv.rules, packages/dkms/debian (gdrdrv.init, maintscript),
    packages/gdrcopy.spec (rpm: names, where the tests are, the device on SUSE).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from gpustate import Node, Plan, Step, ops, shell
from gpustate.bases.kernel_module import KernelModuleState, ModuleObservation
from gpustate.formats.rpm import is_rpm

TESTS = "gdrcopy-tests"
NODE = "/dev/gdrdrv"

_DRIVER = r"""t=; { read -r t <"$PROC/driver/nvidia/version"; } 2>/dev/null || exit 0
case $t in *"Open Kernel Module"*) echo open;; *) echo proprietary;; esac"""
_DEVICE = r"""M=; [ -e "$PROC/devices" ] && while read -r n d; do [ "$d" = gdrdrv ] && M=$n; done <"$PROC/devices"
[ -n "$M" ] && [ -c /dev/gdrdrv ] && set -- $(stat -c '%t %a' /dev/gdrdrv) && [ "$((0x$1))" = "$M" ] && echo "$2"
:"""
_MAKE = shell.load("gdrcopy_device", "gpustate.states")


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed(ModuleObservation):
    """Packages, module and device of GDRCopy. ``built`` ends in the kind of driver, as ``driver`` is: ``2.6 open``."""

    device: str | None = None  # mode of /dev/gdrdrv, where its number is the module's


class GdrCopyInstalled(KernelModuleState[Observed]):
    """GDRCopy is installed at one version, gdrdrv is loaded and fits the driver's kind.

    Args:
        version: of GDRCopy, as ``2.6``; empty: what is installed stays, and a node without it gets
            the newest that is offered.
        tests: install ``gdrcopy_sanity`` and ``gdrcopy_copybw`` too; rpm has them in the library's package.
        required: refuse a node for which no repository offers it; else leave it alone.

    Disruption:
        ``DRAIN`` where a loaded module is replaced or removed, otherwise ``NONE``.

    Raises:
        StepFailed: the module cannot be built or loaded; the compiler's or the kernel's word is in
            the message.
    """

    name: ClassVar[str] = "gdrcopy"
    matrix: ClassVar[Mapping[str, object]] = {"gdrcopy": "packages"}
    labels: ClassVar[Mapping[str, str]] = {"packages": "gdrcopy version", "device": "device node"}
    product: ClassVar[str] = "GDRCopy"
    module: ClassVar[str] = "gdrdrv"
    deb: ClassVar[tuple[str, ...]] = ("gdrdrv-dkms", "libgdrapi")
    rpm: ClassVar[tuple[str, ...]] = ("gdrcopy-kmod", "gdrcopy")
    advice: ClassVar[str] = (
        "build them with packages/build-deb-packages.sh or build-rpm-packages.sh of NVIDIA/gdrcopy and publish them in "
        "your own repository"
    )
    beside: ClassVar[frozenset[str]] = frozenset({"autoload_text", "device"})

    tests: bool = False

    def names(self, manager: str) -> tuple[str, ...]:
        return (*super().names(manager), *((TESTS,) if self.tests and not is_rpm(manager) else ()))

    def probe(self, node: Node) -> Observed:
        module, fields = self.read(node, TESTS)
        driver = node.shell(_DRIVER).stdout.strip() or None
        device = node.shell(_DEVICE).stdout.strip() or None
        if module.version_on_disk is not None:
            kind = "open" if "opensource" in module.description else "proprietary"
            fields["built"] = f"{module.version_on_disk} {kind}"
        return Observed(**fields, driver=driver, device=device)

    def working(self, observed: Observed, version: str) -> Observed:
        to_video = observed.manager == "zypper" and observed.device == "660"
        return replace(
            observed,
            loaded=version,
            built=f"{version} {observed.driver}",
            device="660" if to_video else "666",
        )

    def without(self, observed: Observed) -> Observed:
        return replace(observed, loaded=None, built=None, device=None)

    def why(self, observed: Observed) -> Mapping[str, str]:
        built, driver = observed.built, observed.driver
        mismatched = built and driver and not built.endswith(f" {driver}") and not self.absent
        reason = f"the driver is {driver}, and gdrdrv was built for the other kind"
        return {"built": reason if mismatched else "", "device": "created only by this state"}

    def finish(self, plan: Plan, desired: Observed) -> Iterator[Step]:
        if self.absent and "device" in plan.fields:
            yield ops.RunLive(f"rm -f {NODE}; effect removed", f"remove {NODE}", 60)
        elif plan.fields - {"autoload_text"} and desired.device is not None and not self.absent:
            yield ops.RunLive(_MAKE, f"check that {NODE} can be opened", timeout=60)
