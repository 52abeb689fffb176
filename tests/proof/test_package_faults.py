"""Faults of packages, repositories and disks, on Debian 12 and 13: refused before any change, put back,
or repaired; and the set of packages is never half of one version and half of another.

Faults take turns with the commit, every kind of them on both systems: a node stands at one version, the policy wants another, the fault is
on. The apply must end as the fault says, with one line that names the node's trouble and the next move;
with the fault off, one apply converges and the next has nothing to do. Looked at with dpkg and sha256sum.

Simulated: NVIDIA's packages (docs/lab.md). Real: apt, dpkg, DKMS, systemd, containerd, the faults.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import repositoryfaults  # noqa: F401  registers its faults
import yaml
from commands import Ran, gpustate
from goingback import OBSOLETE
from packagefaults import DRIVER, FAULTS, REPAIRED, TOOLKIT, Fault, Target
from packageserver import PackageServer
from shares import everything, share

from gpustate_lab.api import Lab

pytestmark = [pytest.mark.long, pytest.mark.node]

POLICY = """
from gpustate import Policy
from gpustate.registry import get

names = ("preflight", "nouveau", "driver-repository", "driver", "toolkit-repository")
policy = Policy(*(get(name)() for name in (*names, "container-toolkit", "containerd")))
"""
IMAGES = ("debian12", "debian13")
#: Packages with version, state and hold; files below /etc and module options, by their content.
LEDGER = r"""
dpkg-query -W -f '${binary:Package} ${Version} ${Status}\n' | grep -v ' config-files$\| not-installed$'
find /etc -xdev -type f ! -name ld.so.cache ! -path '/etc/gpustate-lab/*' ! -name '*-' | sort | xargs -d '\n' sha256sum
find /etc -xdev -type l -printf '%p -> %l\n' | sort
for i in /boot/vmlinuz-*; do echo "$i $(modinfo -k ${i#/boot/vmlinuz-} -F version nvidia 2>/dev/null)"; done
"""
ONCE = r"linux-headers-|/etc/(passwd|shadow|group|gshadow|subuid|subgid)$"
SETS = {
    "driver": "'nvidia-*' 'libnvidia-ml1' 'libcuda1' firmware-nvidia-gsp libnvidia-ptxjitcompiler1",
    "toolkit": "'nvidia-container-toolkit*' 'libnvidia-container*'",
}


@dataclass(frozen=True)
class Point:
    """One fault on one image, about one set."""

    fault: str
    image: str

    def __str__(self) -> str:
        return f"{self.fault}@{self.image}"

    @property
    def about(self) -> str:
        """The sets take turns: from image to image where it matters most, else from fault to fault."""
        sets = FAULTS[self.fault].sets
        if FAULTS[self.fault].group == "transaction":
            return sets[IMAGES.index(self.image) % len(sets)]
        # A driver is built, which costs ten times as much.
        return sets[0 if list(FAULTS).index(self.fault) % 3 == 0 else -1]


#: So many of a hundred are carried out at once, another share with every commit.
AT_ONCE = 32
POINTS = [Point(name, image) for name in FAULTS for image in IMAGES]


@dataclass
class Stand:
    """The lab with the versions its nodes stand at."""

    lab: Lab
    server: PackageServer
    folder: Path
    targets: dict[str, Target] = field(default_factory=dict[str, Target])
    #: Nodes that were seen converged, and may go on from there.
    good: set[str] = field(default_factory=set[str])

    def target(self, image: str) -> Target:
        if image not in self.targets:
            node = next(node for node in self.lab.nodes if node.image == image)
            self.targets[image] = Target(node, self.server)
        return self.targets[image]

    def apply(self, targets: list[Target]) -> Ran:
        inventory = self.folder / "inventory.yml"
        data = yaml.safe_load(self.lab.inventory.read_text())
        hosts = data["all"]["children"]["gpu"]["hosts"]
        for target in targets:
            hosts[target.node.name]["gpustate"] = self._parameters(target)
        inventory.write_text(yaml.safe_dump(data))
        policy = self.folder / "policy.py"
        policy.write_text(POLICY)
        names = ",".join(target.node.name for target in targets)
        # A fault of one node leaves the others alone, which waves would not start.
        once = ("--serial", "100%", "--max-unavailable", "100%")
        return gpustate("apply", policy, "-i", inventory, "-l", names, *once, "--yes", "-o", "json")

    def _parameters(self, target: Target) -> dict[str, dict[str, Any]]:
        base = f"{self.server.url}/{target.node.name}"
        key = str(self.lab.repository_key)
        sources = {
            f"{what}-repository": {
                "origin": "mirror",
                "url": f"{base}/{target.editions[what]}/{self.server.repository(what, target.image)}/",
                "key": key,
            }
            for what in ("driver", "toolkit")
        }
        return {
            **sources,
            "driver": {"version": target.driver},
            "container-toolkit": {"version": target.toolkit},
            "containerd": {"default": target.default_runtime},
        }

    def reset(self, targets: list[Target]) -> None:
        for target in targets:
            self.good.discard(target.node.name)
            self.server.clear(target.node.name)
            target.node.reset(wait=False)
        for target in targets:
            target.node.wait_ready()
            # Each build and each initramfs costs seconds; the older kernel stays on one of the two.
            target.run("echo update_initramfs=no >/etc/initramfs-tools/update-initramfs.conf")
            if target.image == "debian13":
                target.run("dpkg --purge $(dpkg-query -W -f '${Package}\\n' 'linux-image-5.*')")

    def make_good(self, targets: list[Target]) -> None:
        bad = [target for target in targets if target.node.name not in self.good]
        if bad:
            self.reset(bad)
            self.converge(bad)

    def converge(self, targets: list[Target]) -> None:
        """One apply ends well, everything is what it says, and another one finds nothing to do."""
        for target in targets:
            self.good.discard(target.node.name)
        ran = self.apply(targets)
        for target in targets:
            row = ran.node(target.node.name)
            assert row["status"] == "ok", row["reason"]
            is_whole(target)
        again = self.apply(targets)
        for target in targets:
            row = again.node(target.node.name)
            assert row["status"] == "ok", row["reason"]
            outcomes = {state["state"]: state["outcome"] for state in row["states"]}
            assert set(outcomes.values()) <= {"unchanged", "not applicable"}, outcomes
            self.good.add(target.node.name)


def installed(target: Target, what: str) -> dict[str, str]:
    """Version and state of every package of a set."""
    shape = "${Package}|${Version}|${db:Status-Status}\\n"
    rows = target.run(f"dpkg-query -W -f '{shape}' {SETS[what]} 2>/dev/null || :").splitlines()
    return {
        name: f"{version} {state}"
        for name, version, state in (row.split("|") for row in rows)
        if state not in ("not-installed", "config-files")
        and ("container" in name) == (what == "toolkit")
    }


def is_whole(target: Target) -> None:
    """Both sets are at the wanted versions, held, and nothing is left to dpkg."""
    assert target.run("dpkg --audit; apt-get check -qq") == ""
    held = set(target.run("apt-mark showhold").split())
    for what, version in (("driver", target.driver), ("toolkit", target.toolkit)):
        packages = installed(target, what)
        assert set(packages.values()) == {f"{version}-1 installed"}, packages
        assert set(packages) <= held
    modules = "for i in /boot/vmlinuz-*; do modinfo -k ${i#/boot/vmlinuz-} -F version nvidia; done"
    assert set(target.run(modules).split()) == {target.driver}
    assert target.run("cat /run/gpustate-lab/sys/module/nvidia/version") == target.driver
    assert target.run("systemctl is-active containerd") == "active"


def is_no_mixture(target: Target) -> None:
    for what in SETS:
        versions = set(installed(target, what).values())
        assert len(versions) <= 1, versions


@pytest.fixture(scope="module")
def stand(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    folder = tmp_path_factory.mktemp("packages")
    server = PackageServer(str(lab.network.gateway), folder)
    yield Stand(lab, server, folder)
    server.close()


def chosen() -> list[Point]:
    """Without ``--proof`` one of each group and a few; with it every group on both images, and faults by turns."""
    if not everything():
        return share("package faults", POINTS, most=8, kind=lambda point: FAULTS[point.fault].group)
    return share("package faults", POINTS, most=AT_ONCE, kind=_group, always=True)


def _group(point: Point) -> tuple[str, str]:
    return FAULTS[point.fault].group, point.image


CHOSEN = chosen()


@pytest.mark.parametrize("name", dict.fromkeys(point.fault for point in CHOSEN))
def test_a_fault_of_packages_is_refused_put_back_or_repaired(name: str, stand: Stand) -> None:
    fault = FAULTS[name]
    points = [point for point in CHOSEN if point.fault == name]
    targets = [stand.target(point.image) for point in points]
    if fault.fresh:
        stand.reset(targets)
    else:
        stand.make_good(targets)
    for point, target in zip(points, targets, strict=True):
        target.move_on(point.about)
        stand.good.discard(target.node.name)
        fault.on(target)
    before = {target.node.name: target.run(LEDGER) for target in targets}
    try:
        ran = stand.apply(targets)
        for target in targets:
            judge(fault, target, ran, before[target.node.name])
    finally:
        for target in targets:
            fault.off(target)
    stand.converge(targets)


def judge(fault: Fault, target: Target, ran: Ran, before: str) -> None:
    """What came of the apply with the fault on."""
    row = ran.node(target.node.name)
    is_no_mixture(target)
    if fault.expected == REPAIRED:
        assert row["status"] == "ok", row["reason"]
        is_whole(target)
        fault.check(target)
        return
    assert ran.code in (1, 5, 7), ran.code
    assert row["status"] in ("refused", "rolled back", "failed"), row
    reason = str(row["reason"])
    print(f"{target.node.name} {row['status']}: {reason}")
    assert re.search(fault.says, reason), reason
    assert re.search(fault.move, reason), reason
    assert "\n" not in reason
    changed = {s["state"] for s in row["states"] if s["outcome"] == "changed"}
    # dpkg leaves configuration files of the newer version when it goes back, and so remembers them.
    left = set(target.run(OBSOLETE).split())
    lines = differences(before, target.run(LEDGER), changed)
    lines = [line for line in lines if line.split()[-1] not in left]
    if fault.fresh:
        # A step of its own before; and Debian's packages never remove the users they made.
        lines = [line for line in lines if not re.search(ONCE, line)]
    assert lines == []


#: What of the ledger belongs to a state that had nothing to do with the fault and was carried out.
OTHERS = {
    "driver-repository": "gpustate-driver-repository",
    "toolkit-repository": "gpustate-toolkit-repository",
    "nouveau": "gpustate-nouveau",
    "driver": "nvidia|cuda|linux-headers|dkms|gpustate-driver|/boot/vmlinuz",
    "container-toolkit": "nvidia-c(ontainer|di-refresh)",
    "containerd": "/etc/containerd/",
}


def differences(before: str, after: str, changed: set[str]) -> list[str]:
    """Lines of the ledger that came or went, without those of other states."""
    old, new = set(before.splitlines()), set(after.splitlines())
    lines = [
        *(f"-{line}" for line in sorted(old - new)),
        *(f"+{line}" for line in sorted(new - old)),
    ]
    others = [re.compile(OTHERS[state]) for state in changed & OTHERS.keys()]
    return [line for line in lines if not any(one.search(line) for one in others)]


def test_at_least_eight_classes_of_faults_are_registered_in_each_group_that_matters() -> None:
    assert len(FAULTS) >= 30
    assert {fault.group for fault in FAULTS.values()} == {
        *("locks", "database", "policy", "repository", "download", "transaction", "disk", "runtime")
    }
    assert set(DRIVER) & set(TOOLKIT) == set()
