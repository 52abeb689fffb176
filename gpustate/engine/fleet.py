"""Many nodes side by side: each walks its own graph, a bounded number at a time."""

from __future__ import annotations

import getpass
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from gpustate import compat, errors
from gpustate.core.change import Disruption
from gpustate.core.inventory import Inventory, InventoryNode
from gpustate.core.node import Node
from gpustate.core.outcome import NodeResult, NodeStatus
from gpustate.core.policy import Policy, Resolved, resolve
from gpustate.core.state import AnyState
from gpustate.engine import gate
from gpustate.engine.events import Event, Listener, nobody
from gpustate.engine.gate import Holder
from gpustate.engine.maintenance import NO_MAINTENANCE, Maintenance
from gpustate.engine.probing import query_node
from gpustate.engine.walk import Options, Walk
from gpustate.errors import UsageError
from gpustate.formats.masking import keep_readable
from gpustate.graph.build import build, reverse
from gpustate.graph.order import order
from gpustate.remote.chroot import ChrootSession
from gpustate.remote.session import Session

DEFAULT_FORKS = 50

T = TypeVar("T")


#: Makers of the states that come after all others of a node that is the root of an image.
LastInImage = tuple[Callable[[Sequence[AnyState], InventoryNode], AnyState], ...]


@dataclass(slots=True)
class Request:
    """What a run is to do.

    Args:
        policy: states that should hold.
        inventory: nodes it is for.
        apply: change them; otherwise only look and plan.
        known: names of all registered states, for the graph's checks.
        forks: nodes worked on at the same time.
        max_disruption: nodes whose plan may cost more are refused.
        planned, announced: from a saved plan, see :class:`gpustate.engine.walk.Options`.
        serial: sizes of the batches nodes are taken in, one after the other; the last repeats.
            A batch with a node that did not end well is the last one.
        run: id of the run; made when not given.
        ticket: what the person gave as the reason.
        timings: ask nodes also how long steps took there before, for an estimate.
        plans: what :func:`resolve_all` made of it.
        all_or_nothing, without_gpu, forecast: see :class:`gpustate.engine.walk.Options`.
        checks: see :class:`gpustate.engine.walk.Options`.
        maintenance: takes nodes out of service for a change, and back.
        last_in_image: make states that come after all others of a node that is the root of an image.
    """

    policy: Policy
    inventory: Inventory
    apply: bool = False
    known: Collection[str] = frozenset()
    forks: int = DEFAULT_FORKS
    max_disruption: Disruption = Disruption.REBOOT
    planned: Mapping[str, Mapping[str, object]] | None = None
    announced: Mapping[str, Mapping[str, Disruption]] | None = None
    plan_id: str = ""
    serial: Sequence[str] = ()
    run: str = ""
    ticket: str = ""
    timings: bool = False
    plans: list[tuple[Resolved, list[AnyState]]] | None = field(default=None, repr=False)
    all_or_nothing: bool = False
    without_gpu: frozenset[str] = frozenset()
    forecast: bool = False
    last_in_image: LastInImage = ()
    checks: Sequence[gate.NodeCheck] = ()
    maintenance: Maintenance = NO_MAINTENANCE


