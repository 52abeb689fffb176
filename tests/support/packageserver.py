"""A package repository that misbehaves on order, for one node and not for its neighbour.

Serves the lab's own repositories below ``/<node>/<edition>/``; the edition is any number, so that a new
one makes a node read the package lists anew. What a node gets can be replaced file by file, refused,
cut short or held back, and an index can be published again over packages that were changed, signed
with the lab's key or with another.
"""

from __future__ import annotations

import gzip
import hashlib
import http.server
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gpustate_lab import paths
from gpustate_lab.sim.repository import TOOLKIT_PATH
from gpustate_lab.sim.signing import SigningKey

TOOLKIT_ORIGIN = "nvidia.github.io/libnvidia-container"


@dataclass(frozen=True)
class Answer:
    """What a request gets instead of the file.

    Args:
        status: of HTTP; 0 closes the connection without a word.
        body: instead of the file's; ``None`` keeps it.
        sent: how much of the body is sent before the connection is closed; all when ``None``.
        wait_s: seconds before anything is sent.
        after: how many requests that fit are served well first.
    """

    status: int = 200
    body: bytes | None = None
    sent: int | None = None
    wait_s: float = 0.0
    after: int = 0


@dataclass
class Shelf:
    """What one node is given."""

    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    rules: list[tuple[str, Answer]] = field(default_factory=list[tuple[str, Answer]])
    seen: dict[str, int] = field(default_factory=dict[str, int])


class PackageServer:
    """Serves on one address until :meth:`close`.

    Args:
        address: of the lab's bridge.
        scratch: a folder for keys.
    """

    def __init__(self, address: str, scratch: Path) -> None:
        self.root = paths.repository_dir()
        self.key = SigningKey(self.root.with_name(f"{self.root.name}.private"))
        self.scratch = scratch
        self.shelves: dict[str, Shelf] = {}
        server = self
        self._lock = threading.Lock()

        class Handler(_Handler):
            packages = server

        self._http = http.server.ThreadingHTTPServer((address, 0), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()
        self.url = f"http://{address}:{self._http.server_port}"

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def shelf(self, node: str) -> Shelf:
        return self.shelves.setdefault(node, Shelf())

    def clear(self, node: str) -> None:
        """Serve ``node`` well again, and what the lab's repositories hold."""
        self.shelves.pop(node, None)

    def answer(self, node: str, path: str, file: Path) -> tuple[Answer, bytes]:
        """What a request of a node gets, and the whole of the file."""
        with self._lock:
            shelf = self.shelf(node)
            body = shelf.files.get(path)
            for pattern, answer in shelf.rules:
                if re.search(pattern, path):
                    shelf.seen[pattern] = shelf.seen.get(pattern, 0) + 1
                    if shelf.seen[pattern] > answer.after:
                        return answer, body or (file.read_bytes() if file.is_file() else b"")
        if body is None and not file.is_file():
            return Answer(404), b""
        return Answer(), file.read_bytes() if body is None else body

    # --- publishing ----------------------------------------------------------------------

    def repository(self, what: str, image: str) -> str:
        """Path of the ``driver`` or ``toolkit`` repository for an image."""
        return f"mirror/{image}" if what == "driver" else TOOLKIT_PATH

    def publish(
        self,
        node: str,
        repository: str,
        *,
        packages: Mapping[str, bytes] | None = None,
        edit: Callable[[str], str] = lambda index: index,
        release: Mapping[str, str] | None = None,
        key: SigningKey | None = None,
    ) -> None:
        """Give ``node`` another edition of a repository.

        Args:
            packages: file name to new bytes of packages that were changed.
            edit: a change to the text of the index.
            release: fields of the Release file.
            key: instead of the lab's.
        """
        shelf, folder = self.shelf(node), self.root / repository
        index = (folder / "Packages").read_text()
        for name, data in (packages or {}).items():
            shelf.files[f"{repository}/{name}"] = data
            index = re.sub(
                rf"(Filename: \./{re.escape(name)}\n)(?:(?:Size|MD5sum|SHA256): .*\n)+",
                rf"\g<1>Size: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n",
                index,
            )
        plain = edit(index).encode()
        indices = {"Packages": plain, "Packages.gz": gzip.compress(plain)}
        fields = {
            "Origin": "example-mirror" if repository.startswith("mirror") else TOOLKIT_ORIGIN,
            "Label": "example-mirror" if repository.startswith("mirror") else "NVIDIA CORPORATION",
            "Architectures": "amd64",
            "Date": date(),
        } | dict(release or {})
        lines = [f"{name}: {value}" for name, value in fields.items()] + ["SHA256:"]
        for name, data in indices.items():
            lines.append(f" {hashlib.sha256(data).hexdigest()} {len(data)} {name}")
            shelf.files[f"{repository}/{name}"] = data
        text = ("\n".join(lines) + "\n").encode()
        shelf.files[f"{repository}/Release"] = text
        shelf.files[f"{repository}/InRelease"] = (key or self.key).clearsign(text)

    def stranger(self) -> SigningKey:
        """A key that nobody trusts."""
        return SigningKey(self.scratch / "stranger")


def date(hours: float = 0) -> str:
    """As a Release file has it, some hours from now."""
    return f"{datetime.now(UTC) + timedelta(hours=hours):%a, %d %b %Y %H:%M:%S +0000}"


@contextmanager
def unpacked(deb: Path) -> Iterator[Path]:
    """A package's files and its DEBIAN folder, to be changed; :func:`packed` makes it a package again."""
    with tempfile.TemporaryDirectory(prefix="gpustate-deb-") as folder:
        subprocess.run(["dpkg-deb", "-R", str(deb), folder], check=True)
        yield Path(folder)


def packed(folder: Path) -> bytes:
    with tempfile.NamedTemporaryFile(suffix=".deb") as target:
        words = ["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "-b", str(folder), target.name]
        subprocess.run(words, check=True, capture_output=True)
        return Path(target.name).read_bytes()


def package(name: str, *, control: str = "", file: str = "", **scripts: str) -> bytes:
    """A small package of the site's own; with ``file``, that path is in it."""
    with tempfile.TemporaryDirectory(prefix="gpustate-deb-") as scratch:
        folder = Path(scratch, "root")
        (folder / "DEBIAN").mkdir(parents=True, mode=0o755)
        (folder / "DEBIAN/control").write_text(
            f"Package: {name}\nVersion: 1.0\nArchitecture: all\nMaintainer: site <site@example.org>\n"
            f"{control}Description: a package of the site's own\n"
        )
        for script, text in scripts.items():
            write_script(folder / "DEBIAN" / script, text)
        if file:
            (folder / file.lstrip("/")).parent.mkdir(parents=True)
            (folder / file.lstrip("/")).write_text(f"{name}\n")
        return packed(folder)


def write_script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    packages: PackageServer
    timeout = 30

    def do_GET(self) -> None:
        _, node, _, path = [*self.path.split("/", 3), "", "", ""][:4]
        path = path.replace("/./", "/")
        answer, body = self.packages.answer(node, path, self.packages.root / path)
        time.sleep(answer.wait_s)
        if answer.status == 0:
            self.close_connection = True
            return
        body = answer.body if answer.body is not None else body
        self.send_response(answer.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if answer.sent is None else body[: answer.sent])
        if answer.sent is not None:
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""
