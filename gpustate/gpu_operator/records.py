"""The record of every field of every kind, for the reader, the linter and the manual.

It combines the tables (type, choices, the API server's default, support), the history (first release) and
the chart's defaults.

Sources:
    NVIDIA/gpu-operator v26.7: config/crd/bases, deployments/gpu-operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from gpustate.core.layers import REMOVED
from gpustate.gpu_operator import history
from gpustate.gpu_operator.blocks import Field, Fields, Support
from gpustate.gpu_operator.fields import CLUSTER_POLICY, NVIDIA_DRIVER
from gpustate.gpu_operator.gpucluster import GPU_CLUSTER
from gpustate.gpu_operator.helm import HELM

TABLES: Mapping[str, Fields] = {
    "clusterpolicy": CLUSTER_POLICY,
    "nvidiadriver": NVIDIA_DRIVER,
    "gpucluster": GPU_CLUSTER,
    "helm": HELM,
}
#: Kinds in messages.
TITLES = {
    "clusterpolicy": "ClusterPolicy",
    "nvidiadriver": "NVIDIADriver",
    "gpucluster": "GPUCluster",
    "helm": "Helm values",
}


@dataclass(frozen=True, slots=True)
class Record:
    """One field of one kind.

    Args:
        kind: ``clusterpolicy``, ``nvidiadriver``, ``gpucluster`` or ``helm``.
        path: from ``spec`` (of values: from the top), ``[]`` for elements of lists.
        field: type, choices, minimum, and support.
        default: the value if the file does not set it.
        filled_by: ``chart`` or ``API server``; empty if there is no default.
        since: the release that added it.
    """

    kind: str
    path: str
    field: Field
    default: Any
    filled_by: str
    since: str

    @property
    def support(self) -> Support:
        """How gpustate supports it."""
        return self.field.support


def records(kind: str, release: str = "") -> Mapping[str, Record]:
    """All records of a kind by path, in the order of the table.

    Args:
        kind: of file.
        release: whose defaults apply; by default the newest.
    """
    return _records(kind, release or history.newest())


@cache
def _records(kind: str, release: str) -> Mapping[str, Record]:
    return {path: _record(kind, path, field, release) for path, field in TABLES[kind].items()}


def _record(kind: str, path: str, field: Field, release: str) -> Record:
    default = field.default
    if release != history.newest():
        default = history.api_default("clusterpolicy" if kind == "helm" else kind, path, release)
    filled_by = "API server" if default is not None else ""
    if kind == "helm":
        mapping = field.type.startswith(("map", "any"))
        given, of_chart = history.chart_default(path, mapping=mapping, release=release)
        if given:
            default, filled_by = of_chart, "chart"
    return Record(kind, path, field, default, filled_by, history.since(kind, path))


def unset(kind: str, release: str, path: tuple[str, ...]) -> Any:
    """The value at a path while a file does not set it: a default, or an empty one; ``REMOVED``: no such key."""
    table, text = records(kind, release), ".".join(path)
    record = table.get(text)
    if record is not None and record.default is not None:
        return record.default
    types: dict[str, Any] = {"list": [], "map": {}}
    if record is not None:
        return types.get(record.field.type.partition("[")[0])
    if any(one.startswith(f"{text}[]") for one in table):
        return history.chart_default(text, release=release)[1] if kind == "helm" else []
    return {} if any(one.startswith(f"{text}.") for one in table) else REMOVED
