"""Cluster states on which a drain is compared with kubectl's: pods of every kind, budgets, and options."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from gpustate.core.drain import DrainPolicy, EvictionRules
from gpustate.documents import Json

TOLERATE = [{"operator": "Exists"}]


@dataclass(frozen=True)
class Options:
    """Of ``kubectl drain``, and the same for ours."""

    force: bool = False
    delete_emptydir: bool = False
    selector: str = ""
    grace_s: int | None = None

    def words(self, timeout_s: int) -> list[str]:
        """For kubectl."""
        words = ["--ignore-daemonsets", f"--timeout={timeout_s}s"]
        words += ["--force"] if self.force else []
        words += ["--delete-emptydir-data"] if self.delete_emptydir else []
        words += [f"--pod-selector={self.selector}"] if self.selector else []
        return words + ([f"--grace-period={self.grace_s}"] if self.grace_s is not None else [])

    def policy(self, timeout_s: int) -> DrainPolicy:
        """For ours."""
        rules = EvictionRules(self.force, self.delete_emptydir, float(timeout_s), self.selector)
        return DrainPolicy(node=rules, grace_period_s=self.grace_s)

    def __str__(self) -> str:
        words = [word.partition("=")[0].lstrip("-") for word in self.words(0)[2:]]
        return "+".join(words) or "plain"


@dataclass(frozen=True)
class Case:
    """Pods by kind, and how they are drained."""

    kinds: tuple[str, ...]
    options: Options

    @property
    def timeout_s(self) -> int:
        """Short where pods never leave; long enough for a busy machine elsewhere."""
        return 6 if {*self.kinds} & STUCK else 60

    def __str__(self) -> str:
        return f"{'+'.join(self.kinds)}/{self.options}"


KINDS = (
    "controlled",
    "bare",
    "emptydir",
    "memory",
    "bare-emptydir",
    "succeeded-bare",
    "succeeded-emptydir",
    "failed-bare",
    "static",
    "daemon",
    "guarded",
    "never",
    "twice-guarded",
    "unready-guarded",
    "always-allow",
    "finalizer",
)
#: Pods that stay for as long as nobody changes something else.
STUCK = {"never", "unready-guarded", "finalizer"}
#: Pods whose budget is known to refuse for ever. kubectl evicts the other pods of the Node, gpustate none.
DEAD_ENDS = {"never", "unready-guarded", "twice-guarded"}
_PLAIN = Options()
_ALL = Options(force=True, delete_emptydir=True)
CASES = (
    *(Case((kind,), options) for kind, options in itertools.product(KINDS, (_PLAIN, _ALL))),
    *(Case((kind,), Options(force=True)) for kind in ("bare", "bare-emptydir", "emptydir")),
    *(Case((kind,), Options(delete_emptydir=True)) for kind in ("bare", "bare-emptydir", "memory")),
    Case(("controlled", "bare"), _PLAIN),
    Case(("controlled", "daemon", "static"), _PLAIN),
    Case(("controlled", "never"), _ALL),
    Case(("guarded", "twice-guarded"), _ALL),
    Case(("controlled", "bare"), Options(selector="kind=controlled")),
    Case(("controlled", "emptydir"), Options(selector="kind!=emptydir")),
    Case(("controlled", "bare"), Options(selector="kind in (controlled)")),
    Case(("controlled",), Options(grace_s=0)),
    Case(("succeeded-bare", "failed-bare", "succeeded-emptydir"), _PLAIN),
)  # fmt: skip


def _pod(kind: str, node: str, **spec: Any) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": kind, "labels": {"kind": kind}},
        "spec": {
            "nodeName": node,
            "tolerations": TOLERATE,
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "unused"}],
            **spec,
        },
    }


def _budget(name: str, kind: str, **spec: Any) -> Json:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": {"kind": kind}}, **spec},
    }


def objects(kind: str, node: str, owner_uid: str) -> list[Json]:
    """What is created for a pod of a kind on a Node.

    Args:
        kind: of :data:`KINDS`.
        node: name of the Node.
        owner_uid: of the ConfigMap ``owner`` of the same namespace, which stands for a controller.
    """
    if kind == "daemon":
        template = {"metadata": {"labels": {"kind": kind}}, "spec": _pod(kind, node)["spec"]}
        template["spec"].pop("nodeName")
        template["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
        return [
            {
                "apiVersion": "apps/v1",
                "kind": "DaemonSet",
                "metadata": {"name": "daemon"},
                "spec": {"selector": {"matchLabels": {"kind": kind}}, "template": template},
            }
        ]
    empty = {
        "volumes": [
            {"name": "scratch", "emptyDir": {"medium": "Memory"} if kind == "memory" else {}}
        ]
    }
    pod = _pod(kind, node, **(empty if "emptydir" in kind or kind == "memory" else {}))
    if "bare" not in kind and kind != "static":
        pod["metadata"]["ownerReferences"] = [
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "name": "owner",
                "uid": owner_uid,
                "controller": True,
            }
        ]
    if kind == "static":
        pod["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "x"}
    if kind == "finalizer":
        pod["metadata"]["finalizers"] = ["example.net/keep"]
    found = [pod]
    if kind == "guarded":
        found.append(_budget("allows", kind, minAvailable=0))
    if kind in ("never", "unready-guarded"):
        found.append(_budget("never", kind, minAvailable=1))
    if kind == "twice-guarded":
        found += [_budget(name, kind, minAvailable=0) for name in ("one", "two")]
    if kind == "always-allow":
        found.append(
            _budget("unready", kind, minAvailable=1, unhealthyPodEvictionPolicy="AlwaysAllow")
        )
    return found


#: Phase or readiness that is written into a pod's status once it runs.
STATUS: dict[str, Json] = {
    "succeeded-bare": {"phase": "Succeeded"},
    "succeeded-emptydir": {"phase": "Succeeded"},
    "failed-bare": {"phase": "Failed"},
    "unready-guarded": {"conditions": [{"type": "Ready", "status": "False"}]},
    "always-allow": {"conditions": [{"type": "Ready", "status": "False"}]},
}
