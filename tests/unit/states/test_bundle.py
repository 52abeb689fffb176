"""A node has its part of a bundle, apt sees nothing else, and both go again without a trace."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from bundleworld import Site

from gpustate import NodeFacts, PolicyError, ops
from gpustate.bundle import reading
from gpustate.bundle.reading import Bundle
from gpustate.core.policy import Policy, build
from gpustate.ops.upload import APT_CONF, BUNDLE_FOLDER, ONLY_BUNDLE
from gpustate.package_sets import bundle_nodes
from gpustate.plan.make import Observations
from gpustate.states.bundle import CONF_TEXT, BundleInPlace
from gpustate.states.preflight import PreflightPassed
from gpustate.states.repository import DriverRepository
from gpustate.testing import FakeNode

STEPLESS = {"bundle": "its default names no bundle"}
PARTLESS = {"bundle": (("removed",), "no state of a policy: removing the policy removes it")}

FACTS: dict[str, Any] = {
    "os_id": "debian",
    "os_version": "12",
    "machine": "x86_64",
    "package_manager": "apt",
}


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return reading.load(str(Site(tmp_path / "site").bundle(tmp_path / "b.tar")))


def node(**facts: Any) -> FakeNode:
    shell = {"gpustate-bundle": (0, "")}
    return FakeNode(facts=NodeFacts(**{**FACTS, **facts}), shell=shell)


def test_without_a_file_nothing_is_done() -> None:
    state = BundleInPlace()
    assert not state.plan(state.probe(node()))


def test_only_what_the_node_needs_is_sent_and_then_apt_sees_nothing_else(bundle: Bundle) -> None:
    state = BundleInPlace(file=bundle.path)
    observed = state.probe(node())
    assert state.refuse(observed) is None
    steps = list(state.apply(observed, state.plan(observed)))
    upload = next(step for step in steps if isinstance(step, ops.Upload))
    assert upload.prefix == "debian12-x86_64"
    assert upload.folder == f"{BUNDLE_FOLDER}/{bundle.id}"
    assert sorted(name for name, _, _ in upload.files) == [
        "base/Packages",
        "base/Release",
        "base/app_1.0_amd64.deb",
        "base/libone_1.0_amd64.deb",
        "base/postman_1.0_amd64.deb",
    ]
    texts = {step.path: step.text for step in steps if isinstance(step, ops.PutText)}
    assert texts[APT_CONF] == CONF_TEXT
    assert 'Dir::Etc::sourceparts "-";' in CONF_TEXT
    lines = texts[f"{BUNDLE_FOLDER}/sources.list"].splitlines()[1:]
    assert lines == [f"deb [trusted=yes] file:{BUNDLE_FOLDER}/{bundle.id}/base /"]


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"os_version": "13"}, "has no packages for debian13-x86_64 .available: debian12-x86_64"),
        ({"machine": "aarch64"}, "has no packages for debian12-aarch64"),
        ({"package_manager": "apk"}, "no apt, dnf or zypper on this node"),
        (
            {"package_manager": "dnf"},
            "has no packages of debian12-x86_64 for dnf; rebuild the bundle for this node",
        ),
    ],
)
def test_a_node_that_the_bundle_is_not_for_is_refused(
    bundle: Bundle, facts: dict[str, Any], said: str
) -> None:
    state = BundleInPlace(file=bundle.path)
    reason = state.refuse(state.probe(node(**facts)))
    assert reason is not None
    assert re.search(said, reason), reason


@pytest.mark.parametrize("file", ["/nowhere/b.tar", "", "/dev/null", "/etc/passwd"])
def test_a_file_that_is_no_bundle_is_an_error_of_the_policy(file: str) -> None:
    with pytest.raises(PolicyError, match="is not a bundle"):
        build(BundleInPlace, {"file": file})


def test_taking_it_away_needs_no_bundle_any_more() -> None:
    state = build(BundleInPlace, {"file": "/nowhere/b.tar", "ensure": "absent"})
    fake = node()
    fake.files[APT_CONF] = CONF_TEXT
    observed = state.probe(fake)
    steps = list(state.apply(observed, state.plan(observed)))
    assert len(steps) == 1
    assert shlex.quote(BUNDLE_FOLDER) in steps[0].script()


def test_everything_that_runs_on_a_node_looks_for_the_bundle_first() -> None:
    assert ONLY_BUNDLE in ops.LIBRARY
    assert f"APT_CONFIG={APT_CONF}" in ONLY_BUNDLE


def test_nothing_calls_dnf_or_zypper_past_the_bundle() -> None:
    """Every call begins with a variable that the bundle sets; options tell calls from words of messages."""
    root = Path(ops.__file__).parents[1]
    call = re.compile(r"(?<![\w./'$-])(?:dnf|zypper) +-")
    found = [
        f"{file.relative_to(root)}: {match[0]}"
        for folder in ("ops", "model", "run", "remote", "nodeside", "states")
        for file in (root / folder).rglob("*.py")
        for match in call.finditer(file.read_text())
        if file.name != "upload.py"
    ]
    assert found == []
    for word in ("${DNF:-dnf} -y", "${ZYPPER:-zypper} -n"):
        assert word in ops.LIBRARY


# --- policies ------------------------------------------------------------------------------


def test_a_bundle_is_the_last_word_about_where_packages_come_from(bundle: Bundle) -> None:
    policy = Policy(PreflightPassed(), DriverRepository(), BundleInPlace(file=bundle.path))
    made = bundle_nodes.onto(policy, None)
    assert {state.name for state in made.states} == {"preflight", "driver-repository", "bundle"}
    assert ("states", "bundle", "file") in made.last
    # This bundle has no driver: its repository stays what it was.
    (repository,) = (s for s in made.states if isinstance(s, DriverRepository))
    assert repository.source == "vendor"
    assert bundle_nodes.onto(Policy(PreflightPassed()), None).last == ()


def test_a_node_is_refused_before_anything_when_its_bundle_lacks_a_package(bundle: Bundle) -> None:
    from gpustate.core.facts import NodeView
    from gpustate.states.driver import DriverInstalled

    states = [BundleInPlace(file=bundle.path), DriverInstalled(branch=580)]
    view = NodeView("gpu1", (), {}, NodeFacts(**FACTS))
    reason = bundle_nodes.lacking(states, Observations(view))
    assert str(reason) == (
        f"driver branch 580 as a complete set (available: none) is not in the bundle {bundle.path}; "
        "build one that has it: gpustate image bundle make POLICY -i INVENTORY --out FILE"
    )
    assert bundle_nodes.lacking(states[:1], Observations(view)) is None
    assert bundle_nodes.lacking(states[1:], Observations(view)) is None
