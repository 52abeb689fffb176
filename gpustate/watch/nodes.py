"""What a watcher needs to know of a Node, and the record of what it did. Pure.

The record is an annotation of the Node, so that another watcher goes on where this one ended.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from gpustate.cluster.pods import names_of
from gpustate.documents import Json
from gpustate.formats.words import shorten
from gpustate.inventory.kubernetes import has_gpus
from gpustate.rollout.by_label import PLUGIN
from gpustate.rollout.marks import RECORD
from gpustate.schedulers.eviction import is_ready
from gpustate.schedulers.mig_state import CONFIG

APPLYING, COMPLETED, FAILED = "applying", "done", "failed"
_LONGEST = 1000
#: A label that changes all the time and means nothing.
_TIMESTAMP = "nvidia.com/gfd.timestamp"


@dataclass(frozen=True, slots=True)
class Reason:
    """What a Node is set up for; it is set up again where one of these has changed.

    Args:
        boot: its machine's boot.
        mig: value of the label ``nvidia.com/mig.config``.
        plugin: value of the label ``nvidia.com/device-plugin.config``.
    """

    boot: str = ""
    mig: str = ""
    plugin: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """What a watcher did with a Node.

    Args:
        reason: what it was set up for.
        phase: ``applying``, ``done`` or ``failed``.
        run: id of the run.
        since: time of the phase, in UTC.
        text: why it failed; empty otherwise.
    """

    reason: Reason
    phase: str
    run: str
    since: str
    text: str = ""

    def patch(self) -> Json:
        """A merge patch that writes it."""
        text = shorten(" ".join(self.text.split()), _LONGEST)
        data = {**asdict(self), "text": text}
        return {"metadata": {"annotations": {RECORD: json.dumps(data, sort_keys=True)}}}


def record_of(node: Json) -> Record | None:
    """The record on a Node; one that cannot be read is none."""
    text = (node["metadata"].get("annotations") or {}).get(RECORD)
    try:
        data = json.loads(text or "null")
        return Record(**{**data, "reason": Reason(**data["reason"])})
    except (ValueError, KeyError, TypeError):
        return None


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """A Node as it was seen last.

    Args:
        name: of the Node.
        names: its names and addresses, the strongest first.
        ready: its kubelet says that it is.
        leaving: it is being deleted.
        gpus: it has GPUs, by its labels.
        reason: what it has to be set up for.
        record: what was done.
        identity: changes with its labels and addresses, by which an inventory selects Nodes.
    """

    name: str
    names: tuple[str, ...]
    ready: bool
    leaving: bool
    gpus: bool
    reason: Reason
    record: Record | None
    identity: int

    @property
    def pending(self) -> bool:
        """It is to be set up."""
        record = self.record
        completed = (
            record is not None and record.phase == COMPLETED and record.reason == self.reason
        )
        return self.ready and not self.leaving and not completed


def see(node: Json) -> NodeSnapshot:
    """Read a Node."""
    meta = node["metadata"]
    labels: Mapping[str, str] = meta.get("labels") or {}
    info = (node.get("status") or {}).get("nodeInfo") or {}
    names = names_of(node)
    lasting = frozenset(item for item in labels.items() if item[0] != _TIMESTAMP)
    return NodeSnapshot(
        meta["name"],
        names,
        is_ready(node),
        bool(meta.get("deletionTimestamp")),
        has_gpus(labels),
        Reason(str(info.get("bootID") or ""), labels.get(CONFIG, ""), labels.get(PLUGIN, "")),
        record_of(node),
        hash((names, lasting)),
    )


def why(snapshot: NodeSnapshot) -> str:
    """Why a Node is to be set up, for people."""
    record = snapshot.record
    if record is None:
        return "new"
    if record.phase == APPLYING:
        return f"run {record.run} did not end"
    before, current = record.reason, snapshot.reason
    parts = [
        *(["rebooted"] if before.boot != current.boot else []),
        *([_label(CONFIG, current.mig)] if before.mig != current.mig else []),
        *([_label(PLUGIN, current.plugin)] if before.plugin != current.plugin else []),
    ]
    return ", ".join(parts) or f"run {record.run} failed"


def _label(name: str, value: str) -> str:
    return f"{name}={value}" if value else f"label {name} removed"
