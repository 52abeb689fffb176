"""The lab's Kubernetes cluster: real kubelets that join, come back as the same Node, and run containers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from labkubernetes import (
    WAYS,
    audit,
    bring_back,
    create,
    get,
    kubectl,
    logs,
    pod,
    wait_for,
    wait_phase,
)
from labtraces import traces

from gpustate_lab import api, process
from gpustate_lab.api import Lab
from gpustate_lab.kubernetes.cluster import Kubernetes
from gpustate_lab.kubernetes.controlplane import NAMES
from gpustate_lab.node import Node
from gpustate_lab.spec import LabSpec

pytestmark = pytest.mark.long

LabFactory = Callable[[LabSpec], Lab]


@pytest.fixture(scope="module")
def cluster(lab_programs: None, kubeadm_labs: LabFactory) -> Lab:
    """gpu1 with Debian 12, containerd 1.6 and cgroupfs; gpu2 as Ubuntu 24.04 with containerd 1.7 and systemd."""
    return kubeadm_labs(
        LabSpec(
            nodes=2,
            images=("debian12", "ubuntu2404"),
            cgroups=("cgroupfs", "systemd"),
            kubernetes="1.36",
            virtual=3,
        )
    )


def uid(lab: Lab, node: Node) -> str:
    text: str = get(lab, "node", node.name)["metadata"]["uid"]
    return text


def test_every_node_is_ready_with_the_cluster_s_version_and_nothing_failed(cluster: Lab) -> None:
    nodes = {item["metadata"]["name"]: item for item in get(cluster, "nodes")["items"]}
    assert set(nodes) == {"gpu1", "gpu2", "virtual1", "virtual2", "virtual3"}
    for node in cluster.nodes:
        info = nodes[node.name]["status"]["nodeInfo"]
        assert info["kubeletVersion"].startswith("v1.36.")
        assert info["bootID"] == node.boot_id()
        assert node.run("systemctl is-system-running").stdout.strip() == "running"
        refused = "journalctl -u kubelet -o cat | grep -i '^[EW].*oom.\\?score' || :"
        assert node.run(refused).stdout == ""
        systemd = node.spec.cgroups == "systemd"
        configured = node.run("containerd config dump | grep SystemdCgroup").stdout.strip()
        assert configured == f"SystemdCgroup = {str(systemd).lower()}"
        assert ("kubepods" in node.run("systemctl list-units --type=slice").stdout) == systemd
    assert nodes["gpu1"]["status"]["nodeInfo"]["containerRuntimeVersion"].startswith(
        "containerd://1.6."
    )
    assert nodes["virtual1"]["status"]["allocatable"]["nvidia.com/gpu"] == "8"


def test_a_pod_in_the_node_s_network_runs_to_its_end(cluster: Lab) -> None:
    for node in cluster.nodes:
        name = f"host-{node.name}"
        create(cluster, pod(name, "hostname; ip -4 -o address", node=node.name, hostNetwork=True))
        wait_phase(cluster, name, "Succeeded")
        said = logs(cluster, name)
        assert said.splitlines()[0] == node.name
        assert node.address in said


def test_pods_with_addresses_of_their_own_reach_one_another_and_the_api(cluster: Lab) -> None:
    serve = "echo answer > /tmp/index.html; httpd -f -p 8000 -h /tmp"
    create(cluster, pod("server", serve, node="gpu1"))
    address = wait_phase(cluster, "server", "Running")["status"]["podIP"]
    # Across nodes, and to the API by the address that every pod is given.
    query = (
        f"until wget -q -O - http://{address}:8000/; do sleep 1; done;"
        "nc -w 5 $KUBERNETES_SERVICE_HOST $KUBERNETES_SERVICE_PORT < /dev/null && echo api;"
        "cat /var/run/secrets/kubernetes.io/serviceaccount/namespace"
    )
    create(cluster, pod("client", query, node="gpu2"))
    wait_phase(cluster, "client", "Succeeded")
    assert logs(cluster, "client").split() == ["answer", "api", "default"]
    said = kubectl(cluster, "exec", "server", "--", "cat", "/tmp/index.html").stdout
    assert said == "answer\n"
    kubectl(cluster, "delete", "pod", "server", "client", "--now")


def test_a_deployment_is_scheduled_to_real_nodes_only(cluster: Lab) -> None:
    template = pod("unused", "sleep 1000")["spec"] | {"restartPolicy": "Always"}
    labels = {"app": "spread"}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "spread"},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": template},
        },
    }
    create(cluster, deployment)
    kubectl(cluster, "rollout", "status", "deployment/spread", "--timeout=50s")
    pods = get(cluster, "pods", "--selector", "app=spread")["items"]
    assert {item["spec"]["nodeName"] for item in pods} <= {"gpu1", "gpu2"}
    kubectl(cluster, "delete", "deployment", "spread")


@pytest.mark.parametrize("way", WAYS)
def test_a_node_comes_back_as_the_same_node(cluster: Lab, way: str) -> None:
    node = cluster.node("gpu2")
    create(cluster, pod("survivor", "sleep 1000", node=node.name, restartPolicy="Always"))
    wait_phase(cluster, "survivor", "Running")
    back = bring_back(cluster, node, way)

    def runs() -> bool:
        status = get(cluster, "pod", "survivor")["status"]["containerStatuses"][0]
        return "running" in status["state"] and status["restartCount"] > 0

    wait_for(runs, "the pod runs again")
    print(f"\n{way}: {back}, the pod runs {time.monotonic() - back.up:.1f} s later")
    kubectl(cluster, "delete", "pod", "survivor", "--now")


def test_users_may_do_what_their_roles_say(cluster: Lab) -> None:
    def may(user: str, *question: str) -> bool:
        said = kubectl(cluster, "auth", "can-i", *question, user=user, check=False)
        return said.stdout.strip() == "yes"

    questions = {
        "all": ("*", "*", "--all-namespaces"),
        "nodes": ("list", "nodes"),
        "cordon": ("patch", "nodes"),
        "secrets": ("get", "secrets", "--all-namespaces"),
        "pods": ("list", "pods", "--all-namespaces"),
        "team": ("create", "pods", "--namespace", "team"),
    }
    rights = {
        user: {name for name, question in questions.items() if may(user, *question)}
        for user in ("admin", "viewer", "gpustate", "developer")
    }
    assert rights == {
        "admin": set(questions),
        "viewer": {"nodes", "pods"},
        "gpustate": set(),
        "developer": {"team"},
    }
    # The developer's context is in the namespace already.
    assert kubectl(cluster, "get", "pods", user="developer").returncode == 0
    refused = kubectl(cluster, "get", "nodes", user="developer", check=False)
    assert 'User "developer" cannot list resource "nodes"' in refused.stderr


def test_the_audit_log_says_who_did_what(cluster: Lab) -> None:
    kubectl(cluster, "label", "node", "gpu1", "test/audited=yes")
    kubectl(cluster, "get", "nodes", user="viewer")
    kubectl(cluster, "cordon", "gpu1", user="gpustate", check=False)

    def found() -> bool:
        entries = {
            (one["user"]["username"], one["verb"], one["responseStatus"]["code"])
            for one in audit(cluster)
            if one["objectRef"].get("resource") == "nodes"
        }
        return entries >= {
            ("admin", "patch", 200),
            ("viewer", "list", 200),
            ("gpustate", "get", 403),
        }

    wait_for(found, "audit entries", 10)
    (label,) = [one for one in audit(cluster) if "test/audited" in json.dumps(one)]
    assert label["requestObject"]["metadata"]["labels"] == {"test/audited": "yes"}


def test_list_names_kubeconfig_and_programs_and_the_inventory_has_it_too(cluster: Lab) -> None:
    (entry,) = [one for one in api.document(api.labs())["labs"] if one["name"] == cluster.name]
    document = api.document([cluster])
    for key in ("inventory", "kubeconfig", "programs"):
        assert document[key] == entry[key]
    assert set(entry["kubeconfigs"]) == {"admin", "viewer", "gpustate", "developer"}
    assert {"kubectl", "kubelet", "etcd"} <= set(os.listdir(entry["programs"]))
    inventory = yaml.safe_load(cluster.inventory.read_text())
    variables = inventory["all"]["children"]["gpu"]["vars"]
    assert variables["gpustate_kubeconfig"] == entry["kubeconfig"]
    server = subprocess.run(
        [
            f"{entry['programs']}/kubectl",
            "--kubeconfig",
            entry["kubeconfig"],
            "get",
            "--raw",
            "/readyz",
        ],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert server.stdout == "ok"


def test_a_second_up_returns_at_once_and_a_dead_process_is_started_again(cluster: Lab) -> None:
    began = time.monotonic()
    said: list[str] = []
    api.up(cluster.spec, said.append)
    assert [line for line in said if "is already running" in line]
    assert time.monotonic() - began < 5
    before = uid(cluster, cluster.nodes[0])
    layout = Kubernetes(cluster).layout
    for name in NAMES:
        assert process.end_program(layout.directory, name)
    assert not Kubernetes(cluster).running
    api.up(cluster.spec)
    assert Kubernetes(cluster).running
    assert uid(cluster, cluster.nodes[0]) == before


def test_down_leaves_nothing_of_a_cluster(cluster: Lab) -> None:
    create(cluster, pod("left", "sleep 1000", node="gpu1"))
    wait_phase(cluster, "left", "Running")
    assert traces(cluster)
    removed = api.down(cluster.name)
    assert {f"process {name}" for name in NAMES} <= set(removed)
    assert traces(cluster) == []


@pytest.mark.parametrize("delay_s", [0.5, 2.5, 6.0])
def test_down_leaves_nothing_of_an_up_that_was_killed(lab_programs: None, delay_s: float) -> None:
    name = f"pytest-killed-{os.getpid()}"
    program = (
        "from gpustate_lab import api; from gpustate_lab.spec import LabSpec;"
        f"api.up(LabSpec(name={name!r}, nodes=1, images=('debian12',), gpus=('none',), kubernetes='1.36', virtual=2))"
    )
    began = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL)
    try:
        record = Path(os.environ.get("GPUSTATE_LAB_DIR", "/var/lib/gpustate-lab"), name, "lab.json")
        wait_for(lambda: record.exists() or began.poll() is not None, "lab.json", 60)
        time.sleep(delay_s)
    finally:
        began.send_signal(signal.SIGKILL)
        began.wait()
    half_made = api.find(name)
    api.down(name)
    assert traces(half_made) == []
