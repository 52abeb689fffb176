"""The simulated driver packages for Ubuntu: those of its archive, and of NVIDIA's repository for it.

They have one name for each branch in the archive (``-580-server``), and in NVIDIA's repository up to 580 (``-580``).
What is another package than on Debian has the same files: the libraries are one package, and so are the programs.

The archive also has modules that are built and signed for each kernel. Their objects and signatures are separate
packages, as in the real archive; here the objects' package has no files, and the modules are linked already.

Sources:
    Ubuntu's source packages nvidia-graphics-drivers-580-server, linux-restricted-modules and fabric-manager-580;
    apt histories and dpkg listings of public repositories, read 2026-11-24: names, versions, DKMS' ``nvidia-srv``,
    the virtual package nvidia-kernel-common-580-server-580.173.02 (Launchpad bug 2129682).
    NVIDIA's repository for ubuntu2404, file names in public scripts, read 2026-11-25: revisions of
    nvidia-utils-570_570.133.20-0ubuntu1, nvidia-fabricmanager-570_570.211.01-1, nvidia-fabricmanager_580.65.06-1,
    nvidia-imex_580.159.04-1ubuntu1, cuda-drivers-580_580.159.03-1ubuntu1.
    NVIDIA driver-installation-guide 615: names lose the branch with 590.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from gpustate.formats import dpkg
from gpustate_lab.sim.deb import Entry, Package
from gpustate_lab.sim.driver_packages import DRIVERS, LDCONFIG, DriverSet, Naming
from gpustate_lab.sim.native import PAYLOAD, Builder, run
from gpustate_lab.sim.node_packages import kernel_version
from gpustate_lab.sim.signing import ModuleSigner

#: CUDA version of each driver version of the archive's pockets, by suite of Ubuntu without its release.
SECURITY: Mapping[str, int] = {
    "535.309.01": 12020,
    "570.211.01": 12080,
    "580.173.02": 13000,
}
UPDATES: Mapping[str, int] = {**SECURITY, "580.178.04": 13000}
MODULES = ("nvidia", "nvidia-uvm", "nvidia-modeset", "nvidia-drm", "nvidia-peermem")
KINDS = {"": "NVIDIA", "-open": "Dual MIT/GPL"}
#: Where NVIDIA's own packages for Ubuntu carry the branch in their names no more.
_WITHOUT_BRANCH = 590
#: From this version on all its packages for Ubuntu have the revision 1ubuntu1. Of older ones those of the driver have
#: 0ubuntu1, and Fabric Manager, IMEX and NSCQ have 1.
_ONE_REVISION = "580.159.03"


@dataclass(frozen=True, slots=True)
class Release:
    """One release of Ubuntu.

    Args:
        code: as NVIDIA writes it.
        number, codename: its own.
        kernels: an older and a newer kernel of its archive, of the flavour generic.
    """

    code: str
    number: str
    codename: str
    kernels: tuple[str, str]


RELEASES = {
    release.code: release
    for release in (
        Release("ubuntu2204", "22.04", "jammy", ("5.15.0-119-generic", "5.15.0-121-generic")),
        Release("ubuntu2404", "24.04", "noble", ("6.8.0-106-generic", "6.8.0-110-generic")),
        Release("ubuntu2604", "26.04", "resolute", ("7.0.0-27-generic", "7.0.0-29-generic")),
    )
}


class UbuntuSet(DriverSet):
    """All packages of one driver version.

    Args:
        version, cuda_version, builder: as of any driver set.
        revision: appended to the version.
        suffix: of the names: ``-580-server``, ``-580``, or nothing.
    """

    def __init__(
        self, version: str, cuda_version: int, revision: str, suffix: str, builder: Builder
    ) -> None:
        super().__init__(version, cuda_version, Naming(revision, ""), builder)
        self.suffix = suffix
        #: The name that DKMS has for the sources.
        self.source = "nvidia-srv" if suffix.endswith("-server") else "nvidia"

    def packages(self) -> list[Package]:
        """Return everything but the modules that are built already."""
        s = self.suffix
        return [
            self._compute(),
            *(self._library(name, stem) for name, stem in _LIBRARIES.items()),
            replace(
                self._smi(),
                name=f"nvidia-utils{s}",
                depends=self._same(f"libnvidia-compute{s}"),
            ),
            *self._services(),
            self._kernel_common(),
            self._firmware(),
            *(package for kind in KINDS for package in self._of_kind(kind)),
        ]

    def tools(self) -> list[Package]:
        """Return the packages with a version of their own in the archive."""
        return [self._modprobe()]

    def _compute(self) -> Package:
        parts = [one for one in self._library_packages() if one.name.startswith("lib")]
        files = {path: entry for one in parts for path, entry in one.files.items()}
        return self._package(
            f"libnvidia-compute{self.suffix}",
            "NVIDIA libraries for computing",
            files=files,
            depends=("libc6",),
            triggers=LDCONFIG,
        )

    def _library(self, name: str, stem: str) -> Package:
        if not stem:
            return self._package(f"{name}{self.suffix}", "NVIDIA files of every library")
        return self._single_library(f"{name}{self.suffix}", f"{stem}.so", stem.replace("-", "_"))

    def _services(self) -> list[Package]:
        """Persistenced and MPS: one package in the archive, two in NVIDIA's repository."""
        daemon, mps = self.persistenced(), self._mps()
        name = f"nvidia-compute-utils{self.suffix}"
        depends = self._same(f"libnvidia-compute{self.suffix}")
        if self.suffix.endswith("-server"):
            files = {**daemon.files, **mps.files}
            return [replace(daemon, name=name, files=files, depends=("passwd", *depends))]
        return [daemon, self._modprobe(), replace(mps, name=name, depends=depends)]

    def _kernel_common(self) -> Package:
        name = f"nvidia-kernel-common{self.suffix}"
        return self._package(
            name,
            "NVIDIA kernel module support files",
            files={
                "usr/lib/modprobe.d/nvidia-graphics-drivers.conf": (
                    f"# Written by {name}.\nblacklist nouveau\nblacklist lbm-nouveau\n"
                    "alias nouveau off\nalias lbm-nouveau off\n"
                ),
                "usr/lib/udev/rules.d/71-nvidia.rules": self._text("60-nvidia.rules"),
            },
            depends=(*self._same(f"nvidia-firmware{self._firmware_suffix}"), "nvidia-modprobe"),
            relations={
                "Provides": ("nvidia-kernel-common", f"{name}-{self.version}"),
                "Conflicts": ("nvidia-kernel-common",),
                "Replaces": ("nvidia-kernel-common",),
            },
            scripts={
                "postinst": self._text("update-initramfs.postinst"),
                "postrm": self._text("update-initramfs.postrm"),
            },
        )

    @property
    def _firmware_suffix(self) -> str:
        """The archive's firmware has the whole version in its name, so that two can be installed."""
        server = self.suffix.endswith("-server")
        return f"{self.suffix}-{self.version}" if server else self.suffix

    def _firmware(self) -> Package:
        (found,) = (one for one in super()._kernel_packages() if one.name == "firmware-nvidia-gsp")
        return replace(found, name=f"nvidia-firmware{self._firmware_suffix}")

    def _of_kind(self, kind: str) -> list[Package]:
        """The packages that exist for open and for proprietary modules."""
        s, full = self.suffix, f"{self.suffix}{kind}"
        sources = self._sources(kind)
        names = [
            f"libnvidia-{part}{s}"
            for part in ("common", "gl", "decode", "encode", "extra", "fbc1", "cfg1")
        ]
        other = f"nvidia-dkms{s}{'' if kind else '-open'}"
        dkms = self._package(
            f"nvidia-dkms{full}",
            "NVIDIA kernel modules, built by DKMS",
            depends=(
                "dkms",
                *self._same(f"nvidia-kernel-source{full}", f"nvidia-kernel-common{s}"),
            ),
            relations={
                "Provides": ("nvidia-dkms-kernel",),
                "Conflicts": ("nvidia-dkms-kernel", other),
                "Replaces": ("nvidia-dkms-kernel", other),
            },
            scripts={
                "postinst": self._dkms_script("postinst"),
                "prerm": self._dkms_script("prerm"),
            },
        )
        headless = self._package(
            f"nvidia-headless-no-dkms{full}",
            "NVIDIA driver without display, without modules",
            depends=self._same(
                *(f"libnvidia-compute{s}", f"libnvidia-cfg1{s}", f"libnvidia-decode{s}"),
                *(f"nvidia-compute-utils{s}", f"nvidia-kernel-common{s}"),
                f"nvidia-kernel-source{full}",
            ),
        )
        found = [
            sources,
            dkms,
            headless,
            self._package(
                f"nvidia-headless{full}",
                "NVIDIA driver without display",
                depends=self._same(f"nvidia-headless-no-dkms{full}", f"nvidia-dkms{full}"),
            ),
            self._package(
                f"nvidia-driver{full}",
                "NVIDIA driver, everything",
                depends=(
                    *self._same(*names, f"nvidia-utils{s}", f"nvidia-compute-utils{s}"),
                    *self._same(f"nvidia-kernel-common{s}", f"nvidia-kernel-source{full}"),
                    f"nvidia-dkms{full} (<= {self.package_version}) | "
                    f"nvidia-prebuilt-kernel{full} (= {self.version})",
                ),
            ),
        ]
        if not s.endswith("-server"):
            meta = f"nvidia-open{s}" if kind else f"cuda-drivers{s}"
            found.append(
                self._package(
                    meta,
                    "NVIDIA driver, everything",
                    depends=self._same(f"nvidia-driver{full}", f"nvidia-dkms{full}"),
                )
            )
        return found

    def _sources(self, kind: str) -> Package:
        source = f"usr/src/{self.source}-{self.version}"
        files = {
            f"{source}/{path.name}": _named(path, self.source, self.version)
            for path in sorted((PAYLOAD / "dkms").iterdir())
        }
        files[f"{source}/nv-version.h"] = _version_header(self.version, kind)
        other = f"nvidia-kernel-source{self.suffix}{'' if kind else '-open'}"
        return self._package(
            f"nvidia-kernel-source{self.suffix}{kind}",
            "NVIDIA kernel module sources",
            files=files,
            relations={"Conflicts": (other,), "Replaces": (other,)},
        )

    def _dkms_script(self, name: str) -> str:
        text = self._text(f"dkms.{name}")
        return text.replace("common.postinst nvidia", f"common.postinst {self.source}").replace(
            "-m nvidia ", f"-m {self.source} "
        )

    # --- modules that are built already ------------------------------------------------------------

    def prebuilt(
        self, kernel: str, headers: Path, signer: ModuleSigner, scratch: Path
    ) -> list[Package]:
        """Return the signed modules for one kernel.

        Args:
            kernel: its release.
            headers: folder with the headers of its modules.
            signer: signs them as Ubuntu's kernel team.
            scratch: folder for the objects.
        """
        number = kernel_version(kernel)
        version = f"{number}+{self.version.replace('.', '')}"
        signatures = Package(
            name=f"linux-signatures-nvidia-{_as_name(kernel)}",
            version=number,
            summary="signatures of NVIDIA's modules",
            section="restricted/kernel",
        )
        found = [signatures]
        for kind in KINDS:
            found += self._prebuilt_of(
                kind, kernel, version, self._built(kind, headers, scratch / kernel, signer)
            )
        return found

    def _prebuilt_of(
        self, kind: str, kernel: str, version: str, modules: Mapping[str, Path]
    ) -> list[Package]:
        tail = f"nvidia{self.suffix}{kind}-{_as_name(kernel)}"
        folder = f"usr/lib/modules/{kernel}/kernel/nvidia-{self.branch}srv{kind}"
        common = f"nvidia-kernel-common{self.suffix}"
        objects = Package(
            name=f"linux-objects-{tail}",
            version=version,
            summary="objects of NVIDIA's modules",
            section="restricted/kernel",
        )
        return [
            objects,
            Package(
                name=f"linux-modules-{tail}",
                version=version,
                summary=f"NVIDIA's modules {self.version} for Linux {kernel}, signed",
                section="restricted/kernel",
                files={f"{folder}/{name}.ko": path for name, path in modules.items()},
                depends=(
                    f"linux-image-{_as_name(kernel)}",
                    f"linux-signatures-nvidia-{_as_name(kernel)}",
                    f"linux-objects-{tail} (= {version})",
                    f"{common} (>= {self.version})",
                    f"{common} (<= {self.version}-1)",
                ),
                relations={
                    "Provides": (f"nvidia-prebuilt-kernel{self.suffix}{kind} (= {self.version})",)
                },
                scripts=dict.fromkeys(
                    ("postinst", "postrm"),
                    f"#!/bin/sh\nset -e\n[ ! -d /usr/lib/modules/{kernel} ] || depmod {kernel}\n",
                ),
            ),
        ]

    def _built(
        self, kind: str, headers: Path, folder: Path, signer: ModuleSigner
    ) -> dict[str, Path]:
        """Compile and sign the modules of one type."""
        here = folder / f"{self.version}{kind}"
        here.mkdir(parents=True)
        for path in sorted((PAYLOAD / "dkms").glob("*.[ch]")):
            (here / path.name).write_text(
                path.read_text(encoding="utf-8").replace("@VERSION@", self.version)
            )
        (here / "nv-version.h").write_text(_version_header(self.version, kind))
        conftest = str(PAYLOAD / "dkms/conftest.sh")
        (here / "conftest.h").write_bytes(run(["sh", conftest, folder.name]))
        found: dict[str, Path] = {}
        for name in MODULES:
            target = self._builder.module(here / f"{name}.c", here / f"{name}.ko", headers, here)
            found[name] = signer.sign(target)
        return found


