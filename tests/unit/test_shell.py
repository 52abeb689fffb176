"""Shell fragments kept as files pass shellcheck; long shell inside Python only becomes less."""

from __future__ import annotations

import ast
import re
import subprocess
import sysconfig
from collections import Counter
from pathlib import Path

TOP = Path(__file__).parents[2]
FRAGMENTS = sorted((TOP / "gpustate/shell").glob("*.sh"))
SHELLCHECK = Path(sysconfig.get_path("scripts")) / "shellcheck"

#: Words and forms of sh that Python text does not have at the start of a line.
SH = re.compile(
    r"^\s*(done|fi|esac|then)\b|^\s*\w+\(\) ?\{|^\s*\[ .* \] (&&|\|\|)|;\s*(then|do)\s*$", re.M
)
LINES = 6
#: Constants that look like sh of more than :data:`LINES` lines. Lower a number when it sinks.
LIMITS: dict[str, int] = {
    "gpustate/bake": 1,
    "gpustate/core": 6,
    "gpustate/diagnosis": 4,
    "gpustate/engine": 2,
    "gpustate/explain": 5,
    "gpustate/formats": 7,
    "gpustate/ops": 25,
    "gpustate/probes": 21,
    "gpustate/remote": 4,
    "states": 7,
    "states/cdi": 2,
    "states/driver": 11,
    "states/mig": 3,
    "states/secure_boot": 1,
    "states/validator": 2,
}


def long_shell() -> Counter[str]:
    """Number of long shell constants in each folder of the product."""
    counts: Counter[str] = Counter()
    files = {path for folder in ("gpustate", "states") for path in (TOP / folder).rglob("*.py")}
    for path in {path.resolve() for path in files}:
        parts = path.relative_to(TOP).parts[:-1]
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value.strip()
                if text.count("\n") >= LINES and len(SH.findall(text)) > 1:
                    counts["/".join(parts[:2])] += 1
    return counts


def test_fragments_pass_shellcheck() -> None:
    assert FRAGMENTS
    done = subprocess.run(
        [SHELLCHECK, "--severity=warning", "--format=gcc", *FRAGMENTS],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_fragments_begin_with_dialect_and_purpose() -> None:
    for path in FRAGMENTS:
        first, second, *_ = path.read_text("utf-8").splitlines()
        assert first == "# shellcheck shell=sh", path.name
        assert second.startswith("# Prints "), path.name


def test_long_shell_in_python_does_not_grow() -> None:
    counts = long_shell()
    assert counts <= Counter(LIMITS), "move the new fragment to gpustate/shell"
