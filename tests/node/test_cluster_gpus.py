"""Pods get the GPUs of nodes that gpustate has set up, from NVIDIA's own device plugin, runtime and hooks.

Real: API server, scheduler, kubelet, containerd 1.7 and 2.1, runc, systemd as the cgroup driver, NVIDIA's device plugin, GPU feature discovery
and container toolkit, NFD. Simulated: the GPUs, NVML and the CUDA driver library that the CUDA proof runs on.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import gpustate
from gpupods import (
    allocated,
    delete,
    gpu_deployment,
    gpu_pod,
    import_image,
    opened,
    report,
    working,
)
from labkubernetes import WAYS, audit, bring_back, create, get, kubectl, pod, wait_for, wait_phase

from gpustate.cluster import pods
from gpustate_lab.api import Lab
from gpustate_lab.node import Node
from gpustate_lab.spec import LabSpec

POLICY = Path(__file__).parents[2] / "docs/examples/clusterpolicy.yaml"
#: The lab's unit of the device plugin reads its environment there.
SETTINGS = "/etc/default/gpustate-lab-device-plugin"
PLUGIN = "nvidia-device-plugin"
RUNTIME_CLASS = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "nvidia"},
    "handler": "nvidia",
}
#: Selects the pods of ``gpustate validate``.
VALIDATION_PODS = ",".join(f"{key}={value}" for key, value in pods.LABELS.items())
#: Device nodes that every container with a GPU gets.
COMMON = {"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"}


@pytest.fixture(scope="module")
def cluster(lab_programs: None, kubeadm_labs: Callable[[LabSpec], Lab]) -> Lab:
    """gpu1 as Ubuntu 24.04 with containerd 1.7, gpu2 with containerd 2.1; both as the ClusterPolicy has them."""
    images = ("ubuntu2404", "debian13-containerd2")
    lab = kubeadm_labs(LabSpec(nodes=2, images=images, kubernetes="1.36"))
    gpustate("apply", POLICY, "-i", lab.inventory, "--yes", code=0)
    create(lab, RUNTIME_CLASS)
    return lab


@pytest.fixture(scope="module")
def interpreters(cluster: Lab) -> dict[str, str]:
    """The image is on every node; path of Python in it."""
    return {node.name: import_image(node) for node in cluster.nodes}


def resources(lab: Lab, node: Node) -> dict[str, int]:
    """What the Node offers of NVIDIA's resources, without those of which there are none."""
    observed = get(lab, "node", node.name)["status"].get("allocatable", {})
    found = {name: int(count) for name, count in observed.items() if name.startswith("nvidia.com/")}
    return {name: count for name, count in found.items() if count}


def wait_resources(lab: Lab, node: Node, wanted: dict[str, int]) -> None:
    wait_for(lambda: resources(lab, node) == wanted, f"{node.name} offers {wanted}")


def devices(node: Node) -> dict[str, str]:
    """Device node by GPU, as nvidia-smi of the node names them."""
    text = node.run("nvidia-smi -L").stdout
    return {
        uuid: f"/dev/nvidia{index}"
        for index, uuid in re.findall(r"GPU (\d+):.*UUID: ([\w-]+)", text)
    }


def restart_plugin(node: Node, *settings: str) -> None:
    """Restart the plugin with these settings, and wait until the kubelet has its devices again."""
    text = "\n".join(settings)
    write = 'echo "$1" >"$2"; systemctl restart "$3"; systemctl show -P InvocationID "$3"'
    start = node.run(["sh", "-c", write, "sh", text, SETTINGS, PLUGIN]).stdout.strip()
    log = ["journalctl", f"_SYSTEMD_INVOCATION_ID={start}", "-o", "cat"]
    wait_for(lambda: "Registered device plugin" in node.run(log).stdout, f"{PLUGIN} registers")


@pytest.fixture(params=["cdi", "runtime-class"])
def way(request: pytest.FixtureRequest, cluster: Lab) -> Iterator[dict[str, Any]]:
    """How the plugin hands GPUs to the runtime, and what a pod says of it."""
    by_class = request.param == "runtime-class"
    if by_class:
        for node in cluster.nodes:
            # The policy lets no unprivileged container ask by its environment.
            restart_plugin(node, "DEVICE_LIST_STRATEGY=volume-mounts")
    yield {"runtimeClassName": "nvidia"} if by_class else {}
    if by_class:
        for node in cluster.nodes:
            restart_plugin(node, "DEVICE_LIST_STRATEGY=cdi-cri")


