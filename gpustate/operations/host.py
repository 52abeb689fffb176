"""Plan pyinfra operations from query results: they yield commands, and nothing runs.

pyinfra reads a node through ``run_shell_command`` of its connector. Here that sends a query; until it has an
answer, the fact is a placeholder. pyinfra has one current state per process, so operations of different nodes
are planned one at a time; none of them waits for a node.

Most nodes of a run give the same answers, and an operation yields the same commands for them. So the plan of one
node is used for the others whose answers are equal, unless the operation read the node's name or variables.

Sources:
    pyinfra 3.10, ``api/facts.py``, ``api/operation.py`` (``command_generator``), ``connectors/fake.py``.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, cast

from pyinfra import logger
from pyinfra.api import arguments as arguments_api
from pyinfra.api import facts, util
from pyinfra.api.arguments import all_argument_meta
from pyinfra.api.config import Config
from pyinfra.api.exceptions import PyinfraError
from pyinfra.api.host import Host as PyinfraHost
from pyinfra.api.host import HostData
from pyinfra.api.inventory import Inventory as PyinfraInventory
from pyinfra.api.state import State as PyinfraState
from pyinfra.api.state import StateHostMeta, StateHostResults, StateStage
from pyinfra.connectors.base import BaseConnector
from pyinfra.connectors.util import CommandOutput as PyinfraOutput
from pyinfra.connectors.util import OutputLine
from pyinfra.context import ctx_config, ctx_host, ctx_inventory, ctx_state
from pyinfra.facts.files import File

from gpustate.core.node import Node
from gpustate.documents import Json, JsonView
from gpustate.errors import GpustateError, ProbeError
from gpustate.formats.words import cut
from gpustate.operations import names
from gpustate.operations.placeholders import World, placeholder
from gpustate.operations.queries import CommandOutput, Output
from gpustate.operations.steps import TEMPORARY, PlannedCommand
from gpustate.operations.translate import Global, planned, unix

# pyinfra logs facts that fail; the error raised here has the same text.
logger.addHandler(logging.NullHandler())
logger.propagate = False

# pyinfra computes this list from annotations for every fact of every node: half of the time of a plan.
arguments_api.all_global_arguments = cache(arguments_api.all_global_arguments)

_LOCK = threading.RLock()


class _UnansweredError(Exception):
    """A query has no answer yet."""


class _Connector(BaseConnector):
    """Runs commands as queries."""

    handles_execution = True

    @staticmethod
    def make_names_data(name: str) -> Iterator[Any]:
        yield name, {}, []

    def run_shell_command(
        self, command: Any, print_output: bool = False, print_input: bool = False, **arguments: Any
    ) -> tuple[bool, PyinfraOutput]:
        return cast(_Host, self.host).answer(command, arguments)

    def put_file(self, *arguments: Any, **named: Any) -> bool:
        raise ProbeError("it uploads a file while reading facts; only steps may write")

    def get_file(self, *arguments: Any, **named: Any) -> bool:
        raise ProbeError("it downloads a file while reading facts")


#: pyinfra's command for the fact of a file, and the times in its output, which differ from node to node.
_STAT = "atime=%X mtime=%Y ctime=%Z"
_STAT_TIMES = re.compile(r"(?<= [acm]time=)-?\d+")


class _Stat(Json):
    """The fact of a file, which notes whether an operation reads more of it than is equal on most nodes."""

    def __init__(self, host: _Host, values: JsonView) -> None:
        super().__init__(values)
        self._host = host

    def __getitem__(self, key: str) -> Any:
        self._host.individual |= key.endswith("time")
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self._host.individual |= key.endswith("time")
        return super().get(key, default)

    def _read_individually(self) -> Any:
        self._host.individual = True
        return super()

    def __iter__(self) -> Iterator[str]:
        return iter(self._read_individually().keys())

    def __eq__(self, value: object) -> bool:
        return bool(self._read_individually().__eq__(value))

    def __repr__(self) -> str:
        return str(self._read_individually().__repr__())

    def keys(self) -> Any:
        return self._read_individually().keys()

    def values(self) -> Any:
        return self._read_individually().values()

    def items(self) -> Any:
        return self._read_individually().items()

    def copy(self) -> Any:
        return self._read_individually().copy()

    def pop(self, *arguments: Any) -> Any:
        return self._read_individually().pop(*arguments)

    __hash__ = None


class _Data(HostData):
    """The variables of one node; a short lookup, since every argument of every fact uses it."""

    def __getattr__(self, key: str) -> Any:
        if key not in all_argument_meta:
            self.__dict__["host"].individual = True
        for values in (self.override_datas, self.__dict__["host"].get_deploy_data()):
            if key in values:
                return copy(values[key])
        raise AttributeError(key)

    def dict(self) -> Json:
        self.__dict__["host"].individual = True
        return {**self.__dict__["host"].get_deploy_data(), **self.override_datas}


class _Host(PyinfraHost):
    """A node as a pyinfra host."""

    connected = True

    def __init__(self, node: Node, state: _State, world: World) -> None:
        self.node = node
        self.world = world
        super().__init__(node.name, state.inventory, [], _Connector)
        self.unanswered = 0
        self.failed = ""
        self.temporary = 0
        self.queries: dict[CommandOutput, None] = {}
        self.data = _Data(self)
        self.data.override_datas.update(
            {key: value for key, value in node.vars.items() if not _is_connection(key)}
        )
        self.init(state)
        #: The operation read something that other nodes need not have.
        self.individual = not all_argument_meta.keys().isdisjoint(node.vars)

    @property
    def name(self) -> str:
        """The node's name."""
        self.individual = True
        return self.node.name

    @name.setter
    def name(self, name: str) -> None:
        """It is the node's, whatever pyinfra sets."""

    @property
    def print_prefix(self) -> str:
        """The start of a line of pyinfra's log; a plan with such lines is not used for other nodes."""
        return f"[{self.node.name}] "

    def answer(self, command: Any, arguments: JsonView) -> tuple[bool, PyinfraOutput]:
        """Return the output of a command.

        Raises:
            _UnansweredError: the query has no answer yet.
        """
        options = Global.of(arguments)
        text = unix(command, options, for_sh=True)
        query = CommandOutput(text, options.timeout_s)
        self.queries[query] = None
        output: Output | None = self.node.query(query)
        if output is None:
            raise _UnansweredError
        if output.status not in options.ok:
            last = output.stderr[-1] if output.stderr else "no error message"
            self.failed = f"`{_short(str(command))}` exited with {output.status}: {last}"
        lines = [OutputLine("stdout", line) for line in output.stdout]
        lines += [OutputLine("stderr", line) for line in output.stderr]
        return output.status in options.ok, PyinfraOutput(lines)

    def get_fact(self, name_or_cls: Any, *arguments: Any, **named: Any) -> Any:
        """Return the fact, or a placeholder."""
        try:
            fact = facts.get_fact(self.state, self, name_or_cls, args=arguments, kwargs=named)
        except _UnansweredError:
            self.unanswered += 1
            return placeholder(name_or_cls, self.world)
        if isinstance(fact, dict) and issubclass(name_or_cls, File):
            return _Stat(self, fact)
        return fact

    def get_temp_filename(
        self,
        hash_key: str | None = None,
        hash_filename: bool = True,
        *,
        temp_directory: str | None = None,
    ) -> str:
        """Return a stable name, so that two plans can be compared."""
        if not hash_key:
            self.temporary += 1
            hash_key = f"{self.temporary}"
        name = hashlib.sha1(hash_key.encode()).hexdigest() if hash_filename else hash_key
        return f"{TEMPORARY}/pyinfra-{name}"

    def get_temp_dir_config(self) -> str:
        return TEMPORARY


