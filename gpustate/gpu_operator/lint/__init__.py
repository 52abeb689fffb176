"""The linter for files of the GPU Operator: every leaf that will not do what its writer thinks.

:func:`lint` reads a text as :func:`gpustate.gpu_operator.read` does, goes on after a problem where
that one stops, and changes nothing. What it finds are :class:`Finding`; :mod:`document` and
:mod:`sarif` print them.
"""

from __future__ import annotations

from gpustate.gpu_operator.lint.finding import RULES, Finding, Level, Report, Rule, Use
from gpustate.gpu_operator.lint.linting import lint

__all__ = ["RULES", "Finding", "Level", "Report", "Rule", "Use", "lint"]