def test_nodes_offer_as_many_gpus_as_nvml_counts(cluster: Lab) -> None:
    for node in cluster.nodes:
        wait_resources(cluster, node, {"nvidia.com/gpu": len(devices(node))})
        assert len(devices(node)) == 8


@pytest.mark.long
def test_pods_get_exactly_the_gpus_that_the_plugin_allocated(
    cluster: Lab, interpreters: dict[str, str], way: dict[str, Any]
) -> None:
    for node in cluster.nodes:
        wait_resources(cluster, node, {"nvidia.com/gpu": 8})
    for count in (1, 2, 8):
        names = {f"take{count}-{node.name}": node for node in cluster.nodes}
        for name, node in names.items():
            wanted = {"nvidia.com/gpu": count}
            create(cluster, gpu_pod(name, node, interpreters[node.name], wanted, **way))
        for name, node in names.items():
            observed = report(cluster, name)
            uid = get(cluster, "pod", name)["metadata"]["uid"]
            given = allocated(node, uid)
            assert len(given) == count, (name, given)
            assert set(observed["nvml"]["uuids"]) == given, observed
            paths = {path for path in observed["devices"] if re.fullmatch(r"/dev/nvidia\d+", path)}
            assert paths == {devices(node)[one] for one in given}
            assert set(observed["devices"]) - paths >= COMMON
            assert {one["uuid"] for one in observed["cuda"] if one["ok"]} == given
        delete(cluster, *names)


def test_a_pod_keeps_its_gpu_over_a_daemon_reload(cluster: Lab) -> None:
    for node in cluster.nodes:
        wait_resources(cluster, node, {"nvidia.com/gpu": 8})
        create(cluster, pod(f"keeps-{node.name}", "sleep 10000", node=node.name, gpus=1))
    for node in cluster.nodes:
        name = f"keeps-{node.name}"
        status = wait_phase(cluster, name, "Running")["status"]
        scope = f"cri-containerd-{status['containerStatuses'][0]['containerID'][13:]}.scope"
        group = node.run(["systemctl", "show", "-P", "ControlGroup", scope]).stdout
        assert group.startswith("/kubepods.slice/")
        before = opened(cluster, name)
        # No driver answers in the lab, but the kernel asks the cgroup first: the last one is not the pod's.
        assert len(before) == 3
        assert [line.endswith("Operation not permitted") for line in before] == [False, False, True]
        node.run("systemctl daemon-reload")
        assert opened(cluster, name) == before
    delete(cluster, *(f"keeps-{node.name}" for node in cluster.nodes))


def test_a_pod_that_asks_for_no_gpu_gets_none(cluster: Lab, interpreters: dict[str, str]) -> None:
    node = cluster.nodes[0]
    create(cluster, gpu_pod("without", node, interpreters[node.name], {"cpu": 1}))
    observed = report(cluster, "without")
    assert observed["devices"] == {}
    assert observed["nvml"]["uuids"] == []
    delete(cluster, "without")


@pytest.mark.long
def test_a_gpu_that_fails_is_withdrawn_and_comes_back_with_the_plugin(cluster: Lab) -> None:
    node = cluster.node("gpu2")
    wait_resources(cluster, node, {"nvidia.com/gpu": 8})
    # Right after it has registered, the plugin asks NVML for events; those of before are lost.
    time.sleep(2)
    node.fault("xid-79:3", on=True)
    try:
        wait_resources(cluster, node, {"nvidia.com/gpu": 7})
    finally:
        node.fault("xid-79:3", on=False)
    # The plugin never takes an unhealthy device back by itself.
    assert resources(cluster, node) == {"nvidia.com/gpu": 7}
    restart_plugin(node, "DEVICE_LIST_STRATEGY=cdi-cri")
    wait_resources(cluster, node, {"nvidia.com/gpu": 8})


def test_labels_of_gfd_by_nfd_equal_ours(cluster: Lab) -> None:
    ran = gpustate("node", "labels", "-i", cluster.inventory, "-o", "json", code=0)
    for node in cluster.nodes:
        want = ran.node(node.name)["labels"]

        def difference(node: Node = node, want: dict[str, str] = want) -> set[tuple[str, str]]:
            labels = get(cluster, "node", node.name)["metadata"]["labels"]
            published = {key: labels[key] for key in labels if key.startswith("nvidia.com/")}
            published.pop("nvidia.com/gfd.timestamp", None)
            return published.items() ^ want.items()

        wait_for(lambda difference=difference: not difference(), f"no {difference()}")


