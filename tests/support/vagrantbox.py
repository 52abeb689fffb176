"""A Vagrant box of Debian 12 made on the spot, and the packages that its machine installs.

Real: Debian's own kernel with its nouveau, GRUB, initramfs-tools, ifupdown, sshd, DKMS, gcc and the
kernel's headers. Simulated: NVIDIA's packages, as in :mod:`vmpackages`, and the container toolkit's.

Nothing is fetched while a machine runs. What it installs lies in a folder of three signed apt
repositories, which stands for the archive of Debian, NVIDIA's CUDA repository and libnvidia-container.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import vmpackages

from gpustate_lab import images, paths, simulation
from gpustate_lab.command import run
from gpustate_lab.sim.signing import SigningKey

GUEST = Path(__file__).with_name("vagrantguest")
#: As ``vagrant/Vagrantfile`` asks for it.
NAME = "cloud-image/debian-12"
#: This machine's address in the private network of ``vagrant/Vagrantfile``.
GATEWAY = "192.168.56.1"
PORT = 8080
COMPLETE = "complete"
ARCHIVE, DRIVER, TOOLKIT = "debian", "nvidia", "toolkit"


@dataclass(frozen=True, slots=True)
class Box:
    """A box and its packages.

    Args:
        file: for ``vagrant box add``.
        www: the folder to be served at :data:`PORT` of :data:`GATEWAY`.
    """

    file: Path
    www: Path

    def variables(self) -> str:
        """``group_vars`` that name the repositories, as a site with a mirror of its own has them."""
        repositories = {
            "driver-repository": (DRIVER, vmpackages.KEY),
            "toolkit-repository": (TOOLKIT, vmpackages.KEY),
        }
        states = {
            state: {"origin": "mirror", "url": url(folder), "key": str(self.www / folder / key)}
            for state, (folder, key) in repositories.items()
        }
        return json.dumps({"gpustate": states}, indent=2) + "\n"


def url(folder: str) -> str:
    return f"http://{GATEWAY}:{PORT}/{folder}/"


def vagrant_key() -> Path:
    """The public key that every fresh box takes, of the Vagrant that is installed."""
    listed = run(["dpkg-query", "-L", "vagrant"]).stdout.split()
    return next(Path(path) for path in listed if path.endswith("/keys/vagrant.pub"))


def prepare() -> Box:
    """Build what is missing in the lab's cache."""
    simulated = simulation.build_repository(paths.repository_dir(), ["debian12"], print)
    simulation.build_toolkits(paths.repository_dir(), (), print)
    toolkit = simulated.root / simulated.path("toolkit", "debian12")
    sources = [GUEST / "box.sh", vmpackages.BOOT_DISK, *sorted(vmpackages.GUEST.rglob("*.*"))]
    sources += [Path(vmpackages.__file__), Path(__file__)]
    parts = [url(ARCHIVE), (toolkit / "Packages").read_text()]
    parts += [path.read_text() for path in sources]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
    target = paths.cache_dir() / "machines" / f"box@{digest}"
    with paths.locked(paths.cache_dir() / "locks" / "box.lock", wait_s=1800, what="the box"):
        if not (target / COMPLETE).exists():
            began = time.monotonic()
            for old in target.parent.glob("box@*"):
                shutil.rmtree(old)
            target.mkdir(parents=True)
            try:
                _build(target, toolkit, simulated.key)
            except BaseException:
                shutil.rmtree(target)
                raise
            (target / COMPLETE).touch()
            print(f"box {NAME}: built in {time.monotonic() - began:.0f} s")
    return Box(target / "debian-12.box", target / "www")


def _build(folder: Path, toolkit: Path, toolkit_key: Path) -> None:
    www = folder / "www"
    www.mkdir()
    vmpackages.build_repository(www / DRIVER, services=True)
    (www / f"{DRIVER}.private").rename(folder / "private")
    shutil.copytree(toolkit, www / TOOLKIT)
    shutil.copy(toolkit_key, www / TOOLKIT / vmpackages.KEY)

    made = folder / "made"
    made.mkdir()
    downloads = paths.cache_dir() / "downloads" / "box"
    program = [*images.NAMESPACES, "sh", str(GUEST / "box.sh"), str(made), str(downloads)]
    words = [str(vagrant_key()), str(www / DRIVER / vmpackages.KEY), url(ARCHIVE)]
    run([*program, *words], timeout_s=1200, log=folder / "log")
    (made / "debs").rename(www / ARCHIVE)
    vmpackages.sign(www / ARCHIVE, _index(www / ARCHIVE), SigningKey(folder / "private"))

    description = run(["qemu-img", "info", "--output=json", str(made / "box.img")]).stdout
    size_gib = json.loads(description)["virtual-size"] >> 30
    metadata = {"provider": "libvirt", "format": "qcow2", "virtual_size": size_gib}
    (made / "metadata.json").write_text(json.dumps(metadata) + "\n")
    names = ["metadata.json", "box.img"]
    run(["tar", "-C", str(made), "-cf", str(folder / "debian-12.box"), *names], timeout_s=300)
    shutil.rmtree(made)


def _index(folder: Path) -> list[Path]:
    """Write the index of a flat repository of packages that others built."""
    entries = []
    for path in sorted(folder.glob("*.deb")):
        data = path.read_bytes()
        control = subprocess.run(
            ["dpkg-deb", "--field", path], capture_output=True, text=True, check=True
        ).stdout
        entries.append(
            f"{control.rstrip()}\nFilename: ./{path.name}\nSize: {len(data)}\n"
            f"SHA256: {hashlib.sha256(data).hexdigest()}\n"
        )
    text = "\n".join(entries).encode()
    plain, packed = folder / "Packages", folder / "Packages.gz"
    plain.write_bytes(text)
    packed.write_bytes(gzip.compress(text, mtime=0))
    return [plain, packed]
