"""Debian's own archive with its real packages, of which only what faces hardware is replaced.

This machine's apt fetches today's indexes and the packages of a compute driver, with Debian's signatures checked. Of the
packages in :data:`REPLACED` the module sources, libraries and programs that need a GPU are those of :mod:`gpustate_lab.sim`;
control fields, maintainer scripts, versions, ``dkms.conf``, units and all other files stay. All other packages are
untouched. The result is published in the layout of Debian's mirrors, signed with the lab's key. Of ``main`` the indexes
have only what a driver installs.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from gpustate.formats.dpkg import version_key
from gpustate_lab.command import progress, run
from gpustate_lab.paths import locked, repository_dir, write_text
from gpustate_lab.sim.deb import Package, Program
from gpustate_lab.sim.distribution_packages import OPEN_DKMS
from gpustate_lab.sim.driver_packages import DriverSet, Naming
from gpustate_lab.sim.native import Builder
from gpustate_lab.sim.repository import KEY_PATH, NODE_KEY, STAMPS
from gpustate_lab.sim.signing import SigningKey

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
MIRROR = "http://deb.debian.org"
SUITES = {"debian12": "bookworm", "debian13": "trixie"}
COMPONENTS = ("main", "contrib", "non-free", "non-free-firmware")
#: CUDA version of each branch (NVIDIA CUDA release notes).
_CUDA = {"535": 12020, "550": 12040}
MODULES = ("nvidia-kernel-dkms", OPEN_DKMS)
#: Packages with replaced files; their dependencies are untouched.
REPLACED = (
    *MODULES,
    *("libcuda1", "libnvidia-ml1", "nvidia-smi", "nvidia-cuda-mps"),
    *("nvidia-persistenced", "nvidia-modprobe"),
)
#: Libraries that NVIDIA's drivers bring, and that a move back to the archive takes from it; Debian 12 has not all of them.
LIBRARIES = ("libnvidia-nvvm4", "libnvidia-gpucomp")
_PACKAGES = "_binary-amd64_Packages"


def source_lines(image: str, base_url: str, keyring: str) -> str:
    """Return apt's sources of a release of Debian with security updates and all components."""
    suite, components = SUITES[image], " ".join(COMPONENTS)
    return "".join(
        f"deb [signed-by={keyring}] {base_url}/{path} {components}\n"
        for path in (f"debian {suite}", f"debian-security {suite}-security")
    )


def sources(image: str, base_url: str) -> dict[str, str]:
    """Return apt's sources and key of a node, as text by path; ``base_url`` is that of the lab's packages."""
    key = repository_dir() / KEY_PATH
    url = f"{base_url.rstrip('/')}/{_folder(image).name}"
    return {NODE_KEY: key.read_text(), "/etc/apt/sources.list": source_lines(image, url, NODE_KEY)}


def publish(image: str, status: Path, say: Callable[[str], None] = print) -> None:
    """Publish the archive of a release of Debian in the lab's repositories.

    Args:
        image: ``debian12`` or ``debian13``.
        status: dpkg's database of a node with that image.
        say: called with lines of progress.

    Raises:
        LabError: Debian's archive cannot be read, or a package cannot be built.
    """
    target = _folder(image)
    lock = target.with_name(f".{target.name}.lock")
    with (
        locked(lock, wait_s=600, what="the packages of Debian's archive"),
        tempfile.TemporaryDirectory(dir=target.parent, prefix=".debian-") as temporary,
        progress(target.name, "building Debian's archive", say, lambda: "packing"),
    ):
        scratch = Path(temporary)
        downloads = target.parent.parent / "downloads" / target.name
        environment = _configure(image, status, downloads, scratch)
        run(["apt-get", "-q", "update"], env=environment, timeout_s=300)
        releases = sorted(downloads.glob("lists/*_InRelease"))
        inputs = hashlib.sha256(Path(__file__).read_bytes())
        for file in (target.parent / STAMPS / f"{image}.json", *releases):
            inputs.update(file.read_bytes())
        stamp = target.parent / STAMPS / target.name
        if target.exists() and stamp.exists() and stamp.read_text() == inputs.hexdigest():
            return
        archives = _download(environment, downloads, scratch)
        builder, root = Builder(scratch / "native"), scratch / "root"
        of_libraries = {file.name.split("_")[1] for file in archives.glob("libcuda1_*.deb")}
        for file in archives.glob("*.deb"):
            name, version, _ = file.name.split("_")
            if name in REPLACED:
                if name not in MODULES and version not in of_libraries:
                    # Programs of other versions reach the modules by the driver's libraries.
                    version = max(of_libraries, key=version_key)
                _replace_files(file, version, builder, scratch / "package")
        key = SigningKey(target.parent.with_name(f"{target.parent.name}.private"))
        for release in releases:
            _publish_suite(release, archives, root, key)
        if target.exists():
            os.replace(target, scratch / "old")
        os.replace(root, target)
        write_text(stamp, inputs.hexdigest())


