"""A node that reaches no repository becomes a GPU node from a bundle: real apt, dpkg, ssh and reboot.

The node's way to the lab's repository server is closed in its network namespace; ssh is all that is left.
Simulated are NVIDIA's packages, the kernels, the GPUs, and that a root is Ubuntu's (docs/lab.md). Looked at with
dpkg, apt and what steps printed.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from commands import gpustate
from labnodes import also_on_ubuntu, family

from gpustate_lab.api import Lab
from gpustate_lab.node import Node

#: What these tests prove of states, how and on what: the table of states is made from it.
PROVES = {"bundle": ("real node", "debian12", "ubuntu")}

POLICY = """
from gpustate import Policy
from gpustate.registry import get

policy = Policy(get("preflight")(), get("nouveau")(), get("driver-repository")(), get("driver")(branch=580),
    get("persistenced")(), get("fabric-manager")(), get("toolkit-repository")(), get("container-toolkit")(),
    get("dcgm")(), get("validator")(containers="none"))
"""
REPOSITORIES = """
from gpustate import Policy
from gpustate.registry import get

policy = Policy(get("driver-repository")(), get("toolkit-repository")())
"""
FOLDER = "/var/lib/gpustate-bundle"
#: The package of the driver that has NVIDIA's tools; beside NVSwitches Ubuntu has a set for servers.
TOOLS = {"debian": "nvidia-smi", "ubuntu": "nvidia-utils-580-server"}


@pytest.fixture
def cut_off(home: Lab, node: Node) -> Iterator[None]:
    """Nothing but ssh leads to the node or from it."""
    port = str(urlsplit(home.repository_url).port)
    words = ["ip", "-n", node.network.namespace(node.name), "rule"]
    rule = ["ipproto", "tcp", "dport", port, "prohibit"]
    yield subprocess.run([*words, "add", *rule], check=True) and None
    subprocess.run([*words, "del", *rule], check=True)


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "policy.py"
    path.write_text(POLICY)
    return path


@pytest.fixture
def bundle(home: Lab, node: Node, policy: Path) -> Path:
    """Fetched by the node itself before it is cut off, and before anything but the repositories is on it."""
    path = policy.with_name("b.tar")
    target = ("-i", home.inventory, "-l", node.name)
    words = ("image", "bundle", "make", policy, *target, "--out", path)
    refused = gpustate(*words, code=5)
    assert f"{node.name}: its toolkit-repository does not match the policy" in refused.err
    repositories = policy.with_name("repositories.py")
    repositories.write_text(REPOSITORIES)
    gpustate("apply", repositories, *target, "--yes", code=0)
    before = node.run("dpkg-query -W; ls /var/cache/apt/archives /var/tmp").stdout
    gpustate(*words, code=0)
    gpustate("image", "bundle", "check", path, code=0)
    assert node.run("dpkg-query -W; ls /var/cache/apt/archives /var/tmp").stdout == before
    gpustate("remove", repositories, *target, "--yes", code=0)
    node.run("rm /var/lib/gpustate/runs/*/out.*")
    return path


@also_on_ubuntu("debian12")
def test_a_node_without_a_way_out_is_made_from_a_bundle(
    home: Lab, node: Node, image: str, policy: Path, bundle: Path, cut_off: None
) -> None:
    target = ("-i", home.inventory, "-l", node.name)

    def ran(verb: str, *more: str, code: int = 0) -> dict[str, Any]:
        words = (verb, policy, *target, "--bundle", bundle, *more, "-o", "json")
        found: dict[str, Any] = json.loads(gpustate(*words, code=code, timeout=900).out)["nodes"][0]
        return found

    address = urlsplit(home.repository_url)
    reach = f"bash -c 'echo >/dev/tcp/{address.hostname}/{address.port}'"
    assert node.run(reach, check=False).returncode != 0, "the node is not cut off"

    # A kernel that the bundle has no headers for: refused in one line, and nothing was touched.
    release = "9.9.9-none"
    node.run(f"touch /boot/vmlinuz-{release}; mkdir -p /lib/modules/{release}/kernel")
    refused = ran("apply", "--yes", code=5)
    assert refused["reason"] == (
        f"linux-headers-{release} is not in the bundle {bundle}; build one that has it: "
        f"gpustate image bundle make POLICY -i INVENTORY --kernel {release} --out FILE"
    )
    assert node.run(f"ls {FOLDER}", check=False).returncode != 0
    node.run(f"rm -r /boot/vmlinuz-{release} /lib/modules/{release}")

    applied = ran("apply", "--yes")
    assert applied["status"] == "ok", applied
    assert {s["state"]: s["outcome"] for s in applied["states"]}["validator"] == "changed"
    installed = node.run(
        "dpkg-query -W -f '${Package} ${Status}\\n' 'nvidia-*' 'datacenter*'"
    ).stdout
    tools = TOOLS[family(image)]
    for name in (tools, "nvidia-container-toolkit", "datacenter-gpu-manager-4-core"):
        assert f"{name} install ok installed" in installed.replace("hold ok", "install ok")
    printed = node.run("cat /var/lib/gpustate/runs/*/out.*").stdout
    assert f"file:{FOLDER}/" in printed
    assert "http://" not in printed, "some other repository was tried"

    assert changed(ran("apply", "--yes")) == []
    node.run(f"rm $(find {FOLDER} -name '*.deb' | head -n 1)")
    assert changed(ran("drift", code=2)) == ["bundle"]
    assert changed(ran("apply", "--yes")) == ["bundle"]
    node.reboot()
    assert changed(ran("drift")) == []
    assert changed(ran("apply", "--yes")) == []

    gpustate("remove", policy, *target, "--yes", "-o", "json", code=0)
    assert node.run(f"ls {FOLDER}", check=False).returncode != 0
    left = node.run("ls /etc/apt/sources.list.d /etc/apt/preferences.d /var/lib/apt/lists").stdout
    assert "bundle" not in left
    assert "gpustate-driver" not in left


def changed(row: dict[str, Any]) -> list[str]:
    assert row["status"] == "ok", row
    return [
        s["state"] for s in row["states"] if s["outcome"] not in ("unchanged", "not applicable")
    ]
