"""Plans and results as documents: versioned JSON with a stable key order. Pure.

The terminal text is rendered from these documents, never the other way round. Formats:
``gpustate.plan/1`` (what would be done, and what it was made from), ``gpustate.result/1`` (what
became of a run) and ``gpustate.bake/1`` (of one image). They are described by the JSON Schemas in ``gpustate/plan/schema``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpustate.core.change import Change, Disruption, Plan
from gpustate.core.encode import plain, plain_fingerprint
from gpustate.core.layering import COMES_WITH
from gpustate.core.outcome import RESTARTED, NodeResult, Outcome, StateResult
from gpustate.core.policy import Policy, parameters
from gpustate.errors import PolicyError
from gpustate.formats import schemas
from gpustate.formats.masking import MASK, mask_data
from gpustate.manifests import ClusterSettings, cluster_part
from gpustate.plan.groups import TOUCHED, Group, counts, group_nodes, groups_data, totals

PLAN_FORMAT = "gpustate.plan/1"
RESULT_FORMAT = "gpustate.result/1"
BAKE_FORMAT = "gpustate.bake/1"
#: Key of a plan that takes nodes back to before a run.
ROLLBACK = "rollback"
#: Outcomes of a plan that may change a node or be refused.
_PLANNED = (Outcome.PENDING.value, Outcome.KNOWN_AFTER.value, Outcome.REFUSED.value)


def change_data(change: Change) -> dict[str, Any]:
    """One change; secrets are masked before anything is written anywhere."""
    data: dict[str, Any] = {"field": change.field}
    if change.label:
        data["label"] = change.label
    if change.secret:
        data["before"], data["after"] = MASK, MASK
    else:
        data["before"], data["after"] = plain(change.before), plain(change.after)
    data["disruption"] = change.disruption.word
    if change.why:
        data["why"] = change.why
    if change.condition:
        data["condition"] = change.condition
    if change.path:
        data["path"] = change.path
    if change.lines and not change.secret:
        data["lines"] = list(change.lines)
    return data


def state_data(result: StateResult) -> dict[str, Any]:
    """One state on one node."""
    data: dict[str, Any] = {"state": result.state, "outcome": result.outcome.value}
    if result.plan.changes:
        data["changes"] = [change_data(change) for change in result.plan.changes]
        data["disruption"] = result.plan.disruption.word
    if result.known_after:
        data["known_after"] = list(result.known_after)
        data["worst"] = result.worst.word
    versions = _versions(result.plan)
    moves = any(row["before"] not in ("", row["after"]) for row in versions)
    # What changes its version costs a drain for sure, also where the rest of its plan is not known.
    if result.condition and not (moves and result.worst is Disruption.DRAIN):
        data["condition"] = result.condition
    if result.reason:
        data["reason"] = result.reason
    if result.evidence:
        data["evidence"] = result.evidence
    if result.command:
        data["command"] = result.command
    if result.inspect:
        data["inspect"] = result.inspect
    if result.plan.notes:
        data["notes"] = list(result.plan.notes)
    if versions:
        data["versions"] = versions
    return data


def _versions(plan: Plan) -> list[dict[str, str]]:
    """What gets another version, by the labels of its changes."""
    rows: list[tuple[str, str, str]] = []
    for change in plan.changes:
        if not change.label.endswith("version") or change.secret:
            continue
        before, after = _version_text(change.before), _version_text(change.after)
        if before != after:
            rows.append((change.label.removesuffix(" version"), before, after))
    return [{"name": name, "before": before, "after": after} for name, before, after in rows]


def _version_text(value: object) -> str:
    """A version, or those of several packages."""
    values = value.values() if isinstance(value, Mapping) else (value,)
    return ", ".join(dict.fromkeys(str(version) for version in values if version))


def node_data(node: NodeResult) -> dict[str, Any]:
    """One node."""
    data: dict[str, Any] = {"name": node.name, "status": node.status.value}
    if node.reason:
        data["reason"] = node.reason
    if node.proceeds:
        data["proceeds"] = True
    if node.would_refuse:
        data["would_refuse"] = True
    data["states"] = [state_data(result) for result in node.states]
    data["disruption"] = node.worst.word
    data["reboots"] = node.reboots
    data["connections"] = node.connections
    data["execs"] = node.execs
    if node.checks:
        data["checks"] = list(node.checks)
    if node.notes:
        data["notes"] = list(node.notes)
    if disturbed := _disturbed(node):
        data["disturbed"] = disturbed
    return data


def _disturbed(node: NodeResult) -> list[dict[str, str]]:
    """Workloads that leave, further programs that have a GPU open, and services that are restarted."""
    pods = tuple(f"pod {name.rpartition('/')[2]})" for name, _ in node.workloads)
    programs = (
        (user, "has a GPU open")
        for state in node.states
        for user in state.plan.gpu_users
        if not user.endswith(pods)
    )
    removed = {
        unit
        for state in node.states
        if state.outcome in (Outcome.PENDING, Outcome.KNOWN_AFTER)
        for unit in state.removes
    }
    restarted = dict.fromkeys(
        (unit, RESTARTED)
        for state in node.states
        for unit in state.plan.restarted
        if unit not in removed
    )
    return [{"name": name, "how": how} for name, how in (*node.workloads, *programs, *restarted)]


def policy_data(policy: Policy, source: str) -> dict[str, Any]:
    """The policy itself, without secrets: a saved plan needs no other file except for those."""
    data: dict[str, Any] = mask_data({"source": source, **policy_parameters(policy)})
    data.pop("cluster", None)  # only of a plan with objects: :func:`with_clusters`
    return {"name": policy.name or source, **data}


def policy_parameters(policy: Policy) -> dict[str, Any]:
    """Parameters of a policy, including secrets: never for a document."""
    states = [{"state": state.name, "parameters": parameters(state)} for state in policy.states]
    objects = {} if policy.cluster is None else {"cluster": policy.cluster.as_data()}
    return {
        "states": states,
        **policy.layers_data(),
        **({"allow": dict(policy.allow)} if policy.allow else {}),
        **objects,
    }


def plan_document(
    policy: Policy,
    source: str,
    nodes: Sequence[NodeResult],
    *,
    run: str,
    created: str,
    context: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A plan as it is saved, shown and applied later.

    Args:
        policy: what should hold.
        source: what stood for it on the command line.
        nodes: the planned nodes.
        run: id of the run that planned.
        created: when.
        context: inventory, limit, person, commit and the command that made it.
    """
    saved_policy = policy_data(policy, source)
    rows: list[dict[str, Any]] = []
    for node in nodes:
        row = node_data(node)
        for state in row["states"]:
            origin = policy.places.get(("states", state["state"]), "")
            if origin.startswith(COMES_WITH) and state["outcome"] in _PLANNED:
                state["notes"] = [origin, *state.get("notes", ())]
        row["observed"] = node.observed
        row["fingerprint"] = plain_fingerprint(node.observed)
        rows.append(row)
    return {
        "format": PLAN_FORMAT,
        "id": plain_fingerprint([saved_policy, rows]),
        "run": run,
        "created": created,
        **({"context": dict(context)} if context else {}),
        "policy": saved_policy,
        "notes": list(mask_data(policy.notes)),
        "nodes": rows,
        "fleet": _fleet(rows),
    }