#: Libraries of a package each, by the package's stem; none: a package without a library.
_LIBRARIES = {
    "libnvidia-common": "",
    "libnvidia-cfg1": "libnvidia-cfg",
    "libnvidia-decode": "libnvcuvid",
    "libnvidia-encode": "libnvidia-encode",
    "libnvidia-extra": "libnvidia-gtk3",
    "libnvidia-fbc1": "libnvidia-fbc",
    "libnvidia-gl": "libGLX_nvidia",
}


def _version_header(version: str, kind: str) -> str:
    return f'/* Simulated. */\n#define NV_VERSION "{version}"\n#define NV_LICENSE "{KINDS[kind]}"\n'


def _named(path: Path, source: str, version: str) -> Entry:
    text = path.read_text(encoding="utf-8").replace("@VERSION@", version)
    if path.name == "dkms.conf":
        text = text.replace('PACKAGE_NAME="nvidia"', f'PACKAGE_NAME="{source}"')
    return text


def _as_name(kernel: str) -> str:
    return kernel.lower().replace("_", "-")


def archive_sets(
    release: Release, versions: Mapping[str, int], builder: Builder
) -> list[UbuntuSet]:
    """Return the driver sets of a pocket."""
    return [
        UbuntuSet(
            version,
            cuda_version,
            f"-0ubuntu0.{release.number}.1",
            f"-{version.partition('.')[0]}-server",
            builder,
        )
        for version, cuda_version in versions.items()
    ]


