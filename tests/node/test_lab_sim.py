"""The simulated GPUs on real nodes: real apt, DKMS, systemd, containerd; simulated hardware."""

from __future__ import annotations

import json

import pytest

from gpustate_lab.api import Lab
from gpustate_lab.node import Node
from gpustate_lab.sim.node_packages import OLDER_KERNEL

pytestmark = pytest.mark.long

VERSION = "580.65.06"
NEWER = "580.178.04"
SET = (
    *("nvidia-open", "nvidia-driver", "nvidia-driver-cuda", "nvidia-kernel-open-dkms"),
    *("nvidia-kernel-support", "firmware-nvidia-gsp", "libcuda1", "libnvidia-ml1"),
    *("libnvidia-ptxjitcompiler1", "nvidia-smi", "nvidia-persistenced", "nvidia-modprobe"),
    *("nvidia-fabricmanager", "libnvidia-gpucomp", "libnvidia-nvvm4", "libnvidia-nvvm704"),
)
#: A root for a container: a shell, what nvidia-smi needs of the C library, and nothing of NVIDIA.
MAKE_ROOTFS = r"""
set -e
mkdir -p /tmp/c/bin /tmp/c/etc /tmp/c/proc /tmp/c/sys /tmp/c/dev /tmp/c/tmp /tmp/c/run /tmp/c/usr/bin
for file in /bin/bash /bin/ls $(ldd /bin/bash /bin/ls /usr/bin/nvidia-smi | grep -o '/[^ )]*\.so[^ )]*'); do
    mkdir -p "/tmp/c$(dirname "$file")"
    cp -L "$file" "/tmp/c$file"
done
"""


def apt(node: Node, *packages: str, check: bool = True) -> str:
    command = ["apt-get", "-qy", "--no-install-recommends", "install", *packages]
    done = node.run(command, timeout_s=180, check=check)
    return done.stdout + done.stderr


def add_sources(lab: Lab, node: Node) -> None:
    suite = node.image.partition("-")[0]
    key = "/usr/share/keyrings/gpustate-lab.asc"
    (node.root / key[1:]).write_text(lab.repository_key.read_text())
    for name, path in (
        # NVIDIA's own folder for Debian 13 begins with a newer branch.
        ("mirror", f"mirror/{suite}"),
        ("toolkit", "libnvidia-container/stable/deb/amd64"),
    ):
        line = f"deb [signed-by={key}] {lab.repository_url}/{path}/ /\n"
        (node.root / f"etc/apt/sources.list.d/{name}.list").write_text(line)
    node.run("mv /etc/apt/sources.list /root/; apt-get -q update", timeout_s=60)


def install(lab: Lab, node: Node, version: str = VERSION) -> None:
    add_sources(lab, node)
    apt(node, *(f"{name}={version}-1" for name in SET))


def lines(node: Node, command: str) -> list[str]:
    return node.run(command).stdout.splitlines()


@pytest.fixture(params=["gpu1", "gpu2"])
def either(lab: Lab, request: pytest.FixtureRequest) -> Node:
    """One distribution, then the other."""
    found = lab.node(request.param)
    found.reset()
    return found


def test_a_fresh_node_shows_its_gpus_on_pci_and_no_driver(either: Node) -> None:
    found = lines(either, "lspci -nn -d 10de:")
    assert sum("[0302]" in line and "[10de:2330]" in line for line in found) == 8
    assert sum("[0680]" in line and "[10de:22a3]" in line for line in found) == 4
    assert lines(either, "lsmod")[1:] == []
    refused = either.run("modprobe nvidia", check=False)
    assert refused.returncode == 1
    assert "FATAL: Module nvidia not found in directory /lib/modules/" in refused.stderr
    kernels = sorted(path.name for path in (either.root / "boot").glob("vmlinuz-*"))
    assert len(kernels) == 2
    images = [path.name.partition("-")[2] for path in (either.root / "boot").glob("initrd.img-*")]
    assert sorted(images) == [name.partition("-")[2] for name in kernels]


def test_the_driver_comes_with_real_apt_and_dkms_and_runs_to_the_last_kernel(
    lab: Lab, either: Node
) -> None:
    install(lab, either)
    assert lines(either, "modinfo -F version nvidia") == [VERSION]
    assert lines(either, "modinfo -F license nvidia") == ["Dual MIT/GPL"]
    either.run("modprobe nvidia-uvm; systemctl start nvidia-fabricmanager nvidia-persistenced")
    query = (
        "nvidia-smi --query-gpu=driver_version,persistence_mode,fabric.state --format=csv,noheader"
    )
    assert lines(either, query) == [f"{VERSION}, Enabled, Completed"] * 8
    held = either.run("rmmod nvidia", check=False)
    assert "Module nvidia is in use by: nvidia_uvm" in held.stderr

    # The older kernel has no module until its headers are there, and DKMS does the rest.
    missing = either.run(f"modinfo -k {OLDER_KERNEL} nvidia", check=False)
    assert missing.returncode == 1
    apt(either, f"linux-headers-{OLDER_KERNEL}")
    assert lines(either, f"modinfo -k {OLDER_KERNEL} -F version nvidia") == [VERSION]

    either.reboot()
    assert [line.split()[0] for line in lines(either, "lsmod")[1:]][-1] == "nvidia"
    assert len(lines(either, "nvidia-smi -L")) == 8


