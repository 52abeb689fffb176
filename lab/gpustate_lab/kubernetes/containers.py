"""Build container images without a registry: the pause image, one with busybox, and those of NVIDIA's programs.

They are archives for ``ctr images import``. The pause image has the default names of all containerd versions, so
that none of them must be configured. Those of NVIDIA's programs and node feature discovery have the names that the
newest GPU Operator gives them, and the lab's builds of these programs.

Sources:
    Docker Image Specification v1.2, "Combined Image JSON + Filesystem Changeset Format".
    NVIDIA/k8s-device-plugin v0.18.0, deployments/container/Dockerfile: variables, user, busybox.
    kubernetes-sigs/node-feature-discovery v0.19.0, Dockerfile: user.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpustate.errors import LabError
from gpustate.gpu_operator.objects import images
from gpustate.manifests import nfd
from gpustate_lab.command import run

#: Sandbox images of containerd 1.6 (3.6), 1.7 (3.8), 2.0 and 2.1 (3.10), 2.2 and newer (3.10.1).
PAUSE_TAGS = tuple(
    f"registry.k8s.io/pause:{tag}" for tag in ("3.6", "3.7", "3.8", "3.9", "3.10", "3.10.1")
)
#: Not ``latest``, which kubelets pull.
BUSYBOX_TAG = "docker.io/library/busybox:lab"
#: Path of Debian's static busybox in every root.
BUSYBOX = "usr/lib/gpustate-lab/busybox"

_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_LOADER = "ld-linux-x86-64.so.2"
#: The C library of an image of the lab: what NVIDIA's programs and the driver's libraries load.
C_LIBRARY = tuple(
    f"{_LIBRARIES}/{name}"
    for name in (_LOADER, "libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1")
)
_MERGED = {name: f"usr/{name}" for name in ("bin", "sbin", "lib", "lib64")}
#: The programs of NVIDIA's image that the lab builds, and what else it has from busybox.
_PLUGIN = ("nvidia-device-plugin", "gpu-feature-discovery", "config-manager")
_APPLETS = ("sh", "cat", "date", "rm", "sleep")
_NFD = ("nfd-master", "nfd-worker", "nfd-gc")
_PATH = "PATH=/bin:/usr/bin:/sbin:/usr/sbin"
_NOBODY = "65534:65534"

_PAUSE = """\
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
static void end(int number) { (void)number; _exit(0); }
static void reap(int number) { (void)number; while (waitpid(-1, 0, WNOHANG) > 0) {} }
int main(void) {
    signal(SIGINT, end);
    signal(SIGTERM, end);
    signal(SIGCHLD, reap);
    for (;;) pause();
}
"""


def make_images(folder: Path, busybox: Path) -> None:
    """Write the archives of the images into ``folder``, unless they exist.

    Args:
        busybox: a static busybox.

    Raises:
        LabError: gcc cannot build a static program.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pause = folder / "pause.tar"
    if not pause.exists():
        program = folder / ".pause"
        # Small, since it runs once per pod.
        argv = ["gcc", "-static", "-Os", "-s", "-x", "c", "-o", str(program), "-"]
        run(argv, input_text=_PAUSE)
        _write(pause, _Image(PAUSE_TAGS, {"pause": program.read_bytes()}, command=["/pause"]))
        program.unlink()
    box = folder / "busybox.tar"
    if not box.exists():
        if not busybox.exists():
            raise LabError(
                "no busybox", place=str(busybox), fix="gpustate lab down, then gpustate lab up"
            )
        applets = run([str(busybox), "--list"]).stdout.split()
        links = {f"bin/{name}": "busybox" for name in applets if name != "busybox"}
        files = {
            "bin/busybox": busybox.read_bytes(),
            "etc/passwd": b"root:x:0:0:root:/root:/bin/sh\n",
            "etc/group": b"root:x:0:\n",
        }
        _write(box, _Image((BUSYBOX_TAG,), files, links, command=["sh"]))


def make_pod_images(folder: Path, programs: Path, busybox: Path, library: Sequence[Path]) -> None:
    """Write the archives of NVIDIA's image and that of node feature discovery, unless they exist.

    Args:
        folder: of the archives.
        programs: folder of the built programs.
        busybox: a static busybox.
        library: the files of :data:`C_LIBRARY`.
    """

    def programs_of(names: Sequence[str]) -> dict[str, bytes]:
        return {f"usr/bin/{name}": (programs / name).read_bytes() for name in names}

    plugin = folder / "k8s-device-plugin.tar"
    if not plugin.exists():
        files = {name: path.read_bytes() for name, path in zip(C_LIBRARY, library, strict=True)}
        files[f"usr/lib64/{_LOADER}"] = files[f"{_LIBRARIES}/{_LOADER}"]
        files["usr/bin/busybox"] = busybox.read_bytes()
        links = {**_MERGED, **{f"usr/bin/{name}": "busybox" for name in _APPLETS}}
        gpus = ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=compute,utility")
        _write(
            plugin,
            _Image(
                (images()["devicePlugin"],),
                programs_of(_PLUGIN) | files,
                links,
                command=["nvidia-device-plugin"],
                variables=("NVIDIA_DISABLE_REQUIRE=true", *gpus),
            ),
        )
    features = folder / "node-feature-discovery.tar"
    if not features.exists():
        _write(features, _Image((nfd.image(),), programs_of(_NFD), user=_NOBODY))


@dataclass(frozen=True, slots=True)
class _Image:
    """An image of one layer.

    Args:
        tags: its names.
        files: content by path.
        links: symbolic links, target by path.
        command: the default one.
        variables: of its environment.
        user: number of user and group; empty: root.
    """

    tags: Sequence[str]
    files: Mapping[str, bytes]
    links: Mapping[str, str] = field(default_factory=dict[str, str])
    command: Sequence[str] = ()
    variables: Sequence[str] = ()
    user: str = ""


def _write(archive: Path, image: _Image) -> None:
    layer = _layer(image.files, image.links)
    digest = hashlib.sha256(layer).hexdigest()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {
            "Cmd": list(image.command),
            "Env": [_PATH, *image.variables],
            **({"User": image.user} if image.user else {}),
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    text = json.dumps(config).encode()
    name = f"{hashlib.sha256(text).hexdigest()}.json"
    manifest = [{"Config": name, "RepoTags": list(image.tags), "Layers": ["layer.tar"]}]
    fresh = archive.with_name(f".{archive.name}.new")
    with tarfile.open(fresh, "w") as tar:
        _add(tar, "layer.tar", layer)
        _add(tar, name, text)
        _add(tar, "manifest.json", json.dumps(manifest).encode())
    fresh.rename(archive)


def _layer(files: Mapping[str, bytes], links: Mapping[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        parents = {str(Path(name).parent) for name in [*files, *links]} - {"."}
        for folder in sorted({*parents, "tmp"}):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if folder == "tmp" else 0o755
            tar.addfile(entry)
        for name, content in files.items():
            _add(tar, name, content, 0o644 if name.startswith("etc/") else 0o755)
        for name, target in links.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
    return buffer.getvalue()


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))
