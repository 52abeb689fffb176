"""Secure Boot on Debian 12 and on a node that answers as Ubuntu: keys by the real openssl, signatures by the kernel's
own sign-file, read by the real modinfo; the firmware, its mokutil and the person at the console are simulated
(mokutil_standin.py), and so is that a root is Ubuntu's (docs/lab.md).

Different on Ubuntu: its archive has modules that Canonical signed, which need no key of the node's own. So a key is
asked for by name there, and a test of its own shows what happens otherwise. Its headers have sign-file, which DKMS finds.
"""

from __future__ import annotations

import base64
import re
import subprocess
from pathlib import Path

import mokutil_standin as standin
import pytest
from commands import Ran, gpustate
from labnodes import LabFactory, also_on_ubuntu, family, first_ubuntu_only, without_repositories

from gpustate_lab.api import Lab
from gpustate_lab.node import Node
from gpustate_lab.spec import LabSpec

#: What these tests prove of states, how and on what: the table of states is made from it.
PROVES = {"secure-boot": ("simulated node", "debian12", "ubuntu")}

POLICY = """
from gpustate import Policy
from gpustate.states.driver import DriverInstalled
from gpustate.states.nouveau import NouveauBlacklisted
from gpustate.states.repository import DriverRepository
from gpustate.states.secure_boot import SecureBootKeyEnrolled

policy = Policy(NouveauBlacklisted(), SecureBootKeyEnrolled(), DriverRepository(), DriverInstalled(branch=580),
                without=("fabric-manager",), allow={"fabric-manager-missing": "these tests are about keys"})
"""
KEY_ONLY = """
from gpustate import Policy
from gpustate.states.secure_boot import SecureBootKeyEnrolled

policy = Policy(SecureBootKeyEnrolled(key="own"))
"""
WITH_OTHERS = POLICY.replace(
    "policy = ",
    "from gpustate.states.gdrcopy import GdrCopyInstalled\n"
    "from gpustate.states.gds import GpuDirectStorageEnabled\n\npolicy = ",
).replace("branch=580)", "branch=580), GdrCopyInstalled(), GpuDirectStorageEnabled()")
OF_UBUNTU = POLICY.replace("DriverRepository()", "DriverRepository(origin='distribution')")
BLOCKED = "blocked: needs a console"
#: modules_install of the kernel's build tools; where DKMS of Debian looks for it.
SIGN_FILE = "usr/lib/linux-kbuild-6.1/scripts/sign-file"
#: Where Ubuntu's headers have it, of each kernel that the node has or gets headers of.
UBUNTU_SIGN_FILES = "$(for i in /boot/vmlinuz-*; do echo /usr/src/linux-headers-${i#/boot/vmlinuz-}/scripts/sign-file; done)"
SIGNER = "Canonical Ltd. Kernel Module Signing"
on_both = also_on_ubuntu("debian12")


