"""The chart's values inside another program's file."""

from __future__ import annotations

from dataclasses import dataclass

from gpustate.gpu_operator.documents import Item


@dataclass(frozen=True, slots=True)
class ChartValues:
    """Values of the chart, and the release and objects that their wrapper names.

    Args:
        values: of the chart.
        wrapper: what contains them, for messages: ``the HelmRelease gpu-operator``.
        release: of the Operator, as tagged; empty if the wrapper does not set it.
        notes: each with its place.
        used: kind and name of the objects whose values were merged.
    """

    values: Item
    wrapper: str
    release: str = ""
    notes: tuple[str, ...] = ()
    used: tuple[tuple[str, str], ...] = ()


__all__ = ["ChartValues"]
