"""``gpustate watch`` on a real cluster: a node joins, a MIG label is carried out, watchers are killed and followed.

Real: API server, kubelets, containerd, NVIDIA's device plugin as pods of a DaemonSet. Simulated: the GPUs and NVML.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pluginpods
import pytest
from commands import GPUSTATE
from gpupods import delete, gpu_pod, import_image, report
from labkubernetes import audit, create, get, kubectl, wait_for

from gpustate_lab.api import Lab
from gpustate_lab.kubernetes.machine import PLUGIN_UNIT
from gpustate_lab.node import Node
from gpustate_lab.spec import LabSpec

pytestmark = pytest.mark.proof

POLICY = Path(__file__).parents[2] / "docs/examples/clusterpolicy.yaml"
MIG_UNIT = "gpustate-mig.service"
MIG, STATE = "nvidia.com/mig.config", "nvidia.com/mig.config.state"
DEPLOY = "nvidia.com/gpu.deploy.device-plugin"
RUNTIME_CLASS = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "nvidia"},
    "handler": "nvidia",
}
#: A node is set up in about a minute; a Lease of a dead watcher, and that of its run, last a minute each.
SETUP_S, TAKEOVER_S = 240.0, 300.0


#: All watchers of this module.
WATCHES: list[Watch] = []


class Watch:
    """A watcher, and its log."""

    def __init__(self, lab: Lab, log: Path, *words: str) -> None:
        self.log = log
        with log.open("w") as file:
            self.process = subprocess.Popen(
                [GPUSTATE, "watch", str(POLICY), "-i", str(lab.inventory), *words],
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    @property
    def text(self) -> str:
        return self.log.read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        """Ask it to end, as systemd does."""
        self.process.terminate()
        return self.process.wait(120)


@pytest.fixture(scope="module")
def cluster(lab_programs: None, lab_factory: Callable[[LabSpec], Lab]) -> Lab:
    """gpu1 and gpu2 are Nodes; gpu3 has no Node yet, and is off."""
    images = ("debian13", "debian13-containerd2", "debian13")
    lab = lab_factory(LabSpec(nodes=3, images=images, kubernetes="1.36"))
    lab.node("gpu3").kill()
    kubectl(lab, "delete", "node", "gpu3")
    create(lab, RUNTIME_CLASS)
    return lab


@pytest.fixture(scope="module")
def watch(cluster: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Watch]]:
    """Starts watchers; they end with the module."""
    folder = tmp_path_factory.mktemp("watch")
    WATCHES.clear()

    def start() -> Watch:
        WATCHES.append(Watch(cluster, folder / f"log{len(WATCHES)}"))
        return WATCHES[-1]

    yield start
    for one in WATCHES:
        one.kill()
        print(f"\n{one.log.name}:\n{one.text}")


def running() -> list[Watch]:
    return [one for one in WATCHES if one.process.poll() is None]


def record(lab: Lab, name: str) -> dict[str, Any]:
    """What the watcher recorded on a Node."""
    items = get(lab, "nodes")["items"]
    notes = [one["metadata"].get("annotations", {}) for one in items if one["metadata"]["name"] == name]  # fmt: skip
    found: dict[str, Any] = json.loads(notes[0].get("gpustate.io/watch", "{}")) if notes else {}
    return found


def done(lab: Lab, name: str) -> bool:
    found = record(lab, name)
    assert found.get("phase") != "failed", found
    return found.get("phase") == "done"


def labels(lab: Lab, name: str) -> dict[str, str]:
    found: dict[str, str] = get(lab, "node", name)["metadata"]["labels"]
    return found


def resources(lab: Lab, node: Node) -> dict[str, int]:
    """What a Node offers of NVIDIA's."""
    status = get(lab, "node", node.name)["status"]
    found = {key: int(value) for key, value in status.get("allocatable", {}).items() if key.startswith("nvidia.com/")}  # fmt: skip
    return {key: value for key, value in found.items() if value}


def requests(lab: Lab, since: str) -> list[tuple[str, str]]:
    """What gpustate asked of the API server since then: verb and resource."""
    return [
        (entry["verb"], entry["objectRef"]["resource"])
        for entry in audit(lab)
        if entry["requestReceivedTimestamp"] >= since
        and entry["stage"] == "ResponseComplete"
        and "gpustate/" in entry.get("userAgent", "")
    ]


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")


def set_up(lab: Lab, watch: Callable[[], Watch]) -> Watch:
    """A watcher that has set up the first two nodes."""
    found = running()[0] if running() else watch()
    wait_for(lambda: done(lab, "gpu1") and done(lab, "gpu2"), "they are set up", SETUP_S)
    return found


def test_nodes_of_the_first_start_are_set_up_and_then_nothing_is_written(
    cluster: Lab, watch: Callable[[], Watch]
) -> None:
    began = now()
    first = set_up(cluster, watch)
    time.sleep(3)
    since = now()
    assert requests(cluster, began).count(("list", "nodes")) >= 1
    assert ("patch", "nodes") in requests(cluster, began)
    # The lab's audit log has no requests for Leases.
    time.sleep(40)
    assert set(requests(cluster, since)) <= {("watch", "nodes")}
    assert first.text.count("applying, run") == 2
    assert not [one for one in first.text.splitlines() if "gpu3" in one]


