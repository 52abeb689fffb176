"""Runs one contender and tells what it cost: wall, CPU and peak memory of its whole process tree.

As a subreaper it inherits what the contender leaves behind (ssh masters), ends it, and counts its
CPU. Memory is the sum of PSS, sampled: what a run adds to a machine, shared pages divided by users.
A process of its own, small, so that the bench's memory and children are not in the way.

    python -S -E keeper.py REPORT LOG COMMAND...
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time

_PR_SET_CHILD_SUBREAPER = 36


def children(pid: int) -> list[int]:
    """Pids of all descendants."""
    found: list[int] = []
    todo = [pid]
    while todo:
        one = todo.pop()
        try:
            for task in os.listdir(f"/proc/{one}/task"):
                with open(f"/proc/{one}/task/{task}/children") as file:
                    more = [int(word) for word in file.read().split()]
                found += more
                todo += more
        except OSError:
            continue
    return found


def memory_mib(pids: list[int]) -> float:
    """Their PSS together."""
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/smaps_rollup") as file:
                total += sum(int(line.split()[1]) for line in file if line.startswith("Pss:"))
        except OSError:
            continue
    return total / 1024


def main(report: str, log: str, command: list[str]) -> None:
    """Run the command and write the report."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    peak = [0.0]
    over = threading.Event()

    def sample() -> None:
        pause = 0.05
        while not over.wait(pause):
            peak[0] = max(peak[0], memory_mib(children(os.getpid())))
            pause = min(pause * 1.1, 0.5)

    sampler = threading.Thread(target=sample)
    with open(log, "wb") as out:
        begun = time.monotonic()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
        )
        sampler.start()
        status = process.wait()
        wall_s = time.monotonic() - begun
    over.set()
    sampler.join()
    for pid in children(os.getpid()):
        try:
            os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:
            continue
    while True:
        try:
            os.wait()
        except ChildProcessError:
            break
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    with open(report, "w") as file:
        json.dump(
            {
                "status": status,
                "wall_s": wall_s,
                "cpu_s": used.ru_utime + used.ru_stime,
                "memory_mib": peak[0],
                "largest_mib": used.ru_maxrss / 1024,
            },
            file,
        )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
