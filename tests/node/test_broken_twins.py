"""A repository with one thing changed is refused by the plan, with the words that help; a harmless change is planned.

A twin is the lab's archive for a distribution with one package renamed, one relation tightened, one key changed and so
on. Each is served to a node that has no driver and no repository yet; nothing but the plan runs, and the node is
untouched. Real: apt, signatures, the solver. Simulated: what is in NVIDIA's packages.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import gpustate
from packageserver import Answer, PackageServer, date
from shares import share

from gpustate_lab.api import Lab
from gpustate_lab.node import Node

pytestmark = pytest.mark.long

POLICY = """
format: gpustate.policy/1
states:
  nouveau:
  driver-repository:
  driver: {branch: 580}
"""
NEW, OLD = "580.178.04", "580.65.06"
FOREIGN = "Architecture: i386"
Edit = Callable[[str], str]


@dataclass(frozen=True)
class Twin:
    """One changed thing.

    Args:
        says: pattern of the reason; empty: the plan is to install ``version``.
        edit: what it does to the text of the index.
        release: fields of the Release file.
        stranger: signed with another key.
        rules: what requests get, by pattern of their path.
        state: whose reason it is; an apply is refused as well if the GPUs are of no use without it.
        more: further states of the policy.
    """

    says: str = ""
    edit: Edit = lambda index: index
    release: dict[str, str] = field(default_factory=dict[str, str])
    stranger: bool = False
    rules: tuple[tuple[str, Answer], ...] = ()
    state: str = "driver"
    version: str = NEW
    more: str = ""


def stanzas(change: Callable[[str, str, str], str | None]) -> Edit:
    """Change each package, given by name, version and text; ``None`` leaves it out."""

    def edit(index: str) -> str:
        found: list[str] = []
        for text in index.strip().split("\n\n"):
            name, version = (
                re.search(rf"^{key}: (.*)$", text, re.MULTILINE) for key in ("Package", "Version")
            )
            assert name is not None
            assert version is not None
            changed = change(name[1], version[1], text)
            found += [] if changed is None else [changed]
        return "\n\n".join(found) + "\n"

    return edit


def without(name: str, version: str = "") -> Edit:
    return stanzas(lambda n, v, t: None if n == name and v.startswith(version) else t)


def replaced(name: str, old: str, new: str, version: str = NEW) -> Edit:
    """Replace text of one package for the node's architecture; it has to be there."""

    def change(n: str, v: str, text: str) -> str:
        if n != name or not v.startswith(version) or FOREIGN in text:
            return text
        assert old in text, text
        return text.replace(old, new)

    return stanzas(change)


def relation(name: str, field: str, value: str) -> Edit:
    """Give a package one more relation."""
    return replaced(name, "\nArchitecture:", f"\n{field}: {value}\nArchitecture:")


def added(text: str) -> Edit:
    return lambda index: f"{index.rstrip()}\n\n{text.strip()}\n"


def copied(name: str, version: str) -> Edit:
    """A second build of one package."""

    def edit(index: str) -> str:
        texts = [t for t in index.split("\n\n") if f"Package: {name}\nVersion: {NEW}-1" in t]
        text = next(t for t in texts if FOREIGN not in t)
        return added(text.replace(f"\nVersion: {NEW}-1", f"\nVersion: {version}"))(index)

    return edit


