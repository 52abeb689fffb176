"""Shell that runs on nodes, kept as files: one ``.sh`` file a fragment, checked by shellcheck in the tests.

A fragment is POSIX sh for dash and busybox. What a caller passes in becomes an assignment before it::

    load("initramfs_images", CACHE="/var/lib/gpustate/cache/initramfs")

gives the text of ``initramfs_images.sh`` behind the line ``CACHE=/var/lib/gpustate/cache/initramfs``. A file begins
with comments that say what it prints and which variables it reads; lines that are comments are not sent to nodes.
"""

from __future__ import annotations

import shlex
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent


@cache
def _text(name: str) -> str:
    lines = (_FOLDER / f"{name}.sh").read_text("utf-8").splitlines(keepends=True)
    return "".join(line for line in lines if not line.lstrip().startswith("#"))


def load(name: str, **variables: str) -> str:
    """The fragment ``name.sh``, without its comments.

    Args:
        name: file name without ``.sh``.
        variables: shell variables it reads, set to these values ahead of it, quoted.
    """
    given = "".join(f"{key}={shlex.quote(value)}\n" for key, value in variables.items())
    return given + _text(name)


__all__ = ["load"]
