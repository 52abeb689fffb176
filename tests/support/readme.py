"""What README prints first: a policy, and the commands of one who follows it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

_README = Path(__file__).parents[2] / "README.md"


def first_commands() -> list[list[str]]:
    """Arguments of ``gpustate`` in the paragraph below the policy."""
    _, _, below = _README.read_text("utf-8").partition("```yaml\n")[2].partition("```\n\n")
    lines = re.findall(r"^ {4}gpustate (.*)$", below.partition("\n\n")[0], re.M)
    return [shlex.split(line, comments=True) for line in lines]
