"""Coverage-guided fuzzing of what reads bytes from elsewhere: a program, made of atheris.

    python tests/support/fuzz.py answer tests/data/fuzz/answer -runs=100000
    python tests/support/fuzz.py inventory tests/data/fuzz/inventory -max_total_time=60

Options are libFuzzer's. Anything but gpustate's own errors ends the program with a traceback, and the
input is written to ``crash-...`` in the current folder: ``python tests/support/fuzz.py TARGET FILE`` shows it
again. New inputs go to the first folder named; the seeds beside this repository are read only.

Sources:
    google/atheris, README: instrumentation of imports; libFuzzer, "Options".
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

atheris: Any = importlib.import_module("atheris")

with atheris.instrument_imports(include=["gpustate"]):
    from gpustate.core import file_queries, queries
    from gpustate.core.facts import FactsQuery
    from gpustate.core.inventory import InventoryNode
    from gpustate.engine.ledger import LedgerQuery
    from gpustate.errors import GpustateError
    from gpustate.inventory import load, select
    from gpustate.probes.gpu_facts import GpuFacts
    from gpustate.remote.batch import AnswerReader, make_batch, split_answers

NONCE = "gpustate-1"
ASKS: list[queries.Query[Any]] = [
    FactsQuery(),
    GpuFacts(),
    LedgerQuery(),
    file_queries.FileText("/etc/x"),
    file_queries.FileTexts("/etc/x/*"),
    file_queries.FileStats(("/etc/x/*",)),
    queries.Packages(("nvidia-*",)),
    queries.Candidates(("nvidia-driver",)),
    queries.Units(("containerd.service",)),
    queries.LoadedModules(),
]
BATCH = make_batch(InventoryNode("n"), ASKS, NONCE)
#: libFuzzer ends the program without a word, so what is written stays: where crashes are written too.
_folder = Path("fuzz-input")
_folder.mkdir(exist_ok=True)


def guarded(call: Callable[[], object]) -> object:
    """Do it; gpustate's own errors are fine, and are one line."""
    error: GpustateError | None = None
    try:
        return call()
    except GpustateError as caught:
        error = caught
    said = str(error)
    if len(said.splitlines()) != 1 or len(said) > 4000:
        raise RuntimeError(f"an error that is not one line: {said!r}")
    return None


def answer(data: bytes) -> None:
    """The first byte chooses: raw bytes of the connection, the unpacked answer, or one ask's own answer."""
    kind, rest = data[:1], data[1:]
    if kind == b"r":
        reader = AnswerReader(BATCH)

        def feed() -> None:
            reader.feed(rest)
            reader.answers()

        guarded(feed)
    elif kind == b"u":
        guarded(lambda: split_answers(rest, NONCE, 2))
    elif kind:
        query = ASKS[kind[0] % len(ASKS)]
        guarded(lambda: query.parse(queries.Answer(0, rest)))


_NAMES = {b"i": "h.ini", b"y": "h.yml", b"j": "h.json", b"n": "h"}


def inventory(data: bytes) -> None:
    """The first byte chooses the format; see the README beside the seeds."""
    kind, rest = data[:1], data[1:]
    if kind in _NAMES:
        path = _folder / _NAMES[kind]
        path.write_bytes(rest)
        guarded(lambda: load(str(path)))
    elif kind == b"l":
        text = rest.decode("utf-8", "surrogateescape").replace("/", "").replace("\0", "")
        guarded(lambda: load(f"{text},"))
    elif kind == b"p":
        text = rest.decode("utf-8", "replace").replace("@", "")
        # Python's own regular expressions may take forever; whoever writes one waits for it.
        if "~" not in text:
            guarded(lambda: select(FLEET, text))


FLEET = load("gpu[01:08],login,")
TARGETS = {"answer": answer, "inventory": inventory}


def main() -> None:
    """Begin; libFuzzer ends the program."""
    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        sys.exit(f"usage: {sys.argv[0]} {{{','.join(TARGETS)}}} [FOLDER...] [-runs=N]")
    os.environ["PYTHONWARNINGS"] = "ignore"
    atheris.Setup([sys.argv[0], *sys.argv[2:]], TARGETS[sys.argv[1]])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
