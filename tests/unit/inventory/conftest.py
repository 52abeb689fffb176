"""A directory to write inventories into, which is also the current one: places are short."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Return a function that writes one file, dedented, and gives its path back."""
    monkeypatch.chdir(tmp_path)

    def writing(path: str, text: str, *, executable: bool = False) -> str:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text).lstrip("\n"), encoding="utf-8")
        if executable:
            file.chmod(0o755)
        return path

    return writing
