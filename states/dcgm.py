"""The DCGM host engine runs, in packages that fit the driver's CUDA major.

DCGM 4 is a core with the service, and a package for each CUDA major whose diagnostics only run on a
driver of that major; with the closed packages come the profiling module and more diagnostics. All of
them have one version. The package of DCGM 3 and older has another name and conflicts with 4: it is
named in the plan and leaves in the same transaction, or is refused.

The service is ordered behind the driver, persistence mode and Fabric Manager, and listens on the
loopback address unless told otherwise: whoever reaches its port may change GPUs.

Surprising: the package does not enable its service. "Started" in systemd's sense is not "listens", so
the address it is bound to is looked at, and the arguments it really runs with.

Sources:
    NVIDIA/DCGM: cmake/packaging.cmake, scripts/deb/postinst, config-files/systemd/nvidia-dcgm.service.in,
    hostengine/src/HostEngineCommandLine.cpp; DCGM user guide, installation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from gpustate import Disruption, Node, Step, ops, shell
from gpustate.bases.service import ServiceObservation, ServiceState
from gpustate.core.packages import Offer, StatePackages, not_offered
from gpustate.core.parameter_errors import pattern
from gpustate.core.parameter_types import DottedVersion
from gpustate.core.planned import PlannedObservation
from gpustate.core.shared_probes import LISTENING, show_unit
from gpustate.documents import JsonView
from gpustate.formats import cdi, dpkg, keyed, systemd
from gpustate.formats.dcgm import packages, services
from gpustate.probes import listeners
from gpustate.probes.package_files import PackageFiles, unit_paths

UNIT = services.ENGINE_UNIT
DROP_IN_PATH = f"/etc/systemd/system/{UNIT}.d/gpustate.conf"

_SERVICE_QUERY = (
    f'show_unit() {{ SHOWN="{show_unit(UNIT)}"; }}\n'
    f"{shell.load('process_words', 'gpustate.shell')}{shell.load('dcgm_probe', 'gpustate.states')}"
    'while read -r l; do [ -z "$l" ] || printf \'tcp=%s\\n\' "$l"; done <<END\n'
    f"{LISTENING}\nEND\n:"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed(ServiceObservation):
    """Packages and service, beside the driver that is loaded."""

    driver: str  # version of the loaded driver; in an image of the installed one; empty: none
    packages: dict[str, str]  # of DCGM 4: name to version
    old: str | None = None  # version of datacenter-gpu-manager (DCGM 3 and older)
    held: tuple[str, ...] = ()
    drop_in: str | None = None
    bound: tuple[str, ...] = ()  # addresses its port is bound to
    words: tuple[str, ...] = ()  # arguments it runs with; empty: it does not run
    elsewhere: bool = False  # the address it is to listen on is not the node's
    others: dict[str, str] = field(default_factory=dict[str, str])  # drop-ins that are not ours

    @property
    def installed(self) -> Mapping[str, str]:
        return {packages.OLD: self.old, **self.packages} if self.old else self.packages

    @property
    def all_held(self) -> bool:
        return self.packages.keys() <= set(self.held)


def _address(text: str) -> str:
    return text if text == services.EVERYWHERE else listeners.ipv4(text)


class DcgmRunning(ServiceState[Observed]):
    """The DCGM host engine runs at boot and now, in one version that fits the driver's CUDA major.

    Args:
        version: DCGM's version, such as ``4.6.0``; the installed one, else the newest, when not given.
        proprietary: also have the closed packages; profiling metrics need them.
        old: what to do with DCGM 3 and older: ``migrate`` replaces it, ``refuse`` leaves the node alone.
        hold: hold the packages, so that they move with the policy only.
        address: IPv4 address the host engine listens on; ``ALL`` for every one.
        port: TCP port it listens on.

    Disruption:
        ``RESTART`` where a host engine that runs is replaced or gets another address: exporters and
        diagnostics lose it for a moment, workloads go on. Otherwise ``NONE``.
    """

    name: ClassVar[str] = "dcgm"
    labels: ClassVar[Mapping[str, str]] = {
        "packages": "dcgm version",
        "old": "packages of DCGM 3",
        "bound": "addresses it listens on",
        "words": "options of the service",
    }
    needs: ClassVar[tuple[str, ...]] = ("driver",)
    after: ClassVar[tuple[str, ...]] = ("persistenced", "fabric-manager", "mig")
    known_after: ClassVar[tuple[str, ...]] = ("driver-repository", "driver")
    indispensable: ClassVar[bool] = True
    predicted: ClassVar[tuple[str, ...]] = ("packages",)
    follows: ClassVar[tuple[str, ...]] = ("driver",)
    worst: ClassVar[Disruption] = Disruption.RESTART
    needs_gpu: ClassVar[bool] = True
    stable: ClassVar[tuple[str, ...] | None] = (
        *("driver", "packages", "old", "held", "drop_in", "at_boot", "active", "bound", "words"),
        "damaged",
    )

    unit: ClassVar[str] = UNIT
    files: ClassVar[Mapping[str, str]] = {"drop_in": DROP_IN_PATH}
    reloads: ClassVar[frozenset[str]] = frozenset({"drop_in", "packages", "old"})
    restarts: ClassVar[frozenset[str]] = ServiceState.restarts | {"bound", "words"}
    program_files: ClassVar[PackageFiles | None] = PackageFiles(
        "dcgm-files",
        (packages.CORE,),
        ("/usr/bin/nv-hostengine", "/usr/bin/dcgmi", *unit_paths("nvidia-dcgm")),
    )
    install_s: ClassVar[int] = 1800

    version: DottedVersion | None = None
    proprietary: bool = True
    old: Literal["migrate", "refuse"] = "migrate"
    hold: bool = True
    address: Annotated[
        str,
        pattern(r"^(ALL|[0-9]{1,3}(\.[0-9]{1,3}){3})$", "an IPv4 address, or ALL"),
        AfterValidator(_address),
    ] = services.ENGINE_ADDRESS
    port: Annotated[int, Field(ge=1, le=65535)] = services.ENGINE_PORT

    def pinned(self, observed: Observed) -> JsonView:
        versions = {dpkg.upstream_version(version) for version in observed.packages.values()}
        return {"version": versions.pop()} if len(versions) == 1 else {}

    def matrix_facts(self, planned: PlannedObservation) -> dict[str, object]:
        value = planned.value("packages")
        names = value if isinstance(value, Mapping) else {}
        majors = {match[1] for match in map(packages.MAJOR.search, names) if match}
        return {
            "dcgm": names.get(packages.CORE),
            "dcgm_cuda": majors.pop() if len(majors) == 1 else None,
        }

    def required_packages(self, offer: Offer, observed: Observed | None) -> StatePackages:
        driver = offer.chosen.get("driver")
        major = packages.cuda_major(driver) if isinstance(driver, str) else None
        if major is None:
            return StatePackages()
        return offer.one_version(packages.names(major, closed=self.proprietary), self.version)

    def probe(self, node: Node) -> Observed:
        fields = self.read(node, *packages.all_names())
        loaded = cdi.driver_version(node.read_text("/proc/driver/nvidia/version"))
        rows, drop_ins = node.packages(f"{packages.OLD}*"), node.drop_ins(UNIT)
        elsewhere = "" if self.absent else listeners.elsewhere(self.address)
        keys = keyed.lists(node.shell(_SERVICE_QUERY + elsewhere).stdout)
        installed = {name: row for name, row in rows.items() if row.installed}
        current = {name: row for name, row in installed.items() if name.startswith(packages.PREFIX)}
        words = services.words_after("".join(keys.get("words", [])), "nv-hostengine") or ()
        if "replaced" in keys:  # a package came, and what runs is the program of the one before
            words = ("replaced", *words)
        return Observed(
            **fields,
            driver="".join(keys.get("driver", [])) if fields["image"] else loaded,
            packages={name: current[name].version for name in sorted(current)},
            old=installed[packages.OLD].version if packages.OLD in installed else None,
            held=tuple(sorted(name for name, row in current.items() if row.held)),
            bound=services.listening("\n".join(keys.get("tcp", [])), self.port),
            words=words,
            elsewhere="elsewhere" in keys,
            others={path: text for path, text in drop_ins.items() if path != DROP_IN_PATH},
        )

    def _wanted_packages(self, observed: Observed) -> dict[str, str] | None:
        """Names and versions that should be there; ``None`` when they cannot be had."""
        major = packages.cuda_major(observed.driver)
        if major is None:
            return None
        names = packages.names(major, closed=self.proprietary)
        chosen = packages.choose(names, observed.packages, observed.offered, self.version)
        if chosen.problem:
            return None
        # What else is there of DCGM wants the core at its own version, so it moves along.
        more = [
            name
            for name in observed.packages
            if name not in names and not packages.of_other_major(name, major)
        ]
        return dict.fromkeys(sorted({*names, *more}), chosen.version)

    def desired(self, observed: Observed) -> Observed:
        if self.absent:
            return replace(
                observed,
                packages={},
                damaged=(),
                held=tuple(name for name in observed.held if name not in observed.packages),
                drop_in=None,
                at_boot=False,
                active=False,
                bound=() if observed.active else observed.bound,
                words=() if observed.active else observed.words,
            )
        desired = self._wanted_packages(observed)
        if desired is None:
            return observed
        running = observed if observed.image else self._running(observed)
        return replace(
            running,
            packages=desired,
            damaged=(),
            old=None,
            held=tuple(desired) if self.hold else tuple(n for n in observed.held if n in desired),
            drop_in=services.engine_drop_in(self.address, self.port),
            at_boot=True,
        )

    def _running(self, observed: Observed) -> Observed:
        words = services.engine_words(self.address, self.port)
        return replace(observed, active=True, bound=(self.address,), words=words)

    def refuse(self, observed: Observed) -> str | None:
        if self.absent:
            return None
        if reason := super().refuse(observed):
            return reason
        if packages.cuda_major(observed.driver) is None:
            state = "no driver is installed" if observed.image else "no driver is loaded"
            return (
                f"{state}, and DCGM's packages depend on its CUDA major version; add the state "
                "driver to the policy"
            )
        if observed.old is not None and self.old == "refuse":
            return (
                f"{packages.OLD} {observed.old} (DCGM 3 or older) is installed and conflicts with DCGM 4; "
                "set old: migrate, or remove it by hand"
            )
        if observed.elsewhere:
            return (
                f"{self.address} is not an address of this node; set address to one listed by: ip "
                "-4 addr"
            )
        words = services.engine_words(self.address, self.port)
        own_path = (
            DROP_IN_PATH if "ExecStart=" in services.engine_drop_in(self.address, self.port) else ""
        )
        path, command = systemd.effective_command(observed.others, own_path)
        if path and services.words_after(command, "nv-hostengine") != words:
            return services.override_error(path, UNIT, command)
        if observed.bound and not observed.active:
            return (
                f"something else listens on port {self.port} ({', '.join(observed.bound)}), such as a host engine "
                f"in a container or started by hand: find it with: ss -ltnp sport = :{self.port}; "
                "stop it, or set another port"
            )
        return None

    def unavailable(self, observed: Observed) -> str | None:
        major = packages.cuda_major(observed.driver)
        if major is None:
            return None
        names = packages.names(major, closed=self.proprietary)
        chosen = packages.choose(names, observed.packages, observed.offered, self.version)
        text = f"{chosen.problem}, which the driver {observed.driver} (CUDA {major}) needs"
        hint = ", or set proprietary: false" if packages.CLOSED in text else ""
        advice = f"use NVIDIA's CUDA repository or a mirror of it (driver-repository){hint}"
        versions = [version for name, version in observed.offered if name == packages.CORE]
        if self.version and versions:
            text, advice = chosen.problem or "", "name one of these versions, or none"
        lacking = not_offered(text, versions, advice, observed.forbidden)
        return lacking if chosen.problem else None

    def why(self, observed: Observed) -> Mapping[str, str]:
        if self.absent:
            return {}
        major = packages.cuda_major(observed.driver)
        return {
            "packages": f"the driver {observed.driver} is of CUDA {major}" if major else "",
            "old": "DCGM 4 conflicts with it",
            "words": "it still runs with its previous configuration" if observed.active else "",
        }

    def restart(self, observed: Observed) -> Step:
        row = f":{self.port:04X} [0-9A-F]*:0000 0A"
        answers = f"systemctl is-active --quiet {UNIT} && cat /proc/net/tcp /proc/net/tcp6 | grep -q '{row}'"
        return ops.RestartUnit(UNIT, healthy=answers)

    def remove(self, observed: Observed, moved: frozenset[str]) -> Iterator[Step]:
        # An exporter may need them: then nothing else is to be gone either.
        if "packages" in moved:
            yield ops.remove(observed.manager, tuple(observed.packages))
        yield from super().remove(observed, moved - {"packages", "held"})
