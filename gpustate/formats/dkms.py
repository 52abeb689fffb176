"""Find the cause of a failed DKMS build in its log.

Sources:
    dkms(8): ``/var/lib/dkms/NAME/VERSION/build/make.log`` stays behind when a build fails;
    its first line, "DKMS make.log for NAME-VERSION for kernel RELEASE (ARCH)".
    NVIDIA/gpu-operator#504, #564, #1251: compilers and headers that do not fit the kernel.
"""

from __future__ import annotations

import re

#: Relevant lines of a log on a node, for grep -E.
INTERESTING_ERE = r"DKMS.*make\.log for|[Ee]rror:|ERROR|not found|No such file|No space left|\*\*\*|Killed|rejected"

#: The cause in a log, for grep -E: equal to ``first_error`` in nearly every case.
CAUSE_ERE = (
    r"(fatal )?error: |ERROR: modpost|No space left|Killed|(gcc|cc|clang|ld)[-.0-9]*: .*not found"
)

_HEADER = re.compile(
    r"DKMS.*make\.log for (?P<name>\S+)-(?P<version>[0-9]\S*) for kernel (?P<kernel>\S+)"
)
# Causes first; make's follow-up messages only if there is nothing better.
_CAUSES = (
    re.compile(r"No space left on device"),
    re.compile(r"Killed signal|: Killed\b"),
    re.compile(r"\b(fatal )?error: "),
    re.compile(r"^ERROR: modpost:"),
    re.compile(r"(gcc|cc|clang|ld|make)[-.\w]*: (command )?not found"),
    re.compile(r"\b(gcc|cc|clang|ld)[-.\w]*: No such file or directory"),
    re.compile(r"^\*\*\* .*(Unable|[Ff]ail).*\*\*\*"),
    re.compile(r"\*\*\*.*No rule to make target"),
    re.compile(r"No such file or directory"),
    re.compile(r"\*\*\*"),
    re.compile(r"ERROR|[Ee]rror:"),
)


def log_kernel(text: str) -> str | None:
    """The kernel of a make.log, from its first line."""
    match = _HEADER.search(text)
    return match.group("kernel") if match else None


def first_error(text: str) -> str | None:
    """The line with the cause of the failure, without the build folder."""
    lines = [line.strip() for line in text.splitlines() if not _HEADER.search(line)]
    for cause in _CAUSES:
        for line in lines:
            if cause.search(line):
                return re.sub(r"(?<![\w/.-])/\S*/build/", "", line)
    return None
