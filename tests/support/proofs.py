"""``make proof``: every file of ``tests/proof`` with ``--proof``, in an hour on two cores.

Two lines of files are walked side by side, for one processor of a virtual machine leaves the other
idle; what measures goes last and alone. A file that is named nowhere here joins the second line.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PROOF = Path(__file__).parents[1] / "proof"
FIRST = ("test_vm", "test_bake", "test_random_input", "test_random_command_lines")
ALONE = ("test_bench",)


@dataclass(frozen=True, slots=True)
class Done:
    """One file's run."""

    name: str
    code: int
    seconds: float
    output: Path

    def __str__(self) -> str:
        last = self.output.read_text(errors="replace").strip().splitlines()[-1:]
        return f"{self.name}: {''.join(last).strip('= ')}"


def lines() -> tuple[list[str], list[str], list[str]]:
    """The two that go side by side, and what goes alone."""
    found = sorted(path.stem for path in PROOF.glob("test_*.py"))
    second = [name for name in found if name not in FIRST + ALONE]
    return [n for n in FIRST if n in found], second, [n for n in ALONE if n in found]


def walk(names: Iterable[str], folder: Path, done: list[Done], words: list[str]) -> None:
    """Run files one after the other."""
    for name in names:
        output = folder / f"{name}.log"
        began = time.monotonic()
        with output.open("w") as file:
            code = subprocess.run(
                [sys.executable, "-m", "pytest", "--proof", str(PROOF / f"{name}.py"), *words],
                stdout=file,
                stderr=subprocess.STDOUT,
                check=False,
            ).returncode
        one = Done(name, code, time.monotonic() - began, output)
        done.append(one)
        print(one, flush=True)


def main(words: list[str]) -> int:
    """Run everything; print what failed, then how long it all took."""
    first, second, alone = lines()
    done: list[Done] = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gpustate-proof-") as name:
        folder = Path(name)
        threads = [
            threading.Thread(target=walk, args=(names, folder, done, words))
            for names in (first, second)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        walk(alone, folder, done, words)
        bad = [one for one in done if one.code]
        for one in bad:
            print(f"\n{'#' * 20} {one.name}\n{one.output.read_text(errors='replace')}")
    minutes = (time.monotonic() - began) / 60
    print(f"{len(done) - len(bad)} passed, {len(bad)} failed: files of proofs, {minutes:.0f} min")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