def _folder(image: str) -> Path:
    return repository_dir() / f"archive-{image}"


def _configure(image: str, status: Path, downloads: Path, scratch: Path) -> dict[str, str]:
    """Return the environment of an apt that reads Debian's archive for a node and keeps its downloads."""
    for path in (
        scratch / "etc/preferences.d",
        scratch / "etc/apt.conf.d",
        scratch / "etc/sources.list.d",
        downloads / "lists/partial",
        downloads / "archives/partial",
    ):
        path.mkdir(parents=True, exist_ok=True)
    (scratch / "etc/sources.list").write_text(source_lines(image, MIRROR, KEYRING))
    configuration = scratch / "apt.conf"
    configuration.write_text(
        f'Dir::Etc "{scratch}/etc"; Dir::State "{downloads}"; Dir::Cache "{downloads}";\n'
        f'Dir::State::status "{status}"; APT::Sandbox::User "root"; APT::Install-Recommends "false";\n'
        'APT::Architecture "amd64"; APT::Architectures { "amd64"; };\n'
        'Acquire::Languages "none"; Acquire::GzipIndexes "false"; APT::Update::Error-Mode "any";\n'
    )
    return {**os.environ, "APT_CONFIG": str(configuration)}


def _download(environment: Mapping[str, str], downloads: Path, scratch: Path) -> Path:
    """Fetch the packages of a driver with each kind of modules that can be installed; return a copy of their folder."""
    common = [name for name in REPLACED if name not in MODULES]

    def fetch(*names: str, check: bool = False) -> None:
        words = ["apt-get", "-qq", "-y", "--download-only", "install", *names]
        run(words, env=environment, timeout_s=500, check=check)

    fetch(*MODULES[:1], *common, check=True)
    # Open modules of Debian 12 are older than its security updates: the whole set is installed in their version.
    shown = run(["apt-cache", "show", OPEN_DKMS], env=environment).stdout
    (version, *_) = re.findall(r"^Version: (.+)$", shown, re.M)
    pin = scratch / "etc/preferences.d/open"
    pin.write_text(
        f"Package: src:nvidia-graphics-drivers:any\nPin: version {version}\nPin-Priority: 1001\n"
    )
    fetch(OPEN_DKMS, *common)
    pin.unlink()
    for name in LIBRARIES:
        fetch(name)
    archives = scratch / "archives"
    shutil.copytree(
        downloads / "archives", archives, ignore=shutil.ignore_patterns("partial", "lock")
    )
    return archives


