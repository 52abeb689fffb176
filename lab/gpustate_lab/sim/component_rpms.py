"""The simulated components other than the driver as rpm packages, with NVIDIA's names and relations.

Their content is that of the Debian packages (:mod:`gpustate_lab.sim.dcgm_packages` and others); names, versions,
relations and scripts are those of rpm. They are data: pass :func:`sections` to rpmbuild to build files.

Sources:
    NVIDIA/DCGM 4.6.0, cmake/packaging.cmake (names, epoch 1, conflict with DCGM 3) and scripts/rpm/postinstall;
    NVIDIA/gdrcopy, packages/gdrcopy.spec (names, ``dkms`` behind the release, scripts); Amazon Linux 2023
    release notes, lists of packages (names and releases of nvidia-fabricmanager, nvidia-fabric-manager,
    nvidia-imex, nvlsm, nvidia-fs, nvidia-fs-dkms); lustre.spec (mlnx-ofa_kernel-dkms beside kmod-mlnx-ofa_kernel).
    Simulated without a source: which of the packages of GPUDirect Storage and of OFED needs which.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpustate_lab.sim import dcgm_packages, driver_packages, gpudirect_packages
from gpustate_lab.sim.deb import Entry, Link, Package, Program
from gpustate_lab.sim.native import PAYLOAD, Builder

#: Branches with Fabric Manager and IMEX; names changed with 580.
DRIVERS = ("570.211.01", "580.65.06")
_FIRST_PLAIN = 580
_OFED_DKMS = "mlnx-ofed-kernel"


@dataclass(frozen=True, slots=True)
class RpmPackage:
    """One package.

    Args:
        version: ``epoch:version-release``.
        files: path without the leading slash, to what is there.
        requires, provides, conflicts: relations as a spec file has them.
        scripts: scriptlets by name, as ``post``.
    """

    name: str
    version: str
    files: Mapping[str, Entry] = field(default_factory=dict[str, Entry])
    requires: tuple[str, ...] = ()
    provides: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    scripts: Mapping[str, str] = field(default_factory=dict[str, str])


def sections(package: RpmPackage, folder: Path) -> tuple[str, str]:
    """Lay the files out below a folder; further sections of a spec file, and the list of files."""
    tree = folder / package.name / package.version.replace(":", "_")
    for path, entry in package.files.items():
        _place(tree / path, entry)
    tree.mkdir(parents=True, exist_ok=True)
    lines = ["%install", f"cp -a {tree}/. %{{buildroot}}/"]
    for name, text in package.scripts.items():
        lines += [f"%{name}", text.rstrip()]
    listed = [
        f"%config(noreplace) /{p}" if p.startswith("etc/") else f"/{p}" for p in package.files
    ]
    return "\n".join(lines) + "\n", "\n".join(listed) + "\n"


def _place(path: Path, entry: Entry) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(entry, Link):
        path.symlink_to(entry.target)
        return
    content = entry.content if isinstance(entry, Program) else entry
    if isinstance(content, Path):
        shutil.copyfile(content, path)
    else:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(0o755 if isinstance(entry, Program) else 0o644)


def _unit_scripts(unit: str, *, user: bool = False) -> dict[str, str]:
    """What systemd's macros for rpm become; a unit that no preset names is not enabled."""
    add = "useradd -Urs /usr/sbin/nologin " + unit.removesuffix(".service") + " || [ $? = 9 ]\n"
    return {
        "post": (add if user else "") + "systemctl daemon-reload >/dev/null 2>&1 || :",
        "preun": f"[ $1 -gt 0 ] || systemctl --no-reload disable --now {unit} >/dev/null 2>&1 || :",
        "postun": "systemctl daemon-reload >/dev/null 2>&1 || :",
    }


def _relations(words: Iterable[str]) -> tuple[str, ...]:
    """Convert ``name (= 1)`` of Debian to ``name = 1``; packages of every Debian node are left out."""
    rows = (re.sub(r" \((<|>|)\1?(=?) ([^)]*)\)", r" \1\2 \3", word) for word in words)
    return tuple(row for row in rows if row not in ("passwd", "libc6"))