@pytest.mark.long
def test_time_slices_are_resources_of_the_plugin(
    cluster: Lab, interpreters: dict[str, str], tmp_path: Path
) -> None:
    node = cluster.node("gpu1")
    policy = tmp_path / "sharing.py"
    policy.write_text(
        "from gpustate import Policy\nfrom gpustate.states.device_plugin import DevicePluginConfigured\n"
        "sharing = {'timeSlicing': {'resources': [{'name': 'nvidia.com/gpu', 'replicas': 4}]}}\n"
        "policy = Policy(DevicePluginConfigured(config={'version': 'v1', 'sharing': sharing}))\n"
    )
    verb = ("-i", cluster.inventory, "-l", "gpu1", "--yes")
    gpustate("apply", policy, *verb, code=0)
    wait_resources(cluster, node, {"nvidia.com/gpu": 32})
    create(cluster, gpu_pod("slice", node, interpreters["gpu1"], {"nvidia.com/gpu": 1}))
    observed = report(cluster, "slice")
    assert len(observed["nvml"]["uuids"]) == 1
    delete(cluster, "slice")
    gpustate("remove", policy, *verb, code=0)
    wait_resources(cluster, node, {"nvidia.com/gpu": 8})


@pytest.mark.long
@pytest.mark.parametrize(
    "way", [WAYS[0], *(pytest.param(one, marks=pytest.mark.proof) for one in WAYS[1:])]
)
def test_a_pod_with_gpus_comes_back_with_its_node(
    cluster: Lab, interpreters: dict[str, str], way: str
) -> None:
    node = cluster.node("gpu1")
    wait_resources(cluster, node, {"nvidia.com/gpu": 8})
    two = gpu_deployment("stays", node, interpreters["gpu1"], {"nvidia.com/gpu": 2})
    create(cluster, two)
    before = wait_for(lambda: working(cluster, "stays", set()), "the pod works")

    def restore() -> None:
        gpustate("apply", POLICY, "-i", cluster.inventory, "-l", node.name, "--yes", code=0)
        import_image(node)

    back = bring_back(cluster, node, way, restore)
    wait_resources(cluster, node, {"nvidia.com/gpu": 8})
    offered = time.monotonic()
    # A pod that the kubelet starts before the plugin has registered fails, and the deployment makes another.
    wait_for(lambda: working(cluster, "stays", {before}), "the pod works again")
    print(
        f"\n{way}: {back}, all GPUs offered after {offered - back.up:.1f} s, "
        f"the pod works after {time.monotonic() - back.up:.1f} s"
    )
    kubectl(cluster, "delete", "deployment", "stays")
    kubectl(cluster, "delete", "pods", "--selector", "app=stays", "--now")


def driver_version(node: Node) -> str:
    """As NVML says."""
    query = "nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1"
    return node.run(query).stdout.strip()


def events(lab: Lab, since: str) -> list[tuple[str, str]]:
    """What gpustate wrote through the API since then: verb and object, in order."""
    found: list[tuple[str, str]] = []
    for entry in audit(lab):
        ref = entry.get("objectRef") or {}
        ours = entry["requestReceivedTimestamp"] >= since and "gpustate/" in entry.get(
            "userAgent", ""
        )
        if ours and entry["verb"] not in ("get", "list", "watch"):
            found.append(
                (entry["verb"], "/".join(filter(None, (ref["resource"], ref.get("subresource")))))
            )
    return found


