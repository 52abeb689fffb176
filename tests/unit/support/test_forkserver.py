"""A command of the fork server ends as one that was started by itself."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import forkserver
import pytest

TOP = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def server() -> Iterator[forkserver.ForkServer]:
    made = forkserver.ForkServer()
    made.run(["--version"], 60)  # it has imported everything then
    yield made
    made.close()


def alone(words: list[str]) -> tuple[int, str, str]:
    done = subprocess.run(
        [forkserver.GPUSTATE, *words], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["--version"],
        ["graph", "docs/examples/clusterpolicy.yaml"],
        ["plan", "docs/examples/policy.py", "-i", "nosuch.yml"],
        ["nosuch"],
    ],
    ids=lambda words: words[0],
)
def test_a_command_answers_as_one_that_was_started_by_itself(
    server: forkserver.ForkServer, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.chdir(TOP)
    done = server.run(words, 60)
    assert (done.returncode, done.stdout, done.stderr) == alone(words)


def test_a_command_has_the_folder_and_the_environment_of_its_caller(
    server: forkserver.ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MARK", "of-the-caller")
    policy = tmp_path / "policy.py"
    policy.write_text(
        "import os, pathlib\npathlib.Path('seen').write_text(os.environ['MARK'])\n"
        "from gpustate import Policy\npolicy = Policy()\n"
    )
    server.run(["policy", "graph", "policy.py"], 60)
    assert (tmp_path / "seen").read_text() == "of-the-caller"


def test_what_one_command_changes_is_not_seen_by_the_next(
    server: forkserver.ForkServer, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.py"
    policy.write_text(
        "import gpustate, pathlib\n"
        f"pathlib.Path({str(tmp_path / 'seen')!r}).write_text(str(hasattr(gpustate, 'changed')))\n"
        "gpustate.changed = True\npolicy = gpustate.Policy()\n"
    )
    for _ in range(2):
        server.run(["policy", "graph", str(policy)], 60)
        assert (tmp_path / "seen").read_text() == "False"


def test_a_command_that_does_not_end_is_killed(
    server: forkserver.ForkServer, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.py"
    policy.write_text(
        "import os, pathlib, time\n"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(os.getpid()))\ntime.sleep(600)\n"
    )
    with pytest.raises(subprocess.TimeoutExpired):
        server.run(["policy", "graph", str(policy)], 5)
    # On a busy machine it may have been killed before it came so far.
    pid = (tmp_path / "pid").read_text() if (tmp_path / "pid").exists() else "none"
    deadline = time.monotonic() + 30
    while Path("/proc", pid).exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_command_for_another_interpreter_is_a_process_of_its_own(
    server: forkserver.ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = tmp_path / "policy.py"
    policy.write_text(
        f"import pathlib, sys\npathlib.Path({str(tmp_path / 'seen')!r}).write_text(str(sys.flags.utf8_mode))\n"
        "from gpustate import Policy\npolicy = Policy()\n"
    )
    monkeypatch.setenv("PYTHONUTF8", "0")
    server.run(["policy", "graph", str(policy)], 60)
    assert (tmp_path / "seen").read_text() == "0"
    monkeypatch.setenv("PYTHONUTF8", "1")
    server.run(["policy", "graph", str(policy)], 60)
    assert (tmp_path / "seen").read_text() == "1"