@dataclass(slots=True)
class FleetResult:
    """A run that is over."""

    run: str
    nodes: list[NodeResult] = field(default_factory=list[NodeResult])
    skipped: list[str] = field(default_factory=list[str])  # never started: stopped early
    duration_s: float = 0.0
    interrupted: bool = False
    applied: bool = False
    proved: bool = False  # what was done anew is the proof alone; nothing counts as changed
    drift: bool = False  # nodes that differ count as changed, also those that an apply would refuse

    @property
    def exit_code(self) -> int:
        """The worst for an operator; pending changes are the verb's business."""
        codes = [node.exit_code for node in self.nodes if not self._compared(node)]
        if self.interrupted:
            codes.append(errors.EXIT_INTERRUPTED)
        elif self.skipped:
            codes.append(errors.EXIT_STOPPED)
        return errors.worst_exit_code(codes)

    def _compared(self, node: NodeResult) -> bool:
        """Drift was looked for and found although an apply would be refused."""
        refused = node.status is NodeStatus.REFUSED
        return self.drift and refused and node.drifted and not node.drift_unknown

    @property
    def pending(self) -> bool:
        """Some node would change; of a look for drift, differs."""
        return any(node.drifted if self.drift else node.pending for node in self.nodes)

    def count(self, *statuses: NodeStatus) -> int:
        """Nodes that ended so."""
        return sum(node.status in statuses for node in self.nodes)

    def _counts(self, node: NodeResult) -> bool:
        """A node is different from before; of a plan, it would be, and is one that could be planned."""
        if self.proved:
            return False
        if self.applied:
            return node.changed
        if self.drift:
            return node.drifted
        planned = node.proceeds or node.status in (NodeStatus.OK, NodeStatus.BLOCKED)
        return node.pending and planned

    def summary(self) -> str:
        """The last line, for grep."""
        ok = [n for n in self.nodes if n.status is NodeStatus.OK]
        changed = sum(map(self._counts, self.nodes))
        blocked = self.count(NodeStatus.BLOCKED)
        unchanged = sum(not self._counts(n) for n in ok)
        numbers = {
            "nodes": len(self.nodes) + len(self.skipped),
            "ok": len(ok),
            "changed": changed,
            "unchanged": unchanged,
            "failed": self.count(NodeStatus.FAILED, NodeStatus.INTERRUPTED),
            "unreachable": self.count(NodeStatus.UNREACHABLE),
            "refused": self.count(NodeStatus.REFUSED, NodeStatus.LOCKED),
            "rolled_back": self.count(NodeStatus.ROLLED_BACK),
            **({"blocked": blocked} if blocked else {}),
            "reboots": sum(n.reboots for n in self.nodes),
            "duration_s": f"{self.duration_s:.1f}",
        }
        return " ".join(f"{key}={value}" for key, value in numbers.items())


def new_run_id() -> str:
    """Sortable by time, unique without asking anybody: ``20261121-075500-1a2b3c``."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def person() -> str:
    """Who sits at the controller: behind sudo whoever called it."""
    behind = os.environ.get("SUDO_USER", "") if os.geteuid() == 0 else ""
    if behind and behind.isprintable():
        return behind
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def controller() -> Holder:
    """Who we are, for locks."""
    name = f"{person()}@{socket.gethostname()}"

    def alive(holder: str, pid: int) -> bool:
        if holder != name or pid <= 0:
            return holder != name
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return pid != os.getpid()

    return Holder(name, os.getpid(), alive, born)


def born(pid: int) -> str:
    """When a process began: in ticks since a boot; empty where there is no /proc to tell."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
    # The name of the program, which may hold anything, ends at the last bracket.
    return f"{stat.rpartition(')')[2].split()[19]}@{boot}"


def ordered(states: Sequence[AnyState], known: Collection[str] = frozenset()) -> list[AnyState]:
    """States in the order they are walked; raise ``GraphError`` when there is none."""
    by_name = {state.name: state for state in states}
    graph = build(states, known)
    if states and all(state.absent for state in states):
        graph = reverse(graph)
    return [by_name[name] for name in order(graph)]


def resolve_all(request: Request) -> list[tuple[Resolved, list[AnyState]]]:
    """Every node's own states, checked before the first connection is made; resolved once.

    The rules of the matrix are read here too: a folder of rules that is not the pinned one, or an
    exception from a rule that nobody knows, is told before any node is reached.
    """
    if request.plans is not None:
        return request.plans
    rules = compat.load()
    keep_readable(request.known)
    names = [state.name for state in ordered(request.policy.states, request.known)]
    plans: list[tuple[Resolved, list[AnyState]]] = []
    for node in request.inventory:
        resolved = resolve(request.policy, node, request.known)
        gate.refuse_unknown_rules(request.policy, node, resolved.allow, rules)
        by_name = {state.name: state for state in resolved.states}
        plans.append((resolved, [by_name[name] for name in names]))
    request.plans = plans
    return plans


