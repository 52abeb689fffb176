"""DCGM's counters file, what GPUs can report of it, and whether an exporter's answer has all of it.

dcgm-exporter is given a file of fields and answers with Prometheus' text format. Three things go
wrong with it in silence: a field that a GPU cannot report is left out without a word, a GPU that
hangs disappears instead of turning bad, and an alert on a field that nobody enabled never fires.

Sources:
    NVIDIA/dcgm-exporter 4.5.3-4.8.2 (d5e5f51): internal/pkg/counters/counter_config.go,
    internal/pkg/rendermetrics/render_metrics.go; NVIDIA/DCGM 4.6.0 tree: dcgmlib/dcgm_fields.h.
"""

from gpustate.formats.dcgm.counters import Checked, Counter, as_text, check, read
from gpustate.formats.dcgm.exposition import Sample, parse
from gpustate.formats.dcgm.fields import Field, find
from gpustate.formats.dcgm.proof import Missing, missing, summed_up
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
    "missing",
    "parse",
    "read",
    "summed_up",
    "unfit",
]