def from_deb(package: Package, **changes: object) -> RpmPackage:
    """The rpm package of a Debian package, without its scripts."""
    made = RpmPackage(
        name=package.name,
        version=package.version if "-" in package.version else f"{package.version}-1",
        files=package.files,
        requires=_relations(package.depends),
        provides=tuple(
            f"{one} = {package.version}" for one in package.relations.get("Provides", ())
        ),
        conflicts=package.relations.get("Conflicts", ()),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def dcgm() -> list[RpmPackage]:
    """Both versions of DCGM 4, DCGM 3, and the exporters."""
    found: list[RpmPackage] = []
    for one in dcgm_packages.packages():
        units = [Path(path).name for path in one.files if path.endswith(".service")]
        user = dcgm_packages.UNIT in units
        scripts = _unit_scripts(units[0], user=user) if units else {}
        found.append(from_deb(one, scripts=scripts))
    return found


def fabric(versions: Iterable[str] = DRIVERS) -> list[RpmPackage]:
    """Fabric Manager and IMEX of each driver, by the names of their time, and nvlsm."""
    found = [from_deb(driver_packages.subnet_manager())]
    for version in versions:
        branch = int(version.partition(".")[0])
        manager = "nvidia-fabricmanager" if branch >= _FIRST_PLAIN else "nvidia-fabric-manager"
        imex = "nvidia-imex" if branch >= _FIRST_PLAIN else f"nvidia-imex-{branch}"
        found += [_fabric_manager(manager, version), _imex(imex, version)]
    return found


def _payload(name: str, version: str) -> str:
    text = (PAYLOAD / "driver" / name).read_text(encoding="utf-8")
    return text.replace("@VERSION@", version)


def _fabric_manager(name: str, version: str) -> RpmPackage:
    unit, start = "nvidia-fabricmanager.service", "nvidia-fabricmanager-start.sh"
    files: dict[str, Entry] = {
        "usr/bin/nv-fabricmanager": Program(_payload("nv_fabricmanager.py", version)),
        f"usr/bin/{start}": Program(_payload(start, version)),
        "usr/share/nvidia/nvswitch/fabricmanager.cfg": _payload("fabricmanager.cfg", version),
        f"{driver_packages.UNIT_DIRECTORY}/{unit}": _payload(unit, version),
    }
    return RpmPackage(name, f"{version}-1", files, scripts=_unit_scripts(unit))


def _imex(name: str, version: str) -> RpmPackage:
    unit = "nvidia-imex.service"
    files: dict[str, Entry] = {
        "usr/bin/nvidia-imex": Program(_payload("nvidia_imex.py", version)),
        "usr/bin/nvidia-imex-ctl": Program(_payload("nvidia_imex_ctl.py", version)),
        "etc/nvidia-imex/config.cfg": _payload("imex.cfg", version),
        f"{driver_packages.UNIT_DIRECTORY}/{unit}": _payload(unit, version),
    }
    return RpmPackage(name, f"{version}-1", files, scripts=_unit_scripts(unit))


def _dkms_scripts(name: str, version: str) -> dict[str, str]:
    """Scripts that add, build and install a module for the running kernel, and remove it; a failed build is only reported."""
    words = f"-m {name} -v {version} -q"
    return {
        "post": f"dkms add {words} --rpm_safe_upgrade || :\n"
        f'dkms build {words} -k "$(uname -r)" || :\ndkms install {words} -k "$(uname -r)" --force || :',
        "preun": f"dkms remove {words} --all --rpm_safe_upgrade || :",
    }


def gpudirect(folder: Path) -> list[RpmPackage]:
    """GDRCopy, nvidia-fs and OFED.

    Args:
        folder: empty, where libraries are compiled.
    """
    found: list[RpmPackage] = []
    library: dict[str, RpmPackage] = {}
    for one in gpudirect_packages.packages(Builder(folder)):
        version = one.version.removesuffix("-1")
        if one.name == "gdrdrv-dkms":
            scripts = _dkms_scripts("gdrdrv", version)
            # The real scriptlet would unload the module too; here the package ignores its users.
            found.append(
                from_deb(one, name="gdrcopy-kmod", version=f"{version}-1.el9dkms", scripts=scripts)
            )
        elif one.name in ("libgdrapi", "gdrcopy-tests"):
            there = library.get(version, RpmPackage("gdrcopy", f"{version}-1.el9"))
            library[version] = replace(there, files={**there.files, **one.files})
        elif one.name == "nvidia-fs-dkms":
            found.append(from_deb(one, scripts=_dkms_scripts("nvidia-fs", version)))
            needs = (f"nvidia-fs-dkms = {version}-1",)
            found.append(RpmPackage("nvidia-fs", f"{version}-1", requires=needs))
        else:
            found.append(_ofed(one, version))
    return [*found, *library.values()]


def _ofed(one: Package, version: str) -> RpmPackage:
    """OFED's own, whose kernel packages have another name and version than Debian's."""
    stream = ".".join(version.split(".")[:2])
    full = f"{stream}-OFED.{version}.1.el9"
    if one.name == "mlnx-ofed-kernel-dkms":
        kernel = "mlnx-ofa_kernel"
        files: dict[str, Entry] = {}
        for path, entry in one.files.items():
            if path.endswith("dkms.conf") and isinstance(entry, str):
                entry = entry.replace(f'"{_OFED_DKMS}"', f'"{kernel}"').replace(version, stream)
            files[path.replace(f"{_OFED_DKMS}-{version}", f"{kernel}-{stream}")] = entry
        scripts = _dkms_scripts(kernel, stream)
        return from_deb(one, name=f"{kernel}-dkms", version=full, files=files, scripts=scripts)
    if one.name == "doca-ofed":
        needs = (f"mlnx-ofa_kernel-dkms = {full}", f"ofed-scripts = {version}-1")
        return from_deb(one, requires=needs)
    return from_deb(one)
