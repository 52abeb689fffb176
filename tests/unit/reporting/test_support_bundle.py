"""The archive and the answers of nodes: fixed order, safe names, limits."""

from __future__ import annotations

import base64
import io
import tarfile
from contextlib import nullcontext

import fakecluster
import pytest
import sandbox

from gpustate.cluster import pods
from gpustate.cluster.kubeconfig import Kubeconfig
from gpustate.core.facts import NodeFacts
from gpustate.core.inventory import InventoryNode
from gpustate.core.queries import Answer
from gpustate.documents import Json
from gpustate.errors import ClusterError
from gpustate.reporting import cluster_files, node_files, support_bundle
from gpustate.reporting.node_files import CollectQuery, Item
from gpustate.reporting.support_bundle import Archive


def answer(*lines: str) -> Answer:
    return Answer(0, "\n".join(lines).encode())


def coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_items_are_read_with_the_status_of_their_commands() -> None:
    lines = (f"item pci {coded('a')}", f"item smi {coded(chr(10).join(('one', 'two', '127')))}")
    found = CollectQuery("", 5).parse(answer(*lines, "absent run/r1", "complete"))
    assert found.items == (Item("pci", "", 1), Item("smi", "one\ntwo", 127))
    assert (found.absent, found.complete) == (("run/r1",), True)
    assert not CollectQuery("", 5).parse(answer(*lines)).complete


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "a//b", ".", "a b", "a\x1b", ""])
def test_a_name_that_leaves_its_folder_is_ignored(name: str) -> None:
    found = CollectQuery("", 5).parse(answer(f"item {name} {coded('x')}", "complete"))
    assert not [one for one in found.items if one.name == name]


def test_a_long_item_says_that_it_is_cut() -> None:
    text = "x" * (node_files.ITEM_BYTES - 2) + "\n0"
    (item,) = CollectQuery("", 5).parse(answer(f"item log {coded(text)}")).items
    assert item.cut


def test_the_same_files_make_the_same_archive_for_the_owner_only() -> None:
    first, second = Archive("t"), Archive("t")
    first.add_text("b", "x")
    first.add_data("a", {"k": 1})
    second.add_data("a", {"k": 1})
    second.add_text("b", "x")
    assert first.pack() == second.pack()
    with tarfile.open(fileobj=io.BytesIO(first.pack())) as tar:
        assert tar.getnames() == ["gpustate-support/a", "gpustate-support/b"]
        assert {one.mode for one in tar} == {0o600}


def test_a_bundle_that_grows_too_large_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(support_bundle, "TOTAL_BYTES", 10)
    archive = Archive("t")
    archive.add_text("a", "x" * 8)
    archive.add_text("b", "x" * 8)
    assert list(archive.files) == ["a"]
    assert [path for path, _ in archive.missing] == ["b"]


def test_folders_are_safe_and_unique() -> None:
    found = support_bundle.folders(["gpu1", "a/b", "a_b", "..", "\u00fc"])
    assert len(set(found.values())) == 5
    assert all("/" not in one and not one.startswith(".") for one in found.values())


#: Secrets in files of other programs, which nobody has registered.
PLANTED = r"""
mkdir -p /etc/containerd/conf.d /etc/docker /etc/crio/crio.conf.d /etc/modprobe.d "$G/runs/r1-1"
printf '%s\n' '[plugins.x.registry.configs."r.example".auth]' 'username = "u"' 'password = "hunter2-a"' >/etc/containerd/config.toml
printf '%s\n' 'auth = "hunter2-b"' >/etc/containerd/conf.d/99-x.toml
printf '%s\n' '{"auths": {"r.example": {"auth": "hunter2-c"}}, "http-proxy": "http://u:hunter2-d@proxy.example"}' >/etc/docker/daemon.json
printf '%s\n' 'options nvidia NVreg_X=1' >/etc/modprobe.d/nvidia.conf
printf '%s\n' 'curl -H "Authorization: Bearer hunter2-e"' >"$G/runs/r1-1/out.1"
echo '{"e":"end"}' >"$G/runs/r1-1/journal"; echo '{}' >"$G/runs/r1-1/info"
"""