def with_clusters(
    document: Mapping[str, Any],
    settings: ClusterSettings,
    clusters: Sequence[Mapping[str, Any]],
    *,
    absent: bool,
    force: bool,
) -> dict[str, Any]:
    """A plan together with the objects of the nodes' clusters.

    Args:
        document: ``gpustate.plan/1`` of the nodes.
        settings: from which the objects are made, images included.
        clusters: the planned objects.
        absent: all objects are removed.
        force: fields of other managers are taken over.
    """
    cluster = mask_data(settings.as_data())
    # What is deleted is not restarted on the nodes that change.
    deleted = {
        f"DaemonSet {data['namespace']}/{row['object'].removeprefix('daemonset/')}"
        for data in clusters
        for row in data["objects"]
        if row["action"] == "delete"
    }
    nodes = [
        {**node, "disturbed": [row for row in node["disturbed"] if row["name"] not in deleted]}
        if "disturbed" in node
        else node
        for node in document["nodes"]
    ]
    plan = {
        **document,
        "nodes": nodes,
        "policy": {**document["policy"], "cluster": cluster},
        "clusters": list(clusters),
        "objects": {"absent": absent, "force": force, "fingerprint": _objects_of(cluster)},
    }
    return {**plan, "id": _id_of(plan)}


def with_rollback(
    document: Mapping[str, Any], runs: Mapping[str, str], states: Mapping[str, object]
) -> dict[str, Any]:
    """A plan that takes nodes back to before runs.

    Args:
        document: ``gpustate.plan/1`` of the nodes.
        runs: by node, the run that is undone, with all that followed it.
        states: by node, the parameters of the states that take it back.
    """
    rollbacks = {
        name: {"run": run, "fingerprint": plain_fingerprint(states[name])}
        for name, run in runs.items()
    }
    plan = {**document, ROLLBACK: rollbacks}
    return {**plan, "id": _id_of(plan)}


def _objects_of(cluster: Mapping[str, Any]) -> str:
    """The hash of the objects that this version makes of settings with masked secrets."""
    from gpustate.manifests.build import build  # with all components

    return plain_fingerprint(build(cluster_part.unchecked(cluster), {}))


def _id_of(document: Mapping[str, Any]) -> str:
    """The hash of what a plan changes."""
    more = (name for name in ("clusters", "objects", ROLLBACK) if name in document)
    names = ("policy", "nodes", *more)
    return plain_fingerprint([document[name] for name in names])


