"""The text files of policies."""

from __future__ import annotations

from gpustate.errors import PolicyError
from gpustate.files import TextFiles

#: Names of standard input.
STDIN = "-"
_FILES = TextFiles("policy", PolicyError, limit_mib=5)

#: The text of another file: values, a patch. It may be empty.
text_of = _FILES.text


def head(path: str) -> str:
    """The beginning of a text file; empty for a pipe, which can be read only once."""
    return "" if path == STDIN else _FILES.head(path)


def read_text(path: str) -> str:
    """Return the text of ``path``.

    Raises:
        PolicyError: not there, not readable, too large, binary, not UTF-8, or empty.
    """
    text = _FILES.text("/dev/stdin" if path == STDIN else path)
    if not text.strip():
        raise PolicyError("is empty, wanted a policy", place=path)
    return text
