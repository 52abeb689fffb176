"""The archive of a support bundle: files in a fixed order, secrets masked, with an index of what is there and what not."""

from __future__ import annotations

import gzip
import io
import re
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpustate import __version__
from gpustate.formats.foreign_secrets import scrub, scrub_data
from gpustate.formats.json_pages import dumps
from gpustate.formats.masking import mask, mask_data

FORMAT = "gpustate.support-bundle/1"
#: The folder in the archive.
FOLDER = "gpustate-support"
#: Bytes of all files before compression.
TOTAL_BYTES = 512 << 20


@dataclass(slots=True)
class Archive:
    """Files that are collected.

    Args:
        created: time, for documents.
        files: content by path.
        missing: what could not be collected: path, and why.
        cut: files whose beginning is missing.
    """

    created: str
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    missing: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    cut: list[str] = field(default_factory=list[str])
    _size: int = 0

    def add_text(self, path: str, text: str) -> None:
        """Add text of other programs."""
        self._add(path, scrub(text).encode("utf-8", "replace"))

    def add_data(self, path: str, data: Any) -> None:
        """Add a document of our own; texts in it may be those of other programs."""
        text = mask(dumps(scrub_data(mask_data(data))))
        self._add(path, text.encode("utf-8", "replace") + b"\n")

    def miss(self, path: str, why: str) -> None:
        """Note what could not be collected."""
        self.missing.append((path, scrub(" ".join(why.split()))))

    def _add(self, path: str, data: bytes) -> None:
        if self._size + len(data) > TOTAL_BYTES:
            self.miss(
                path, f"the bundle has {TOTAL_BYTES >> 20} MiB already; limit the nodes with -l"
            )
            return
        self._size += len(data)
        self.files[path] = data

    def index(
        self, about: Mapping[str, object], nodes: Sequence[Mapping[str, object]]
    ) -> dict[str, object]:
        """The index.

        Args:
            about: inventory, limit and run.
            nodes: name and folder of each node; ``error``: it could not be reached.
        """
        return {
            "format": FORMAT,
            "created": self.created,
            "version": __version__,
            **about,
            "nodes": list(nodes),
            "files": [
                {"path": path, "bytes": len(data), **({"cut": True} if path in self.cut else {})}
                for path, data in sorted(self.files.items())
            ],
            "missing": [{"path": path, "reason": why} for path, why in sorted(self.missing)],
        }

    def pack(self) -> bytes:
        """The archive: the same files make the same bytes."""
        packed = io.BytesIO()
        with (
            gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as stream,
            tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            for path, data in sorted(self.files.items()):
                info = tarfile.TarInfo(f"{FOLDER}/{path}")
                info.size, info.mode = len(data), 0o600
                tar.addfile(info, io.BytesIO(data))
        return packed.getvalue()


def folders(names: Sequence[str]) -> dict[str, str]:
    """A folder for each node, safe as a file name and unique."""
    by_node: dict[str, str] = {}
    used: set[str] = set()
    for name in names:
        safe = re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".") or "node"
        folder, number = safe, 1
        while folder in used:
            number += 1
            folder = f"{safe}-{number}"
        used.add(folder)
        by_node[name] = folder
    return by_node
