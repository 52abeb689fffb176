"""Disposable nodes for tests: one lab of two nodes for the whole session, and labs made to order.

A node is put back to its first state before a test that asks for it, by throwing its disk's upper
folder away; that costs less than a second. Without root, or where namespaces are not allowed, the
tests are skipped, and the reason names what is missing.

The labs of a session that died are taken down by the next one: a lab's name ends in the pid of its
maker.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from patience import PATIENCE

from gpustate_lab import api, checks, programs
from gpustate_lab.api import Lab
from gpustate_lab.node import READY_TIMEOUT_S, Node
from gpustate_lab.spec import TOOLKITS, LabSpec

LabFactory = Callable[[LabSpec], Lab]

#: Images that answer as Ubuntu: the first runs every test of :func:`also_on_ubuntu`, the others a share.
UBUNTU = ("ubuntu2404", "ubuntu2204", "ubuntu2604")


def also_on_ubuntu(own: str, variant: str = "") -> pytest.MarkDecorator:
    """The ``image`` of a test: its own, and Ubuntu's by share (:mod:`shares`).

    Args:
        own: always runs it.
        variant: end of the images' names.
    """
    ubuntu = [
        pytest.param(f"{image}{variant}", marks=pytest.mark.ubuntu(image == UBUNTU[0]))
        for image in UBUNTU
    ]
    return pytest.mark.parametrize("image", [own + variant, *ubuntu], scope="module")


def first_ubuntu_only() -> pytest.MarkDecorator:
    """The ``image`` of a test that is of Ubuntu alone."""
    own = pytest.param(UBUNTU[0], marks=pytest.mark.ubuntu(True))
    return pytest.mark.parametrize("image", [own], scope="module")


#: Every file of /etc that a person or a package may have, with its content.
_FILES = (
    "cd /etc; find . -type f ! -path './gpustate-lab/*' -exec sha256sum {} + | sort -k 2; "
    "find . -type l -printf '%p -> %l\\n' | sort"
)
#: Written by programs at each change of packages or accounts.
_CHANGING = re.compile(r"\./(ld\.so\.cache|.*-$|mtab|gshadow|group|passwd|shadow|\.pwd\.lock)")
_numbers = itertools.count()
#: systemd, dbus, logind and containerd of a node take eight of the kernel's 128; labs of several
#: processes stand side by side.
INOTIFY, INSTANCES = Path("/proc/sys/fs/inotify/max_user_instances"), 1024


def vendor_revision(image: str) -> str:
    """End of the versions of NVIDIA's packages of 580.65.06 for an image; its components have ``-1`` everywhere."""
    return "-0ubuntu1" if family(image) == "ubuntu" else "-1"


def family(image: str) -> str:
    """``debian`` or ``ubuntu``."""
    return "ubuntu" if image.startswith("ubuntu") else "debian"


def etc_files(node: Node) -> list[str]:
    """Every file and link of /etc with its content, apart from those that all changes of packages write."""
    lines = node.run(_FILES).stdout.splitlines()
    return [line for line in lines if not _CHANGING.search(line)]


def without_repositories(lab: Lab, folder: Path) -> Path:
    """The lab's inventory without the addresses of NVIDIA's simulated repositories: what is in apt's sources counts."""
    data = yaml.safe_load(lab.inventory.read_text())
    for group in data["all"]["children"].values():
        group.get("vars", {}).pop("gpustate", None)
    found = folder / "inventory.yml"
    found.write_text(yaml.safe_dump(data))
    return found


def install_extra_modules(node: Node) -> None:
    """Ubuntu has nouveau and InfiniBand's modules in a package that is not installed by default."""
    node.run(
        'apt-get -q update; for i in /boot/vmlinuz-*; do n="$n linux-modules-extra-${i#/boot/vmlinuz-}"; done; '
        "DEBIAN_FRONTEND=noninteractive apt-get install -y -q $n",
        timeout_s=240,
    )


