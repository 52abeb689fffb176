"""Folders whose path stays short, for sockets: the address of a unix socket has room for 107 bytes.

pytest's own folders follow ``TMPDIR``, ``--basetemp``, the user, the process and the test's name, so a path below
them may be longer.

Sources:
    unix(7), ``sun_path``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

#: Whatever ``TMPDIR`` is.
PARENT = "/tmp"


def short_folder() -> Path:
    """Make an empty folder that only this user can read; the caller removes it."""
    return Path(tempfile.mkdtemp(prefix="gpustate-", dir=PARENT))


@pytest.fixture
def short_path() -> Iterator[Path]:
    """An empty folder with a short path, removed after the test."""
    with tempfile.TemporaryDirectory(
        prefix="gpustate-", dir=PARENT, ignore_cleanup_errors=True
    ) as name:
        yield Path(name)
