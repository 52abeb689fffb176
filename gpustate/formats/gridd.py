"""gridd.conf, edited so that every line of others stays, and can be restored to the byte.

A line that is changed stays above as a comment of ours, and what we set stands below another one. So the file
itself says what it was, whatever others write into it meanwhile.

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
    """What the file says; of a key that stands twice, the last one."""
    matches = (_LINE.match(line) for line in text.splitlines())
    return {match[1]: match[2] for match in matches if match}


def merged(text: str, wanted: Mapping[str, str]) -> str:
    """The file with these keys set; a key that is right already is not touched."""
    text = restored(text)
    there = values(text)
    lines: list[str] = []
    left = {key: value for key, value in wanted.items() if there.get(key) != value}
    if not left:
        return text
    placed: set[str] = set()
    for line in text.splitlines(keepends=True):
        match = _LINE.match(line)
        if match is None or match[1] not in left:
            lines.append(line)
            continue
        lines.append(f"{_WAS}{line}")
        if not line.endswith("\n"):
            lines.append(f"\n{_ENDED}\n")
        if match[1] not in placed:
            lines.append(f"{_SETS}\n{match[1]}={left[match[1]]}\n")
            placed.add(match[1])
    rest = [key for key in left if key not in placed]
    if rest and lines and not lines[-1].endswith("\n"):
        lines.append(f"\n{_ENDED}\n")
    lines += [f"{_SETS}\n{key}={left[key]}\n" for key in rest]
    return "".join(lines)


def restored(text: str) -> str:
    """The file without what :func:`merged` put into it."""
    out: list[str] = []
    skip = False
    for line in text.splitlines(keepends=True):
        bare = line.rstrip("\n")
        if skip:
            skip = False
        elif bare == _SETS:
            skip = True
        elif bare == _ENDED:
            if out:
                out[-1] = out[-1].removesuffix("\n")
        elif line.startswith(_WAS):
            out.append(line.removeprefix(_WAS))
        else:
            out.append(line)
    return "".join(out)


def license_status(text: str) -> tuple[str, ...]:
    """``License Status`` of each licensed product in ``nvidia-smi -q``, without its expiry."""
    found = re.findall(r"^\s*License Status\s*: (.*)$", text, re.MULTILINE)
    return tuple(status.partition("(")[0].strip() for status in found)


def modes(text: str) -> tuple[str, ...]:
    """``Virtualization Mode`` of each GPU in ``nvidia-smi -q``."""
    return tuple(re.findall(r"^\s*Virtualization Mode\s*: (.*?)\s*$", text, re.MULTILINE))
