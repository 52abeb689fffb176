"""JUnit's XML."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from commandline import Cli

from gpustate.cli.validate import as_junit, validate
from gpustate.core.outcome import NodeResult
from gpustate.diagnosis.chain import Check
from gpustate.engine.fleet import FleetResult
from gpustate.validation import causes


def test_what_xml_cannot_hold_is_written_out() -> None:
    check = {
        "name": "cuda",
        "outcome": "failed",
        "evidence": "a\x1b[2J\x00b",
        "remedy": "x\ud800\ny",
    }
    document = {"nodes": [{"name": "n1", "status": "failed", "checks": [check]}]}
    suite = ElementTree.fromstring(as_junit(document).encode())
    failure = suite.find(".//failure")
    assert failure is not None
    assert failure.get("message") == "a\\x1b[2J\\x00b"
    assert failure.text == "x\\ud800\ny"


def test_a_kubeconfig_that_cannot_be_read_is_refused_before_any_node_is_reached(
    gpustate: Cli, project: Path
) -> None:
    (project / "hosts.ini").write_text("n1 ansible_host=192.0.2.1\n")
    done = gpustate("validate", "validator", "-i", "hosts.ini", "--kubeconfig", "missing.yml")
    assert done.status == 1
    assert done.err.startswith(
        "gpustate: missing.yml: cannot read the kubeconfig (No such file or directory)"
    )


def test_nodes_that_are_not_proven_stand_last_with_a_command_that_works(
    gpustate: Cli, project: Path
) -> None:
    (project / "hosts.ini").write_text("far[1:2] ansible_host=127.0.0.1 ansible_port=1\n")
    more = ("-i", "hosts.ini", "--timeout", "30")
    done = gpustate("validate", "validator", *more)
    assert done.status == 4
    assert "Unreachable: far[1-2] (2 nodes)" in done.out.splitlines()
    retry = "gpustate validate validator -i hosts.ini --timeout 30.0 -l 'far[1-2]'"
    assert f"Retry: {retry}" in done.out.splitlines()
    assert gpustate(*shlex.split(retry)[1:]).status == 4


def test_a_nodes_condition_is_written_once_its_causes_are_known(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "hosts.ini").write_text("n1 ansible_host=127.0.0.1 ansible_port=1\n")
    written: list[str] = []

    def fail(results: Sequence[NodeResult], *_: object) -> None:
        causes.fail(results[0], Check("runtime", "failed", "no handler", "register it"))

    def report(result: FleetResult, *_: object) -> list[int]:
        written.extend(one.reason or "" for one in result.nodes)
        return []

    monkeypatch.setattr(causes, "run", fail)
    monkeypatch.setitem(validate.callback.__globals__, "_report", report)  # type: ignore[union-attr]
    CliRunner().invoke(validate, ["validator", "-i", str(project / "hosts.ini")])
    assert written == ["runtime: no handler; register it"]
