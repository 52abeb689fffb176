"""Shell that runs on nodes, kept as files: one ``.sh`` file a fragment, checked by shellcheck in the tests.

A fragment is POSIX sh for dash and busybox, beside the module that uses it. What a caller passes in becomes an
assignment before it::

    load("gds_driver", "gpustate.states", MODULE="nvidia-fs")

gives the text of ``gds_driver.sh`` in that package behind the line ``MODULE=nvidia-fs``. What cannot be a variable,
such as a pattern of ``case``, is a placeholder ``@NAME@`` for :func:`fill`. A file begins with comments
that say what it prints or does and which variables it reads; lines that are comments are not sent to nodes. A file
that begins with ``#!/bin/sh`` is a program of its own and is read whole with :func:`program`.
"""

from __future__ import annotations

import importlib
import os
import re
import shlex
import sys
from functools import cache
from typing import Any

_PLACEHOLDER = re.compile(r"^[ \t]*@([A-Z][A-Z_]*)@\n|@([A-Z][A-Z_]*)@", re.MULTILINE)


@cache
def program(name: str, package: str) -> str:
    """The program ``name.sh``, as it is; arguments as for :func:`load`."""
    # A module loads its fragments while its package is still being imported.
    module = sys.modules.get(package) or importlib.import_module(package)
    # On a node the packages are in a zip file.
    loader: Any = sys.modules[__name__].__loader__
    data: bytes = loader.get_data(os.path.join(module.__path__[0], f"{name}.sh"))
    return data.decode("utf-8")


@cache
def _text(name: str, package: str) -> str:
    lines = program(name, package).splitlines(keepends=True)
    return "".join(line for line in lines if not line.lstrip().startswith("#"))


def load(name: str, package: str, **variables: str) -> str:
    """The fragment ``name.sh``, without its comments.

    Args:
        name: file name without ``.sh``.
        package: Python package in whose folder the file is.
        variables: shell variables it reads, set to these values ahead of it, quoted.
    """
    assignments = "".join(f"{key}={shlex.quote(value)}\n" for key, value in variables.items())
    return assignments + _text(name, package)


def fill(text: str, /, **values: str) -> str:
    """Replace each placeholder ``@NAME@`` by the value of that name, in one pass: values are not searched.

    A placeholder that is alone on its line makes room for whole lines, or for none.

    Raises:
        KeyError: a placeholder has no value.
    """

    def value(match: re.Match[str]) -> str:
        line, inside = match.groups()
        if line is None:
            return values[inside]
        lines = values[line]
        if not lines or lines.endswith("\n"):
            return lines
        return match[0].replace(f"@{line}@", lines)

    return _PLACEHOLDER.sub(value, text)


__all__ = ["fill", "load", "program"]
