"""The Lease of a Slurm cluster: a file on the host with its tools, as Slurm has no object that one run alone can hold.

It has the content of a Kubernetes Lease, so holder, renewal, progress and requests work as in a Kubernetes cluster.
Where slurmctld keeps its state it is the same file for the controller and its backup.

Sources:
    flock(1); SchedMD/slurm, doc/man/man5/slurm.conf.5: StateSaveLocation is shared by all controllers of a cluster.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from gpustate import shell
from gpustate.documents import Json
from gpustate.errors import ClusterError

_CHANGED = 99


class ChangedLeaseError(ClusterError):
    """Someone else has written the Lease in between."""

    status = 409


class LeaseFile:
    """Reads and writes it.

    Args:
        run: runs a command where Slurm's tools are; exit status and output.
        title: of the cluster, for messages.
    """

    def __init__(self, run: Callable[[str], tuple[int, str]], title: str) -> None:
        self._run = run
        self.server = title

    def lease(self, namespace: str, name: str) -> Json | None:
        """The Lease; ``None``: there is none, or it cannot be read as one.

        Raises:
            ClusterError: the host does not answer.
        """
        _, text = self._call("", "")
        version, _, content = text.strip().partition("\n")
        try:
            lease = json.loads(content)
            lease["metadata"]["resourceVersion"] = version
        except (ValueError, KeyError, TypeError):
            return None if not version else {"metadata": {"resourceVersion": version}}
        return dict(lease)

    def write_lease(self, lease: Json, *, create: bool) -> Json:
        """Replace it.

        Raises:
            ChangedLeaseError: it has changed since it was read.
            ClusterError: it cannot be written.
        """
        version = "0" if create else str(lease["metadata"].get("resourceVersion") or "0")
        status, _ = self._call(version, json.dumps(lease, separators=(",", ":")))
        if status == _CHANGED:
            raise ChangedLeaseError(f"{self.server}: the Lease was changed at the same time")
        return lease

    def _call(self, version: str, content: str) -> tuple[int, str]:
        script = shell.load("lease", "gpustate.schedulers.slurm", VERSION=version, CONTENT=content)
        status, text = self._run(script)
        if status not in (0, _CHANGED):
            raise ClusterError(
                f"{self.server}: its Lease cannot be {'written' if version else 'read'}: "
                f"{' '.join(text.split())[-300:]}",
                fix="log in there as root or SlurmUser",
            )
        return status, text
