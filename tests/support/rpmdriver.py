"""NVIDIA's driver as rpm packages for tests: names and relations of theirs, contents of the lab's simulator.

Real: rpm, rpmbuild, DKMS, which builds a module of the simulator's C sources in ``%post`` as NVIDIA's packages do.
Simulated: everything that is built. The libraries lie where the Debian root below looks for them.

Sources, read on 2026-11-28:
    NVIDIA/yum-packaging-dkms-nvidia (b28ed69, dkms-open-nvidia.spec); NVIDIA/yum-packaging-nvidia-driver (d06f50a,
    nvidia-driver.spec of 570: packages, relations by architecture); negativo17/nvidia-driver (f769f88, nvidia-driver.spec of
    610: nvidia-driver-common, which obsoletes libnvidia-ml and libnvidia-cfg); stackhpc/ansible-slurm-appliance#703
    (``dkms >= 3.1.8``); NVIDIA/yum-packaging-precompiled-kmod (kmod-nvidia.spec, genmodules.py); SUSE's
    BCI-dockerfile-generator; release notes of Amazon Linux 2023.8.20250804 (nvidia-fabric-manager up to 575).
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rpmcomponents import as_rpm
from rpmworld import Rpm

from gpustate.formats import kernelnames
from gpustate.formats.rpm import with_epoch
from gpustate_lab.sim import component_rpms, cuda_packages, driver_packages, node_packages
from gpustate_lab.sim.deb import Entry, Link, Package, Program
from gpustate_lab.sim.native import Builder, run

CUDA = {
    "570.211.01": 12080,
    "580.65.06": 13000,
    "580.178.04": 13000,
    "595.91.07": 13020,
    "615.71.09": 13040,
}
#: A kernel as RHEL and as SUSE name theirs, and version and release of its packages.
KERNELS = {
    "rocky": ("5.14.0-503.11.1.el9_5.x86_64", "5.14.0-503.11.1.el9_5"),
    "rocky10": ("6.12.0-124.21.1.el10_1.x86_64", "6.12.0-124.21.1.el10_1"),
    "amzn": ("6.12.58-82.121.amzn2023.x86_64", "6.12.58-82.121.amzn2023"),
    "sles": ("6.4.0-150600.23.65-default", "6.4.0-150600.23.65.1"),
}
#: As glibc's triggers on RHEL and SUSE do once libraries came or went.
_POST = "%post\nldconfig || :\n%postun\nldconfig || :\n"
_SIGNED = "%post\ndepmod {k} || :\n%postun\ndepmod {k} || :\n"


class DriverRpms:
    """Makes the packages; what is compiled is compiled once.

    Args:
        folder: where contents are laid out.
        broken: a version whose modules cannot be compiled.
    """

    def __init__(self, folder: Path, broken: str = "") -> None:
        self.folder, self.broken = folder, broken
        self.builder = Builder(folder / "native")
        self._sets: dict[str, dict[str, Package]] = {}

    def _set(self, version: str) -> dict[str, Package]:
        if version not in self._sets:
            one = driver_packages.DriverSet(
                version, CUDA[version], driver_packages.VENDOR, self.builder
            )
            self._sets[version] = {p.name: p for p in one.packages()}
        return self._sets[version]

    def _rpm(
        self,
        name: str,
        version: str,
        requires: tuple[str, ...] = (),
        *,
        files: Mapping[str, Entry] | None = None,
        scripts: str = "",
        **more: Any,
    ) -> Rpm:
        """A package with files."""
        tree = self.folder / "trees" / f"{name}-{version}"
        listing = _lay_out(files or {}, tree)
        install = f"%install\nmkdir -p %{{buildroot}}\ncp -a {tree}/. %{{buildroot}}/\n"
        return Rpm(
            name,
            version,
            requires,
            more=(install if files else "") + scripts,
            files=listing,
            **more,
        )

    def _files(self, version: str, names: Iterable[str]) -> dict[str, Entry]:
        return {
            path: entry
            for name in names
            for path, entry in self._set(version)[name].files.items()
            if not path.startswith("usr/lib/udev")
        }

    def _daemons(self, version: str, full: str) -> list[Rpm]:
        user = "getent passwd nvidia-persistenced >/dev/null || useradd -r -M -s /usr/sbin/nologin nvidia-persistenced || :\n"
        return [
            self._rpm(
                "nvidia-persistenced",
                full,
                files=self._files(version, ("nvidia-persistenced",)),
                scripts=f"%pre\n{user}",
            ),
            self._rpm("nvidia-modprobe", full, files=self._files(version, ("nvidia-modprobe",))),
        ]

    def _fabric(self, version: str) -> list[Rpm]:
        """Fabric Manager and IMEX."""
        packages = component_rpms.fabric((version,))
        return [as_rpm(one, self.folder / "fabric") for one in packages if one.name != "nvlsm"]

    def _dkms(self, version: str, kind: str, module: str) -> tuple[dict[str, Entry], str]:
        """Sources for DKMS under a module's name, and what NVIDIA's packages run."""
        name = "nvidia-kernel-open-dkms" if kind == "open" else "nvidia-kernel-dkms"
        source = f"usr/src/nvidia-{version}"
        files = {
            path.replace(source, f"usr/src/{module}-{version}"): (
                entry.replace('PACKAGE_NAME="nvidia"', f'PACKAGE_NAME="{module}"')
                if isinstance(entry, str)
                else entry
            )
            for path, entry in self._set(version)[name].files.items()
        }
        if version == self.broken:
            main = f"usr/src/{module}-{version}/nvidia.c"
            files[main] = f"{files[main]}\n#error no member named of_node\n"
        scripts = (
            f"%post\ndkms add -m {module} -v {version} -q || :\n"
            f"dkms build -m {module} -v {version} -q || :\ndkms install -m {module} -v {version} -q --force || :\n"
            f"%preun\ndkms remove -m {module} -v {version} -q --all || :\n"
        )
        return files, scripts

    def rhel(self, version: str, dist: str = "el9") -> list[Rpm]:
        """One driver as NVIDIA's repository for RHEL has it."""
        v = f"3:{version}"
        full = f"{v}-1.{dist}"
        common = int(version[:3]) >= 610
        libraries = ("nvidia-driver-common",) if common else ("libnvidia-ml", "libnvidia-cfg")
        needs = tuple(f"{name}(x86-64) = {full}" for name in libraries)
        gone = ("libnvidia-ml", "libnvidia-cfg") if common else ()
        found = [
            self._rpm(
                "nvidia-driver-cuda",
                full,
                (
                    f"nvidia-driver-cuda-libs(x86-64) = {v}",
                    f"nvidia-kmod-common = {v}",
                    f"nvidia-persistenced = {v}",
                ),
                files=self._files(version, ("nvidia-smi", "nvidia-cuda-mps")),
            ),
            self._rpm(
                "nvidia-driver-cuda-libs",
                full,
                needs,
                files=self._files(version, ("libcuda1", "libnvidia-ptxjitcompiler1")),
                scripts=_POST,
            ),
            self._rpm(
                libraries[0],
                full,
                files=self._files(version, ("libnvidia-ml1",)),
                scripts=_POST,
                obsoletes=tuple(f"{name} < {full}" for name in gone),
                provides=tuple(f"{name} = {full}" for name in gone),
            ),
            *(self._rpm(name, full) for name in libraries[1:]),
            *self.copies(version, dist),
            self._rpm("nvidia-driver-libs", full, needs[:1]),
            *self._fabric(version),
            self._rpm(
                "nvidia-kmod-common",
                full,
                (f"nvidia-kmod = {v}", f"nvidia-modprobe = {v}"),
                files=self._files(version, ("firmware-nvidia-gsp",)),
                arch="noarch",
            ),
            self._rpm(
                "nvidia-driver",
                full,
                (f"nvidia-driver-libs(x86-64) = {v}", f"nvidia-kmod-common = {v}"),
            ),
            *self._daemons(version, full),
        ]
        for kind, mine, other in (("open", "open", "latest"), ("proprietary", "latest", "open")):
            files, scripts = self._dkms(
                version, kind, "nvidia-open" if kind == "open" else "nvidia"
            )
            found.append(
                self._rpm(
                    f"kmod-nvidia-{mine}-dkms",
                    full,
                    ("dkms >= 3.1.8", f"nvidia-kmod-common = {v}"),
                    files=files,
                    scripts=scripts,
                    provides=(f"nvidia-kmod = {v}",),
                    conflicts=(f"kmod-nvidia-{other}-dkms",),
                )
            )
            meta = "nvidia-open" if kind == "open" else "cuda-drivers"
            whole = (f"nvidia-driver = {v}", f"nvidia-driver-cuda = {v}")
            found.append(self._rpm(meta, full, (*whole, f"kmod-nvidia-{mine}-dkms = {v}")))
        return found

    def copies(self, version: str, dist: str = "el9") -> list[Rpm]:
        """Libraries for 32-bit programs, which the repository has beside the others."""
        full = f"3:{version}-1.{dist}"
        base = "nvidia-driver-common" if int(version[:3]) >= 610 else "libnvidia-ml"
        gone = ("libnvidia-ml",) if base.endswith("common") else ()
        shape: dict[str, Any] = {
            "arch": "i686",
            "obsoletes": tuple(f"{name} < {full}" for name in gone),
            "provides": tuple(f"{name} = {full}" for name in gone),
        }
        return [
            self._rpm(base, full, **shape),
            self._rpm("nvidia-driver-cuda-libs", full, (f"{base}(x86-32) = {full}",), arch="i686"),
        ]

    def precompiled(self, version: str, kernel: str) -> Rpm:
        """The modules of a driver, built for one kernel of RHEL's."""
        v = f"3:{version}"
        return self._rpm(
            f"kmod-nvidia-{version}-{kernelnames.parts('dnf', kernel)['r']}",
            f"{v}-3.el9_5",
            files=self._modules(version, "proprietary", kernel, "extra"),
            scripts=_SIGNED.replace("{k}", kernel),
            provides=(f"nvidia-kmod = {v}",),
            conflicts=("kmod-nvidia-latest-dkms", "kmod-nvidia-open-dkms"),
        )

    def suse(self, version: str) -> list[Rpm]:
        """One driver as NVIDIA's repository for SUSE has it, since DKMS builds the modules there."""
        generation = "G07" if int(version[:3]) >= 590 else "G06"
        full, g = f"{version}-1", generation
        found = [
            self._rpm(
                f"nvidia-compute-{g}",
                full,
                (f"libnvidia-ml = {version}", f"nvidia-common-{g} = {version}"),
                files=self._files(version, ("libcuda1", "libnvidia-ptxjitcompiler1")),
                scripts=_POST,
            ),
            self._rpm(
                "libnvidia-ml", full, files=self._files(version, ("libnvidia-ml1",)), scripts=_POST
            ),
            self._rpm(
                f"nvidia-compute-utils-{g}",
                full,
                (f"nvidia-compute-{g} = {version}", f"nvidia-persistenced = {version}"),
                files=self._files(version, ("nvidia-smi", "nvidia-cuda-mps")),
            ),
            self._rpm(
                f"nvidia-common-{g}",
                full,
                (f"nvidia-modprobe = {version}",),
                files=self._files(version, ("firmware-nvidia-gsp",)),
            ),
            *self._daemons(version, full),
            *self._fabric(version),
        ]
        for kind, o, other in (("open", "-open", ""), ("proprietary", "", "-open")):
            if int(version[:3]) < 575:
                found.append(self._kmp(version, kind, f"nvidia{o}-driver-{g}", other))
                continue
            files, scripts = self._dkms(version, kind, "nvidia")
            found.append(
                self._rpm(
                    f"nvidia{o}-driver-{g}",
                    full,
                    ("dkms", f"nvidia-common-{g} = {version}"),
                    files=files,
                    scripts=scripts,
                    conflicts=(f"nvidia{other}-driver-{g}",),
                )
            )
        return found

    def _kmp(self, version: str, kind: str, name: str, other: str) -> Rpm:
        """NVIDIA's modules before 575: built for one kernel, and linked for others of its service pack."""
        kernels = (KERNELS["sles"][0], platform.release())
        files: dict[str, Entry] = {}
        for kernel in kernels:
            files |= self._modules(version, kind, kernel, "updates")
        depmods = "\n".join(f"depmod {kernel} || :" for kernel in kernels)
        return self._rpm(
            f"{name}-kmp-default",
            f"{version}_k6.4.0_150600.21-1",
            (f"nvidia-common-{name[-3:]} = {version}",),
            files=files,
            scripts=_SIGNED.replace("depmod {k} || :", depmods),
            conflicts=(f"nvidia{other}-driver-{name[-3:]}-kmp-default",),
        )

    def signed(self, version: str, kernel: str) -> Rpm:
        """SUSE's signed modules of a driver, for a flavour of its kernel."""
        base, _, flavour = kernel.rpartition("-")
        return self._rpm(
            f"nvidia-open-driver-G06-signed-cuda-kmp-{flavour}",
            f"{version}_k{base.replace('-', '_')}-150600.3.85.1",
            files=self._modules(version, "open", kernel, "updates"),
            scripts=_SIGNED.replace("{k}", kernel),
            conflicts=("nvidia-open-driver-G06", "nvidia-driver-G06"),
        )

    def _modules(self, version: str, kind: str, kernel: str, folder: str) -> dict[str, Entry]:
        """Modules built here, of the sources that DKMS would build on a node."""
        sources, _ = self._dkms(version, kind, "nvidia")
        tree = self.folder / "built" / f"{version}-{kind}-{kernel}"
        _lay_out({Path(path).name: entry for path, entry in sources.items()}, tree)
        _, headers = node_packages.kernel_packages(kernel, self.builder, self.folder / "kernel")
        _lay_out(headers.files, tree / "root")
        made = ["make", "-s", "-C", str(tree), f"KERNEL_UNAME={kernel}", "modules"]
        run([*made, f"SYSSRC={tree}/root/usr/src/linux-headers-{kernel}"])
        return {
            f"usr/lib/modules/{kernel}/{folder}/{file.name}": file for file in tree.glob("*.ko")
        }

    def cuda(self) -> list[Rpm]:
        """The CUDA toolkits, with the alternatives that they make, and what brings a driver."""
        found: list[Rpm] = []
        for one in cuda_packages.packages():
            needs = tuple(dep.replace("(", "").replace(")", "") for dep in one.depends)
            found.append(
                self._rpm(
                    one.name,
                    one.version,
                    needs,
                    files=one.files,
                    scripts=_alternatives(one.scripts),
                )
            )
        return found

    def kernel(self, distribution: str) -> list[Rpm]:
        """A kernel of a distribution, and its headers as a package of their own."""
        release, version = KERNELS[distribution]
        scratch = self.folder / "kernel"
        image, headers = node_packages.kernel_packages(release, self.builder, scratch)
        name = {"amzn": "kernel6.12", "sles": "kernel-default"}.get(distribution, "kernel-core")
        devel = {"rocky": "kernel-devel", "rocky10": "kernel-devel"}.get(
            distribution, f"{name}-devel"
        )
        more = f"%post\ndepmod {release} || :\n"
        found = [
            self._rpm(name, version, files=image.files, scripts=more),
            self._rpm(devel, version, files=headers.files),
        ]
        if name == "kernel-core":
            needs = (f"kernel-devel = {version}", f"kernel-core = {version}")
            found.append(self._rpm("kernel-devel-matched", version, needs))
        return found


