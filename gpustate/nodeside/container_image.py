"""Build a small container image of this node's own Python, without a registry and without NVIDIA's files.

The image has only what :mod:`container_inside` needs: the interpreter, the modules that it loads, their
libraries, and the test programs. So every file of the driver in its container was injected. It is built in
memory, in the format of ``docker save``, which ``docker load`` and ``podman load`` read. By itself it waits, as a pause image does.

Surprising: the dynamic loader lists the libraries. With ``LD_TRACE_LOADED_OBJECTS`` it prints what it would
map, for the interpreter and for extension modules in ``LD_PRELOAD``, and starts nothing, as for ldd(1).

Standard library only, Python 3.9.

Sources:
    ld.so(8): LD_TRACE_LOADED_OBJECTS, LD_PRELOAD; ldd(1).
    moby/moby, image/spec/v1.2.md, "Combined Image JSON + Filesystem Changeset Format".
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

#: Folder of the test programs in the image.
FOLDER = "/gpustate/nodeside"
PROGRAMS = ("container_inside.py", "cuda_validation.py")
#: Parts of the C library that the driver's libraries need; every real image has them.
C_LIBRARY = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1")
#: Folders that are links where /usr is merged.
_TOP_LINKS = ("/bin", "/sbin", "/lib", "/lib64", "/lib32", "/libx32")

_LIST = """import base64, importlib.machinery, importlib.util, json, marshal, sys
sys.path.insert(0, sys.argv[1])
import gpustate.nodeside.container_inside
header = importlib.util.MAGIC_NUMBER + bytes(12 if sys.version_info >= (3, 7) else 8)
files = {}
for name, module in list(sys.modules.items()):
    file, loader = getattr(module, "__file__", None), getattr(module, "__loader__", None)
    if file:
        source = isinstance(loader, importlib.machinery.SourceFileLoader)
        code = header + marshal.dumps(loader.get_code(name)) if source else b""
        files[file] = base64.b64encode(code).decode()
print(json.dumps(files))
"""
_LOADED = re.compile(r"^\s*(?:(\S+) => )?(/\S+) \(0x[0-9a-f]+\)$")


class ImageError(Exception):
    """This node's Python cannot be put into an image."""


