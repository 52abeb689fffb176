"""Build the simulated packages and the signed apt repositories of nodes.

Layout below the root, flat repositories as NVIDIA's:

- ``cuda/repos/<suite>/x86_64``: NVIDIA's CUDA repository;
- ``libnvidia-container/stable/deb/amd64``: the container toolkit;
- ``mirror/<suite>``: the driver packages again, published by a company mirror under its own origin;
- ``debian/<suite>``: the distribution's driver packages;
- ``ubuntu/<suite>``: Ubuntu's archive, with pockets and components; ``esm/<suite>`` that of Ubuntu Pro;
- ``lab/<suite>``: the simulator and the kernels of the nodes;
- ``keys/gpustate-lab.asc``: the key that signs all of them.

The folder is built under another name and renamed, so an existing one is complete. It is rebuilt when a source, the
compiler, the kernel or a program of NVIDIA changes. The private key is kept outside the folder, since the folder is
served to nodes.

Everything is simulated except the programs of the container toolkit, which are built from NVIDIA's Go module.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gpustate.errors import LabError
from gpustate_lab import programs
from gpustate_lab.sim import (
    cuda_packages,
    dcgm_packages,
    deb,
    distribution_packages,
    driver_packages,
    gpudirect_packages,
    node_packages,
    toolkit_packages,
    ubuntu_archive,
    ubuntu_packages,
)
from gpustate_lab.sim.deb import Package
from gpustate_lab.sim.native import Builder, run
from gpustate_lab.sim.signing import ModuleSigner, SigningKey
from gpustate_lab.sim.ubuntu_archive import Pocket

SUITES = ("debian12", "debian13", *ubuntu_packages.RELEASES)
TOOLKIT_PATH = "libnvidia-container/stable/deb/amd64"
KEY_PATH = "keys/gpustate-lab.asc"
#: Path of the key on a node.
NODE_KEY = "/usr/share/keyrings/gpustate-lab.asc"
STAMP = "complete.json"

#: For each toolkit version: NVIDIA's programs by name, and the other files of its module.
_Toolkits = Mapping[str, tuple[Mapping[str, Path], Mapping[str, Path]]]


@dataclass(frozen=True, slots=True)
class Repository:
    """The built repositories.

    Args:
        root: their folder, to be served or mounted.
        key: armored public key.
        kernels: the release that nodes run, and an older one.
    """

    root: Path
    key: Path
    kernels: tuple[str, str]
    driver_versions: tuple[str, ...] = tuple(driver_packages.DRIVERS)

    def image_packages(self, suite: str) -> tuple[str, ...]:
        """Packages of an image, deliberately with headers of the running kernel only."""
        running, older = self.kernels
        if suite in ubuntu_packages.RELEASES:
            older = ubuntu_packages.RELEASES[suite].kernels[0]
        return (
            "gpustate-lab-node",
            node_packages.image_package(running),
            node_packages.headers_package(running),
            node_packages.image_package(older),
        )

    def path(self, kind: str, suite: str) -> str:
        """Return the path of a repository below the root: cuda, toolkit, mirror, debian or lab.

        Raises:
            LabError: the kind is unknown, or has no repository for the suite.
        """
        paths = {
            "cuda": f"cuda/repos/{suite}/x86_64",
            "toolkit": TOOLKIT_PATH,
            "mirror": f"mirror/{suite}",
            "debian": f"debian/{suite}",
            "lab": f"lab/{suite}",
        }
        if kind not in paths or not (self.root / paths[kind]).is_dir():
            raise LabError(f"no {kind} repository for {suite!r} in {self.root}")
        return paths[kind]

    def sources(
        self, suite: str, base_url: str, *, include: Sequence[str] = ("cuda", "toolkit", "lab")
    ) -> dict[str, str]:
        """Return the apt source files of a node and their key, as text by path."""
        files = {NODE_KEY: self.key.read_text(encoding="utf-8")}
        base = base_url.rstrip("/")
        release = ubuntu_packages.RELEASES.get(suite)
        if release is not None:
            files |= ubuntu_archive.sources(release, base, NODE_KEY)
        for kind in include:
            line = f"deb [signed-by={NODE_KEY}] {base}/{self.path(kind, suite)}/ /\n"
            files[f"/etc/apt/sources.list.d/gpustate-lab-{kind}.list"] = line
        return files


def build(
    dest: Path,
    *,
    suites: Sequence[str] = SUITES,
    kernel: str | None = None,
    say: Callable[[str], None] = print,
) -> Repository:
    """Build everything below ``dest``, unless it is up to date.

    Args:
        dest: folder of the repositories; its parent must be writable too.
        suites: releases of Debian and Ubuntu, as NVIDIA writes them.
        kernel: release of the kernel nodes run; default: this machine's.
        say: called with lines of progress while NVIDIA's programs are built.

    Raises:
        LabError: a tool is missing or fails, or the folder cannot be written.
    """
    running = kernel or platform.release()
    kernels = (running, node_packages.OLDER_KERNEL)
    repository = Repository(root=dest, key=dest / KEY_PATH, kernels=kernels)
    toolkits = {
        version: _toolkit(toolkit_packages.module_of(version), say)
        for version in toolkit_packages.VERSIONS
    }
    stamp = {"content": _content(toolkits), "kernels": list(kernels), "suites": list(suites)}
    try:
        if (dest / STAMP).exists() and json.loads((dest / STAMP).read_text()) == stamp:
            return repository
        dest.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=dest.parent, prefix=f".{dest.name}-") as scratch:
            fresh = Path(scratch) / "root"
            fresh.mkdir(mode=0o755)
            key = SigningKey(dest.with_name(f"{dest.name}.private"))
            _fill(fresh, Path(scratch), suites, kernels, toolkits, key)
            (fresh / STAMP).write_text(json.dumps(stamp) + "\n")
            if dest.exists():
                os.replace(dest, Path(scratch) / "old")
            os.replace(fresh, dest)
    except (OSError, shutil.Error) as error:
        raise LabError(f"cannot build the simulated packages: {error}", place=str(dest)) from error
    return repository


def _toolkit(module: str, say: Callable[[str], None]) -> tuple[dict[str, Path], dict[str, Path]]:
    """Return NVIDIA's programs of a module by name, and its other files."""
    files = programs.data_files(module, toolkit_packages.DATA, say)
    return programs.provide(module, say), {file.name: file for file in files}


