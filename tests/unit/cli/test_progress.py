"""Progress on a terminal: nodes done, wave, phases, and a line for each node at work."""

from __future__ import annotations

import io
import sys

import click
import pytest

from gpustate.cli.masked import mask_output
from gpustate.cli.progress import Progress
from gpustate.engine.events import Event


def shown(*events: Event) -> list[str]:
    progress = Progress(["gpu1", "gpu2", "gpu3", "gpu4"], quiet=True)
    for event in events:
        progress.event(event)
    return str(progress._table().plain).splitlines()


def test_the_first_line_has_nodes_done_wave_and_phases() -> None:
    lines = shown(
        Event("", "wave", "wave 2 of 3: 3 nodes"),
        Event("gpu1", "finished", "ok"),
        Event("gpu2", "draining", "evicting a/b"),
        Event("gpu3", "connecting"),
        Event("gpu4", "verifying"),
        Event("gpu4", "probing"),
    )
    first = "1 of 4 nodes done; wave 2 of 3: 3 nodes; 1 probing, 1 draining, 1 validating"
    assert lines[0] == first
    assert lines[1:] == ["gpu2 evicting a/b", "gpu3 connecting", "gpu4 probing"]


def test_without_waves_and_nodes_at_work_there_is_little_to_say() -> None:
    lines = shown(Event("gpu1", "started", "x"), Event("gpu1", "finished", "failed"))
    assert lines == ["1 of 4 nodes done, 1 not ok"]


def test_a_standard_error_that_nobody_reads_any_more_disturbs_no_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(sys, "stderr", Closed())
    with pytest.raises(BrokenPipeError):
        Progress(["gpu1"]).event(Event("gpu1", "step", "x"))
    monkeypatch.setattr(sys, "stdout", sys.stdout)
    mask_output()
    Progress(["gpu1"]).event(Event("gpu1", "step", "install the driver"))
    click.echo("cluster: update node/gpu1", err=True)


def test_a_wave_is_a_line_of_its_own_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    Progress(["gpu1"]).event(Event("", "wave", "wave 1 of 2: 1 node"))
    assert capsys.readouterr().err == "gpustate: wave 1 of 2: 1 node\n"


def test_a_log_has_no_line_for_each_file_of_the_validation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A validation writes dozens of files of gpustate's own; its result and its unit are what matters."""
    steps = [f"write /var/lib/gpustate/validator/{n}.py" for n in range(30)]
    steps += ["write /etc/systemd/system/gpustate-validate.service", "validate the node"]
    progress = Progress(["gpu1"])
    for text in steps:
        progress.event(Event("gpu1", "step", text, "validator"))
    assert capsys.readouterr().err.splitlines() == [
        f"gpu1 step validator: {text}" for text in steps[-2:]
    ]
