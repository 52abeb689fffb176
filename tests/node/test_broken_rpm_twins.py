"""A repository of rpm packages with one thing changed is refused by the plan; a harmless change is planned.

As :mod:`test_broken_twins` has it for apt: nothing but the plan runs. Real: dnf and its solver. Simulated: the
distribution, and what is in NVIDIA's packages, of which there are only names, versions and relations, without files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from labnodes import LabFactory
from rpmdriver import DriverRpms
from rpmnodes import BASE, Repository, become, copy, gpustate, repository
from rpmworld import Rpm, primary
from shares import share

from gpustate_lab.api import Lab
from gpustate_lab.sim.deb import Entry
from gpustate_lab.spec import LabSpec

pytestmark = [pytest.mark.long, pytest.mark.node]

NEW, OLD = "580.178.04", "580.65.06"
BODY = """
policy = Policy(
    get("driver-repository")(origin="mirror", url="file:///srv/nvidia", key=KEY, signed="metadata"),
    get("driver")(branch=580, precompiled=False),
)
"""
#: Of the distribution and of EPEL.
OTHERS = (BASE, Rpm("dkms", "3.2.1-1", arch="noarch"))
Edit = Callable[[Rpm], Rpm | None]


class Bare(DriverRpms):
    """Without files nothing is compiled."""

    def _files(self, version: str, names: Any) -> dict[str, Entry]:
        return {}

    def _dkms(self, version: str, kind: str, module: str) -> tuple[dict[str, Entry], str]:
        return {}, ""


@dataclass(frozen=True)
class Twin:
    """One changed thing.

    Args:
        says: pattern of the reason; empty: the plan is to install ``version``.
        edit: what becomes of each package of the newer driver.
        more: packages that are there as well.
        version: of the driver.
    """

    says: str = ""
    edit: Edit = lambda package: package
    more: tuple[Rpm, ...] = ()
    version: str = NEW


def of(name: str, edit: Edit) -> Edit:
    return lambda package: edit(package) if package.name == name else package


def without(name: str) -> Edit:
    return of(name, lambda _: None)


def relation(name: str, field: str, value: str) -> Edit:
    return of(name, lambda one: replace(one, **{field: (*getattr(one, field), value)}))


def raised(package: Rpm) -> Rpm:
    """The same with a higher epoch, relations included."""

    def rows(relations: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(one.replace("= 3:", "= 4:") for one in relations)

    version = re.sub("^3:", "4:", package.version)
    return replace(
        package, version=version, requires=rows(package.requires), provides=rows(package.provides)
    )


TWINS = {
    "as it is": Twin(),
    "a library has another name": Twin(
        r"nothing provides libnvidia-ml\(x86-64\) = 3:580\.178\.04-1\.el9 needed by",
        of("libnvidia-ml", lambda one: replace(one, name="libnvidia-nvml")),
    ),
    "a library is missing": Twin(
        r"nothing provides libnvidia-cfg\(x86-64\)", without("libnvidia-cfg")
    ),
    "the newest version lacks its main package": Twin(
        edit=without("nvidia-driver-cuda"), version=OLD
    ),
    "the newest version lacks its modules": Twin(
        edit=without("kmod-nvidia-open-dkms"), version=OLD
    ),
    "the firmware's package is missing": Twin(
        r"nvidia-kmod-common = 3:580\.178\.04.*; no enabled repository",
        without("nvidia-kmod-common"),
    ),
    "a relation is tightened": Twin(
        r"nvidia-persistenced = 3:580\.999",
        relation("nvidia-driver-cuda", "requires", "nvidia-persistenced = 3:580.999"),
    ),
    "DKMS is wanted newer than any": Twin(
        r"nothing provides dkms >= 99 .*epel-release",
        relation("kmod-nvidia-open-dkms", "requires", "dkms >= 99"),
    ),
    "what nobody provides is wanted": Twin(
        r"nothing provides nvidia-abi needed by",
        relation("nvidia-driver-cuda-libs", "requires", "nvidia-abi"),
    ),
    "it conflicts with an installed package": Twin(
        r"bash", relation("nvidia-driver-cuda-libs", "conflicts", "bash")
    ),
    "it breaks a package of its own set": Twin(
        r"libnvidia-ml", relation("nvidia-driver-cuda-libs", "conflicts", "libnvidia-ml")
    ),
    "another architecture only": Twin(
        r"nothing provides .*\.aarch64; no enabled repository",
        lambda package: replace(package, arch="aarch64"),
    ),
    "a higher epoch": Twin(edit=raised),
    "somebody has a newer package without the driver": Twin(
        more=(Rpm("nvidia-driver-cuda", "3:580.999.01-1.el9", ("nothing-of-it",)),)
    ),
}


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, tuple[Rpm, ...]]:
    """Packages of each version, with what rpmbuild makes them provide."""
    bare = Bare(tmp_path_factory.mktemp("drivers"))
    return {version: tuple(bare.rhel(version)) for version in (OLD, NEW)}


def index(packages: Repository, rows: list[Rpm]) -> None:
    """Let the repository say that it has these packages."""
    rows = [
        replace(one, provides=(*one.provides, f"{one.name}({word}) = {one.version}"))
        for one in rows
        for word in [{"x86_64": "x86-64", "i686": "x86-32"}.get(one.arch, one.arch)]
    ]
    file = packages.folder / "primary.xml"
    file.write_bytes(primary(rows))
    packages.index(primary=file)


@pytest.fixture(scope="module")
def rpm_lab(lab_factory: LabFactory, packages: Repository) -> Lab:
    lab = lab_factory(LabSpec(nodes=1, images=("debian12-rpm",), gpus=("2xH100",)))
    node = lab.nodes[0]
    become(node, "rocky", packages)
    node.run("rm /boot/vmlinuz-*-lab")
    (node.root / "etc/yum.repos.d/base.repo").write_text(
        "[base]\nname=base\nbaseurl=file:///srv/base\ngpgcheck=0\n"
    )
    copy(node, packages, "srv/base")
    for file in packages.folder.glob("*.rpm"):
        file.unlink()
    return lab


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """With the packages of others at first."""
    folder = tmp_path_factory.mktemp("twins")
    found = repository(folder / "world")
    found.fill(OTHERS, folder / "build")
    return found


@pytest.mark.parametrize("name", share("broken rpm twins", list(TWINS), most=8))
def test_the_plan_says_what_is_wrong_with_a_repository(
    name: str,
    rpm_lab: Lab,
    packages: Repository,
    versions: Mapping[str, tuple[Rpm, ...]],
    tmp_path: Path,
) -> None:
    twin, node = TWINS[name], rpm_lab.nodes[0]
    changed = [one for one in map(twin.edit, versions[NEW]) if one is not None]
    index(packages, [*versions[OLD], *changed, *twin.more])
    copy(node, packages)
    state = "find /etc -type f | sort | xargs cksum; rpm -qa | sort"
    before = node.run(state).stdout
    status = 5 if twin.says else 0
    row = gpustate("plan", rpm_lab, node, tmp_path, packages, BODY, status=status)["nodes"][0]
    if twin.says:
        assert re.search(twin.says, row["reason"]), row["reason"]
        assert row["reason"].startswith("driver: "), row["reason"]
        assert "; " in row["reason"], row["reason"]
    else:
        assert f"will install driver {twin.version} " in str(row["states"])
    assert node.run(state).stdout == before
