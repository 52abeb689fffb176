"""Known errors of apt, dpkg and systemd, and their remedies.

apt reports one error in several lines, and rarely names the cause in the first one. The table is sorted by
how specific a line is: the first row that matches any line decides.

Sources:
    apt 2.6 and 3.0: apt-pkg/acquire-item.cc, deb/debmetaindex.cc, contrib/fileutl.cc, algorithms.cc;
    methods/connect.cc, methods/http.cc. dpkg 1.21 and 1.22: src/main/archives.c, lib/dpkg/parse.c.
"""

from __future__ import annotations

import re

from gpustate.formats.words import shorten

_ROOM = "free disk space there (apt-get clean, remove old kernels, df -h), then apply again"
_REACH = "check that the node can reach the repository (network, proxy, firewall), then apply again"
_TABLE: tuple[tuple[str, str], ...] = (
    (
        r"package lock is held by|It is held by process|Could not get lock",
        "wait until that process ends, or stop it, then apply again",
    ),
    (
        r"DKMS build error",
        "choose a driver version that supports this kernel, or fix its headers and compiler",
    ),
    (r"this would also remove|error: it is needed by \S", ""),
    (
        r"installed half-way, and not to be finished",
        "fix or remove these packages on the node (dpkg --audit lists the problems), then apply again",
    ),
    (r"No space left on device|enough free space", _ROOM),
    (
        r"Read-only file system",
        "remount it read-write (dmesg may show why it is read-only), then apply again",
    ),
    (
        r"trying to overwrite .* which is also in package",
        "remove that package, or the file from it, then apply again",
    ),
    (
        r"changed its '.*' value",
        "if this is expected, run apt-get update --allow-releaseinfo-change on the node, then apply again",
    ),
    (
        r"Hash Sum mismatch|unexpected size|Mirror sync in progress",
        "the repository is being updated or is corrupt, or a proxy serves stale files: fix that or wait, then apply again",
    ),
    (
        r"NO_PUBKEY|BADSIG|Missing key|is not signed|no longer signed|invalid signature|verification failed|Bad signature",
        "the repository is not signed with the policy's key: check key and fingerprint in the policy, and its publisher",
    ),
    (
        r"is not valid yet",
        "the node's clock is slow, or the repository was published with a fast clock: synchronise the clocks",
    ),
    (
        r"is expired|Valid-Until",
        "the repository is no longer updated: contact its publisher, or use another one",
    ),
    (
        r"\b401 +\S|\b401$|Login to .* failed|Authentication required",
        "the repository refuses this login: check username and password in the policy",
    ),
    (
        r"\b40[34] +\S|does not have a Release file|Filename.*not found",
        "the repository lacks files of its index: update the mirror, or correct its address",
    ),
    (
        r"Could not connect|Unable to connect|Connection (timed out|refused|failed|reset)|Could not resolve|"
        r"Temporary failure|Error reading from server|Undetermined Error|server closed|Cannot initiate the connection|"
        r"\b50\d +\S",
        _REACH,
    ),
    (
        r"parsing file '/var/lib/dpkg|MergeList /var/lib/dpkg/status",
        "replace /var/lib/dpkg/status with /var/lib/dpkg/status-old or a copy from /var/backups",
    ),
    (
        r"MergeList (?P<path>/var/lib/apt/lists/\S+)|Unable to parse package file (?P<path2>/var/lib/apt/lists/\S+)",
        "on the node, rm '{path}' and run apt-get update",
    ),
    (
        r"Problem executing scripts|Failure running (hook|script)|Sub-process .*(preconfigure|listchanges)",
        "fix or remove the hook in /etc/apt/apt.conf.d, then apply again",
    ),
    (
        r"subprocess (returned error|was killed)|script .* failed",
        "see the newest /var/lib/gpustate/runs/*/apt.log on the node, fix the error, then apply again",
    ),
    (
        r"have unmet dependencies|held broken packages|generated breaks|Unable to satisfy|impossible situation",
        "a pin, a hold or a missing package prevents it (apt-cache policy, apt-mark showhold, apt-get check): "
        "remove or release it, then apply again",
    ),
    (
        r"Unmet dependencies|dependency problems",
        "run apt-get check on the node, and install the missing packages or remove those that need them",
    ),
    (
        r"Version '.*' for '.*' was not found|Unable to locate package|has no installation candidate",
        "the repository no longer has this version: choose another one, or update the mirror",
    ),
    (
        r"(?P<path>\S+) (did not come up|does not run): \S",
        "fix the service (see journalctl -u {path} on the node), then apply again",
    ),
    (
        r"Job for (?P<path>\S+) failed because",
        "see journalctl -u {path} on the node for the cause, then apply again",
    ),
    (
        r"error processing (package|archive)",
        "see the newest /var/lib/gpustate/runs/*/apt.log on the node, fix the error, then apply again",
    ),
)
_MARKED = re.compile(r"E: |error: |dpkg: error ")
_ROWS = tuple((re.compile(pattern), move) for pattern, move in _TABLE)


def find_error(output: str) -> tuple[str, str] | None:
    """The line of an output that names the error, and the remedy (empty if the line includes it).

    ``None`` if no line is known.
    """
    lines = [line.rstrip() for line in output.splitlines()]
    # A line marked as an error also names the file.
    order = sorted(range(len(lines)), key=lambda n: not _MARKED.match(lines[n]))
    for pattern, move in _ROWS:
        for number in order:
            if found := pattern.search(lines[number]):
                paths = [path for path in found.groupdict().values() if path]
                return _whole(lines, number), move.format(path=paths[0] if paths else "")
    return None


def _whole(lines: list[str], number: int) -> str:
    """A line joined with the one it belongs to; dpkg splits most messages into two lines."""
    line = lines[number].strip()
    after = lines[number + 1].strip() if number + 1 < len(lines) else ""
    before = lines[number - 1].strip() if number else ""
    if line.endswith(":") and after:
        line = f"{line} {after}"
    elif before.endswith(":") and lines[number].startswith(" "):
        line = f"{before} {line}"
    return shorten(line, 400)
