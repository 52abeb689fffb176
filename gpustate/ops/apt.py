"""Steps about apt's packages.

What they call on the node is in :mod:`gpustate.ops.packages`.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from gpustate import shell
from gpustate.core.step import Step
from gpustate.formats import dpkg
from gpustate.ops.package_steps import Hold, Install, Remove

_q, _words = shlex.quote, shlex.join
#: What maintainer scripts printed last, and what dpkg leaves unfinished.
_TERM_LOG = "tail -n 50 /var/log/apt/term.log; dpkg --audit"


@dataclass(frozen=True, slots=True)
class AptUpdate(Step):
    """Read the package lists, of all sources or of one list file only.

    Args:
        source_list: a file below /etc/apt/sources.list.d whose repository alone is read.
        hosts: of all sources, those whose errors count; without any, every error does.
        roll_back: files that are put back as they were before this run when they cannot be read, for
            a repository that does not work stops every other use of apt.
    """

    source_list: str | None = None
    roll_back: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()

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
        update = f"apt_update {_words(self.hosts)}"
        if self.source_list:
            only = f"-o Dir::Etc::sourcelist={_q(self.source_list)} -o Dir::Etc::sourceparts=-"
            update = f"apt update {only} -o APT::Get::List-Cleanup=0 -o APT::Update::Error-Mode=any"
        return (
            # apt does not fetch again what it has, be it cut off, as long as the repository says the same.
            "find /var/lib/apt/lists -maxdepth 1 -type f -name '*_Packages*' -size 0 -delete 2>/dev/null || :\n"
            f"if apt_wait && {update}; then apt_lists_kept; exit 0; fi\n"
            + (f"roll_back {_words(self.roll_back)}\n" if self.roll_back else "")
            + "exit 1"
        )


class AptInstall(Install):
    """Installs with apt-get; an empty version is apt's candidate.

    ``command`` is what messages show; :meth:`script` runs, by the functions of ``packages.sh``.
    """

    @property
    def command(self) -> str:
        return f"apt-get install {' '.join(self._arguments())}"

    @property
    def inspect(self) -> str:
        return _TERM_LOG

    def _arguments(self) -> list[str]:
        again = ["--reinstall"] if self.reinstall else []
        words = [_q(f"{name}={version}" if version else name) for name, version in self.packages]
        return [*again, *words, *(_q(f"{name}-") for name in self.remove)]

    def script(self) -> str:
        names = _words(tuple(name for name, _ in self.packages))
        words = " ".join(self._arguments())
        roll_back = f"roll_back {_words(self.roll_back)}"
        lines = [
            f"{{ apt_ready && along apt_fetch {words}; }} || {{ {roll_back}; exit 1; }}",
            f'along apt_swap {words} || {{ [ -z "$ROLLED" ] || {roll_back}; exit 1; }}',
        ]
        if self.along:
            lines = [f"if came {words}; then effect installed; else", *lines, "fi"]
        if self.hold:
            lines.append(f"apt_wait; apt-mark hold {names}")
        return "\n".join(lines)


class AptHold(Hold):
    """Holds with apt-mark."""

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


class AptRemove(Remove):
    """Purges with apt-get; what others still need stays."""

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
