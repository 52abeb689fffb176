"""Context of a document: person, nodes, commit, and the command that retries some nodes. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpustate.errors import EXIT_INTERRUPTED
from gpustate.plan.groups import Group
from gpustate.plan.ranges import fold

#: Keys of a context that are shown, in this order.
_CONTEXT_KEYS = ("inventory", "limit", "commit", "person")
#: Options of a command that say how nodes and clusters are reached, and how many values each has.
_CONNECTION = {
    **dict.fromkeys(("-i", "-u", "--private-key", "--host-key-checking", "--kubeconfig"), 1),
    **dict.fromkeys(("--vault-password-file", "--vault-id"), 1),
    **dict.fromkeys(("-b", "-K", "-J"), 0),
}


def context_rows(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Name and value of each part of the context; documents of earlier releases have none."""
    context: Mapping[str, Any] = document.get("context") or {}
    for key in _CONTEXT_KEYS:
        if context.get(key):
            yield key, str(context[key])
    words = [word for word in context.get("retry") or () if word not in ("--dry-run", "--yes")]
    if words:
        limit = ["-l", context["limit"]] if context.get("limit") else []
        yield "command", shlex.join([*words, *limit])


def way_back(document: Mapping[str, Any], run: str) -> str:
    """The command that takes the nodes of a run back; empty if the document does not have its inventory."""
    context: Mapping[str, Any] = document.get("context") or {}
    words = [str(word) for word in context.get("retry") or ()]
    if "-i" not in words:
        return ""
    command = ["gpustate", "rollback", run]
    for at, word in enumerate(words):
        if word in _CONNECTION:
            command += words[at : at + 1 + _CONNECTION[word]]
    return shlex.join(command)


def retry(document: Mapping[str, Any], names: Sequence[str]) -> str:
    """The command that repeats the run for some nodes; empty if the document does not have it, or ``resume`` does it.

    Without refused ones: a refusal names its own next step, and the same input is refused again.
    """
    words = [str(word) for word in (document.get("context") or {}).get("retry") or ()]
    refused = {node["name"] for node in document.get("nodes", ()) if node["status"] == "refused"}
    names = [name for name in names if name not in refused]
    if not words or not names or resumption(document):
        return ""
    if words[1] == "upgrade" and "--dry-run" in words:  # which plan does
        words = [words[0], "plan", *(word for word in words[2:] if word != "--dry-run")]
    if any("rollout.canary=" in word for word in words):  # nodes that these are not among
        words += ["--set", "rollout.canary=null"]
    return f"{shlex.join(words)} -l {shlex.quote(','.join(fold(names)))}"


def resumption(document: Mapping[str, Any]) -> str:
    """The command that continues an interrupted run; empty if it was not interrupted."""
    interrupted = document.get("exit_code") == EXIT_INTERRUPTED
    return f"gpustate rollout resume {document['run']}" if interrupted else ""


def troubled(group: Group) -> bool:
    """Nodes that could not be planned, or failed."""
    return group.node["status"] != "ok" and not group.pending