def test_an_upgrade_leaves_another_library_than_module_until_the_reload(
    lab: Lab, node12: Node
) -> None:
    install(lab, node12)
    node12.run("modprobe nvidia-uvm")
    apt(node12, *(f"{name}={NEWER}-1" for name in SET))
    observed = node12.run("nvidia-smi", check=False)
    assert (observed.returncode, "Driver/library version mismatch" in observed.stdout) == (18, True)
    node12.run("systemctl stop nvidia-persistenced; modprobe -r nvidia-uvm; modprobe nvidia-uvm")
    query = "nvidia-smi --query-gpu=driver_version --format=csv,noheader"
    assert set(lines(node12, query)) == {NEWER}


def test_a_set_of_two_versions_cannot_be_installed(lab: Lab, node13: Node) -> None:
    add_sources(lab, node13)
    said = apt(node13, f"nvidia-driver-cuda={VERSION}-1", f"libcuda1={NEWER}-1", check=False)
    assert "unmet dependencies" in said


def test_a_pin_chooses_the_branch_that_apt_takes(lab: Lab, node12: Node) -> None:
    add_sources(lab, node12)
    apt(node12, "nvidia-driver-pinning-580")
    policy = node12.run("apt-cache policy nvidia-open").stdout
    assert f"Candidate: {NEWER}-1" in policy


def test_a_build_that_breaks_ends_with_a_compiler_error(lab: Lab, node13: Node) -> None:
    node13.fault("dkms-build", on=True)
    add_sources(lab, node13)
    said = apt(node13, *(f"{name}={VERSION}-1" for name in SET), check=False)
    assert "Bad return status for module build" in said
    log = node13.root / f"var/lib/dkms/nvidia/{VERSION}/build/make.log"
    assert "error: too few arguments to function" in log.read_text()
    node13.fault("dkms-build", on=False)
    node13.run("dpkg --configure -a", timeout_s=120)
    assert lines(node13, "modinfo -F version nvidia") == [VERSION]


def test_nouveau_has_the_gpus_until_it_is_gone_from_boot(lab: Lab, node12: Node) -> None:
    node12.fault("nouveau-stuck", on=True)
    node12.reboot()
    assert node12.run("rmmod nouveau", check=False).stderr.endswith("Module nouveau is in use\n")
    assert "driver in use: nouveau" in node12.run("lspci -k -s 1b:00.0").stdout
    (node12.root / "etc/modprobe.d/off.conf").write_text("blacklist nouveau\n")
    node12.reboot()
    assert lines(node12, "lsmod")[1:] == []


def test_nouveau_of_a_stale_initramfs_loads_though_it_is_blacklisted(node13: Node) -> None:
    node13.fault("nouveau-initramfs", on=True)
    node13.run("update-initramfs -u -k all", timeout_s=120)
    (node13.root / "etc/modprobe.d/off.conf").write_text("blacklist nouveau\n")
    node13.reboot()
    assert lines(node13, "lsmod")[1].split()[0] == "nouveau"
    node13.run("update-initramfs -u -k all", timeout_s=120)
    node13.reboot()
    assert lines(node13, "lsmod")[1:] == []


def test_containers_get_the_gpus_they_ask_for(lab: Lab, either: Node) -> None:
    install(lab, either)
    apt(either, "nvidia-container-toolkit")
    either.run("modprobe nvidia-uvm; systemctl start nvidia-fabricmanager")
    either.run("systemctl restart nvidia-cdi-refresh; " + MAKE_ROOTFS)
    assert len(lines(either, "nvidia-ctk --quiet cdi list")) == 17
    spec = json.loads(either.run("nvidia-ctk cdi generate --format=json").stdout)
    paths = [mount["hostPath"] for mount in spec["containerEdits"]["mounts"]]
    assert f"/usr/lib/x86_64-linux-gnu/libcuda.so.{VERSION}" in paths

    gpus = [line.partition("UUID")[2] for line in lines(either, "nvidia-smi -L")]
    assert run_container(either, "0,2") == [gpus[0], gpus[2]]
    assert run_container(either, "void") == []


def run_container(node: Node, visible: str) -> list[str]:
    """The UUIDs that nvidia-smi sees in a container that containerd starts with NVIDIA's runtime."""
    runtime = f"--runc-binary nvidia-container-runtime --env NVIDIA_VISIBLE_DEVICES={visible}"
    shell = "/bin/bash -c 'nvidia-smi -L || true'"
    said = lines(node, f"ctr run --rm --rootfs {runtime} /tmp/c test {shell} 2>/tmp/ctr.log")
    return [line.partition("UUID")[2] for line in said if "UUID" in line]