def _content(toolkits: _Toolkits) -> str:
    """Return the digest of all inputs: sources, compiler, NVIDIA's programs."""
    digest = hashlib.sha256(run(["gcc", "--version"]))
    # The version of the data files is pinned by the module.
    for found, _ in toolkits.values():
        digest.update(programs.identity(found.values()).encode())
    folder = Path(__file__).parent
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _fill(
    root: Path,
    scratch: Path,
    suites: Sequence[str],
    kernels: tuple[str, str],
    toolkits: _Toolkits,
    key: SigningKey,
) -> None:
    builder = Builder(scratch / "native")
    pool = _Pool(scratch / "pool")
    debian = [package for one in _driver_sets(builder) for package in one]
    ubuntu = ubuntu_packages.vendor_packages(builder)
    others = [
        *driver_packages.pinning(list(driver_packages.DRIVERS)),
        driver_packages.subnet_manager(),
        *dcgm_packages.packages(),
        *gpudirect_packages.packages(builder),
        *cuda_packages.packages(),
    ]
    node = [node_packages.node_package(builder)]
    lab = list(node)
    for release in kernels:
        lab += node_packages.kernel_packages(release, builder, scratch)
    toolkit = [
        package
        for version, found in toolkits.items()
        for package in toolkit_packages.packages(version, builder, *found)
    ]
    wanted = {
        f"{TOOLKIT_PATH}": (toolkit, "nvidia.github.io/libnvidia-container", "NVIDIA CORPORATION")
    }
    signer = ModuleSigner(key.directory)
    archives = {
        code: ubuntu_archive.pockets(release, kernels[0], builder, signer, scratch)
        for code, release in ubuntu_packages.RELEASES.items()
        if code in suites
    }
    for suite in suites:
        vendor = [*(ubuntu if suite in archives else debian), *others]
        wanted[f"cuda/repos/{suite}/x86_64"] = (vendor, "NVIDIA", "NVIDIA CUDA")
        wanted[f"mirror/{suite}"] = (vendor, "example-mirror", "example-mirror")
        if suite in archives:
            wanted[f"lab/{suite}"] = (node, "gpustate-lab", "gpustate-lab")
            continue
        archive = distribution_packages.packages(suite, builder)
        wanted[f"debian/{suite}"] = (archive, "Debian", "Debian")
        wanted[f"lab/{suite}"] = (lab, "gpustate-lab", "gpustate-lab")
    pockets = [pocket for found in archives.values() for pocket in found]
    pool.build([package for packages, _, _ in wanted.values() for package in packages])
    pool.build([one for pocket in pockets for part in pocket.packages.values() for one in part])
    for path, (packages, origin, label) in wanted.items():
        pool.publish(packages, root / path, origin, label, key)
    for code, found in archives.items():
        ubuntu_release = ubuntu_packages.RELEASES[code]
        for pocket in found:
            folder = root / pocket.archive / code
            pool.publish_pocket(pocket, folder, ubuntu_release.codename, ubuntu_release.number, key)
    (root / KEY_PATH).parent.mkdir()
    (root / KEY_PATH).write_bytes(key.public())


