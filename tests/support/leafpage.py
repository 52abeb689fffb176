"""The manual's page of all leaves, made of the records; a test compares, ``--update-golden`` writes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from gpustate.gpu_operator import history
from gpustate.gpu_operator.blocks import Fate
from gpustate.gpu_operator.helm import NIL_IS_ON
from gpustate.gpu_operator.records import TITLES, Record, records

FATES = {
    Fate.HONOURED: "honoured",
    Fate.KUBERNETES: "Kubernetes only",
    Fate.NO_MEANING: "no meaning on a host",
    Fate.LATER: "not carried out",
    Fate.DEPRECATED: "deprecated",
    Fate.DEAD: "dead",
}
HEAD = """\
# Every leaf of the GPU Operator's files

Made from the records that the reader and `gpustate lint` go by; a test holds this page and the records
against each other, and the records against the Operator's own schemas. Counted over {source}.

| kind | leaves | {fates} |
| --- | ---: | {rulers} |
{counts}

What the classes mean is told in [operator-files.md](operator-files.md). *Since* is the release that
brought the key, *default* what the API server fills in, for Helm values what the chart's values.yaml
does. `[]` is any element of a list.

## Where the chart and a bare ClusterPolicy differ

A key that a file leaves out means one thing in a ClusterPolicy and another in Helm values. Versions and
images are left out here: those of the chart change with each release, and a ClusterPolicy has the
Operator's own.

| key | left out of a ClusterPolicy | left out of Helm values |
| --- | --- | --- |
{differences}
"""


def page() -> str:
    """The whole page."""
    text = HEAD.format(
        source=history.source(),
        fates=" | ".join(FATES.values()),
        rulers=" | ".join("---:" for _ in FATES),
        counts="\n".join(_counts()),
        differences="\n".join(_differences()),
    )
    return text + "".join(f"\n{line}" for kind in TITLES for line in _table(kind)) + "\n"


def _counts() -> Iterator[str]:
    for kind, title in TITLES.items():
        found = records(kind)
        counts = Counter(record.fate for record in found.values())
        cells = " | ".join(str(counts[fate]) for fate in FATES)
        yield f"| {title} | {len(found)} | {cells} |"


def _differences() -> Iterator[str]:
    policy, chart = records("clusterpolicy"), records("helm")
    for path, record in policy.items():
        other = chart.get(path)
        if other is None or other.filled_by != "chart" or _is_image(path):
            continue
        if path.endswith(".enabled") and record.default is None:
            here: Any = path in NIL_IS_ON
            said = f"{'on' if here else 'off'}, as the Operator takes it"
        else:
            here, said = record.default, _shown(record.default) or "nothing"
        if here != other.default and (here or other.default):
            yield f"| `{path}` | {said} | {_shown(other.default)} |"


def _is_image(path: str) -> bool:
    return path.endswith((".version", ".repository", ".image", ".imagePullPolicy"))


def _table(kind: str) -> Iterator[str]:
    yield f"## {TITLES[kind]}"
    yield ""
    yield "| key | type | default | since | what gpustate does |"
    yield "| --- | --- | --- | --- | --- |"
    yield from (_row(record) for record in records(kind).values())
    yield ""


def _row(record: Record) -> str:
    leaf = record.leaf
    kind = "string" if leaf.type == "quoted" else leaf.type
    if leaf.choices and len(leaf.choices) < 6:
        kind = ", ".join(f"`{choice}`" if choice else '`""`' for choice in leaf.choices)
    until = f", looked at until {leaf.until}" if leaf.until else ""
    instead = f"; use `{leaf.instead}`" if leaf.instead else ""
    what = f"{FATES[leaf.fate]}{until}: {leaf.detail}{instead}"
    return f"| `{record.path}` | {kind} | {_shown(record.default)} | {record.since} | {what} |"


def _shown(value: Any) -> str:
    if value is None:
        return ""
    text = (
        json.dumps(value, ensure_ascii=False) if not isinstance(value, str) or not value else value
    )
    return f"`{text}`" if len(text) <= 40 else "a mapping" if isinstance(value, dict) else "a list"
