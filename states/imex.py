"""IMEX runs where a rack's switches join GPUs across nodes, and knows all nodes of its NVLink domain.

On a compute tray of GB200 or GB300, CUDA can map memory of other nodes' GPUs; IMEX carries the
permissions between the nodes. It has the driver's version, and a list of the domain's nodes that must be
the same everywhere, in the same order. The fabric itself comes up on the rack's switch trays: Fabric
Manager must not run on the node, and while the switches are not up nothing on the node helps.

Surprising: under the ComputeDomains of NVIDIA's DRA driver each domain has daemons of its own, and one
that runs on the host keeps them from working: then the package has to be there and the service off
and masked. The list is read when the daemon starts, and never again. A domain with nodes that are
missing is "degraded" and works for those that are there: each node answers for its own daemon only.

Sources:
    NVIDIA IMEX guide (configuration, command service, quorum); nvidia-imex-580 580.178.04;
    kubernetes-sigs/dra-driver-nvidia-gpu, site/content/docs/prerequisites.md and its issue 1418 (order);
    NVIDIA/DCGM, dcgm_fields.h (what the daemon answers); Azure/AgentBaker#8839.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from gpustate import Disruption, Node, Plan, State, Step, diff, ops, shell
from gpustate.core.packages import Offer, StatePackages
from gpustate.core.planned import PlannedObservation
from gpustate.formats import fabric, fabric_config, imex
from gpustate.formats.fabric import COMPLETE, Topology
from gpustate.ops import keys
from gpustate.ops.library import original_path
from gpustate.probes import fabric as asking

UNIT = "nvidia-imex.service"
CONFIG_PATH = "/etc/nvidia-imex/config.cfg"
NODES_PATH = "/etc/nvidia-imex/nodes_config.cfg"
_NODES_KEY = "IMEX_NODE_CONFIG_FILE"
_COMMANDS_KEY = "IMEX_CMD_ENABLED"
READY = "READY"


def _kept(path: str) -> str:
    return f"{original_path(path)}.path"


_MASK = f"""[ ! -e /run/systemd/system ] || systemctl --no-reload disable --now {UNIT} 2>/dev/null || :
systemctl --no-reload mask {UNIT}
systemctl reset-failed {UNIT} 2>/dev/null || :
effect masked"""


def _wait(seconds: int) -> str:
    words = {"READY": READY, "LIMIT": str(seconds), "UNIT": UNIT}
    return shell.load("imex_wait", "gpustate.states", **words)


def _checked(config: Mapping[str, str | int | None]) -> Mapping[str, str | None]:
    return fabric_config.validate(config, fabric_config.IMEX)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed(asking.Follower):
    """The daemon, its package and its files, beside what decides."""

    fabric: str = ""  # "complete", or what NVML says instead
    domain: str = ""  # CLUSTER-UUID.CLIQUE
    addresses: tuple[str, ...] = ()  # of this node, and its names
    nodes: tuple[str, ...] | None = None  # as the file lists them; None: there is no file
    nodes_file: str = ""  # owner and mode of that file, where they are not as written
    config: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    masked: bool = False
    status: str = ""  # what the daemon says of itself; empty where it cannot be asked
    kept: bool = False  # its files as they were before gpustate are kept for giving them back
    channels: int = 0  # device nodes that CUDA programs open


class ImexRunning(State[Observed]):
    """IMEX serves the node's NVLink domain, on nodes of racks that join GPUs across nodes.

    Args:
        nodes: addresses of all nodes of the domain, this one among them; the same list, in the same
            order, for every node of the rack. One domain: give it to a group of the inventory.
        domains: the same for several domains: ``CLUSTER-UUID.CLIQUE``, as ``gpustate fabric`` and the
            label ``nvidia.com/gpu.clique`` have it, to the addresses of its nodes.
        managed_by: ``host``: the service runs. ``compute-domains``: NVIDIA's DRA driver runs daemons of
            its own, so that the package is there, and the service is off and masked.
        config: keys of ``config.cfg``, such as ``IMEX_CMD_UNIX_DOMAIN_PATH``, or ``null`` for one without a line; all
            others stay.
        hold: hold the package, so that it moves with the driver only.
        timeout_s: how long the daemon may take to be ready.

    Disruption:
        ``DRAIN`` where a daemon that runs is restarted or removed: jobs across nodes lose memory.

    Raises:
        PolicyError: IMEX has no such key, or an address is none.
        StepFailed: the daemon does not start, or is not ready in time.
    """

    name: ClassVar[str] = "imex"
    labels: ClassVar[Mapping[str, str]] = {
        "nodes": "nodes of the domain",
        "nodes_file": "file of the nodes",
        "config": "IMEX settings",
        "masked": "service is masked",
        "kept": "original configuration is kept",
    }
    needs: ClassVar[tuple[str, ...]] = ("driver",)
    after: ClassVar[tuple[str, ...]] = ("fabric-manager", "persistenced")
    known_after: ClassVar[tuple[str, ...]] = ("driver-repository", "driver")
    predicted: ClassVar[tuple[str, ...]] = ("package", "version")
    follows: ClassVar[str] = "driver"
    worst: ClassVar[Disruption] = Disruption.DRAIN
    disturbs: ClassVar[str] = "active"
    worst_if: ClassVar[str] = "its version or settings change"

    nodes: Annotated[tuple[str, ...], Field(strict=False), AfterValidator(imex.checked_nodes)] = ()
    domains: Annotated[
        Mapping[str, Annotated[tuple[str, ...], Field(strict=False)]],
        AfterValidator(imex.checked_domains),
    ] = Field(default_factory=dict)
    managed_by: Literal["host", "compute-domains"] = "host"
    config: Annotated[Mapping[str, str | int | None], AfterValidator(_checked)] = Field(
        default_factory=dict
    )
    hold: bool = True
    timeout_s: Annotated[int, Field(ge=1, le=3600)] = 60

    @model_validator(mode="after")
    def _said_once(self) -> Self:
        if self.nodes and self.domains:
            raise ValueError("nodes are set twice: in nodes and in domains")
        return self

    @property
    def _host(self) -> bool:
        return self.managed_by == "host"

    def matrix_facts(self, planned: PlannedObservation) -> dict[str, object]:
        return asking.matrix_facts("imex", planned) | {"imex_runs": planned.value("enabled")}

    def pinned(self, observed: Observed) -> Mapping[str, object]:
        return asking.pinned(self.config, observed.config, fabric_config.IMEX)

    def required_packages(self, offer: Offer, observed: Observed | None) -> StatePackages:
        names = (fabric.IMEX, f"{fabric.IMEX}-{{branch}}")
        return offer.at_driver(offer.chosen.get("driver"), *names)

    def probe(self, node: Node) -> Observed:
        sight = asking.look(node)
        fields = asking.follower(node, sight, fabric.IMEX, UNIT)
        config, listed = node.read_text(CONFIG_PATH), node.read_text(NODES_PATH)
        otherwise = node.otherwise(NODES_PATH)
        stats = node.stats(_kept(CONFIG_PATH), _kept(NODES_PATH))
        said = imex.parse(node.shell(imex.SCRIPT).stdout)
        if fields["image"]:
            fields["driver"] = said.library or None
        return Observed(
            **fields,
            fabric=fabric.summary(sight.fabrics),
            domain=fabric.domain(sight.fabrics),
            addresses=said.addresses,
            nodes=None if listed is None else imex.parse_nodes(listed),
            nodes_file=otherwise,
            config=fabric_config.read(config, (*self.config, _NODES_KEY, _COMMANDS_KEY)),
            masked=said.masked,
            status=said.status if fields["active"] else "",
            kept=bool(stats),
            channels=said.channels,
        )

    def _nodes(self, observed: Observed) -> tuple[str, ...]:
        """The nodes of this node's domain; empty where the policy names none."""
        return self.nodes or self.domains.get(observed.domain, ())

    def _keys(self, observed: Observed) -> dict[str, str | None]:
        """Keys to set: those asked for, and the list's path where the file names another one."""
        elsewhere = observed.config.get(_NODES_KEY) not in (None, NODES_PATH)
        asked = dict(_checked(self.config))
        return asked | ({_NODES_KEY: NODES_PATH} if elsewhere and self._host else {})

    def desired(self, observed: Observed) -> Observed:
        if self.absent:
            gone = replace(observed, package=None, version=None, held=False, kept=False)
            return replace(gone, active=False, enabled=False, masked=False)
        if not observed.needed:
            # Enabled by an RPM preset, it fails at every boot. One that runs has something to do.
            stops = observed.topology not in (Topology.ELSEWHERE.value, Topology.UNKNOWN.value)
            stops = stops and not observed.image and not observed.active
            return replace(observed, enabled=False) if stops else observed
        found = observed.fitting(fabric.IMEX)
        if found is None:
            return observed
        with_package = replace(
            observed,
            package=found[0],
            version=found[1],
            held=self.hold or observed.held,
            config={**observed.config, **self._keys(observed)},
        )
        if not self._host:
            return replace(with_package, masked=True, active=False, enabled=False)
        nodes = self._nodes(observed)
        starts = bool(nodes) or not observed.image
        return replace(
            with_package,
            nodes=nodes or observed.nodes,
            nodes_file="" if nodes else observed.nodes_file,
            masked=False,
            active=not observed.image or observed.active,
            enabled=starts or observed.enabled,
            status=READY if observed.status and self._answers(observed) else observed.status,
        )

    def _answers(self, observed: Observed) -> bool:
        said = self.config.get(_COMMANDS_KEY, observed.config.get(_COMMANDS_KEY))
        return str(said) != "0" and not observed.image

    def refuse(self, observed: Observed) -> str | None:
        if self.absent or not observed.needed or observed.driver is None:
            return None
        if 0 < fabric.branch(observed.driver) < fabric.IMEX_BRANCH:
            return f"IMEX comes with branch {fabric.IMEX_BRANCH}, and the driver is {observed.driver}; choose a newer driver"
        if not self._host or observed.image:
            return None
        return self._refuse_domain(observed) or observed.idle or None

    def _refuse_domain(self, observed: Observed) -> str | None:
        if observed.fabric != COMPLETE:
            return (
                "the NVLink fabric of the rack is not up "
                f"({observed.fabric or 'NVML does not report it'}); check the rack's switch trays "
                "(NMX-C), the cause is not on this node"
            )
        if not self.nodes and not self.domains:
            return (
                f"which nodes are in NVLink domain {observed.domain or '(unknown)'}? Give the state imex "
                "their addresses: nodes, or domains (gpustate fabric -i INVENTORY -o domains writes them)"
            )
        nodes = self._nodes(observed)
        if not nodes:
            there = ", ".join(sorted(self.domains)[:4])
            return (
                f"the node is in NVLink domain {observed.domain or '(not reported by NVML)'}, and domains names only "
                f"{there}; add it (gpustate fabric -i INVENTORY -o domains writes it)"
            )
        if observed.addresses and not imex.has_own(nodes, observed.addresses):
            own = ", ".join(observed.addresses[:4])
            return f"none of the {len(nodes)} nodes of the domain is this one (it has {own}); add this node's address to the list"
        return None

    def plan(self, observed: Observed) -> Plan:
        cost = Disruption.DRAIN if observed.active else Disruption.NONE
        stops = "" if observed.needed else "this node is not part of a rack"
        why_off = "the DRA driver runs its own daemons" if not self._host else stops
        unavailable = observed.unavailable(fabric.IMEX, "the node is part of a rack")
        return diff(
            observed,
            self.desired(observed),
            costs={
                **dict.fromkeys(("package", "version", "config", "nodes"), cost),
                "active": cost,
            },
            why={
                "version": f"the loaded driver is {observed.driver}",
                "nodes": f"NVLink domain {observed.domain}" if observed.domain else "",
                "active": why_off,
                "enabled": why_off,
                "masked": why_off,
                "status": "wait for it; it is not restarted",
                "kept": "the original files are restored",
            },
            notes=tuple(self._notes(observed)),
            refusal=None if self.absent else unavailable,
        )

    def _notes(self, observed: Observed) -> Iterator[str]:
        if self.absent or observed.image:
            return
        if not observed.needed:
            if observed.active:
                yield f"{UNIT} runs although the node is not part of a rack: left unchanged"
            return
        if self._host and not observed.channels:
            yield (
                "no IMEX channel device for CUDA: set NVreg_CreateImexChannel0=1 in the "
                "parameters of the state driver, or have the container stack create them"
            )

    def apply(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        wanted, moved = self.desired(observed), plan.fields
        if self.absent or not observed.needed:
            yield from self._stop(observed, moved)
            return
        if moved & {"package", "version"} and wanted.package and wanted.version:
            if observed.package is None:
                yield from (ops.KeepOriginal(path) for path in (CONFIG_PATH, NODES_PATH))
            yield ops.install(
                observed.manager,
                ((wanted.package, wanted.version),),
                hold=wanted.held,
                remove=tuple(filter(None, {observed.package} - {wanted.package})),
            )
        elif "held" in moved and wanted.package:
            yield ops.hold(observed.manager, (wanted.package,))
        if self._keys(observed) and moved & {"config", "package", "version"}:
            yield keys.set_keys(CONFIG_PATH, self._keys(observed))
        if not self._host:
            if moved & {"masked", "active", "enabled"}:
                yield ops.Run(_MASK, f"stop and mask {UNIT}", timeout=120)
            return
        if moved & {"nodes", "nodes_file"}:
            yield ops.PutText(NODES_PATH, imex.render(wanted.nodes or ()), mode=0o644)
        yield from self._start(moved, wanted)

    def _start(self, moved: frozenset[str], wanted: Observed) -> Iterator[Step]:
        if "masked" in moved:
            script = f"systemctl --no-reload unmask {UNIT}\nsystemd_reload\neffect unmasked"
            yield ops.Run(script, f"unmask {UNIT}", timeout=60)
        if "enabled" in moved:
            yield ops.EnableUnit(UNIT, now=False)
        if moved & {"active", "package", "version", "config", "nodes"}:
            yield ops.RestartUnit(UNIT, wait_s=60)
        if not moved <= {"held", "enabled", "masked", "nodes_file"} and self._answers(wanted):
            yield ops.Run(
                _wait(self.timeout_s),
                "wait until IMEX is ready",
                timeout=self.timeout_s * 6 + 60,
                running=True,
            )

    def _stop(self, observed: Observed, moved: frozenset[str]) -> Iterator[Step]:
        if moved & {"active", "enabled"}:
            yield ops.DisableUnit(UNIT)
        if "masked" in moved:
            script = f"systemctl --no-reload unmask {UNIT}\neffect unmasked"
            yield ops.Run(script, f"unmask {UNIT}", timeout=60)
        if moved & {"package", "held"} and observed.package:
            yield ops.remove(observed.manager, (observed.package,))
        if "kept" in moved:
            yield from (ops.RestoreOriginal(path) for path in (CONFIG_PATH, NODES_PATH))

    def first_boot(self, observed: Observed) -> Iterator[Step]:
        if not self.absent and self._host and observed.needed and self.nodes:
            yield ops.StartUnit(UNIT, wait_s=60)
            yield ops.Run(_wait(self.timeout_s), "wait until IMEX is ready", 600, running=True)
