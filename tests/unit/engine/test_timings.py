"""What journals on a node say about how long steps took."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from gpustate.core.queries import Answer
from gpustate.core.timing import Timing
from gpustate.engine.timings import TimingsQuery

STEPS = json.dumps([{"state": "driver", "label": "install"}, {"state": "cdi", "label": "write"}])
BOOT = 1_000


def run(name: str, start: int, *results: tuple[int, int, int], end: int | None = None) -> str:
    """A run: per step its number, its seconds and how it ended."""
    lines, at = [f"run {name}", f"steps {STEPS}", f'{{"e":"start","t":{start}}}'], start
    for number, seconds, status in results:
        lines.append(f'{{"e":"intent","i":{number},"t":{at}}}')
        at += seconds
        lines.append(f'{{"e":"result","i":{number},"rc":{status},"t":{at}')
    return "\n".join([*lines, f'{{"e":"end","stopped":0,"t":{at if end is None else end}}}', ""])


def parse(text: str) -> tuple[Timing, ...]:
    return TimingsQuery().parse(Answer(0, text.encode()))


def test_each_step_took_from_its_intent_to_its_result() -> None:
    assert parse(run("r-1", 500, (1, 40, 0), (2, 0, 0))) == (
        Timing("driver", "install", 40, "r-1"),
        Timing("cdi", "write", 0, "r-1"),
    )


def test_a_step_that_failed_measures_nothing() -> None:
    assert parse(run("r-1", 500, (1, 40, 100), (2, 1, 0))) == (Timing("cdi", "write", 1, "r-1"),)


def test_a_boot_between_two_stages_of_a_run_is_its_reboot() -> None:
    text = f"boot {BOOT}\n" + run("r-2", BOOT + 60, (2, 1, 0)) + run("r-1", BOOT - 90, (1, 20, 0))
    assert Timing("", "reboot", 130, "r-2") in parse(text)


def test_a_boot_of_another_time_is_no_reboot_of_the_run() -> None:
    stages = run("r-2", BOOT + 60, (2, 1, 0)) + run("r-1", BOOT - 90, (1, 20, 0))
    for boot in (BOOT - 80, BOOT + 61, 0):
        assert not [t for t in parse(f"boot {boot}\n{stages}") if t.label == "reboot"]


@given(st.text(alphabet='{}"e:intresulabo,0123456789-\n \x1b[]', max_size=200) | st.text())
def test_whatever_a_node_says_is_read_without_a_crash(text: str) -> None:
    parse(run("r-1", 5, (1, 4, 0)) + text)
    parse(text)


def test_the_ask_reads_real_folders(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "20261121-000000-abcdef-1"
    folder.mkdir(parents=True)
    (folder / "steps.json").write_text(STEPS)
    entries = [
        '{"e":"start","t":5}',
        '{"e":"intent","i":1,"t":5}',
        '{"e":"effect","i":1,"did":"wrote"}',
    ]
    entries += [
        '{"e":"result","i":1,"rc":0,"t":12,"out":"c2VjcmV0"}',
        '{"e":"end","stopped":0,"t":12}',
    ]
    (folder / "journal").write_text("\n".join(entries) + "\n")
    (tmp_path / "runs" / "x.new").mkdir()
    script = f"G={tmp_path}\n{TimingsQuery().script()}"
    done = subprocess.run(["sh", "-c", script], capture_output=True, check=True)
    assert TimingsQuery().parse(Answer(0, done.stdout)) == (
        Timing("driver", "install", 7, "20261121-000000-abcdef-1"),
    )
    assert b"c2VjcmV0" not in done.stdout
    assert done.stdout.startswith(b"boot ")
    assert int(done.stdout.split()[1]) > 1_000_000_000


def test_a_node_without_runs_has_none(tmp_path: Path) -> None:
    script = f"G={tmp_path}/none\n{TimingsQuery().script()}"
    done = subprocess.run(["sh", "-c", script], capture_output=True, check=True)
    assert TimingsQuery().parse(Answer(0, done.stdout)) == ()
