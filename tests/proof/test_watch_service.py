"""What ``gpustate watch --print`` prints is started: the systemd unit, the image of the recipe, and the Deployment.

Real: systemd, podman, kubelet, containerd, API server, and gpustate installed by pip from its wheel. gpu2 has no GPUs; it runs
the unit, builds the image and runs the pod. The base image is Debian with its Python, under the name that the recipe has,
and pip has the wheels there instead of a package index.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import gpustate
from labkubernetes import get, kubectl, wait_for
from patience import PATIENCE

from gpustate import __version__
from gpustate.schedulers.lease import WATCH
from gpustate_lab.api import Lab
from gpustate_lab.node import Node
from gpustate_lab.spec import LabSpec

pytestmark = [pytest.mark.proof, pytest.mark.node]

TOP = Path(__file__).parents[2]
POLICY = TOP / "docs/examples/clusterpolicy.yaml"
#: On gpu2.
FLEET, WHEELS, PROGRAM = "/root/fleet", "/root/wheels", "/opt/gpustate/bin/gpustate"
BASE, IMAGE = "docker.io/library/python:3.13-slim", "registry.example.net/gpustate:test"
#: Of the lab's Debian, for the base image.
PARTS = ("etc", "bin", "sbin", "lib", "lib64", "usr/bin", "usr/sbin", "usr/lib", "usr/lib64")
WITHOUT = ("usr/lib/gcc", "usr/lib/systemd", "usr/lib/python3/dist-packages", "etc/ssl/private")
#: podman has its images where containerd has its own: layers cannot be stacked on the node's disk.
PODMAN = "podman --root /var/lib/containerd/podman --runroot /run/podman"
NAMESPACE = "gpustate-watch"
SETUP_S, BUILD_S = 400.0, 600.0 * PATIENCE


def command(*words: str | Path) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=TOP)
    assert done.returncode == 0, f"{words}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"


@pytest.fixture(scope="module")
def cluster(lab_programs: None, lab_factory: Callable[[LabSpec], Lab]) -> Lab:
    """gpu1 is to be set up; gpu2 has no GPUs."""
    images = ("debian13", "debian13-runtimes")
    lab = lab_factory(LabSpec(nodes=2, images=images, gpus=("8xH100", "none"), kubernetes="1.36"))
    # As node feature discovery does by the PCI devices of a real machine.
    kubectl(lab, "label", "node", "gpu1", "feature.node.kubernetes.io/pci-10de.present=true")
    return lab


@pytest.fixture(scope="module")
def manager(cluster: Lab, tmp_path_factory: pytest.TempPathFactory) -> Node:
    """gpu2 with gpustate, installed by pip from its wheel, and what the lab's inventory names."""
    node, wheels = cluster.node("gpu2"), tmp_path_factory.mktemp("wheels")
    command(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", wheels, TOP)
    target = ("--python-version", "3.13", "--only-binary=:all:", "--dest", wheels)
    (wheel,) = wheels.glob("gpustate-*.whl")
    command(sys.executable, "-m", "pip", "download", "--quiet", *target, wheel, "pip")
    shutil.copytree(wheels, inside(node, WHEELS))
    node.run("python3 -m venv --without-pip /opt/gpustate", timeout_s=BUILD_S)
    pip = (
        f"PYTHONPATH={WHEELS}/{next(wheels.glob('pip-*.whl')).name} /opt/gpustate/bin/python -m pip"
    )
    words = f"install --quiet --no-index --find-links {WHEELS} gpustate=={__version__}"
    node.run(["sh", "-c", f"{pip} {words}"], timeout_s=BUILD_S)
    for path in (cluster.inventory, cluster.private_key, cluster.known_hosts):
        copy(path, node)
    for path in (cluster.directory / "kubeconfigs").iterdir():
        copy(path, node)
    return node


def inside(node: Node, path: str | Path) -> Path:
    return node.root / str(path).lstrip("/")


def copy(path: Path, node: Node) -> None:
    target = inside(node, path)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, target)


def record(lab: Lab) -> dict[str, Any]:
    """What the watcher recorded on gpu1."""
    notes = get(lab, "node", "gpu1")["metadata"].get("annotations", {})
    found: dict[str, Any] = json.loads(notes.get("gpustate.io/watch", "{}"))
    return found


def done(lab: Lab) -> bool:
    found = record(lab)
    assert found.get("phase") != "failed", found
    return found.get("phase") == "done"


def holder(lab: Lab) -> str:
    lease = get(lab, "lease", WATCH, "--namespace", "kube-system")
    return str(lease["spec"].get("holderIdentity") or "")


