"""pyinfra itself as the judge: what its own dry run yields, from the facts that it reads itself."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import paramiko
from pyinfra.api.command import FileUploadCommand
from pyinfra.api.config import Config
from pyinfra.api.host import Host
from pyinfra.api.inventory import Inventory
from pyinfra.api.operation import add_op
from pyinfra.api.state import State
from pyinfra.api.util import get_file_io
from pyinfra.connectors.local import LocalConnector
from pyinfra.connectors.ssh import SSHConnector
from pyinfra.connectors.util import CommandOutput as PyinfraOutput
from pyinfra.connectors.util import OutputLine
from pyinfra.context import ctx_host, ctx_state

from gpustate.core.inventory import InventoryNode
from gpustate.core.queries import Answer, Query
from gpustate.engine.probing import ProbingNode
from gpustate.operations import host, names
from gpustate.operations.queries import CommandOutput
from gpustate.operations.steps import TEMPORARY
from gpustate.remote.batch import prologue

#: Names of temporary files and of backups; some of pyinfra's are new each time.
_CHANGING = re.compile(r"/pyinfra-[0-9a-f]{40}|\.\d{10}\b")

Answers = Mapping[str, str]


def canned(text: str, answers: Answers) -> str | None:
    """What a command is said to print; ``None``: it is run here."""
    return next((out for part, out in answers.items() if part in text), None)


class OpenConnector(SSHConnector):
    """pyinfra's ``@ssh`` over an open connection, which its owner closes."""

    def connect(self) -> None:
        self.client = self.host.data.client

    def disconnect(self) -> None:
        self.client = None


def pyinfra_host(name: str, client: paramiko.SSHClient) -> Host:
    """The pyinfra host of a node that is connected."""
    inventory = Inventory(([(name, {"client": client})], {}))
    pyinfra_host = inventory.get_host(name)
    pyinfra_host.connector_cls = OpenConnector
    State(inventory, Config())
    pyinfra_host.connect(raise_exceptions=True)
    return pyinfra_host


class Judge(LocalConnector):
    """pyinfra's ``@local`` with some answers of another machine."""

    answers: ClassVar[Answers] = {}

    def run_shell_command(self, command: Any, *args: Any, **arguments: Any) -> Any:
        raw: str = command if isinstance(command, str) else command.get_raw_value()
        said = canned(raw, self.answers)
        if said is None:
            given: Any = command
            return super().run_shell_command(given, *args, **arguments)
        lines = [OutputLine("stdout", line) for line in said.splitlines()]
        return True, PyinfraOutput(lines)


def verdict(operation: str, arguments: Mapping[str, Any], answers: Answers) -> list[str]:
    """The commands of pyinfra's own dry run."""
    inventory = Inventory((["node"], {}))
    one = inventory.get_host("node")
    one.connector_cls = type("Judge", (Judge,), {"answers": answers})
    state = State(inventory, Config(PARALLEL=1, TEMP_DIR=TEMPORARY))
    one.connect(raise_exceptions=True)
    return dry_run(state, one, operation, arguments)


def dry_run(state: State, one: Any, operation: str, arguments: Mapping[str, Any]) -> list[str]:
    """The commands that pyinfra prepares for a host it is connected to."""
    state.activated_hosts = state.active_hosts = {one}
    state.ops[one].clear()
    given = {key: names.decoded(value) for key, value in arguments.items()}
    add_op(state, names.find(operation), **given)
    found: list[str] = []
    with ctx_state.use(state), ctx_host.use(one):
        for data in state.ops[one].values():
            found += [_told(command) for command in data.command_generator()]
    return found


def told(shown: str) -> str:
    """A command of a plan as :func:`verdict` tells it."""
    upload = re.fullmatch(r"upload (\S+) \((\d+) bytes.*\)", shown)
    text = f"upload {upload[1]} {upload[2]} bytes" if upload else shown
    return _CHANGING.sub("/T", text)


def _told(command: Any) -> str:
    if isinstance(command, FileUploadCommand):
        with get_file_io(command.src) as file:
            return f"upload {_CHANGING.sub('/T', command.dest)} {len(file.read())} bytes"
    return _CHANGING.sub("/T", str(command))


def ours(
    operation: str, arguments: Mapping[str, Any], answers: Answers
) -> tuple[host.Planned, list[str], int]:
    """What gpustate plans from the same machine: the plan, its commands as the judge tells them, and the execs."""
    known: dict[Query[Any], Answer] = {}
    execs = 0
    node = InventoryNode("node")
    while True:
        asking = ProbingNode(node, known)
        planned = host.plan(asking, operation, arguments)
        if planned.complete:
            break
        execs += 1
        known.update(zip(asking.missing, answered(tuple(asking.missing), answers), strict=True))
    return planned, [told(command.display) for command in planned.commands], execs


def answered(queries: Sequence[Query[Any]], answers: Answers) -> list[Answer]:
    """Run queries here, but for those whose answer is given."""
    found: list[Answer] = []
    for query in queries:
        said = canned(query.text, answers) if isinstance(query, CommandOutput) else None
        if said is not None:
            found.append(Answer(0, said.encode()))
            continue
        script = f"{prologue(InventoryNode('node'))}(\n{query.script()}\n) </dev/null\n"
        done = subprocess.run(["sh", "-c", script], capture_output=True, timeout=60)
        found.append(Answer(done.returncode, done.stdout))
    return found
