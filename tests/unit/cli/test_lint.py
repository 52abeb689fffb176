"""``gpustate lint``: its exit codes and its three ways to say it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commandline import Cli

BAD = "driver:\n  versoin: 580\n  useOpenKernelModules: true\n"
GOOD = "driver:\n  version: 580.95.05\n"


@pytest.fixture
def files(project: Path) -> Path:
    (project / "bad.yaml").write_text(BAD)
    (project / "good.yaml").write_text(GOOD)
    return project


def test_an_error_fails_and_a_warning_only_if_strict(gpustate: Cli, files: Path) -> None:
    done = gpustate("lint", "bad.yaml")
    assert (done.status, done.err) == (5, "")
    first, second, *_, last = done.out.splitlines()
    assert first.startswith("bad.yaml:2: error: unknown key 'driver.versoin'")
    assert first.endswith("did you mean driver.version [unknown-key]")
    assert second.startswith("bad.yaml:3: warning: driver.useOpenKernelModules is ignored")
    assert last == "files=1 errors=1 warnings=1 notes=0 release=v26.7.0"
    (files / "warned.yaml").write_text("driver: {useOpenKernelModules: true}\n")
    assert gpustate("lint", "warned.yaml").status == 0
    assert gpustate("lint", "--strict", "warned.yaml").status == 5
    assert gpustate("lint", "--strict", "good.yaml").status == 0
    assert gpustate("lint", "--strict", "good.yaml", "bad.yaml").status == 5


def test_leaves_are_listed_with_their_class(gpustate: Cli, files: Path) -> None:
    done = gpustate("lint", "--leaves", "good.yaml")
    assert "good.yaml:2: driver.version: honoured: driver.version" in done.out
    assert "good.yaml: 1 field: 1 honoured" in done.out


def test_leaves_that_another_key_switches_off_are_not_honoured(gpustate: Cli, files: Path) -> None:
    (files / "off.yaml").write_text(
        "toolkit: {enabled: false, version: v1.18.1}\n"
        "cdi: {enabled: true}\n"
        "dcgmExporter:\n  enabled: true\n  serviceMonitor: {enabled: true}\n"
    )
    done = gpustate("lint", "--leaves", "off.yaml")
    assert "off.yaml:1: toolkit.version: not carried out: toolkit.enabled is false" in done.out
    assert "off.yaml:2: cdi.enabled: honoured" in done.out
    why = "dcgmExporter.enabled is true in the file, so it is a service of the nodes"
    assert f"off.yaml:5: dcgmExporter.serviceMonitor.enabled: not carried out: {why}" in done.out
    assert "off.yaml: 5 fields: 3 honoured, 2 not carried out" in done.out


def test_json_and_sarif_are_documents(gpustate: Cli, files: Path) -> None:
    data = json.loads(gpustate("lint", "-o", "json", "--strict", "bad.yaml").out)
    assert (data["format"], data["failed"], data["strict"]) == ("gpustate.lint/1", True, True)
    assert [f["rule"] for f in data["files"][0]["findings"]] == ["unknown-key", "ignored-key"]
    assert gpustate("lint", "-o", "sarif", "--out", "out.sarif", "bad.yaml").out == ""
    sarif = json.loads((files / "out.sarif").read_text())
    assert [r["ruleId"] for r in sarif["runs"][0]["results"]] == ["unknown-key", "ignored-key"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("binary.yaml", b"\0\1", "is a binary file"),
        ("latin.yaml", b"a: \xe4\n", "is not UTF-8"),
        ("twice.yaml", b"driver: {}\ndriver: {}\n", "twice.yaml:2: the key 'driver' is a duplicate of line 1"),
        ("tag.yaml", b"driver: !!python/name:os.system x\n", "tag.yaml:1: the tag"),
        ("pod.yaml", b"apiVersion: v1\nkind: Pod\n", "contains no policy, only Pod"),
    ],
)  # fmt: skip
def test_a_file_that_is_none_ends_with_1_and_one_line(
    gpustate: Cli, project: Path, name: str, content: bytes, said: str
) -> None:
    (project / name).write_bytes(content)
    done = gpustate("lint", name)
    assert done.status == 1
    assert said in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert "Traceback" not in done.err


def test_a_release_that_is_none_is_told_with_the_nearest(gpustate: Cli, files: Path) -> None:
    done = gpustate("lint", "--release", "v26.7.9", "good.yaml")
    assert done.status == 1
    assert "no GPU Operator release 'v26.7.9'; the newest supported release is v26.7.0" in done.err
    assert gpustate("lint", "nothing.yaml").status == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("own.yaml", "format: gpustate.policy/1\nstates: {driver: {}}\n"),
        ("own.py", "from gpustate import Policy\n\npolicy = Policy()\n"),
    ],
)
def test_a_policy_of_gpustate_s_own_is_sent_to_resolve(
    gpustate: Cli, project: Path, name: str, text: str
) -> None:
    (project / name).write_text(text)
    done = gpustate("lint", name)
    assert (done.status, done.out) == (1, "")
    assert done.err == (
        f"gpustate: {name}: is a gpustate policy; lint checks files of the GPU Operator; "
        f"check it with: gpustate policy resolve {name}\n"
    )
