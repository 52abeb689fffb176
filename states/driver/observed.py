"""What a node says about its driver, and the fragments that ask for it.

Four facts are kept apart, for they differ in the field: the version of the packages, of the module
on disk for each kernel, of the module that is loaded, and of the library that programs get. After
an unattended upgrade the last two differ and every CUDA program fails, while dpkg is content.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpustate import PciGpu, shell
from gpustate.core.queries import Answer, Query
from gpustate.core.shared_probes import APT_KEY, FOREIGN_PINS
from gpustate.formats import aptsources, dkms, dpkg, drivernames, driverset, keyed, modprobe
from gpustate.ops.packages import UNMET_KEPT
from gpustate.ops.transaction import PIN_PATH
from gpustate.probes import device_nodes, shadowing_libraries
from gpustate.probes.gpu_clients import GpuProcess
from gpustate.states.driver import rpmask

_PACKAGE = "gpustate.states.driver"
STOPPED_PATH = "/var/lib/gpustate/driver.stopped"
LEFT_PATH = "/var/lib/gpustate/driver.left-stopped"
IN_USE_PATH = "/run/gpustate/driver-in-use"
#: NVIDIA's .run installer puts itself here under this name.
UNINSTALLER = "/usr/bin/nvidia-uninstall"


@dataclass(frozen=True, slots=True)
class SecureBoot:
    """Secure Boot as the firmware says, and the key that DKMS signs with."""

    on: bool = False
    key: str = ""  # path of the certificate; "" when there is none yet
    enrolled: bool = False


@dataclass(frozen=True, slots=True)
class Observed:
    """The driver of one node. The fields from ``manager`` on are facts that decide, not things to change."""

    packages: dict[str, str]  # everything installed that belongs to the driver
    held: tuple[str, ...]
    broken: tuple[str, ...]  # half-configured, or there twice: dpkg or rpm was interrupted
    headers: dict[str, bool]  # kernel release: modules can be built for it
    built: dict[str, str | None]  # kernel release: "580.65.06 open" of its nvidia module on disk
    loaded: str | None  # "580.65.06 open" of the loaded module
    modules: tuple[str, ...]  # loaded, of those that CUDA needs
    library: str | None  # version of libnvidia-ml
    pin_text: str | None
    options_text: str | None
    autoload_text: str | None
    parameters: dict[str, str | None]  # those of the policy, as the loaded module has them
    stopped: tuple[str, ...]  # services that a reload stopped and did not start again
    manager: str  # apt, dnf or zypper
    os_id: str
    running: str
    default_kernel: str | None
    gpus: tuple[PciGpu, ...]
    offers: dict[str, tuple[str, ...]]  # name: versions that may be installed
    holders: tuple[GpuProcess, ...]
    in_use: str | None  # why the modules cannot be unloaded in this boot
    secure_boot: SecureBoot
    build_errors: dict[str, str]  # kernel release: first line of the compiler's complaint
    known_parameters: tuple[str, ...]  # names that the loaded module knows
    installer: bool  # NVIDIA's .run installer put a driver here
    operator: bool  # the GPU Operator's driver container runs here
    pinned_away: Mapping[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    # version and module type of the driver that a foreign pin forbids: file of that
    admitting_pins: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict[str, tuple[str, ...]]
    )  # foreign file whose pins let several repositories have the driver: these
    kernel_pins: Mapping[str, str] = field(default_factory=dict[str, str])
    # package of a kernel that a foreign pin forbids: file of that
    elsewhere: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    # repository that is not in use: versions of the driver that it has
    repository: str = ""  # in use
    missing: tuple[str, ...] = ()  # packages of the driver that installed ones want and do not have
    damaged: tuple[str, ...] = ()  # files that are not as their packages brought them
    barred: tuple[str, ...] = ()  # lines of modprobe.d that let no module of CUDA's be loaded
    beside: tuple[str, ...] = ()  # what programs get in place of a library of the driver's
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])
    # module of CUDA's that no boot loads by itself: line of modprobe.d that keeps it from that
    overruled: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    # parameter of the policy: line of modprobe.d that is read after gpustate's own, and its value
    device_nodes: tuple[str, ...] = ()  # what is wrong with those below /dev
    stream: str | None = None  # enabled stream of dnf's module nvidia-driver
    streams: tuple[str, ...] = ()  # those there are
    stream_kept: bool = False  # what was enabled before gpustate is kept for giving it back
    relations: driverset.Relations = driverset.NO_RELATIONS  # what offers of Ubuntu's depend on
    bare_kernels: tuple[str, ...] = ()  # kernels without modules that nvidia-modeset needs
    can_hold: bool = True  # dnf has its plugin versionlock
    unsolvable: str = (
        ""  # what the package manager has against installing the set, in its own words
    )
    pins: Mapping[str, str] = field(default_factory=dict[str, str])
    # package and version that a foreign pin forbids: file of that; gpustate's pins override it unless unsolvable
    further: tuple[
        tuple[str, str], ...
    ] = ()  # what is installed with the set: headers and modules, with versions
    origin: str = ""  # repositories of the packages that change, and what comes with them
    headers_origin: str = ""  # packages of kernel headers that come, with versions and repositories
    image: bool = False  # a root to be baked: nothing runs, and ``gpus`` are those it is meant for
    switches: bool = False  # Fabric Manager is for this node, or for those an image is for
    services: tuple[str, ...] = ()  # units that unloading the modules stops
    absent_holds: tuple[str, ...] = ()  # held packages that are not installed
    left_stopped: tuple[
        str, ...
    ] = ()  # units that a removal stopped; " (not enabled)" after one that stays so

    @property
    def signed_pins(self) -> str:
        """The foreign files of pins that forbid signed modules."""
        pins = self.kernel_pins.items()
        return ", ".join(dict.fromkeys(path for n, path in pins if driverset.is_of_kernel(n)))

    @property
    def whole(self) -> tuple[driverset.Scheme, str, str] | None:
        """Scheme, version and module type of the completely installed set."""
        return driverset.complete_set(self.os_id, self.relations.living(self.packages))


@dataclass(frozen=True, slots=True)
class Apt:
    """Packages of the driver, and what apt, dnf or zypper offers."""

    packages: dict[str, dpkg.Package]
    offers: dict[str, tuple[aptsources.Offer, ...]]
    stream: str | None = None
    streams: tuple[str, ...] = ()
    twice: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    absent_holds: tuple[str, ...] = ()  # held, and not installed
    relations: driverset.Relations = driverset.NO_RELATIONS
    can_hold: bool = True
    pins: aptsources.Pins = field(default_factory=dict[str, Mapping[tuple[str, str], int]])


@dataclass(frozen=True, slots=True)
class AptQuery(Query[Apt]):
    """Installed packages of the driver, and offers for them, for other names and for kernel headers.

    Args:
        names: package names to ask for, by the distribution's ``ID``.
        per_kernel: names with ``{k}``, asked for every kernel; kernel headers are always asked for.
        secure_boot: ask for those only where Secure Boot is on.
        rpm_names: names to ask dnf or zypper for.
        flavoured: names with ``{f}`` to ask zypper for, for the flavour of every kernel.
    """

    names: tuple[tuple[str, tuple[str, ...]], ...]
    per_kernel: tuple[str, ...] = ()
    secure_boot: bool = False
    rpm_names: tuple[str, ...] = ()
    flavoured: tuple[str, ...] = ()

    def script(self) -> str:
        return rpmask.script(self.rpm_names, self.flavoured) + self._apt()

    def _apt(self) -> str:
        cases = " ".join(f'{os_id}) names="{" ".join(names)}";;' for os_id, names in self.names)
        more = "".join(f' names="$names {name.replace("{k}", "$1")}";' for name in self.per_kernel)
        if more and self.secure_boot:
            more = f' [ "$2" != 1 ] || {{{more} }};'
        fragment = shell.load(
            "apt",
            _PACKAGE,
            FORMAT=dpkg.QUERY_FORMAT,
            MEMBERS=driverset.MEMBER_ERE,
            BRANCHES=" ".join(map(str, drivernames.KNOWN_BRANCHES)),
            PIN=PIN_PATH,
        )
        return (
            f"names_of() {{ case $1 in {cases} esac; }}\n"
            f"names_of_kernel() {{ :;{more} }}\n"
            f'{UNMET_KEPT}{FOREIGN_PINS}APT_KEY="{APT_KEY}"\n{fragment}'
        )

    def parse(self, answer: Answer) -> Apt:
        if answer.text.startswith(rpmask.MARK):
            listing = rpmask.parse(answer.text)
            installable = {
                name: tuple(aptsources.Offer(row.version, 500, (row.origin,)) for row in candidates)
                for name, candidates in listing.offers.items()
            }
            return Apt(
                dict(listing.packages),
                installable,
                listing.stream,
                listing.streams,
                listing.twice,
                can_hold=listing.can_hold,
            )
        head, _, tail = answer.text.partition("=offers\n")
        offers, _, relations = tail.partition("=relations\n")
        listed, _, rows = head.partition("=missing\n")
        rows, _, pins = rows.partition("=pins\n")
        pairs = (row.partition(" ")[::2] for row in rows.splitlines())
        return Apt(
            dpkg.parse_query(listed),
            aptsources.parse_policy(offers),
            missing=tuple(f"{n} {v}" for n, v in pairs if v and driverset.is_member(n, v)),
            absent_holds=tuple(
                row.partition("|")[0] for row in listed.splitlines() if "||hn" in row
            ),
            relations=driverset.parse_relations(relations),
            pins=aptsources.parse_pins(pins),
        )

    def placeholder(self) -> Apt:
        return Apt({}, {})


# One key=value a line; read by Live.
_LIVE = (
    shell.load("live", _PACKAGE, UNINSTALLER=UNINSTALLER)
    + modprobe.lines("(install|alias|options|blacklist)[[:space:]]+nvidia")
    + f"\n{device_nodes.NODES}{shadowing_libraries.SCRIPT}"
    + 'for f in /var/lib/dkms/nvidia*/*/build/make.log; do [ ! -f "$f" ] || '
    + f"{{ echo log=; grep -m 40 -E '{dkms.INTERESTING_ERE}' \"$f\" | cut -c 1-400; }}; done\n:\n"
)


@dataclass(frozen=True, slots=True)
class Live:
    """What is loaded now, and what stands in the way of changing that."""

    loaded: str | None = None
    library: str | None = None
    installer: bool = False
    operator: bool = False
    in_use: str | None = None
    drm_in_use: bool = False
    stopped: tuple[str, ...] = ()
    left_stopped: tuple[str, ...] = ()
    secure_boot: SecureBoot = SecureBoot()
    build_errors: Mapping[str, str] | None = None
    device_nodes: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()  # what programs get in place of a library of the driver's
    modprobe: tuple[str, ...] = ()  # lines that say how NVIDIA's modules are loaded


@dataclass(frozen=True, slots=True)
class LiveMigQuery(Query[Live]):
    """Everything :class:`Live` holds, in one fragment."""

    def script(self) -> str:
        return _LIVE

    def parse(self, answer: Answer) -> Live:
        head, *logs = answer.text.split("log=\n")
        keys = keyed.lists(head)
        library = re.search(r"\.so\.([0-9.]+)$", keyed.first(keys, "library"))
        loaded = keyed.first(keys, "loaded")
        if loaded:
            loaded += (
                " open" if "Open Kernel Module" in keyed.first(keys, "nvrm") else " proprietary"
            )
        errors = {dkms.log_kernel(log) or "": dkms.first_error(log) or "" for log in logs}
        return Live(
            loaded=loaded or None,
            library=library.group(1) if library else None,
            installer="installer" in keys,
            operator="operator" in keys,
            modprobe=tuple(keys.get("modprobe", ())),
            beside=shadowing_libraries.describe(keys.get("beside", ())),
            in_use=keyed.first(keys, "in_use") or None,
            drm_in_use="drm" in keys,
            stopped=tuple(keys.get("stopped", [])),
            left_stopped=tuple(keys.get("left_stopped", [])),
            secure_boot=SecureBoot(
                "secure_boot" in keys, keyed.first(keys, "key"), "enrolled" in keys
            ),
            build_errors={kernel: error for kernel, error in errors.items() if kernel and error},
            device_nodes=device_nodes.wrong(
                (*keys.get("node", ()), *keys.get("cap", ())), keys.get("found", ())
            ),
        )

    def placeholder(self) -> Live:
        return Live()


#: Parameters whose line in /proc/driver/nvidia/params has another name than the option (nv-reg.h).
_RENAMED = {"RestrictProfilingToAdminUsers": "RmProfilingAdminOnly"}


def shown_as(name: str) -> str:
    """The line of /proc/driver/nvidia/params that shows an ``NVreg_`` option."""
    stem = name.removeprefix("NVreg_")
    return _RENAMED.get(stem, stem)


def parse_params(text: str | None) -> dict[str, str]:
    """Read /proc/driver/nvidia/params; strings lose their quotes."""
    values: dict[str, str] = {}
    for line in (text or "").splitlines():
        name, colon, value = line.partition(":")
        if colon:
            values[name.strip()] = value.strip().strip('"')
    return values


def plain_value(value: int | str) -> str:
    """A parameter's value as the driver shows it: decimal, unsigned; 0666 and 0x1b6 are 438."""
    text = str(value).strip()
    sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text)
    try:
        base = (
            16 if digits[:2].lower() == "0x" else 8 if digits[:1] == "0" and digits != "0" else 10
        )
        return str(int(sign + digits, base) % 2**32)
    except ValueError:
        return {"Y": "1", "N": "0"}.get(text, text)
