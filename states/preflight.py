"""A node is fit to be worked on, before anything is written to it.

What is wrong with a node beforehand otherwise shows as a strange failure in the middle of a driver
installation: /boot full while an initramfs is built, a half-configured package that apt trips over,
a GPU that is not on the bus any more. Most of it only a person can put right, so it is refused with
the next move, and the node is left untouched. The one thing repaired here is a package database
that an interrupted run left half-configured.

Surprising: packages of NVIDIA and kernel modules built by dkms are left to the states that own
them, even half-configured: what keeps them from being configured (a module that does not build) is
often cured only by installing another version. While another program holds the package lock nothing
is repaired either, because what looks interrupted is then in the middle of its work.

Sources:
    dpkg-query(1): ``db:Status-Abbrev``; dpkg's /var/lib/dpkg/updates: journal of a run under way.
    proc(5): /proc/locks. UEFI specification 2.10, section 3.3: SecureBoot variable.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from gpustate import (
    Conflict,
    Disruption,
    Node,
    NodeFacts,
    PciGpu,
    Plan,
    State,
    Step,
    diff,
    ops,
    shell,
    support,
)
from gpustate.core.shared_probes import APT_KEY, KEPT, TIME_S
from gpustate.documents import JsonView
from gpustate.formats import gpu_models, keyed, managed_images, package_errors, rpm
from gpustate.formats.managed_images import ManagedImage
from gpustate.formats.numbers import parse_uint
from gpustate.ops.packages import OURS, UNMET_KEPT
from gpustate.support import Kind

MACHINES = ("x86_64", "aarch64")
#: MiB that folders need where they are on filesystems of their own: for an initramfs (/var/tmp), a compiler and copies of
#: package lists (/tmp), the indexes of a package manager, and what a run keeps.
_APART = {
    "/tmp": 100,
    "/var/tmp": 300,
    "/var/cache/apt": 100,
    "/var/cache/dnf": 100,
    "/var/cache/zypp": 100,
    "/var/lib/gpustate": 20,
}
_FOLDERS = ("/boot", "/usr", "/var", *_APART)
_CLEAN = {"apt": "apt-get clean", "dnf": "dnf clean all", "zypper": "zypper clean --all"}

#: What of apt's own is fetched again when it is torn; the names become words of a command.
_LIST = re.compile(r"/var/lib/apt/lists/[A-Za-z0-9_.:%~+@=-]+")
_NVIDIA = re.compile(OURS)
#: The second letter of a package's status, in dpkg's words.
_CONDITIONS = {
    "H": "half-installed",
    "U": "unpacked",
    "F": "half-configured",
    "W": "awaiting triggers",
    "t": "with pending triggers",
}
_UNMET = "unmet "
_NO_ROOM = "No space left on device"
_EARLIEST_S = 1_735_689_600  # 2025-01-01, before the first version of this program
_LATEST_S = 4_102_444_800  # 2100-01-01


def _checked_gpus(value: int | str | None) -> int | str | None:
    if value is not None:
        gpu_models.parse_count(value)
    return value


#: sh: lists that apt complains of, or that are none: apt tells the latter once, and then goes on as if
#: the repository were empty. And what packages want that is not there.
_TORN = shell.load("preflight_torn", "gpustate.states")
_SCRIPT = (
    f"{UNMET_KEPT}{_TORN}{KEPT}"
    f'apt_key() {{ APT_KEY="{APT_KEY}"; }}\n'
    f'echo "now={TIME_S}"\n'
    f"{shell.load('preflight_probe', 'gpustate.states', MARKERS=' '.join(managed_images.MARKERS), ROOM=' '.join(_FOLDERS))}"
    f"{rpm.FAMILY}"
    f"{shell.load('preflight_packages', 'gpustate.states')}"
)


@dataclass(frozen=True, slots=True)
class Observed:
    """What has to be right; everything but ``unsettled``, ``journal`` and ``torn_lists`` are facts."""

    unsettled: tuple[str, ...] = ()  # packages somebody left half-way, as "iF name"
    journal: bool = False  # dpkg was killed while it wrote its database
    torn_lists: tuple[str, ...] = ()  # package lists that apt cannot read
    left: tuple[str, ...] = ()  # half-way packages that belong to other states
    dpkg_error: str = ""  # dpkg cannot read its database
    rpm_error: str = ""  # rpm cannot read its database
    apt_error: str = ""  # apt cannot work with what is installed, or with its package lists
    unmet: tuple[
        str, ...
    ] = ()  # what installed packages want and do not have, as "NAME wants OTHER (= 1)"
    lock_holder: str = ""
    distribution: str = ""
    managed: str = ""  # image of a cloud or a vendor, by its code
    machine: str = ""
    package_manager: str = ""
    image: bool = False  # a root to be baked: no kernel, no init of its own
    systemd: bool = False
    python3: bool = False
    old_python: str = (
        ""  # version of python3 where it is older than 3.9, and no newer one is beside it
    )
    kernel: str = ""
    kernel_modules: bool = False  # /lib/modules of the running kernel is there
    gpus: tuple[PciGpu, ...] = ()
    read_only: tuple[str, ...] = ()
    room: tuple[tuple[str, str, int], ...] = ()  # folder, its mount point, free MiB
    few_inodes: tuple[str, ...] = ()
    clock_s: int = 0
    last_write_s: int = 0  # newest of the files that are only written in the present
    time_service: bool = False
    secure_boot: bool = False


def _too_old(versions: list[str]) -> str:
    """The version of python3, if it and all versions beside it are older than 3.9."""
    numbers = [match for version in versions if (match := re.fullmatch(r"3\.(\d{1,2})", version))]
    return "" if any(int(number[1]) >= 9 for number in numbers) or not numbers else versions[0]


class PreflightPassed(State[Observed]):
    """The operating system, its room, its package database and its GPUs are as a run needs them.

    Args:
        gpus: GPUs that have to be on PCI, usually set per group in the inventory: a number,
            ``8xH100`` or ``4xA100,4xL40S``. Not given: at least one. ``0``: none at all; states that
            need a GPU do not apply then.
        boot_mib, usr_mib, var_mib: free room that /boot, /usr and /var need, in MiB; folders on one
            filesystem need the sum. Folders below them, and /tmp, are judged where they are on one of their own.
        other_systems: further distributions to be tried, as NVIDIA writes them (``debian14``); and images of clouds
            whose own driver installation is switched off (``gke``).

    Disruption:
        ``RESTART`` when packages are configured that were left half-way, for a service among them
        may restart; otherwise ``NONE``.
    """

    name: ClassVar[str] = "preflight"
    labels: ClassVar[Mapping[str, str]] = {
        "unsettled": "packages of an interrupted installation",
        "journal": "interrupted package journal",
        "torn_lists": "damaged package lists",
    }
    before: ClassVar[tuple[str, ...]] = (
        "nouveau",
        "driver-repository",
        "toolkit-repository",
        "driver",
    )
    stable: ClassVar[tuple[str, ...] | None] = (
        *("unsettled", "journal", "distribution", "machine", "gpus"),
    )

    gpus: Annotated[int | str | None, AfterValidator(_checked_gpus)] = None
    boot_mib: Annotated[int, Field(ge=0)] = 100
    usr_mib: Annotated[int, Field(ge=0)] = 1500
    var_mib: Annotated[int, Field(ge=0)] = 1000
    other_systems: tuple[str, ...] = ()

    @property
    def expects_no_gpu(self) -> bool:
        return not self.absent and self.gpus in (0, "0")

    def probe(self, node: Node) -> Observed:
        facts = node.facts()
        keys = keyed.lists(node.shell(_SCRIPT).stdout)
        rows = keys.get("apt", [])
        image = managed_images.recognise(facts.os_id, keys.get("marker", ()))
        broken = tuple(filter(None, map(_package, keys.get("package", []))))
        return Observed(
            unsettled=tuple(row for row in broken if not _NVIDIA.search(row.split()[-1])),
            journal="journal" in keys,
            torn_lists=tuple(sorted(set(_LIST.findall("\n".join(keys.get("apt", [])))))),
            left=tuple(row for row in broken if _NVIDIA.search(row.split()[-1])),
            dpkg_error=" ".join(keys.get("dpkg", [])),
            rpm_error="; ".join(keys.get("rpm", [])[:2]),
            apt_error=_said_by_apt([row for row in rows if not row.startswith(_UNMET)]),
            unmet=_unmet(row.removeprefix(_UNMET) for row in rows if row.startswith(_UNMET)),
            lock_holder=keyed.first(keys, "lock"),
            distribution=facts.distribution,
            managed=image.code if image else "",
            machine=facts.machine,
            package_manager=facts.package_manager,
            image=facts.image,
            systemd=facts.systemd,
            python3=bool(facts.python3),
            old_python=_too_old(keys.get("python", [])),
            kernel=facts.kernel,
            kernel_modules="modules" in keys or facts.container,
            gpus=() if facts.image else facts.gpus,
            read_only=tuple(keys.get("readonly", [])),
            room=tuple(room for room in map(_room, keys.get("room", [])) if room),
            few_inodes=tuple(dict.fromkeys(keys.get("inodes", []))),
            clock_s=parse_uint(keyed.first(keys, "now", "0")) or 0,
            last_write_s=max((parse_uint(t) or 0 for t in keys.get("written", [])), default=0),
            time_service="ntp" in keys,
            secure_boot=keys.get("secure_boot") == ["1"],
        )

    def desired(self, observed: Observed) -> Observed:
        if self.absent or observed.lock_holder:
            return observed
        return replace(observed, unsettled=(), journal=False, torn_lists=())

    def refuse(self, observed: Observed) -> str | None:
        if self.absent:
            return None
        reasons = [*self._system(observed), *self._packages(observed), *self._gpus(observed)]
        return "; ".join(reasons) or None

    def _system(self, observed: Observed) -> Iterator[str]:
        image = self._image(observed)
        if image is not None and image.refusal:
            yield f"{image.name} is not supported: {image.refusal}"
        elif not (
            support.level(Kind.DISTRIBUTION, observed.distribution)
            or observed.distribution in self.other_systems
        ):
            name = observed.distribution
            yield (
                f"{f'unsupported distribution {name}' if name else 'unknown operating system'}: use one of "
                f"{support.summary(Kind.DISTRIBUTION)}; or name it in other_systems to try it"
            )
        elif observed.package_manager == "dnf5":
            yield "its dnf is dnf 5, which is unsupported: use a distribution with dnf 4"
        elif observed.package_manager not in rpm.MANAGERS:
            needed = (
                "apt-get"
                if observed.distribution.startswith(("debian", "ubuntu"))
                else "dnf or zypper"
            )
            yield f"{needed} is not installed on {observed.distribution}: install {needed.replace('apt-get', 'apt')}"
        if observed.machine not in MACHINES:
            yield f"NVIDIA publishes no driver for {observed.machine}: only {' and '.join(MACHINES)}"
        if not observed.systemd and not observed.image:
            yield (
                "systemd is not running; boot with systemd as init, or bake the root as an image "
                "(gpustate image bake)"
            )
        if observed.read_only:
            root = "" if observed.image else "become root there (-b), or "
            yield f"{', '.join(observed.read_only)} cannot be written: {root}mount them read-write (a disk error may be why: dmesg)"
        if observed.clock_s and not _EARLIEST_S <= observed.clock_s < _LATEST_S:
            yield (
                f"the clock shows {_date(observed.clock_s)}: set the time, repository signatures "
                "depend on it"
            )
        elif observed.clock_s and observed.last_write_s > observed.clock_s + 86_400:
            yield (
                f"the clock shows {_date(observed.clock_s)}, but the package database was written "
                "on "
                f"{_date(observed.last_write_s)}: set the time"
            )

    def _image(self, observed: Observed) -> ManagedImage | None:
        """The image of a cloud or a vendor that the node runs, unless it is to be tried like others."""
        if observed.managed in self.other_systems:
            return None
        return next((row for row in managed_images.IMAGES if row.code == observed.managed), None)

    def conflicts(
        self, policy: JsonView, facts: NodeFacts, observed: Observed | None
    ) -> Iterator[Conflict]:
        if observed is None or self.absent:
            return
        # Only what is installed needs room; a node that nothing changes is not refused for it.
        for short in self._room(observed):
            for name, state in policy.items():
                installs = type(state).required_packages is not State.required_packages
                if (installs or name in self.before) and not state.absent:
                    yield Conflict(short, state=name, with_changes=True)
        image = self._image(observed)
        driver = policy.get("driver")
        if image is None or driver is None or driver.absent:
            return
        if image.driver_refusal:
            yield Conflict(f"{image.name}: {image.driver_refusal}", state="driver")

    def _packages(self, observed: Observed) -> Iterator[str]:
        if observed.dpkg_error:
            yield (
                f"dpkg cannot read its database ({observed.dpkg_error}): replace "
                "/var/lib/dpkg/status with /var/lib/dpkg/status-old or a copy from /var/backups"
            )
        elif observed.rpm_error:
            yield f"rpm cannot read its database ({observed.rpm_error}): rpm --rebuilddb on the node"
        elif _NO_ROOM in observed.apt_error and (short := tuple(self._room(observed))):
            yield from short
        # What is half-way is finished first, here or by the state that owns it; apt minds it as well.
        elif observed.apt_error and not (
            observed.unsettled or observed.journal or observed.torn_lists or observed.left
        ):
            if observed.unmet and all(_NVIDIA.search(_dependency(row)) for row in observed.unmet):
                return  # what the driver's state brings back
            _, move = package_errors.find_error(observed.apt_error) or (
                "",
                "see apt-get check on the node",
            )
            wants = f": {', '.join(observed.unmet[:3])}" if observed.unmet else ""
            yield f"apt cannot work here ({observed.apt_error}{wants}): {move}"

    def _room(self, observed: Observed) -> Iterator[str]:
        needs = {"/boot": self.boot_mib, "/usr": self.usr_mib, "/var": self.var_mib}
        main = {mount for folder, mount, _ in observed.room if folder in needs}
        rows = [row for row in observed.room if row[0] in needs or row[1] not in main]
        clean = _CLEAN.get(observed.package_manager, "clean the package cache")
        for mount in dict.fromkeys(mount for _, mount, _ in rows):
            folders = [folder for folder, place, _ in rows if place == mount]
            free_mib = min(free for _, place, free in rows if place == mount)
            need_mib = sum((needs | _APART)[folder] for folder in folders)
            if free_mib < need_mib:
                purpose = "" if folders == [mount] else f" for {', '.join(folders)}"
                moves = f"{clean}, " if "/var" in folders else ""
                moves += "remove old kernels, " if {"/boot", "/usr"} & {*folders} else ""
                yield (
                    f"{mount} has {free_mib} MiB free and needs {need_mib} MiB{purpose}: free disk "
                    f"space there ({moves}du -xah {mount} | sort -h | tail)"
                )
        for mount in observed.few_inodes:
            yield f"{mount} has hardly any inodes left: remove files"

    def _gpus(self, observed: Observed) -> Iterator[str]:
        if observed.image:
            return
        passed_through = [
            gpu.address for gpu in observed.gpus if gpu.driver in ("vfio-pci", "vfio_pci")
        ]
        if passed_through:
            yield (
                f"{', '.join(passed_through)} bound to vfio-pci, so a virtual machine owns the "
                "GPU; exclude the node from the policy (only=...), or bind the GPU to the host's "
                "driver first"
            )
        if self.gpus is None:
            if not observed.gpus:
                yield (
                    "no NVIDIA GPU on PCI: check the BMC and lspci -d 10de:, remove the node from "
                    "the policy, or set gpus: 0 if it has none"
                )
            return
        ids = [gpu.device_id for gpu in observed.gpus]
        missing = list(gpu_models.differences(ids, gpu_models.parse_count(self.gpus)))
        if missing:
            yield (
                f"GPUs on PCI differ from the inventory: {', '.join(missing)} "
                f"(found: {gpu_models.describe(ids)}): check for a GPU off the bus (dmesg, Xid "
                "79), or correct gpus"
            )

    def plan(self, observed: Observed) -> Plan:
        plan = diff(
            observed,
            self.desired(observed),
            costs={"unsettled": Disruption.RESTART, "journal": Disruption.RESTART},
            why={
                "unsettled": f"{_conditions(observed.unsettled)} by an interrupted installation",
                "journal": "dpkg was killed while it wrote its database",
                "torn_lists": "apt cannot read them, as after a power cut; they are fetched again",
            },
            notes=() if self.absent else tuple(self._notes(observed)),
        )
        return plan if self.absent else replace(plan, warnings=tuple(self._warnings(observed)))

    def _warnings(self, observed: Observed) -> Iterator[str]:
        image = self._image(observed)
        if image is not None and image.note:
            yield f"{image.name}: {image.note}"
        if observed.lock_holder:
            yield f"{observed.lock_holder} holds the package lock; installing waits up to 300 s for it"

    def _notes(self, observed: Observed) -> Iterator[str]:
        if observed.unsettled:
            yield (
                "everything else waits until they are configured, and is not changed if they cannot be: "
                "dpkg --configure -a on the node shows why"
            )
        elif observed.unmet:
            yield f"left to the state that installs it: {', '.join(observed.unmet[:3])}"
        if _NO_ROOM not in observed.apt_error:
            yield from self._room(observed)
        if observed.left:
            yield f"{_conditions(observed.left)}, left to the state that owns it: {', '.join(observed.left)}"
        if not observed.python3:
            yield "python3 is not installed; the validator's CUDA test needs it"
        elif observed.old_python:
            yield (
                f"python3 {observed.old_python}: the validator needs 3.9 or newer; install python39 or python311 beside it"
            )
        if observed.secure_boot:
            yield (
                "Secure Boot is on: only modules signed by a key enrolled in the firmware will load"
            )
        if not observed.image and not observed.kernel_modules:
            yield (
                f"/lib/modules/{observed.kernel} is missing: no module can be loaded before a "
                "reboot"
            )
        if not observed.image and not observed.time_service:
            yield "no time service was seen (systemd-timesyncd, chrony, ntpd)"

    def apply(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        if "torn_lists" in plan.fields:
            yield _read_anew()
        if not plan.fields & {"unsettled", "journal"}:
            return
        torn = " ".join(
            row.split()[-1]
            for row in observed.unsettled
            if "H" in row.split()[0] or "R" in row.split()[0]
        )
        words = {"TORN": torn, "OTHERS": _NVIDIA.pattern}
        text = shell.load("preflight_finish", "gpustate.states", **words)
        yield ops.Run(text, "finish an interrupted package installation", 1800)


def _read_anew() -> Step:
    """Remove lists that apt cannot read, and what they were compiled into, and read all again."""
    return ops.Run(
        _TORN + shell.load("preflight_lists", "gpustate.states", LISTS=_LIST.pattern),
        "refresh truncated package lists",
        900,
    )


def _package(row: str) -> str:
    """Status and name; empty when it is not a row of dpkg's: the name becomes a word of a command."""
    match = re.fullmatch(r"\s*(\w{1,4})\s*\|\s*([a-z0-9][a-z0-9.+:-]*)\s*", row, re.ASCII)
    return f"{match[1]} {match[2]}" if match else ""


