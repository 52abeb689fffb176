"""The command line on files that nobody meant, many times over, where it can harm nothing.

Started as a program of its own in namespaces without a network and with a root that cannot be written
(``isolated``); takes trials as JSON on standard input and gives back how each ended. Most are forks of
one process that has everything imported, some are processes of their own.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

#: A trial: files by name, words of the command line, and whether it is a process of its own.
Trial = tuple[dict[str, bytes], tuple[str, ...], bool]

WORK = Path("/tmp/work")
LIMIT_S = 60

_ENTER = r"""
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /tmp; mkdir /tmp/canary /tmp/work
mount --bind / /; mount -o remount,ro,bind /
exec "$@"
"""


def isolated(trials: list[Trial]) -> list[dict[str, Any]]:
    """Run trials; each gives its ``status``, ``out``, ``err``, and the ``canaries`` found after it."""
    rows = [
        {
            "files": {name: base64.b64encode(data).decode() for name, data in files.items()},
            "words": words,
            "process": process,
        }
        for files, words, process in trials
    ]
    done = subprocess.run(
        ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-c", _ENTER, "sh", sys.executable, __file__],
        input=json.dumps(rows),
        capture_output=True,
        text=True,
        timeout=60 + LIMIT_S * len(trials),
    )  # fmt: skip
    if done.returncode:
        raise AssertionError(f"the trials could not be run: {done.stderr[-3000:]}")
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def main() -> None:
    """Run what standard input asks for."""
    from commandline import run_forked

    environment = {
        "HOME": "/tmp/home",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
    }
    ended = []
    for row in json.loads(sys.stdin.read()):
        shutil.rmtree(WORK, ignore_errors=True)
        for name, text in row["files"].items():
            path = WORK / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(base64.b64decode(text))
        words = tuple(row["words"])
        if row["process"]:
            done = subprocess.run(
                [Path(sys.executable).with_name("gpustate"), *words],
                cwd=WORK,
                env=environment,
                capture_output=True,
                timeout=LIMIT_S,
                stdin=subprocess.DEVNULL,
            )
            status, out, err = (
                done.returncode,
                done.stdout.decode("utf-8", "replace"),
                done.stderr.decode("utf-8", "replace"),
            )
        else:
            forked = run_forked(words, WORK, environment, [Path("/tmp/out"), Path("/tmp/err")])
            status, out, err = forked.status, forked.out, forked.err
        canaries = [path.name for path in Path("/tmp/canary").iterdir()]
        ended.append({"status": status, "out": out, "err": err, "canaries": canaries})
    json.dump(ended, sys.stdout)


if __name__ == "__main__":
    main()
