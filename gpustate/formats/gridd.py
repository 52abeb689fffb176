"""gridd.conf, edited so that foreign lines are preserved and the original can be restored to the byte.

A changed line stays as a marked comment above the new one, and new lines have a marked comment above them. So the
original can be restored even after foreign edits.

Sources:
    NVIDIA virtual GPU client licensing user guide: gridd.conf.template, FeatureType, ServerAddress,
    ClientConfigTokenPath; nvidia-smi -q, "vGPU Software Licensed Product".
"""

from __future__ import annotations

import re
from collections.abc import Mapping

HEADER = "# Written by gpustate (state vgpu-guest), which removes it again.\n"
_WAS = "#gpustate was: "
_SETS = "#gpustate sets the next line"
_ENDED = "#gpustate ended the line before"
_LINE = re.compile(r"\s*([A-Za-z][A-Za-z0-9_]*)\s*=\s*(.*?)\s*$")


def values(text: str) -> dict[str, str]:
    """The file's values; the last one of a duplicate key."""
    matches = (_LINE.match(line) for line in text.splitlines())
    return {match[1]: match[2] for match in matches if match}


def merge(text: str, desired: Mapping[str, str]) -> str:
    """Set keys in the file; a line with the right value is not changed."""
    text = restore(text)
    current = values(text)
    lines: list[str] = []
    changed = {key: value for key, value in desired.items() if current.get(key) != value}
    if not changed:
        return text
    placed: set[str] = set()
    for line in text.splitlines(keepends=True):
        match = _LINE.match(line)
        if match is None or match[1] not in changed:
            lines.append(line)
            continue
        lines.append(f"{_WAS}{line}")
        if not line.endswith("\n"):
            lines.append(f"\n{_ENDED}\n")
        if match[1] not in placed:
            lines.append(f"{_SETS}\n{match[1]}={changed[match[1]]}\n")
            placed.add(match[1])
    added = [key for key in changed if key not in placed]
    if added and lines and not lines[-1].endswith("\n"):
        lines.append(f"\n{_ENDED}\n")
    lines += [f"{_SETS}\n{key}={changed[key]}\n" for key in added]
    return "".join(lines)


def restore(text: str) -> str:
    """Undo :func:`merge`."""
    out: list[str] = []
    skip = False
    for line in text.splitlines(keepends=True):
        stripped = line.rstrip("\n")
        if skip:
            skip = False
        elif stripped == _SETS:
            skip = True
        elif stripped == _ENDED:
            if out:
                out[-1] = out[-1].removesuffix("\n")
        elif line.startswith(_WAS):
            out.append(line.removeprefix(_WAS))
        else:
            out.append(line)
    return "".join(out)


def license_status(text: str) -> tuple[str, ...]:
    """``License Status`` of each licensed product in ``nvidia-smi -q``, without its expiry."""
    statuses = re.findall(r"^\s*License Status\s*: (.*)$", text, re.MULTILINE)
    return tuple(status.partition("(")[0].strip() for status in statuses)


def modes(text: str) -> tuple[str, ...]:
    """``Virtualization Mode`` of each GPU in ``nvidia-smi -q``."""
    return tuple(re.findall(r"^\s*Virtualization Mode\s*: (.*?)\s*$", text, re.MULTILINE))
