"""The simulated driver packages, with names and relations of NVIDIA's CUDA repository for Debian.

Packages of a driver version depend on the others at exactly that version; metapackages want that version or a newer one, as
NVIDIA's do. Which relation libcuda1 has to the libraries in packages of their own is not known: see :data:`RELATIONS`. The DKMS packages have real C sources and use the real ``dkms``; the
libraries are the stubs of :mod:`native`.

Sources:
    NVIDIA driver-installation-guide 615: package names of Debian 12 and 13, pinning packages.
    NVIDIA driver-installation-guide 615: fabric manager and IMEX lose the branch suffix with R580.
    Debian's nvidia-graphics-drivers: which package holds what; names of the distribution's own.
    dpkg's lists of machines with NVIDIA's repository for Debian (tests/data/driver-sets/deb, collected 2026-11-28): names of
    libraries, i386 copies. Packages index of cuda-drivers 595.58.03 in public notes: relations of metapackages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gpustate_lab.sim.deb import Entry, Link, Package, Program
from gpustate_lab.sim.native import PAYLOAD, Builder
from gpustate_lab.sim.units import unit_scripts

LIBRARY_DIRECTORY = "usr/lib/x86_64-linux-gnu"
UNIT_DIRECTORY = "usr/lib/systemd/system"
#: CUDA version of each driver version (NVIDIA CUDA release notes).
DRIVERS: Mapping[str, int] = {
    "570.211.01": 12080,
    "580.65.06": 13000,
    "580.178.04": 13000,
    "595.91.07": 13020,
}
LDCONFIG = "activate-noawait ldconfig\n"
NVLSM_VERSION = "2025.10.11-1"
#: How libcuda1 may depend on libraries of :data:`LIBRARIES`: both are served.
RELATIONS = ("=", ">=")
#: Libraries of NVIDIA's repository for Debian in packages of their own, and the first branch that has them.
LIBRARIES: Mapping[str, int] = {
    **dict.fromkeys(
        (
            *("libcudadebugger1", "libnvcuvid1", "libnvidia-allocator1", "libnvidia-cfg1"),
            *(
                "libnvidia-encode1",
                "libnvidia-gpucomp",
                "libnvidia-nvvm4",
                "libnvidia-opticalflow1",
            ),
            *("libnvidia-pkcs11-openssl3", "libnvidia-sandboxutils", "libnvoptix1"),
        ),
        0,
    ),
    "libnvidia-nvvm704": 580,
    "libnvidia-tileiras": 595,
}
#: What libcuda1 wants of them.
_OF_CUDA = ("libnvidia-gpucomp", "libnvidia-nvvm4", "libnvidia-nvvm704")
#: Those with a copy for i386, and others that have one.
I386 = (
    "libnvidia-gpucomp",
    "libnvidia-allocator1",
    "libnvidia-ml1",
    "libcuda1",
    "libnvidia-ptxjitcompiler1",
)


@dataclass(frozen=True, slots=True)
class Naming:
    """The differences between NVIDIA's packages and the distribution's.

    Args:
        revision: appended to the driver version.
        open_dkms: package with the sources of the open modules.
        relation: of libcuda1 to other libraries.
    """

    revision: str
    open_dkms: str
    relation: str = "="


VENDOR = Naming(revision="-1", open_dkms="nvidia-kernel-open-dkms")


class DriverSet:
    """All packages of one driver version.

    Args:
        version: driver version, as ``580.65.06``.
        cuda_version: as CUDA counts, 13000 for 13.0.
        naming: whose packages these are.
        builder: compiles the stubs.
    """

    def __init__(self, version: str, cuda_version: int, naming: Naming, builder: Builder) -> None:
        self.version = version
        self.branch = version.partition(".")[0]
        self.naming = naming
        self.package_version = f"{version}{naming.revision}"
        self._builder = builder
        self._libraries = builder.libraries(version, cuda_version)

    def packages(self) -> list[Package]:
        """Return the packages of the driver itself, unordered."""
        cuda = self._package(
            "nvidia-driver-cuda",
            "NVIDIA driver, what computing needs of it",
            depends=(
                *self._same("libcuda1", "libnvidia-ml1", "libnvidia-ptxjitcompiler1"),
                *self._same("nvidia-smi", "nvidia-persistenced", "nvidia-modprobe"),
            ),
        )
        vendor = [cuda, *self._more_libraries(), *self._i386()] if self.is_vendors else []
        return [
            *vendor,
            *self._library_packages(),
            *self._kernel_packages(),
            self._smi(),
            self._modprobe(),
            self.persistenced(),
            self._mps(),
            self._package(
                "nvidia-driver",
                "NVIDIA driver, everything",
                # NVIDIA's guide has it for desktops alone, without what computing needs.
                depends=(
                    *self._same(
                        "nvidia-kernel-support",
                        *(() if self.is_vendors else ("libcuda1", "nvidia-smi")),
                    ),
                    f"nvidia-kernel-dkms (= {self.package_version}) | "
                    f"{self.naming.open_dkms} (= {self.package_version})",
                ),
            ),
        ]

    def vendor_packages(self) -> list[Package]:
        """Return the packages that only NVIDIA's repository has: metapackages, fabric manager, IMEX."""
        suffix = "" if int(self.branch) >= 580 else f"-{self.branch}"
        return [
            self._package(
                "nvidia-open",
                "NVIDIA driver with open kernel modules",
                depends=self._newer("nvidia-driver", "nvidia-driver-cuda", self.naming.open_dkms),
            ),
            self._package(
                "cuda-drivers",
                "NVIDIA driver with proprietary kernel modules",
                depends=self._newer("nvidia-driver", "nvidia-driver-cuda", "nvidia-kernel-dkms"),
                relations={
                    "Provides": (f"cuda-drivers-{self.branch}",),
                    "Conflicts": ("nvidia-driver-open",),
                    "Replaces": ("nvidia-driver-open",),
                },
            ),
            self.fabric_manager(suffix),
            self.imex(suffix),
            self.nscq(suffix),
        ]

    # --- parts -----------------------------------------------------------------------------------

    def _package(
        self, name: str, summary: str, *, version: str | None = None, **fields: object
    ) -> Package:
        return Package(
            name=name,
            version=version or self.package_version,
            summary=summary,
            source=self._source_of(name),
            **fields,  # type: ignore[arg-type]
        )

    @property
    def is_vendors(self) -> bool:
        """The packages are those of NVIDIA's repository for Debian."""
        return self.naming.open_dkms == VENDOR.open_dkms

    def _source_of(self, name: str) -> str | None:
        """Source package; none: named as the package."""
        own = re.match(r"nvidia-(persistenced|modprobe|fabricmanager|imex)|libnvidia-nscq", name)
        return (own[0] if own[0] != name else None) if own else self._graphics_source

    @property
    def _graphics_source(self) -> str:
        return "nvidia-graphics-drivers"

    def _more_libraries(self) -> list[Package]:
        both: dict[str, tuple[str, ...]] = {"Multi-Arch": ("same",)}
        return [
            self._package(name, "NVIDIA library", relations=both if name in I386 else {})
            for name, first in LIBRARIES.items()
            if int(self.branch) >= first
        ]

    def _i386(self) -> list[Package]:
        """Copies for programs of 32 bits; without files, for nothing here runs them."""
        return [
            self._package(
                name, "NVIDIA library", architecture="i386", relations={"Multi-Arch": ("same",)}
            )
            for name in I386
        ]

    def _newer(self, *names: str) -> tuple[str, ...]:
        return tuple(f"{name} (>= {self.version})" for name in names)

    def _same(self, *names: str) -> tuple[str, ...]:
        return tuple(f"{name} (= {self.package_version})" for name in names)

    def _library_packages(self) -> list[Package]:
        return [
            self._package(
                "libnvidia-ml1",
                "NVIDIA management library",
                files=self._library_files("libnvidia-ml", self._libraries.nvml),
                depends=("libc6",),
                relations={"Multi-Arch": ("same",)},
                triggers=LDCONFIG,
            ),
            self._package(
                "libcuda1",
                "NVIDIA CUDA driver library",
                files=self._library_files("libcuda", self._libraries.cuda),
                depends=(
                    *("libc6", *self._same("libnvidia-ptxjitcompiler1")),
                    *(
                        f"{name} ({self.naming.relation} {self.package_version})"
                        for name in (_OF_CUDA if self.is_vendors else ())
                        if int(self.branch) >= LIBRARIES[name]
                    ),
                ),
                relations={
                    "Recommends": self._same("nvidia-kernel-support"),
                    "Multi-Arch": ("same",),
                },
                triggers=LDCONFIG,
            ),
            self._single_library(
                "libnvidia-ptxjitcompiler1", "libnvidia-ptxjitcompiler.so", "ptxjit"
            ),
        ]

    def _library_files(self, stem: str, built: Entry) -> dict[str, Entry]:
        return {
            f"{LIBRARY_DIRECTORY}/{stem}.so.{self.version}": built,
            f"{LIBRARY_DIRECTORY}/{stem}.so.1": Link(f"{stem}.so.{self.version}"),
            f"{LIBRARY_DIRECTORY}/{stem}.so": Link(f"{stem}.so.1"),
        }

    def _single_library(self, package: str, stem: str, symbol: str) -> Package:
        built = self._builder.stub_library(
            f"{stem}.1", f"{stem}.{self.version}", f"gpustate_lab_{symbol}"
        )
        return self._package(
            package,
            f"NVIDIA library {stem}",
            files={
                f"{LIBRARY_DIRECTORY}/{stem}.{self.version}": built,
                f"{LIBRARY_DIRECTORY}/{stem}.1": Link(f"{stem}.{self.version}"),
            },
            relations={"Multi-Arch": ("same",)} if package in I386 else {},
            triggers=LDCONFIG,
        )

    def _kernel_packages(self) -> list[Package]:
        support = self._package(
            "nvidia-kernel-support",
            "NVIDIA kernel module support files",
            files={
                "etc/modprobe.d/nvidia-blacklists-nouveau.conf": (
                    "# Written by nvidia-kernel-support.\nblacklist nouveau\n"
                ),
                "usr/lib/udev/rules.d/60-nvidia.rules": self._text("60-nvidia.rules"),
            },
            depends=("nvidia-modprobe", *self._same("firmware-nvidia-gsp")),
            scripts={
                "postinst": self._text("update-initramfs.postinst"),
                "postrm": self._text("update-initramfs.postrm"),
            },
        )
        firmware = self._package(
            "firmware-nvidia-gsp",
            "NVIDIA GSP firmware",
            files={
                f"usr/lib/firmware/nvidia/{self.version}/gsp_{chip}.bin": f"simulated {chip}\n"
                for chip in ("tu10x", "ga10x")
            },
        )
        return [
            support,
            firmware,
            self._dkms(self.naming.open_dkms, "nvidia-kernel-dkms", "Dual MIT/GPL", "open"),
            self._dkms("nvidia-kernel-dkms", self.naming.open_dkms, "NVIDIA", "proprietary"),
        ]

    def _dkms(self, name: str, other: str, license_text: str, kind: str) -> Package:
        source = f"usr/src/nvidia-{self.version}"
        files: dict[str, Entry] = {
            f"{source}/{path.name}": path.read_text(encoding="utf-8").replace(
                "@VERSION@", self.version
            )
            for path in sorted((PAYLOAD / "dkms").iterdir())
        }
        files[f"{source}/nv-version.h"] = (
            "/* Simulated. */\n"
            f'#define NV_VERSION "{self.version}"\n#define NV_LICENSE "{license_text}"\n'
        )
        return self._package(
            name,
            f"NVIDIA {kind} kernel module sources for DKMS",
            files=files,
            depends=("dkms", *self._same("nvidia-kernel-support", "firmware-nvidia-gsp")),
            relations={
                "Conflicts": (other,),
                "Replaces": (other,),
                "Provides": (f"nvidia-kernel-{self.version}",),
            },
            scripts={"postinst": self._text("dkms.postinst"), "prerm": self._text("dkms.prerm")},
        )

    def _smi(self) -> Package:
        return self._package(
            "nvidia-smi",
            "NVIDIA system management interface",
            files={"usr/bin/nvidia-smi": Program(self._libraries.smi)},
            depends=self._same("libnvidia-ml1"),
        )

    def _modprobe(self) -> Package:
        return self._package(
            "nvidia-modprobe",
            "NVIDIA module loader and device node maker",
            files={"usr/bin/nvidia-modprobe": self._program("nvidia_modprobe.py")},
        )

    def persistenced(self) -> Package:
        return self._package(
            "nvidia-persistenced",
            "NVIDIA persistence daemon",
            files={
                "usr/bin/nvidia-persistenced": self._program("nvidia_persistenced.py"),
                f"{UNIT_DIRECTORY}/nvidia-persistenced.service": self._text(
                    "nvidia-persistenced.service"
                ),
            },
            depends=("passwd",),
            scripts=unit_scripts("nvidia-persistenced.service", enable=True, user=True),
        )

    def _mps(self) -> Package:
        return self._package(
            "nvidia-cuda-mps",
            "NVIDIA CUDA Multi Process Service",
            files={
                "usr/bin/nvidia-cuda-mps-control": Program(self._builder.mps_client()),
                "usr/lib/gpustate-lab/mps/nvidia-cuda-mps-control": self._program(
                    "nvidia_cuda_mps_control.py"
                ),
                "usr/bin/nvidia-cuda-mps-server": Program(
                    "#!/bin/sh\n# Simulated nvidia-cuda-mps-server.\nexec sleep infinity\n"
                ),
            },
            depends=self._same("libcuda1"),
        )

    def fabric_manager(self, suffix: str) -> Package:
        directory = "usr/share/nvidia/nvswitch"
        return self._package(
            f"nvidia-fabricmanager{suffix}",
            "NVIDIA fabric manager",
            files={
                "usr/bin/nv-fabricmanager": self._program("nv_fabricmanager.py"),
                "usr/bin/nvidia-fabricmanager-start.sh": Program(
                    self._text("nvidia-fabricmanager-start.sh")
                ),
                f"{directory}/fabricmanager.cfg": self._text("fabricmanager.cfg"),
                f"{UNIT_DIRECTORY}/nvidia-fabricmanager.service": self._text(
                    "nvidia-fabricmanager.service"
                ),
            },
            relations={"Provides": ("fabricmanager",), "Conflicts": ("fabricmanager",)},
            scripts=unit_scripts("nvidia-fabricmanager.service", enable=False, user=False),
        )

    def nscq(self, suffix: str) -> Package:
        return self._single_library(f"libnvidia-nscq{suffix}", "libnvidia-nscq.so", "nscq")

    def imex(self, suffix: str) -> Package:
        return self._package(
            f"nvidia-imex{suffix}",
            "NVIDIA IMEX daemon",
            files={
                "usr/bin/nvidia-imex": self._program("nvidia_imex.py"),
                "usr/bin/nvidia-imex-ctl": self._program("nvidia_imex_ctl.py"),
                "etc/nvidia-imex/config.cfg": self._text("imex.cfg"),
                f"{UNIT_DIRECTORY}/nvidia-imex.service": self._text("nvidia-imex.service"),
            },
            relations={"Provides": ("imex",), "Conflicts": ("imex",)},
            scripts=unit_scripts("nvidia-imex.service", enable=False, user=False),
        )

    def _text(self, name: str) -> str:
        text = (PAYLOAD / "driver" / name).read_text(encoding="utf-8")
        return text.replace("@VERSION@", self.version)

    def _program(self, name: str) -> Program:
        return Program(self._text(name))


