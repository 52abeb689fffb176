"""Compute, on the machine itself, the files that its first boot writes: labels, Slurm's lines.

    python3 -I -S -B first_boot.py labels OPTIONS FOLDER

Writes the text of each file into FOLDER, by its number; empty files are omitted. Prints notes, and exits with 1
and a reason if something is missing. Needs Python 3.10, the modules beside
it, and sh; ``PROC``, ``SYS`` and ``G`` are as for every program of gpustate on a node.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, TypeVar

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from gpustate.core.node import Node
from gpustate.core.queries import Answer, Query
from gpustate.errors import GpustateError
from gpustate.formats.deviceplugin.model import Shared, Sharing
from gpustate.formats.slurm import foreign, place
from gpustate.probes import gpu_labels, slurm_gpus

T = TypeVar("T")


class LocalNode(Node):
    """This machine; every query runs in its own process."""

    def __init__(self, folder: str) -> None:
        self.name = "here"
        self.vars = {}
        self._shipped = os.path.join(folder, "shipped")
        self._answers: dict[Any, Any] = {}

    def query(self, query: Query[T]) -> T:
        """Run its fragment once."""
        if query not in self._answers:
            self._answers[query] = self._run(query)
        answer: T = self._answers[query]
        return answer

    def _run(self, query: Query[T]) -> T:
        for file in getattr(query, "ships", ()):
            place = os.path.join(self._shipped, file.digest)
            os.makedirs(place, exist_ok=True)
            with open(os.path.join(place, file.name), "wb") as out:
                out.write(file.load())
        process = subprocess.run(
            ["sh", "-c", query.script()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C", "SHIPPED": self._shipped},
            timeout=120,
            check=False,
        )
        return query.parse(Answer(process.returncode, process.stdout))


def labels(node: Node, options: dict[str, Any]) -> Iterator[str | None]:
    """The feature file."""
    strategy, shared, renamed = options["sharing"]
    sharing = Sharing(strategy, tuple(Shared(*row) for row in shared), renamed)
    result = gpu_labels.desired_labels(node, options["strategy"], sharing)
    rival = gpu_labels.find_rival(node.read_texts(f"{gpu_labels.FOLDER}/*"))
    if result.text is not None and rival is not None:
        raise SystemExit(gpu_labels.rival_reason(rival))
    if result.problem is not None:
        raise SystemExit(result.problem)
    for note in result.notes:
        print(note)
    yield result.text


def slurm(node: Node, options: dict[str, Any]) -> Iterator[str | None]:
    """``gres.conf``, the file with the node's line, prolog and epilog, and slurmd's drop-in."""
    gres = node.read_text(options["gres_path"]) or ""
    result = slurm_gpus.desired_gres(
        node, name=options["name"], shards=options["shards"], features=tuple(options["features"])
    )
    if result.problem is not None:
        raise SystemExit(result.problem)
    if not result.slurmd or not result.lines:
        return
    rival = foreign(gres, result.host)
    if rival is not None:
        raise SystemExit(f"{options['gres_path']}: {rival} already describes GPUs; remove it")
    print(f"add to the cluster's slurm.conf: {result.node_line}")
    yield place(gres, list(result.lines)) or None
    yield slurm_gpus.node_text(result.node_line) if options["node_file"] else None
    scripts = slurm_gpus.job_scripts(options["job_mapping"], result.names)
    yield from scripts if options["job_mapping"] else (None, None)
    yield options["drop_in"]


def main(kind: str, options: str, folder: str) -> None:
    """Write the files."""
    os.makedirs(folder, exist_ok=True)
    texts = {"labels": labels, "slurm": slurm}[kind](LocalNode(folder), json.loads(options))
    try:
        for number, text in enumerate(texts):
            if text is not None:
                with open(os.path.join(folder, str(number)), "w", encoding="utf-8") as out:
                    out.write(text)
    except GpustateError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main(*sys.argv[1:4])
