"""The packages of a simulated GPU node: the simulator and its kernels.

The kernel packages have all files that tools read (an image, a config, a module tree with a real ELF
``nouveau.ko``, headers that DKMS accepts), but no kernel code: nodes run the controller's kernel. One has the release
of that kernel; the other is older, so that there are several bootable kernels.

Sources:
    Debian's linux source package: contents and maintainer scripts of linux-image, linux-headers.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from pathlib import Path

from gpustate.errors import LabError
from gpustate_lab.sim.deb import Entry, Link, Package, Program
from gpustate_lab.sim.native import PAYLOAD, Builder

#: Older than any supported controller kernel, newer than the minimum of the open modules (4.15).
OLDER_KERNEL = "5.10.0-28-lab"
PROGRAMS = "usr/lib/gpustate-lab"
#: Modules in the kernel packages.
MODULES = (
    "kernel/drivers/gpu/drm/nouveau/nouveau.ko",
    "kernel/drivers/infiniband/core/ib_umad.ko",
    "kernel/drivers/infiniband/hw/mlx5/mlx5_ib.ko",
    "kernel/drivers/vfio/pci/vfio-pci.ko",
)
#: What Ubuntu has in linux-modules-extra.
_EXTRA = ("nouveau.ko", "ib_umad.ko", "mlx5_ib.ko")
TOOLS = ("modprobe", "rmmod", "insmod", "lsmod")

_RELEASE = re.compile(r"[0-9][0-9A-Za-z.+~_-]*")


def node_package(builder: Builder) -> Package:
    """Return gpustate-lab-node; its version is a digest of the simulator."""
    folder = PAYLOAD / "node"
    programs = sorted(folder.glob("*.py"))
    digest = hashlib.sha256()
    for path in [*sorted(folder.iterdir()), *sorted((PAYLOAD / "lib").iterdir())]:
        if path.is_file():
            digest.update(path.read_bytes())
    unit = "gpustate-lab-hardware.service"
    units = "usr/lib/systemd/system"
    files: dict[str, Entry] = {f"{PROGRAMS}/{path.name}": Program(path) for path in programs}
    files |= {f"{PROGRAMS}/tools/{tool}": Link("../kmodtool.py") for tool in TOOLS}
    files |= {
        f"{PROGRAMS}/hardware": Link("boot.py"),
        "usr/local/bin/dmesg": Link("../../lib/gpustate-lab/dmesg.py"),
        "usr/bin/gpustate-lab-workload": Program(builder.workload()),
        f"{units}/{unit}": folder / unit,
        f"{units}/sysinit.target.wants/{unit}": Link(f"../{unit}"),
    }
    return Package(
        name="gpustate-lab-node",
        version=f"1.{int(digest.hexdigest()[:8], 16)}",
        summary="makes this machine a GPU node for tests",
        section="misc",
        files=files,
        depends=("python3", "kmod", "mount", "initramfs-tools", "dpkg"),
        scripts={
            name: (folder / f"gpustate-lab-node.{name}").read_text(encoding="utf-8")
            for name in ("postinst", "postrm")
        },
    )


def kernel_packages(release: str, builder: Builder, scratch: Path) -> list[Package]:
    """Return linux-image and linux-headers of one kernel release.

    Raises:
        LabError: the release cannot be part of a file name.
    """
    if not _RELEASE.fullmatch(release):
        raise LabError(f"{release!r} is not a kernel release")
    headers = _headers(release)
    include = include_folder(release, scratch)
    built: dict[str, Entry] = {}
    for path in MODULES:
        name = Path(path).stem
        target = scratch / f"{name}-{release}.ko"
        built[path] = builder.module(PAYLOAD / "kernel" / f"{name}.c", target, include)
    config = _text("config", release) + f'CONFIG_LOCALVERSION=""\n# {release}\n'
    tree = f"usr/lib/modules/{release}"
    image = Package(
        name=image_package(release),
        version="1.0-1",
        summary=f"Linux {release}",
        section="kernel",
        depends=("kmod", "initramfs-tools | linux-initramfs-tool"),
        relations={"Provides": ("linux-image",)},
        files={
            f"boot/vmlinuz-{release}": f"simulated kernel image {release}\n",
            f"boot/config-{release}": config,
            f"boot/System.map-{release}": "simulated\n",
            f"{tree}/modules.builtin": "",
            f"{tree}/modules.builtin.modinfo": "",
            f"{tree}/modules.order": "".join(f"{path}\n" for path in built),
            **{f"{tree}/{path}": module for path, module in built.items()},
        },
        scripts={name: _text(f"image.{name}", release) for name in ("postinst", "prerm", "postrm")},
    )
    return [image, _headers_package(release, headers, config)]


def include_folder(release: str, scratch: Path) -> Path:
    """Write the headers with which modules of a kernel are compiled; their folder."""
    include = scratch / f"include-{release}"
    for path, text in _headers(release).items():
        target = include / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return include


def ubuntu_kernel_packages(release: str, builder: Builder, scratch: Path) -> list[Package]:
    """Return the packages of one of Ubuntu's kernels: image, modules, further modules, headers."""
    image, headers = kernel_packages(release, builder, scratch)
    extra = {path: entry for path, entry in image.files.items() if Path(path).name in _EXTRA}
    basic = {
        path: entry
        for path, entry in image.files.items()
        if path.startswith("usr/lib/modules/") and path not in extra
    }
    boot = {path: entry for path, entry in image.files.items() if path.startswith("boot/")}
    name = _as_name(release)
    modules, further = f"linux-modules-{name}", f"linux-modules-extra-{name}"
    version = kernel_version(release)
    scripts = {"postinst": _text("headers.postinst", release)}
    return [
        replace(image, version=version, files=boot, depends=(*image.depends, modules)),
        replace(
            image, name=modules, version=version, files=basic, depends=(), relations={}, scripts={}
        ),
        replace(
            image,
            name=further,
            version=version,
            files=extra,
            depends=(modules,),
            relations={},
            scripts={"postinst": f"#!/bin/sh\nset -e\ndepmod {release}\n"},
        ),
        replace(headers, version=version, relations={}, scripts=scripts),
    ]


