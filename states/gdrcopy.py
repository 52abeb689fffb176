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
from typing import Any, ClassVar

from gpustate import Disruption, Node, Plan, State, Step, diff, ops, shell
from gpustate.core.packages import Offer, StatePackages, not_offered
from gpustate.core.parameter_types import OptionalVersion
from gpustate.core.planned import PlannedObservation
from gpustate.formats import dpkg
from gpustate.formats.rpm import is_rpm
from gpustate.ops import kmod, owned_packages
from gpustate.probes.kernel_modules import KernelModuleQuery

PACKAGES = ("gdrdrv-dkms", "libgdrapi")
TESTS = "gdrcopy-tests"
#: As rpm has them: kernel module (built by DKMS, whatever its name says), library with the tests.
RPM_PACKAGES = ("gdrcopy-kmod", "gdrcopy")
NODE = "/dev/gdrdrv"
AUTOLOAD_PATH = "/etc/modules-load.d/gpustate-gdrdrv.conf"
AUTOLOAD_TEXT = (
    "# Written by gpustate (state gdrcopy); changes are undone by the next apply.\ngdrdrv\n"
)

_DRIVER = r"""t=; { read -r t <"$PROC/driver/nvidia/version"; } 2>/dev/null || exit 0
case $t in *"Open Kernel Module"*) echo open;; *) echo proprietary;; esac"""
_DEVICE = r"""M=; [ -e "$PROC/devices" ] && while read -r n d; do [ "$d" = gdrdrv ] && M=$n; done <"$PROC/devices"
[ -n "$M" ] && [ -c /dev/gdrdrv ] && set -- $(stat -c '%t %a' /dev/gdrdrv) && [ "$((0x$1))" = "$M" ] && echo "$2"
:"""
_MAKE = shell.load("gdrcopy_device", "gpustate.states")


@dataclass(frozen=True, slots=True)
class Observed:
    """Packages, module and device of GDRCopy."""

    packages: dict[str, str]  # name: version
    autoload_text: str | None = None
    loaded: str | None = None
    built: str | None = None  # "2.6 open" of the module on disk for the running kernel
    device: str | None = None  # mode of /dev/gdrdrv, where its number is the module's
    brought: str | None = None
    offered: tuple[tuple[str, tuple[str, ...]], ...] = ()
    driver: str = ""  # kind of the loaded driver
    kernel: str = ""
    sources: tuple[str, ...] = ()
    error: str = ""
    image: bool = False
    manager: str = "apt"


