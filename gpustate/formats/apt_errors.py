"""What apt, dpkg and systemd complain of, and what a person does about it.

apt says the same trouble in several lines, of which the first is rarely the one that names it, and
seldom what to do. The table is in the order of how much a line tells: the first row that fits any line
decides.

Sources:
    apt 2.6 and 3.0: apt-pkg/acquire-item.cc, deb/debmetaindex.cc, contrib/fileutl.cc, algorithms.cc;
    methods/connect.cc, methods/http.cc. dpkg 1.21 and 1.22: src/main/archives.c, lib/dpkg/parse.c.
"""

from __future__ import annotations

import re

_ROOM = "make room there (apt-get clean, old kernels, df -h), then apply again"
_REACH = "see that the node reaches the repository (network, proxy, firewall), then apply again"
_TABLE: tuple[tuple[str, str], ...] = (
    (
        r"package lock is held by|It is held by process|Could not get lock",
        "wait until that has ended, or stop it, then apply again",
    ),
    (
        r"DKMS build error",
        "choose a driver version that supports this kernel, or fix its headers and compiler",
    ),
    (r"this would also remove|error: it is needed by \S", ""),
    (
        r"installed half-way, and not to be finished",
        "fix or remove them on the node (dpkg --audit says what is amiss), then apply again",
    ),
    (r"No space left on device|enough free space", _ROOM),
    (
        r"Read-only file system",
        "mount it read-write (dmesg may say why it is not), then apply again",
    ),
    (
        r"trying to overwrite .* which is also in package",
        "remove that package, or the file from it, then apply again",
    ),
    (
        r"changed its '.*' value",
        "if that is meant, run apt-get update --allow-releaseinfo-change on the node, then apply again",
    ),
    (
        r"Hash Sum mismatch|unexpected size|Mirror sync in progress",
        "the repository is being updated or is damaged, or a proxy serves old files: fix that or wait, then apply again",
    ),
    (
        r"NO_PUBKEY|BADSIG|Missing key|is not signed|no longer signed|invalid signature|verification failed|Bad signature",
        "the repository is not signed with the key of the policy: check key and fingerprint there, and who publishes it",
    ),
    (
        r"is not valid yet",
        "the node's clock is slow, or that of the repository's publisher is fast: set it",
    ),
    (
        r"is expired|Valid-Until",
        "the repository is no longer kept up to date: ask who publishes it, or use another one",
    ),
    (
        r"\b401 +\S|\b401$|Login to .* failed|Authentication required",
        "the repository refuses this login: check username and password in the policy",
    ),
    (
        r"\b40[34] +\S|does not have a Release file|Filename.*not found",
        "the repository does not have what its index names: bring it up to date, or correct its address",
    ),
    (
        r"Could not connect|Unable to connect|Connection (timed out|refused|failed|reset)|Could not resolve|"
        r"Temporary failure|Error reading from server|Undetermined Error|server closed|Cannot initiate the connection|"
        r"\b50\d +\S",
        _REACH,
    ),
    (
        r"parsing file '/var/lib/dpkg|MergeList /var/lib/dpkg/status",
        "put /var/lib/dpkg/status-old, or a copy from /var/backups, in the place of /var/lib/dpkg/status",
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
        "see the newest /var/lib/gpustate/runs/*/apt.log on the node, fix what it says, then apply again",
    ),
    (
        r"have unmet dependencies|held broken packages|generated breaks|Unable to satisfy|impossible situation",
        "something on the node or in the repository forbids it (apt-cache policy, apt-mark showhold, apt-get "
        "check): remove or release that, then apply again",
    ),
    (
        r"Unmet dependencies|dependency problems",
        "on the node, see what is amiss with apt-get check, and install what it lacks or remove what lacks it",
    ),
    (
        r"Version '.*' for '.*' was not found|Unable to locate package|has no installation candidate",
        "the repository does not offer it any more: name another version, or bring the mirror up to date",
    ),
    (
        r"(?P<path>\S+) (did not come up|does not run): \S",
        "fix that (journalctl -u {path} on the node says more), then apply again",
    ),
    (
        r"Job for (?P<path>\S+) failed because",
        "see journalctl -u {path} on the node for why, then apply again",
    ),
    (
        r"error processing (package|archive)",
        "see the newest /var/lib/gpustate/runs/*/apt.log on the node, fix what it says, then apply again",
    ),
)
_MARKED = re.compile(r"E: |error: |dpkg: error ")
_ROWS = tuple((re.compile(pattern), move) for pattern, move in _TABLE)


def trouble(output: str) -> tuple[str, str] | None:
    """The line of an output that names the trouble, and the next move ("" where the line says it).

    ``None`` where nothing is known about any line.
    """
    lines = [line.rstrip() for line in output.splitlines()]
    # A line that is marked as an error names the file as well.
    order = sorted(range(len(lines)), key=lambda n: not _MARKED.match(lines[n]))
    for pattern, move in _ROWS:
        for number in order:
            if found := pattern.search(lines[number]):
                paths = [path for path in found.groupdict().values() if path]
                return _whole(lines, number), move.format(path=paths[0] if paths else "")
    return None


def _whole(lines: list[str], number: int) -> str:
    """A line with the one it introduces, or was introduced by; dpkg says most things in two."""
    line = lines[number].strip()
    after = lines[number + 1].strip() if number + 1 < len(lines) else ""
    before = lines[number - 1].strip() if number else ""
    if line.endswith(":") and after:
        line = f"{line} {after}"
    elif before.endswith(":") and lines[number].startswith(" "):
        line = f"{before} {line}"
    return line[:400]