@pytest.fixture(scope="session")
def sign_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The kernel's own, of Debian's package."""
    folder = tmp_path_factory.mktemp("kbuild")
    done = subprocess.run(
        ["apt-get", "-q", "download", "linux-kbuild-6.1"],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.skip(
            f"linux-kbuild-6.1 of Debian 12 cannot be had here: {done.stderr.strip()[-200:]}"
        )
    package = next(folder.glob("*.deb"))
    subprocess.run(["dpkg", "-x", str(package), str(folder)], check=True)
    return (folder / SIGN_FILE).read_bytes()


class Site:
    """One node with Secure Boot on, and a policy with driver and key.

    Args:
        lab, node, image: of the node.
        folder: for the policy.
        sign_file: the program that signs modules.
    """

    def __init__(self, lab: Lab, node: Node, image: str, folder: Path, sign_file: bytes) -> None:
        self.node, self.inventory = node, lab.inventory
        self.ubuntu = family(image) == "ubuntu"
        self.policy = folder / "policy.py"
        self.write(POLICY)
        standin.install(node)
        text = base64.b64encode(sign_file).decode()
        places = UBUNTU_SIGN_FILES if self.ubuntu else f"/{SIGN_FILE}"
        node.run(
            f'for f in {places}; do mkdir -p "${{f%/*}}"; echo {text} | base64 -d >"$f"; chmod 0755 "$f"; done'
        )

    def write(self, policy: str) -> None:
        """Set the policy; on Ubuntu with a key of the node's own and modules that are built there."""
        if self.ubuntu:
            policy = policy.replace("SecureBootKeyEnrolled()", "SecureBootKeyEnrolled(key='own')")
            policy = policy.replace("branch=580", "branch=580, precompiled=False")
        self.policy.write_text(policy)

    def run(self, verb: str, *more: str, code: int | None = None) -> Ran:
        words = ("-i", self.inventory, "-l", self.node.name, "-o", "json", *more)
        return gpustate(verb, self.policy, *words, code=code)

    def apply(self, code: int) -> Ran:
        return self.run("apply", "--yes", code=code)

    def outcomes(self, ran: Ran) -> dict[str, str]:
        return {row["state"]: row["outcome"] for row in ran.node(self.node.name)["states"]}

    def said(self, command: str) -> str:
        return self.node.run(command, timeout_s=120).stdout.strip()

    def key(self, module: str) -> str:
        """The number of the certificate that a module is signed with."""
        return self.said(f"modinfo -F sig_key {module}").replace(":", "").lstrip("0")


@pytest.fixture(scope="module")
def alone(lab_factory: LabFactory, image: str) -> Lab:
    return lab_factory(LabSpec(nodes=1, images=(image,), gpus=("1xH100",)))


@pytest.fixture
def site(alone: Lab, image: str, tmp_path: Path, sign_file: bytes) -> Site:
    alone.node("gpu1").reset()
    return Site(alone, alone.node("gpu1"), image, tmp_path, sign_file)


def password(ran: Ran) -> str:
    found = re.findall(r"one-time password .*: ([a-z]{12})$", ran.err, re.MULTILINE)
    assert len(found) == 1, ran.err
    return found[0]


@on_both
def test_a_key_is_made_and_queued_and_what_needs_it_waits_for_the_console(site: Site) -> None:
    planned = site.outcomes(site.run("plan", code=0))
    assert planned["secure-boot"] == "known after"
    assert planned["driver"] == "known after"

    queued = site.apply(code=9)
    assert site.outcomes(queued) == {
        "nouveau": "changed",
        "secure-boot": BLOCKED,
        "driver-repository": "changed",
        "driver": "not run",
    }
    assert queued.node("gpu1")["status"] == BLOCKED
    assert "blocked=1" in queued.document["summary"]
    secret = password(queued)
    assert secret not in queued.out
    assert not site.said(f"grep -rlaF {secret} /var/lib/gpustate /run/gpustate /etc /var/log || :")
    assert site.said("stat -c '%a %U' /var/lib/gpustate/secure-boot/MOK.priv") == "600 root"

    again = site.apply(code=9)
    assert site.outcomes(again)["secure-boot"] == BLOCKED
    assert again.document["summary"].split()[2] == "changed=0"
    assert "one-time password that was shown" in again.node("gpu1")["reason"]
    assert "one-time password that MOK" not in again.err
    assert site.said(f"wc -l <{standin.FOLDER}/imports") == "1"

    assert standin.console(site.node, secret)


@on_both
def test_a_wrong_password_loses_the_request_and_the_next_apply_queues_it_anew(site: Site) -> None:
    first = password(site.apply(code=9))
    assert not standin.console(site.node, "wrongwrong")
    second = password(site.apply(code=9))
    assert second != first
    assert standin.console(site.node, second)
    assert site.outcomes(site.run("plan"))["secure-boot"] == "unchanged"


