"""The linter for files of the GPU Operator: every key without the effect its author expects.

:func:`lint` reads a text like :func:`gpustate.gpu_operator.read`, but continues after a problem. It
returns findings (:class:`Finding`), which :mod:`document` and :mod:`sarif` print.
"""

from __future__ import annotations

from gpustate.gpu_operator.lint.finding import RULES, Finding, Level, Report, Rule, Use
from gpustate.gpu_operator.lint.linting import lint

__all__ = ["RULES", "Finding", "Level", "Report", "Rule", "Use", "lint"]
