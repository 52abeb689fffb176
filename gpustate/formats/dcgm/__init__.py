"""DCGM's counters file, the fields that GPUs support, and the completeness of an exporter's metrics.

dcgm-exporter reads a file of fields and serves metrics in Prometheus' text format. Three errors are silent: a
field that a GPU does not support is omitted, a GPU that hangs disappears from the metrics, and an alert on a
field that is not enabled never fires.

Sources:
    NVIDIA/dcgm-exporter 4.5.3-4.8.2 (d5e5f51): internal/pkg/counters/counter_config.go,
    internal/pkg/rendermetrics/render_metrics.go; NVIDIA/DCGM 4.6.0 tree: dcgmlib/dcgm_fields.h.
"""

from gpustate.formats.dcgm.completeness import Missing, find_missing, summed_up
from gpustate.formats.dcgm.counters import Checked, Counter, as_text, check, read
from gpustate.formats.dcgm.exposition import Sample, parse
from gpustate.formats.dcgm.fields import Field, find
from gpustate.formats.dcgm.reportable import Unfit, unfit

__all__ = [
    "Checked",
    "Counter",
    "Field",
    "Missing",
    "Sample",
    "Unfit",
    "as_text",
    "check",
    "find",
    "find_missing",
    "parse",
    "read",
    "summed_up",
    "unfit",
]
