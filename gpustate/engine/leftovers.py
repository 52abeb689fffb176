"""What packages leave behind when a rollback takes them away or to an older version.

dpkg keeps a configuration file that the older version of its package does not have, and calls it obsolete. Its units
then still run: ``nvidia-cdi-refresh`` of the container toolkit 1.18 is one. Those that came since the run and that
nobody has changed are removed. Users that packages created stay, for files may belong to them, and are named.

Sources:
    dpkg 1.21: src/main/unpack.c (``pkg_remove_conffile_on_upgrade``, old configuration files); statx(2), ``stx_btime``.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from gpustate import shell
from gpustate.core.building import build, parameters
from gpustate.core.change import Disruption, Plan
from gpustate.core.node import Node
from gpustate.core.queries import Answer, Query
from gpustate.core.state import AnyState, State, diff
from gpustate.core.step import Step
from gpustate.ops.packages import OURS
from gpustate.ops.steps import Run

NAME = "package-leftovers"
_WHY = "the version that is installed now does not have them"


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What is left of packages.

    Args:
        obsolete: unchanged files of packages that do not have them any more: ``PACKAGE|VERSION|MD5|PATH``.
        changed: paths of such files that somebody has changed.
        users: users that came since the run.
    """

    obsolete: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    users: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LeftoversQuery(Query[Leftovers]):
    """Obsolete configuration files that are not older than a time, and all users of the system.

    Args:
        since: in seconds since 1970, by the node's clock.
    """

    since: int

    def script(self) -> str:
        return shell.load("leftovers", "gpustate.engine", OURS=OURS, SINCE=str(self.since))

    def parse(self, answer: Answer) -> Leftovers:
        rows: dict[str, list[str]] = {"same": [], "other": []}
        users: tuple[str, ...] = ()
        for line in answer.text.splitlines():
            word, _, rest = line.partition("|")
            if line.startswith("users="):
                users = tuple(line.removeprefix("users=").split())
            elif word in rows and rest.count("|") == 3 and " " not in rest:
                rows[word].append(rest)
        changed = tuple(row.rpartition("|")[2] for row in rows["other"])
        return Leftovers(tuple(rows["same"]), changed, users)

    def placeholder(self) -> Leftovers:
        return Leftovers()


class PackageLeftoversRemoved(State[Leftovers]):
    """Nothing is left of packages that a rollback took away, except users and changed files.

    Args:
        since: when the run that is undone began, in seconds since 1970 by the node's clock.
        users: the users before it; empty: they are not known.

    Disruption:
        ``RELOAD``: units among the files are stopped, and systemd reads its units again.

    Raises:
        StepFailed: a package cannot be unpacked again.
    """

    name: ClassVar[str] = NAME
    worst: ClassVar[Disruption] = Disruption.RELOAD
    stable: ClassVar[tuple[str, ...] | None] = ("obsolete",)

    since: int = 0
    users: tuple[str, ...] = ()

    def probe(self, node: Node) -> Leftovers:
        found = node.query(LeftoversQuery(self.since))
        came = [user for user in found.users if self.users and user not in self.users]
        return replace(found, users=tuple(came))

    def desired(self, observed: Leftovers) -> Leftovers:
        return replace(observed, obsolete=())

    def plan(self, observed: Leftovers) -> Plan:
        return diff(
            observed,
            self.desired(observed),
            costs={"obsolete": Disruption.RELOAD},
            why={"obsolete": _WHY},
        )

    def apply(self, observed: Leftovers, plan: Plan) -> Iterator[Step]:
        if "obsolete" in plan.fields:
            text = shell.load("leftovers_remove", "gpustate.engine")
            yield Run(
                f"set -- {shlex.join(observed.obsolete)}\n{text}",
                f"remove {', '.join(paths(observed))}",
                1800,
                why="tail -n 50 /var/log/apt/term.log; dpkg --audit",
            )

    def forecast(self, node: Node, preview: str) -> Plan:
        removed = "configuration files that came since and that the older versions do not have are removed, if unchanged"
        return Plan(notes=(removed, *stays(self.probe(node))))


def paths(observed: Leftovers) -> tuple[str, ...]:
    """The files that are removed."""
    return tuple(row.rpartition("|")[2] for row in observed.obsolete)


def stays(observed: object) -> tuple[str, ...]:
    """What stays on a node, as notes; of another object: nothing."""
    if not isinstance(observed, Leftovers):
        return ()
    users = f"stays: users that packages created: {', '.join(observed.users)}"
    return (
        *((users,) if observed.users else ()),
        *(
            f"stays: {path}, which was changed and whose package does not have it any more"
            for path in observed.changed
        ),
    )


def with_removal(
    states: tuple[AnyState, ...], since: int, users: tuple[str, ...]
) -> tuple[AnyState, ...]:
    """States of a rollback, with the one that removes leftovers behind those that have packages of their own.

    States that depend on the packages wait for it: what they find may be one of the leftovers.
    """
    names = tuple(state.name for state in states if type(state).pinned is not State.pinned)
    if not names:
        return states
    ahead = _ahead(states, names)

    def waiting(state: AnyState) -> AnyState:
        if state.absent or state.name in ahead or not {*names} & {*state.known_after}:
            return state
        later = {"known_after": (*state.known_after, NAME)}
        return _rebuilt(type(state), parameters(state), later)

    removal = {"since": since, "users": users}
    found = _rebuilt(PackageLeftoversRemoved, removal, {"known_after": names})
    return (*map(waiting, states), found)


def _ahead(states: tuple[AnyState, ...], names: tuple[str, ...]) -> set[str]:
    """States with these names, and all that come before them."""
    found, todo = set(names), list(names)
    by_name = {state.name: state for state in states}
    while todo:
        one = by_name[todo.pop()]
        earlier = {*one.needs, *one.after, *one.known_after}
        earlier |= {state.name for state in states if one.name in state.before}
        new = (earlier & by_name.keys()) - found
        found |= new
        todo += new
    return found


def _rebuilt(
    kind: type[AnyState], values: Mapping[str, Any], attributes: Mapping[str, object]
) -> AnyState:
    """A state of a class with other attributes."""
    names = {"__doc__": kind.__doc__, "__module__": kind.__module__, **attributes}
    return build(type(kind.__name__, (kind,), names), values)