def _run(argv: list[str], **environment: str) -> str:
    try:
        process = subprocess.run(
            argv,
            env={"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C", **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ImageError(f"{argv[0]}: {error}") from None
    if process.returncode != 0:
        last = process.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or ["no output"]
        raise ImageError(f"{argv[0]} exited with {process.returncode}: {last[0]}")
    return process.stdout.decode("utf-8", "replace")


def modules(root: str) -> dict[str, bytes]:
    """Files of every module of Python that the test programs load, with their byte code, empty where there is none.

    Args:
        root: folder or zip file with the test programs.
    """
    text = _run([sys.executable, "-I", "-S", "-B", "-c", _LIST, root])
    files: dict[str, str] = json.loads(text)
    return {
        name: base64.b64decode(code) for name, code in files.items() if not name.startswith(root)
    }


def libraries(interpreter: str, extensions: Iterable[str]) -> dict[str, str]:
    """Libraries that the loader maps, itself included: path in the image (:func:`merged`) to file on this node.

    Raises:
        ImageError: the interpreter is static, or the loader's output cannot be parsed.
    """
    preload = ":".join((*extensions, *C_LIBRARY))
    text = _run([interpreter], LD_TRACE_LOADED_OBJECTS="1", LD_PRELOAD=preload)
    mapped: dict[str, str] = {}
    for line in text.splitlines():
        match = _LOADED.match(line)
        if match is None or match[2] in extensions:
            continue
        name = match[1] or match[2]
        name = name if name.startswith("/") else f"{os.path.dirname(match[2])}/{name}"
        mapped[merged(name)] = os.path.realpath(match[2])
    if not any("/ld" in name for name in mapped):
        raise ImageError(f"the dynamic loader lists no libraries for {interpreter}")
    return mapped


def merged(path: str) -> str:
    """A path without a link of the top folder: /lib/x is /usr/lib/x where /lib is a link."""
    top, slash, tail = path[1:].partition("/")
    return f"{os.path.realpath('/' + top)}{slash}{tail}" if slash else path


def _layer(files: Mapping[str, str | bytes], links: Mapping[str, str]) -> bytes:
    """A tar of files (path in the image to path here, or content) and links, with every folder before its content."""
    links = {name: os.readlink(name) for name in _TOP_LINKS if os.path.islink(name)} | dict(links)
    buffer = io.BytesIO()
    folders: set[str] = {"."}
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:

        def folder(name: str, mode: int = 0o755) -> None:
            if name in folders or not name:
                return
            folder(os.path.dirname(name))
            folders.add(name)
            info = tarfile.TarInfo(name)
            info.type, info.mode = tarfile.DIRTYPE, mode
            tar.addfile(info)

        for name in ("proc", "sys", "dev", "run", "etc", "usr/bin"):
            folder(name)
        folder("tmp", 0o1777)
        for name, target in sorted(links.items()):
            info = tarfile.TarInfo(name.lstrip("/"))
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
        for name, place in sorted(files.items()):
            data = place if isinstance(place, bytes) else Path(place).read_bytes()
            folder(os.path.dirname(name.lstrip("/")))
            info = tarfile.TarInfo(name.lstrip("/"))
            executable = not isinstance(place, bytes) and os.access(place, os.X_OK)
            info.size, info.mode = len(data), 0o755 if executable else 0o644
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def make(reference: str) -> tuple[bytes, list[str]]:
    """The image under a name, and the command line to run in it.

    Raises:
        ImageError: a part of this node's Python cannot be found or read.
    """
    programs = Path(__file__).resolve().parent
    loader: Any = sys.modules[__name__].__loader__
    interpreter = os.path.realpath(sys.executable)
    # Without byte code each process in the container would compile the library again.
    files: dict[str, str | bytes] = {}
    extensions = []
    for name, code in modules(str(programs.parents[1])).items():
        files[merged(f"{name}c" if code else name)] = code or name
        if name.endswith(".so"):
            extensions.append(name)
    files |= libraries(interpreter, extensions)
    files[interpreter] = interpreter
    for name in PROGRAMS:
        files[f"{FOLDER}/{name}"] = loader.get_data(str(programs / name))
    command = [interpreter, "-I", "-S", "-B", f"{FOLDER}/container_inside.py"]
    pause = [*command[:-1], "-c", "import signal; signal.pause()"]
    return archive(reference, files, {}, pause), command


def archive(
    reference: str,
    files: Mapping[str, str | bytes],
    links: Mapping[str, str],
    command: Sequence[str],
) -> bytes:
    """An image of some files: path in the image to path here, or content.

    Args:
        reference: the image's name and tag.
        links: path in the image to target, beside the top folders that are links here.
        command: what a container runs by itself.

    Raises:
        ImageError: a file cannot be read.
    """
    try:
        layer = _layer(files, links)
    except OSError as error:
        raise ImageError(str(error)) from None
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)
    digest = hashlib.sha256(layer).hexdigest()
    config = {
        "architecture": machine,
        "os": "linux",
        "config": {"Env": ["PATH=/usr/bin:/bin"], "Cmd": list(command)},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        # A runtime removes all names of an image id: no other image, not even of the same files, has this one's.
        "history": [{"created_by": f"gpustate {uuid.uuid4()}"}],
    }
    text = json.dumps(config).encode()
    name = f"{hashlib.sha256(text).hexdigest()}.json"
    manifest = [{"Config": name, "RepoTags": [reference], "Layers": [f"{digest}/layer.tar"]}]
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path, data in (
            (name, text),
            (f"{digest}/layer.tar", layer),
            ("manifest.json", json.dumps(manifest).encode()),
        ):
            info = tarfile.TarInfo(path)
            info.size, info.mode = len(data), 0o644
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def parts(archive: bytes) -> tuple[bytes, bytes]:
    """The configuration and the layer of an image of :func:`make`."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as outer:
        files = [outer.extractfile(name) for name in outer.getnames()]
        config, layer, _ = (file.read() for file in files if file is not None)
    return config, layer


def unpack(archive: bytes, folder: str) -> None:
    """The files of an image of :func:`make` below a folder.

    Raises:
        OSError: they cannot be written.
    """
    with tarfile.open(fileobj=io.BytesIO(parts(archive)[1])) as layer:
        layer.extractall(folder)