def _fleet(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Totals of all nodes. They follow from the nodes."""
    groups = group_nodes(rows)
    return {"nodes": counts(groups), "disruption": totals(groups), "groups": groups_data(groups)}


def result_document(
    nodes: Sequence[NodeResult],
    *,
    run: str,
    created: str,
    verb: str,
    summary: str,
    exit_code: int,
    notes: Sequence[str] = (),
    skipped: Sequence[str] = (),
    context: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Result of a run; ``context`` as of :func:`plan_document`."""
    return {
        "format": RESULT_FORMAT,
        "verb": verb,
        "run": run,
        "created": created,
        **({"context": dict(context)} if context else {}),
        "notes": list(mask_data(tuple(notes))),
        "nodes": [node_data(node) for node in nodes],
        "skipped": list(skipped),
        "summary": summary,
        "exit_code": exit_code,
    }


def bake_document(
    node: NodeResult,
    *,
    root: str,
    gpus: str,
    run: str,
    created: str,
    applied: bool,
    first_boot: Sequence[str],
    left_to_apply: Sequence[str],
    notes: Sequence[str],
    summary: str,
    exit_code: int,
) -> dict[str, Any]:
    """Result of one image, or its plan if it was not applied."""
    row = node_data(node)
    # Nothing runs in an image, so a change causes no disruption.
    row["disruption"] = Disruption.NONE.word
    for state in row["states"]:
        if "worst" in state:
            state["worst"] = Disruption.NONE.word
    return {
        "format": BAKE_FORMAT,
        "run": run,
        "created": created,
        "root": root,
        "gpus": gpus,
        "applied": applied,
        "notes": list(mask_data(tuple(notes))),
        "nodes": [row],
        "first_boot": [
            dict(zip(("state", "step"), line.split(": ", 1), strict=True)) for line in first_boot
        ],
        "left_to_apply": list(left_to_apply),
        "summary": summary,
        "exit_code": exit_code,
    }


def read_plan(data: Any, *, place: str) -> dict[str, Any]:
    """Check a document that should be a plan; raise ``PolicyError`` if it is invalid."""
    if not isinstance(data, dict) or not str(data.get("format", "")).startswith("gpustate.plan/"):
        raise PolicyError("this is not a gpustate plan", place=place)
    if data["format"] != PLAN_FORMAT:
        raise PolicyError(
            f"unsupported format {data['format']!r}; this gpustate reads {PLAN_FORMAT!r}",
            place=place,
            fix="make a new plan: gpustate plan POLICY --out FILE",
        )
    schemas.check(
        data,
        "gpustate.plan",
        "plan.json",
        place=place,
        error=PolicyError,
        fix="make a new plan: gpustate plan POLICY --out FILE",
        subject="the plan is damaged",
    )
    for row in data["nodes"]:
        if plain_fingerprint(row.get("observed")) != row.get("fingerprint"):
            raise PolicyError(
                f"the plan was altered: {row['name']}",
                place=place,
                fix="make a new plan: gpustate plan POLICY --out FILE",
            )
    if _id_of(data) != data["id"]:
        raise PolicyError(
            "the plan was altered after it was made",
            place=place,
            fix="make a new plan: gpustate plan POLICY --out FILE",
        )
    if "objects" in data and data["objects"]["fingerprint"] != _objects_of(
        data["policy"]["cluster"]
    ):
        raise PolicyError(
            "another version of gpustate made the plan, and this one makes other objects of its policy",
            place=place,
            fix="make a new plan: gpustate plan POLICY --cluster-objects --out FILE",
        )
    if not _fleet_fits(data):
        raise PolicyError(
            "the plan is damaged: its totals do not match its nodes",
            place=place,
            fix="make a new plan: gpustate plan POLICY --out FILE",
        )
    return data


def _fleet_fits(data: Mapping[str, Any]) -> bool:
    """The totals match the nodes; plans of earlier releases have none."""
    if "fleet" not in data:
        return True
    groups = group_nodes(data["nodes"])
    return bool(
        data["fleet"]["nodes"] == counts(groups)
        and data["fleet"]["disruption"] == totals(groups)
        and data["fleet"]["groups"] == groups_data(groups)
    )


def changing(document: Mapping[str, Any]) -> dict[str, Disruption]:
    """What a plan may cost each node that it changes."""
    rows = {str(row["name"]): Group((str(row["name"]),), row) for row in document["nodes"]}
    return {name: Disruption.parse(row.worst[0]) for name, row in rows.items() if row.pending}


def planned_observations(document: Mapping[str, Any]) -> dict[str, Mapping[str, object]]:
    """Observations of each node when the plan was made."""
    return {row["name"]: row.get("observed", {}) for row in document["nodes"]}


def announced_disruptions(document: Mapping[str, Any]) -> dict[str, dict[str, Disruption]]:
    """Most disruption of each state of each node, as announced in the plan."""
    announced: dict[str, dict[str, Disruption]] = {}
    for row in document["nodes"]:
        by_state = announced.setdefault(row["name"], {})
        for state in row["states"]:
            if state["outcome"] not in TOUCHED:
                continue
            word = state.get("worst") if state.get("known_after") else state.get("disruption")
            if word is not None:
                by_state[str(state["state"])] = Disruption.parse(str(word))
    return announced