def _driver_sets(builder: Builder) -> list[list[Package]]:
    sets = []
    for version, cuda_version in driver_packages.DRIVERS.items():
        one = driver_packages.DriverSet(version, cuda_version, driver_packages.VENDOR, builder)
        sets.append([*one.packages(), *one.vendor_packages()])
    return sets


class _Pool:
    """Builds each package once; repositories have hard links to it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir()

    def build(self, packages: list[Package]) -> None:
        once = {package.file_name: package for package in packages}
        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
            list(pool.map(lambda one: deb.write(one, self._directory), once.values()))

    def publish(
        self, packages: list[Package], directory: Path, origin: str, label: str, key: SigningKey
    ) -> None:
        directory.mkdir(parents=True)
        for package in packages:
            os.link(self._directory / package.file_name, directory / package.file_name)
        indices = deb.write_index(packages, directory)
        self._sign(directory, _release(directory, indices, origin, label), key)

    def publish_pocket(
        self, pocket: Pocket, archive: Path, codename: str, number: str, key: SigningKey
    ) -> None:
        """Publish a pocket with its components, and its files in the archive's pool."""
        directory = archive / "dists" / pocket.suite
        indices: list[Path] = []
        for component in ubuntu_archive.COMPONENTS:
            packages = pocket.packages.get(component, [])
            files = archive / "pool" / component
            files.mkdir(parents=True, exist_ok=True)
            for package in packages:
                if not (files / package.file_name).exists():
                    os.link(self._directory / package.file_name, files / package.file_name)
            folder = directory / component / "binary-amd64"
            folder.mkdir(parents=True)
            indices += deb.write_index(packages, folder, files, f"pool/{component}")
        fields = (
            f"Suite: {pocket.suite}",
            f"Codename: {codename}",
            f"Version: {number}",
            f"Components: {' '.join(ubuntu_archive.COMPONENTS)}",
        )
        self._sign(
            directory, _release(directory, indices, pocket.origin, pocket.origin, fields), key
        )

    @staticmethod
    def _sign(directory: Path, release: str, key: SigningKey) -> None:
        (directory / "Release").write_text(release, encoding="utf-8")
        (directory / "InRelease").write_bytes(key.clearsign(release.encode()))
        (directory / "Release.gpg").write_bytes(key.detached(release.encode()))


def _release(
    directory: Path, indices: list[Path], origin: str, label: str, fields: Sequence[str] = ()
) -> str:
    lines = [
        f"Origin: {origin}",
        f"Label: {label}",
        *fields,
        "Architectures: amd64",
        f"Date: {datetime.now(UTC):%a, %d %b %Y %H:%M:%S +0000}",
        "SHA256:",
    ]
    for path in indices:
        data = path.read_bytes()
        lines.append(
            f" {hashlib.sha256(data).hexdigest()} {len(data)} {path.relative_to(directory)}"
        )
    return "\n".join(lines) + "\n"