@pytest.mark.long
def test_a_driver_change_drains_only_the_gpu_pods_of_the_node_and_returns_it(
    cluster: Lab, interpreters: dict[str, str], tmp_path: Path
) -> None:
    node = cluster.node("gpu1")
    wait_resources(cluster, node, {"nvidia.com/gpu": 8})
    create(cluster, gpu_deployment("moves", node, interpreters["gpu1"], {"nvidia.com/gpu": 2}))
    create(cluster, gpu_deployment("stays", node, interpreters["gpu1"], {}))
    bare = gpu_pod("bare", node, interpreters["gpu1"], {"nvidia.com/gpu": 1})
    bare["spec"]["containers"][0]["command"][-1] = "import time; time.sleep(3600)"
    create(cluster, bare)
    before = wait_for(lambda: working(cluster, "moves", set()), "the pod works")
    wait_phase(cluster, "bare", "Running")
    kept = get(cluster, "pods", "--selector", "app=stays")["items"][0]["metadata"]["uid"]
    change = ("--set", "driver.version=595.91.07", "-i", cluster.inventory, "-l", "gpu1")

    shown = gpustate("plan", POLICY, *change, code=5)
    assert "default/bare: no controller would create it again" in shown.out
    refused = gpustate("apply", POLICY, *change, "--yes", code=5)
    assert "default/bare" in refused.out
    assert not get(cluster, "node", "gpu1")["spec"].get("unschedulable")
    assert driver_version(node) == "580.65.06"
    kubectl(cluster, "delete", "pod", "bare", "--now")

    gpustate(
        "apply", POLICY, *change, "--yes", "--ignore-scheduler", "--max-disruption", "none", code=5
    )
    unnamed = tmp_path / "inventory.yml"
    lines = cluster.inventory.read_text().splitlines(keepends=True)
    unnamed.write_text("".join(line for line in lines if "gpustate_kubeconfig" not in line))
    without = (*change[:2], "-i", unnamed, "-l", "gpu1")
    refused = gpustate("apply", POLICY, *without, "--yes", code=5)
    assert "kubelet runs on this node" in refused.out
    assert "--kubeconfig FILE" in refused.out

    since = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
    gpustate("apply", POLICY, *change, "--yes", "--reason", "CHG-7", code=0)
    assert driver_version(node) == "595.91.07"
    after = get(cluster, "node", "gpu1")
    assert not after["spec"].get("unschedulable")
    assert "gpustate.io/hold" not in after["metadata"]["annotations"]
    written = [one for one in events(cluster, since) if one[1] in ("nodes", "pods/eviction")]
    assert written[0] == ("patch", "nodes")
    assert written[-1] == ("patch", "nodes")
    assert written.count(("create", "pods/eviction")) == 1
    left = get(cluster, "pods", "--selector", "app=stays")["items"]
    assert [one["metadata"]["uid"] for one in left] == [kept], "it has no GPU and was left alone"
    restart_plugin(node, "DEVICE_LIST_STRATEGY=cdi-cri")
    wait_resources(cluster, node, {"nvidia.com/gpu": 8})
    wait_for(lambda: working(cluster, "moves", {before}), "the pod works again")

    kubectl(cluster, "cordon", "gpu1")
    change = ("-i", cluster.inventory, "-l", "gpu1", "--yes")
    refused = gpustate("apply", POLICY, *change, code=5)
    assert "cordoned by kubectl" in refused.out
    shown = gpustate("status", "-i", cluster.inventory, "-o", "json", code=0)
    (row,) = shown.document["members"]
    assert (row["name"], row["ready"], row["schedulable"]) == ("gpu1", True, False)
    assert row["foreign"][0].startswith("cordoned by kubectl")
    kubectl(cluster, "uncordon", "gpu1")
    gpustate("apply", POLICY, *change, code=0)
    restart_plugin(node, "DEVICE_LIST_STRATEGY=cdi-cri")
    for name in ("moves", "stays"):
        kubectl(cluster, "delete", "deployment", name)
        kubectl(cluster, "delete", "pods", "--selector", f"app={name}", "--now")


def pod_link(lab: Lab, code: int, *words: str) -> dict[str, dict[str, Any]]:
    """The link ``pod`` of every node after ``gpustate validate``, which leaves neither pod nor image."""
    ran = gpustate("validate", POLICY, "-i", lab.inventory, "-o", "json", *words, code=code)
    assert not get(lab, "pods", "--all-namespaces", "-l", VALIDATION_PODS)["items"]
    for node in lab.nodes:
        assert "gpustate-validate" not in node.run("ctr -n k8s.io images ls -q").stdout
    rows = ran.document["nodes"]
    return {row["name"]: check for row in rows for check in row["checks"] if check["name"] == "pod"}


@pytest.mark.long
def test_validate_runs_a_pod_on_every_node(cluster: Lab) -> None:
    for node in cluster.nodes:
        wait_resources(cluster, node, {"nvidia.com/gpu": 8})
    found = pod_link(cluster, 0)
    assert set(found) == {node.name for node in cluster.nodes}
    for node in cluster.nodes:
        check = found[node.name]
        assert check["outcome"] == "ok", check
        assert f"pod on {node.name}, nvidia.com/gpu: GPU-" in check["evidence"]
        assert "kernel ran on 1" in check["evidence"]
        images = node.run("ctr -n k8s.io images ls").stdout
        assert images.count("docker.io/library/gpustate-lab-cuda:1") <= 1


