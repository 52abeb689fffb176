"""The steps that are about apt's packages; part of :mod:`gpustate.ops.steps`.

What they call on the node is in :mod:`gpustate.ops.packages`.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from gpustate import shell
from gpustate.core.step import Step
from gpustate.formats import dpkg

_q, _words = shlex.quote, shlex.join
#: What maintainer scripts printed last, and what dpkg leaves unfinished.
_TERM_LOG = "tail -n 50 /var/log/apt/term.log; dpkg --audit"


@dataclass(frozen=True, slots=True)
class AptUpdate(Step):
    """Read the package lists, of all sources or of one list file only.

    Args:
        source_list: a file below /etc/apt/sources.list.d whose repository alone is read.
        roll_back: files that are put back as they were before this run when they cannot be read, for
            a repository that does not work stops every other use of apt.
    """

    source_list: str | None = None
    roll_back: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return f"refresh the package lists of {self.source_list or 'all repositories'}"

    @property
    def command(self) -> str:
        return "apt-get update"

    @property
    def inspect(self) -> str:
        return f"cat {_q(self.source_list) if self.source_list else '/etc/apt/sources.list'}; apt-cache policy"

    def script(self) -> str:
        only = ""
        if self.source_list:
            only = (
                f" -o Dir::Etc::sourcelist={_q(self.source_list)}"
                " -o Dir::Etc::sourceparts=- -o APT::Get::List-Cleanup=0"
            )
        return (
            # apt does not fetch again what it has, be it cut off, as long as the repository says the same.
            "find /var/lib/apt/lists -maxdepth 1 -type f -name '*_Packages*' -size 0 -delete 2>/dev/null || :\n"
            f"if apt_wait && apt update{only} -o APT::Update::Error-Mode=any; then apt_lists_kept; exit 0; fi\n"
            + (f"roll_back {_words(self.roll_back)}\n" if self.roll_back else "")
            + "exit 1"
        )


@dataclass(frozen=True, slots=True)
class AptInstall(Step):
    """Install packages at exact versions in one transaction, wholly or not at all.

    Everything is downloaded before anything is unpacked. Where the transaction fails in the middle,
    what was installed before is installed again, and what came is purged.

    Args:
        packages: name and version; an empty version takes the candidate.
        hold: mark them all as held afterwards.
        remove: packages that leave in the same transaction.
        reinstall: packages whose files are put back even where the version is right.
        roll_back: files that go back with the packages, as they were before this run.
        timeout: seconds; building modules counts.
    """

    packages: tuple[tuple[str, str], ...]
    hold: bool = False
    remove: tuple[str, ...] = ()
    reinstall: bool = False
    roll_back: tuple[str, ...] = ()
    timeout: int = 3600

    @property
    def label(self) -> str:
        names = ", ".join(f"{n}={v}" if v else n for n, v in self.packages)
        return f"install {names}"

    @property
    def timeout_s(self) -> int:
        return self.timeout

    @property
    def command(self) -> str:
        return f"apt-get install {' '.join(self._arguments())}"

    @property
    def inspect(self) -> str:
        return _TERM_LOG

    def _arguments(self) -> list[str]:
        again = ["--reinstall"] if self.reinstall else []
        wanted = [_q(f"{name}={version}" if version else name) for name, version in self.packages]
        return [*again, *wanted, *(_q(f"{name}-") for name in self.remove)]

    def script(self) -> str:
        names = _words(tuple(name for name, _ in self.packages))
        words = " ".join(self._arguments())
        back = f"roll_back {_words(self.roll_back)}"
        lines = [
            f"{{ apt_ready && apt_fetch {words}; }} || {{ {back}; exit 1; }}",
            f'apt_swap {words} || {{ [ -z "$ROLLED" ] || {back}; exit 1; }}',
        ]
        if self.hold:
            lines.append(f"apt_wait; apt-mark hold {names}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class AptHold(Step):
    """Mark packages as held, or no longer held."""

    packages: tuple[str, ...]
    hold: bool = True

    @property
    def label(self) -> str:
        return f"{'hold' if self.hold else 'release'} {', '.join(self.packages)}"

    @property
    def command(self) -> str:
        return f"apt-mark {'hold' if self.hold else 'unhold'} {_words(self.packages)}"

    @property
    def inspect(self) -> str:
        return "apt-mark showhold; dpkg --audit"

    def script(self) -> str:
        if self.hold:
            return f"apt_wait; {self.command}"
        # apt-mark knows no package that is neither installed nor on offer, and fails.
        names = " ".join(f"-e {_q(name)}" for name in self.packages)
        held = f"h=$(apt-mark showhold | grep -Fx {names} || :)"
        return f'apt_wait; {held}; [ -z "$h" ] || apt-mark unhold $h'


@dataclass(frozen=True, slots=True)
class AptRemove(Step):
    """Purge packages that are there; what others still need stays.

    Args:
        packages: their names.
        remnants: also purge what a run left of others that match this expression, as lines of ``dpkg.QUERY_FORMAT``.
    """

    packages: tuple[str, ...]
    remnants: str = ""

    @property
    def label(self) -> str:
        return f"remove {', '.join(self.packages)}"

    @property
    def timeout_s(self) -> int:
        return 1800

    @property
    def command(self) -> str:
        return f"apt-get purge {_words(self.packages)}"

    @property
    def inspect(self) -> str:
        return _TERM_LOG

    def script(self) -> str:
        names, also = _words(self.packages), ""
        if self.remnants:
            words = {"FORMAT": dpkg.QUERY_FORMAT, "MEMBERS": self.remnants}
            also = f"{shell.load('apt_remnants', 'gpustate.ops', **words)}also=$(apt_remnants)\n"
        return (
            f"apt_ready\n{also}"
            f"u=$(dpkg -L {names} 2>/dev/null | sed -n 's|.*/systemd/system/\\([^/@]*\\.service\\)$|\\1|p') || :\n"
            # Another state may have purged one of them, and apt fails where no source has it any more.
            f'p=; for n in {names}; do dpkg -s "$n" >/dev/null 2>&1 || continue; p="$p $n"; done\n'
            f'[ -z "$p{also and "$also"}" ] || no_links_left apt purge --allow-change-held-packages $p{also and " $also"} || {{ apt_needed {names}; exit 1; }}\n'
            # A service that had failed would be listed as failed for ever, with no unit behind it.
            'for n in $u; do systemctl cat "$n" >/dev/null 2>&1 || systemctl reset-failed "$n" 2>/dev/null || :; done\n'
            "effect removed"
        )
