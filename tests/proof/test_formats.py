"""Recorded answers of NVIDIA's programs are those of the programs that the lab builds, and gpustate is not a laxer."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpustate.errors import PolicyError
from gpustate.formats import deviceplugin
from gpustate_lab import programs

pytestmark = pytest.mark.proof
DATA = Path(__file__).parents[1] / "data"
#: What this release of the plugin does not have yet.
NEWER = ("sleepInterval: infinite",)


def answers(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((DATA / name).read_text())["answers"]
    return found


def test_what_cdi_refuses_is_what_was_recorded(tmp_path: Path) -> None:
    program = programs.provide("container-toolkit-1.20.1", print)["nvidia-ctk"]
    for number, answer in enumerate(answers("cdi/spec-answers.json")):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "x.yaml").write_text(answer["text"])
        done = subprocess.run(
            [program, "cdi", "list", "--spec-dir", folder], capture_output=True, text=True
        )
        assert bool(re.search(r"x\.yaml: \[", done.stderr)) == answer["refused"], answer["text"]


def test_a_configuration_of_the_plugin_that_is_accepted_is_read_by_gfd(tmp_path: Path) -> None:
    program = programs.provide("device-plugin", print)["gpu-feature-discovery"]
    file = tmp_path / "config.yaml"
    parsed = 0
    for answer in answers("deviceplugin/config-answers.json"):
        file.write_text(answer["text"])
        try:
            deviceplugin.read(answer["text"], "f")
        except PolicyError:
            continue
        if any(text in answer["text"] for text in NEWER):
            continue
        # It ends for want of a GPU; what counts is whether it came so far.
        words = [program, "--oneshot", "--config-file", file, "--output-file", tmp_path / "gfd"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
        assert "unable to parse config file" not in done.stderr, answer["text"]
        parsed += 1
    assert parsed > 60
