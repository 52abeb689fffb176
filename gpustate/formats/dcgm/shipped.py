"""Alert rules shipped with gpustate, and the counters file they need."""

from __future__ import annotations

from importlib import resources

from gpustate.formats.dcgm.counters import Counter, read


def rules() -> str:
    """Alert rules for Prometheus, as YAML."""
    return _text("rules.yaml")


def counters_file() -> str:
    """The counters file for dcgm-exporter."""
    return _text("counters.csv")


def counters() -> tuple[Counter, ...]:
    """The fields in that file."""
    return read(counters_file(), "counters.csv")


def _text(name: str) -> str:
    return (resources.files("gpustate.formats.dcgm") / name).read_text("utf-8")