def pinning(versions: list[str]) -> list[Package]:
    """Return the packages that pin the driver to a branch or to one version."""
    wanted = sorted({version.partition(".")[0] for version in versions} | set(versions))
    return [
        Package(
            name=f"nvidia-driver-pinning-{pin}",
            version=f"{pin}-1",
            summary=f"pins the NVIDIA driver to {pin}",
            architecture="all",
            files={
                "etc/apt/preferences.d/nvidia-driver-pinning": (
                    "# Written by nvidia-driver-pinning.\n"
                    "Package: src:*nvidia*:any src:cuda-drivers:any src:cuda-compat:any\n"
                    f"Pin: version {pin}{'-' if pin in versions else '.'}*\n"
                    "Pin-Priority: 1000\n"
                )
            },
            relations={
                "Provides": ("nvidia-driver-pinning",),
                "Conflicts": ("nvidia-driver-pinning",),
                "Replaces": ("nvidia-driver-pinning",),
            },
        )
        for pin in wanted
    ]


def subnet_manager() -> Package:
    """Return nvlsm, which has its own version."""
    text = (PAYLOAD / "driver" / "nvlsm.py").read_text(encoding="utf-8")
    return Package(
        name="nvlsm",
        version=NVLSM_VERSION,
        summary="NVLink subnet manager",
        files={
            "opt/nvidia/nvlsm/sbin/nvlsm": Program(text),
            "usr/share/nvidia/nvlsm/nvlsm.conf": "# simulated\n",
        },
    )