def ubuntu_kernel_metas(release: str, number: str) -> list[Package]:
    """Return the packages that follow Ubuntu's newest kernel of the flavour generic.

    Args:
        release: of that kernel.
        number: of the release of Ubuntu, for the names of its hardware enablement kernels.
    """
    name, version = _as_name(release), kernel_version(release)
    found: list[Package] = []
    for flavour in ("generic", f"generic-hwe-{number}"):
        needs = {
            f"linux-image-{flavour}": (f"linux-image-{name}", f"linux-modules-extra-{name}"),
            f"linux-headers-{flavour}": (headers_package(release),),
            f"linux-{flavour}": tuple(
                f"linux-{part}-{flavour} (= {version})" for part in ("image", "headers")
            ),
        }
        found += [
            Package(
                meta,
                version,
                f"Ubuntu's newest kernel, {flavour}",
                depends=depends,
                section="kernel",
            )
            for meta, depends in needs.items()
        ]
    return found


def _headers_package(release: str, headers: dict[str, str], config: str) -> Package:
    source = f"usr/src/linux-headers-{release}"
    files: dict[str, Entry] = {f"{source}/include/{path}": text for path, text in headers.items()}
    files |= {
        f"{source}/.config": config,
        f"{source}/Makefile": "# Simulated; modules of the lab bring a Makefile of their own.\n",
        f"{source}/include/config/kernel.release": f"{release}\n",
        f"usr/lib/modules/{release}/build": Link(f"/{source}"),
    }
    return Package(
        name=headers_package(release),
        version="1.0-1",
        summary=f"headers of Linux {release}",
        section="kernel",
        # dkms recommends headers of some kernel; without this apt would bring real ones.
        relations={"Provides": ("linux-headers", "linux-headers-generic")},
        files=files,
        scripts={"postinst": _text("headers.postinst", release)},
    )


def kernel_version(release: str) -> str:
    """Return the version of a kernel's packages in Ubuntu: 6.8.0-106.106 of 6.8.0-106-generic."""
    number, dash, build = release.removesuffix("-generic").rpartition("-")
    return f"{number}-{build}.{build}" if dash and build.isdigit() else release


def image_package(release: str) -> str:
    return f"linux-image-{_as_name(release)}"


def headers_package(release: str) -> str:
    return f"linux-headers-{_as_name(release)}"


def _as_name(release: str) -> str:
    """Return a kernel release as part of a package name, without capitals and underscores."""
    return re.sub(r"[^a-z0-9.+-]", "-", release.lower())


def _headers(release: str) -> dict[str, str]:
    return {
        "linux/module.h": (PAYLOAD / "kernel" / "module.h").read_text(encoding="utf-8"),
        "generated/utsrelease.h": f'#define UTS_RELEASE "{release}"\n',
    }


def _text(name: str, release: str) -> str:
    text = (PAYLOAD / "kernel" / name).read_text(encoding="utf-8")
    return text.replace("@KERNEL@", release)
