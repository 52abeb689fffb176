"""Build container images without a registry: the pause image, and one with busybox for tests.

They are archives for ``ctr images import``. The pause image has the default names of all containerd versions, so
that none of them must be configured.

Source: Docker Image Specification v1.2, "Combined Image JSON + Filesystem Changeset Format".
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpustate.errors import LabError
from gpustate_lab.command import run

#: Sandbox images of containerd 1.6 (3.6), 1.7 (3.8), 2.0 and 2.1 (3.10), 2.2 and newer (3.10.1).
PAUSE_TAGS = tuple(
    f"registry.k8s.io/pause:{tag}" for tag in ("3.6", "3.7", "3.8", "3.9", "3.10", "3.10.1")
)
#: Not ``latest``, which kubelets pull.
BUSYBOX_TAG = "docker.io/library/busybox:lab"
#: Path of Debian's static busybox in the layer of ``kubernetes.sh``.
BUSYBOX = "usr/lib/gpustate-lab/busybox"

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
        _write(pause, PAUSE_TAGS, ["/pause"], {"pause": program.read_bytes()}, {})
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
        _write(box, (BUSYBOX_TAG,), ["sh"], files, links)


def _write(
    archive: Path,
    tags: Sequence[str],
    command: Sequence[str],
    files: Mapping[str, bytes],
    links: Mapping[str, str],
) -> None:
    layer = _layer(files, links)
    digest = hashlib.sha256(layer).hexdigest()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Cmd": list(command), "Env": ["PATH=/bin:/usr/bin:/sbin:/usr/sbin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    text = json.dumps(config).encode()
    name = f"{hashlib.sha256(text).hexdigest()}.json"
    manifest = [{"Config": name, "RepoTags": list(tags), "Layers": ["layer.tar"]}]
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
