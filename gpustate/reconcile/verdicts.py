"""Judge a node's GPUs by its last run, as the condition ``GPUHealthy`` of its Node has it. Pure.

Only a validation makes the condition True. A run that did not come to one makes it Unknown if it changed the node,
and says nothing otherwise. Nor does a pod that could not be tried, such as one that the API server refused. GPU health alone makes it False, and takes back only what it said itself.
A run that found the node's validation record valid and validated nothing itself does not undo a False that is newer than the record: the record knows nothing of
pods, and nothing of what happened since.

Sources:
    Kubernetes API: NodeCondition (reason in CamelCase, message); kubernetes/node-problem-detector, pkg/types (conditions).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from gpustate.cluster import pods
from gpustate.core.outcome import NodeResult, NodeStatus, Outcome, StateResult
from gpustate.documents import JsonView
from gpustate.formats.words import shorten

TRUE, FALSE, UNKNOWN = "True", "False", "Unknown"
VALIDATED = "Validated"
NOT_VALIDATED = "NotValidated"
#: Beginning of the parts of a message that name a quarantined GPU, as the check ``health`` has it.
QUARANTINED = "in quarantine: "
_MOST = 1024

#: Reasons by the name of the failed check.
_REASONS: Mapping[str, str] = {
    "pci": "GPUNotFound",
    "driver": "DriverNotLoaded",
    "libraries": "DriverLibrariesFailed",
    "device-nodes": "DeviceNodesMissing",
    "toolkit": "ContainerToolkitFailed",
    "runtime": "ContainerRuntimeFailed",
    "cdi": "CDISpecificationStale",
    "container": "ContainerNotStarted",
    "cuda": "CUDAKernelFailed",
    pods.LINK: "PodNotStarted",
}
#: Reasons by the evidence of GPU health; see :mod:`gpustate.diagnosis.health`.
_OF_HEALTH = (
    (re.compile(r"\bXid \d+"), "XidError"),
    (re.compile(r"row remapping failed"), "RowRemapFailed"),
    (re.compile(r"pages retired"), "PageRetirementLimit"),
    (re.compile(r"the driver requests"), "RecoveryRequired"),
    (re.compile(r"NVLinks up"), "NVLinkDown"),
    (re.compile(r"\(NVML \d+\)"), "GPULost"),
    (re.compile(r"^NVML: "), "NVMLFailed"),
)
_UNHEALTHY = "GPUUnhealthy"
_REASONS_OF_HEALTH = (*(reason for _, reason in _OF_HEALTH), _UNHEALTHY)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a Node's condition says.

    Args:
        status: True, False or Unknown.
        reason: one word in CamelCase.
        message: the evidence, in one line.
        fresh: checked just now, so that the heartbeat is renewed.
        validated_at: time of the validation that it is by, if that is not fresh; 0: unknown.
    """

    status: str
    reason: str
    message: str
    fresh: bool = True
    validated_at: int = 0

    @property
    def passed(self) -> bool:
        """The GPUs are validated."""
        return self.status == TRUE

    def outdated_by(self, condition: JsonView | None) -> Verdict | None:
        """The verdict of a Node's condition, if that is False and newer than the validation that this one is by."""
        if condition is None or condition["status"] != FALSE or self.fresh or not self.passed:
            return None
        since = str(condition.get("lastHeartbeatTime") or condition.get("lastTransitionTime") or "")
        if not since or datetime.fromisoformat(since).timestamp() <= self.validated_at:
            return None
        reason, message = (str(condition.get(key) or "") for key in ("reason", "message"))
        return Verdict(FALSE, reason, message, fresh=False)


def of_result(result: NodeResult, *, fresh: bool = False) -> Verdict | None:
    """Judge a node after a run; ``None`` if the run says nothing about its GPUs.

    Args:
        result: of the node.
        fresh: the run always validates.
    """
    validating = [state for state in result.states if state.validating]
    if result.status is NodeStatus.FAILED:
        return _failed(result, validating)
    if result.status is NodeStatus.ROLLED_BACK:
        return Verdict(UNKNOWN, "RolledBack", _line(result.reason or "changes were rolled back"))
    if result.status is NodeStatus.BLOCKED:
        return Verdict(UNKNOWN, "ConsoleRequired", _line(result.reason or result.status.value))
    if result.status is not NodeStatus.OK:
        return None  # not reached, or not touched
    if any(state.outcome is Outcome.REBOOT_PENDING for state in result.states):
        return Verdict(UNKNOWN, "RebootPending", "validated after the next reboot")
    ran = [state for state in validating if state.outcome in (Outcome.CHANGED, Outcome.UNCHANGED)]
    if not ran:
        return None
    fresh = fresh or any(state.outcome is Outcome.CHANGED for state in ran)
    return Verdict(TRUE, VALIDATED, _proof(result.checks), fresh, result.validated_at)


