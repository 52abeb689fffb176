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
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field

from gpustate import Node, Step, ops, shell
from gpustate.bases.fabric import FabricService, FabricServiceState
from gpustate.core.parameter_errors import together
from gpustate.documents import JsonView
from gpustate.formats import fabric, fabric_config, imex
from gpustate.formats.fabric import COMPLETE, Topology

UNIT = "nvidia-imex.service"
CONFIG_PATH = "/etc/nvidia-imex/config.cfg"
NODES_PATH = "/etc/nvidia-imex/nodes_config.cfg"
_NODES_KEY = "IMEX_NODE_CONFIG_FILE"
_COMMANDS_KEY = "IMEX_CMD_ENABLED"
READY = "READY"

_MASK = f"""[ ! -e /run/systemd/system ] || systemctl --no-reload disable --now {UNIT} 2>/dev/null || :
systemctl --no-reload mask {UNIT}
systemctl reset-failed {UNIT} 2>/dev/null || :
effect masked"""


def _unmask(reload: str = "") -> ops.Run:
    script = f"systemctl --no-reload unmask {UNIT}\n{reload}effect unmasked"
    return ops.Run(script, f"unmask {UNIT}", timeout=60)


def _wait(seconds: int) -> str:
    words = {"READY": READY, "LIMIT": str(seconds), "UNIT": UNIT}
    return shell.load("imex_wait", "gpustate.states", **words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed(FabricService):
    """The daemon, its package and its files, beside what decides."""

    fabric: str = ""  # "complete", or what NVML says instead
    domain: str = ""  # CLUSTER-UUID.CLIQUE
    addresses: tuple[str, ...] = ()  # of this node, and its names
    nodes: tuple[str, ...] | None = None  # as the file lists them; None: there is no file
    nodes_file: str = ""  # owner and mode of that file, where they are not as written
    masked: bool = False
    status: str = ""  # what the daemon says of itself; empty where it cannot be asked
    channels: int = 0  # device nodes that CUDA programs open


class ImexRunning(FabricServiceState[Observed]):
    """IMEX serves the node's NVLink domain, on nodes of racks that join GPUs across nodes.

    Args:
        nodes: addresses of all nodes of the domain, this one among them; the same list, in the same
            order, for every node of the rack. One domain: give it to a group of the inventory.
        domains: the same for several domains: ``CLUSTER-UUID.CLIQUE``, as ``gpustate node fabric`` and the
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
    }
    after: ClassVar[tuple[str, ...]] = ("fabric-manager", "persistenced")
    unit: ClassVar[str] = UNIT
    stem: ClassVar[str] = fabric.IMEX
    reason: ClassVar[str] = "the node is part of a rack"
    originals: ClassVar[tuple[str, ...]] = (CONFIG_PATH, NODES_PATH)
    restarts: ClassVar[frozenset[str]] = FabricServiceState.restarts | {"nodes"}
    cleared: ClassVar[JsonView] = {"kept": False, "masked": False}
    fact: ClassVar[str] = "imex"
    config_kinds: ClassVar[Mapping[str, str]] = fabric_config.IMEX

    nodes: Annotated[tuple[str, ...], Field(strict=False), AfterValidator(imex.checked_nodes)] = ()
    domains: Annotated[
        Mapping[str, Annotated[tuple[str, ...], Field(strict=False)]],
        AfterValidator(imex.checked_domains),
    ] = Field(default_factory=dict)
    managed_by: Literal["host", "compute-domains"] = "host"
    timeout_s: Annotated[int, Field(ge=1, le=3600)] = 60

    @together
    def _said_once(self) -> Self:
        if self.nodes and self.domains:
            raise ValueError("nodes are set twice: in nodes and in domains")
        return self

    @property
    def _host(self) -> bool:
        return self.managed_by == "host"

    def probe(self, node: Node) -> Observed:
        sight, fields = self.observe_fabric(node, _NODES_KEY, _COMMANDS_KEY)
        listed, otherwise = node.read_text(NODES_PATH), node.otherwise(NODES_PATH)
        report = imex.parse(node.shell(imex.SCRIPT).stdout)
        if fields["image"]:
            fields["driver"] = report.library or None
        return Observed(
            **fields,
            fabric=fabric.summary(sight.fabrics),
            domain=fabric.domain(sight.fabrics),
            addresses=report.addresses,
            nodes=None if listed is None else imex.parse_nodes(listed),
            nodes_file=otherwise,
            masked=report.masked,
            status=report.status if fields["active"] else "",
            channels=report.channels,
        )

    def _nodes(self, observed: Observed) -> tuple[str, ...]:
        """The nodes of this node's domain; empty where the policy names none."""
        return self.nodes or self.domains.get(observed.domain, ())

    def config_keys(self, observed: Observed) -> dict[str, str | None]:
        # The path of the list too, where the file names another one.
        elsewhere = observed.config.get(_NODES_KEY) not in (None, NODES_PATH)
        nodes = {_NODES_KEY: NODES_PATH} if elsewhere and self._host else {}
        return super().config_keys(observed) | nodes

    def elsewhere(self, observed: Observed) -> Observed:
        # Enabled by an RPM preset, it fails at every boot. One that runs has something to do.
        stops = observed.topology not in (Topology.ELSEWHERE.value, Topology.UNKNOWN.value)
        stops = stops and not observed.image and not observed.active
        return replace(observed, at_boot=False) if stops else observed

    def settings(self, observed: Observed) -> JsonView:
        settings, nodes = super().settings(observed), self._nodes(observed)
        if not self._host:
            return {**settings, "masked": True, "active": False, "at_boot": False}
        return {
            **settings,
            "nodes": nodes or observed.nodes,
            "nodes_file": "" if nodes else observed.nodes_file,
            "masked": False,
            "at_boot": observed.at_boot or bool(nodes) or not observed.image,
            "status": READY if observed.status and self._answers(observed) else observed.status,
        }

    def _answers(self, observed: Observed) -> bool:
        enabled = self.config.get(_COMMANDS_KEY, observed.config.get(_COMMANDS_KEY))
        return str(enabled) != "0" and not observed.image

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
                "their addresses: nodes, or domains (gpustate node fabric -i INVENTORY -o domains writes them)"
            )
        nodes = self._nodes(observed)
        if not nodes:
            domains = ", ".join(sorted(self.domains)[:4])
            return (
                f"the node is in NVLink domain {observed.domain or '(not reported by NVML)'}, and domains names only "
                f"{domains}; add it (gpustate node fabric -i INVENTORY -o domains writes it)"
            )
        if observed.addresses and not imex.has_own(nodes, observed.addresses):
            addresses = ", ".join(observed.addresses[:4])
            return f"none of the {len(nodes)} nodes of the domain is this one (it has {addresses}); add this node's address to the list"
        return None

    def why(self, observed: Observed) -> Mapping[str, str]:
        stops = "" if observed.needed else "this node is not part of a rack"
        off = "the DRA driver runs its own daemons" if not self._host else stops
        return {
            "version": f"the driver is {observed.driver}",
            "nodes": f"NVLink domain {observed.domain}" if observed.domain else "",
            **dict.fromkeys(("active", "at_boot", "masked"), off),
            "status": "wait for it; it is not restarted",
            "kept": "the original files are restored",
        }

    def notes(self, observed: Observed) -> Iterator[str]:
        if observed.image:
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

    def restart(self, observed: Observed) -> Step:
        return ops.RestartUnit(UNIT, wait_s=60)

    def configure(
        self, observed: Observed, desired: Observed, moved: frozenset[str]
    ) -> Iterator[Step]:
        yield from super().configure(observed, desired, moved)
        if self._host and moved & {"nodes", "nodes_file"}:
            yield ops.PutText(NODES_PATH, imex.render(desired.nodes or ()), mode=0o644)

    def start(self, observed: Observed, desired: Observed, moved: frozenset[str]) -> Iterator[Step]:
        if not self._host:
            if moved & {"masked", "active", "at_boot"}:
                yield ops.Run(_MASK, f"stop and mask {UNIT}", timeout=120)
            return
        if "masked" in moved:
            yield _unmask("systemd_reload\n")
        yield from super().start(observed, desired, moved)
        if not moved <= {"held", "at_boot", "masked", "nodes_file"} and self._answers(desired):
            yield ops.RunLive(
                _wait(self.timeout_s), "wait until IMEX is ready", timeout=self.timeout_s * 6 + 60
            )

    def remove(self, observed: Observed, moved: frozenset[str]) -> Iterator[Step]:
        if "masked" in moved:
            yield _unmask()
        yield from super().remove(observed, moved)

    def first_boot(self, observed: Observed) -> Iterator[Step]:
        if not self.absent and self._host and observed.needed and self.nodes:
            yield ops.StartUnit(UNIT, wait_s=60)
            yield ops.RunLive(_wait(self.timeout_s), "wait until IMEX is ready", 600)
