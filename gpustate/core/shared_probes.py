"""What several fragments want to know of a node, found out once, ahead of all of them.

A fragment writes :func:`show_unit`, :data:`APT_KEY` or ``${KERNEL_RELEASE-$(uname -r)}`` where it would call a program:
each is a variable with that call as its default. Where fragments leave together the variable is set by what
:func:`early` or :func:`prelude` puts before them; everywhere else, in a step or alone, the default does the same.

Programs whose answer depends on files alone are asked again only when one of those files is another:
:data:`KEPT`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from typing import NamedTuple

from gpustate import shell
from gpustate.formats import systemd

_KEYS = (
    *systemd.SHOW_KEYS,
    *("MainPID", "NRestarts", "InactiveExitTimestampMonotonic", "ExecMainStartTimestamp"),
    "ExecStart",
)
_SHOW = f"timeout -k 2 10 systemctl show -p {','.join(_KEYS)} --"
_PLAIN = "--plain --no-legend --no-pager --"
_FILES = f"timeout -k 2 10 systemctl list-unit-files {_PLAIN}"
_UNIT_REFERENCE = re.compile(r"\$\{(U_\w+)-\$\(" + re.escape(_SHOW) + r" ([^ ]+) 2>/dev/null\)\}")


class Shared(NamedTuple):
    """An answer that several fragments want.

    Args:
        variables: that have it.
        text: of fragments that want it.
        setting: sh that sets the variables ahead of them.
        slow: fragments that do without it run meanwhile.
    """

    variables: tuple[str, ...]
    text: str
    setting: str
    slow: bool = False


def _shared(variable: str, value: str, *, slow: bool = False) -> Shared:
    return Shared((variable,), f"${{{variable}-{value}}}", f"{variable}={value}\n", slow)


_APT_FILES = (
    '"${APT_CONFIG-/nowhere}" /etc/apt/*.conf /etc/apt/apt.conf.d/* /etc/apt/preferences /etc/apt/preferences.d/* '
    "/etc/apt/sources.list /etc/apt/sources.list.d/* /var/lib/apt/lists /var/lib/apt/lists/* "
    "/var/lib/dpkg/status /var/lib/dpkg/updates /var/lib/dpkg/updates/* /var/lib/dpkg/arch /var/lib/gpustate-bundle/*"
)
_RPM_FILES = (
    "/etc/dnf/dnf.conf /etc/dnf/vars/* /etc/dnf/modules.d/*.module /etc/yum.repos.d/*.repo "
    "/var/cache/dnf/*/repodata/repomd.xml "
    "/etc/zypp/zypp.conf /etc/zypp/repos.d/*.repo /var/cache/zypp/raw/*/repodata/repomd.xml "
    "/var/lib/gpustate-bundle/repos.d/*.repo"
)
# Of each file that gpustate has changed or made: where its bytes from before are kept, or would be, and its path.
_ORIGINALS = '$(for k in "$G"/originals/*.path; do [ -r "$k" ] || continue; f=; IFS= read -r f <"$k"; printf "%s|%s\\n" "${k%.path}" "$f"; done)'
_SHARED = (
    _shared("KERNEL_RELEASE", "$(uname -r)"),
    _shared("NOW", "$(date +%s)"),
    _shared("ORIGINALS", _ORIGINALS),
    _shared(
        "APT_KEY", f"$(stat -c '%n %s %y %z %i' {_APT_FILES} 2>/dev/null | sha256sum)", slow=True
    ),
    # The kernel walks its whole table of connections for it.
    _shared("LISTENING", "$(grep -sh ' 0A ' /proc/net/tcp /proc/net/tcp6)", slow=True),
)
_TEXTS = {answer.variables[0]: answer.text for answer in _SHARED}
#: sh: the time, in seconds since 1970: in double quotes or a here-document, like those that follow.
TIME_S = _TEXTS["NOW"]
#: sh: rows ``KEPT|PATH`` of the files that gpustate has changed or made.
ORIGINALS = _TEXTS["ORIGINALS"]
#: sh: what apt's and dpkg's answers depend on, for ``kept``.
APT_KEY = _TEXTS["APT_KEY"]
#: sh: what dnf's and zypper's answers depend on, likewise.
RPM_KEY = f"$(stat -c '%n %s %Y %i' {_RPM_FILES} 2>/dev/null | sha256sum)"
#: sh: the rows of ``/proc/net/tcp`` and ``tcp6`` of sockets that listen.
LISTENING = _TEXTS["LISTENING"]

#: Defines ``kept NAME KEY COMMAND...``: prints what the command printed when the key was last the same, and
#: runs it otherwise. Only the answer of a command that ended well is kept. The shell itself reads a short one:
#: to start a program takes as long as two thousand bytes.
KEPT = shell.load("kept", "gpustate.core")
#: Defines ``foreign_pins`` and ``pins_of``, whose rows :mod:`gpustate.formats.aptsources` reads.
FOREIGN_PINS = shell.load("foreign_pins", "gpustate.core")

#: The variables of which there is one each; whoever logs in may have some of these names set.
VARIABLES = (*_TEXTS, "UNIT_FILES")


def _variable(unit: str) -> str:
    return "U_" + re.sub(r"\W", "_", unit, flags=re.ASCII)


def show_unit(unit: str) -> str:
    """Sh for ``Key=value`` lines of a unit as it is when the fragments begin: in double quotes or a here-document.

    The keys are those of :class:`gpustate.formats.systemd.Unit`, SubState, MainPID, NRestarts, ExecStart, and times of the start.
    """
    return f"${{{_variable(unit)}-$({_SHOW} {shlex.quote(unit)} 2>/dev/null)}}"


def unit_files(names: Iterable[str]) -> str:
    """Sh for what ``systemctl list-unit-files --plain`` says of at least some units: in double quotes."""
    return f"${{UNIT_FILES-$({_FILES} {shlex.join(names)} 2>/dev/null)}}"


def refers(fragment: str) -> bool:
    """Whether a fragment wants to know what :func:`prelude` takes long to find out."""
    slow = (answer.text for answer in _SHARED if answer.slow)
    return any(mark in fragment for mark in ("${U_", "${UNIT_FILES-", *slow))


def _settings(fragments: str, *shared: Shared) -> str:
    return "".join(answer.setting for answer in shared if fragments.count(answer.text) > 1)


def early(fragments: str, *more: Shared) -> str:
    """Sh that sets what is found out at once, and what fragments that :func:`refers` leaves free want to know, too."""
    return _settings(fragments, *(answer for answer in _SHARED if not answer.slow), *more)


def prelude(fragments: str) -> str:
    """Sh that sets what fragments refer to; empty where they refer to nothing."""
    units = {unit: variable for variable, unit in _UNIT_REFERENCE.findall(fragments)}
    text = ""
    if len(units) > 1:
        rows = " ".join(f"'{variable} {unit}'" for unit, variable in units.items())
        text += shell.fill(
            _UNITS,
            ROWS=rows,
            FILES=f"{_FILES} {FILE_OF_ALL} {' '.join(units)}",
            FILE=FILE_OF_ALL,
            SHOW=_SHOW,
            VARIABLES=" ".join(units.values()),
            END="\x1e",
        )
    return text + _settings(fragments, *(answer for answer in _SHARED if answer.slow))


#: A unit file of every systemd: were it not listed, the list could not be trusted.
FILE_OF_ALL = "basic.target"
# systemd takes milliseconds to show one unit, and to list a hundred. So those that neither have a file nor run, in a
# control group of their own, are not shown. Blocks come in the order that was asked for; were one missing, or the
# list, each fragment asks for itself. An instance is listed by the name of its template. The shell would take as
# long as a program to cut a text at empty lines.
_UNITS = shell.load("units", "gpustate.core")

__all__ = [
    "APT_KEY",
    "KEPT",
    "LISTENING",
    "ORIGINALS",
    "RPM_KEY",
    "TIME_S",
    "VARIABLES",
    "Shared",
    "early",
    "prelude",
    "refers",
    "show_unit",
    "unit_files",
]
