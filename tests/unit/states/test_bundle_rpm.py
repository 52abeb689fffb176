"""A node with dnf or zypper has its part of a bundle, sees nothing else, and both go again without a trace."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bundleworld import Site, rpm
from rpmworld import Rpm

from gpustate import NodeFacts, ops
from gpustate.bundle import reading, write
from gpustate.bundle.reading import Bundle
from gpustate.bundle.write import Origin
from gpustate.core.facts import NodeView
from gpustate.core.policy import Policy, build
from gpustate.formats import driverschemes
from gpustate.ops.upload import BUNDLE_FOLDER
from gpustate.package_sets import bundle_nodes
from gpustate.plan.make import Observations
from gpustate.states.bundle import BundleInPlace
from gpustate.states.driver import DriverInstalled
from gpustate.states.repository import DriverRepository
from gpustate.testing import FakeNode

FACTS: dict[str, Any] = {"machine": "x86_64"}
ROCKY: dict[str, Any] = {"os_id": "rocky", "os_version": "9.6", "package_manager": "dnf"}
SLES: dict[str, Any] = {"os_id": "sles", "os_version": "15.7", "package_manager": "zypper"}


def node(**facts: Any) -> FakeNode:
    return FakeNode(facts=NodeFacts(**{**FACTS, **facts}), shell={"gpustate-bundle": (0, "")})


@pytest.fixture
def rpms(tmp_path: Path) -> Bundle:
    sites = [Site(tmp_path / name, name) for name in ("rocky9", "sles15")]
    write.write(write.prepare([site.selection() for site in sites]), tmp_path / "rpms.tar")
    return reading.load(str(tmp_path / "rpms.tar"))


@pytest.mark.parametrize("facts", [ROCKY, SLES])
def test_dnf_and_zypper_see_the_bundle_and_nothing_else(
    rpms: Bundle, facts: dict[str, Any]
) -> None:
    assert reading.check(rpms) == []
    state = BundleInPlace(file=rpms.path)
    observed = state.probe(node(**facts))
    assert state.refuse(observed) is None
    steps = list(state.apply(observed, state.plan(observed)))
    upload = next(step for step in steps if isinstance(step, ops.Upload))
    assert upload.prefix == ("rocky9-x86_64" if facts is ROCKY else "sles15-x86_64")
    assert "base/repodata/repomd.xml" in {name for name, _, _ in upload.files}
    texts = {step.path: step.text for step in steps if isinstance(step, ops.PutText)}
    assert set(texts) == {f"{BUNDLE_FOLDER}/repos.d/gpustate.repo"}
    keys = dict(
        row.split("=", 1)
        for row in texts[f"{BUNDLE_FOLDER}/repos.d/gpustate.repo"].splitlines()[2:]
    )
    assert keys["baseurl"] == f"file://{BUNDLE_FOLDER}/{rpms.id}/base"
    assert keys["gpgcheck"] == "0"
    assert keys["repo_gpgcheck"] == "0"
    assert "gpgkey" not in keys
    (read,) = (step for step in steps if isinstance(step, ops.RpmUpdate))
    assert (read.manager, read.repository) == (facts["package_manager"], "gpustate-bundle-base")
    told = state.plan(observed).fields
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
    assert "has no packages of rocky9-x86_64 for apt" in reason


@pytest.mark.parametrize("facts", [ROCKY, SLES])
def test_a_repository_in_a_bundle_puts_no_key_into_rpms_database(
    rpms: Bundle, facts: dict[str, Any]
) -> None:
    said = {
        "origin": "mirror",
        "url": f"file:{BUNDLE_FOLDER}/{rpms.id}/driver-repository",
        "signed": "nothing",
    }
    state = build(DriverRepository, said)
    fake = FakeNode(facts=NodeFacts(**{**FACTS, **facts}), shell={"": (0, "")})
    observed = state.probe(fake)
    steps = list(state.apply(observed, state.plan(observed)))
    assert not any("rpm --import" in step.script() for step in steps)
    folder = "yum.repos.d" if facts is ROCKY else "zypp/repos.d"
    path = f"/etc/{folder}/gpustate-driver-repository.repo"
    text = next(s.text for s in steps if isinstance(s, ops.PutText) and s.path == path)
    assert f"baseurl=file://{BUNDLE_FOLDER}/{rpms.id}/driver-repository\n" in text
    assert "gpgcheck=0\nrepo_gpgcheck=0\npriority" in text

    # Away with it, or on to another repository: the bundle goes with the last that was in it.
    fake.files[path] = text
    elsewhere = {**said, "url": "https://mirror.example/cuda"}
    for other in (build(DriverRepository, {**said, "ensure": "absent"}), elsewhere):
        after = build(DriverRepository, other) if isinstance(other, dict) else other
        observed = after.probe(fake)
        scripts = [step.script() for step in after.apply(observed, after.plan(observed))]
        (leaving,) = (n for n, text in enumerate(scripts) if f"rm -rf {BUNDLE_FOLDER}" in text)
        assert "/etc/yum.repos.d/gpustate-*.repo" in scripts[leaving]
        assert not any("makecache" in text for text in scripts[:leaving])


DEVEL, KERNEL = "5.14.0-570.12.1.el9_6", "5.14.0-570.12.1.el9_6.x86_64"


def test_the_bundle_is_complete_for_a_policy_and_says_what_it_lacks(tmp_path: Path) -> None:
    names = [name for scheme in driverschemes.of("rocky") for name in scheme.compute]
    names += ["kmod-nvidia-open-dkms", "nvidia-kmod-common", "nvidia-driver-cuda-libs"]
    packages = [Rpm(name, "3:580.65.06-1.el9") for name in dict.fromkeys(names)]
    fetched = [rpm(tmp_path / "rpms", one, "gpustate-driver-repository") for one in packages]
    origins = {"driver-repository": Origin("gpustate-driver-repository")}
    write.write(
        write.prepare([write.Selection("rocky9", "x86_64", (), {}, fetched, origins)]),
        tmp_path / "b.tar",
    )
    bundle = reading.load(str(tmp_path / "b.tar"))
    facts = NodeFacts(**{**FACTS, **ROCKY})
    states = [BundleInPlace(file=bundle.path), DriverInstalled(branch=580)]
    view = NodeView("gpu1", (), {}, facts)
    assert bundle_nodes.lacking(states, Observations(view)) is None
    driver = SimpleNamespace(headers={KERNEL: False}, switches=False)
    reason = bundle_nodes.lacking(states, Observations(view, observed={"driver": driver}))
    assert str(reason) == (
        f"kernel-devel-{DEVEL} is not in the bundle {bundle.path}; build one that has it: "
        f"gpustate image bundle make POLICY -i INVENTORY --kernel {KERNEL} --out FILE"
    )
    onto = bundle_nodes.onto(Policy(DriverRepository()), bundle.path)
    (repository,) = (s for s in onto.states if isinstance(s, DriverRepository))
    assert (repository.signed, repository.key) == ("nothing", None)
