"""Whether the files that decide are as their packages brought them, as one ask.

A package manager is content with a package of the right version whose files somebody removed, cut off or
replaced. All files of a package are never checked: those that are named here are, and only when their size,
times or inode are others than at the last look, so that a look costs one ``stat``.

Of sources one that is missing is told of each package; what somebody has changed in them is theirs, and so wanted.

Surprising: a program may be there and of the right size, and nobody may execute it; root's ``[ -r`` says
nothing of that. What an administrator diverts, or gives another mode by dpkg-statoverride, is as wanted.

Sources:
    dpkg 1.21: src/main/unpack.c writes ``info/PACKAGE.md5sums`` where a package brings none; dpkg-divert(1),
    dpkg-statoverride(1); rpm(8), VERIFY OPTIONS; ld.so(8): a program finds a library by its soname.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from gpustate import shell
from gpustate.core.queries import Answer, Query, SharedQuery
from gpustate.core.shared_probes import KEPT

# One row a file: ``PACKAGE: PATH HOW``. The link by which programs find a library is not part of what is summed.
_CHECK = shell.load("package_files", "gpustate.probes")
# One cache for all: what each depends on, dpkg's list of packages, is the same for all.
_SCRIPT = shell.load("package_files_kept", "gpustate.probes")
#: Before the rows of each ask.
_OF = "=of "
_ROW = re.compile(r"([A-Za-z0-9][\w.+-]*)(?::\w+)?: (/\S+) (.+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class PackageFiles(SharedQuery[tuple[str, ...]]):
    """Files that are not as their packages brought them, as ``PACKAGE: PATH is missing``.

    Args:
        name: of the ask, in the answer to several.
        packages: shell patterns of package names.
        files: shell patterns of paths that decide; a library has the soname ``.so.1``.
        present_only: shell patterns of paths of which only that they are there is looked at.
        joined_queries: asks that leave with this one.
    """

    name: str
    packages: tuple[str, ...]
    files: tuple[str, ...]
    present_only: tuple[str, ...] = ()
    joined_queries: tuple[PackageFiles, ...] = ()

    def script(self) -> str:
        queries = (self, *self.joined_queries)
        every = "".join(f"{q.checked()}echo '{_OF}{q.name}'; checked\n" for q in queries)
        return shell.fill(
            f"{KEPT}all() {{\n{every}}}\n{_SCRIPT}",
            FOUND=" ".join(
                dict.fromkeys(path for q in queries for path in (*q.files, *q.present_only))
            ),
            KEPT=hashlib.sha256(every.encode()).hexdigest()[:16],
        )

    def checked(self) -> str:
        """Sh that defines ``checked``, which looks at every file and prints a row for each damaged one."""
        # Of some packages the architecture stands in the file's name.
        info = (f"/var/lib/dpkg/info/{name}[.:]*md5sums" for name in self.packages)
        return shell.fill(
            _CHECK,
            INFO=" ".join(info),
            FILES="|".join(self.files),
            THERE="|".join(self.present_only) or "''",
            NAMES=shlex.join(self.packages),
        )

    def watches(self, package: str, path: str) -> bool:
        """A file of a package is one of these; the node need not have it."""
        return any(fnmatchcase(package, name) for name in self.packages) and any(
            fnmatchcase(path, pattern) for pattern in (*self.files, *self.present_only)
        )

    def joined(self, queries: Sequence[Query[Any]]) -> PackageFiles:
        own_kind = tuple(query for query in queries if isinstance(query, PackageFiles))
        return replace(self, joined_queries=(*self.joined_queries, *own_kind))

    def parse(self, answer: Answer) -> tuple[str, ...]:
        _, _, own_text = answer.text.partition(f"{_OF}{self.name}\n")
        rows = itertools.takewhile(lambda row: not row.startswith(_OF), own_text.splitlines())
        return tuple(sorted(row for row in rows if _ROW.fullmatch(row)))

    def placeholder(self) -> tuple[str, ...]:
        return ()


def unit_paths(name: str) -> tuple[str, str]:
    """Where a package may have put the file of a service."""
    return f"/usr/lib/systemd/system/{name}.service", f"/lib/systemd/system/{name}.service"


def packages_of(damaged: Iterable[str]) -> tuple[str, ...]:
    """Names of the packages whose files are damaged, without their architecture."""
    names = (match[1] for match in map(_ROW.fullmatch, damaged) if match)
    return tuple(sorted(dict.fromkeys(names)))


def absent_of(damaged: Iterable[str]) -> tuple[str, ...]:
    """Files that are missing, or in whose place is something that is none."""
    matches = (match for match in map(_ROW.fullmatch, damaged) if match)
    return tuple(match[2] for match in matches if match[3] in ("is missing", "is not a file"))


def sources_of(damaged: Iterable[str]) -> tuple[str, ...]:
    """The rows of sources that are missing."""
    pairs = ((row, _ROW.fullmatch(row)) for row in damaged)
    return tuple(row for row, match in pairs if match and match[2].startswith("/usr/src/"))


__all__ = ["PackageFiles", "absent_of", "packages_of", "sources_of", "unit_paths"]
