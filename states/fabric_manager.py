"""Fabric Manager runs, in the driver's version, where NVSwitches connect the GPUs.

Without it CUDA answers 802 (system not yet initialized) on HGX and DGX boards of the A100, H100
and H200 generations, although every other look at the GPUs is fine. In another version than the
driver's it refuses to start. On machines without NVSwitches it must not run: it has nothing to do,
exits, and leaves a failed unit behind. Whether a machine has them an image cannot know: it gets the
package, and its first boot enables the service where there are NVSwitches.

Surprising: the package carries the driver's branch in its name up to 575 and none from 580 on, and
installing it does not start it.

Boards of the B200 generation show no NVSwitch on PCI and need the NVLink subnet manager as well: for
those this state does nothing, and says so.

Sources:
    NVIDIA Fabric Manager user guide; NVIDIA/gpu-driver-container (which machines, names by branch);
    NVIDIA/nvtrust#55 (version rule), NVIDIA/gpu-operator#610 (failed unit without a fabric).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from gpustate import Disruption, Node, NodeFacts, Plan, State, Step, diff, ops
from gpustate.text import dpkg, gpu_models

UNIT = "nvidia-fabricmanager.service"
_BRANCHES = ("535", "550", "560", "565", "570", "575")
_NAMES = ("nvidia-fabricmanager", *(f"nvidia-fabricmanager-{branch}" for branch in _BRANCHES))

_WAIT = """n=0
while :; do
  s=$(timeout 20 nvidia-smi -q 2>&1) || { echo "nvidia-smi -q fails: $s" | tail -n 3; exit 1; }
  f=$(printf '%s\\n' "$s" | grep -A1 '^ *Fabric$' | grep State | sed 's/.*: *//' | sort | uniq -c)
  case $f in *Progress*|*"Not Started"*) ;; *) break;; esac
  n=$((n + 1)); [ $n -lt 60 ] || { echo "the fabric is not complete after 60 s: $f"; exit 1; }
  sleep 1