def test_the_unit_brings_a_node_to_the_policy_and_ends_on_stop(cluster: Lab, manager: Node) -> None:
    folder = inside(manager, FLEET)
    folder.mkdir()
    (folder / "policy.yaml").write_text("format: gpustate.policy/1\nstates:\n  nouveau: {}\n")
    unit = "/etc/systemd/system/gpustate-watch.service"
    words = f"{PROGRAM} watch policy.yaml -i {cluster.inventory} -l gpu1 --max-unavailable 1"
    manager.run(
        f"cd {FLEET} && {words} --print unit >{unit} && systemd-analyze verify --man=no {unit}"
    )
    manager.run("systemctl daemon-reload; systemctl enable --now gpustate-watch")
    log = "journalctl -u gpustate-watch -o cat --no-pager"
    try:
        wait_for(lambda: done(cluster), "the node is brought to the policy", SETUP_S)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{manager.run(log, check=False).stdout}") from error
    assert "blacklist nouveau" in cluster.node("gpu1").run("cat /etc/modprobe.d/*").stdout
    assert manager.run("systemctl is-active gpustate-watch").stdout.strip() == "active"
    assert holder(cluster)
    manager.run("systemctl disable --now gpustate-watch", timeout_s=BUILD_S)
    shown = manager.run("systemctl show -P Result -P ExecMainStatus gpustate-watch").stdout.split()
    assert shown == ["success", "0"], manager.run(log).stdout
    assert holder(cluster) == ""
    kubectl(cluster, "annotate", "node", "gpu1", "gpustate.io/watch-")


def base_image(node: Node) -> None:
    """Debian's Python under the name of the recipe's base; its pip has the wheels."""
    (lower,) = [layer for layer in node.layers if layer.parent.name.startswith("debian13@")]
    archive = inside(node, "/root/base.tar")
    pip = next(Path(inside(node, WHEELS)).glob("pip-*.whl")).name
    files = {
        "usr/local/bin/pip": f'#!/bin/sh\nPYTHONPATH={WHEELS}/{pip} exec python3 -m pip "$@"\n',
        "etc/pip.conf": f"[global]\nno-index = true\nfind-links = {WHEELS}\nbreak-system-packages = true\n",
    }
    with tarfile.open(archive, "w") as tar:
        for part in PARTS:
            tar.add(
                lower / part,
                part,
                filter=lambda one: None if one.name in WITHOUT or one.isdev() else one,
            )
        tar.add(inside(node, WHEELS), WHEELS.lstrip("/"))
        for name, text in files.items():
            path = inside(node, f"/root/{Path(name).name}")
            path.write_text(text)
            path.chmod(0o755)
            tar.add(path, name)
    node.run(f"{PODMAN} import /root/base.tar {BASE} && rm /root/base.tar", timeout_s=BUILD_S)


def build(node: Node) -> None:
    """Build the image by the recipe, and give it to containerd."""
    base_image(node)
    node.run(f"{PROGRAM} watch policy.yaml --print dockerfile >/root/Dockerfile")
    # A node may not raise its limits, as podman does.
    own = "--isolation chroot --network host --ulimit nofile=1024:1024 --ulimit nproc=4096:4096"
    words = f"build {own} --pull=never --tag {IMAGE} -f /root/Dockerfile /root/empty"
    node.run(f"{PODMAN} {words}", timeout_s=BUILD_S)
    node.run(
        f"{PODMAN} save --output /root/image.tar {IMAGE} && rm -r /root/empty && "
        "ctr -n k8s.io images import /root/image.tar && rm /root/image.tar",
        timeout_s=BUILD_S,
    )


def lab_variables(lab: Lab) -> dict[str, Any]:
    """Where the lab's nodes have their repositories and simulated files; keys as text, for the pod has no file of them."""
    groups = yaml.safe_load(lab.inventory.read_text())["all"]["children"]
    states = groups["debian13"]["vars"]["gpustate"]
    for one in states.values():
        one["key"] = Path(one["key"]).read_text()
    roots = {key: groups["gpu"]["vars"][key] for key in ("gpustate_proc_root", "gpustate_sys_root")}
    return {**roots, "gpustate": states}


def test_the_deployment_with_the_recipe_s_image_brings_a_node_to_the_policy(
    cluster: Lab, manager: Node, tmp_path: Path
) -> None:
    inside(manager, "/root/empty").mkdir()
    build(manager)
    inventory = tmp_path / "inventory.yml"
    inventory.write_text(yaml.safe_dump({"plugin": "kubernetes", "vars": lab_variables(cluster)}))
    words = ("--max-unavailable", "1", "--print", "deployment", "--image", IMAGE)
    shown = gpustate("watch", POLICY, "-i", inventory, *words, code=0).out
    kubectl(cluster, "apply", "-f", "-", stdin=shown)
    files = {"secret": cluster.private_key, "configmap": cluster.known_hosts}
    create = (cluster, "--namespace", NAMESPACE, "create")
    key, hosts = (f"--from-file={name}={path}" for name, path in zip(("id_ed25519", "known_hosts"), files.values(), strict=True))  # fmt: skip
    kubectl(*create, "secret", "generic", "gpustate-ssh", key)
    kubectl(*create, "configmap", "gpustate-known-hosts", hosts)
    wait_for(lambda: done(cluster), "the node is brought to the policy", SETUP_S)
    (pod,) = get(cluster, "pods", "--namespace", NAMESPACE)["items"]
    assert pod["spec"]["nodeName"] == "gpu2"
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0
    assert len(cluster.node("gpu1").run("nvidia-smi -L").stdout.splitlines()) == 8
    assert holder(cluster)
    kubectl(cluster, "delete", "namespace", NAMESPACE, "--timeout=100s")
    wait_for(lambda: holder(cluster) == "", "its Lease is free")
