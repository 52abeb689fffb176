"""The simulated packages of GPUDirect: OFED's kernel modules, gdrdrv and nvidia-fs.

All are built by the real DKMS for one driver: gdrdrv and nvidia-fs record the driver they were built against, and
the checksum of ib_core's symbol differs between versions of OFED.

Sources:
    NVIDIA/gdrcopy v2.6: packages/dkms (names, dkms.conf); NVIDIA/gds-nvidia-fs: src/dkms.conf.
    NVIDIA DOCA: doca-ofed, mlnx-ofed-kernel-dkms and where they leave Module.symvers.
    packages.ubuntu.com, nvidia-fs-dkms: versions in 24.04 and 26.04, without their revisions.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpustate import shell
from gpustate_lab.sim.deb import Entry, Package, Program
from gpustate_lab.sim.driver_packages import LDCONFIG, LIBRARY_DIRECTORY
from gpustate_lab.sim.native import PAYLOAD, Builder

#: Checksum of ib_register_peer_memory_client in the ib_core of each OFED.
OFEDS: Mapping[str, str] = {"24.10.1.1.4": "0x1a2b3c4d", "25.04.0.6.0": "0x0badf00d"}
GDRCOPYS = ("2.5", "2.6")
NVIDIA_FS = ("2.16.1", "2.26.6", "2.28.2")
#: Ubuntu's archive has nvidia-fs, years older, and none of the others.
ARCHIVED_FS: Mapping[str, str] = {"ubuntu2404": "2.14.14", "ubuntu2604": "2.19.7"}


def packages(builder: Builder) -> list[Package]:
    """Return all packages, unordered."""
    found: list[Package] = []
    for version, crc in OFEDS.items():
        found += _ofed(version, crc)
    for version in GDRCOPYS:
        found += _gdrcopy(version, builder)
    found += [nvidia_fs(version) for version in NVIDIA_FS]
    return found


def nvidia_fs(version: str) -> Package:
    return _dkms("nvidia-fs-dkms", "nvidia-fs", "nvidia-fs", version)


def _text(name: str, **words: str) -> str:
    text = (PAYLOAD / "gpudirect" / name).read_text(encoding="utf-8")
    return shell.fill(text, **words)


def _conf(name: str, version: str, modules: tuple[str, ...]) -> str:
    lines = [f'PACKAGE_NAME="{name}"', f'PACKAGE_VERSION="{version}"', 'AUTOINSTALL="yes"']
    lines += ['MAKE[0]="make KERNEL_UNAME=${kernelver} modules"', 'CLEAN="make clean"']
    for number, module in enumerate(modules):
        lines.append(f'BUILT_MODULE_NAME[{number}]="{module}"')
        lines.append(f'DEST_MODULE_LOCATION[{number}]="/updates/dkms"')
    return "\n".join(lines) + "\n"


def _scripts(name: str, version: str) -> dict[str, str]:
    return {
        "postinst": '#!/bin/sh\nset -e\nif [ "$1" = configure ]; then\n'
        f'    /usr/lib/dkms/common.postinst {name} {version} /usr/share/{name} "" "$2"\nfi\n',
        "prerm": "#!/bin/sh\nset -e\ncase $1 in remove|upgrade|deconfigure)\n"
        f'    if [ -n "$(dkms status -m {name} -v {version})" ]; then dkms remove -m {name} -v {version} --all; fi ;;\nesac\n',
    }


def _dkms(package: str, name: str, module: str, version: str) -> Package:
    source = f"usr/src/{name}-{version}"
    return Package(
        name=package,
        version=f"{version}-1",
        summary=f"{module} kernel module sources for DKMS",
        files={
            f"{source}/Makefile": _text("module.Makefile", MODULE=module),
            f"{source}/{module}.c": _text(f"{module}.c", VERSION=version),
            f"{source}/dkms.conf": _conf(name, version, (module,)),
        },
        depends=("dkms",),
        scripts=_scripts(name, version),
    )


def _gdrcopy(version: str, builder: Builder) -> list[Package]:
    library = builder.stub_library(
        "libgdrapi.so.2", f"libgdrapi.so.{version}", f"gpustate_lab_gdr{version.replace('.', '_')}"
    )
    sanity = f"#!/bin/sh\n# Simulated gdrcopy_sanity {version}.\n[ -c /dev/gdrdrv ] || {{ echo 'error: gdrdrv'; exit 1; }}\necho 'Failed: 0'\n"
    return [
        _dkms("gdrdrv-dkms", "gdrdrv", "gdrdrv", version),
        Package(
            name="libgdrapi",
            version=f"{version}-1",
            summary="GDRCopy library",
            files={f"{LIBRARY_DIRECTORY}/libgdrapi.so.2": library},
            triggers=LDCONFIG,
        ),
        Package(
            name="gdrcopy-tests",
            version=f"{version}-1",
            summary="GDRCopy tests",
            files={"usr/bin/gdrcopy_sanity": Program(sanity)},
            depends=(f"libgdrapi (= {version}-1)",),
        ),
    ]


def _symbols(module: str, needs: str) -> str:
    """Return C code with undefined symbols, from which depmod derives dependencies."""
    lines = [f"int lab_{module}(void);", f"EXPORT_SYMBOL(lab_{module});"]
    if module == "ib_core":
        lines.append("EXPORT_SYMBOL(ib_register_peer_memory_client);")
    calls = [f"lab_{name}()" for name in needs.split(",") if name]
    lines += [f"extern int {call.removesuffix('()')}(void);" for call in calls]
    lines.append(f"int lab_{module}(void) {{ return {' + '.join(calls) or '0'}; }}")
    return "\n".join(lines)


def _ofed(version: str, crc: str) -> list[Package]:
    parts = version.split(".")
    shown = f"{'.'.join(parts[:2])}-{'.'.join(parts[2:])}"
    depends = {"mlx_compat": "", "ib_core": "mlx_compat", "mlx5_core": "mlx_compat,ib_core"}
    source = f"usr/src/mlnx-ofed-kernel-{version}"
    files: dict[str, Entry] = {
        f"{source}/Makefile": _text("ofed.Makefile", CRC=crc),
        f"{source}/dkms.conf": _conf("mlnx-ofed-kernel", version, tuple(depends)),
    }
    for module, needs in depends.items():
        files[f"{source}/{module}.c"] = _text(
            "core.c",
            MODULE=module,
            VERSION=shown,
            CRC=crc,
            DEPENDS=needs,
            SYMBOLS=_symbols(module, needs),
        )
    info = f"#!/bin/sh\n# Simulated ofed_info.\necho 'OFED-internal-{shown}:'\n"
    return [
        Package(
            name="mlnx-ofed-kernel-dkms",
            version=f"{version}-1",
            summary="OFED kernel module sources for DKMS",
            files=files,
            depends=("dkms",),
            scripts=_scripts("mlnx-ofed-kernel", version),
        ),
        Package(
            name="ofed-scripts",
            version=f"{version}-1",
            summary="OFED scripts",
            files={"usr/bin/ofed_info": Program(info)},
        ),
        Package(
            name="doca-ofed",
            version=f"{version}-1",
            summary="OFED, all of it",
            depends=(f"mlnx-ofed-kernel-dkms (= {version}-1)", f"ofed-scripts (= {version}-1)"),
        ),
    ]
