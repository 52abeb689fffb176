"""Folders and a command line for each test."""

from __future__ import annotations

from pathlib import Path

import pytest
from commandline import Cli, Done, run_forked


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Where gpustate may keep things of its own."""
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The current folder."""
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture
def gpustate(tmp_path: Path, project: Path, home: Path) -> Cli:
    """Return a function that runs gpustate with some words."""
    outputs = [tmp_path / "out", tmp_path / "err"]

    def run(*words: str, **environment: str) -> Done:
        return run_forked(words, project, {"HOME": str(home), **environment}, outputs)

    return run
