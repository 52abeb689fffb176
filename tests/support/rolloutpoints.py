"""Every point at which a rollout can be disturbed: enumerated from an undisturbed run, carried out, and judged.

The points are, for each write to the API: the controller is killed before or after it, its answer is lost, the
server is away from it on, or another client writes just before it. And for each entry of a node's journal: the
controller is killed there, and the node program goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from apigate import AFTER, BEFORE, HANGING, REFUSED, UNAVAILABLE, Trap
from forkserver import Command
from rolloutbed import Bed, Ran, finish
from stubcluster import TOKEN, Request

#: One node after the other, so that every run does the same.
WORDS = ("--forks", "1", "--max-unavailable", "1")
FOR_LONG = "away for long"
#: An annotation and a label of others.
SEEN, RACK = "example.net/seen", "example.net/rack"
ENTRY = "killed at an entry"
#: What may go wrong at every write.
ANYWHERE = ("killed before", "killed after", "answer lost", REFUSED, UNAVAILABLE, HANGING, FOR_LONG)
#: An Event is not what a run depends on.
FOR_EVENTS = ("killed before", "killed after", REFUSED, FOR_LONG)
#: A run gets over these by itself.
SAT_OUT = {"answer lost", REFUSED, UNAVAILABLE, HANGING, "annotated", "labelled", "lease written", "pod replaced"}  # fmt: skip
#: And what another client does before one, by the first word of the write.
OTHERS = {
    "hold": ("annotated", "labelled", "cordoned"),
    "note": ("annotated", "cordoned", "uncordoned", "token expired"),
    "release": ("annotated", "cordoned", "token expired"),
    "lease": ("lease written",),
    "evict": ("pod replaced",),
    "delete": ("pod replaced",),
}


@dataclass(frozen=True, slots=True)
class Point:
    """Something goes wrong somewhere.

    Args:
        what: goes wrong.
        where: name of a write, or machine and number of a call of ``sync``.
    """

    what: str
    where: str

    def __str__(self) -> str:
        return f"{self.what} @ {self.where}"

    @property
    def family(self) -> str:
        """A kill, an entry of the journal, the server, or another client."""
        if self.what in ANYWHERE:
            return "kill" if self.what.startswith("killed") else "server"
        return "entry" if self.what == ENTRY else "client"


@dataclass(slots=True)
class Verdict:
    """What became of a point; ``fired``: the run got there."""

    point: Point
    fired: bool = False
    code: int = 0
    wrong: list[str] = field(default_factory=list[str])


def record(bed: Bed) -> tuple[list[Point], Ran]:
    """Run once undisturbed; every point of that run."""
    bed.reset()
    bed.gate.begin()
    ran = bed.run(*WORDS)
    points = []
    for write in bed.gate.writes:
        others = OTHERS.get(write.split()[0], ())
        anywhere = FOR_EVENTS if write.startswith("post events") else ANYWHERE
        points += [Point(what, write) for what in (*anywhere, *others)]
    points += record_entries(bed)
    return points, ran


def record_entries(bed: Bed) -> list[Point]:
    """Run once, held at every call of ``sync``; a point for each that is an entry of the journal."""
    bed.reset()
    points = []
    for machine in bed.machines:
        machine.stop_at("every")
    holds = [bed.hold(machine) for machine in bed.machines]
    command = bed.start(*WORDS)
    while not command.ended():
        for machine, hold in zip(bed.machines, holds, strict=True):
            if told := hold.wait(0.02):
                number, _, word = told.strip().partition(" ")
                if word.endswith("entry"):
                    points.append(Point(ENTRY, f"{machine.name} {number}"))
                hold.go()
    for hold in holds:
        hold.close()
    finish(command, bed.bound_s)
    return points


def carry_out(bed: Bed, point: Point) -> Verdict:
    """Disturb a run at a point, then run once more, undisturbed."""
    bed.reset()
    verdict = Verdict(point)
    if point.what == ENTRY:
        broken = _killed_at_entry(bed, point, verdict)
    else:
        broken = _disturbed(bed, point, verdict)
    verdict.code = broken.code
    if "Traceback" in broken.text or "a bug in gpustate" in broken.text:
        verdict.wrong.append(f"the disturbed run ended {broken.code}: {broken.text}")
    foreign = point.what == "cordoned" and verdict.fired
    if broken.code == 0 and not foreign:
        verdict.wrong += [f"after the disturbed run: {line}" for line in bed.wrong()]
    elif verdict.fired and point.what in SAT_OUT:
        verdict.wrong.append("the run did not get over it by itself")
    bed.gate.begin()
    again = bed.run(*WORDS)
    if foreign:
        again = _cordon_stays(bed, point, verdict, broken, again)
    if again.code != 0:
        verdict.wrong.append(f"the next run ended {again.code}: {again.text}")
    verdict.wrong += bed.wrong()
    if verdict.wrong:
        verdict.wrong.append(f"the disturbed run ended {broken.code}: {broken.text}")
    return verdict


def _cordon_stays(bed: Bed, point: Point, verdict: Verdict, broken: Ran, again: Ran) -> Ran:
    """Whoever cordoned a node keeps it out of service, and is named; then it is uncordoned, and run again."""
    name = point.where.split()[-2]
    if not bed.cluster.node(name)["spec"].get("unschedulable"):
        verdict.wrong.append(f"{name} was uncordoned, though someone else had cordoned it")
    if "kubectl-cordon" not in broken.text + again.text:
        verdict.wrong.append(f"nobody says who cordoned {name}: {broken.text}\n{again.text}")
    bed.cluster.write(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": None}}, "kubectl-uncordon")  # fmt: skip
    return bed.run(*WORDS)


def _disturbed(bed: Bed, point: Point, verdict: Verdict) -> Ran:
    running: list[Command] = []

    def kill() -> None:
        while not running:
            time.sleep(0.01)
        running[0].kill()

    traps: dict[str, Callable[[], Trap]] = {
        "killed before": lambda: Trap(point.where, BEFORE, kill, drop=True),
        "killed after": lambda: Trap(point.where, AFTER, kill, drop=True),
        "answer lost": lambda: Trap(point.where, AFTER, drop=True),
        REFUSED: lambda: Trap(point.where, away=REFUSED, away_s=bed.away_s),
        UNAVAILABLE: lambda: Trap(point.where, away=UNAVAILABLE, away_s=bed.away_s),
        HANGING: lambda: Trap(point.where, away=HANGING, away_s=bed.away_s),
        FOR_LONG: lambda: Trap(point.where, away=REFUSED, away_s=bed.long_s),
    }
    other = _OTHER_CLIENTS.get(point.what)
    trap = traps[point.what]() if other is None else Trap(point.where, BEFORE, lambda: other(bed, point))  # fmt: skip
    bed.gate.begin(trap)
    running.append(bed.start(*WORDS))
    ran = finish(running[0], bed.bound_s)
    verdict.fired = trap.sprung
    bed.gate.wait_back()
    bed.cluster.token = TOKEN
    bed.gate.begin()
    return ran


def _killed_at_entry(bed: Bed, point: Point, verdict: Verdict) -> Ran:
    name, number = point.where.split()
    machine = next(one for one in bed.machines if one.name == name)
    bed.gate.begin()
    machine.stop_at(number)
    hold = bed.hold(machine)
    command = bed.start(*WORDS)
    verdict.fired = bool(hold.wait(bed.bound_s / 2))
    command.kill()
    ran = finish(command, bed.bound_s)
    hold.never_again()
    if verdict.fired:
        hold.go()
    hold.close()
    return ran


# --- other clients ------------------------------------------------------------------------


def _node_path(point: Point) -> str:
    return f"/api/v1/nodes/{point.where.split()[-2]}"


def _annotated(bed: Bed, point: Point) -> None:
    bed.cluster.write(_node_path(point), {"metadata": {"annotations": {SEEN: "1"}}})


def _labelled(bed: Bed, point: Point) -> None:
    bed.cluster.write(_node_path(point), {"metadata": {"labels": {RACK: "7"}}})


def _cordoned(bed: Bed, point: Point) -> None:
    """Where it is cordoned already, kubectl leaves it alone; so it is uncordoned and cordoned again."""
    for value in (None, True):
        bed.cluster.write(_node_path(point), {"spec": {"unschedulable": value}}, "kubectl-cordon")


def _uncordoned(bed: Bed, point: Point) -> None:
    bed.cluster.write(_node_path(point), {"spec": {"unschedulable": None}}, "kubectl-uncordon")


def _token_expired(bed: Bed, point: Point) -> None:
    bed.cluster.token = "another"


def _lease_written(bed: Bed, point: Point) -> None:
    path = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
    found = bed.cluster.all("leases")
    if found:
        lease: dict[str, Any] = found[0]
        lease["metadata"]["annotations"] = {SEEN: "1"}
        answer = bed.cluster.answer(Request("PUT", f"{path}/gpustate", body=lease))
    else:
        lease = {"metadata": {"name": "gpustate", "namespace": "kube-system"}, "spec": {}}
        answer = bed.cluster.answer(Request("POST", path, body=lease))
    assert answer.status < 300, answer


def _pod_replaced(bed: Bed, point: Point) -> None:
    """Pods of that name are new ones, with another uid."""
    bed.cluster.replace_pods(point.where.split()[1].removesuffix("-n"))


_OTHER_CLIENTS: dict[str, Callable[[Bed, Point], None]] = {
    "annotated": _annotated,
    "labelled": _labelled,
    "cordoned": _cordoned,
    "uncordoned": _uncordoned,
    "token expired": _token_expired,
    "lease written": _lease_written,
    "pod replaced": _pod_replaced,
}


def failures(verdicts: Sequence[Verdict]) -> str:
    """All that is wrong, by point."""
    bad = [one for one in verdicts if one.wrong]
    return f"{len(bad)} of {len(verdicts)} points\n" + "\n".join(
        f"--- {one.point}\n" + "\n".join(one.wrong) for one in bad
    )
