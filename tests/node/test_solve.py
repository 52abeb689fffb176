"""The solver on indexes as apt fetches them: Debian's own real ones, and those of simulated repositories."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import gpustate
from solveworld import H100, V100, problem, unresolved_names

from gpustate.core.queries import Answer, Query
from gpustate.resolver.deb_indexes import DebDriverQuery, OtherPackagesQuery, with_pins
from gpustate.solve.packages import Package, Repository, Universe
from gpustate.solve.request import DriverRequest
from gpustate.solve.solver import NoSolution, Solution, describe_conflict, solve
from gpustate_lab import host, setup
from gpustate_lab.api import Lab
from gpustate_lab.node import Node

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
#: Driver of Debian's releases, by branch.
BRANCH = {"bookworm": 535, "trixie": 550}


def archive() -> str:
    """The address that this machine takes Debian from; nothing else is asked."""
    for path in sorted(Path("/etc/apt").glob("sources.list*")):
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        for file in files:
            found = re.search(r"https?://\S+/debian(?=/?\s)", file.read_text("utf-8") + "\n")
            if found:
                return found[0]
    pytest.skip("this machine takes no packages from a Debian archive")


@pytest.fixture(params=sorted(BRANCH))
def release(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """One release and the configuration of an apt that has read its non-free indexes."""
    if not KEYRING.exists():
        pytest.skip("no keys of Debian's archive on this machine")
    for folder in ("lists/partial", "cache"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "debian.sources").write_text(
        f"Types: deb\nURIs: {archive()}\nSuites: {request.param}\n"
        f"Components: contrib non-free non-free-firmware\nSigned-By: {KEYRING}\n"
    )
    conf = tmp_path / "apt.conf"
    conf.write_text(
        f'Dir::Etc::sourcelist "{tmp_path}/debian.sources"; Dir::Etc::sourceparts "-";\n'
        f'Dir::State::lists "{tmp_path}/lists"; Dir::Cache "{tmp_path}/cache";\n'
        'Acquire::Languages "none"; Acquire::Retries "1"; Acquire::http::Timeout "20";\n'
        'APT::Sandbox::User "root"; APT::Architecture "amd64"; APT::Architectures "amd64";\n'
    )
    words = ["apt-get", "-q", "update", "-o", "APT::Update::Error-Mode=any"]
    env = {**os.environ, "APT_CONFIG": str(conf)}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode != 0:
        pytest.skip(f"Debian's archive could not be read: {done.stderr.strip()[-200:]}")
    return str(request.param), conf


def asked(query: Query[Any], conf: Path) -> Any:
    """What an ask finds where apt is configured so."""
    env = {**os.environ, "APT_CONFIG": str(conf), "LC_ALL": "C"}
    done = subprocess.run(["sh", "-c", query.script()], env=env, capture_output=True, check=False)
    return query.parse(Answer(done.returncode, done.stdout))


def test_debians_own_drivers_are_solved_from_its_real_indexes(release: tuple[str, Path]) -> None:
    name, conf = release
    mine: tuple[Package, ...] = asked(DebDriverQuery(), conf)
    assert {p.repository.origin for p in mine} == {"Debian"}
    names = tuple(sorted({one.name for one in mine}))
    offered = with_pins(mine, asked(OtherPackagesQuery(unresolved_names(mine), names), conf))
    # Its main component, which has the compilers, is left out here; what is not found is taken for offered.
    there = {provided for p in offered for provided in (p.name, *(n for n, _ in p.provides))}
    main = Repository("Debian", name, "main")
    below = defaultdict(str, {"<<": "~"})
    needed = [
        # Just below what it must be below of: that is above the bounds from below as well.
        Package(relation.name, (relation.version or "1") + below[relation.op], main, leaf=True)
        for one in mine
        for clause in one.depends
        for relation in clause
        if relation.name not in there
    ]
    universe = Universe((*offered, *needed))
    for full in (False, True):
        for gpu in (H100, V100):
            found = solve(problem(DriverRequest(branch=BRANCH[name], full=full), universe, gpu))
            assert isinstance(found, Solution), describe_conflict(found)
            versions = {package.driver for package in found.packages} - {""}
            assert versions == {found.candidate.version}
            assert {package.repository.origin for package in found.packages} == {"Debian"}
            mine_of_it = [package for package in found.packages if package.driver]
            assert len(mine_of_it) >= 9
            assert all(re.fullmatch(r"[0-9a-f]{64}", package.sha256) for package in mine_of_it)
    newer = solve(problem(DriverRequest(branch=580), universe, H100))
    assert isinstance(newer, NoSolution)
    assert [reason.text for reason in newer.reasons] == ["the policy requests branch 580"]
    alone = Universe(tuple(replace(one) for one in mine))
    without = solve(problem(DriverRequest(branch=BRANCH[name]), alone, H100))
    assert isinstance(without, NoSolution)
    assert "which no repository offers" in describe_conflict(without)


POLICY = """
from gpustate import Policy
from gpustate.states.driver import DriverInstalled
from gpustate.states.fabric_manager import FabricManagerRunning
from gpustate.states.nouveau import NouveauBlacklisted
from gpustate.states.repository import DriverRepository