KERNEL = """
Package: linux-image-6.1.0-99-amd64
Version: 6.1.99-1
Architecture: amd64
Maintainer: x <x@example.org>
Filename: ./linux.deb
Size: 1
SHA256: 0000000000000000000000000000000000000000000000000000000000000000
Description: x
"""
TWINS = {
    "as it is": Twin(),
    # --- one package
    "a library has another name": Twin(
        r"libcuda1 .*(not installable|not going to be installed)|Depends: libcuda1",
        replaced("libcuda1", "Package: libcuda1\n", "Package: libcuda2\n"),
    ),
    "a library is missing": Twin(
        r"Depends: libnvidia-ml1 \(= 580\.178\.04-1\)", without("libnvidia-ml1", NEW)
    ),
    "what a library needs is missing": Twin(
        r"libcuda1|libnvidia-ptxjitcompiler1", without("libnvidia-ptxjitcompiler1", NEW)
    ),
    "the newest version lacks its main package": Twin(
        edit=without("nvidia-driver-cuda", NEW), version=OLD
    ),
    "the newest version lacks its modules": Twin(
        edit=without("nvidia-kernel-open-dkms", NEW), version=OLD
    ),
    "Fabric Manager is missing": Twin(
        r"no repository offers nvidia-fabricmanager 580\.178\.04",
        without("nvidia-fabricmanager"),
        state="fabric-manager",
    ),
    "Fabric Manager is older than the newest driver": Twin(
        r"no repository offers nvidia-fabricmanager 580\.178\.04",
        without("nvidia-fabricmanager", NEW),
        state="fabric-manager",
    ),
    "DCGM is missing": Twin(
        r"no repository offers datacenter-gpu-manager-4-core, which the driver 580\.178\.04 \(CUDA 13\) needs; use ",
        without("datacenter-gpu-manager-4-core"),
        state="dcgm",
        more="  persistenced:\n  dcgm:\n",
    ),
    "the exporter has another version": Twin(
        r"no repository offers datacenter-gpu-manager-exporter 9\.9\.9; there is 4\.",
        state="dcgm-exporter",
        more="  dcgm:\n  dcgm-exporter: {version: 9.9.9}\n",
    ),
    "a CUDA toolkit is missing": Twin(
        r"no repository offers cuda-toolkit-99-9; use NVIDIA's repository",
        state="cuda-toolkit",
        more="  cuda-toolkit: {versions: ['99.9']}\n",
    ),
    "the branch is missing": Twin(
        r"branch 580.*570\.211\.01|570.*595",
        stanzas(lambda n, v, t: None if v.startswith("580.") else t),
    ),
    "the index is empty": Twin(r"has branch 580", edit=lambda _: ""),
    # --- one relation
    "a relation is tightened": Twin(
        r"Depends: libcuda1 \(= 580\.999\)",
        replaced("nvidia-driver-cuda", f"libcuda1 (= {NEW}-1)", "libcuda1 (= 580.999)"),
    ),
    "a relation wants another version": Twin(
        r"libnvidia-ml1 \(= 580\.65\.06-1\)",
        replaced("nvidia-driver-cuda", f"libnvidia-ml1 (= {NEW}-1)", f"libnvidia-ml1 (= {OLD}-1)"),
    ),
    "a relation is loosened": Twin(
        edit=replaced("nvidia-driver-cuda", f"libcuda1 (= {NEW}-1)", f"libcuda1 (>= {OLD})")
    ),
    "DKMS is wanted newer than any": Twin(
        r"Depends: dkms \(>= 99\)", replaced("nvidia-kernel-open-dkms", "dkms,", "dkms (>= 99),")
    ),
    "what nobody provides is wanted": Twin(
        r"nvidia-abi-580", relation("libcuda1", "Pre-Depends", "nvidia-abi-580")
    ),
    "it conflicts with an installed package": Twin(
        r"would also remove openssh-server|openssh-server",
        relation("libcuda1", "Conflicts", "openssh-server"),
    ),
    "it breaks a package of its own set": Twin(
        r"libnvidia-ml1", relation("libcuda1", "Conflicts", f"libnvidia-ml1 (= {NEW}-1)")
    ),
    "it wants another kernel": Twin(
        r"would also install kernel 6\.1\.0-99-amd64",
        lambda index: added(KERNEL)(
            replaced("libcuda1", "Depends: libc6", "Depends: libc6, linux-image-6.1.0-99-amd64")(
                index
            )
        ),
    ),
    # --- versions
    "two builds of one package, and the older is wanted": Twin(
        r"libcuda1 \(= 580\.178\.04-1\)", copied("libcuda1", f"{NEW}-2")
    ),
    "a higher epoch": Twin(
        edit=lambda index: re.sub(rf"\b{re.escape(NEW)}-1\b(?!_)", f"1:{NEW}-1", index)
    ),
    "a revision of a distributor": Twin(
        edit=lambda index: re.sub(rf"\b{re.escape(NEW)}-1\b(?!_)", f"{NEW}-1~site2", index)
    ),
    # --- architectures
    "another architecture only": Twin(
        r"has (no )?branch 580",
        lambda index: index.replace("Architecture: amd64", "Architecture: arm64"),
    ),
    "one more architecture": Twin(edit=lambda index: index.replace(FOREIGN, "Architecture: arm64")),
    # --- the repository
    "another key": Twin(
        r"NO_PUBKEY|Missing key|not signed", stranger=True, state="driver-repository"
    ),
    "no signature": Twin(
        r"not signed|does not have a Release",
        rules=(("InRelease$", Answer(404)), (r"Release\.gpg$", Answer(404))),
        state="driver-repository",
    ),
    "expired": Twin(
        r"expired",
        release={"Date": date(-900), "Valid-Until": date(-500)},
        state="driver-repository",
    ),
    "from the future": Twin(
        r"not valid yet", release={"Date": date(30)}, state="driver-repository"
    ),
    "another origin": Twin(release={"Origin": "somebody", "Label": "else"}),
    "not there": Twin(
        r"404|does not have a Release", rules=(("", Answer(404)),), state="driver-repository"
    ),
    "a login is wanted": Twin(r"401", rules=(("", Answer(401)),), state="driver-repository"),
    "an index cut short": Twin(
        r"unexpected size|Hash Sum|Mirror sync",
        rules=((r"Packages(\.gz)?$", Answer(body=gzip.compress(b"x"))),),
        state="driver-repository",
    ),
    "an index that is no index": Twin(
        r"parse|Problem with MergeList|unreadable",
        lambda index: f"Package nonsense\n{index}",
        state="driver-repository",
    ),
}
IMAGES = ("debian12", "debian13")
POINTS = [(name, image) for name in TWINS for image in IMAGES]


