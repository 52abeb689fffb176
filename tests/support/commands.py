"""The command line as a person runs it, for tests over real nodes."""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

import cycles
import forkserver
from forkserver import GPUSTATE as GPUSTATE
from patience import PATIENCE


class Ran:
    """How a command ended."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.code = done.returncode
        self.out = done.stdout
        self.err = done.stderr

    @property
    def summary(self) -> dict[str, str]:
        """The last line of standard output, or what the document has of it, by key."""
        json_text = self.out.startswith("{")
        line = self.document["summary"] if json_text else self.out.strip().splitlines()[-1]
        return dict(word.split("=") for word in line.split())

    @property
    def document(self) -> dict[str, Any]:
        """Standard output as JSON."""
        data: dict[str, Any] = json.loads(self.out)
        return data

    def node(self, name: str) -> dict[str, Any]:
        """One node of the document."""
        return next(row for row in self.document["nodes"] if row["name"] == name)

    def lists(self, name: str, action: str) -> bool:
        """An object of a cluster is in the plan with this action, alone or among objects that change alike."""
        line = rf"^  \S (.*, )?{re.escape(name)}(, .*)?( \(\d+ objects\))?  {action}$"
        return re.search(line, self.out, re.M) is not None


def gpustate(*words: object, code: int | None = None, timeout: float = 300) -> Ran:
    """Run ``gpustate``; with ``code``, its exit code is asserted with everything it said."""
    ran = Ran(forkserver.run([str(word) for word in words], timeout * PATIENCE))
    cycles.heard(words, ran.out)
    assert code is None or ran.code == code, f"exit {ran.code}\n{ran.out}\n{ran.err}"
    assert "Traceback" not in ran.err, ran.err
    return ran