class _State(PyinfraState):
    """pyinfra's state; reset for each operation of each node, except for the parts that are slow to create."""

    def __init__(self) -> None:
        inventory = PyinfraInventory((["node"], {}))
        super().__init__(inventory, Config(PARALLEL=1, TEMP_DIR=TEMPORARY), check_for_changes=False)
        # Otherwise pyinfra prints the output of facts that fail.
        self.print_fact_output = True
        self.current_stage = StateStage.Prepare

    def host_of(self, node: Node, world: World) -> _Host:
        host = _Host(node, self, world)
        self.op_meta = {}
        self.ops = {host: {}}
        self.meta = {host: StateHostMeta()}
        self.results = {host: StateHostResults()}
        self.activated_hosts = self.active_hosts = {host}
        return host

    def fail_hosts(self, hosts_to_fail: Any, activated_count: int | None = None) -> None:
        for host in hosts_to_fail:
            raise ProbeError(host.failed or "pyinfra cannot read a fact")


@dataclass(frozen=True, slots=True)
class Planned:
    """The commands of an operation on a node.

    Args:
        commands: in order.
        notes: pyinfra's warnings.
        complete: every query has an answer; otherwise there are no commands.
    """

    commands: tuple[PlannedCommand, ...] = ()
    notes: tuple[str, ...] = ()
    complete: bool = True


