"""How a node is drained: its jobs are waited for, and requeued if they are late.

``squeue`` with a format of its own instead of JSON: that of 22.05 ignores ``-w`` with it.

Sources:
    SchedMD/slurm, doc/man/man1/{scontrol,squeue}.1; Debian's 22.05.8, 24.11.5 and 26.05.5 as they behave.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpustate.core.drain import DrainPolicy
from gpustate.schedulers.base import (
    Emit,
    Member,
    NotDrainedError,
    Scope,
    Stop,
    Workload,
    refuse_stopped,
)
from gpustate.schedulers.slurm.members import Nodes

#: ``%`` formats of squeue do not have whether a job can be requeued.
_JOBS = "JobArrayID:40|,State:20|,UserName:64|,BatchFlag:2|,Requeue:2|,tres-per-node:200"
_POLL_S = 2.0


@dataclass(frozen=True, slots=True)
class Job:
    """One that has a part of a node.

    Args:
        number: as squeue prints it: ``17``, ``17_3`` of an array, ``17+1`` of a heterogeneous job.
        user: whose it is.
        gpu: it asked for GPUs.
        ending: it is on its way out.
        problem: why it cannot be requeued, and what to do; empty: it can, or is on its way out.
    """

    number: str
    user: str
    gpu: bool = False
    ending: bool = False
    problem: str = ""

    @property
    def name(self) -> str:
        """For people."""
        return f"job {self.number} of {self.user}"

    @property
    def requeue_id(self) -> str:
        """What scontrol requeues: of a heterogeneous job all components, by the number of the first."""
        return self.number.partition("+")[0]


def read_jobs(text: str) -> list[Job]:
    """Read ``squeue`` in our format, whose order differs: in that of the jobs' numbers."""
    jobs: list[Job] = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split("|", 5)]
        if len(parts) != 6:
            continue
        number, state, user, batch, requeue, gres = parts
        job = Job(number, user, "gpu" in gres, state == "COMPLETING")
        why = ""
        if batch == "0":
            why = "it was not submitted with sbatch"
        elif requeue == "0":
            why = "Requeue=0 (sbatch --no-requeue)"
        if why and not job.ending:
            why = f"it cannot be requeued: {why}; pass a longer --set drain.timeout_s, or cancel it: scancel {job.requeue_id}"
            job = replace(job, problem=why)
        jobs.append(job)
    return sorted(jobs, key=lambda job: [int(part) for part in re.findall("[0-9]+", job.number)])


class Drains:
    """The jobs that have to leave nodes.

    Args:
        nodes: those of a cluster.
    """

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes

    def workloads(self, member: Member, scope: Scope, policy: DrainPolicy) -> Sequence[Workload]:
        """The jobs that run there; all of them are waited for, whatever the scope."""
        limit_s = policy.jobs_timeout_s
        if not limit_s:
            return [
                Workload(job.name, job.gpu, waited=True, limit="without a time limit")
                for job in self._jobs(member.name)
            ]
        return [
            Workload(
                job.name,
                job.gpu,
                job.problem,
                waited=True,
                limit=f"{limit_s:g} s at most" if job.problem else f"requeued after {limit_s:g} s",
            )
            for job in self._jobs(member.name)
        ]

    def restarted(self, member: Member) -> Sequence[str]:
        """Nothing."""
        return ()

    def _jobs(self, name: str) -> list[Job]:
        return read_jobs(self._nodes.run("squeue", "-h", "-a", "-w", name, "-O", _JOBS))

    def drain(
        self, member: Member, scope: Scope, policy: DrainPolicy, emit: Emit, stop: Stop
    ) -> None:
        """Wait for its jobs; those that are still there at the limit are requeued."""
        began, limit_s = self._nodes.clock(), policy.jobs_timeout_s
        reported: set[str] = set()
        requeued = False
        while jobs := self._jobs(member.name):
            refuse_stopped(stop)
            names = {job.name for job in jobs}
            if names - reported:
                emit(f"waiting for {', '.join(sorted(names))}")
                for job in jobs:
                    if limit_s and job.problem and job.name not in reported:
                        emit(f"{job.name} is waited for {limit_s:g} s at most: {job.problem}")
                reported |= names
            elapsed = self._nodes.clock() - began
            if limit_s and elapsed > limit_s and not requeued:
                self._requeue(member.name, jobs, limit_s, emit)
                requeued = True
            elif limit_s and elapsed > limit_s + 120:
                raise NotDrainedError(
                    f"{self._nodes.title}: node {member.name} still runs {', '.join(sorted(names))} two minutes after they were requeued"
                )
            self._nodes.sleep(_POLL_S)

    def _requeue(self, name: str, jobs: Sequence[Job], limit_s: float, emit: Emit) -> None:
        """Requeue all jobs, or none where one cannot be requeued; none is added, for the node is held."""
        late = f"{self._nodes.title}: node {name} was not drained within {limit_s:g} s"
        stuck = [f"{job.name}: {job.problem}" for job in jobs if job.problem]
        if stuck:
            raise NotDrainedError(f"{late}, and nothing was requeued: {'; '.join(stuck)}")
        refused: dict[str, str] = {}
        for number, user in {job.requeue_id: job.user for job in jobs if not job.ending}.items():
            emit(f"requeueing job {number} of {user}")
            status, output = self._nodes.answer(shlex.join(("scontrol", "requeue", number)))
            if status != 0:
                refused[number] = " ".join(output.split())[-120:]
        remaining = [
            job for job in self._jobs(name) if job.requeue_id in refused and not job.ending
        ]
        if remaining:
            words = "; ".join(f"{job.name} ({refused[job.requeue_id]})" for job in remaining)
            raise NotDrainedError(
                f"{late}, and these were not requeued: {words}",
                fix="pass a longer --set drain.timeout_s, or cancel them: scancel JOB",
            )