done
effect complete"""


@dataclass(frozen=True, slots=True)
class Observed:
    """The service and its package, beside the driver that is loaded."""

    nvswitch: bool  # NVSwitches show on PCI
    driver: str | None  # version of the loaded driver
    package: str | None = None  # name of the installed package
    version: str | None = None  # its full package version
    offered: tuple[tuple[str, str], ...] = ()  # name and version that repositories offer
    held: bool = False
    active: bool = False
    enabled: bool = False
    image: bool = False  # a root to be baked: ``driver`` is the one that is installed there


class FabricManagerRunning(State[Observed]):
    """Fabric Manager runs in the version of the loaded driver, on machines with NVSwitches on PCI.

    Args:
        hold: hold the package, so that it moves with the driver only.

    Disruption:
        ``DRAIN`` where a Fabric Manager that runs is replaced: jobs across NVLink end.
    """

    name: ClassVar[str] = "fabric-manager"
    needs: ClassVar[tuple[str, ...]] = ("driver",)
    known_after: ClassVar[tuple[str, ...]] = ("driver-repository", "driver")
    worst: ClassVar[Disruption] = Disruption.DRAIN

    hold: bool = True

    def probe(self, node: Node) -> Observed:
        facts = node.facts()
        version = node.read_text("/proc/driver/nvidia/version")
        driver = loaded_version(version)
        if facts.image:
            driver = node.shell(_INSTALLED).stdout.strip() or None
        packages = node.packages("nvidia-fabricmanager*")
        candidates = node.candidates(*_NAMES)
        unit = node.units(UNIT).get(UNIT)
        installed = [p for p in packages.values() if p.installed and p.name in _NAMES]
        one = installed[0] if installed else None
        return Observed(
            nvswitch=_may_have_nvswitches(facts) if facts.image else facts.has_nvswitch,
            driver=driver,
            package=one.name if one else None,
            version=one.version if one else None,
            offered=tuple(
                (name, candidate.version)
                for name, found in candidates.items()
                for candidate in found
            ),
            held=one.held if one else False,
            active=unit.active if unit else False,
            enabled=unit.enabled if unit else False,
            image=facts.image,
        )

    def _fitting(self, seen: Observed) -> tuple[str, str] | None:
        """The package that has the loaded driver's version: the installed one, else an offered one."""
        if seen.driver is None:
            return None
        there = [(seen.package, seen.version)] if seen.package and seen.version else []
        for name, version in (*there, *seen.offered):
            if dpkg.upstream_version(version) == seen.driver:
                return name, version
        return None

    def desired(self, seen: Observed) -> Observed:
        if self.absent:
            return replace(
                seen, package=None, version=None, held=False, active=False, enabled=False
            )
        fitting = self._fitting(seen)
        if not seen.nvswitch or fitting is None:
            return seen
        name, version = fitting
        return replace(
            seen,
            package=name,
            version=version,
            held=self.hold or seen.held,
            active=not seen.image or seen.active,
            enabled=not seen.image or seen.enabled,
        )

    def refuse(self, seen: Observed) -> str | None:
        if self.absent or not seen.nvswitch or self._fitting(seen) is not None:
            return None
        if seen.image:
            return (
                f"no repository offers nvidia-fabricmanager {seen.driver or ''}, which machines with NVSwitches "
                "need: use a repository that has it, name the GPUs (--gpu) where they have none, or leave the "
                "state out"
            )
        if seen.driver is None:
            return (
                "NVSwitches are there and no driver is loaded; put the state driver into the policy"
            )
        return (
            f"NVSwitches are there, and no repository offers nvidia-fabricmanager {seen.driver}, the "
            "driver's version; use a repository that has it (NVIDIA's own, or a mirror of it)"
        )

    def plan(self, seen: Observed) -> Plan:
        replaced = seen.active and not self.absent and seen.version is not None
        cost = Disruption.DRAIN if replaced or (self.absent and seen.active) else Disruption.NONE
        return diff(
            seen,
            self.desired(seen),
            costs={"version": cost, "package": cost},
            why={
                "version": f"the loaded driver is {seen.driver}",
                "active": "CUDA answers 802 without it",
            },
        )

    def apply(self, seen: Observed, plan: Plan) -> Iterator[Step]:
        wanted = self.desired(seen)
        if self.absent:
            if plan.fields & {"active", "enabled"}:
                yield ops.DisableUnit(UNIT)
            if plan.fields & {"package", "held"} and seen.package:
                yield ops.AptRemove((seen.package,))
            return
        if plan.fields & {"package", "version"} and wanted.package and wanted.version:
            other = (seen.package,) if seen.package and seen.package != wanted.package else ()
            yield ops.AptInstall(((wanted.package, wanted.version),), hold=self.hold, remove=other)
        elif "held" in plan.fields and wanted.package:
            yield ops.AptHold((wanted.package,))
        if "enabled" in plan.fields:
            yield ops.EnableUnit(UNIT, now=False)
        if plan.fields & {"active", "package", "version"}:
            yield ops.RestartUnit(UNIT)
            what = "wait until the fabric is complete on every GPU"
            yield ops.Run(_WAIT, what, timeout=120, running=True)

    def first_boot(self, seen: Observed) -> Iterator[Step]:
        if not self.absent:
            yield ops.Run(
                _FIRST_BOOT + _WAIT, "start Fabric Manager where NVSwitches are", 180, running=True
            )


#: Boards of these carry NVSwitches, some of them.
_ON_BOARDS = frozenset({"A100", "A800", "H100", "H800", "H20", "H200"})

_INSTALLED = r"""for f in /usr/lib/*-linux-gnu/libnvidia-ml.so.1 /usr/lib64/libnvidia-ml.so.1; do
  [ -e "$f" ] && { f=$(readlink -f "$f"); echo "${f##*.so.}"; break; }
done; :"""

_FIRST_BOOT = f"""n=
for d in "$SYS"/bus/pci/devices/*; do
  v=; c=; {{ read -r v <"$d/vendor" && read -r c <"$d/class"; }} 2>/dev/null || continue
  case $v$c in 0x10de0x0680*) n=1; break;; esac
done
[ -n "$n" ] || {{ echo "no NVSwitch on PCI: nothing to start"; effect same; exit 0; }}
systemctl cat {UNIT} >/dev/null 2>&1 || fail "NVSwitches are there, and the image has no {UNIT}: bake it without --gpu, or for these GPUs"
systemctl --no-reload enable {UNIT}
systemctl start {UNIT} || {{ journalctl -u {UNIT} -n 15 --no-pager -o cat; fail "{UNIT} does not start"; }}
"""


def _may_have_nvswitches(facts: NodeFacts) -> bool:
    """Whether an image needs it: unless it is said to be for other GPUs."""
    models = {gpu_models.name(gpu.device_id) for gpu in facts.gpus}
    return not models or bool(models & _ON_BOARDS)


def loaded_version(text: str | None) -> str | None:
    """Driver version in /proc/driver/nvidia/version; ``None`` where no driver is loaded."""
    for word in (text or "").partition("\n")[0].split():
        parts = word.split(".")
        if len(parts) >= 2 and all(part.isdigit() for part in parts) and len(parts[0]) >= 3:
            return word
    return None
