"""A step that sets keys in a file of ``KEY=value`` lines and leaves every other byte.

On the node, for the file may be brought by a package that is installed a step earlier: what it holds
is not known when the steps are planned.

Surprising: such a file may have lines that end in CR LF, and may lack the last line break. Both stay
as they are; a key that is defined twice is set in both places, for which one counts is the reader's
secret.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from gpustate import shell
from gpustate.core.step import Step
from gpustate.errors import PolicyError
from gpustate.ops.steps import Run

_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_SCRIPT = shell.load("keys", "gpustate.ops")


def set_keys(path: str, values: Mapping[str, str | None]) -> Step:
    """Set some keys of a file: in place where their lines are, else at the end; ``None`` removes the lines.

    Raises:
        PolicyError: a key or value that cannot stand in a line.
    """
    lines = [f"f={shlex.quote(path)}\n{_SCRIPT}"]
    for key, value in values.items():
        if not _KEY.fullmatch(key) or any(ord(char) < 32 for char in value or ""):
            raise PolicyError(f"{key}={value!r} is not a line for {path}")
        if value is None:
            lines.append(f"unset_key {key}\n")
            continue
        for_sed = re.sub(r"([\\/&])", r"\\\1", value)
        lines.append(f"set_key {key} {shlex.quote(for_sed)} {shlex.quote(value)}\n")
    lines.append('put "$f" - - <"$k"; rm -f "$k"\n')
    return Run("".join(lines), f"set {', '.join(values)} in {path}", timeout=60)
