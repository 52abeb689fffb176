"""Labels as a feature file of node feature discovery (NFD), and their syntax.

NFD reads ``features.d/*`` on the node: a line is ``name=value``, ``#`` begins a comment, files whose
names begin with a dot are left out, and one of more than 64 KiB is ignored. Comments of the form ``# +name`` are
directives: the next line is not a label (``no-label``), or no line from here on counts after a time (``expiry-time``).

Sources:
    kubernetes-sigs/node-feature-discovery v0.20, source/local/local.go, docs/usage/customization-guide.md;
    Kubernetes, "Labels and Selectors": syntax of names and values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

TIMESTAMP = "nvidia.com/gfd.timestamp"
LONGEST = 63

#: What Go's ``strings.TrimSpace`` removes: Python's ``strip`` takes four control characters more.
_BLANKS = "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
_EXPIRY = "# +expiry-time="
#: As Go parses it: with these, days of a month apart.
_TIME = re.compile(
    r"(?P<year>\d{4})-(?P<month>0[1-9]|1[0-2])-(?P<day>\d\d)T([01]\d|2[0-3]):[0-5]\d:[0-5]\d([.,]\d+)?"
    r"(Z|[+-]([01]\d|2[0-4]):[0-5]\d)",
    re.ASCII,
)
_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")


def as_text(labels: Mapping[str, str]) -> str:
    """One label a line, sorted."""
    return "".join(f"{name}={labels[name]}\n" for name in sorted(labels))


def parse(text: str) -> dict[str, str]:
    """Read a feature file like NFD, without the time at which it was written.

    Lines after an expiry time are ignored too: they are not labels, or soon expire.
    """
    labels: dict[str, str] = {}
    skip = expires = False
    for raw_line in text.split("\n"):
        line = raw_line.strip(_BLANKS)
        if line.startswith("#"):
            skip = skip or line.partition("=")[0] == "# +no-label"
            if line.startswith(_EXPIRY):
                expires = expires or _is_time(line.removeprefix(_EXPIRY).strip(_BLANKS))
            continue
        if not line or expires:
            continue
        name, equals, value = line.partition("=")
        if skip:
            labels.pop(name, None)
            skip = False
        else:
            labels[name] = value if equals else "true"
    labels.pop(TIMESTAMP, None)
    return labels


def _is_time(text: str) -> bool:
    match = _TIME.fullmatch(text)
    if match is None:
        return False
    year, month, day = int(match["year"]), int(match["month"]), int(match["day"])
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return 1 <= day <= _DAYS[month - 1] + (leap and month == 2)


def unfit(labels: Mapping[str, str]) -> dict[str, str]:
    """Labels that Kubernetes would refuse, with the reason; GFD writes them anyway."""
    reasons: dict[str, str] = {}
    for label, value in labels.items():
        name = label.partition("/")[2]
        if len(name) > LONGEST:
            reasons[label] = f"its name is longer than {LONGEST} characters"
        elif not _NAME.fullmatch(name):
            reasons[label] = "its name contains characters not allowed in label names"
        elif len(value) > LONGEST:
            reasons[label] = f"{value} is longer than {LONGEST} characters"
        elif value and not _NAME.fullmatch(value):
            reasons[label] = (
                f"{value!r} contains characters not allowed in label values, or begins or ends with punctuation"
            )
    return reasons
