"""Labels as a feature file of node feature discovery (NFD), and what no label may be.

NFD reads ``features.d/*`` on the node: a line is ``name=value``, ``#`` begins a comment, files whose
names begin with a dot are left out, and one of more than 64 KiB is ignored.

Sources:
    kubernetes-sigs/node-feature-discovery v0.20, source/local/local.go, docs/usage/customization-guide.md;
    Kubernetes, "Labels and Selectors": syntax of names and values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

TIMESTAMP = "nvidia.com/gfd.timestamp"
MOST_BYTES = 65536
LONGEST = 63

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?")


def as_text(labels: Mapping[str, str]) -> str:
    """One label a line, sorted."""
    return "".join(f"{name}={labels[name]}\n" for name in sorted(labels))


def parse(text: str) -> dict[str, str]:
    """Read a feature file as NFD does; the time at which it was written is left out."""
    labels: dict[str, str] = {}
    for line in text.splitlines():
        line = line.strip()
        if line and not line.startswith("#"):
            name, equals, value = line.partition("=")
            labels[name] = value if equals else "true"
    labels.pop(TIMESTAMP, None)
    return labels


def unfit(labels: Mapping[str, str]) -> dict[str, str]:
    """Labels that Kubernetes would refuse, with the reason; GFD writes them all the same."""
    found: dict[str, str] = {}
    for label, value in labels.items():
        name = label.partition("/")[2]
        if len(name) > LONGEST:
            found[label] = f"its name is longer than {LONGEST} characters"
        elif not _NAME.fullmatch(name):
            found[label] = "its name holds characters that no label's name may"
        elif len(value) > LONGEST:
            found[label] = f"{value} is longer than {LONGEST} characters"
        elif value and not _NAME.fullmatch(value):
            found[label] = f"{value!r} begins or ends with a sign, or holds one that no label may"
    return found
