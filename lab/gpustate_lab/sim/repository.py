"""Build the simulated packages and the signed apt repositories of nodes.

Layout below the root, flat repositories as NVIDIA's:

- ``cuda/repos/<suite>/x86_64``: NVIDIA's CUDA repository;
- ``libnvidia-container/stable/deb/amd64``: the container toolkit;
- ``mirror/<suite>``: the driver packages again, published by a company mirror under its own origin. Where sources disagree about
  NVIDIA's repository, it has the other offer: exact relations of libcuda1, and packages of tools for Ubuntu;
- ``debian/<suite>``: the distribution's driver packages;
- ``ubuntu/<suite>``: Ubuntu's archive, with pockets and components; ``esm/<suite>`` that of Ubuntu Pro;
- ``lab/<suite>``: the simulator and the kernels of the nodes;
- ``keys/gpustate-lab.asc``: the key that signs all of them.

The packages of a distribution are a part of it, and so are those of the toolkit: a part is built when a lab first
needs it, and again when a source, the compiler, the kernel or a program of NVIDIA changes. Its folders are built under
another name and renamed, and its stamp is written last. The private key is kept outside, since nodes are served
everything here.

Everything is simulated except the programs of the container toolkit, which are built from NVIDIA's Go module.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpustate.errors import LabError
from gpustate_lab import programs
from gpustate_lab.command import progress
from gpustate_lab.paths import locked, write_text
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
from gpustate_lab.spec import TOOLKITS

SUITES = ("debian12", "debian13", *ubuntu_packages.RELEASES)
TOOLKIT_PATH = "libnvidia-container/stable/deb/amd64"
KEY_PATH = "keys/gpustate-lab.asc"
#: Path of the key on a node.
NODE_KEY = "/usr/share/keyrings/gpustate-lab.asc"
#: Folder of the stamps, each with the inputs of a complete part.
STAMPS = "complete"

#: First branch of NVIDIA's repository for a distribution that is younger than others (NVIDIA/cuda-repo-management#38,
#: open since 2026-02; NVIDIA/cuda-samples#417: ubuntu2604 came in May 2026, after 595). A mirror may have the others.
FIRST_BRANCH = {"debian13": 590, "ubuntu2604": 595}
#: Folders of a distribution.
_FOLDERS = ("cuda/repos/{}", "mirror/{}", "debian/{}", "ubuntu/{}", "esm/{}", "lab/{}")
#: Name of the part with the toolkit's packages.
_TOOLKITS = "toolkits"


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
    """Build the packages of distributions below ``dest``, unless they are up to date.

    Args:
        dest: folder of the repositories; its parent must be writable too.
        suites: releases of Debian and Ubuntu, as NVIDIA writes them.
        kernel: release of the kernel nodes run; default: this machine's.
        say: called with lines of progress.

    Raises:
        LabError: a tool is missing or fails, or the folder cannot be written.
    """
    running = kernel or platform.release()
    kernels = (running, node_packages.OLDER_KERNEL)
    inputs = {"content": _content(), "kernels": list(kernels)}
    outdated = [suite for suite in suites if _inputs(dest, suite) != inputs]
    key = _signing_key(dest)
    if outdated:
        folders = [folder.format(suite) for suite in outdated for folder in _FOLDERS]
        what = f"NVIDIA's simulated packages for {', '.join(outdated)}"
        with _part(dest, outdated, inputs, folders, what, say) as part:
            _fill(part, outdated, kernels, key)
    return Repository(root=dest, key=dest / KEY_PATH, kernels=kernels)


def build_toolkits(dest: Path, versions: Sequence[str], say: Callable[[str], None]) -> None:
    """Build the packages of NVIDIA's container toolkit below ``dest``, unless they are up to date.

    Args:
        dest: folder of the repositories.
        versions: beside the newest and those that are there.
        say: called with lines of progress.

    Raises:
        LabError: a version does not exist or cannot be built, or the folder cannot be written.
    """
    there = _inputs(dest, _TOOLKITS).get("programs", {})
    toolkits = {
        version: _toolkit(toolkit_packages.module_of(version), say)
        for version in sorted({TOOLKITS[0], *versions, *(set(there) & set(TOOLKITS))})
    }
    # The version of the data files is pinned by the module.
    programs_of = {
        version: programs.identity(files.values()) for version, (files, _) in toolkits.items()
    }
    inputs = {"content": _content(), "programs": programs_of}
    key = _signing_key(dest)
    if _inputs(dest, _TOOLKITS) == inputs:
        return
    what = f"packages of container toolkit {', '.join(toolkits)}"
    with _part(dest, [_TOOLKITS], inputs, [TOOLKIT_PATH], what, say) as part:
        packages = [
            package
            for version, files in toolkits.items()
            for package in toolkit_packages.packages(version, part.builder, *files)
        ]
        part.pool.build(packages)
        origin = "nvidia.github.io/libnvidia-container"
        part.pool.publish(packages, part.root / TOOLKIT_PATH, origin, "NVIDIA CORPORATION", key)


@dataclass(frozen=True, slots=True)
class _Part:
    """A part that is being built.

    Args:
        root: in place of the repositories' folder.
        scratch: folder that is removed afterwards.
        builder: compiles its libraries and modules.
        pool: its packages.
    """

    root: Path
    scratch: Path
    builder: Builder
    pool: _Pool

    def status(self) -> str:
        total = self.pool.total
        if not total:
            return f"compiled {self.builder.count} libraries, programs and modules"
        return f"wrote {len(list(self.pool.directory.glob('*.deb')))} of {total} packages"


@contextmanager
def _part(
    dest: Path,
    names: Sequence[str],
    inputs: dict[str, Any],
    folders: Sequence[str],
    what: str,
    say: Callable[[str], None],
) -> Iterator[_Part]:
    """Replace those of ``folders`` that are built inside, then write the stamps of the parts ``names``."""
    try:
        with tempfile.TemporaryDirectory(dir=dest.parent, prefix=f".{dest.name}-") as temporary:
            scratch = Path(temporary)
            builder, pool = Builder(scratch / "native"), _Pool(scratch / "pool")
            part = _Part(scratch / "root", scratch, builder, pool)
            with progress("packages", f"building {what}", say, part.status):
                yield part
            for number, folder in enumerate(one for one in folders if (part.root / one).exists()):
                target = dest / folder
                target.parent.mkdir(parents=True, exist_ok=True)
                if target.exists():
                    os.replace(target, scratch / f"old{number}")
                os.replace(part.root / folder, target)
            for name in names:
                write_text(dest / STAMPS / f"{name}.json", json.dumps(inputs) + "\n")
    except (OSError, shutil.Error) as error:
        raise LabError(f"cannot build the simulated packages: {error}", place=str(dest)) from error


def _inputs(dest: Path, part: str) -> dict[str, Any]:
    """Return the inputs of a complete part; empty if it is not built."""
    stamp = dest / STAMPS / f"{part}.json"
    inputs: dict[str, Any] = json.loads(stamp.read_text()) if stamp.exists() else {}
    return inputs


def _signing_key(dest: Path) -> SigningKey:
    """Return the key of all parts, and write its public key where nodes get it."""
    (dest / STAMPS).mkdir(parents=True, exist_ok=True)
    with locked(dest.with_name(f"{dest.name}-key.lock"), wait_s=60, what="the lab's signing key"):
        key = SigningKey(dest.with_name(f"{dest.name}.private"))
        public = dest / KEY_PATH
        if not public.exists():
            public.parent.mkdir(exist_ok=True)
            public.write_bytes(key.public())
    return key


def _toolkit(module: str, say: Callable[[str], None]) -> tuple[dict[str, Path], dict[str, Path]]:
    """Return NVIDIA's programs of a module by name, and its other files."""
    files = programs.data_files(module, toolkit_packages.DATA, say)
    return programs.provide(module, say), {file.name: file for file in files}


