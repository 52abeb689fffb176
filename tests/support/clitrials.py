"""The command line on files that nobody meant, many times over, where it can harm nothing.

Started as a program of its own in namespaces without a network and with a root that cannot be written
(``isolated``); takes trials as JSON on standard input and restores how each ended. Most are forks of
one process that has everything imported, some are processes of their own.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
#: A trial: files by name, words of the command line, and whether it is a process of its own.
Trial = tuple[dict[str, bytes], tuple[str, ...], bool]

#: In the sandbox, where /tmp is empty and in memory.
WORK = Path("/tmp/gpustate-trial")
LIMIT_S = 60

#: Arguments: an empty folder, visible folders, ``--``, the program. The new /tmp is filled before it covers the
#: old one, for those folders may lie there.
_ENTER = r"""
set -e
mount --make-rprivate /
new=$1; shift
mount -t tmpfs tmpfs "$new"; mkdir "$new/canary"
while [ "$1" != -- ]; do
  case $1/ in /tmp/?*)
    mkdir -p "$new${1#/tmp}"
    mount --bind "$1" "$new${1#/tmp}"; mount -o remount,ro,bind "$new${1#/tmp}" ;;
  esac
  shift
done
shift
mount --move "$new" /tmp
mount --bind / /; mount -o remount,ro,bind /
cd /
exec "$@"
"""


def run_inside(
    argv: list[str], visible: list[str], **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program without a network, with an empty /tmp, and with nothing else that it can write.

    Args:
        argv: the program and its arguments.
        visible: folders that it needs; those below /tmp are shown there again, read-only.
        options: of ``subprocess.run``.
    """
    enter = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-c", _ENTER]
    with tempfile.TemporaryDirectory(prefix="gpustate-trials-") as new:
        words = [*enter, "sh", new, *visible, "--", *argv]
        return subprocess.run(words, capture_output=True, text=True, **options)


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
    places = {str(ROOT), sys.prefix, sys.base_prefix}
    done = run_inside(
        [sys.executable, __file__],
        sorted(places | set(map(os.path.realpath, places))),
        input=json.dumps(rows),
        timeout=60 + LIMIT_S * len(trials),
    )
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
