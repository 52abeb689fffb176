"""The simulated driver packages for Ubuntu: those of its archive, and of NVIDIA's repository for it.

They have one name for each branch in the archive (``-580-server``, ``-580``), and in NVIDIA's repository up to 580
(``-580``). What is another package than on Debian has the same files: the libraries are one package, and so are the
programs.

The archive also has modules that are built and signed for each kernel. Objects and signatures of proprietary ones, and of
open ones before 570, are separate packages, as in the real archive; here the objects' package has no files, and the modules
are linked already.

Surprising: a branch ends in the archive with packages of the same names and a newer revision that are empty and depend
on those of the next branch.

Sources:
    canonical/nvidia-graphics-drivers, debian/control of each branch: names and relations of the archive's packages
    (tests/data/ubuntu has the versions and dates that were read).
    Ubuntu's source packages linux-restricted-modules and fabric-manager-580; apt histories and dpkg listings of public
    repositories, read 2026-11-24 and 2026-11-25: names, versions, DKMS' ``nvidia-srv``, folders and relations of built
    modules.
    NVIDIA driver-installation-guide 615: names lose the branch with 590. A listing of NVIDIA's local repository 550.54.15
    for ubuntu2204: revisions, name of the firmware's package.
    NVIDIA's repository for ubuntu2404, file names in public scripts, read 2026-11-25: revisions of
    nvidia-utils-570_570.133.20-0ubuntu1, nvidia-fabricmanager-570_570.211.01-1, nvidia-fabricmanager_580.65.06-1,
    nvidia-imex_580.159.04-1ubuntu1, cuda-drivers-580_580.159.03-1ubuntu1. dpkg's lists of machines with it
    (tests/data/driver-sets/deb, collected 2026-11-28): firmware, libnvidia-gpucomp, i386 copies, sets without nvidia-utils. Relations of its nvidia-driver-570-open
    570.172.08-0ubuntu1, as apt lists them in public notes, read 2026-11-26: all of the same version.
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

MODULES = ("nvidia", "nvidia-uvm", "nvidia-modeset", "nvidia-drm", "nvidia-peermem")
KINDS = {"": "NVIDIA", "-open": "Dual MIT/GPL"}
#: Where NVIDIA's own packages for Ubuntu carry the branch in their names no more.
_WITHOUT_BRANCH = 590
#: From this version on all its packages for Ubuntu have the revision 1ubuntu1. Of older ones those of the driver have
#: 0ubuntu1, and Fabric Manager, IMEX and NSCQ have 1.
_ONE_REVISION = "580.126.09"
#: From this version on some sources have it without the packages of tools.
_FIRST_LEAN = "580.95.05"


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


@dataclass(frozen=True, slots=True)
class Driver:
    """One driver of the archive.

    Args:
        version: as NVIDIA counts.
        cuda_version: 13000 for 13.0.
        server: of a source package for servers; otherwise of one for desktops.
        upload: end of the packages' versions.
        modules: end of the versions of its signed modules, which grows whenever they are built again for a kernel; empty
            for those of the kernel's first upload, from ``+1000`` on for kernels of DGX.
    """

    version: str
    cuda_version: int
    server: bool = True
    upload: str = "1"
    modules: str = "+2"


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
        archive: of Ubuntu's archive, not of NVIDIA's repository.
        modules: of the driver in the archive.
        lean: without nvidia-utils and nvidia-compute-utils, as some sources have NVIDIA's repository from 580.95.05 on;
            which package then has their programs is not known, here it is libnvidia-compute.
    """

    def __init__(
        self,
        version: str,
        cuda_version: int,
        revision: str,
        suffix: str,
        builder: Builder,
        *,
        archive: bool = False,
        modules: str = "",
        lean: bool = False,
    ) -> None:
        super().__init__(version, cuda_version, Naming(revision, ""), builder)
        self.suffix = suffix
        self.archive = archive
        self.modules = modules
        self.lean = lean
        self.server = suffix.endswith("-server")
        #: The name that DKMS has for the sources.
        self.source = "nvidia-srv" if self.server else "nvidia"

    def packages(self) -> list[Package]:
        """Return everything but the modules that are built already."""
        parts = [one for one in self._library_packages() if one.name.startswith("lib")]
        libraries = {path: entry for one in parts for path, entry in one.files.items()}
        programs = [
            self._related("nvidia-utils{s}", "NVIDIA tools", files=self._smi().files),
            *self._services(),
        ]
        if self.lean:
            tools = [one for one in programs if "-utils" in one.name]
            libraries |= {path: entry for one in tools for path, entry in one.files.items()}
            programs = [one for one in programs if one not in tools]
        found = [
            self._related(
                "libnvidia-compute{s}",
                "NVIDIA libraries for computing",
                files=libraries,
                triggers=LDCONFIG,
            ),
            *(self._library(name, stem) for name, stem in _LIBRARIES.items()),
            *programs,
            self._kernel_common(),
            self._firmware(),
            *(package for kind in KINDS for package in self._of_kind(kind)),
        ]
        if self.archive:
            return found
        compressor = self._related("libnvidia-gpucomp{s}", "NVIDIA library")
        copies = [
            replace(package, architecture="i386", files={}, depends=(), scripts={}, triggers=None)
            for package in (*found, compressor)
            if package.name in {f"{name}{self.suffix}" for name in _I386}
        ]
        return [*found, compressor, *copies]

    @property
    def _graphics_source(self) -> str:
        return f"nvidia-graphics-drivers{self.suffix}"

    def tools(self) -> list[Package]:
        """Return the packages with a version of their own in the archive."""
        return [self._modprobe()]

    # --- relations ---------------------------------------------------------------------------------

    def _related(self, name: str, summary: str, *, kind: str = "", **fields: object) -> Package:
        """A package with the relations of :data:`_DEPENDS` and :data:`_PROVIDES`."""
        provides = list(_PROVIDES.get(name, ()))
        if name == "nvidia-compute-utils{s}" and not self.archive:
            provides.remove("nvidia-persistenced")
        wanted = [one for one in _DEPENDS.get(name, ()) if not (self.lean and "-utils" in one)]
        depends = [need for one in wanted for need in self._needs(one, kind)]
        if self._tied and name in _TIED:
            depends.append(f"nvidia-kernel-common{self.suffix}-{self.version}")
        apart = tuple(one for one in provides if "(" not in one and one not in _HARMLESS)
        provides += _TIED_PROVIDES.get(name, ()) if self._tied else ()
        full = self._filled(name, kind)
        relations = {
            "Provides": tuple(self._filled(one, kind) for one in provides if one != full),
            "Conflicts": tuple(one for one in apart if one != full),
            "Replaces": tuple(one for one in apart if one != full),
        }
        if self.archive and name == "nvidia-driver{s}{o}":
            relations |= self._hardware()
        if not self.archive and name.removesuffix("{s}") in _I386:
            relations["Multi-Arch"] = ("same",)
        if not self.archive and name == "libnvidia-compute{s}" and int(self.branch) >= 580:
            depends.append(f"libnvidia-gpucomp{self.suffix} (= {self.package_version})")
        return self._package(
            full,
            summary,
            depends=tuple(depends),
            relations=relations,
            **fields,  # type: ignore[arg-type]
        )

    def _hardware(self) -> dict[str, tuple[str, ...]]:
        """Fields by which ubuntu-drivers finds and ranks drivers; real ones list each device of a branch."""
        fields: dict[str, tuple[str, ...]] = {
            "Modaliases": ("nvidia(pci:v000010DEd*sv*sd*bc03sc*i*)",)
        }
        support = _SUPPORT.get(self.suffix.removeprefix("-"))
        if support:
            fields["Support"] = (support,)
        if int(self.branch) >= 580:
            fields["Prefer-Variant"] = ("Open",)
        return fields

    @property
    def _tied(self) -> bool:
        """From 570 on the archive's libraries want the kernel's part of their own version (Launchpad bug 2129682)."""
        return self.archive and int(self.branch) >= 570

    def _needs(self, one: str, kind: str) -> tuple[str, ...]:
        name, between, _ = one.partition(" ~")
        name = self._filled(name, kind)
        if not between:
            return (name,)
        if not self.archive:
            return self._same(name)
        return (f"{name} (<= {self.version}-1)", f"{name} (>= {self.version})")

    def _filled(self, text: str, kind: str) -> str:
        return (
            text.replace("{s}", self.suffix)
            .replace("{o}", kind)
            .replace("{firmware}", self._firmware_name)
            .replace("{full}", self.package_version)
            .replace("{v}", self.version)
        )

    @property
    def _firmware_name(self) -> str:
        """It has the whole version in its name, so that two can be installed; NVIDIA's of 580 and later have not."""
        whole = self.archive or int(self.branch) < 580
        return f"nvidia-firmware{self.suffix}" + (f"-{self.version}" if whole else "")

    # --- parts -------------------------------------------------------------------------------------

    def _library(self, name: str, stem: str) -> Package:
        template = f"{name}{{s}}"
        if not stem:
            return self._related(template, "NVIDIA files of every library")
        made = self._single_library(name, f"{stem}.so", stem.replace("-", "_"))
        return self._related(template, made.summary, files=made.files, triggers=LDCONFIG)

    def _services(self) -> list[Package]:
        """Persistenced and MPS: one package in the archive, two in NVIDIA's repository."""
        daemon, mps = self.persistenced(), self._mps()
        files = {**daemon.files, **mps.files} if self.archive else mps.files
        scripts = daemon.scripts if self.archive else mps.scripts
        utils = self._related(
            "nvidia-compute-utils{s}", "NVIDIA services", files=files, scripts=scripts
        )
        if not self.archive:
            return [daemon, self._modprobe(), utils]
        return [replace(utils, depends=("passwd", *utils.depends))]

    def _kernel_common(self) -> Package:
        found = self._related(
            "nvidia-kernel-common{s}",
            "NVIDIA kernel module support files",
            files={
                "usr/lib/modprobe.d/nvidia-graphics-drivers.conf": (
                    f"# Written by nvidia-kernel-common{self.suffix}.\nblacklist nouveau\n"
                    "blacklist lbm-nouveau\nalias nouveau off\nalias lbm-nouveau off\n"
                ),
                "usr/lib/udev/rules.d/71-nvidia.rules": self._text("60-nvidia.rules"),
            },
            scripts={
                "postinst": self._text("update-initramfs.postinst"),
                "postrm": self._text("update-initramfs.postrm"),
            },
        )
        more = () if self.archive else ("nvidia-modprobe",)
        return replace(found, depends=(*found.depends, *more))

    def _firmware(self) -> Package:
        (found,) = (one for one in super()._kernel_packages() if one.name == "firmware-nvidia-gsp")
        return replace(found, name=self._firmware_name)

    def _of_kind(self, kind: str) -> list[Package]:
        """The packages that exist for open and for proprietary modules."""
        scripts = {name: self._dkms_script(name) for name in ("postinst", "prerm")}
        dkms = self._related(
            "nvidia-dkms{s}{o}", "NVIDIA kernel modules, built by DKMS", kind=kind, scripts=scripts
        )
        if not kind:
            dkms = replace(dkms, depends=(*dkms.depends, self._firmware_name))
        found = [
            self._sources(kind),
            dkms,
            *(
                self._related(name, f"NVIDIA driver, {what}", kind=kind)
                for name, what in (
                    ("nvidia-headless-no-dkms{s}{o}", "without display, without modules"),
                    ("nvidia-headless{s}{o}", "without display"),
                    ("nvidia-driver{s}{o}", "everything"),
                )
            ),
        ]
        if not self.archive:
            s, full = self.suffix, f"{self.suffix}{kind}"
            meta = f"nvidia-open{s}" if kind else f"cuda-drivers{s}"
            needs = self._newer(f"nvidia-driver{full}", f"nvidia-dkms{full}")
            found.append(self._package(meta, "NVIDIA driver, everything", depends=needs))
        return found

    def _sources(self, kind: str) -> Package:
        source = f"usr/src/{self.source}-{self.version}"
        files = {
            f"{source}/{path.name}": _named(path, self.source, self.version)
            for path in sorted((PAYLOAD / "dkms").iterdir())
        }
        files[f"{source}/nv-version.h"] = _version_header(self.version, kind)
        return self._related(
            "nvidia-kernel-source{s}{o}", "NVIDIA kernel module sources", kind=kind, files=files
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
        signatures = Package(
            name=f"linux-signatures-nvidia-{_as_name(kernel)}",
            version=self._built_version(kernel),
            summary="signatures of NVIDIA's modules",
            section="restricted/kernel",
        )
        found = [signatures]
        for kind in KINDS:
            built = self._built(kind, headers, scratch / kernel, signer)
            found += self._prebuilt_of(kind, kernel, built)
        return found

    def _built_version(self, kernel: str) -> str:
        return f"{kernel_version(kernel)}{self.modules}"

    def _prebuilt_of(self, kind: str, kernel: str, modules: Mapping[str, Path]) -> list[Package]:
        version = self._built_version(kernel)
        tail = f"nvidia{self.suffix}{kind}-{_as_name(kernel)}"
        flavour = f"nvidia-{self.branch}{'srv' if self.server else ''}{kind}"
        image, signatures = (
            f"linux-{part}-{_as_name(kernel)}" for part in ("image", "signatures-nvidia")
        )
        objects = [
            Package(
                name=f"linux-objects-{tail}",
                version=version,
                summary="objects of NVIDIA's modules",
                section="restricted/kernel",
            )
        ]
        # No list of a machine has objects or signatures of open modules of 570 or later (tests/data/driver-sets/deb).
        if kind and int(self.branch) >= 570:
            objects = []
        return [
            *objects,
            Package(
                name=f"linux-modules-{tail}",
                version=version,
                summary=f"NVIDIA's modules {self.version} for Linux {kernel}, signed",
                section="restricted/kernel",
                files={
                    f"usr/lib/modules/{kernel}/kernel/{flavour}/{name}.ko": path
                    for name, path in modules.items()
                },
                depends=(
                    f"{image} | linux-image-unsigned-{_as_name(kernel)}",
                    *(
                        f"{name} (= {version})"
                        for part in objects
                        for name in (signatures, part.name)
                    ),
                    *reversed(self._needs("nvidia-kernel-common{s} ~", kind)),
                ),
                scripts=dict.fromkeys(
                    ("postinst", "postrm"),
                    f"#!/bin/sh\nset -e\n[ ! -d /usr/lib/modules/{kernel} ] || depmod {kernel}\n",
                ),
            ),
        ]

    def meta_modules(self, kernel: str, flavour: str) -> list[Package]:
        """Return the packages that follow the newest kernel of a flavour.

        They stand in for the package that builds modules on the node.
        """
        found: list[Package] = []
        for kind in KINDS:
            modules = self._prebuilt_of(kind, kernel, {})[-1]
            found.append(
                Package(
                    name=f"linux-modules-nvidia{self.suffix}{kind}-{flavour}",
                    version=modules.version,
                    summary=f"NVIDIA's modules for the kernels of {flavour}",
                    section="restricted/kernel",
                    depends=(f"{modules.name} (= {modules.version})", *modules.depends[-2:]),
                    relations={
                        "Provides": (
                            f"nvidia-dkms{self.suffix}{kind} (= {self.package_version})",
                            "nvidia-prebuilt-kernel",
                        )
                    },
                )
            )
        return found

    def _built(
        self, kind: str, headers: Path, folder: Path, signer: ModuleSigner
    ) -> dict[str, Path]:
        """Compile and sign the modules of one type."""
        here = folder / f"{self.version}{self.suffix}{kind}"
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
#: Libraries of NVIDIA's repository with a copy for i386.
_I386 = (
    *("libnvidia-compute", "libnvidia-decode", "libnvidia-encode", "libnvidia-fbc1"),
    *("libnvidia-gl", "libnvidia-gpucomp"),
)
#: What packages depend on; ``~``: at any revision of the driver's version in the archive, at its own in NVIDIA's
#: repository, whose revisions are newer than the archive's relations allow.
_DEPENDS = {
    "libnvidia-compute{s}": ("libc6",),
    "libnvidia-decode{s}": ("libnvidia-compute{s} (= {full})",),
    "libnvidia-gl{s}": ("libnvidia-common{s}",),
    "nvidia-compute-utils{s}": ("libnvidia-compute{s}",),
    "nvidia-kernel-common{s}": ("{firmware}",),
    "nvidia-dkms{s}{o}": ("dkms", "nvidia-kernel-source{s}{o} ~", "nvidia-kernel-common{s} ~"),
    "nvidia-headless-no-dkms{s}{o}": (
        "nvidia-kernel-common{s} ~",
        *(
            f"{name} (= {{full}})"
            for name in (
                *("nvidia-kernel-source{s}{o}", "libnvidia-compute{s}"),
                *("nvidia-compute-utils{s}", "libnvidia-cfg1{s}"),
            )
        ),
    ),
    "nvidia-headless{s}{o}": ("nvidia-headless-no-dkms{s}{o}", "nvidia-dkms{s}{o}"),
    "nvidia-driver{s}{o}": (
        *("nvidia-dkms{s}{o} ~", "nvidia-kernel-common{s} ~"),
        *(
            f"{name} (= {{full}})"
            for name in (
                *("libnvidia-gl{s}", "nvidia-kernel-source{s}{o}", "libnvidia-compute{s}"),
                *("libnvidia-extra{s}", "nvidia-compute-utils{s}", "libnvidia-decode{s}"),
                *("libnvidia-encode{s}", "nvidia-utils{s}", "libnvidia-cfg1{s}"),
                "libnvidia-fbc1{s}",
            )
        ),
    ),
}
#: Packages that depend on the kernel's part of the same version, by its virtual package.
_TIED = frozenset(
    {"nvidia-utils{s}", "libnvidia-compute{s}", *(f"{name}{{s}}" for name in _LIBRARIES)}
)
#: What packages provide besides where their libraries depend on that.
_TIED_PROVIDES = {
    "nvidia-kernel-common{s}": ("nvidia-kernel-common{s}-{v}",),
    "libnvidia-compute{s}": ("libcuda1 (= {full})", "libnvidia-ml1 (= {full})"),
}
#: What packages provide. Only one package with such a name can be installed, unless it has a version or is harmless.
_PROVIDES = {
    "libnvidia-compute{s}": (
        *("libnvidia-compute", "nvidia-opencl-icd", "opencl-icd"),
        *("libcuda.so.1 (= {full})", "libnvidia-ml.so.1 (= {full})"),
    ),
    "libnvidia-cfg1{s}": ("libnvidia-cfg1-any",),
    "libnvidia-gl{s}": ("libnvidia-gl", "libglx-vendor", "libegl-vendor"),
    **{
        f"{name}{{s}}": (name,)
        for name in _LIBRARIES
        if name not in ("libnvidia-cfg1", "libnvidia-gl")
    },
    "nvidia-utils{s}": ("nvidia-utils", "nvidia-smi"),
    "nvidia-compute-utils{s}": ("nvidia-compute-utils", "nvidia-persistenced"),
    "nvidia-kernel-common{s}": ("nvidia-kernel-common",),
    "nvidia-kernel-source{s}{o}": ("nvidia-kernel-source",),
    "nvidia-dkms{s}{o}": ("nvidia-dkms-kernel",),
    "nvidia-headless{s}{o}": ("nvidia-headless",),
}
#: The field Support of drivers by branch: long term support branch, production branch.
_SUPPORT = {
    "535": "PB",
    "535-server": "LTSB",
    "580": "LTSB",
    "580-server": "LTSB",
    "595-server": "PB",
}
_HARMLESS = frozenset({"opencl-icd", "libglx-vendor", "libegl-vendor"})


def _version_header(version: str, kind: str) -> str:
    return f'/* Simulated. */\n#define NV_VERSION "{version}"\n#define NV_LICENSE "{KINDS[kind]}"\n'


def _named(path: Path, source: str, version: str) -> Entry:
    text = path.read_text(encoding="utf-8").replace("@VERSION@", version)
    if path.name == "dkms.conf":
        text = text.replace('PACKAGE_NAME="nvidia"', f'PACKAGE_NAME="{source}"')
    return text


def _as_name(kernel: str) -> str:
    return kernel.lower().replace("_", "-")


def archive_set(release: Release, driver: Driver, builder: Builder) -> UbuntuSet:
    """Return one driver of the archive."""
    branch = driver.version.partition(".")[0]
    return UbuntuSet(
        driver.version,
        driver.cuda_version,
        f"-0ubuntu0.{release.number}.{driver.upload}",
        f"-{branch}{'-server' if driver.server else ''}",
        builder,
        archive=True,
        modules=driver.modules,
    )


def archive_components(one: UbuntuSet) -> list[Package]:
    """Return Fabric Manager, NSCQ and IMEX of the archive, sources of their own."""
    branch = f"-{one.branch}"
    common = f"nvidia-kernel-common{one.suffix}-{one.version}"
    more = (common,) if int(one.branch) >= 570 else ()
    return [
        replace(package, depends=(*package.depends, *more))
        for package in (one.fabric_manager(branch), one.imex(branch), one.nscq(branch))
    ]


def transitional(one: UbuntuSet, upload: str, successor: int) -> list[Package]:
    """Return the empty packages with which a branch ends: of the same names, on top of the next branch.

    Args:
        one: its last driver.
        upload: end of their versions, after that of the driver's packages.
        successor: the next branch.
    """
    revision = one.naming.revision.rpartition(".")[0]
    suffix = one.suffix.replace(one.branch, str(successor))
    return [
        Package(
            name=package.name,
            version=f"{one.version}{revision}.{upload}",
            summary="transitional package for upgrades",
            section="restricted/oldlibs",
            source=package.source,
            depends=(package.name.replace(one.suffix, suffix),),
        )
        for package in one.packages()
        if not package.name.startswith("nvidia-firmware")
    ]


def vendor_packages(builder: Builder, *, lean: bool = False) -> list[Package]:
    """Return the drivers of NVIDIA's repository for Ubuntu; ``lean`` as of :class:`UbuntuSet`."""
    found: list[Package] = []
    for version, cuda_version in DRIVERS.items():
        branch = int(version.partition(".")[0])
        suffix = f"-{branch}" if branch < _WITHOUT_BRANCH else ""
        revision = vendor_revision(version)
        without = lean and dpkg.compare_versions(version, _FIRST_LEAN) >= 0
        one = UbuntuSet(version, cuda_version, revision, suffix, builder, lean=without)
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
