"""Known errors of apt, dpkg, dnf, dnf5, zypper, rpm and systemd, and their remedies.

Package managers report one error in several lines, and rarely name the cause in the first one. The table is sorted
by how specific a line is: the first row that matches any line decides.

Sources:
    Public reports, each with its address in tests/data/package-errors.yaml; apt 2.6 and 3.0: apt-pkg/acquire-item.cc, deb/debmetaindex.cc, contrib/fileutl.cc, algorithms.cc;
    methods/connect.cc, methods/http.cc. dpkg 1.21 and 1.22: src/main/archives.c, lib/dpkg/parse.c.
"""

from __future__ import annotations

import itertools
import re

from gpustate.formats.words import shorten

_ROOM = (
    "free disk space there (clean the package cache, remove old kernels, df -h), then apply again"
)
_KEY = "the repository is not signed with the policy's key: check key and fingerprint in the policy, and its publisher"
_REACH = "check that the node can reach the repository (network, proxy, firewall), then apply again"
#: A repository's server that cannot be reached; apt then also reports what it lacks of the repository.
UNREACHABLE = (
    r"Could(n't| not) connect|Timeout was reached|Unable to connect|Connection (timed out|refused|failed|reset)|connection timed out|No route to host|"
    r"Could(n't| not) resolve|Cannot initiate the connection|Temporary failure"
)
#: A repository that wants another login.
LOGIN_REFUSED = r"\b401 +\S|\b401$|Login to .* failed|Authentication required"
#: A repository's index that is dated in the node's future.
TOO_EARLY = r"is not valid yet|is not yet valid"
CLOCK = "the node's clock is slow, or the repository was published with a fast clock: synchronise the clocks"
_UNMET = (
    "a pin, a hold or a missing package prevents it (apt-cache policy, apt-mark showhold, apt-get check): "
    "remove or release it, then apply again"
)
#: apt's word for it names the keys and not the files.
SIGNED_BY = (
    "apt refuses to work with two entries of one repository and different Signed-By: remove the foreign entry from "
    "/etc/apt/sources.list.d, or the package that brings it (cuda-keyring), then apply again"
)
_TABLE: tuple[tuple[str, str], ...] = (
    (
        r"package lock is held by|It is held by process|Could not get lock|System management is locked by|"
        r"Failed to obtain (rpm |the )?transaction lock|can't create transaction lock|"
        r"locked by another process|, is another process using it\?",
        "wait until that process ends, or stop it, then apply again",
    ),
    (
        r"error: /usr/src/\S+ is not as package \S+ brought it",
        "reinstall that package at its version (apt-get install --reinstall, dnf reinstall), then apply again",
    ),
    (
        r"DKMS build error",
        "choose a driver version that supports this kernel, or fix its headers and compiler",
    ),
    (
        r"The package (?P<path>\S+) needs to be reinstalled, but I can't find an archive for it",
        "it is half-installed, and no repository of the node has it: run dpkg --remove --force-remove-reinstreq {path} on "
        "the node, then apply again",
    ),
    (r"this would also remove|error: it is needed by \S", ""),
    (
        r"nothing provides '?dkms\b.* needed by",
        "no enabled repository has this version of DKMS; on Red Hat Enterprise Linux and its kin it is in EPEL: docs/packages.md "
        "has the commands",
    ),
    (
        r"nothing provides .* needed by",
        "no enabled repository has what this package needs: enable the distribution's other repositories (CRB and EPEL, "
        "the modules of SLES), or choose another version",
    ),
    (
        r"\bfile /\S+ (from install of|conflicts between)|^File /\S+$",
        "two packages bring this file: remove the foreign one, or disable its repository, then apply again",
    ),
    (
        r"It is not possible to switch enabled streams",
        "run dnf module reset nvidia-driver on the node, then apply again",
    ),
    (
        r"filtered out by (exclude|modular) filtering",
        "an exclude, a lock or a module stream hides it (exclude in /etc/dnf/dnf.conf, dnf versionlock list, dnf module "
        "list): release it, then apply again",
    ),
    (
        r"\bconflicts with .* provided by|cannot install both|the (to be )?installed .* (conflicts|obsoletes) |\bobsoletes .* provided by",
        "remove the package that is in the way, or disable its repository, then apply again",
    ),
    (
        r"\brequires .*, but (none of the providers can be installed|this requirement cannot be provided)",
        "the repositories do not fit together, or a package is held: enable what is missing, or choose another version",
    ),
    (
        r"installed half-way, and not to be finished",
        "run dpkg --configure -a on the node to see why, fix or remove these packages, then apply again",
    ),
    (
        r"No space left on device|Disk quota exceeded|enough free space|more space needed on|needs [0-9]+[KMG]i?B (more space )?on the|"
        r"MiB free, and the packages need",
        _ROOM,
    ),
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
        r"Hash Sum mismatch|unexpected size|Mirror sync in progress|checksum doesn't match|Parsing unsuccessful",
        "the repository is being updated or is corrupt, or a proxy serves stale files: fix that or wait, then apply again",
    ),
    # apt also says that what it could not fetch is not signed.
    (LOGIN_REFUSED, "the repository refuses this login: check username and password in the policy"),
    (
        r"NO_PUBKEY|BADSIG|Missing key|is not signed|no longer signed|invalid signature|[Vv]erification failed|Bad signature|"
        r"Public key .*is not installed|not correct for this package|signed with an unknown key|is unsigned|"
        r"PGP check .* failed|GPG check FAILED|GPG signature (verification error|is not available)|EXPKEYSIG|signatures were invalid|not considered secure",
        _KEY,
    ),
    (TOO_EARLY, CLOCK),
    (
        r"certificate has expired",
        "the repository's certificate has expired, or the node's clock is fast: check the clock, or use another mirror",
    ),
    (
        r"SSL certificate problem|[Pp]eer certificate",
        "the node does not trust the repository's certificate: install the CA of the mirror or proxy, then apply again",
    ),
    (
        r"is expired|Valid-Until",
        "the repository is no longer updated: contact its publisher, or use another one",
    ),
    (UNREACHABLE, _REACH),
    (
        r"\b40[34] +\S|does not have a Release file|Filename.*not found|not found on medium",
        "the repository lacks files of its index: update the mirror, or correct its address",
    ),
    (
        r"Error reading from server|Undetermined Error|server closed|"
        r"\b50\d +\S|Curl error \(|Download \(curl\) error|Timeout exceeded|All mirrors were tried|No more mirrors",
        _REACH,
    ),
    (
        r"DB_RUNRECOVERY|rpmdb open failed|cannot open Packages database|database disk image is malformed",
        "rpm's database is damaged: run rpm --rebuilddb on the node, then apply again",
    ),
    (
        r"is a duplicate with|unfinished transactions",
        "an earlier installation was interrupted: run dnf remove --duplicates on the node, then apply again",
    ),
    (
        r"scriptlet failed|Error in \w+ scriptlet",
        "see /var/log/dnf.rpm.log or /var/log/zypp/history on the node, fix the error, then apply again",
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
        "see the newest /var/lib/gpustate/runs/*/apt.log, or run dpkg --configure -a on the node, fix the error, then apply "
        "again",
    ),
    (
        r"(Depends|Breaks|Conflicts): \S.* but (it is not installable|\S+ is (to be )?installed)",
        _UNMET,
    ),
    (
        r": (Breaks|Conflicts): \S",
        "the first package named is in the way: remove it, or choose another version, then apply again",
    ),
    (r"have unmet dependencies", _UNMET),
    (
        r"held broken packages|generated breaks|Unable to satisfy|impossible situation|"
        r"Held packages were changed|Packages were downgraded",
        _UNMET,
    ),
    (r"dpkg was interrupted", "run dpkg --configure -a on the node, then apply again"),
    (r"Conflicting values set for option Signed-By", SIGNED_BY),
    (
        r"Unmet dependencies|dependency problems",
        "run apt-get check on the node, and install the missing packages or remove those that need them",
    ),
    (
        r"Version '.*' for '.*' was not found|Unable to locate package|has no installation candidate|"
        r"No match for argument|Unable to find a match|No provider of '.*' found|' not found in package names",
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
#: What dnf and zypper print whatever comes of it.
NOISE = re.compile(
    r"Detection of Platform Module failed|Unable to read consumer identity|not registered with an entitlement|"
    r"Choose from above solutions|Failed to set locale|^\[?SKIPPED"
)
#: What apt prints ahead of its errors; it may leave the line open.
_PROGRESS = re.compile(
    r"(Reading package lists|Building dependency tree|Reading (extended )?state information)\.\.\.( Done)?\s*"
)
_RELATION = re.compile(r"(Pre)?(Depends|Breaks|Conflicts): ")
_MARKED = re.compile(r"E: |error: |dpkg: error ")


def without_progress(output: str) -> str:
    """The output without apt's lines of progress."""
    return _PROGRESS.sub("", output)


def find_error(output: str) -> tuple[str, str] | None:
    """The line of an output that names the error, and the remedy (empty if the line includes it).

    ``None`` if no line is known.
    """
    lines = [line.rstrip() for line in without_progress(output).splitlines()]
    # A line marked as an error also names the file.
    order = sorted(range(len(lines)), key=lambda n: not _MARKED.match(lines[n]))
    for pattern, move in _TABLE:
        for number in order:
            if match := re.search(pattern, lines[number]):
                paths = [path for path in match.groupdict().values() if path]
                return _full_message(lines, number), move.format(path=paths[0] if paths else "")
    return None


def _full_message(lines: list[str], number: int) -> str:
    """A line joined with those it belongs to; dpkg splits most messages into two lines."""
    line = lines[number].strip()
    if line.startswith("File /"):
        parts = itertools.takewhile(str.strip, lines[number:])
        return shorten(" ".join(part.strip() for part in parts), 400)
    after = lines[number + 1].strip() if number + 1 < len(lines) else ""
    before = lines[number - 1].strip() if number else ""
    if _RELATION.match(line):
        # Further relations of a package follow below the first one, which names it.
        owner = next((c for c in reversed(lines[:number]) if " : " in c), "")
        line = f"{owner.partition(' : ')[0].strip()} : {line}"
    if line.endswith(":") and after:
        line = f"{line} {after}"
    elif before.endswith(":") and before != "Error:" and lines[number].startswith(" "):
        line = f"{before} {line}"
    return shorten(line.removeprefix("- "), 400)
