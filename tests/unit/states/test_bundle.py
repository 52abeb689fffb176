"""A node has its part of a bundle, apt sees nothing else, and both go again without a trace."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bundleworld import RpmSite, Site

from gpustate import NodeFacts, PolicyError, ops
from gpustate.bundle import reading, write
from gpustate.bundle.reading import Bundle
from gpustate.model.policy import Policy, build
from gpustate.ops.upload import APT_CONF, BUNDLE_FOLDER, ONLY_BUNDLE
from gpustate.plan.make import Look
from gpustate.run import bundled
from gpustate.states.bundle import CONF_TEXT, BundleInPlace
from gpustate.states.preflight import NodeFit
from gpustate.states.repository import DriverRepository
from gpustate.testing import FakeNode, check_contract

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


def test_the_contract_is_kept_with_a_bundle(bundle: Bundle) -> None:
    check_contract(BundleInPlace(file=bundle.path))


def test_without_a_file_nothing_is_done() -> None:
    state = BundleInPlace()
    assert not state.plan(state.probe(node()))


def test_only_what_the_node_needs_is_sent_and_then_apt_sees_nothing_else(bundle: Bundle) -> None:
    state = BundleInPlace(file=bundle.path)
    seen = state.probe(node())
    assert state.refuse(seen) is None
    steps = list(state.apply(seen, state.plan(seen)))
    upload = next(step for step in steps if isinstance(step, ops.Upload))
    assert upload.prefix == "debian12-x86_64"
    assert upload.folder == f"{BUNDLE_FOLDER}/{bundle.id}"
    assert sorted(name for name, _, _ in upload.files) == [
        "base/InRelease",
        "base/Packages",
        "base/app_1.0_amd64.deb",
        "base/libone_1.0_amd64.deb",
        "base/postman_1.0_amd64.deb",
    ]
    texts = {step.path: step.text for step in steps if isinstance(step, ops.PutText)}
    assert texts[APT_CONF] == CONF_TEXT
    assert 'Dir::Etc::sourceparts "-";' in CONF_TEXT
    lines = texts[f"{BUNDLE_FOLDER}/sources.list"].splitlines()[1:]
    assert lines == [
        f"deb [signed-by={BUNDLE_FOLDER}/key.asc] file:{BUNDLE_FOLDER}/{bundle.id}/base /"
    ]


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"os_version": "13"}, "debian13-x86_64 is not in the bundle .* has debian12-x86_64"),
        ({"machine": "aarch64"}, "debian12-aarch64 is not in the bundle"),
        ({"package_manager": "apk"}, "this node has none"),
        ({"package_manager": "dnf"}, "for debian12-x86_64 is not for dnf; make it for this node"),
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
    with pytest.raises(PolicyError, match="is no bundle"):
        build(BundleInPlace, {"file": file})


def test_taking_it_away_needs_no_bundle_any_more() -> None:
    state = build(BundleInPlace, {"file": "/nowhere/b.tar", "ensure": "absent"})
    fake = node()
    fake.files[APT_CONF] = CONF_TEXT
    seen = state.probe(fake)
    steps = list(state.apply(seen, state.plan(seen)))
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


# --- dnf and zypper ------------------------------------------------------------------------

ROCKY: dict[str, Any] = {"os_id": "rocky", "os_version": "9.6", "package_manager": "dnf"}
SLES: dict[str, Any] = {"os_id": "sles", "os_version": "15.7", "package_manager": "zypper"}


@pytest.fixture
def rpms(tmp_path: Path) -> Bundle:
    site = RpmSite(tmp_path / "rpms")
    target = site.made(name="sles15").manifest.targets[0]
    made = site.made(name="rocky9")
    files = {k.replace("rocky9", "sles15"): v for k, v in made.contents.items() if "/" in k}
    manifest = replace(made.manifest, targets=(*made.manifest.targets, target))
    both = write.Made(manifest, {**made.contents, **files})
    both.contents["manifest.json"] = both.text.encode()
    write.write(both, tmp_path / "rpms.tar")
    return reading.load(str(tmp_path / "rpms.tar"))


@pytest.mark.parametrize("facts", [ROCKY, SLES])
def test_dnf_and_zypper_see_the_bundle_and_nothing_else(
    rpms: Bundle, facts: dict[str, Any]
) -> None:
    assert reading.check(rpms) == []
    state = BundleInPlace(file=rpms.path)
    seen = state.probe(node(**facts))
    assert state.refuse(seen) is None
    steps = list(state.apply(seen, state.plan(seen)))
    upload = next(step for step in steps if isinstance(step, ops.Upload))
    assert upload.prefix == ("rocky9-x86_64" if facts is ROCKY else "sles15-x86_64")
    assert "base/repodata/repomd.xml.asc" in {name for name, _, _ in upload.files}
    texts = {step.path: step.text for step in steps if isinstance(step, ops.PutText)}
    assert set(texts) == {f"{BUNDLE_FOLDER}/key.asc", f"{BUNDLE_FOLDER}/repos.d/gpustate.repo"}
    keys = dict(
        row.split("=", 1)
        for row in texts[f"{BUNDLE_FOLDER}/repos.d/gpustate.repo"].splitlines()[2:]
    )
    assert keys["baseurl"] == f"file://{BUNDLE_FOLDER}/{rpms.id}/base"
    assert keys["gpgcheck"] == "0"
    assert keys["repo_gpgcheck"] == ("1" if facts is ROCKY else "0")
    assert keys["gpgkey"] == f"file://{BUNDLE_FOLDER}/key.asc"
    (read,) = (step for step in steps if isinstance(step, ops.RpmUpdate))
    assert (read.manager, read.repository) == (facts["package_manager"], "gpustate-bundle-base")
    told = state.plan(seen).fields
    assert "conf_text" not in told


def test_repodata_counts_as_read_by_its_hash(rpms: Bundle) -> None:
    state = BundleInPlace(file=rpms.path)
    (repository,) = rpms.target("rocky9", "x86_64").repositories
    assert repository.repomd is not None
    for said, known in ((repository.repomd.sha256, True), ("0" * 64, False)):
        fake = FakeNode(facts=NodeFacts(**{**FACTS, **ROCKY}), shell={"gpustate-bundle": (0, said)})
        assert state.probe(fake).lists_read is known


def test_a_node_with_apt_is_not_made_from_rpm_packages(rpms: Bundle) -> None:
    state = BundleInPlace(file=rpms.path)
    reason = state.refuse(state.probe(node(**{**ROCKY, "package_manager": "apt"})))
    assert reason is not None
    assert "for rocky9-x86_64 is not for apt" in reason


@pytest.mark.parametrize("facts", [ROCKY, SLES])
def test_a_repository_in_a_bundle_puts_no_key_into_rpms_database(
    bundle: Bundle, facts: dict[str, Any]
) -> None:
    said = {
        "origin": "mirror",
        "url": f"file:{BUNDLE_FOLDER}/{bundle.id}/driver-repository",
        "key": bundle.key,
        "signed": "metadata",
    }
    state = build(DriverRepository, said)
    fake = FakeNode(facts=NodeFacts(**{**FACTS, **facts}), shell={"": (0, "")})
    seen = state.probe(fake)
    steps = list(state.apply(seen, state.plan(seen)))
    assert not any("rpm --import" in step.script() for step in steps)
    folder = "yum.repos.d" if facts is ROCKY else "zypp/repos.d"
    path = f"/etc/{folder}/gpustate-driver-repository.repo"
    text = next(s.text for s in steps if isinstance(s, ops.PutText) and s.path == path)
    assert f"baseurl=file://{BUNDLE_FOLDER}/{bundle.id}/driver-repository\n" in text
    assert f"repo_gpgcheck={'1' if facts is ROCKY else '0'}\n" in text

    # Away with it, or on to another repository: the bundle goes with the last that was in it.
    fake.files[path] = text
    elsewhere = {**said, "url": "https://mirror.example/cuda", "signed": None}
    for other in (build(DriverRepository, {**said, "ensure": "absent"}), elsewhere):
        after = build(DriverRepository, other) if isinstance(other, dict) else other
        seen = after.probe(fake)
        scripts = [step.script() for step in after.apply(seen, after.plan(seen))]
        (leaving,) = (n for n, text in enumerate(scripts) if f"rm -rf {BUNDLE_FOLDER}" in text)
        assert "/etc/yum.repos.d/gpustate-*.repo" in scripts[leaving]
        assert not any("makecache" in text for text in scripts[:leaving])


# --- policies ------------------------------------------------------------------------------


def test_a_bundle_is_the_last_word_about_where_packages_come_from(bundle: Bundle) -> None:
    policy = Policy(NodeFit(), DriverRepository(), BundleInPlace(file=bundle.path))
    made = bundled.onto(policy, None)
    assert {state.name for state in made.states} == {"preflight", "driver-repository", "bundle"}
    assert ("states", "bundle", "file") in made.last
    # This bundle has no driver: its repository stays what it was.
    (repository,) = (s for s in made.states if isinstance(s, DriverRepository))
    assert repository.source == "vendor"
    assert bundled.onto(Policy(NodeFit()), None).last == ()


def test_a_node_is_refused_before_anything_when_its_bundle_lacks_a_package(bundle: Bundle) -> None:
    from gpustate.model.facts import NodeView
    from gpustate.states.driver import DriverInstalled

    states = [BundleInPlace(file=bundle.path), DriverInstalled(branch=580)]
    view = NodeView("gpu1", (), {}, NodeFacts(**FACTS))
    reason = bundled.lacking(states, Look(view))
    assert str(reason) == (
        f"driver branch 580 as a whole set (there is none) is not in the bundle {bundle.path}; "
        "make one that has it: gpustate bundle POLICY -i INVENTORY --out FILE"
    )
    assert bundled.lacking(states[:1], Look(view)) is None
    assert bundled.lacking(states[1:], Look(view)) is None
