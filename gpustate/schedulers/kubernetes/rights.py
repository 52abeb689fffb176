"""What the user of a cluster has to be allowed to do, and the rules to add where it is not."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gpustate.cluster.api import Api, RefusedRequest
from gpustate.errors import ClusterError
from gpustate.schedulers.base import NotAllowedError
from gpustate.schedulers.lease import NAMESPACE

#: What a change of nodes needs: verb, API group, resource.
CHANGING = (
    ("get", "", "nodes"),
    ("list", "", "nodes"),
    ("patch", "", "nodes"),
    ("list", "", "pods"),
    ("delete", "", "pods"),
    ("create", "", "pods/eviction"),
    ("list", "apps", "daemonsets"),
    ("list", "policy", "poddisruptionbudgets"),
    ("list", "resource.k8s.io", "resourceclaims"),
    ("get", "coordination.k8s.io", "leases"),
    ("create", "coordination.k8s.io", "leases"),
    ("update", "coordination.k8s.io", "leases"),
    ("list", "maintenance.nvidia.com", "nodemaintenances"),
)
#: What it needs to show which nodes are out of service, and why.
READING = (
    ("list", "", "nodes"),
    ("get", "coordination.k8s.io", "leases"),
    ("list", "maintenance.nvidia.com", "nodemaintenances"),
)


@dataclass(slots=True)
class Rights:
    """What the user of one cluster may do, asked once.

    Args:
        api: access to it.
        title: of the cluster, for messages.
        read_only: nothing is changed, so fewer rights are needed.
    """

    api: Api
    title: str
    read_only: bool
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _missing: list[str] | None = None
    _user: str = ""

    def check(self) -> None:
        """Refuse before anything is written, with every rule that is missing."""
        with self._lock:
            if self._missing is None:
                try:
                    self._missing = missing_rules(self.api, READING if self.read_only else CHANGING)
                except RefusedRequest as error:
                    raise self.denied(error) from None
                self._user = self.api.user() if self._missing else ""
        if self._missing:
            action = "list nodes out of service" if self.read_only else "take nodes out of service"
            raise self.denied(lacking(self.title, action, self._user, self._missing))

    def denied(self, error: ClusterError) -> ClusterError:
        """The error of a request that the user may not make; before a change, nothing is written yet."""
        if self.read_only or (isinstance(error, RefusedRequest) and error.status not in (401, 403)):
            return error
        return NotAllowedError(error.message, place=error.place, fix=error.fix)


def lacking(cluster: str, action: str, user: str, missing: Iterable[str]) -> ClusterError:
    """The error that a cluster's user lacks rights to do something, with the rules to add."""
    subject = f"user {user}" if user else "its user"
    return ClusterError(
        f"{cluster}: {subject} lacks rights to {action}", fix=to_be_granted(missing, subject)
    )


def to_be_granted(rules: Iterable[str], subject: str = "its user") -> str:
    """The next move where rules of RBAC are missing."""
    return f"add to a ClusterRole of {subject}: {'; '.join(rules)}"


def missing_rules(api: Api, rights: Iterable[tuple[str, str, str]]) -> list[str]:
    """Rules for rights that a user does not have: verb, API group, resource with its subresource.

    Leases are in one namespace only.
    """
    missing: dict[tuple[str, str], list[str]] = {}
    for verb, group, resource in rights:
        name, _, sub = resource.partition("/")
        namespace = NAMESPACE if name == "leases" else ""
        if not api.may(verb, group, name, sub, namespace):
            missing.setdefault((group, resource), []).append(verb)
    return [rule(verbs, group, resource) for (group, resource), verbs in missing.items()]


def rule(verbs: str | Sequence[str], group: str, resource: str) -> str:
    """A rule of RBAC, as YAML has it on one line."""
    words = json.dumps([verbs] if isinstance(verbs, str) else verbs)
    return f'{{apiGroups: ["{group}"], resources: ["{resource}"], verbs: {words}}}'