def _content() -> str:
    """Return the digest of sources and compiler."""
    digest = hashlib.sha256(run(["gcc", "--version"]))
    folder = Path(__file__).parent
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(str(path.relative_to(folder)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _fill(part: _Part, suites: Sequence[str], kernels: tuple[str, str], key: SigningKey) -> None:
    root, scratch, builder, pool = part.root, part.scratch, part.builder, part.pool
    archives = {
        code: release for code, release in ubuntu_packages.RELEASES.items() if code in suites
    }
    offers = {
        offer: (
            _driver_packages(builder, relation) if set(suites) - set(archives) else [],
            ubuntu_packages.vendor_packages(builder, lean=lean) if archives else [],
        )
        for offer, relation, lean in (
            ("mirror", driver_packages.RELATIONS[0], False),
            ("cuda", driver_packages.RELATIONS[1], True),
        )
    }
    others = [
        *driver_packages.pinning(list(driver_packages.DRIVERS)),
        driver_packages.subnet_manager(),
        *dcgm_packages.packages(),
        *gpudirect_packages.packages(builder),
        *cuda_packages.packages(),
    ]
    node = [node_packages.node_package(builder)]
    lab = list(node)
    for kernel in kernels if set(suites) - set(archives) else ():
        lab += node_packages.kernel_packages(kernel, builder, scratch)
    signer = ModuleSigner(key.directory)
    wanted: dict[str, tuple[list[Package], str, str]] = {}
    for suite in suites:
        vendor = [*offers["mirror"][suite in archives], *others]
        wanted[f"mirror/{suite}"] = (vendor, "example-mirror", "example-mirror")
        if suite in archives:
            wanted[f"lab/{suite}"] = (node, "gpustate-lab", "gpustate-lab")
            continue
        archive = distribution_packages.packages(suite, builder)
        wanted[f"debian/{suite}"] = (archive, "Debian", "Debian")
        wanted[f"lab/{suite}"] = (lab, "gpustate-lab", "gpustate-lab")
    pockets = {
        code: ubuntu_archive.pockets(release, kernels[0], builder, signer, scratch)
        for code, release in archives.items()
    }
    pool.build(
        [
            *(package for packages, _, _ in wanted.values() for package in packages),
            *(
                package
                for archive in pockets.values()
                for pocket in archive
                for packages in pocket.packages.values()
                for package in packages
            ),
        ]
    )
    for path, (packages, origin, label) in wanted.items():
        pool.publish(packages, root / path, origin, label, key)
    # Files of the same names with other relations.
    other_pool = _Pool(scratch / "other-pool")
    other_pool.build([*(one for some in offers["cuda"] for one in some), *others])
    for suite in suites:
        drivers = offers["cuda"][suite in archives]
        first = FIRST_BRANCH.get(suite, 0)
        vendor = [*(one for one in drivers if int(one.version[:3]) >= first), *others]
        folder = root / f"cuda/repos/{suite}/x86_64"
        other_pool.publish(vendor, folder, "NVIDIA", "NVIDIA CUDA", key)
    for code, release in archives.items():
        for pocket in pockets[code]:
            folder = root / pocket.archive / code
            pool.publish_pocket(pocket, folder, release.codename, release.number, key)


def _driver_packages(builder: Builder, relation: str) -> list[Package]:
    packages: list[Package] = []
    naming = replace(driver_packages.VENDOR, relation=relation)
    for version, cuda_version in driver_packages.DRIVERS.items():
        drivers = driver_packages.DriverSet(version, cuda_version, naming, builder)
        packages += [*drivers.packages(), *drivers.vendor_packages()]
    return packages


class _Pool:
    """Builds each package once; repositories have hard links to it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.total = 0
        directory.mkdir()

    def build(self, packages: list[Package]) -> None:
        once = {package.file_name: package for package in packages}
        self.total = len(once)
        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
            list(pool.map(lambda one: deb.write(one, self.directory), once.values()))

    def publish(
        self, packages: list[Package], directory: Path, origin: str, label: str, key: SigningKey
    ) -> None:
        directory.mkdir(parents=True)
        for package in packages:
            os.link(self.directory / package.file_name, directory / package.file_name)
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
                    os.link(self.directory / package.file_name, files / package.file_name)
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
        "Architectures: amd64 i386",
        f"Date: {datetime.now(UTC):%a, %d %b %Y %H:%M:%S +0000}",
        "SHA256:",
    ]
    for path in indices:
        data = path.read_bytes()
        lines.append(
            f" {hashlib.sha256(data).hexdigest()} {len(data)} {path.relative_to(directory)}"
        )
    return "\n".join(lines) + "\n"
