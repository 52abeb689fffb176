"""The commands of ``vagrant/README.md``, run as they stand there, on a virtual machine.

Vagrant, libvirt and qemu are Debian's. The box is made on the spot (:mod:`vagrantbox`), everything
runs in namespaces that nothing survives (:mod:`vagranthost`), and qemu emulates, so no KVM is needed.
Simulated: NVIDIA's packages. There is no GPU and none is pretended.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import vagrantbox
from vagranthost import Host, missing
from vm import missing as without_emulation
from vmpackages import VERSION

ROOT = Path(__file__).parents[2]
README = ROOT / "vagrant/README.md"
LACKING = [*missing(), *without_emulation()]

pytestmark = [pytest.mark.node, pytest.mark.proof]

#: The default 4 GiB and two processors are for real machines; two emulated ones take longer than one.
ENVIRONMENT = {"GPUSTATE_NODES": "debian12", "GPUSTATE_MEMORY_MIB": "1536", "GPUSTATE_CPUS": "1"}
BOOT_S, APPLY_S, SHORT_S = 1200, 3000, 600
NODE = "debian12"

#: One fact a line, by the machine's own tools.
FACTS = """
k=$(uname -r)
echo "kernel=$k"
echo "boot=$(cat /proc/sys/kernel/random/boot_id)"
echo "modules=$(lsmod | grep -oE '^(nouveau|nvidia[a-z_]*) ' | sort | tr -d '\\n')"
echo "initramfs=$(lsinitramfs /boot/initrd.img-$k | grep -c 'nouveau\\.ko')"
echo "files=$(lsinitramfs /boot/initrd.img-$k | wc -l)"
echo "built=$(modinfo -k $k -F version nvidia 2>/dev/null) $(modinfo -k $k -F vermagic nvidia 2>/dev/null | cut -d ' ' -f 1)"
echo "dkms=$(dkms status 2>/dev/null | tr '\\n' ' ')"
echo "headers=$(dpkg-query -W -f '${db:Status-Abbrev}' linux-headers-$k 2>/dev/null)"
echo "audit=$(dpkg --audit | head -n 3 | tr '\\n' ' ')"
"""


def commands(first: str) -> list[str]:
    """The indented block of the README that begins with a command, without comments."""
    blocks = re.findall(r"(?:^    .*\n)+", README.read_text(), re.MULTILINE)
    lines = [[re.sub(r"\s+#.*", "", line).strip() for line in b.splitlines()] for b in blocks]
    found: list[str] = next(block for block in lines if block[0] == first)
    return found


class Session:
    """The README's commands against one machine, in the folder where it says to be."""

    def __init__(self, host: Host) -> None:
        self.host = host

    def run(self, command: str, *, code: int = 0, timeout_s: float = SHORT_S) -> str:
        return self.host.run(command, code=code, folder="vagrant", timeout_s=timeout_s)

    def facts(self) -> dict[str, str]:
        """What the machine's own tools say, as root."""
        out = self.run(f"vagrant ssh -c {shlex.quote('sudo sh -c ' + shlex.quote(FACTS))}")
        rows = (line.strip().partition("=") for line in out.splitlines())
        return {key: value.strip() for key, _, value in rows}

    def outcomes(self, command: str, *, timeout_s: float = SHORT_S) -> dict[str, str]:
        """State to outcome of a command that prints JSON."""
        text = self.run(f"{command} -o json 2>/dev/null", timeout_s=timeout_s)
        document: dict[str, Any] = json.loads(text)
        node = next(row for row in document["nodes"] if row["name"] == NODE)
        return {state["state"]: state["outcome"] for state in node["states"]}


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    if LACKING:
        reason = f"Vagrant cannot run here, missing: {', '.join(LACKING)}"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    folder = tmp_path_factory.mktemp("vagrant")
    with Host(folder, ROOT, vagrantbox.prepare(), ENVIRONMENT) as host:
        yield Session(host)


def test_the_commands_of_the_readme_end_with_a_built_driver_and_no_drift(session: Session) -> None:
    cd, up, plan, apply, drift, destroy = commands("cd vagrant")
    save, restore = commands("vagrant snapshot save clean")
    assert cd == "cd vagrant"

    session.run(up, timeout_s=BOOT_S)
    session.run(save)
    fresh = session.facts()
    assert fresh["modules"] == "nouveau", fresh
    assert fresh["initramfs"] == "1", fresh
    assert (fresh["built"], fresh["headers"]) == ("", ""), fresh

    assert "? driver " in session.run(plan)
    session.run(drift, code=2)
    session.run(apply, timeout_s=APPLY_S)
    session.run(drift)
    applied = session.facts()
    settled(applied)
    again = session.outcomes(apply)
    assert set(again.values()) == {"unchanged", "not applicable"}, again
    elsewhere = {state for state, outcome in again.items() if outcome == "not applicable"}
    assert elsewhere == {"cdi", "containerd", "validator"}, again

    session.run("vagrant reload", timeout_s=BOOT_S)
    rebooted = session.facts()
    settled(rebooted)
    assert rebooted["boot"] != applied["boot"]
    session.run(drift)

    session.run(save.replace("clean", "applied"))
    session.run("vagrant ssh -c 'sudo rm /etc/modprobe.d/gpustate-nouveau.conf'")
    session.run(drift, code=2)
    session.run(restore.replace("clean", "applied"))
    restored = session.facts()
    settled(restored)
    assert restored["boot"] == rebooted["boot"]
    session.run(drift)

    session.run(restore)
    assert session.facts() == fresh
    session.run(drift, code=2)

    session.run(destroy)
    assert session.host.run("virsh list --all --name").split() == []
    assert not list((session.host.checkout / "vagrant/.vagrant").glob("known_hosts-*"))


def settled(facts: dict[str, str]) -> None:
    """The driver is built for the machine's kernel and not loaded; nouveau is gone from everywhere."""
    kernel = facts["kernel"]
    assert facts["modules"] == "", facts
    assert facts["initramfs"] == "0", facts
    assert int(facts["files"]) > 50, facts
    assert facts["built"] == f"{VERSION} {kernel}", facts
    assert facts["dkms"].startswith(f"nvidia/{VERSION}, {kernel}, x86_64: installed"), facts
    assert facts["headers"] == "ii", facts
    assert facts["audit"] == "", facts