@on_both
def test_modules_that_nobody_vouches_for_are_signed_anew(site: Site) -> None:
    site.write(
        POLICY.replace("SecureBootKeyEnrolled(), ", "").replace("580", "580, secure_boot='ignore'")
    )
    site.apply(code=0)
    site.write(POLICY)
    plan = site.run("plan")
    change = next(
        change
        for row in plan.node("gpu1")["states"]
        if row["state"] == "secure-boot"
        for change in row["changes"]
        if change["field"] == "signed"
    )
    assert "signed" in change["why"]
    secret = password(site.apply(code=9))
    assert site.said("modinfo -F signer nvidia_uvm || modinfo -F signer nvidia-uvm")
    size = site.said("stat -c %s $(modinfo -n nvidia)")
    assert standin.console(site.node, secret)
    assert site.apply(code=0).document["summary"].split()[2] == "changed=0"
    assert site.said("stat -c %s $(modinfo -n nvidia)") == size

    site.said("rm /etc/dkms/framework.conf.d/*")
    assert site.outcomes(site.run("drift", code=2))["secure-boot"] == "would change"
    assert site.outcomes(site.apply(code=0))["secure-boot"] == "changed"
    assert site.outcomes(site.apply(code=0))["secure-boot"] == "unchanged"
    removed = site.run("remove", "--yes")
    assert site.outcomes(removed)["secure-boot"] in ("changed", BLOCKED), removed.out
    assert "secure-boot" not in site.said(
        "find /etc -name '*gpustate*'; ls /etc/dkms/framework.conf.d"
    )


@on_both
def test_one_apply_builds_and_signs_whether_dkms_signs_by_itself_or_not(site: Site) -> None:
    site.write(KEY_ONLY)
    assert standin.console(site.node, password(site.apply(code=9)))
    serial = site.said(
        "openssl x509 -inform DER -in /var/lib/gpustate/secure-boot/MOK.der -noout -serial"
    )
    site.write(WITH_OTHERS)
    done = site.apply(code=0)
    assert site.outcomes(done)["secure-boot"] == "unchanged"
    assert {site.outcomes(done)[name] for name in ("driver", "gdrcopy", "gds")} == {"changed"}
    for module in (
        "nvidia",
        "nvidia-uvm",
        "nvidia-modeset",
        "nvidia-peermem",
        "gdrdrv",
        "nvidia-fs",
    ):
        assert site.key(module) == serial.partition("=")[2].lstrip("0"), module
    assert site.apply(code=0).document["summary"].split()[2] == "changed=0"

    # A build that got lost, as by a new kernel, is signed as the first one.
    version = site.said("modinfo -F version nvidia-fs")
    site.said(f"rmmod nvidia_fs; dkms remove nvidia-fs/{version} -k $(uname -r); depmod")
    assert not site.said("modinfo -n nvidia-fs 2>/dev/null || :")
    assert site.outcomes(site.apply(code=0))["gds"] == "changed"
    assert site.key("nvidia-fs") == serial.partition("=")[2].lstrip("0")


@first_ubuntu_only()
def test_modules_that_canonical_signed_need_no_key_and_nobody_at_the_console(
    site: Site, alone: Lab, tmp_path: Path
) -> None:
    site.inventory = without_repositories(alone, tmp_path)
    site.policy.write_text(OF_UBUNTU)
    planned = site.outcomes(site.run("plan", code=0))["secure-boot"]
    assert planned in ("unchanged", "known after")
    done = site.outcomes(site.apply(code=0))
    assert (done["secure-boot"], done["driver"]) == ("unchanged", "changed")
    kernels = site.said("for i in /boot/vmlinuz-*; do echo ${i#/boot/vmlinuz-}; done").split()
    assert len(kernels) > 1
    for kernel in kernels:
        assert site.said(f"modinfo -k {kernel} -F signer nvidia") == SIGNER
    assert (
        site.said(f"ls {standin.FOLDER}/imports /var/lib/gpustate/secure-boot 2>&1 || :").count(
            "No such file"
        )
        == 2
    )
    assert site.apply(code=0).document["summary"].split()[2] == "changed=0"