@dataclass(slots=True)
class _Warnings(logging.Handler):
    """Collects pyinfra's warnings."""

    lines: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        logging.Handler.__init__(self, logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(" ".join(record.getMessage().split()))

    __hash__ = object.__hash__


_state: _State | None = None
#: The queries of earlier operations, so that they are sent to the next node without trying placeholders.
_LEARNED: dict[str, dict[CommandOutput, None]] = {}
_LEARNED_MOST = 1000
_QUERIES_MOST = 64
#: Plans of an operation that a run keeps; nodes that drifted differ.
_PLANS_MOST = 16


def plan(node: Node, name: str, arguments: JsonView) -> Planned:
    """Plan an operation or a deploy on a node.

    Args:
        node: receives the queries.
        name: dotted name.
        arguments: as plain data.

    Raises:
        RefusedError: it yields a command that cannot be a step.
        ProbeError: a fact cannot be read, or the operation raises an error.
    """
    operation = _operation(node, name, arguments)
    key = operation.key or _key(name, arguments, node.vars)
    if (earlier := _earlier_plan(node, operation, key)) is not None:
        return earlier
    with _LOCK:
        # Nodes begin at the same time, and the first one may have planned it since.
        if (earlier := _earlier_plan(node, operation, key)) is not None:
            return earlier
        function, queries = operation.function, dict[CommandOutput, None]()
        attempt = _attempt(node, World.NOTHING, function, arguments)
        for world in (World.FILES, World.EVERYTHING):
            queries |= attempt.host.queries
            if attempt.host.unanswered:
                attempt = _attempt(node, world, function, arguments)
        _learn(key, queries | attempt.host.queries)
        if attempt.host.unanswered:
            return Planned(complete=False)
        if attempt.error is not None:
            raise _named(name, attempt.error) from attempt.error
        named = any(attempt.host.print_prefix in note for note in attempt.planned.notes)
        if not attempt.host.individual and not named:
            operation.keep(
                {query: node.query(query) for query in attempt.host.queries}, attempt.planned
            )
        return attempt.planned


def _earlier_plan(node: Node, operation: _Operation, key: str) -> Planned | None:
    """The plan from earlier nodes: their queries, sent at once, or their plan if the answers are equal."""
    answers = {query: node.query(query) for query in tuple(_LEARNED.get(key, ()))}
    if answers and not any(answers.values()):
        return Planned(complete=False)
    return operation.plan_for(answers)


@dataclass(slots=True)
class _Operation:
    """An operation with its arguments, for all nodes of a run.

    Args:
        arguments: as plain data.
        function: of pyinfra.
        key: equal for all nodes; empty for a deploy, whose queries may depend on variables.
        plans: plans that hold for every node with these answers.
    """

    arguments: JsonView
    function: Any
    key: str = ""
    plans: list[tuple[dict[CommandOutput, Output], Planned]] = field(
        default_factory=list[tuple[dict[CommandOutput, Output], Planned]]
    )

    def plan_for(self, answers: Mapping[CommandOutput, Output | None]) -> Planned | None:
        """The plan of an earlier node with the same answers."""
        if not self.plans:
            return None
        have = _comparable(answers)
        for earlier_answers, plan in tuple(self.plans):
            if earlier_answers.items() <= have.items():
                return plan
        return None

    def keep(self, answers: Mapping[CommandOutput, Output | None], planned: Planned) -> None:
        """Use a plan for other nodes, too."""
        if len(self.plans) < _PLANS_MOST:
            self.plans.append((_comparable(answers), planned))


def _comparable(answers: Mapping[CommandOutput, Output | None]) -> dict[CommandOutput, Output]:
    """Answers without the times of files; a plan that depends on those is not kept."""
    return {
        query: replace(answer, text=_STAT_TIMES.sub("", answer.text))
        if _STAT in query.text
        else answer
        for query, answer in answers.items()
        if answer is not None
    }


def _operation(node: Node, name: str, arguments: JsonView) -> _Operation:
    # The arguments of a state are one object for all nodes, and kept with it, so that its id is not used again.
    if _Operation not in node.shared:
        # A new run: pyinfra would keep the content of local files for ever.
        util.TEMPLATES.clear()
        util.FILE_SHAS.clear()
    shared: dict[int, _Operation] = node.shared.setdefault(_Operation, {})
    operation = shared.get(id(arguments))
    if operation is None:
        function = names.find(name)
        key = _key(name, arguments, {}) if hasattr(function._inner, "is_idempotent") else ""
        operation = shared[id(arguments)] = _Operation(arguments, function, key)
    return operation


def _key(name: str, arguments: JsonView, vars: Mapping[str, object]) -> str:
    """A key that is equal for nodes with the same queries."""
    return json.dumps([name, arguments, vars], sort_keys=True, default=repr)


def _learn(key: str, queries: dict[CommandOutput, None]) -> None:
    if key not in _LEARNED and len(_LEARNED) >= _LEARNED_MOST:
        _LEARNED.pop(next(iter(_LEARNED)))
    learned = _LEARNED.setdefault(key, {})
    for query in queries:
        if len(learned) < _QUERIES_MOST:
            learned[query] = None


@dataclass(frozen=True, slots=True)
class _Attempt:
    """The result of an operation with one set of placeholders."""

    host: _Host
    planned: Planned = Planned()
    error: Exception | None = None


def _attempt(node: Node, world: World, function: Any, arguments: JsonView) -> _Attempt:
    global _state
    if _state is None:
        _state = _State()
    host = _state.host_of(node, world)
    warnings = _Warnings()
    logger.addHandler(warnings)
    try:
        with _current(_state, host):
            function(**{key: names.decoded(value) for key, value in arguments.items()})
            commands = tuple(_commands(_state, host))
        return _Attempt(host, Planned(commands, tuple(dict.fromkeys(warnings.lines))))
    except Exception as error:  # noqa: BLE001  placeholders need not make sense to an operation
        return _Attempt(host, error=error)
    finally:
        logger.removeHandler(warnings)


@contextmanager
def _current(state: _State, host: _Host) -> Iterator[None]:
    """Set pyinfra's current state and host; its own context managers do not reset them after an exception."""
    chosen = (
        (ctx_state, state),
        (ctx_inventory, state.inventory),
        (ctx_config, state.config.copy()),
        (ctx_host, host),
    )
    before = [manager.get() for manager, _ in chosen]
    try:
        for manager, value in chosen:
            manager.set(value)
        yield
    finally:
        for (manager, _), value in zip(chosen, before, strict=True):
            manager.set(value)


def _commands(state: _State, host: _Host) -> Iterator[PlannedCommand]:
    """Yield the commands of all operations that were called, in order; a deploy calls several."""
    for key in list(host.op_hash_order):
        data = state.ops[host][key]
        only_if = data.global_arguments.get("_if") or []
        if not all(c() for c in (only_if if isinstance(only_if, list) else [only_if])):
            yielded: list[Any] = []
        else:
            yielded = list(data.command_generator())
        if not host.unanswered:
            options = Global.of(data.global_arguments)
            inner = inspect.getclosurevars(data.command_generator).nonlocals.get("func")
            repeats = not getattr(inner, "is_idempotent", True)
            for command in yielded:
                yield planned(command, options, repeats=repeats)
        # Later operations may check whether this one changed anything.
        data.operation_meta.set_complete(True, yielded, PyinfraOutput([]))


def _named(name: str, error: Exception) -> Exception:
    """Return the error with the name of the operation."""
    if isinstance(error, GpustateError):
        return type(error)(f"{name}: {error.message}", fix=error.fix)
    if isinstance(error, PyinfraError):
        return ProbeError(f"{name}: {error}")
    return ProbeError(f"{name}: {type(error).__name__}: {error}")


def _is_connection(name: str) -> bool:
    """Whether a variable belongs to the connection, which operations must not see."""
    return name.startswith(("_", "ssh_", "ansible_")) or name == "gpustate"


def _short(text: str) -> str:
    return cut(text, 120)
