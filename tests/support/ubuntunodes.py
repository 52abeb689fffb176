"""A node with the driver of Ubuntu's archive, looked at with the distribution's own tools."""

from __future__ import annotations

from pathlib import Path

from commands import Ran, gpustate
from labnodes import without_repositories

from gpustate_lab.api import Lab
from gpustate_lab.node import Node
from gpustate_lab.sim.ubuntu_packages import RELEASES, Release

POLICY = """
from gpustate import Policy
from gpustate.registry import get
from gpustate.states.driver import DriverInstalled
from gpustate.states.kernel import KernelPinned
from gpustate.states.nouveau import NouveauBlacklisted
from gpustate.states.persistenced import PersistenceModeEnabled
from gpustate.states.repository import DriverRepository

policy = Policy(
    NouveauBlacklisted(), DriverRepository({repository}), DriverInstalled({driver}), PersistenceModeEnabled(){more}
)
"""
SIGNER = "Canonical Ltd. Kernel Module Signing"


class UbuntuNode:
    """A node with the driver of Ubuntu's archive.

    Args:
        lab, node: of the lab.
        folder: for policy and inventory.
        image: which release the node answers as.
    """

    def __init__(self, lab: Lab, node: Node, folder: Path, image: str = "ubuntu2404") -> None:
        self.lab, self.node, self.folder = lab, node, folder
        self.release: Release = RELEASES[image]
        self.inventory = without_repositories(lab, folder)

    def policy(self, driver: str, more: str = "", *, vendor: bool = False) -> Path:
        """A policy with these parameters of the driver and further states; the driver is of the archive, or NVIDIA's."""
        path = self.folder / ("vendor.py" if vendor else "policy.py")
        where = "" if vendor else "origin='distribution'"
        words = {"repository": where, "driver": driver, "more": more}
        text = POLICY
        for key, word in words.items():
            text = text.replace(f"{{{key}}}", word)
        path.write_text(text)
        return path

    def run(
        self, verb: str, driver: str, more: str = "", code: int = 0, *, vendor: bool = False
    ) -> Ran:
        """Run a verb with such a policy; the lab's own inventory names its repository of NVIDIA's packages."""
        yes = ("--yes",) if verb in ("apply", "remove") else ()
        inventory = self.lab.inventory if vendor else self.inventory
        path = self.policy(driver, more, vendor=vendor)
        return gpustate(verb, path, "-i", inventory, *yes, code=code, timeout=600)

    def rollback(self, *, vendor: bool = False) -> Ran:
        """Go back to before the last run; to NVIDIA's packages, or to the archive's."""
        inventory = self.lab.inventory if vendor else self.inventory
        return gpustate("rollback", "-i", inventory, "--yes", code=0, timeout=600)

    def said(self, command: str) -> str:
        return self.node.run(command, timeout_s=300).stdout.strip()

    def installed(self) -> dict[str, str]:
        """Version of every package of the driver, as dpkg has it."""
        listing = self.said(
            "dpkg-query -W -f '${db:Status-Status} ${Package} ${Version}\\n' '*nvidia*' 2>/dev/null || :"
        )
        rows = (line.split() for line in listing.splitlines())
        return {
            row[1]: row[2] for row in rows if row[0] == "installed" and "container" not in row[1]
        }

    def versions(self) -> dict[str, str]:
        """The same of those in the driver's own version."""
        return {
            name: version
            for name, version in self.installed().items()
            if not name.startswith("linux-") and name != "nvidia-modprobe"
        }

    def modules(self, field: str = "version") -> dict[str, str]:
        """What modinfo says of nvidia for every kernel in /boot."""
        listing = self.said(
            "for i in /boot/vmlinuz-*; do k=${i#/boot/vmlinuz-}; "
            f'echo "$k=$(modinfo -k $k -F {field} nvidia 2>/dev/null)"; done'
        )
        return dict(line.split("=", 1) for line in listing.splitlines())

    def is_whole(self, version: str, *, signed: bool | None = None) -> None:
        """One matched set, held, in use, with a module for every kernel that can boot: signed, built, or either."""
        versions = self.versions()
        assert set(versions.values()) == {f"{version}-0ubuntu0.{self.release.number}.1"}, versions
        assert "nvidia-utils-" + version[:3] + "-server" in versions
        assert set(versions) <= set(self.said("apt-mark showhold").split())
        assert set(self.modules().values()) == {version}
        if signed is not None:
            assert (set(self.modules("signer").values()) == {SIGNER}) == signed
            assert any(name.startswith("nvidia-dkms-") for name in versions) == (not signed)
        assert self.said("cat /run/gpustate-lab/sys/module/nvidia/version") == version
        assert self.said("dpkg --audit") == ""
