"""Compare versions like rpm: epoch, version and release, each in runs of digits or letters. Pure.

Surprising: ``~`` sorts before the end of the text (``1.0~rc1`` is older than ``1.0``), ``^`` right behind it
(``1.0^git1`` is newer than ``1.0`` and older than ``1.0.1``); all other signs only separate. A relation
that names no release is about all releases of the version.

Sources:
    rpm-version(7); rpm, rpmio/rpmvercmp.c and rpmio/rpmver.c; the tests compare with the rpm program.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cmp_to_key, lru_cache

#: Runs that are compared; everything else separates.
_RUN = re.compile(r"[0-9]+|[A-Za-z]+|~|\^")
_EPOCH = re.compile(r"([0-9]*):(.*)", re.DOTALL)


def compare_labels(left_label: str, right_label: str) -> int:
    """Compare two versions, or two releases: negative when the first is older, 0 when they are the same."""
    left_runs, right_runs = _RUN.findall(left_label), _RUN.findall(right_label)
    for a, b in zip(left_runs, right_runs, strict=False):
        if a != b and (order := _compare_runs(a, b)):
            return order
    if len(left_runs) == len(right_runs):
        return 0
    longer, sign = (left_runs, 1) if len(left_runs) > len(right_runs) else (right_runs, -1)
    return -sign if longer[min(len(left_runs), len(right_runs))] == "~" else sign


def _compare_runs(a: str, b: str) -> int:
    """Two runs that are not the same text."""
    for mark in "~^":
        if mark in (a, b):
            return -1 if a == mark else 1
    if a.isdigit() and b.isdigit():
        x, y = a.lstrip("0"), b.lstrip("0")
        return (len(x) > len(y)) - (len(x) < len(y)) or (x > y) - (x < y)
    if a.isdigit() != b.isdigit():
        return 1 if a.isdigit() else -1
    return (a > b) - (a < b)


@dataclass(frozen=True, slots=True)
class Evr:
    """Epoch, version and release; a release that is empty is not given."""

    epoch: int
    version: str
    release: str = ""

    def __str__(self) -> str:
        epoch = f"{self.epoch}:" if self.epoch else ""
        return f"{epoch}{self.version}" + (f"-{self.release}" if self.release else "")


@lru_cache(maxsize=65536)
def parse(text: str) -> Evr:
    """Read ``epoch:version-release``; without an epoch it is 0."""
    epoch, version_release = 0, text
    match = _EPOCH.fullmatch(text)
    if match is not None:
        epoch, version_release = int(match[1][-18:] or "0"), match[2]
    version, dash, release = version_release.rpartition("-")
    return Evr(epoch, version, release) if dash else Evr(epoch, version_release)


def compare(left_version: str, right_version: str) -> int:
    """Compare two full versions, the release included."""
    a, b = parse(left_version), parse(right_version)
    return (
        (a.epoch > b.epoch) - (a.epoch < b.epoch)
        or compare_labels(a.version, b.version)
        or compare_labels(a.release, b.release)
    )


#: Sorts full versions, the oldest first.
version_key = cmp_to_key(compare)