@pytest.fixture(scope="session")
def lab_machine() -> None:
    """Skip unless this machine can run a lab; remove what dead sessions left."""
    missing = checks.missing()
    if missing:
        pytest.skip(f"no lab on this machine: {'; '.join(missing)}")
    with contextlib.suppress(OSError):
        if int(INOTIFY.read_text()) < INSTANCES:
            INOTIFY.write_text(str(INSTANCES))
    for lab in api.labs():
        maker = re.fullmatch(r"pytest-.*?(\d+)", lab.name)
        if maker and not Path("/proc", maker[1]).exists():
            api.down(lab.name)


@pytest.fixture(scope="session")
def lab_programs(lab_machine: None) -> None:
    """Skip where the programs that the lab builds from Go modules cannot be had; in CI that is a failure."""
    reason = None if os.environ.get(programs.READY_VARIABLE) else programs.missing()
    if reason and os.environ.get("CI"):
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)


@contextlib.contextmanager
def _labs(cgroups: str | None = None) -> Iterator[LabFactory]:
    names: list[str] = []

    def make(spec: LabSpec) -> Lab:
        name = f"pytest-{next(_numbers)}-{os.getpid()}"
        names.append(name)
        api.READY_TIMEOUT_S = READY_TIMEOUT_S * PATIENCE
        own = spec if cgroups is None else replace(spec, cgroups=(cgroups,))
        return api.up(replace(own, name=name), toolkits=TOOLKITS)

    try:
        yield make
    finally:
        for name in names:
            api.down(name)


@pytest.fixture(scope="module")
def lab_factory(lab_machine: None) -> Iterator[LabFactory]:
    """Makes labs of any kind; a name is given to each, and all are gone at the end of the module.

    The cgroup driver is cgroupfs, with which containerd's configuration is that of its package.
    """
    with _labs("cgroupfs") as make:
        yield make


@pytest.fixture(scope="module")
def kubeadm_labs(lab_machine: None) -> Iterator[LabFactory]:
    """As ``lab_factory``, with the cgroup drivers of the specification."""
    with _labs() as make:
        yield make


@pytest.fixture(scope="session")
def lab(lab_machine: None) -> Iterator[Lab]:
    """The shared lab: gpu1 with Debian 12, gpu2 with Debian 13, eight H100 each; as Debian's packages leave them."""
    with _labs("cgroupfs") as make:
        yield make(LabSpec(nodes=2, images=("debian12", "debian13"), gpus=("8xH100",)))


@pytest.fixture(scope="session")
def ubuntu_lab(lab_machine: None) -> Iterator[Callable[[str], Lab]]:
    """One node with eight H100 for each image of Ubuntu that is asked for, as kubeadm leaves it."""
    with _labs() as make:
        yield functools.cache(
            lambda image: make(LabSpec(nodes=1, images=(image,), gpus=("8xH100",)))
        )


@pytest.fixture
def home(image: str, request: pytest.FixtureRequest) -> Lab:
    """A shared lab with a node of the image; see :func:`also_on_ubuntu`."""
    if family(image) == "ubuntu":
        make: Callable[[str], Lab] = request.getfixturevalue("ubuntu_lab")
        return make(image)
    found: Lab = request.getfixturevalue("lab")
    return found


@pytest.fixture
def node(home: Lab, image: str) -> Node:
    """The node of the image as it was at first."""
    found = home.node("gpu2" if image == "debian13" else "gpu1")
    found.reset()
    return found


@pytest.fixture
def fresh_lab(lab: Lab) -> Lab:
    """The shared lab with both nodes as they were at first."""
    return _reset(lab)


@pytest.fixture
def fresh_home(home: Lab) -> Lab:
    """The image's shared lab with all nodes as they were at first."""
    return _reset(home)


def _reset(lab: Lab) -> Lab:
    for node in lab.nodes:
        node.reset(wait=False)
    for node in lab.nodes:
        node.wait_ready()
    return lab


@pytest.fixture
def node12(lab: Lab) -> Node:
    """The shared lab's Debian 12 node as it was at first."""
    lab.node("gpu1").reset()
    return lab.node("gpu1")


@pytest.fixture
def node13(lab: Lab) -> Node:
    """The shared lab's Debian 13 node as it was at first."""
    lab.node("gpu2").reset()
    return lab.node("gpu2")