@pytest.fixture(scope="module")
def server(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PackageServer]:
    served = PackageServer(str(lab.network.gateway), tmp_path_factory.mktemp("twins"))
    yield served
    served.close()


@pytest.fixture(scope="module")
def nodes(lab: Lab) -> dict[str, Node]:
    """A fresh node of each image."""
    found = {node.image: node for node in lab.nodes}
    for node in found.values():
        node.reset(wait=False)
    for node in found.values():
        node.wait_ready()
    return found


def rows(
    lab: Lab, node: Node, parameters: dict[str, Any], folder: Path, twin: Twin
) -> Iterator[dict[str, Any]]:
    """The node's row of a plan, and of an apply that changes nothing."""
    data = yaml.safe_load(lab.inventory.read_text())
    data["all"]["children"]["gpu"]["hosts"][node.name]["gpustate"] = parameters
    inventory, policy = folder / "inventory.yml", folder / "policy.yaml"
    inventory.write_text(yaml.safe_dump(data))
    policy.write_text(POLICY + twin.more)
    refuses = twin.state == "fabric-manager"
    for verb, *words in (("plan",), ("apply", "--yes"))[: 2 if refuses else 1]:
        target = (policy, "-i", inventory, "-l", node.name, "-o", "json")
        yield gpustate(verb, *target, *words).node(node.name)


@pytest.mark.parametrize(("name", "image"), share("broken twins", POINTS, most=10))
def test_the_plan_says_what_is_wrong_with_a_repository(
    name: str, image: str, lab: Lab, server: PackageServer, nodes: dict[str, Node], tmp_path: Path
) -> None:
    twin, node = TWINS[name], nodes[image]
    repository = server.repository("driver", image)
    server.clear(node.name)
    server.publish(
        node.name,
        repository,
        edit=twin.edit,
        release=twin.release,
        key=server.stranger() if twin.stranger else None,
    )
    server.shelf(node.name).rules += twin.rules
    before = node.run(
        "find /etc /var/lib/apt /var/lib/dpkg/status -type f | sort | xargs cksum"
    ).stdout
    edition = list(TWINS).index(name)
    source = {
        "origin": "mirror",
        "url": f"{server.url}/{node.name}/{edition}/{repository}/",
        "key": str(lab.repository_key),
    }
    for row in rows(lab, node, {"driver-repository": source}, tmp_path, twin):
        text = yaml.safe_dump(row, width=10000)
        if twin.says:
            assert row["status"] == "refused", row["states"][-1]
            assert row["reason"].startswith(f"{twin.state}: "), row["reason"]
            assert re.search(twin.says, row["reason"]), row["reason"]
            assert "; " in row["reason"], row["reason"]
        else:
            assert row["status"] != "refused", row["reason"]
            assert f"will install driver {twin.version} " in text
    assert (
        node.run("find /etc /var/lib/apt /var/lib/dpkg/status -type f | sort | xargs cksum").stdout
        == before
    )