def batches(nodes: Sequence[Any], serial: Sequence[str]) -> list[list[Any]]:
    """Cut nodes into batches: ``1``, ``10%`` (rounded up); the last size repeats.

    Raises:
        UsageError: a size that is no positive number or percentage.
    """
    rest = list(nodes)
    if not serial:
        return [rest] if rest else []
    sizes: list[int] = []
    for word in serial:
        text = word.strip()
        number = text.removesuffix("%")
        if not number.isdigit() or int(number) == 0 or (text.endswith("%") and int(number) > 100):
            raise UsageError(
                f"--serial: {word!r} is not a batch size",
                fix="use numbers or percentages: 1,10%,50%",
            )
        size = int(number)
        sizes.append(-(-len(rest) * size // 100) if text.endswith("%") else size)
    cut: list[list[Any]] = []
    while rest:
        size = max(1, sizes[min(len(cut), len(sizes) - 1)])
        cut.append(rest[:size])
        rest = rest[size:]
    return cut


def run(
    request: Request, listen: Listener = nobody, stop: Callable[[], bool] = lambda: False
) -> FleetResult:
    """Walk all nodes.

    Raises:
        GpustateError: policy, graph or overrides are wrong; nothing was reached then.
    """
    started = time.monotonic()
    plans = resolve_all(request)
    run_id = request.run or new_run_id()
    options = Options(
        run=run_id,
        apply=request.apply,
        holder=controller(),
        max_disruption=request.max_disruption,
        planned=request.planned,
        announced=request.announced,
        plan_id=request.plan_id,
        ticket=request.ticket,
        timings=request.timings,
        all_or_nothing=request.all_or_nothing,
        without_gpu=request.without_gpu,
        forecast=request.forecast,
        checks=request.checks,
        maintenance=request.maintenance,
    )

    hearing = threading.Lock()

    def tell(event: Event) -> None:
        with hearing:  # listeners hear one thing at a time
            listen(event)

    def one(plan: tuple[Resolved, list[AnyState]]) -> NodeResult | None:
        if stop():
            return None
        resolved, states = plan
        if resolved.node.connection.kind == "chroot":
            states = [*states, *(last(states, resolved.node) for last in request.last_in_image)]
        return Walk(_session(resolved.node), resolved, states, options, stop, tell).run()

    result = FleetResult(run_id, applied=request.apply)
    done: dict[str, NodeResult] = {}
    for batch in batches(plans, request.serial):
        with ThreadPoolExecutor(max(1, request.forks)) as pool:
            for node in pool.map(one, batch):
                if node is not None:
                    done[node.name] = node
        if stop() or any(done[p[0].node.name].exit_code for p in batch if p[0].node.name in done):
            break
    result.nodes = [done[p[0].node.name] for p in plans if p[0].node.name in done]
    result.skipped = [p[0].node.name for p in plans if p[0].node.name not in done]
    result.interrupted = stop()
    result.duration_s = time.monotonic() - started
    return result


def _session(node: InventoryNode) -> Session:
    """The session of a node, by its kind of connection."""
    return ChrootSession(node) if node.connection.kind == "chroot" else Session(node)


Answered = tuple[InventoryNode, T | None, errors.GpustateError | None]


def each(
    nodes: Sequence[InventoryNode], forks: int, work: Callable[[Session], T]
) -> list[Answered[T]]:
    """Do one small thing on every node (lock, unlock): what it gave, or its error."""

    def one(node: InventoryNode) -> Answered[T]:
        session = _session(node)
        try:
            session.connect()
            return node, work(session), None
        except errors.GpustateError as error:
            return node, None, error
        finally:
            session.close()

    with ThreadPoolExecutor(max(1, forks)) as pool:
        return list(pool.map(one, nodes))


def question(
    nodes: Sequence[InventoryNode], forks: int, asked: Callable[[Node], T]
) -> list[Answered[T]]:
    """Ask every node something outside of any state: its answer, or its error."""
    return each(nodes, forks, lambda session: query_node(session.node, asked, session.answer))
