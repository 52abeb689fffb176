"""The text files of policies."""

from __future__ import annotations

import os

from gpustate.errors import PolicyError
from gpustate.files import TextFiles

STDIN = "-"
#: The chart of the GPU Operator in place of a file: all its values are at their defaults.
CHART = "gpu-operator"
_FILES = TextFiles("policy", PolicyError, limit_mib=5)

#: The text of another file: values, a patch. It may be empty.
text_of = _FILES.text


def is_chart(source: str) -> bool:
    """Whether a policy is the chart, by its name in Helm's commands."""
    return source in (CHART, f"nvidia/{CHART}") and not os.path.exists(source)


def head(path: str) -> str:
    """The beginning of a text file; empty for a pipe, which can be read only once."""
    return "" if path == STDIN or is_chart(path) else _FILES.head(path)


def read_text(path: str) -> str:
    """Return the text of ``path``; an empty file has no values, and an empty pipe is that of a command that failed.

    Raises:
        PolicyError: not there, not readable, too large, binary, not UTF-8, or an empty pipe.
    """
    if is_chart(path):
        return ""
    text = _FILES.text("/dev/stdin" if path == STDIN else path)
    if not text.strip() and not os.path.isfile(path):
        raise PolicyError("is empty, wanted a policy", place=path)
    return text
