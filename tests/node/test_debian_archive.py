"""Debian's own archive, with its real packages as its mirrors have them today, in README's policy.

Real: control fields, maintainer scripts, alternatives, init scripts, units, ``dkms.conf`` and all other files of Debian's
packages. Replaced: module sources, libraries and programs that need a GPU (:mod:`gpustate_lab.debian_archive`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import Ran, gpustate
from labnodes import LabFactory, etc_files, without_repositories

from gpustate.errors import LabError
from gpustate_lab import debian_archive
from gpustate_lab.api import Lab
from gpustate_lab.node import Node
from gpustate_lab.spec import LabSpec

pytestmark = pytest.mark.long

TOOLS = ("nvidia-persistenced", "nvidia-modprobe")
PLAN_ONLY = """
states:
  driver: {module_type: proprietary}
  persistenced: {}
"""


def archive_node(make: LabFactory, image: str) -> tuple[Lab, Node]:
    """A node with Debian's archive in apt's sources; Debian's archive has no Fabric Manager."""
    lab = make(LabSpec(nodes=1, images=(image,), gpus=("2xL40S",)))
    (node,) = lab.nodes
    try:
        debian_archive.publish(image, node.root / "var/lib/dpkg/status")
    except LabError as error:
        if "apt-get -q update" not in str(error):
            raise
        pytest.skip(f"Debian's archive cannot be read from here: {error}")
    data = yaml.safe_load(lab.inventory.read_text())
    base: str = data["all"]["children"]["gpu"]["vars"]["gpustate_lab_repository"]
    for path, text in debian_archive.sources(image, base).items():
        (node.root / path.lstrip("/")).write_text(text)
    node.run("apt-get -q update", timeout_s=120)
    return lab, node


def from_archive(lab: Lab, folder: Path) -> Path:
    """The lab's inventory with the driver of the distribution."""
    data = yaml.safe_load(lab.inventory.read_text())
    for group in data["all"]["children"].values():
        if settings := group.get("vars", {}).get("gpustate"):
            settings["driver-repository"] = {"origin": "distribution"}
    path = folder / "archive.yml"
    path.write_text(yaml.safe_dump(data))
    return path


def packages(node: Node) -> list[str]:
    """Every package, held ones marked; headers of kernels stay, for other modules may need them."""
    lines = node.run("dpkg-query -W -f '${db:Status-Abbrev}${Package} ${Version}\\n'").stdout
    return [line for line in lines.splitlines() if " linux-headers-" not in line]


def changes(row: dict[str, Any], state: str, field: str) -> Any:
    (found,) = (one for one in row["states"] if one["state"] == state)
    (change,) = (one for one in found["changes"] if one["field"] == field)
    return change["after"]