class GdrCopyInstalled(State[Observed]):
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
    labels: ClassVar[Mapping[str, str]] = {
        "packages": "gdrcopy version",
        "device": "device node",
    }
    needs: ClassVar[tuple[str, ...]] = ("driver",)
    known_after: ClassVar[tuple[str, ...]] = ("driver-repository", "driver")
    predicted: ClassVar[tuple[str, ...]] = ("packages",)
    worst: ClassVar[Disruption] = Disruption.DRAIN
    disturbs: ClassVar[str] = "loaded"
    worst_if: ClassVar[str] = "its module is rebuilt for the driver"

    version: OptionalVersion = ""
    tests: bool = False
    required: bool = True

    def _names(self, manager: str) -> tuple[str, ...]:
        if is_rpm(manager):
            return RPM_PACKAGES
        return (*PACKAGES, TESTS) if self.tests else PACKAGES

    def matrix_facts(self, planned: PlannedObservation) -> dict[str, object]:
        packages = planned.value("packages")
        versions = list(packages.values()) if isinstance(packages, Mapping) else []
        return {"gdrcopy": versions[0] if versions else None}

    def pinned(self, observed: Observed) -> Mapping[str, Any]:
        version = observed.packages.get(self._names(observed.manager)[0])
        return {"version": dpkg.upstream_version(version)} if version else {}

    def required_packages(self, offer: Offer, observed: Observed | None) -> StatePackages:
        return offer.optional(*self._names(offer.facts.package_manager))

    def probe(self, node: Node) -> Observed:
        facts = node.facts()
        names = (*PACKAGES, TESTS, *RPM_PACKAGES)
        packages = node.packages(*names)
        offered = node.candidates(*names)
        module = node.query(KernelModuleQuery("gdrdrv", "gdrdrv"))
        driver = node.shell(_DRIVER).stdout.strip()
        device = node.shell(_DEVICE).stdout.strip()
        autoload = node.own_text(AUTOLOAD_PATH)
        record = node.read_text(owned_packages.record_path(self.name))
        # A metapackage of Debian has the name of rpm's library.
        mine = RPM_PACKAGES if is_rpm(facts.package_manager) else (*PACKAGES, TESTS)
        kind = "open" if "opensource" in module.description else "proprietary"
        return Observed(
            packages={
                p.name: p.version for p in packages.values() if p.installed and p.name in mine
            },
            autoload_text=autoload,
            loaded=module.loaded,
            built=f"{module.here} {kind}" if module.here is not None else None,
            device=device or None,
            brought=record,
            offered=tuple(
                (n, tuple(c.version for c in found)) for n, found in offered.items() if n in mine
            ),
            driver=driver,
            kernel=facts.kernel,
            sources=module.sources,
            error=module.error,
            image=facts.image,
            manager=facts.package_manager,
        )

    def _versions(self, observed: Observed) -> dict[str, str]:
        """Package versions that are wanted, all of one upstream version; empty where there are none."""
        offered, names = dict(observed.offered), self._names(observed.manager)
        have = {
            name: (*filter(None, (observed.packages.get(name),)), *offered.get(name, ()))
            for name in names
        }
        for version in have[names[0]]:
            upstream = dpkg.upstream_version(version)
            fits = {n: [v for v in have[n] if dpkg.upstream_version(v) == upstream] for n in names}
            if self.version in ("", version, upstream) and all(fits.values()):
                return {**{name: found[0] for name, found in fits.items()}, names[0]: version}
        return {}

    def desired(self, observed: Observed) -> Observed:
        if self.absent:
            gone = replace(observed, autoload_text=None, brought=None, packages={})
            ours = self._ours(observed)
            return replace(gone, loaded=None, built=None, device=None) if ours else gone
        versions = self._versions(observed)
        if not versions:
            return observed
        upstream = dpkg.upstream_version(next(iter(versions.values())))
        live = observed.driver != "" and not observed.image
        kept = {
            name: v for name, v in observed.packages.items() if name == TESTS and not self.tests
        }
        return replace(
            observed,
            packages={**kept, **versions},
            autoload_text=AUTOLOAD_TEXT,
            loaded=upstream if live else observed.loaded,
            built=f"{upstream} {observed.driver}" if live else observed.built,
            device=self._mode(observed) if live else observed.device,
        )

    def _mode(self, observed: Observed) -> str:
        return "660" if observed.manager == "zypper" and observed.device == "660" else "666"

    def _ours(self, observed: Observed) -> bool:
        return (
            bool(observed.packages)
            or observed.brought is not None
            or observed.autoload_text is not None
        )

    def _unavailable(self, observed: Observed) -> str | None:
        if self.absent or self._versions(observed) or not self.required:
            return None
        names = self._names(observed.manager)
        kind = "rpm" if is_rpm(observed.manager) else "deb"
        return not_offered(
            f"{' and '.join(names)} of GDRCopy {self.version}",
            dict(observed.offered).get(names[0], ()),
            f"build them with packages/build-{kind}-packages.sh of NVIDIA/gdrcopy and publish them in your own repository",
        )

    def plan(self, observed: Observed) -> Plan:
        cost = Disruption.DRAIN if observed.loaded is not None else Disruption.NONE
        notes: tuple[str, ...] = ()
        if not self.absent and not self._versions(observed):
            notes = (f"no repository offers {self._names(observed.manager)[0]}: nothing to do",)
        elif not self.absent and not observed.driver and not observed.image:
            notes = ("no driver is loaded: gdrdrv is installed and not loaded",)
        wanted = self.desired(observed)
        kind = (observed.built or "").endswith(f" {observed.driver}")
        return diff(
            observed,
            wanted,
            costs={"packages": cost, "built": cost, "loaded": cost},
            why={
                "built": ""
                if kind or observed.built is None
                else f"the driver is {observed.driver}, and gdrdrv was built for the other kind",
                "device": "created only by this state",
            },
            paths={"autoload_text": AUTOLOAD_PATH},
            notes=notes,
            refusal=self._unavailable(observed),
        )

    def apply(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        wanted = self.desired(observed)
        if self.absent:
            yield from self._take_away(observed, plan)
            return
        version = dpkg.upstream_version(wanted.packages.get(self._names(observed.manager)[0], ""))
        if "packages" in plan.fields:
            if observed.loaded is not None:
                yield kmod.unload("gdrdrv", "programs that use GDRCopy")
            named = tuple(
                (n, v) for n, v in wanted.packages.items() if observed.packages.get(n) != v
            )
            yield owned_packages.bring(self.name, named, dkms=("gdrdrv",), manager=observed.manager)
        if "autoload_text" in plan.fields:
            yield ops.PutText(AUTOLOAD_PATH, AUTOLOAD_TEXT, mode=0o644)
        if "built" in plan.fields and "packages" not in plan.fields:
            if observed.loaded is not None:
                yield kmod.unload("gdrdrv", "programs that use GDRCopy")
            yield kmod.rebuild("gdrdrv", version, observed.kernel, "gdrdrv")
        if plan.fields & {"loaded", "built", "packages"} and wanted.loaded is not None:
            yield kmod.load("gdrdrv", version, "gdrdrv")
        if plan.fields & {"loaded", "built", "packages", "device"} and wanted.device is not None:
            yield ops.Run(_MAKE, f"check that {NODE} can be opened", timeout=60, running=True)

    def _take_away(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        if observed.loaded is not None and "loaded" in plan.fields:
            yield kmod.unload("gdrdrv", "programs that use GDRCopy")
        if "device" in plan.fields:
            yield ops.Run(f"rm -f {NODE}; effect removed", f"remove {NODE}", 60, running=True)
        if "autoload_text" in plan.fields:
            yield ops.RemoveOwn(AUTOLOAD_PATH)
        if plan.fields & {"packages", "brought", "built"}:
            roots = tuple(sorted(observed.packages))
            yield owned_packages.take_back(self.name, roots, manager=observed.manager)
