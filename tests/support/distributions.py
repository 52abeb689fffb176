"""Nodes of every distribution with NVIDIA's repositories for it, each in a folder of NVIDIA's name.

Debian and Ubuntu have the lab's ``cuda/repos``. Rpm distributions have repositories made here: the driver and Fabric Manager as
:mod:`rpmdriver` makes them, and the container toolkit, built with rpmbuild from NVIDIA's own spec file.

Sources:
    NVIDIA driver-installation-guide 620: folders; module streams of RHEL 8 and 9 and Amazon Linux 2023, none of RHEL 10.
    NVIDIA/cuda-repo-management#38 and #40: the folder debian13 begins with 590. NVIDIA/cuda-samples#417: ubuntu2604 came in
    May 2026, after 595. The oldest known package lists of rhel10 have 580.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import labnodes
import rpmnodes
import yaml
from rpmcomponents import as_rpm, sign
from rpmdriver import KERNELS, DriverRpms, stream
from rpmnodes import Repository
from rpmworld import Rpm, build, documents, index

from gpustate_lab import programs
from gpustate_lab.api import Lab
from gpustate_lab.node import Node
from gpustate_lab.sim import component_rpms, toolkit_packages
from gpustate_lab.sim.deb import Program
from gpustate_lab.sim.native import Builder
from gpustate_lab.spec import TOOLKITS

#: Drivers of the repositories, oldest first. Apt's archive ends with 595.
DRIVERS = ("570.211.01", "580.178.04", "595.91.07", "615.71.09")


@dataclass(frozen=True, slots=True)
class Distribution:
    """A distribution.

    Args:
        name: of a lab's image, or of :data:`rpmnodes.RELEASES`.
        folder: of NVIDIA's CUDA repository.
        drivers: what it offers, oldest first.
        tag: end of a package's release.
        title: for people.
        real, source: for docs/support.md: what is the distribution's own; where names, relations and layout of NVIDIA's
            packages are from.
    """

    name: str
    folder: str
    drivers: tuple[str, ...]
    tag: str
    title: str
    real: str
    source: str

    @property
    def image(self) -> str:
        return "debian12-rpm" if self.tag else self.name


_APT = "apt, dpkg, DKMS, systemd and containerd of Debian"
_SETS = "package lists of machines (`tests/data/driver-sets`)"
_GUIDE = f"NVIDIA's installation guide 620; {_SETS}"
_UBUNTU = f"{_GUIDE}; `tests/data/ubuntu/archive.yaml`"
_SPECS = (
    f"NVIDIA's spec files (yum-packaging-nvidia-driver, -dkms-nvidia, container toolkit); {_GUIDE}"
)
_DNF = "rpm and dnf 4"
DISTRIBUTIONS = {
    distribution.name: distribution
    for distribution in (
        Distribution(
            "ubuntu2404", "ubuntu2404", DRIVERS[:3], "", "Ubuntu 24.04", f"{_APT} 13", _UBUNTU
        ),
        Distribution(
            "ubuntu2204", "ubuntu2204", DRIVERS[:3], "", "Ubuntu 22.04", f"{_APT} 12", _UBUNTU
        ),
        Distribution("debian12", "debian12", DRIVERS[:3], "", "Debian 12", "all of Debian", _GUIDE),
        Distribution("rocky", "rhel9", DRIVERS, "el9", "Rocky Linux 9", _DNF, _SPECS),
        Distribution(
            "debian13",
            "debian13",
            DRIVERS[2:3],
            "",
            "Debian 13",
            "all of Debian",
            f"{_GUIDE}; begins with 590: NVIDIA/cuda-repo-management#38",
        ),
        Distribution(
            "rocky10",
            "rhel10",
            DRIVERS[1:],
            "el10",
            "Rocky Linux 10",
            _DNF,
            f"{_SPECS}; the oldest known package lists of it have 580",
        ),
        Distribution(
            "amzn",
            "amzn2023",
            DRIVERS,
            "amzn2023",
            "Amazon Linux 2023",
            _DNF,
            f"{_SPECS}; release notes 2023.8.20250804",
        ),
        Distribution(
            "sles",
            "sles15",
            DRIVERS[:3],
            "suse",
            "SLES 15",
            "rpm and zypper",
            f"SUSE/BCI-dockerfile-generator; {_GUIDE}",
        ),
        Distribution(
            "ubuntu2604",
            "ubuntu2604",
            DRIVERS[2:3],
            "",
            "Ubuntu 26.04",
            f"{_APT} 13",
            f"{_UBUNTU}; begins with 595: NVIDIA/cuda-samples#417",
        ),
    )
}


def markdown() -> str:
    """The table of docs/support.md."""
    lines = [
        "| distribution | real | made | names, relations and layout of NVIDIA's packages from |",
        "| --- | --- | --- | --- |",
    ]
    for row in sorted(DISTRIBUTIONS.values(), key=lambda row: row.title):
        branches = ", ".join(version[:3] for version in row.drivers)
        simulated = (
            ""
            if "all of" in row.real
            else "the distribution's name, its kernels and other packages; "
        )
        lines.append(
            f"| {row.title} | {row.real} | {simulated}NVIDIA's folder `{row.folder}` with branches {branches} | {row.source} |"
        )
    return "\n".join(lines) + "\n"


#: Where dnf's plugin versionlock is not installed at first (packages of Amazon Linux 2023's images; minimal EL).
WITHOUT_PLUGIN = ("amzn", "rocky10")
BASE_REPO = "[base]\nname=base\nbaseurl=file:///srv/base\nenabled=1\ngpgcheck=0\n"
#: Macros of systemd-rpm-macros, which Debian does not have, as far as NVIDIA's spec file uses them.
MACROS = {
    "_unitdir": "/usr/lib/systemd/system",
    "_presetdir": "/usr/lib/systemd/system-preset",
    "systemd_post()": "[ $1 -ne 1 ] || systemctl --no-reload preset %{?*} || :",
    "systemd_preun()": "[ $1 -ne 0 ] || systemctl --no-reload disable --now %{?*} || :",
    "systemd_postun()": "systemctl daemon-reload || :",
}


@dataclass(frozen=True, slots=True)
class RpmWorld:
    """Repositories of an rpm distribution: its own, NVIDIA's CUDA repository for it, and NVIDIA's of the container toolkit."""

    base: Repository
    cuda: Repository
    toolkit: Repository


def rpm_world(distribution: Distribution, rpms: DriverRpms, folder: Path) -> RpmWorld:
    """Build the repositories, signed as NVIDIA signs them: packages of CUDA's, metadata of the toolkit's."""
    world = RpmWorld(*(rpmnodes.repository(folder / name) for name in ("base", "cuda", "toolkit")))
    dkms = Rpm("dkms", "3.2.1-1", arch="noarch")
    suse = distribution.name == "sles"
    base = [rpmnodes.BASE, *rpms.kernel(distribution.name)]
    base += [] if suse else [dkms, rpmnodes.PLUGIN]
    build(base, world.base.folder, folder / "base.build")
    index(world.base.folder)
    sets = {
        version: rpms.suse(version) if suse else rpms.rhel(version, distribution.tag)
        for version in distribution.drivers
    }
    rows = [*(row for rows in sets.values() for row in rows), *((dkms,) if suse else ())]
    others = (*component_rpms.fabric(()), *component_rpms.dcgm())
    rows += [as_rpm(package, folder / "trees") for package in others]
    build(rows, world.cuda.folder, folder / "cuda.build")
    sign(world.cuda)
    modules = [stream(f"{version[:3]}-open", packages) for version, packages in sets.items()]
    modules.append(stream("open-dkms", rows))
    streams = distribution.folder in ("rhel9", "amzn2023")
    world.cuda.index(modules=documents(modules) if streams else "")
    toolkit(world.toolkit.folder, folder / "toolkit.build")
    world.toolkit.index()
    return world


def toolkit(folder: Path, scratch: Path) -> None:
    """Build the container toolkit from NVIDIA's spec file, and the packages of libnvidia-container as the lab has them.

    The programs that the lab wraps are beside their wrappers, as in its packages for Debian.
    """
    version = TOOLKITS[0]
    module = toolkit_packages.module_of(version)
    patterns = ("packaging/rpm/S*/*", "deployments/systemd/*", "deployments/udev/*")
    data = programs.data_files(module, patterns, print)
    files = {file.name: file for file in programs.data_files(module, toolkit_packages.DATA, print)}
    built = programs.provide(module, print)
    packages = toolkit_packages.packages(
        version, Builder(scratch.with_name("native")), built, files
    )
    sources = scratch.with_name("SOURCES")
    sources.mkdir()
    for file in data:
        shutil.copyfile(file, sources / file.name)
    base = next(package for package in packages if package.name.endswith("-base"))
    names = []
    for path, entry in {**base.files, **packages[0].files}.items():
        if isinstance(entry, Program):
            content = entry.content
            target = sources / Path(path).name
            if isinstance(content, Path):
                shutil.copyfile(content, target)
            else:
                target.write_bytes(content.encode() if isinstance(content, str) else content)
            names.append(target.name)
    real = [name for name in names if name.endswith(".real")]
    spec = (sources / "nvidia-container-toolkit.spec").read_text()
    # What the programs need of glibc is Debian's, which rpm does not know.
    spec = re.sub(r"^(License:|%package) .*\n", r"\g<0>AutoReqProv: no\n", spec, flags=re.M)
    wrapped = "".join(
        f"install -m 755 %{{_sourcedir}}/{n} %{{buildroot}}%{{_bindir}}\n" for n in real
    )
    spec = spec.replace("\n%post\n", f"\n{wrapped}\n%post\n", 1)
    listed = "".join(f"%{{_bindir}}/{name}\n" for name in real)
    spec = spec.replace("%files base\n", f"%files base\n{listed}", 1)
    (sources / "toolkit.spec").write_text(spec)
    defines = {
        **MACROS,
        "version": version,
        "release": "1",
        "release_date": "Mon Jan 05 2026",
        "_sourcedir": str(sources),
        "_topdir": str(scratch),
        "_rpmdir": str(folder),
        "_rpmfilename": "%%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm",
        "_build_id_links": "none",
        "debug_package": "%{nil}",
        "__strip": "/bin/true",
    }
    words = [word for key, value in defines.items() for word in ("--define", f"{key} {value}")]
    done = subprocess.run(
        ["rpmbuild", "-bb", "--quiet", "--nodeps", *words, sources / "toolkit.spec"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-1000:]
    # NVIDIA does not distribute it.
    next(folder.glob("*-operator-extensions-*.rpm")).unlink()
    library = [package for package in packages if package.name.startswith("libnvidia-container")]
    rows = [
        as_rpm(component_rpms.from_deb(package), scratch.with_name("trees")) for package in library
    ]
    build(rows, folder, scratch.with_name("libraries"))


class Machine:
    """A node of a distribution, looked at with its own tools."""

    def __init__(
        self, lab: Lab, distribution: Distribution, folder: Path, world: RpmWorld | None
    ) -> None:
        self.lab, self.distribution = lab, distribution
        self.node: Node = lab.nodes[0]
        self.inventory = folder / "inventory.yml"
        rows = yaml.safe_load(lab.inventory.read_text())
        for group in rows["all"]["children"].values():
            states = group.get("vars", {}).get("gpustate")
            if states and world is None:
                url = states["driver-repository"]["url"].partition("/mirror/")[0]
                states["driver-repository"]["url"] = (
                    f"{url}/cuda/repos/{distribution.folder}/x86_64/"
                )
            elif states and world is not None:
                for name, repository in (("driver", world.cuda), ("toolkit", world.toolkit)):
                    key = folder / f"{name}.asc"
                    key.write_text(repository.key)
                    url = f"file:///srv/{self._place(name)}"
                    states[f"{name}-repository"] = {"origin": "mirror", "url": url, "key": str(key)}
        self.inventory.write_text(yaml.safe_dump(rows))
        if world is None:
            self.node.reset()
        else:
            self._become(world)

    def _place(self, name: str) -> str:
        toolkit = "libnvidia-container/stable/rpm/x86_64"
        return toolkit if name == "toolkit" else f"cuda/repos/{self.distribution.folder}/x86_64"

    def _become(self, world: RpmWorld) -> None:
        name = self.distribution.name
        rpmnodes.become(self.node, name, world.base, "srv/base")
        for kind, repository in (("driver", world.cuda), ("toolkit", world.toolkit)):
            rpmnodes.copy(self.node, repository, f"srv/{self._place(kind)}")
        if name in WITHOUT_PLUGIN:
            rpmnodes.remove_plugin(self.node)
        folder = "zypp/repos.d" if name == "sles" else "yum.repos.d"
        (self.node.root / "etc" / folder / "base.repo").write_text(BASE_REPO)
        kernel = KERNELS[name][0].partition("-")[0]
        self.node.run(
            f"rm /boot/vmlinuz-*-lab; rpm -i --nosignature $(ls /srv/base/kernel*{kernel}-*.rpm | grep -v devel)"
        )

    def origin(self) -> str:
        """What the package manager calls NVIDIA's repository, once gpustate has configured it."""
        if self.distribution.tag:
            sles = self.distribution.name == "sles"
            return (
                "NVIDIA packages (gpustate-driver-repository)"
                if sles
                else "from gpustate-driver-repository"
            )
        return f"/cuda/repos/{self.distribution.folder}/x86_64"

    def output(self, command: str) -> str:
        return self.node.run(command, timeout_s=120, check=False).stdout.strip()

    def etc_files(self) -> list[str]:
        """Files of /etc with their content; dnf's plugin is the distribution's, and stays."""
        lines = labnodes.etc_files(self.node)
        return [line for line in lines if "/versionlock." not in line]

    def packages(self) -> dict[str, str]:
        """Upstream version of each package that is of the driver's version, by name."""
        rows = self._rows("%{NAME} %{VERSION}", "${Package} ${Version}")
        versions = {row[0]: re.split("[-_]", row[1])[0] for row in rows}
        return {name: version for name, version in versions.items() if version in DRIVERS}

    def is_whole(self, version: str) -> None:
        """One matched set, with a module for every kernel that can boot, loaded, and used."""
        packages = self.packages()
        assert set(packages.values()) == {version}, packages
        images = self.output("ls /boot/vmlinuz-*").split()
        bootable = [image.removeprefix("/boot/vmlinuz-") for image in images]
        versions = {k: self.output(f"modinfo -k {k} -F version nvidia") for k in bootable}
        assert versions == dict.fromkeys(bootable, version)
        assert self.output("cat /run/gpustate-lab/sys/module/nvidia/version") == version
        query = "nvidia-smi --query-gpu=driver_version --format=csv,noheader"
        assert set(self.output(query).splitlines()) == {version}
        fabric = "nvidia-smi --query-gpu=fabric.state,fabric.status --format=csv,noheader"
        assert set(self.output(fabric).splitlines()) == {"Completed, Success"}

    def install(self, names: str, version: str) -> None:
        """Install further packages of the driver as a person does, in its version."""
        if self.distribution.tag:
            self.node.run(f"dnf -y install {names}", timeout_s=120)
            return
        self.node.run("dpkg --add-architecture i386; apt-get -q update", timeout_s=120)
        rows = self.output(f"apt-cache madison {names.replace(':i386', '')}").splitlines()
        fulls = {
            row.split("|")[0].strip(): row.split("|")[1].strip()
            for row in rows
            if version in row and "/cuda/" in row
        }
        words = " ".join(f"{name}={fulls[name.partition(':')[0]]}" for name in names.split())
        self.node.run(
            f"DEBIAN_FRONTEND=noninteractive apt-get install -y -q --allow-change-held-packages {words}",
            timeout_s=120,
        )

    def _rows(self, format_rpm: str, format_deb: str) -> list[list[str]]:
        query = f"rpm -qa --qf '{format_rpm}\\n'"
        if not self.distribution.tag:
            query = f"dpkg-query -W -f '{format_deb} ${{db:Status-Status}}\\n' | grep ' installed$'"
        return [row.split() for row in self.output(query).splitlines()]

    def copies(self) -> dict[str, str]:
        """Upstream version of each package of the driver for 32 bits."""
        rows = self._rows("%{NAME} %{VERSION} %{ARCH}", "${Package} ${Version} ${Architecture}")
        return {row[0]: row[1].split("-")[0] for row in rows if row[2] in ("i386", "i686")}

    def foreign(self) -> dict[str, str]:
        """Version of each package that is not of the driver's version; DCGM's follow its CUDA."""
        rows = self._rows("%{NAME} %{VERSION}", "${Package} ${Version}")
        return {
            row[0]: row[1]
            for row in rows
            if re.split("[-_]", row[1])[0] not in DRIVERS
            and not row[0].startswith("datacenter-gpu-manager")
        }
