"""Driver sets are solved, locked and applied on nodes with apt, from simulated repositories."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from commands import gpustate

from gpustate_lab import host, setup
from gpustate_lab.api import Lab
from gpustate_lab.node import Node

pytestmark = pytest.mark.long

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

    repositories = tmp_path / "repositories.py"
    repositories.write_text(
        "from gpustate import Policy\nfrom gpustate.states.repository import DriverRepository\n"
        "policy = Policy(DriverRepository())\n"
    )
    # No node has the repository yet.
    solved = gpustate("driver", "solve", wanted("version='580.65.06'"), *rest, "-o", "json", code=0)
    assert {row["set"]["driver"] for row in solved.document["sets"]} == {"580.65.06"}
    text = lock.read_text()
    names = {name for one in json.loads(text)["sets"] for name in one["packages"]}
    assert {"nvidia-driver-cuda", "nvidia-kernel-open-dkms"} <= names
    gpustate("driver", "solve", str(path), *rest, "--check", code=0)
    assert lock.read_text() == text

    # Somebody wants another branch: nothing is planned until it is solved again.
    stale = gpustate("plan", wanted("branch=580"), *rest, code=1)
    assert (
        "locks node gpu1 for driver 580.65.06, but the policy now requests branch 580" in stale.err
    )
    data = json.loads(text)
    for one in data["sets"]:
        one["wanted"] = {"branch": 580}
    lock.write_text(json.dumps(data))

    gpustate("apply", str(path), *rest, "--yes", code=0)
    for node in fresh_lab.nodes:
        listed = node.run(
            "dpkg-query -W -f '${Package} ${Version}\\n' '*nvidia*' libcuda1 | grep ' [0-9]'"
        ).stdout
        rows = dict(line.split() for line in listed.splitlines())
        assert {rows[name] for name in (*names, "libcuda1")} == {"580.65.06-1"}
    again = gpustate("apply", str(path), *rest, "--yes", "-o", "json", code=0)
    assert again.document["summary"].split()[2] == "changed=0"

    with image_of(fresh_lab.nodes[0], tmp_path) as root:
        mine = (*rest, "--node", fresh_lab.nodes[0].name, "--root", str(root), "--gpu", "8xH100")
        gpustate("image", "bake", str(repositories), *mine, "--lock", "none", "--yes", code=0)
        baked = json.dumps(
            gpustate("image", "bake", str(path), *mine, "--dry-run", "-o", "json").document
        )
        newest = gpustate(
            "image", "bake", str(path), *mine, "--dry-run", "--lock", "none", "-o", "json"
        ).document
    assert ("580.65.06-1" in baked, "580.178.04-1" in baked) == (True, False)
    assert "580.178.04-1" in json.dumps(newest)

    newer = gpustate(
        "driver", "outdated", str(path), *rest, "--detailed-exitcode", "-o", "json", code=2
    )
    for row in newer.document["sets"]:
        assert row["update"] == "580.178.04"
        told = {one["version"]: one["because"] for one in row["newer"]}
        assert told["595.91.07"][0] == "the policy requests branch 580"
    limit = ["-l", fresh_lab.nodes[0].name]
    gpustate("driver", "solve", str(path), *rest, *limit, "--prune", "--check", code=0)
    data = json.loads(lock.read_text())
    data["sets"][0]["nodes"].append("gone1")
    lock.write_text(json.dumps(data))
    stays = gpustate("driver", "solve", str(path), *rest, code=0)
    assert "still locked; remove them with --prune: gone1" in stays.out
    assert "gone1" in lock.read_text()
    gpustate("driver", "solve", str(path), *rest, *limit, "--prune", code=0)
    assert [name for name in ("gone1", "580.178.04") if name in lock.read_text()] == []
    assert {*lock_of(lock)} == {node.name for node in fresh_lab.nodes}
    gpustate("driver", "solve", str(path), *rest, "--update", code=0)
    assert "580.65.06" not in lock.read_text()

    refused = gpustate("driver", "solve", wanted("branch=565"), *rest, "-o", "json", code=5)
    assert " has no branch 565; it has branches " in refused.document["refused"]["gpu1"]
