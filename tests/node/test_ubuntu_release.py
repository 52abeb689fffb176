"""A node of Ubuntu 22.04 becomes one of 24.04, as do-release-upgrade does it, and gpustate goes with it.

Simulated: Ubuntu's archive and NVIDIA's repository, and do-release-upgrade itself, which the lab does not have. The
tests do to apt what it does (DistUpgradeController of ubuntu-release-upgrader): the archive's sources name the new
release, others are disabled, all packages are upgraded but those that are held, the new release's kernel is
installed, and os-release is the new one's. What is not NVIDIA's, and not a kernel, stays Debian 12's.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import yaml
from commands import Ran, gpustate
from labnodes import LabFactory, without_repositories

from gpustate_lab.api import Lab
from gpustate_lab.sim.ubuntu_packages import RELEASES
from gpustate_lab.spec import LabSpec

pytestmark = pytest.mark.long

OLD, NEW = RELEASES["ubuntu2204"], RELEASES["ubuntu2404"]
POLICY = """
from gpustate import Policy
from gpustate.states.driver import DriverInstalled
from gpustate.states.kernel import KernelPinned
from gpustate.states.nouveau import NouveauBlacklisted
from gpustate.states.persistenced import PersistenceModeEnabled
from gpustate.states.repository import DriverRepository

policy = Policy(
    NouveauBlacklisted(), DriverRepository(), DriverInstalled(branch=580), PersistenceModeEnabled(),
    KernelPinned(policy="follow"),
)
"""
ARCHIVE = ("DriverRepository()", 'DriverRepository(origin="distribution")')
SIGNED = ("branch=580", "branch=580, precompiled=True")
#: Versions of the driver's packages before and after, by what the policy asks for.
CASES = {
    "signed": ((ARCHIVE, SIGNED), "580.178.04-0ubuntu0.22.04.1", "580.178.04-0ubuntu0.24.04.1"),
    "dkms": ((ARCHIVE,), "580.178.04-0ubuntu0.22.04.1", "580.178.04-0ubuntu0.24.04.1"),
    "vendor": (
        (("branch=580", 'version="580.65.06"'),),
        "580.65.06-0ubuntu1",
        "580.65.06-0ubuntu1",
    ),
}
#: Sources that are not of the archive do not survive an upgrade: they are disabled.
DISABLE = """
for f in /etc/apt/sources.list.d/*; do
  case $f in
    */ubuntu.sources|*/gpustate-lab-lab.list) ;;
    *.sources) sed -i '1i Enabled: no' "$f" ;;
    *.list) sed -i 's/^deb /# deb /' "$f" ;;
  esac
done
"""
UPGRADE = """
export DEBIAN_FRONTEND=noninteractive
apt-get -y -q full-upgrade && apt-get -y -q install linux-image-generic linux-headers-generic
"""


@pytest.fixture(scope="module")
def lab(lab_factory: LabFactory) -> Lab:
    """A node to upgrade, and one that has the new release."""
    return lab_factory(LabSpec(nodes=2, images=(OLD.code, NEW.code), gpus=("8xH100",)))


class Upgraded:
    """The node, and gpustate's verbs on it.

    Args:
        lab: it is its first node.
        folder: for policy and inventory.
        vendor: the inventory names NVIDIA's repository.
    """

    def __init__(self, lab: Lab, folder: Path, *, vendor: bool) -> None:
        self.node, self.new = lab.nodes
        self.node.reset()
        self.policy = folder / "policy.py"
        self.inventory = without_repositories(lab, folder)
        if vendor:
            self.inventory.write_text(lab.inventory.read_text())

    def run(self, verb: str, code: int = 0) -> Ran:
        yes = ("--yes",) if verb == "apply" else ()
        target = ("-i", self.inventory, "-l", self.node.name, "-o", "json")
        return gpustate(verb, self.policy, *target, *yes, code=code, timeout=500)

    def said(self, command: str) -> str:
        return self.node.run(command, timeout_s=500).stdout.strip()

    def move_sources(self) -> None:
        """The archive's sources name the new release; others are disabled."""
        self.said("rm /etc/apt/sources.list")
        self.copy("/etc/apt/sources.list.d/ubuntu.sources")
        self.said(f"sed -i s/{OLD.code}/{NEW.code}/ /etc/apt/sources.list.d/gpustate-lab-lab.list")
        self.said(f"{DISABLE}apt-get -q update")

    def finish(self) -> None:
        """Everything is upgraded, the new kernel is there, and so is the new release's name."""
        self.said(UPGRADE)
        for path in ("/usr/lib/os-release", "/etc/lsb-release"):
            self.copy(path)

    def copy(self, path: str) -> None:
        """As the node of the new release has it."""
        text = self.new.run(["cat", path]).stdout
        self.said(f"printf %s {shlex.quote(text)} >{path}")

    def move_inventory(self) -> None:
        """The inventory names the new release's repository."""
        data = yaml.safe_load(self.inventory.read_text())
        groups = data["all"]["children"]
        groups[NEW.code]["hosts"][self.node.name] = groups[OLD.code]["hosts"].pop(self.node.name)
        self.inventory.write_text(yaml.safe_dump(data))

    def drivers(self) -> set[str]:
        """Versions of the driver's packages, without modules and small tools."""
        query = "dpkg-query -W -f '${db:Status-Status} ${Package} ${Version}\\n' '*nvidia*'"
        rows = (line.split() for line in self.said(query).splitlines())
        names = ("libnvidia-", "nvidia-utils-", "nvidia-kernel-", "nvidia-dkms-", "nvidia-compute-")
        return {
            row[2] for row in rows if row[0] == "installed" and row[1].startswith(names)
        }  # fmt: skip

    def modules(self) -> dict[str, str]:
        """The version of nvidia for each kernel in /boot."""
        script = (
            "for i in /boot/vmlinuz-*; do k=${i#/boot/vmlinuz-}; "
            'echo "$k=$(modinfo -k $k -F version nvidia 2>/dev/null)"; done'
        )
        return dict(line.split("=", 1) for line in self.said(script).splitlines())


@pytest.mark.parametrize("case", CASES)
def test_a_node_is_left_alone_during_a_release_upgrade_and_follows_it(
    lab: Lab, tmp_path: Path, case: str
) -> None:
    replacements, before, after = CASES[case]
    at = Upgraded(lab, tmp_path, vendor=case == "vendor")
    text = POLICY
    for old, new in replacements:
        text = text.replace(old, new)
    at.policy.write_text(text)
    driver = before.partition("-")[0]
    at.run("apply")
    assert at.drivers() == {before}

    at.move_sources()
    reason = at.run("plan", code=5).node(at.node.name)["reason"]
    assert f"apt's sources are of {NEW.codename}, and this node is {OLD.codename}" in reason
    assert "finish it, then apply again" in reason
    at.run("apply", code=5)
    at.finish()
    kernel = NEW.kernels[1]
    assert at.drivers() == {before}, "held"
    assert at.modules()[kernel] in ("", driver), "DKMS builds it where headers come with the kernel"

    at.move_inventory()
    at.run("drift", code=2)
    at.run("apply")
    assert at.drivers() == {after}
    assert set(at.modules().values()) == {driver}
    assert kernel in at.modules()
    assert at.said("cat /run/gpustate-lab/sys/module/nvidia/version") == driver
    assert at.said("dpkg --audit") == ""
    assert at.run("apply").summary["changed"] == "0"
    at.node.reboot()
    at.run("drift")
