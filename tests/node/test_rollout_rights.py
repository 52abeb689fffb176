"""A user without the rights for a rollout is told every rule to add by a real API server, and nothing is written."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from commands import gpustate
from labkubernetes import audit, get, kubectl

from gpustate.schedulers.kubernetes.rights import CHANGING
from gpustate_lab.api import Lab
from gpustate_lab.kubernetes.cluster import Kubernetes
from gpustate_lab.node import Node
from gpustate_lab.spec import LabSpec

pytestmark = pytest.mark.long

POLICY = Path(__file__).parents[2] / "docs/examples/clusterpolicy.yaml"
REVIEWS = ("selfsubjectaccessreviews", "selfsubjectreviews")
OLD, NEW = "570.211.01", "580.65.06"


@pytest.fixture(scope="module")
def cluster(lab_programs: None, lab_factory: Callable[[LabSpec], Lab]) -> Lab:
    """A node of a cluster with the old driver."""
    lab = lab_factory(LabSpec(nodes=1, images=("debian13",), kubernetes="1.36"))
    words = ("--set", f"driver.version={OLD}", "-i", lab.inventory, "--yes")
    gpustate("apply", POLICY, *words, code=0)
    return lab


def driver_version(node: Node) -> str:
    query = "nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1"
    return node.run(query).stdout.strip()


def resource(right: tuple[str, str, str]) -> str:
    """As ``kubectl auth can-i`` has it: ``pods/eviction``, ``daemonsets.apps``."""
    name, _, sub = right[2].partition("/")
    return ".".join(filter(None, (name, right[1]))) + (f"/{sub}" if sub else "")


def names(text: str, right: tuple[str, str, str]) -> bool:
    """A rule to add covers a right."""
    verb, group, resource = right
    rule = re.escape(f'{{apiGroups: ["{group}"], resources: ["{resource}"], verbs: ') + r"(\[.*?\])"
    return any(verb in json.loads(verbs) for verbs in re.findall(rule, text))


def test_each_missing_right_is_named_and_the_audit_log_has_no_write(
    cluster: Lab, tmp_path: Path
) -> None:
    (node,) = cluster.nodes
    layout = Kubernetes(cluster).layout
    words = ("--set", f"driver.version={NEW}", "-i", cluster.inventory, "--yes")
    since = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())

    def writes(user: str) -> list[str]:
        return [
            entry["verb"]
            for entry in audit(cluster)
            if entry["requestReceivedTimestamp"] >= since
            and entry["user"].get("username") == user
            and entry["verb"] not in ("get", "list", "watch")
            and (entry.get("objectRef") or {}).get("resource") not in REVIEWS
        ]

    viewer = gpustate("apply", POLICY, *words, "--kubeconfig", layout.user_file("viewer"), code=5)
    wanted = {("patch", "", "nodes"), ("delete", "", "pods"), ("create", "", "pods/eviction")}
    for right in CHANGING:
        may = kubectl(cluster, "auth", "can-i", right[0], resource(right), "-A", user="viewer", check=False)  # fmt: skip
        assert names(viewer.out, right) == (may.returncode != 0), right
        wanted.discard(right)
    assert not wanted
    assert "user viewer lacks rights to take nodes out of service" in viewer.out
    nobody = gpustate("apply", POLICY, *words, "--kubeconfig", layout.user_file("gpustate"), code=5)
    for right in CHANGING:
        assert names(nobody.out, right), right
    assert writes("viewer") == writes("gpustate") == []

    file = tmp_path / "expired"
    config = yaml.safe_load(layout.user_file("admin").read_text())
    config["users"][0]["user"] = {"token": "of-last-year"}
    file.write_text(json.dumps(config))
    ran = gpustate("apply", POLICY, *words, "--kubeconfig", file, code=5)
    assert "Unauthorized; its user's token or certificate is expired" in ran.out
    assert driver_version(node) == OLD
    assert not get(cluster, "node", "gpu1")["spec"].get("unschedulable")
