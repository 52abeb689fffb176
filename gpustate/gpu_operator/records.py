"""The record of every leaf of every kind: what the reader, the linter and the manual go by.

One place that puts together what the tables say (type, choices, default of the API server, what
becomes of it), what is counted (since which release) and what the chart fills in.

Sources:
    NVIDIA/gpu-operator v26.7: config/crd/bases, deployments/gpu-operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from gpustate.gpu_operator import history
from gpustate.gpu_operator.blocks import Fate, Leaf, Leaves
from gpustate.gpu_operator.gpucluster import GPU_CLUSTER
from gpustate.gpu_operator.helm import HELM
from gpustate.gpu_operator.leaves import CLUSTER_POLICY, NVIDIA_DRIVER

TABLES: Mapping[str, Leaves] = {
    "clusterpolicy": CLUSTER_POLICY,
    "nvidiadriver": NVIDIA_DRIVER,
    "gpucluster": GPU_CLUSTER,
    "helm": HELM,
}
#: How a kind is called in sentences.
TITLES = {
    "clusterpolicy": "ClusterPolicy",
    "nvidiadriver": "NVIDIADriver",
    "gpucluster": "GPUCluster",
    "helm": "Helm values",
}


@dataclass(frozen=True, slots=True)
class Record:
    """One leaf of one kind.

    Args:
        kind: ``clusterpolicy``, ``nvidiadriver``, ``gpucluster`` or ``helm``.
        path: from ``spec`` (of values: from the top), ``[]`` for elements of lists.
        leaf: type, choices, minimum, and what becomes of it.
        default: what holds when the file does not say.
        filled_by: ``chart`` or ``API server``; empty: nobody, and ``default`` is ``None``.
        since: the release that brought it.
    """

    kind: str
    path: str
    leaf: Leaf
    default: Any
    filled_by: str
    since: str

    @property
    def fate(self) -> Fate:
        """What becomes of it."""
        return self.leaf.fate


def records(kind: str, release: str = "") -> Mapping[str, Record]:
    """Every record of a kind, by path, in the order of the table.

    Args:
        kind: of file.
        release: whose defaults they have; the newest by default.
    """
    return _records(kind, release or history.newest())


@cache
def _records(kind: str, release: str) -> Mapping[str, Record]:
    return {path: _record(kind, path, leaf, release) for path, leaf in TABLES[kind].items()}


def _record(kind: str, path: str, leaf: Leaf, release: str) -> Record:
    default = leaf.default
    if release != history.newest():
        default = history.filled("clusterpolicy" if kind == "helm" else kind, path, release)
    filled_by = "API server" if default is not None else ""
    if kind == "helm":
        mapping = leaf.type.startswith(("map", "any"))
        given, of_chart = history.chart_default(path, mapping=mapping, release=release)
        if given:
            default, filled_by = of_chart, "chart"
    return Record(kind, path, leaf, default, filled_by, history.since(kind, path))
