"""The step that makes files readable again that programs of all users read."""

from __future__ import annotations

import shlex

from gpustate.ops.steps import Run


def make_readable(*paths: str) -> Run:
    """Give files and folders to root, for all to read."""
    words = shlex.join(paths)
    text = f"chown 0:0 {words}; chmod u+w,a+rX,go-w {words}"
    return Run(text, f"make {', '.join(paths)} readable by all users", timeout=30, shown=text)