@pytest.mark.proof
def test_validate_uses_the_runtime_class_where_a_plain_pod_gets_nothing(cluster: Lab) -> None:
    node = cluster.node("gpu1")
    restart_plugin(node, "DEVICE_LIST_STRATEGY=volume-mounts")
    wait_resources(cluster, node, {"nvidia.com/gpu": 8})
    try:
        check = pod_link(cluster, 0, "-l", "gpu1")["gpu1"]
        assert "RuntimeClass nvidia" in check["evidence"], check
        kubectl(cluster, "delete", "runtimeclass", "nvidia")
        check = pod_link(cluster, 3, "-l", "gpu1")["gpu1"]
        assert check["evidence"].startswith(
            "the pod runs, but no device or library of the driver is injected"
        )
        assert "DEVICE_LIST_STRATEGY" in check["remedy"]
        create(cluster, {**RUNTIME_CLASS, "handler": "missing"})
        check = pod_link(cluster, 3, "-l", "gpu1", "--timeout", "10")["gpu1"]
        wanted = "the pod's container did not start in time: 10 s; FailedCreatePodSandBox: "
        assert check["evidence"].startswith(wanted), check
        assert '"missing"' in check["evidence"]
    finally:
        kubectl(cluster, "delete", "runtimeclass", "nvidia", "--ignore-not-found")
        create(cluster, RUNTIME_CLASS)
        restart_plugin(node, "DEVICE_LIST_STRATEGY=cdi-cri")


@pytest.mark.long
def test_validate_names_what_the_runtime_says_of_a_stale_cdi_device(cluster: Lab) -> None:
    node = cluster.node("gpu2")
    wait_resources(cluster, node, {"nvidia.com/gpu": 8})
    node.run("rm /var/run/cdi/k8s.device-plugin.nvidia.com-gpu.json")
    try:
        check = pod_link(cluster, 3, "-l", "gpu2")["gpu2"]
        assert check["evidence"].startswith("the runtime finds no CDI device of that name"), check
        assert "k8s.device-plugin.nvidia.com/gpu=GPU-" in check["evidence"]
    finally:
        restart_plugin(node, "DEVICE_LIST_STRATEGY=cdi-cri")
    wait_resources(cluster, node, {"nvidia.com/gpu": 8})


@pytest.mark.proof
def test_validate_does_not_wait_for_gpus_in_use(cluster: Lab) -> None:
    node = cluster.node("gpu2")
    wait_resources(cluster, node, {"nvidia.com/gpu": 8})
    # An image of equal content goes with that of a validation.
    job = gpu_pod("job", node, import_image(node), {"nvidia.com/gpu": 8})
    job["spec"]["containers"][0]["command"][-1] = "import time; time.sleep(3600)"
    create(cluster, job)
    wait_phase(cluster, "job", "Running")
    try:
        check = pod_link(cluster, 0, "-l", "gpu2")["gpu2"]
        assert check["outcome"] == "not applicable"
        assert check["evidence"] == "all GPUs are in use: 8 of 8 nvidia.com/gpu, by 1 pods"
        assert get(cluster, "pod", "job")["status"]["phase"] == "Running"
    finally:
        delete(cluster, "job")


@pytest.mark.proof
def test_validate_fails_where_the_device_plugin_is_stopped_and_removes_leftovers(
    cluster: Lab,
) -> None:
    node = cluster.node("gpu1")
    left = pods.manifest(
        get(cluster, "node", "gpu1"),
        "gpustate-validate-gpu1-left",
        image="gpustate.invalid/gone:1",
        command=["true"],
        resource="cpu",
    )
    create(cluster, {"apiVersion": "v1", "kind": "Pod", **left})
    node.run(["systemctl", "stop", PLUGIN])
    try:
        wait_resources(cluster, node, {})
        check = pod_link(cluster, 3, "-l", "gpu1")["gpu1"]
        assert check["outcome"] == "failed"
        assert "the device plugin reports no healthy GPU: gpu1: capacity" in check["evidence"]
    finally:
        restart_plugin(node, "DEVICE_LIST_STRATEGY=cdi-cri")
    wait_resources(cluster, node, {"nvidia.com/gpu": 8})


