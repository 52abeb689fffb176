"""The page of all fields of Operator files in the site's reference, from the records of the reader."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from gpustate.gpu_operator import history
from gpustate.gpu_operator.helm import NIL_IS_ON
from gpustate.gpu_operator.keys import TITLES, Record, Support, records

SUPPORT = {
    Support.HONOURED: "honoured",
    Support.KUBERNETES: "Kubernetes only",
    Support.NO_MEANING: "not applicable on a host",
    Support.LATER: "not carried out",
    Support.DEPRECATED: "deprecated",
    Support.DEAD: "dead",
}
HEAD = """\
# Every field of the GPU Operator's files

Made from the records that the reader and `gpustate lint` use, which tests compare with the Operator's own schemas. Source: {source}.

| kind | fields | {support} |
| --- | ---: | {rulers} |
{counts}

[operator-files.md](../operator-files.md) explains the classes. *Since* is the release that added the key, *default*
the default of the API server, for Helm values that of the chart's values.yaml. `[]` is any element of a list.

## Where the chart and a bare ClusterPolicy differ

For these keys the default of a ClusterPolicy differs from that of Helm values. Versions and images are not listed:
the chart's change with each release, and a ClusterPolicy has the Operator's own.

| key | default in a ClusterPolicy | default in Helm values |
| --- | --- | --- |
{differences}
"""


def page() -> str:
    """The whole page."""
    text = HEAD.format(
        source=history.source(),
        support=" | ".join(SUPPORT.values()),
        rulers=" | ".join("---:" for _ in SUPPORT),
        counts="\n".join(_counts()),
        differences="\n".join(_differences()),
    )
    return text + "".join(f"\n{line}" for kind in TITLES for line in _table(kind)) + "\n"


def _counts() -> Iterator[str]:
    for kind, title in TITLES.items():
        found = records(kind)
        counts = Counter(record.support for record in found.values())
        cells = " | ".join(str(counts[support]) for support in SUPPORT)
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
    field = record.field
    kind = "string" if field.type == "quoted" else field.type
    if field.choices and len(field.choices) < 6:
        kind = ", ".join(f"`{choice}`" if choice else '`""`' for choice in field.choices)
    until = f", looked at until {field.until}" if field.until else ""
    instead = f"; use `{field.instead}`" if field.instead else ""
    objects = " with --cluster-objects" if field.objects else ""
    what = f"{SUPPORT[field.support]}{objects}{until}: {field.detail}{instead}"
    return f"| `{record.path}` | {kind} | {_shown(record.default)} | {record.since} | {what} |"


def _shown(value: Any) -> str:
    if value is None:
        return ""
    text = (
        json.dumps(value, ensure_ascii=False) if not isinstance(value, str) or not value else value
    )
    return f"`{text}`" if len(text) <= 40 else "a mapping" if isinstance(value, dict) else "a list"
