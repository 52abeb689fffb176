"""Random files on the command line, and bytes that a fuzzer makes up.

As ``test_random_input``, but from outside: gpustate as a process, and the readers of bytes by a fuzzer that
looks for ways nobody has gone yet.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import clitrials
import pytest
import randominput as ri
import sandbox
import shares
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from randomchecks import TRIED, check_shown, tell

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True, scope="module")
def told() -> Iterator[None]:
    """Tell how many inputs were tried."""
    yield
    tell()


@pytest.fixture(scope="module")
def no_sandbox() -> str:
    return sandbox.missing()


GOOD = (ROOT / "docs/examples/clusterpolicy.yaml").read_bytes()
VERBS: tuple[tuple[str, ...], ...] = (
    ("plan", "policy.yaml", "-i", "hosts"),
    ("plan", "policy.yaml", "-i", "hosts", "-o", "json"),
    ("plan", "policy.yaml", "-i", "hosts", "--diff", "--all"),
    ("plan", "nouveau", "-i", "hosts"),
    ("drift", "policy.yaml", "-i", "hosts"),
    ("facts", "-i", "hosts"),
    ("facts", "-i", "hosts", "-o", "json"),
    ("explain", "all", "-i", "hosts"),
    ("policy", "graph", "policy.yaml"),
    ("plan", "hosts", "-i", "hosts"),
    ("plan", "policy.yaml", "-i", "."),
)
LOOKS = tuple(words for words in VERBS if words[0] in ("facts", "explain") or "nouveau" in words)


@st.composite
def trials(draw: st.DrawFn) -> clitrials.Trial:
    """One call of gpustate; nodes that cannot be reached, or this machine, which is only looked at."""
    files = draw(ri.inventory_files())
    name = next(path for path in files if path.startswith("hosts"))
    verbs = VERBS
    if draw(st.integers(0, 3)) == 0:
        # Looked at for real; a whole stack would ask apt and dpkg of this machine for seconds.
        verbs = LOOKS
        here = b"localhost ansible_connection=local x=" + draw(ri.words).encode("utf-8", "replace")
        files[name] = here.replace(b"\n", b" ").replace(b"\0", b"") + b"\n"
    files["policy.yaml"] = draw(st.one_of(st.just(GOOD), st.just(GOOD), ri.operator_files()))
    words = tuple(name if word == "hosts" else word for word in draw(st.sampled_from(verbs)))
    if words[0] != "graph":
        limit = draw(st.just("all[0:2]") | ri.words.map(lambda word: f"all[0:2]:&{word}"))
        words = (*words, "--limit", limit.replace("\0", "").encode("utf-8", "replace").decode())
    return files, words, False


def check_trial(trial: clitrials.Trial, ended: dict[str, Any]) -> None:
    """How a call of gpustate may end."""
    told = (trial[1], ended["out"][-2000:], ended["err"][-2000:])
    assert ended["status"] in range(9), told
    assert "Traceback" not in ended["out"] + ended["err"], told
    assert ended["canaries"] == [], told
    check_shown(ended["out"])
    check_shown(ended["err"])
    if ended["status"] == 1 and not ended["out"]:
        assert all(line.startswith("gpustate: ") for line in ended["err"].splitlines()), told
    if "json" in trial[1] and ended["out"]:
        json.loads(ended["out"])


@settings(
    max_examples=shares.tries(30, 3),
    phases=(Phase.generate,),
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.large_base_example,
    ],
)
@given(st.lists(trials(), min_size=10, max_size=10), st.integers(0, 9))
def test_the_command_line_ends_with_a_line_and_a_code(
    no_sandbox: str, some_trials: list[clitrials.Trial], own: int
) -> None:
    if no_sandbox:
        pytest.skip(no_sandbox)
    some_trials[own] = (*some_trials[own][:2], True)
    TRIED["command lines"] += len(some_trials)
    for trial, ended in zip(some_trials, clitrials.isolated(some_trials), strict=True):
        check_trial(trial, ended)


# --- coverage-guided -----------------------------------------------------------------------


@pytest.mark.parametrize("target", ["answer", "inventory"])
def test_the_fuzzer_finds_nothing(target: str, tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="atheris is not installed: pip install 'gpustate[test]'")
    runs = {"answer": 20_000, "inventory": 1_000}[target] * (5 if shares.everything() else 1)
    # The sanitizer of a fuzzer is no use to Python, and its own files go to a folder that is thrown away.
    done = subprocess.run(
        [
            sys.executable,
            ROOT / "tests/support/fuzz.py",
            target,
            tmp_path,
            ROOT / "tests/data/fuzz" / target,
            f"-runs={runs}",
            "-max_total_time=60",
            "-timeout=60",
            "-print_final_stats=1",
            *(["-seed=1"] if os.environ.get("CI") else []),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    units = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    covered = [int(found) for found in re.findall(r" cov: (\d+)", done.stderr)]
    assert units, done.stderr[-2000:]
    least = {"answer": 100, "inventory": 500}[target]
    assert covered[-1] > least, "the fuzzer does not get into what it is to fuzz"
    TRIED[f"inputs of the fuzzer ({target}, {covered[-1]} edges)"] += int(units[1])