def archive_components(one: UbuntuSet) -> list[Package]:
    """Return Fabric Manager, NSCQ and IMEX of the archive, sources of their own."""
    branch = f"-{one.branch}"
    common = f"nvidia-kernel-common{one.suffix}-{one.version}"
    return [
        replace(package, depends=(*package.depends, common))
        for package in (
            one.fabric_manager(branch),
            one.imex(branch),
            one.nscq(branch),
        )
    ]


def vendor_packages(builder: Builder) -> list[Package]:
    """Return the drivers of NVIDIA's repository for Ubuntu."""
    found: list[Package] = []
    for version, cuda_version in DRIVERS.items():
        branch = int(version.partition(".")[0])
        suffix = f"-{branch}" if branch < _WITHOUT_BRANCH else ""
        revision = vendor_revision(version)
        one = UbuntuSet(version, cuda_version, revision, suffix, builder)
        components = f"-{branch}" if branch < 580 else ""
        own = "-1" if revision.startswith("-0") else revision
        found += one.packages()
        found += [
            replace(package, version=f"{version}{own}")
            for package in (
                one.fabric_manager(components),
                one.imex(components),
                one.nscq(components),
            )
        ]
    return found


def vendor_revision(version: str) -> str:
    """Return the end of the versions of a driver's packages in NVIDIA's repository for Ubuntu."""
    older = dpkg.compare_versions(version, _ONE_REVISION) < 0
    return "-0ubuntu1" if older else "-1ubuntu1"


def meta_modules(one: UbuntuSet, kernel: str, flavour: str) -> list[Package]:
    """Return the packages that follow the newest kernel of a flavour, for a driver's branch."""
    return [
        Package(
            name=f"linux-modules-nvidia{one.suffix}{kind}-{flavour}",
            version=f"{kernel_version(kernel)}+{one.version.replace('.', '')}",
            summary=f"NVIDIA's modules for the kernels of {flavour}",
            section="restricted/kernel",
            depends=(f"linux-modules-nvidia{one.suffix}{kind}-{_as_name(kernel)}",),
        )
        for kind in KINDS
    ]