@pytest.mark.long
def test_a_mig_layout_is_resources_of_the_plugin_and_a_pod_gets_one_instance(
    cluster: Lab, tmp_path: Path
) -> None:
    node = cluster.node("gpu2")
    # A validation's image has the same content, and is removed by its digest.
    interpreter = import_image(node)
    policy = tmp_path / "mig.py"
    policy.write_text(
        "from gpustate import Policy\nfrom gpustate.states.cdi import CdiSpecificationCurrent\n"
        "from gpustate.states.mig import MigLayoutApplied\n"
        "policy = Policy(MigLayoutApplied('all-3g.40gb'), CdiSpecificationCurrent())\n"
    )
    # The plugin is a client of the GPUs; MIG mode is changed without it. A Node that offered GPUs
    # before the change is waited for until it offers them again.
    node.run(["systemctl", "stop", PLUGIN])
    wait_resources(cluster, node, {})
    gpustate("apply", policy, "-i", cluster.inventory, "-l", "gpu2", "--yes", code=0)
    restart_plugin(node, "DEVICE_LIST_STRATEGY=cdi-cri", "MIG_STRATEGY=mixed")
    wait_resources(cluster, node, {"nvidia.com/mig-3g.40gb": 16})
    create(cluster, gpu_pod("instance", node, interpreter, {"nvidia.com/mig-3g.40gb": 1}))
    observed = report(cluster, "instance")
    uid = get(cluster, "pod", "instance")["metadata"]["uid"]
    (given,) = allocated(node, uid)
    assert [one["uuid"] for one in observed["cuda"] if one["ok"]] == [given]
    kubectl(cluster, "delete", "pod", "instance", "--now")
    proven = gpustate("validate", "validator", "-i", cluster.inventory, "-l", "gpu2", "-o", "json")
    (check,) = [one for one in proven.node("gpu2")["checks"] if one["name"] == "pod"]
    assert "pod on gpu2, nvidia.com/mig-3g.40gb: MIG-" in check["evidence"], check


@pytest.mark.long
def test_a_new_layout_evicts_only_the_pods_of_gpus_that_change(
    cluster: Lab, interpreters: dict[str, str], tmp_path: Path
) -> None:
    node = cluster.node("gpu1")
    wait_resources(cluster, node, {"nvidia.com/gpu": 8})

    def running(app: str) -> str | None:
        for one in get(cluster, "pods", "--selector", f"app={app}")["items"]:
            if one["status"]["phase"] == "Running":
                return str(one["metadata"]["uid"])
        return None

    for app in ("moves", "stays"):
        create(cluster, gpu_deployment(app, node, interpreters["gpu1"], {"nvidia.com/gpu": 1}))
    moved = wait_for(lambda: running("moves"), "the pod runs")
    kept = wait_for(lambda: running("stays"), "the pod runs")
    (uuid,) = allocated(node, moved)
    number = int(devices(node)[uuid].removeprefix("/dev/nvidia"))
    others = [one for one in range(8) if one != number]
    layout, policy = tmp_path / "layout.yaml", tmp_path / "policy.py"
    layout.write_text(
        "version: v1\nmig-configs:\n  one:\n"
        f"  - {{devices: [{number}], mig-enabled: true, mig-devices: {{1g.10gb: 7}}}}\n"
        f"  - {{devices: {others}, mig-enabled: false}}\n"
    )
    policy.write_text(
        "from gpustate import Policy\nfrom gpustate.states.cdi import CdiSpecificationCurrent\n"
        "from gpustate.states.mig import MigLayoutApplied\n"
        f"mig = MigLayoutApplied('one', file={str(layout)!r}, in_use='drain')\n"
        "policy = Policy(mig, CdiSpecificationCurrent())\n"
    )
    shown = gpustate("plan", policy, "-i", cluster.inventory, "-l", "gpu1", code=0)
    assert "default/moves-" in shown.out, shown.out
    assert "default/stays-" not in shown.out, shown.out
    gpustate("apply", policy, "-i", cluster.inventory, "-l", "gpu1", "--yes", code=0)
    assert running("stays") == kept
    assert running("moves") != moved
    mode = node.run(
        ["nvidia-smi", "-i", str(number), "--query-gpu=mig.mode.current", "--format=csv,noheader"]
    )
    assert mode.stdout == "Enabled\n"
    kubectl(cluster, "delete", "deployment", "moves", "stays")
    kubectl(cluster, "delete", "pods", "--selector", "app in (moves,stays)", "--now")
    policy.write_text(
        policy.read_text().replace("'one'", "'all-disabled'").replace(f"file={str(layout)!r}, ", "")
    )
    gpustate("apply", policy, "-i", cluster.inventory, "-l", "gpu1", "--yes", code=0)
