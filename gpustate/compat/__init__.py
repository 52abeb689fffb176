"""The compatibility matrix: compatible versions, GPUs, kernels and settings, with sources.

Pure except for :mod:`~gpustate.compat.store`, which reads the files. A rule is a record in ``data/``
(:mod:`~gpustate.compat.rules`): a condition over facts (:mod:`~gpustate.compat.facts`,
:mod:`~gpustate.compat.conditions`), a verdict, the reason, the remedy, a source and two tests. With unknown facts
the result of a rule is "cannot tell", never "fits" (:mod:`~gpustate.compat.check`)::

    from gpustate import compat

    report = compat.check(compat.facts({"driver": "580.65.06", "gpu": "B200"}))
    report.blocks
"""

from __future__ import annotations

from gpustate.compat.check import Report, Result, check
from gpustate.compat.facts import FACTS, facts
from gpustate.compat.rules import Rule, RuleSet, Verdict
from gpustate.compat.store import load, load_named

__all__ = [
    "FACTS",
    "Report",
    "Result",
    "Rule",
    "RuleSet",
    "Verdict",
    "check",
    "facts",
    "load",
    "load_named",
]
