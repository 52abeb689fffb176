"""A site's own testinfra tests: real pytest and testinfra in their own process, on this machine as the node."""

from __future__ import annotations

from importlib import util
from pathlib import Path

import pytest

from gpustate.cli.validate import _verdict, as_junit
from gpustate.core.inventory import Connection, Inventory, InventoryNode
from gpustate.core.outcome import NodeResult, Outcome, StateResult
from gpustate.engine.fleet import FleetResult
from gpustate.errors import UsageError
from gpustate.plan.document import node_data
from gpustate.validation import site_tests

NODES = tuple(
    InventoryNode(name, groups=("gpu",), connection=Connection(kind="local"))
    for name in ("gpu1", "gpu2")
)
HERE = Inventory("here", NODES, {"gpu": ("gpu1", "gpu2"), "one": ("gpu2",)})

ON_EVERY_NODE = """
import pytest

def test_says(host):
    done = host.run("printf 'a\\\\n%s' b; printf c >&2; exit 3")
    assert (done.rc, done.stdout, done.stderr) == (3, "a\\nb", "c")

def test_modules_of_testinfra_work(host):
    assert host.file("/etc").is_directory
    assert not host.file("/etc/nothing-here").exists

@pytest.mark.parametrize("wanted", ["x"])
def test_fails(host, wanted):
    assert host.check_output("echo seen") == wanted

def test_is_left_out(host):
    pytest.skip("not here")

def test_breaks(host):
    host.check_output("exit 9")

def test_does_not_hold(host):
    assert not host.file("/etc").is_directory

def test_without_a_host():
    assert True
"""
ON_ONE_NODE = """
testinfra_hosts = ["ansible://one"]

def test_takes_too_long(host):
    host.run("sleep 60")

def test_goes_on_afterwards(host):
    assert host.backend.get_hostname() == "gpu2"
"""


def line(text: str) -> int:
    """Where something stands in the tests of every node."""
    return ON_EVERY_NODE[: ON_EVERY_NODE.index(text)].count("\n") + 1


def run(
    folder: Path, limit_s: float = 20, **files: str
) -> dict[tuple[str, str], site_tests.SiteTest]:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    found = site_tests.run(site_tests.check(str(folder)), HERE, limit_s=limit_s)
    return {(one.test.rpartition("::")[2], one.node): one for one in found}


def test_each_test_runs_on_each_node_and_is_told_with_its_reason(tmp_path: Path) -> None:
    found = run(tmp_path, test_site=ON_EVERY_NODE)
    outcomes = {key: one.outcome for key, one in found.items()}
    for node in ("gpu1", "gpu2"):
        assert outcomes["test_says", node] == "passed"
        assert outcomes["test_modules_of_testinfra_work", node] == "passed"
        assert outcomes["test_fails[x]", node] == "failed"
        assert outcomes["test_is_left_out", node] == "skipped"
        assert outcomes["test_breaks", node] == "failed"
    assert outcomes["test_without_a_host", ""] == "passed"
    assert len(found) == 13
    said = found["test_fails[x]", "gpu1"].evidence
    assert said.startswith(
        f"test_site.py:{line('echo seen')}: AssertionError: assert 'seen' == "
    ), said
    said = found["test_breaks", "gpu1"].evidence
    assert said.startswith(f"test_site.py:{line('exit 9')}: "), said
    said = found["test_does_not_hold", "gpu1"].evidence
    assert "assert not True where True = " in said
    assert found["test_is_left_out", "gpu1"].evidence.endswith("not here")
    assert "\n" not in found["test_breaks", "gpu1"].evidence
    assert {one.outcome for one in found.values() if one.bad} == {"failed"}


def test_a_test_that_takes_too_long_is_ended_and_the_next_one_runs(tmp_path: Path) -> None:
    found = run(tmp_path, 2, test_slow=ON_ONE_NODE)
    assert set(found) == {("test_takes_too_long", "gpu2"), ("test_goes_on_afterwards", "gpu2")}
    assert found["test_takes_too_long", "gpu2"].outcome == "failed"
    assert "did not finish within 2 s" in found["test_takes_too_long", "gpu2"].evidence
    assert found["test_goes_on_afterwards", "gpu2"].outcome == "passed"