policy = Policy(NouveauBlacklisted(), DriverRepository(), DriverInstalled({}), FabricManagerRunning())
"""


def lock_of(path: Path) -> list[str]:
    """Nodes of a lock file."""
    return [node for one in json.loads(path.read_text())["sets"] for node in one["nodes"]]


@contextmanager
def image_of(node: Node, folder: Path) -> Iterator[Path]:
    """The root of a node's image as it was before it ever ran, to bake in."""
    root = folder / "image/root"
    host.mount_overlay(root, node.layers, folder / "image/upper", folder / "image/work")
    try:
        setup._replace_sources(root, node.sources)
        yield root
    finally:
        host.unmount_all(root)


def test_nodes_are_locked_applied_and_stay_where_they_are(fresh_lab: Lab, tmp_path: Path) -> None:
    """The repositories are the lab's: names and relations of NVIDIA's packages, no software of theirs."""
    path, lock = tmp_path / "policy.py", tmp_path / "gpustate.lock"
    rest = ["-i", str(fresh_lab.inventory)]

    def wanted(parameters: str) -> str:
        path.write_text(POLICY.replace("{}", parameters))
        return str(path)

    refused = gpustate("solve", wanted("branch=580"), *rest, "-o", "json", code=5)
    assert "apply driver-repository first" in refused.document["refused"]["gpu1"]
    assert not lock.exists()
    repositories = tmp_path / "repositories.py"
    repositories.write_text(
        "from gpustate import Policy\nfrom gpustate.states.repository import DriverRepository\n"
        "policy = Policy(DriverRepository())\n"
    )
    gpustate("apply", str(repositories), *rest, "--yes", code=0)

    solved = gpustate("solve", wanted("version='580.65.06'"), *rest, "-o", "json", code=0)
    assert {row["set"]["driver"] for row in solved.document["sets"]} == {"580.65.06"}
    text = lock.read_text()
    names = {row["name"] for one in json.loads(text)["sets"] for row in one["packages"]}
    assert {"libcuda1", "nvidia-fabricmanager", "nvidia-kernel-open-dkms"} <= names
    gpustate("solve", str(path), *rest, "--check", code=0)
    assert lock.read_text() == text

    # Somebody wants another branch: nothing is planned until it is solved again.
    stale = gpustate("plan", wanted("branch=580"), *rest, code=1)
    assert (
        "locks node gpu1 for driver 580.65.06, but the policy now requests branch 580" in stale.err
    )
    data = json.loads(text)
    for one in data["sets"]:
        one["wanted"] = {"branch": 580, "fabric_manager": True}
    lock.write_text(json.dumps(data))

    gpustate("apply", str(path), *rest, "--yes", code=0)
    for node in fresh_lab.nodes:
        listed = node.run(
            "dpkg-query -W -f '${Package} ${Version}\\n' '*nvidia*' libcuda1 | grep ' [0-9]'"
        ).stdout
        rows = dict(line.split() for line in listed.splitlines())
        assert names <= {*rows, "firmware-nvidia-gsp"}
        assert {rows[name] for name in names & {*rows}} == {"580.65.06-1"}
    again = gpustate("apply", str(path), *rest, "--yes", "-o", "json", code=0)
    assert again.document["summary"].split()[2] == "changed=0"

    with image_of(fresh_lab.nodes[0], tmp_path) as root:
        mine = (*rest, "--as", fresh_lab.nodes[0].name, "--root", str(root), "--gpu", "8xH100")
        gpustate("bake", str(repositories), *mine, "--no-lock", "--yes", code=0)
        baked = json.dumps(gpustate("bake", str(path), *mine, "--dry-run", "-o", "json").document)
        newest = gpustate("bake", str(path), *mine, "--dry-run", "--no-lock", "-o", "json").document
    assert ("580.65.06-1" in baked, "580.178.04-1" in baked) == (True, False)
    assert "580.178.04-1" in json.dumps(newest)

    newer = gpustate("outdated", str(path), *rest, "--detailed-exitcode", "-o", "json", code=2)
    for row in newer.document["sets"]:
        assert row["update"] == "580.178.04"
        told = {one["version"]: [why["text"] for why in one["because"]] for one in row["newer"]}
        assert told["595.91.07"][0] == "the policy requests branch 580"
    limit = ["-l", fresh_lab.nodes[0].name]
    gpustate("solve", str(path), *rest, *limit, "--prune", "--check", code=0)
    data = json.loads(lock.read_text())
    data["sets"][0]["nodes"].append("gone1")
    lock.write_text(json.dumps(data))
    stays = gpustate("solve", str(path), *rest, code=0)
    assert "still locked; remove them with --prune: gone1" in stays.out
    assert "gone1" in lock.read_text()
    gpustate("solve", str(path), *rest, *limit, "--prune", code=0)
    assert [name for name in ("gone1", "580.178.04") if name in lock.read_text()] == []
    assert {*lock_of(lock)} == {node.name for node in fresh_lab.nodes}
    gpustate("solve", str(path), *rest, "--update", code=0)
    assert "580.65.06" not in lock.read_text()

    conflict = gpustate("solve", wanted("branch=565"), *rest, "-o", "json", code=5)
    assert [one["text"] for one in conflict.document["conflicts"][0]["facts"]] == [
        "the policy requests branch 565"
    ]