@pytest.mark.skipif(bool(sandbox.missing()), reason=sandbox.missing())
def test_a_real_collection_has_files_and_the_run_and_no_planted_secret() -> None:
    query = CollectQuery("r1", 50)
    ran = sandbox.run({"one": PLANTED + query.script()})["one"]
    assert ran.status == 0, ran.output
    found = query.parse(Answer(0, ran.output.encode()))
    assert found.complete
    items = {one.name: one for one in found.items}
    assert "hunter2-a" in items["files/etc/containerd/config.toml"].text
    assert items["files/etc/modprobe.d/nvidia.conf"].text == "options nvidia NVreg_X=1\n"
    assert '{"e":"end"}' in items["run/r1-1/journal"].text
    assert items["nvidia-smi"].status == 0
    archive = Archive("t")
    for one in found.items:
        archive.add_text(one.name, one.text)
    assert b"hunter2" not in b"".join(archive.files.values())
    assert archive.files["run/r1-1/output"].startswith(b"== out.1\n")
    assert archive.files["files/etc/containerd/conf.d/99-x.toml"] == b'auth = "(secret)"\n'


class FakeApi:
    """A cluster with two Nodes and three pods on each. ``denied``: its user may read neither Events nor the Lease."""

    def __init__(self, *, denied: bool = False) -> None:
        self.denied = denied

    def _check(self) -> None:
        if self.denied:
            raise ClusterError("forbidden")

    def nodes(self) -> list[Json]:
        return [fakecluster.node("gpu1"), fakecluster.node("gpu2")]

    def node_events(self) -> list[Json]:
        self._check()
        return [
            {"involvedObject": {"name": name}, "reason": f"of {name}", "metadata": {}}
            for name in ("gpu1", "gpu2")
        ]

    def lease(self, namespace: str, name: str) -> Json | None:
        self._check()
        return {"metadata": {"name": name, "managedFields": [1]}, "spec": {"holderIdentity": "r"}}

    def pods_on(self, node: str) -> list[Json]:
        plugin = {"containers": [{"image": "nvcr.io/nvidia/k8s-device-plugin:v1"}]}
        owner = [{"kind": "DaemonSet", "name": "p", "controller": True}]
        metas = (
            {"name": "job", "namespace": "a"},
            {"name": "plugin", "namespace": "gpu", "ownerReferences": owner},
            {"name": "ours", "namespace": "a", "labels": pods.LABELS},
        )
        return [{"metadata": meta, "spec": plugin, "status": {}} for meta in metas]

    def close(self) -> None:
        pass


def collected(
    monkeypatch: pytest.MonkeyPatch, api: FakeApi
) -> tuple[dict[str, Json], dict[str, str]]:
    monkeypatch.setattr(cluster_files, "connected", lambda kubeconfig: nullcontext(api))
    facts = {
        "here": NodeFacts(boot_id="boot-gpu1", machine_id="machine-gpu1", system_uuid="UUID-GPU1"),
        "other": NodeFacts(boot_id="x", machine_id="y", system_uuid="z"),
    }
    nodes = [InventoryNode(name) for name in ("here", "other", "gpu2", "gone")]
    return cluster_files.collect(Kubeconfig("k"), nodes, facts)


def test_a_cluster_has_each_machine_s_node_and_only_our_and_nvidia_s_pods(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, missing = collected(monkeypatch, FakeApi())
    assert list(found) == ["leases/gpustate", "here", "gpu2"]
    assert found["here"]["node"]["metadata"]["name"] == "gpu1"
    assert [pod["name"] for pod in found["here"]["pods"]] == ["plugin", "ours"]
    assert "no Node of the cluster is this machine" in missing["other"]


def test_a_node_that_was_not_reached_has_what_the_api_server_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, missing = collected(monkeypatch, FakeApi())
    assert found["gpu2"]["node"]["metadata"]["name"] == "gpu2"
    assert [event["reason"] for event in found["gpu2"]["events"]] == ["of gpu2"]
    assert found["leases/gpustate"] == {
        "metadata": {"name": "gpustate"},
        "spec": {"holderIdentity": "r"},
    }
    assert missing["gone"] == (
        "the node was not reached, and no Node has its name or address: gone"
    )
    found, missing = collected(monkeypatch, FakeApi(denied=True))
    assert (missing["events"], missing["leases/gpustate"]) == ("forbidden", "forbidden")
    assert list(found) == ["here", "gpu2"], "what may be read is there"


def test_pods_and_nodes_are_told_without_what_may_be_secret() -> None:
    env = {"env": [{"name": "KEY", "value": "hunter2"}], "args": ["hunter2"], "image": "x:1"}
    pod = {"metadata": {"name": "p", "namespace": "n"}, "spec": {"containers": [env]}}
    shown = cluster_files.pod_data(pod)
    assert shown["images"] == ["x:1"]
    assert "hunter2" not in str(shown)
    node = {"metadata": {"name": "n", "managedFields": [1], "annotations": {"a": "b"}}}
    assert cluster_files.node_data(node)["metadata"] == {"name": "n", "annotations": {"a": "b"}}
