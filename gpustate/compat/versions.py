"""Versions for rules: of packages, kernels, or written by people.

In ``1:580.65.06-0ubuntu1``, ``v1.34.2+k3s1``, ``6.12.74+deb13+1-amd64`` and ``1.6.20~ds1-1`` the distribution's
additions are ignored. A pre-release of semantic versioning (``1.19.0-rc.7``, ``1.19.0~rc7``) sorts before the
release.

Surprising: a version may be incomplete. ``580`` is any driver of that branch and ``6.8`` any kernel of that
series; comparing it returns all results that are still possible.

Sources:
    deb-version(7); semver.org 2.0, items 9 to 11.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_VERSION = re.compile(
    r"(?:[0-9]{1,6}:)?[vV]?(?P<parts>[0-9]{1,9}(?:\.[0-9]{1,9}){0,5})(?P<rest>[-+~._a-zA-Z0-9]*)"
)
_PRE = re.compile(r"[-~.]?(?P<word>alpha|beta|dev|pre|rc)(?:[-.]?(?P<number>[0-9]{1,9}))?(?![a-z])")
_FINAL = (1, "", 0)


@dataclass(frozen=True, slots=True)
class Version:
    """One version, possibly incomplete.

    Args:
        text: as written.
        parts: its numbers.
        pre: sorts a pre-release before the release.
        complete: whether it is complete; otherwise it stands for every version with this beginning.
    """

    text: str
    parts: tuple[int, ...]
    pre: tuple[int, str, int] = _FINAL
    complete: bool = True

    def __str__(self) -> str:
        return self.text if self.complete else f"{self.text}.*"

    def signs(self, bound: Version) -> frozenset[int]:
        """The possible results of comparing with a bound, of -1, 0 and 1.

        An incomplete version may have several.
        """
        if self.complete:
            return frozenset((_compare(self, bound),))
        size = len(self.parts)
        padded = bound.parts + (0,) * (size - len(bound.parts))
        if self.parts != padded[:size]:
            return frozenset((1 if self.parts > padded[:size] else -1,))
        return frozenset(range(_compare(self, bound), 2))

    def same(self, version: Version) -> bool | None:
        """Whether two versions are equal; ``None`` if they are too incomplete to decide."""
        if self.complete and version.complete:
            return _compare(self, version) == 0
        size = min(len(self.parts), len(version.parts))
        return None if self.parts[:size] == version.parts[:size] else False


def parse(text: str, numbers: int) -> Version:
    """Parse a version that is complete with ``numbers`` numbers.

    Raises:
        ValueError: it is not a version.
    """
    match = _VERSION.fullmatch(text.strip())
    suffix = match["rest"] if match else ""
    if match is None or (suffix and suffix[0] not in "-+~_" and not _PRE.match(suffix)):
        raise ValueError("is not a version")
    parts = tuple(int(part) for part in match["parts"].split("."))
    prerelease = _PRE.match(suffix)
    pre = (0, prerelease["word"], int(prerelease["number"] or 0)) if prerelease else _FINAL
    complete = len(parts) >= numbers
    return Version(
        match["parts"] if not prerelease else match["parts"] + suffix, parts, pre, complete
    )


def _compare(first: Version, second: Version) -> int:
    size = max(len(first.parts), len(second.parts))
    a = (first.parts + (0,) * (size - len(first.parts)), first.pre)
    b = (second.parts + (0,) * (size - len(second.parts)), second.pre)
    return (a > b) - (a < b)