def _alternatives(scripts: Mapping[str, str]) -> str:
    """Scripts of a Debian package that only has to do with alternatives, as those of an rpm package."""
    lines = {
        name: [row for row in text.splitlines() if row.startswith("update-alternatives")]
        for name, text in scripts.items()
    }
    if not lines:
        return ""
    post, preun = "\n".join(lines["postinst"]), "\n".join(lines["prerm"])
    return f'%post\n{post}\n%preun\nif [ "$1" = 0 ]; then\n{preun}\nfi\n'


def _lay_out(files: Mapping[str, Entry], tree: Path) -> str:
    """Write contents below a folder; the list for ``%files``."""
    for path, entry in files.items():
        target = tree / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        content = entry.content if isinstance(entry, Program) else entry
        if isinstance(content, Link):
            target.symlink_to(content.target)
        elif isinstance(content, Path):
            shutil.copyfile(content, target)
        elif isinstance(content, bytes):
            target.write_bytes(content)
        else:
            target.write_text(str(content))
        if not target.is_symlink():
            target.chmod(0o755 if isinstance(entry, Program) else 0o644)
    return "".join(f'"/{path}"\n' for path in sorted(files))


def stream(name: str, packages: Iterable[Rpm]) -> dict[str, Any]:
    """A document of a modules.yaml: one stream of the module nvidia-driver."""
    data = {
        "name": "nvidia-driver",
        "stream": name,
        "version": 20260821,
        "context": "00000000",
        "arch": "x86_64",
        "summary": "x",
        "description": "x",
        "license": {"module": ["none"]},
        "artifacts": {
            "rpms": [f"{one.name}-{with_epoch(one.version)}.{one.arch}" for one in packages]
        },
    }
    return {"document": "modulemd", "version": 2, "data": data}
