"""``make proof``: every file of ``tests/proof``, and every file of ``tests/node`` that has tests which a run of all
tests leaves out, with ``--proof``: some hours on two cores.

The kill points have work for every processor all the time, so they take what the other files leave;
of those, two run side by side. What measures goes last and alone. A file that is named nowhere here comes
after those that are.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

TESTS = Path(__file__).parents[1]
LEFT_OUT = ("mark.long", "mark.proof", "share(")
SIDE_BY_SIDE = 3
POINTS = "enumerated points"
#: The longest come first, so that the last two end together.
FIRST = (
    *(
        "test_kill_points",
        "test_vm",
        "test_vagrant",
        "test_package_faults",
        "test_network_faults",
        "test_bake",
    ),
    *("test_rollout_points", "test_containerd_configurations", "test_runtime_configurations"),
)
ALONE = ("test_bench",)
#: These wait for processors that others want.
PATIENT = {"test_kill_points": ("nice", "-n", "5")}


@dataclass(frozen=True, slots=True)
class Done:
    """One file's run."""

    name: str
    code: int
    seconds: float
    output: Path

    def __str__(self) -> str:
        """The last line, and what was enumerated."""
        lines = self.output.read_text(errors="replace").strip().splitlines()
        titles = [n for n, line in enumerate(lines) if line.strip("= ").startswith(POINTS)]
        points = lines[titles[-1] + 1 :] if titles else []
        told = [f"    {line[:160]}" for line in takewhile(lambda line: line[:1] not in "=", points)]
        return "\n".join([f"{self.name}: {''.join(lines[-1:]).strip('= ')}", *told])


def files() -> tuple[list[Path], list[Path]]:
    """What goes side by side, in this order, and what goes alone."""
    proofs = {path.stem: path for path in sorted((TESTS / "proof").glob("test_*.py"))}
    nodes = [
        path
        for path in sorted((TESTS / "node").glob("test_*.py"))
        if any(word in path.read_text() for word in LEFT_OUT)
    ]
    first = [proofs.pop(name) for name in FIRST if name in proofs]
    alone = [proofs.pop(name) for name in ALONE if name in proofs]
    return [*first, *proofs.values(), *nodes], alone


def prove(path: Path, folder: Path, words: list[str]) -> Done:
    """Run one file."""
    name = path.stem
    output = folder / f"{name}.log"
    began = time.monotonic()
    with output.open("w") as file:
        code = subprocess.run(
            [*PATIENT.get(name, ()), sys.executable, "-m", "pytest", "--proof", str(path), *words],
            stdout=file,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
    done = Done(name, code, time.monotonic() - began, output)
    print(done, flush=True)
    return done


def main(words: list[str]) -> int:
    """Run everything; print what failed, then how long it all took."""
    together, alone = files()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gpustate-proof-") as name:
        folder = Path(name)
        with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            done = list(pool.map(lambda path: prove(path, folder, words), together))
        done += [prove(path, folder, words) for path in alone]
        bad = [one for one in done if one.code]
        for one in bad:
            print(f"\n{'#' * 20} {one.name}\n{one.output.read_text(errors='replace')}")
    minutes = (time.monotonic() - began) / 60
    print(f"{len(done) - len(bad)} passed, {len(bad)} failed: files of proofs, {minutes:.0f} min")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
