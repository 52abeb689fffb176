"""The base of services that an NVLink fabric needs in the version of the driver: Fabric Manager and IMEX."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

from pydantic import Field, field_validator

from gpustate.bases.service import DriverService, DriverServiceState
from gpustate.core.change import Disruption
from gpustate.core.node import Node
from gpustate.core.planned import PlannedObservation
from gpustate.core.step import Step
from gpustate.documents import Json, JsonView
from gpustate.formats import fabric, fabric_config
from gpustate.ops import keys
from gpustate.ops.library import original_path
from gpustate.ops.steps import KeepOriginal, RestoreOriginal
from gpustate.probes import fabric as asking


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricService(DriverService):
    """A service of the fabric, its package and its configuration."""

    topology: str  # interconnect of the GPUs; a value of Topology
    config: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    kept: bool = False  # its files as they were before gpustate are kept, to be restored


F = TypeVar("F", bound=FabricService)


class FabricServiceState(DriverServiceState[F], Generic[F]):
    """A service of the fabric runs where the topology needs it.

    Class attributes:
        fact: the fact of the compatibility matrix that is its version.
        originals: files of its package that are kept before that comes, and restored after its removal; first its configuration.
        config_kinds: keys of that, with their types.

    Args:
        config: keys of its configuration; ``null`` for one without a line. All others stay.
    """

    worst: ClassVar[Disruption] = Disruption.DRAIN
    restarts: ClassVar[frozenset[str]] = frozenset({"active", "package", "version", "config"})
    cleared: ClassVar[JsonView] = {"kept": False}
    fact: ClassVar[str] = ""
    originals: ClassVar[tuple[str, ...]] = ()
    config_kinds: ClassVar[Mapping[str, str]] = {}

    config: Mapping[str, str | int | None] = Field(default_factory=dict)

    @field_validator("config")
    @classmethod
    def _has_known_keys(
        cls, config: Mapping[str, str | int | None]
    ) -> Mapping[str, str | int | None]:
        return fabric_config.validate(config, cls.config_kinds)

    def config_keys(self, observed: F) -> dict[str, str | None]:
        """MAY: keys to set."""
        return fabric_config.validate(self.config, self.config_kinds)

    def settings(self, observed: F) -> JsonView:
        return {"config": {**observed.config, **self.config_keys(observed)}}

    def matrix_facts(self, planned: PlannedObservation) -> dict[str, object]:
        runs = planned.value("at_boot")
        return asking.matrix_facts(self.fact, planned) | {f"{self.fact}_runs": runs}

    def pinned(self, observed: F) -> Mapping[str, object]:
        return asking.pinned(self.config, observed.config, self.config_kinds)

    def observe_fabric(self, node: Node, *more: str) -> tuple[fabric.Sight, Json]:
        """What decides, and the fields of :class:`FabricService`; ``more``: keys to read beside the policy's."""
        sight, fields = asking.observe(node), self.read(node)
        text = node.read_text(self.originals[0])
        original_records = node.stats(*(f"{original_path(path)}.path" for path in self.originals))
        image = fabric.may_need(sight.gpu_ids, self.stem)
        return sight, {
            **fields,
            "topology": sight.topology.value,
            "needed": image if fields["image"] else self.stem in sight.topology.packages,
            "config": fabric_config.read(text, (*self.config, *more)),
            "kept": bool(original_records),
        }

    def install(self, observed: F, desired: F, moved: frozenset[str]) -> Iterator[Step]:
        if desired.package and observed.package is None:
            yield from map(KeepOriginal, self.originals)
        yield from super().install(observed, desired, moved)

    def remove(self, observed: F, moved: frozenset[str]) -> Iterator[Step]:
        yield from super().remove(observed, moved)
        if "kept" in moved:
            yield from map(RestoreOriginal, self.originals)

    def configure(self, observed: F, desired: F, moved: frozenset[str]) -> Iterator[Step]:
        # A new package may replace the file.
        if self.config_keys(observed) and moved & {"config", "package", "version"}:
            yield keys.set_keys(self.originals[0], self.config_keys(observed))
