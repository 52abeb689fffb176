"""The compatibility matrix: which versions, GPUs, kernels and settings go together, and who says so.

Pure but for :mod:`~gpustate.compat.store`, which reads the files. A rule is a record in ``data/``
(:mod:`~gpustate.compat.rules`): a condition over facts (:mod:`~gpustate.compat.facts`,
:mod:`~gpustate.compat.conditions`), a verdict, the reason, the way out, a source and two tests. What
is not known makes a rule "cannot tell", never "fits" (:mod:`~gpustate.compat.check`)::

    from gpustate import compat

    report = compat.check(compat.facts({"driver": "580.65.06", "gpu": "B200"}))
    report.blocks
"""

from __future__ import annotations

from gpustate.compat.check import Report, Result, check
from gpustate.compat.facts import FACTS, facts
from gpustate.compat.rules import Rule, RuleSet, Verdict
from gpustate.compat.store import load

__all__ = ["FACTS", "Report", "Result", "Rule", "RuleSet", "Verdict", "check", "facts", "load"]
