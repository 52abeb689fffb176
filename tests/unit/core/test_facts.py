"""Facts: read from recorded output, and by the fragment itself from a tree of files."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from gpustate.core.facts import FactsQuery, NodeFacts
from gpustate.core.queries import Answer
from gpustate.errors import ProbeError
from gpustate.formats.pci_gpus import PciGpu

RECORDED = b"""os_id=ubuntu
os_version=24.04
os_codename=noble
os_like=debian
machine=x86_64
kernel=6.8.0-79-generic
boot_id=5ad1b0a6-6a3c-4c51-9ad6-5c1d11d7b6e2
systemd=1
python3=/usr/bin/python3
runtime=containerd
runtime=dockerd
package_manager=apt
pci=0000:85:00.0 0x22a3 0x068000 -
pci=0000:1b:00.0 0x2330 0x030200 nvidia
"""


def parse(text: bytes) -> NodeFacts:
    return FactsQuery().parse(Answer(0, text))


def gpu(device: str, class_id: str = "030200") -> PciGpu:
    return PciGpu("0000:01:00.0", device, class_id, None)


def test_recorded_output_is_read() -> None:
    assert parse(RECORDED) == NodeFacts(
        os_id="ubuntu",
        os_version="24.04",
        os_codename="noble",
        os_like=("debian",),
        machine="x86_64",
        kernel="6.8.0-79-generic",
        boot_id="5ad1b0a6-6a3c-4c51-9ad6-5c1d11d7b6e2",
        systemd=True,
        container=False,
        python3="/usr/bin/python3",
        runtimes=("containerd", "docker"),
        package_manager="apt",
        pci=(
            PciGpu("0000:1b:00.0", "2330", "030200", "nvidia"),
            PciGpu("0000:85:00.0", "22a3", "068000", None),
        ),
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="processes get other users, which takes root")
@pytest.mark.parametrize(("user", "agents"), [("nobody", ()), ("", ("kubelet",))])
def test_a_process_of_another_user_is_no_kubelet(user: str, agents: tuple[str, ...]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        program = shutil.copy(str(shutil.which("sleep")), f"{folder}/kubelet")
        words = f"setpriv --reuid {user} {program} 60" if user else f"{program} 60"
        script = FactsQuery().script().replace("/var/lib/kubelet ]", f"{folder} ]")
        # In a namespace of its own: other processes of this machine do not count.
        done = subprocess.run(
            [
                "unshare",
                "--pid",
                "--fork",
                "--mount-proc",
                "sh",
                "-c",
                f"{words} >&2 & sleep 0.5\n{script}",
            ],
            stdout=subprocess.PIPE,
            check=True,
        )
    assert parse(done.stdout).agents == agents


def test_gpus_and_switches_are_told_apart() -> None:
    facts = parse(RECORDED)
    assert [device.address for device in facts.gpus] == ["0000:1b:00.0"]
    assert (facts.has_nvswitch, facts.mig_capable) == (True, True)
    assert facts.distribution == "ubuntu2404"


@pytest.mark.parametrize(
    ("os_id", "version", "code"),
    [
        ("debian", "12", "debian12"),
        ("debian", "13.1", "debian13"),
        ("rhel", "9.4", "rhel9"),
        ("ubuntu", "22.04", "ubuntu2204"),
        ("debian", "", "debian"),
        ("", "", ""),
    ],
)
def test_the_distribution_has_nvidia_s_code(os_id: str, version: str, code: str) -> None:
    assert NodeFacts(os_id=os_id, os_version=version).distribution == code


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"", "the node did not say which kernel it runs"),
        (b"os_id=debian\n", "the node did not say which kernel it runs"),
        (b"kernel=6.1\npci=0000:1b:00.0 0x2330\n", "sysfs answered '0000:1b:00.0 0x2330'"),
    ],
)
def test_an_answer_that_makes_no_sense_is_a_probe_error(text: bytes, told: str) -> None:
    with pytest.raises(ProbeError, match=told):
        parse(text)


def test_a_node_that_says_little_has_few_facts() -> None:
    facts = parse(b"kernel=6.1\n")
    assert facts == NodeFacts(kernel="6.1")
    assert (facts.gpus, facts.has_nvswitch, facts.mig_capable) == ((), False, False)


@pytest.mark.parametrize(
    ("device", "architecture", "open_only", "proprietary_only", "mig"),
    [
        ("102d", "kepler", False, True, False),  # K80
        ("1db6", "volta", False, True, False),  # V100
        ("15f8", "pascal", False, True, False),  # P100
        ("1eb8", "turing", False, False, False),  # T4
        ("20b2", "ampere", False, False, True),  # A100 80 GB
        ("20b7", "ampere", False, False, True),  # A30
        ("2236", "ampere", False, False, False),  # A10
        ("26b9", "ada", False, False, False),  # L40S
        ("2330", "hopper", False, False, True),  # H100 SXM
        ("2335", "hopper", False, False, True),  # H200
        ("2342", "hopper", True, False, True),  # GH200
        ("2901", "blackwell", True, False, True),  # B200
        ("2941", "blackwell", True, False, True),  # GB200
        ("2bb5", "blackwell", True, False, True),  # RTX PRO 6000
        ("ffff", None, False, False, False),
    ],
)
def test_a_device_id_tells_what_a_gpu_is(
    device: str, architecture: str | None, open_only: bool, proprietary_only: bool, mig: bool
) -> None:
    found = gpu(device)
    assert found.architecture == architecture
    assert found.needs_open_modules is open_only
    assert found.needs_proprietary_modules is proprietary_only
    assert found.mig_capable is mig


def test_a_switch_is_no_gpu_and_cannot_be_divided() -> None:
    switch = gpu("2330", "068000")
    assert (switch.is_gpu, switch.is_nvswitch, switch.mig_capable) == (False, True, False)


def test_the_fragment_finds_nvidia_devices_in_sysfs(tmp_path: Path) -> None:
    def device(address: str, driver: str | None = None, **files: str) -> None:
        folder = tmp_path / "bus/pci/devices" / address
        folder.mkdir(parents=True)
        for name, text in files.items():
            (folder / name).write_text(text + "\n")
        if driver:
            (tmp_path / "bus/pci/drivers" / driver).mkdir(parents=True)
            (folder / "driver").symlink_to(f"../../drivers/{driver}")

    device("0000:85:00.0", vendor="0x10de", device="0x22A3", **{"class": "0x068000"})
    device("0000:1b:00.0", "nvidia", vendor="0x10de", device="0x2330", **{"class": "0x030200"})
    device("0000:00:02.0", "i915", vendor="0x8086", device="0x0001", **{"class": "0x030000"})
    device("0000:00:03.0")
    done = subprocess.run(
        ["sh", "-c", FactsQuery().script()],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "SYS": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    facts = FactsQuery().parse(Answer(done.returncode, done.stdout))
    assert facts.pci == (
        PciGpu("0000:1b:00.0", "2330", "030200", "nvidia"),
        PciGpu("0000:85:00.0", "22a3", "068000", None),
    )
    assert facts.kernel
    assert facts.machine


def test_a_node_without_pci_has_no_gpus(tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", "-c", FactsQuery().script()],
        env={"PATH": "/usr/bin:/bin", "SYS": str(tmp_path)},
        capture_output=True,
    )
    assert FactsQuery().parse(Answer(0, done.stdout)).pci == ()


def test_editions_of_one_product_are_one_distribution() -> None:
    """``ID`` of SLES for SAP Applications and of SLE HPC; both have ``ID_LIKE="suse"``."""
    for edition in (b"sles_sap", b"sle_hpc"):
        text = RECORDED.replace(b"os_id=ubuntu", b"os_id=" + edition)
        assert parse(text.replace(b"24.04", b"15.7")).distribution == "sles15"


@pytest.mark.parametrize("version", ["dnf-3", "dnf5"])
def test_dnf_5_is_told_from_dnf_4(tmp_path: Path, version: str) -> None:
    """Fedora's dnf is a link to either; both may be there."""
    for name in ("dnf-3", "dnf5"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "dnf").symlink_to(version)
    (tmp_path / "os-release").write_text("ID=fedora\nVERSION_ID=44\n")
    script = FactsQuery().script().replace("/etc/os-release", f"{tmp_path}/os-release")
    done = subprocess.run(
        ["sh", "-c", script],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "G": str(tmp_path), "SYS": str(tmp_path)},
        capture_output=True,
        check=False,
    )
    expected = version if version == "dnf5" else "dnf"
    assert parse(done.stdout).package_manager == expected
