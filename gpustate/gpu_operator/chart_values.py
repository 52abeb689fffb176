"""The chart's values as a wrapper holds them."""

from __future__ import annotations

from dataclasses import dataclass

from gpustate.gpu_operator.documents import Item


@dataclass(frozen=True, slots=True)
class ChartValues:
    """Values of the chart, and what their wrapper says about them.

    Args:
        values: of the chart.
        wrapper: what held them, for sentences: ``the HelmRelease gpu-operator``.
        release: of the Operator, as it is tagged; empty where the wrapper does not say it.
        notes: each with its place.
        used: kind and name of the objects whose values are among them.
    """

    values: Item
    wrapper: str
    release: str = ""
    notes: tuple[str, ...] = ()
    used: tuple[tuple[str, str], ...] = ()


__all__ = ["ChartValues"]