def _replace_files(file: Path, version: str, builder: Builder, folder: Path) -> None:
    """Replace what faces hardware in a package, with the lab's file of the same name for a driver's version."""
    name = file.name.partition("_")[0]
    driver = re.split("[-+~]", version)[0]
    naming = Naming(version.removeprefix(driver), OPEN_DKMS)
    simulated = DriverSet(driver, _CUDA.get(driver[:3], 0), naming, builder).packages()
    (package,) = (package for package in simulated if package.name == name)
    run(["dpkg-deb", "-R", str(file), str(folder)])
    if name in MODULES:
        _replace_sources(package, folder)
    for path, entry in package.files.items():
        if isinstance(entry, Program | Path):
            content = entry.content if isinstance(entry, Program) else entry
            data = content.read_bytes() if isinstance(content, Path) else content.encode()
            places = [place for place in (folder / "usr").rglob(Path(path).name) if place.is_file()]
            own = "gpustate-lab" in path
            for place in [folder / path] if own else places:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(data)
                place.chmod(place.stat().st_mode | 0o755 if isinstance(entry, Program) else 0o644)
    sums = "".join(
        f"{hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()}  {path.relative_to(folder)}\n"
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and not path.is_symlink()
        and path.relative_to(folder).parts[0] != "DEBIAN"
    )
    (folder / "DEBIAN/md5sums").write_text(sums)
    run(["dpkg-deb", "-Zgzip", "-z1", "--root-owner-group", "-b", str(folder), str(file)])
    shutil.rmtree(folder)


def _replace_sources(package: Package, folder: Path) -> None:
    (sources,) = (folder / "usr/src").iterdir()
    for path in sources.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "dkms.conf":
            path.unlink()
    for name, entry in package.files.items():
        if not name.endswith("/dkms.conf"):
            assert isinstance(entry, str)
            (sources / Path(name).name).write_text(entry)


def _publish_suite(release: Path, archives: Path, root: Path, key: SigningKey) -> None:
    """Publish one suite: its indexes with the changed packages, and its re-signed Release file."""
    stem = release.name.removesuffix("InRelease")
    archive, suite = re.fullmatch(r"deb\.debian\.org_(.+)_dists_(.+)_", stem).groups()  # type: ignore[union-attr]
    suite_folder = root / archive / "dists" / suite
    sums: list[str] = []
    for component in COMPONENTS:
        index = release.with_name(f"{stem}{component}{_PACKAGES}")
        text = index.read_text() if index.exists() else ""
        entries = [
            f"{entry}\n"
            for stanza in text.split("\n\n")
            if stanza.strip() and (entry := _entry(stanza, component, archives, root / archive))
        ]
        plain = "\n".join(entries).encode()
        folder = suite_folder / component / "binary-amd64"
        folder.mkdir(parents=True)
        for name, data in {"Packages": plain, "Packages.gz": gzip.compress(plain)}.items():
            (folder / name).write_bytes(data)
            sums.append(
                f" {hashlib.sha256(data).hexdigest()} {len(data)} {component}/binary-amd64/{name}\n"
            )
    fields = re.findall(
        r"^(?:Origin|Label|Suite|Version|Codename|Date|Architectures|Components): .*\n",
        release.read_text(),
        re.M,
    )
    text = f"{''.join(fields)}SHA256:\n{''.join(sums)}"
    (suite_folder / "Release").write_text(text)
    (suite_folder / "InRelease").write_bytes(key.clearsign(text.encode()))


def _entry(stanza: str, component: str, archives: Path, root: Path) -> str | None:
    """Return a package's entry in the index, after its file was put into the pool; nothing for the rest of main."""
    fields = dict(re.findall(r"^(\S+): (.*)$", stanza, re.M))
    version = fields["Version"].replace(":", "%3a")
    file = archives / f"{fields['Package']}_{version}_{fields['Architecture']}.deb"
    if not file.exists():
        return None if component == "main" else stanza.strip("\n")
    target = root / fields["Filename"]
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        os.link(file, target)
    data = file.read_bytes()
    stanza = re.sub(r"^(MD5sum|SHA1|SHA256|Size): .*\n?", "", stanza, flags=re.M)
    return f"{stanza.strip()}\nSize: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}"
