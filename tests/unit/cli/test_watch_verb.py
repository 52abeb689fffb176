"""``gpustate watch``: what it refuses before it watches, and how it is printed as a service."""

from __future__ import annotations

import configparser
from pathlib import Path
from typing import Any

import pytest
import yaml
from commandline import Cli

POLICY = "apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nmetadata: {name: x}\nspec: {}\n"
NODES = """\
plugin: kubernetes
kubeconfig: east.yaml
selector: pool=h100
vars: {ansible_user: ubuntu, ansible_become: true}
"""


@pytest.fixture(autouse=True)
def files(project: Path) -> None:
    (project / "cp.yaml").write_text(POLICY)
    (project / "nodes.yml").write_text(NODES)
    (project / "hosts.ini").write_text("gpu1\n")


def objects(text: str) -> dict[str, dict[str, Any]]:
    return {one["kind"]: one for one in yaml.safe_load_all(text)}


def test_it_needs_a_cluster(gpustate: Cli) -> None:
    done = gpustate("watch", "cp.yaml", "-i", "hosts.ini")
    assert done.status == 1
    assert "no node has a kubeconfig; pass --kubeconfig FILE" in done.err
    done = gpustate("watch", "cp.yaml", "-i", "hosts.ini", "--ignore-scheduler")
    assert "watch needs the nodes' cluster" in done.err
    done = gpustate("watch", "cp.yaml", "-i", "kubernetes:missing.yaml")
    assert done.status == 1
    assert "missing.yaml: cannot read the kubeconfig" in done.err


def test_a_unit_has_the_options_and_the_folder(gpustate: Cli, project: Path) -> None:
    words = ("watch", "cp.yaml", "-i", "hosts.ini", "--max-unavailable", "10%")
    done = gpustate(*words, "--print", "unit")
    assert done.status == 0, done
    parser = configparser.RawConfigParser(strict=True)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(done.out)
    assert parser["Service"]["ExecStart"].endswith(
        "gpustate watch cp.yaml -i hosts.ini --max-unavailable 10%%"
    )
    assert parser["Service"]["ExecStart"].startswith("/")
    assert parser["Service"]["WorkingDirectory"] == str(project)
    assert parser["Service"]["Restart"] == "always"
    assert int(parser["Service"]["TimeoutStopSec"]) >= 600


def test_a_deployment_has_policy_inventory_and_options(gpustate: Cli, project: Path) -> None:
    (project / "gpustate.lock").write_text("# lock\n")
    done = gpustate(
        *("watch", "cp.yaml", "-i", "nodes.yml", "--kubeconfig", "x", "--max-unavailable=1"),
        *("--print", "deployment", "--image", "example.net/gpustate@sha256:00"),
    )
    assert done.status == 0, done
    found = objects(done.out)
    data = found["ConfigMap"]["data"]
    assert data["cp.yaml"] == POLICY
    assert data["gpustate.lock"] == "# lock\n"
    inventory = yaml.safe_load(data["inventory.yml"])
    assert inventory["kubeconfig"] == "in-cluster"
    assert inventory["selector"] == "pool=h100"
    assert inventory["vars"]["ansible_user"] == "ubuntu"
    assert inventory["vars"]["ansible_ssh_private_key_file"] == "/etc/gpustate-ssh/id_ed25519"
    container = found["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == "example.net/gpustate@sha256:00"
    assert container["args"] == [
        *("watch", "/etc/gpustate/cp.yaml", "--max-unavailable=1"),
        *("--inventory", "/etc/gpustate/inventory.yml"),
    ]


def test_a_deployment_is_restricted_and_its_rights_are_least(gpustate: Cli) -> None:
    words = ("watch", "cp.yaml", "-i", "kubernetes:", "--user", "ops", "--print", "deployment")
    plain, more = objects(gpustate(*words).out), objects(gpustate(*words, "--cluster-objects").out)
    labels = plain["Namespace"]["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    pod = plain["Deployment"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    security = pod["containers"][0]["securityContext"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["allowPrivilegeEscalation"] is False
    assert security["readOnlyRootFilesystem"] is True
    assert "ops" in plain["ConfigMap"]["data"]["inventory.yml"]
    assert plain["Role"]["metadata"]["namespace"] == "kube-system"
    rules = plain["ClusterRole"]["rules"]
    assert not [one for one in rules if "leases" in one["resources"] or "*" in one["verbs"]]
    assert len(more["ClusterRole"]["rules"]) > len(rules)


def test_a_pod_gets_nothing_that_it_would_not_find(gpustate: Cli, project: Path) -> None:
    (project / "more.yaml").write_text("{}\n")
    done = gpustate("watch", "cp.yaml", "-i", "hosts.ini", "--print", "deployment")
    assert "the pod's inventory is the Nodes of its cluster" in done.err
    (project / "two.yml").write_text("plugin: kubernetes\nclusters: [{kubeconfig: a}, {}]\n")
    done = gpustate("watch", "cp.yaml", "-i", "two.yml", "--print", "deployment")
    assert (
        "two.yml: lists clusters, and a pod watches only the cluster it runs in; write" in done.err
    )
    words = ("watch", "cp.yaml", "-i", "nodes.yml", "--print", "deployment")
    done = gpustate(*words, "--values", "more.yaml")
    assert "--values names a file of this machine" in done.err
    done = gpustate("watch", "nouveau", *words[2:])
    assert "the pod needs the policy's file" in done.err


def test_the_recipe_of_the_image_needs_no_build_context(gpustate: Cli) -> None:
    done = gpustate("watch", "cp.yaml", "-i", "nodes.yml", "--print", "dockerfile")
    lines = done.out.splitlines()
    assert any(line.startswith("FROM ") for line in lines)
    assert "USER 65532:65532" in lines
    assert not [line for line in lines if line.startswith(("COPY", "ADD"))]
