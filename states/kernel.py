"""Which kernel a node boots, and that none comes without its nvidia module.

A new kernel and the driver's module for it are one transaction: kernel and headers come in one apt call,
the module is built and looked at, and only then does the boot default move. Until then, and for ever
where the module does not build, the node boots the kernel it booted before, with the module it had.

Surprising: the scripts of a kernel's package make the newest kernel the boot default at once, whether or
not a module can be built for it. So the present default is pinned in GRUB before anything is installed.
Ubuntu's signed modules of a kernel are a package (``linux-modules-nvidia-580-server-open-6.8.0-110-generic``). Where
the running kernel has its modules from one, the wanted kernel gets the same package for the same driver.

A meta package (``linux-image-amd64``) is what brings new kernels; holding it keeps them away, and holding
the packages of one kernel would not.

Sources:
    apt-mark(8), dkms(8); GNU GRUB manual 2.06: "Simple configuration" (``GRUB_DEFAULT``); grub2 2.06 of
    Debian 12: util/grub-mkconfig.in (/etc/default/grub.d), util/grub.d/10_linux.in (ids of entries).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from pydantic import Field, field_validator

from gpustate import Disruption, Node, NodeFacts, Plan, State, Step, diff, ops, shell
from gpustate.core.packages import not_offered
from gpustate.formats import dkms, dpkg
from gpustate.ops import kmod, modsign
from gpustate.probes.kernels import Kernels, default_kernel

PIN_PATH = "/etc/default/grub.d/zz-gpustate-kernel.cfg"
#: Names that this state has held, so that it lets go of no others.
HELD_PATH = "/var/lib/gpustate/kernel.held"
_PATTERNS = (
    *("linux-image-*", "linux-headers-*", "linux-generic*", "linux-virtual*"),
    *("linux-server*", "linux-modules-nvidia-*"),
)
_SIGNED = "linux-modules-nvidia-"
_RELEASE = re.compile(r"\d+\.\d+[0-9A-Za-z.+~-]*")
#: Of a kernel, unlike the metapackages of an Ubuntu release: linux-image-generic-hwe-24.04.
_VERSIONED = re.compile(r"-\d+\.\d+\.\d+")
_PINNED = re.compile(r'^GRUB_DEFAULT=".*gnulinux-(.+)-advanced-[^">]*"$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Observed:
    """Kernels of a node; the fields from ``apt`` on are facts that decide."""

    held: dict[str, bool]  # meta packages that bring kernels
    ours: tuple[str, ...]  # of these, held by this state
    installed: bool  # image and headers of the wanted kernel
    module: bool  # it has the nvidia module of the kernel that runs, where that has one
    pinned: str | None  # release that our file makes GRUB boot
    default: str | None
    running: str
    apt: bool
    grub: bool
    image: bool
    offered: bool  # apt has the wanted kernel and its headers
    driver: str | None  # version of the running kernel's nvidia module
    signed: str = ""  # package of Ubuntu's signed modules that the wanted kernel needs
    record: str = ""  # owner and mode of the list of those held, where they are not as written
    forbidden: Mapping[str, str] = field(default_factory=dict[str, str])  # by foreign pins


class KernelPinned(State[Observed]):
    """No kernel boots without its nvidia module: new ones are kept away, or come with it (Debian, Ubuntu).

    Args:
        policy: ``follow``: kernels come as the distribution brings them; ``hold``: the meta packages
            that bring them are held; or one release, as ``6.1.0-28-amd64``: it is installed with its
            headers, gets its module, and is booted, the kernel before it stays, and others are kept away.
        reboot_timeout_s: how long the node may take to come back, in seconds.

    Disruption:
        ``REBOOT`` where another kernel is to run, ``NONE`` otherwise.
    """

    name: ClassVar[str] = "kernel"
    labels: ClassVar[Mapping[str, str]] = {
        "ours": "holds set by gpustate",
        "installed": "kernel installed",
        "module": "driver's module built for it",
        "pinned": "kernel that boots",
        "default": "default kernel",
        "running": "running kernel",
        "record": "record of the packages that gpustate installed",
    }
    needs: ClassVar[tuple[str, ...]] = ("preflight",)
    # The driver that is wanted is there, so that the module built here is the right one.
    known_after: ClassVar[tuple[str, ...]] = ("preflight", "driver")
    worst: ClassVar[Disruption] = Disruption.REBOOT

    policy: str = "hold"
    reboot_timeout_s: int = Field(default=900, ge=30)

    @field_validator("policy")
    @classmethod
    def _policy(cls, value: str) -> str:
        if value not in ("follow", "hold") and not _RELEASE.fullmatch(value):
            raise ValueError("must be follow, hold, or a kernel's release such as '6.1.0-28-amd64'")
        return value

    @property
    def release(self) -> str | None:
        """The one kernel that is to run, if one is named."""
        return None if self.policy in ("follow", "hold") else self.policy

    def _names(self, signed: str) -> tuple[str, ...]:
        names = tuple(f"linux-{part}-{self.release}" for part in ("image", "headers"))
        return (*names, signed) if signed else names

    def _signed(self, packages: Mapping[str, dpkg.Package], running: str) -> str:
        """The package of signed modules for the wanted kernel, as the running one has its modules from one."""
        stems = (
            name.removesuffix(running)
            for name, package in packages.items()
            if name.startswith(_SIGNED) and name.endswith(f"-{running}") and package.installed
        )
        stem = next(stems, None) if self.release else None
        return f"{stem}{self.release}" if stem else ""

    def probe(self, node: Node) -> Observed:
        facts, kernels = node.facts(), node.query(Kernels())
        packages = node.packages(*_PATTERNS)
        held_text, pin = node.read_text(HELD_PATH), node.own_text(PIN_PATH)
        record = node.otherwise(HELD_PATH, private=True)
        signed = self._signed(packages, facts.kernel)
        names = self._names(signed) if self.release else ()
        offers = node.candidates(*names)
        output = node.shell(
            "command -v update-grub && [ -r /boot/grub/grub.cfg ] && echo menu"
        ).stdout
        installed = {n: p for n, p in packages.items() if p.status[1:2] == "i"}
        metas = {n: p for n, p in installed.items() if not _VERSIONED.search(n)}
        default = default_kernel(kernels)
        driver = next((k.nvidia_version for k in kernels if k.running), None)
        match = _PINNED.search(pin or "")
        return Observed(
            held={name: package.held for name, package in metas.items()},
            ours=tuple((held_text or "").split()),
            record=record,
            installed=all(name in installed for name in names),
            module=driver is None
            or any(k.release == self.release and k.nvidia_version == driver for k in kernels),
            pinned=match[1] if match else None,
            default=default.release if default else None,
            running=facts.kernel,
            apt=facts.package_manager == "apt",
            grub="menu" in output,
            image=facts.image,
            offered=all(offers.get(name) for name in names),
            forbidden=node.forbidden(*names),
            driver=driver,
            signed=signed,
        )

    def desired(self, observed: Observed) -> Observed:
        observed = replace(observed, record="")
        if self.absent or self.policy == "follow":
            free = {
                name: held and name not in observed.ours for name, held in observed.held.items()
            }
            return replace(observed, held=free, ours=(), pinned=None)
        news = tuple(
            sorted({*observed.ours, *(n for n, held in observed.held.items() if not held)})
        )
        desired = replace(observed, held=dict.fromkeys(observed.held, True), ours=news)
        if self.release is None:
            return replace(desired, pinned=None)
        return replace(
            desired,
            installed=True,
            module=True,
            pinned=self.release,
            default=self.release,
            running=self.release,
        )

    def refuse(self, observed: Observed) -> str | None:
        if self.absent or self.policy == "follow":
            return None
        if not observed.apt:
            return "kernels are held with apt on Debian and Ubuntu only; set policy: follow"
        if self.release is None:
            return None
        if observed.image:
            return "no kernel runs in an image; install the kernel to boot, and set policy: hold"
        if not observed.installed and not observed.offered:
            names = " and ".join(self._names(observed.signed))
            advice = "see: apt-cache search linux-image-"
            return not_offered(names, (), advice, observed.forbidden)
        if not observed.grub:
            return (
                "no GRUB menu (update-grub, /boot/grub/grub.cfg), which is needed to keep the old "
                "kernel the default; install grub2, or set policy: follow"
            )
        return None

    def plan(self, observed: Observed) -> Plan:
        because = (
            f"{self.release} should be running; {observed.running} stays bootable with its module"
        )
        plan = diff(
            observed,
            self.desired(observed),
            costs={"running": Disruption.REBOOT},
            why={
                "running": because,
                "module": f"driver {observed.driver} is built for it before it becomes bootable",
                "held": "packages that install new kernels" if not self.absent else "",
            },
        )
        return plan

    def worst_case(self, observed: Observed, facts: NodeFacts) -> tuple[Disruption, str] | None:
        if self.release is None or observed.running == self.release:
            return Disruption.NONE, ""
        return Disruption.REBOOT, ""

    def apply(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        desired = self.desired(observed)
        if plan.fields & {"ours", "held", "record"}:
            yield from _holds(observed, desired)
        if desired.pinned is None:
            if "pinned" in plan.fields:
                yield ops.RemoveOwn(PIN_PATH)
                yield ops.Run(
                    "update-grub; effect updated", "regenerate the GRUB menu", timeout=120
                )
            return
        if "installed" in plan.fields:
            # Its scripts would make it the default before it has a module.
            yield _pin(observed.default or observed.running)
            stays = observed.default or observed.running
            yield _bring(self._names(""), observed.signed, observed.driver, stays)
        if plan.fields & {"installed", "module"} and observed.driver is not None:
            yield _prove(desired.running, observed.driver, observed.default or observed.running)
        if plan.fields & {"installed", "pinned", "default"}:
            yield _pin(desired.running)
        if "running" in plan.fields:
            yield ops.Reboot(f"kernel {self.release} should be running", self.reboot_timeout_s)


def _holds(observed: Observed, desired: Observed) -> Iterator[Step]:
    hold = tuple(n for n, held in desired.held.items() if held and not observed.held[n])
    free = tuple(n for n, held in desired.held.items() if not held and observed.held[n])
    if desired.ours:
        # Written down first: what a killed run has held is let go of some day.
        yield ops.PutText(HELD_PATH, "".join(f"{name}\n" for name in desired.ours), mode=0o600)
    if hold:
        yield ops.AptHold(hold)
    if free:
        yield ops.AptHold(free, hold=False)
    if not desired.ours:
        yield ops.RemoveOwn(HELD_PATH)


def _pin(release: str) -> Step:
    """Make GRUB boot one kernel, and see that its menu has it."""
    return ops.Run(
        shell.load("kernel_pin", "gpustate.states", RELEASE=release, DROP_IN=PIN_PATH),
        f"set {release} as GRUB's default kernel",
        timeout=180,
    )


def _bring(names: tuple[str, ...], signed: str, driver: str | None, stays: str) -> Step:
    """Image and headers, and signed modules or what DKMS builds from their scripts; where that fails none stays."""
    words, choose, hold = " ".join(map(shlex.quote, names)), "", ""
    if signed and driver:
        choose = shell.load(
            "kernel_signed", "gpustate.states", MODULES=signed, VERSION=driver, STAYS=stays
        )
        words += f' "{signed}=$signed_version"'
        hold = f"apt-mark hold {shlex.quote(signed)} && "
        names = (*names, signed)
    return ops.Run(
        f"{kmod.APT_FAILED}apt_ready && {{ {choose}apt_fetch {words} && apt_swap {words} && {hold}exit 0; }}\n"
        f'echo "the node keeps booting {stays}"; [ -z "$ROLLED" ] || roll_back; exit 1',
        f"install {', '.join(names)}",
        timeout=3600,
    )


def _prove(release: str, version: str, stays: str) -> Step:
    """Build what DKMS has for a kernel, and look at what came of it."""
    return ops.Run(
        modsign.BUILT
        + shell.load(
            "kernel_module",
            "gpustate.states",
            RELEASE=release,
            VERSION=version,
            STAYS=stays,
            CAUSE=dkms.CAUSE_ERE,
        ),
        f"build the nvidia module for {release}",
        timeout=3600,
    )


__all__ = ["KernelPinned", "Observed"]
