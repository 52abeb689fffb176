"""JUnit's XML."""

from __future__ import annotations

import shlex
from pathlib import Path
from xml.etree import ElementTree

from commandline import Cli

from gpustate.cli.validate import as_junit


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
    more = ("-i", "hosts.ini", "--pod-timeout", "30")
    done = gpustate("validate", "validator", *more)
    assert done.status == 4
    assert "Unreachable: far[1-2] (2 nodes)" in done.out.splitlines()
    retry = "gpustate validate validator -i hosts.ini --pod-timeout 30.0 -l 'far[1-2]'"
    assert f"Retry: {retry}" in done.out.splitlines()
    assert gpustate(*shlex.split(retry)[1:]).status == 4
