"""The others' virtual environments, made once in the user's cache folder, with fixed versions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PACKAGES = {
    "pyinfra": ("pyinfra==3.10.0", "asyncssh==2.24.1"),
    "ansible": ("ansible-core==2.19.14",),
    "mitogen": ("ansible-core==2.19.14", "mitogen==0.3.54"),
}


def folder() -> Path:
    """Where they are; ``GPUSTATE_BENCH_ENVIRONMENTS`` names another place."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    asked = os.environ.get("GPUSTATE_BENCH_ENVIRONMENTS")
    return Path(asked) if asked else Path(cache) / "gpustate-bench"


def programs(name: str) -> Path:
    """The folder of an environment's programs; made, and filled by pip, when it is not there yet.

    Raises:
        OSError: it cannot be made; the text says why.
    """
    place = folder() / name
    done = place / ".done"
    wanted = "\n".join(PACKAGES[name])
    if not done.is_file() or done.read_text() != wanted:
        _make([sys.executable, "-m", "venv", "--clear", str(place)])
        pip = [str(place / "bin/python"), "-m", "pip", "install", "--quiet"]
        _make([*pip, "--disable-pip-version-check", *PACKAGES[name]])
        done.write_text(wanted)
    return place / "bin"


def _make(words: list[str]) -> None:
    made = subprocess.run(words, capture_output=True, text=True)
    if made.returncode:
        last = (made.stderr or made.stdout).strip().splitlines()[-1:]
        raise OSError(f"{' '.join(words[1:4])} failed: {' '.join(last)}")