def _failed(result: NodeResult, validating: Iterable[StateResult]) -> Verdict | None:
    judged = any(state.outcome is Outcome.FAILED for state in validating)
    states = [state for state in result.states if state.outcome is Outcome.FAILED]
    held = _held(result.checks) if judged else ()
    for check in result.checks if judged else ():
        if check.get("outcome") == "failed":
            name, evidence = str(check["name"]), str(check["evidence"])
            if name == pods.LINK and not pods.concerns_gpus(evidence):
                # The validator failed by this alone; tests of the site may have failed as well.
                states = [state for state in states if state.reason != result.reason]
                if not states:
                    return None
                continue
            reason = reason_of_health(evidence) if name == "health" else _REASONS.get(name)
            return Verdict(FALSE, reason or _camel(name), _with_held(f"{name}: {evidence}", held))
    if not states:
        return Verdict(UNKNOWN, NOT_VALIDATED, _line(result.reason or "the run failed"))
    first = states[0]
    status = FALSE if first.validating else UNKNOWN
    return Verdict(status, _camel(first.state), _with_held(f"{first.state}: {first.reason}", held))


def of_findings(evidence: Iterable[str]) -> Verdict | None:
    """Judge a node by the failed findings of its GPUs' health; ``None`` without one."""
    lines = list(evidence)
    if not lines:
        return None
    return Verdict(FALSE, reason_of_health(lines[0]), _line("; ".join(lines)))


def not_offered(verdict: Verdict, why: str) -> Verdict:
    """The verdict of a Node on which no pod offers the validated GPUs, for a reason; without one, as it is."""
    if not why or not verdict.passed:
        return verdict
    return Verdict(UNKNOWN, "DevicePluginMissing", _line(f"no pod of the device plugin: {why}"))


def after_health(verdict: Verdict | None, condition: JsonView | None) -> Verdict | None:
    """What a look at GPU health changes of a condition; ``None``: nothing.

    Args:
        verdict: of :func:`of_findings`.
        condition: as the Node has it; ``None`` without one.
    """
    reason, message = (str((condition or {}).get(key) or "") for key in ("reason", "message"))
    held = _quarantined(message)
    if verdict is not None:
        return replace(verdict, message=_with_held(verdict.message, held))
    if condition is None:
        return Verdict(UNKNOWN, NOT_VALIDATED, "no GPU has a fault; not validated yet")
    if condition["status"] == TRUE:
        return Verdict(TRUE, reason, message)
    if reason in _REASONS_OF_HEALTH:
        words = "no GPU has a fault any more; not validated since"
        return Verdict(UNKNOWN, NOT_VALIDATED, _with_held(words, held))
    return None


def after_quarantine(held: Iterable[str], condition: JsonView | None) -> Verdict | None:
    """What a change of the quarantined GPUs changes of a condition: only what its message says of them.

    Args:
        held: each GPU that is in quarantine now, with end and reason.
        condition: as the Node has it; ``None`` without one.
    """
    parts = [f"{QUARANTINED}{gpu.replace(';', ',')}" for gpu in held]
    if condition is None and not parts:
        return None
    condition = condition or {"message": "not validated yet"}
    status, reason = condition.get("status") or UNKNOWN, condition.get("reason") or NOT_VALIDATED
    old = str(condition.get("message") or "").split("; ")
    other_parts = [part for part in old if not part.startswith(QUARANTINED)]
    return Verdict(str(status), str(reason), _line("; ".join([*other_parts, *parts])), fresh=False)


def reason_of_health(evidence: str) -> str:
    """The reason for the first fault in a line of evidence."""
    hits = [(match.start(), word) for rule, word in _OF_HEALTH if (match := rule.search(evidence))]
    return min(hits)[1] if hits else _UNHEALTHY


def _proof(checks: Iterable[Mapping[str, object]]) -> str:
    """What was validated, without what differs from run to run, and which GPUs were left out."""
    parts: list[str] = []
    for check in checks:
        if check.get("name") in ("driver", "health", "cuda") and check.get("outcome") == "ok":
            evidence = str(check["evidence"])
            parts.append(f"{check['name']}: {evidence.split('; ')[0]}")
            parts += _quarantined(evidence)
    return _line("; ".join(parts) or "validated")


def _held(checks: Iterable[Mapping[str, object]]) -> list[str]:
    """The parts of the check ``health`` that name a quarantined GPU."""
    evidence = (str(check["evidence"]) for check in checks if check.get("name") == "health")
    return _quarantined(next(evidence, ""))


def _quarantined(text: str) -> list[str]:
    """The parts of a text that name a quarantined GPU."""
    return [part for part in text.split("; ") if part.startswith(QUARANTINED)]


def _with_held(text: str, held: Iterable[str]) -> str:
    """A message that names the quarantined GPUs too."""
    return _line("; ".join([text, *(gpu for gpu in held if gpu not in text)]))


def _camel(name: str) -> str:
    words = re.split(r"[^A-Za-z0-9]+", name)
    return "".join(f"{word[:1].upper()}{word[1:]}" for word in words) + "Failed"


def _line(text: str) -> str:
    return shorten(" ".join(text.split()), _MOST)