def test_a_third_node_joins_and_is_ready_for_gpu_pods_though_its_watcher_is_killed(
    cluster: Lab, watch: Callable[[], Watch]
) -> None:
    set_up(cluster, watch)
    node = cluster.node("gpu3")
    node.reset()
    wait_for(lambda: record(cluster, "gpu3").get("phase") == "applying", "it begins", SETUP_S)
    for one in running():
        one.kill()
    second = watch()
    wait_for(lambda: done(cluster, "gpu3"), "it is set up", SETUP_S + TAKEOVER_S)
    assert "did not end; applying" in second.text
    assert "gpu1" not in second.text
    wait_for(lambda: resources(cluster, node) == {"nvidia.com/gpu": 8}, "it offers its GPUs")
    create(cluster, gpu_pod("joined", node, import_image(node), {"nvidia.com/gpu": 1}))
    assert len(report(cluster, "joined")["nvml"]["uuids"]) == 1
    delete(cluster, "joined")
    events = get(cluster, "events", "--field-selector", "involvedObject.name=gpu3")["items"]
    assert {"GpustateApplying", "GpustateApplied"} <= {one["reason"] for one in events}


def test_a_mig_label_goes_through_the_states_of_the_protocol(
    cluster: Lab, watch: Callable[[], Watch]
) -> None:
    set_up(cluster, watch)
    node = cluster.node("gpu2")
    pluginpods.import_image(node)
    node.run(["systemctl", "disable", "--now", PLUGIN_UNIT])
    plugin = pluginpods.daemon_set()
    spec = plugin["spec"]["template"]["spec"]
    spec["nodeSelector"] = {DEPLOY: "true"}
    spec["containers"][0]["env"].append({"name": "MIG_STRATEGY", "value": "mixed"})
    create(cluster, plugin, namespace=pluginpods.NAMESPACE)
    kubectl(cluster, "label", "node", "gpu2", f"{DEPLOY}=true")
    wait_for(lambda: resources(cluster, node) == {"nvidia.com/gpu": 8}, "the plugin's pod runs")
    seen: list[tuple[str, str]] = []

    def ended(state: str) -> bool:
        found = labels(cluster, "gpu2")
        now_ = (found.get(STATE, ""), found.get(DEPLOY, ""))
        if not seen or seen[-1] != now_:
            seen.append(now_)
        return now_ == (state, "true")

    kubectl(cluster, "label", "node", "gpu2", f"{MIG}=all-3g.40gb")
    wait_for(lambda: ended("success"), "the layout is applied", SETUP_S)
    states = list(dict.fromkeys(state for state, _ in seen if state))
    assert states == ["pending", "success"], seen
    assert ("pending", "paused-for-mig-change") in seen
    wait_for(lambda: resources(cluster, node) == {"nvidia.com/mig-3g.40gb": 16}, "MIG devices")
    after = get(cluster, "node", "gpu2")
    assert not after["spec"].get("unschedulable")
    assert not {"gpustate.io/hold", "gpustate.io/mig"} & set(after["metadata"]["annotations"])

    kubectl(cluster, "label", "node", "gpu2", "--overwrite", f"{MIG}=no-such-layout")
    wait_for(lambda: ended("failed"), "a layout that does not exist", SETUP_S)
    assert "no configuration 'no-such-layout'" in record(cluster, "gpu2")["text"]
    assert resources(cluster, node) == {"nvidia.com/mig-3g.40gb": 16}


def test_a_layout_is_finished_by_the_next_watcher_and_a_second_one_waits(
    cluster: Lab, watch: Callable[[], Watch]
) -> None:
    node = cluster.node("gpu2")
    waiting = watch()
    wait_for(lambda: "waiting: " in waiting.text, "the second watcher waits")
    kubectl(cluster, "label", "node", "gpu2", "--overwrite", f"{MIG}=all-disabled")
    wait_for(lambda: labels(cluster, "gpu2").get(STATE) == "pending", "it begins", SETUP_S)
    for one in running():
        if one is not waiting:
            one.kill()
    wait_for(lambda: labels(cluster, "gpu2").get(STATE) == "success", "it is applied", TAKEOVER_S)
    wait_for(lambda: resources(cluster, node) == {"nvidia.com/gpu": 8}, "GPUs without MIG")
    assert labels(cluster, "gpu2")[DEPLOY] == "true"
    wait_for(lambda: done(cluster, "gpu2"), "its record")
    assert waiting.end() == 0
    lease = get(cluster, "lease", "gpustate-watch", "--namespace", "kube-system")
    assert not lease["spec"].get("holderIdentity")


def test_a_removal_takes_a_labels_layout_with_it_and_the_next_watcher_sets_the_node_up_again(
    cluster: Lab, watch: Callable[[], Watch]
) -> None:
    first = set_up(cluster, watch)
    wait_for(lambda: "watching the Nodes" in first.text, "it watches")
    node = cluster.node("gpu2")
    kubectl(cluster, "label", "node", "gpu2", "--overwrite", f"{MIG}=all-3g.40gb")
    wait_for(lambda: resources(cluster, node) == {"nvidia.com/mig-3g.40gb": 16}, "MIG", SETUP_S)
    wait_for(lambda: labels(cluster, "gpu2").get(STATE) == "success", "its end", SETUP_S)
    for one in running():
        assert one.end() == 0
    kubectl(cluster, "label", "node", "gpu2", f"{MIG}-")
    assert node.run(["systemctl", "is-enabled", MIG_UNIT]).stdout.strip() == "enabled"
    words = (str(POLICY), "-i", str(cluster.inventory), "-l", "gpu2", "--yes")
    subprocess.run([GPUSTATE, "remove", *words], check=True, capture_output=True, timeout=SETUP_S)
    assert record(cluster, "gpu2") == {}
    left = node.run(f"ls -d /var/lib/gpustate/mig /etc/systemd/system/{MIG_UNIT}", check=False)
    assert not left.stdout
    again = watch()
    wait_for(lambda: done(cluster, "gpu2"), "it is set up again", SETUP_S)
    assert [one for one in again.text.splitlines() if "gpu2: new; applying" in one]
    assert not [one for one in again.text.splitlines() if "gpu1: " in one]
    assert again.end() == 0