@pytest.mark.long
@pytest.mark.parametrize("image", list(debian_archive.SUITES))
def test_readmes_policy_with_debians_own_packages(
    lab_factory: LabFactory, image: str, tmp_path: Path
) -> None:
    lab, node = archive_node(lab_factory, image)
    archive, policy = from_archive(lab, tmp_path), tmp_path / "policy.yaml"
    version = node.run("apt-cache show nvidia-smi | sed -n 's/^Version: //p' | head -n 1").stdout
    version, branch = version.strip(), version[:3]
    before = etc_files(node), packages(node)

    policy.write_text(PLAN_ONLY)
    plain = without_repositories(lab, tmp_path)
    row = gpustate("plan", policy, "-i", plain, "-o", "json", code=0).node(node.name)
    planned: dict[str, str] = changes(row, "driver", "packages")
    libraries = ("libcuda1", "libnvidia-ml1", "libnvidia-ptxjitcompiler1")
    programs = ("nvidia-cuda-mps", "nvidia-kernel-dkms", "nvidia-kernel-support", "nvidia-smi")
    assert {n: v for n, v in planned.items() if n not in TOOLS} == dict.fromkeys(
        (*libraries, *programs), version
    )

    def candidate(name: str) -> str:
        command = f"apt-cache policy {name} | sed -n 's/ *Candidate: //p'"
        return node.run(command).stdout.strip()

    assert {name: planned[name] for name in TOOLS} == {name: candidate(name) for name in TOOLS}

    def run(verb: str, driver: str, *words: str, inventory: Path = archive) -> Ran:
        policy.write_text(f"preset: kubernetes-node\ndriver: {{{driver}}}\n")
        return gpustate(verb, policy, "-i", inventory, *words, code=0, timeout=600)

    def applied(driver: str, inventory: Path = archive) -> str:
        """Apply twice, and return what is loaded: version and licence."""
        run("apply", driver, "--yes", inventory=inventory)
        again = run("apply", driver, "--yes", inventory=inventory)
        assert again.summary["changed"] == "0", again.out
        run("validate", driver, inventory=inventory)
        assert node.run("dpkg --audit").stdout == ""
        return node.run("head -n 1 /proc/driver/nvidia/version").stdout

    def dkms() -> dict[str, str]:
        """What DKMS says of each source and version, by kernel: installed, built or added."""
        lines = node.run("dkms status").stdout.splitlines()
        return {
            line.partition(": ")[0].partition(",")[0]: line.partition(": ")[2] for line in lines
        }

    def said(command: str) -> str:
        return node.run(command).stdout.strip()

    upstream = version.partition("-")[0]
    # Those of Debian 12 are older than its security updates, and the whole set is taken in their version.
    opened = candidate("nvidia-open-kernel-dkms").partition("-")[0]
    assert f"driver {opened} with open kernel modules" in run("plan", "module_type: open").out
    assert f"will install driver {upstream} with" in run("plan", f"branch: {branch}").out
    assert f" x86_64 Kernel Module  {upstream} " in applied(f"branch: {branch}")
    assert dkms() == {f"nvidia-current/{upstream}": "installed"}
    current = "readlink -f /etc/alternatives/nvidia*"
    assert said(f"{current} | grep -c /current/") != "0"
    # Debian's daemon runs as a user of its own, also with gpustate's options.
    assert said("id -un nvpd") == "nvpd"
    command = said("systemctl show -P ExecStart nvidia-persistenced")
    assert "--user nvpd" in command
    assert "--no-persistence-mode" not in command
    of_archive = set(packages(node))
    kind = f"branch: {branch}, module_type: open, parameters: {{NVreg_EnableStreamMemOPs: 1}}"
    if opened == upstream:
        loaded = applied(kind)
    else:
        # The lab's nvidia-persistenced is of the newest driver's version; Debian's own asks the libraries.
        policy.write_text(f"states: {{driver: {{{kind}}}}}\n")
        gpustate("apply", policy, "-i", archive, "--yes", code=0, timeout=600)
        again = gpustate("apply", policy, "-i", archive, "--yes", code=0, timeout=600)
        assert again.summary["changed"] == "0", again.out
        loaded = node.run("head -n 1 /proc/driver/nvidia/version").stdout
    assert f" Open Kernel Module for x86_64  {opened} " in loaded
    file = node.run("modinfo -k $(uname -r) -n nvidia-current-open").stdout
    assert "nvidia-current-open" in file
    assert dkms() == {f"nvidia-current-open/{opened}": "installed"}
    assert said("grep EnableStreamMemOPs /proc/driver/nvidia/params").endswith(": 1")
    assert " 580.178.04 " in applied("branch: 580", lab.inventory)
    assert not any("current" in source for source in dkms())
    kind = f"branch: {branch}, module_type: proprietary"
    assert f" x86_64 Kernel Module  {upstream} " in applied(kind)
    assert of_archive <= set(packages(node))

    run("remove", kind, "--yes")
    node.run("DEBIAN_FRONTEND=noninteractive apt-get -q -y autoremove --purge", timeout_s=120)
    # The path of a file in NVIDIA's simulated package; dpkg leaves it where Debian's link leads nowhere.
    made_up = "./modprobe.d/nvidia-blacklists-nouveau.conf.dpkg-new"
    files = [line for line in etc_files(node) if made_up not in line]
    assert (files, packages(node)) == before