def _conditions(rows: Iterable[str]) -> str:
    """What dpkg calls the status of packages that are not installed as a whole."""
    letters = {row[1:2] for row in rows}
    conditions = [condition for letter, condition in _CONDITIONS.items() if letter in letters]
    return " and ".join(conditions) or "unfinished"


def _unmet(rows: Iterable[str]) -> tuple[str, ...]:
    """Rows of apt's listing; one that names no package goes on with the one before."""
    problems: list[str] = []
    name = ""
    for row in rows:
        head, colon, text = row.partition(" : ")
        if colon:
            name, row = head, text
        kind, colon, dependency = row.partition(": ")
        if name and colon and kind.endswith("Depends"):
            problems.append(f"{name} wants {dependency.partition(' but ')[0].strip()}")
    return tuple(problems)


def _dependency(row: str) -> str:
    """Name of the package that a row of :func:`_unmet` misses."""
    return row.partition(" wants ")[2].partition(" ")[0]


def _said_by_apt(lines: list[str]) -> str:
    """The one of several complaints that says most."""
    error = package_errors.find_error("\n".join(lines))
    return error[0] if error else "".join(lines[:1])


def _room(row: str) -> tuple[str, str, int] | None:
    folder, mib, mount = [*row.split(" ", 2), "", ""][:3]
    size = parse_uint(mib)
    return (folder, mount, size) if size is not None and mount else None


def _date(seconds: int) -> str:
    # A clock that is far off may be beyond what datetime can hold.
    seconds = max(0, min(seconds, 253_402_300_799))
    return datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%d")