def test_a_test_that_heeds_no_limit_is_ended_with_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_tests, "_GRACE_S", 1.0)
    text = "import signal, time\ndef test_a():\n    signal.signal(signal.SIGALRM, signal.SIG_IGN)\n    time.sleep(600)\ndef test_b():\n    pass\n"
    found = run(tmp_path, 2, test_deaf=text)
    assert found["test_a", ""].outcome == "error"
    assert (
        found["test_a", ""].evidence
        == "it did not finish within 2 s and was killed with its process"
    )
    assert (found["test_b", ""].outcome, found["test_b", ""].bad) == ("not run", True)


def test_a_test_that_ends_its_process_is_named(tmp_path: Path) -> None:
    found = run(
        tmp_path, test_gone="import os\ndef test_a():\n    os._exit(7)\ndef test_b():\n    pass\n"
    )
    assert "the test process exited during it" in found["test_a", ""].evidence
    assert found["test_b", ""].outcome == "not run"


def test_a_file_that_cannot_be_imported_is_a_test_that_failed(tmp_path: Path) -> None:
    found = run(
        tmp_path, test_import="import no_such_module_here\n", test_good="def test_a():\n    pass\n"
    )
    assert found["test_a", ""].outcome == "passed"
    broken = [one for one in found.values() if one.bad]
    assert [one.outcome for one in broken if one.test == "test_import.py"] == ["error"]
    assert "no_such_module_here" in next(
        one.evidence for one in broken if one.test == "test_import.py"
    )


def test_hosts_that_the_inventory_does_not_have_are_named(tmp_path: Path) -> None:
    text = 'testinfra_hosts = ["ssh://elsewhere"]\ndef test_a(host):\n    pass\n'
    (one,) = run(tmp_path, test_x=text).values()
    assert one.outcome == "error"
    assert "testinfra_hosts names 'ssh://elsewhere', which is not in the inventory" in one.evidence


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "the directory has no tests"),
        ({"readme": "x = 1\n"}, "the directory has no tests"),
        ({"test_a": "def test_a(:\n"}, "test_a.py:1: is not valid Python"),
        ({"test_a": "x = '\x00'\n"}, "is not valid Python"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is_reached(
    tmp_path: Path, files: dict[str, str], said: str
) -> None:
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        site_tests.check(str(tmp_path))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such directory"):
        site_tests.check(str(tmp_path / "nowhere"))


def test_a_missing_testinfra_is_told_with_the_way_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "test_a.py").write_text("")
    real = util.find_spec
    monkeypatch.setattr(util, "find_spec", lambda name: None if name == "testinfra" else real(name))
    with pytest.raises(UsageError, match=r"needs testinfra, .*pip install 'gpustate\[tests\]'"):
        site_tests.check(str(tmp_path))


def test_a_node_whose_tests_failed_counts_as_failed_and_ends_with_3() -> None:
    proven = StateResult("validator", Outcome.CHANGED, validating=True)
    nodes = [NodeResult(name, states=[proven]) for name in ("gpu1", "gpu2")]
    tests = [
        site_tests.SiteTest("a.py::test_x", "gpu1", site_tests.FAILED, "1 == 2"),
        site_tests.SiteTest("a.py::test_y", "gpu1", site_tests.ERROR, "no fixture"),
        site_tests.SiteTest("a.py::test_x", "gpu2", site_tests.PASSED),
    ]
    for node in nodes:
        site_tests.add(node, tests)
    result = FleetResult("r", nodes, applied=True, proved=True)
    assert " ok=1 " in result.summary()
    assert " failed=1 " in result.summary()
    assert result.exit_code == 3
    assert (
        nodes[0].reason == "site-tests: tests of this site: a.py::test_x failed, a.py::test_y error"
    )
    made = {"nodes": [node_data(node) for node in nodes], "tests": [one.data() for one in tests]}
    assert "<error" not in as_junit(made).partition("gpu1: tests")[0], "told once, with its test"
    headlines = [_verdict(row, tests[:2] if n == 0 else ()) for n, row in enumerate(made["nodes"])]
    assert [text for text, _ in headlines] == [
        "GPUs validated, 2 tests of this site failed",
        "validated",
    ]
