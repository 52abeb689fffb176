"""Shared parts of the verbs: options, loading of inputs, progress, exit."""

from __future__ import annotations

import math
import os
import re
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from gpustate.cli import connection, notes
from gpustate.errors import EXIT_ERROR, GpustateError, InventoryError, UsageError, worst_exit_code
from gpustate.files import write_private

if TYPE_CHECKING:
    from gpustate.core.inventory import Inventory
    from gpustate.core.node import Node
    from gpustate.core.policy import Policy
    from gpustate.engine.events import Listener
    from gpustate.inventory.vault import Vault
    from gpustate.policies import Changes


F = TypeVar("F", bound=Callable[..., Any])

FORMATS = click.Choice(["text", "json"])


class Number(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A number within bounds; of whole ones unless ``kind`` is ``float``."""

    name = "number"

    def __init__(
        self, least: float, most: float = math.inf, kind: type[int] | type[float] = int
    ) -> None:
        self.least, self.most, self.kind = least, most, kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            number = self.kind(value)
        except ValueError:
            self.fail(f"{value!r} is not a {'whole ' * (self.kind is int)}number", param, ctx)
        if not number >= self.least:
            self.fail(f"{value} is too small; at least {self.least}", param, ctx)
        if number > self.most:
            self.fail(f"{value} is too large; at most {self.most}", param, ctx)
        return number


def _not_an_option(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> str | None:
    """Refuse an option as the value of ``-i``, as with an empty variable in a script."""
    if value is not None and value.startswith("-"):
        raise UsageError(
            f"-i has no value: {value} follows it",
            fix="name the inventory: a file, a directory, or node1,node2",
        )
    return value


def not_empty(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Refuse an empty value on the command line, as with an empty variable in a script: it would lift a limit."""
    source = context.get_parameter_source(parameter.name or "")
    if value is not None and not value.strip() and source is ParameterSource.COMMANDLINE:
        raise UsageError(f"{parameter.opts[-1]} is empty", fix="give it a value, or omit it")
    return value


#: Headings of options in the help of a verb, in their order.
HEADINGS = ("Nodes", "Policy", "Rollout", "Kubernetes objects", "Output")


class Verb(click.Command):
    """A verb whose help has its options below headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            row = param.get_help_record(ctx) if isinstance(param, click.Option) else None
            if row is not None:
                rows.setdefault(getattr(param, "heading", "Options"), []).append(row)
        for heading in ("Options", *HEADINGS):
            if heading in rows:
                with formatter.section(heading):
                    formatter.write_dl(rows[heading])


def options(*decorators: Callable[[Any], Any], heading: str = "") -> Callable[[F], F]:
    """One decorator for several options and arguments.

    Args:
        decorators: help lists them in this order.
        heading: one of :data:`HEADINGS`, below which the help of a :class:`Verb` lists them; empty: as each has it.
    """

    def decorate(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
            newest: Any = getattr(function, "__click_params__", [None])[-1]
            if heading and not hasattr(newest, "heading"):
                newest.heading = heading
        return function

    return decorate


def confirm(question: str, declined: str = "nothing was applied") -> None:
    """Ask for confirmation.

    Raises:
        UsageError: the answer is no; ``declined`` says what that means.
    """
    if not click.confirm(question, err=True):
        raise UsageError(declined)


def duration_s(text: str) -> int:
    """Seconds of the option ``--for``: ``30m``, ``8h``, ``7d``, up to a year."""
    match = re.fullmatch(r"([0-9]{1,6})([mhd])", text)
    length = int(match[1]) * {"m": 60, "h": 3600, "d": 86400}[match[2]] if match else 0
    if not 0 < length <= 366 * 86400:
        raise UsageError(
            f"--for: invalid duration {text[:40]!r}", fix="write 30m, 8h or 7d, up to a year"
        )
    return length


def out_option(text: str) -> Callable[[F], F]:
    """``--out FILE``, which :func:`write_out` writes."""
    return click.option("--out", metavar="FILE", type=click.Path(dir_okay=False), help=text)


def kubeconfig_option(text: str) -> Callable[[F], F]:
    """``--kubeconfig FILE``, by default that of the inventory."""
    default = "[default: the inventory variable gpustate_kubeconfig]."
    return click.option("--kubeconfig", metavar="FILE", help=f"{text} {default}")


def _with_hint(function: F) -> F:
    """Let the help of a verb name that of the options which it does not list."""
    hint = "How nodes are connected: gpustate help connection."
    function.__doc__ = f"{function.__doc__}\n\n    {hint}"
    return function


#: ``-i``, ``-l`` and how to connect.
inventory_options = options(
    _with_hint,
    click.option(
        "-i",
        "--inventory",
        "inventory",
        metavar="SOURCE",
        envvar="GPUSTATE_INVENTORY",
        callback=_not_an_option,
        help="A file, a directory, a program, a list a,b,c, kubernetes:KUBECONFIG or slurm:HOST.",
    ),
    click.option(
        "-l",
        "--limit",
        metavar="PATTERN",
        callback=not_empty,
        help="Only these nodes: 'gpu:&dc1:!bad', '!bad', '~regex'.",
    ),
    click.option(
        "-f",
        "--forks",
        type=Number(1, 10000),
        metavar="N",
        default=50,
        show_default=True,
        help="Nodes at a time.",
    ),
    *connection.OPTIONS,
    heading="Nodes",
)


lock_path_option = click.option(
    "--lock",
    "path",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Lock file of driver packages [default: gpustate.lock beside POLICY].",
)


#: Value of ``--lock`` that ignores every lock file.
NO_LOCK = "none"

#: ``--lock FILE|none``.
lock_options = options(
    click.option(
        "--lock",
        metavar="FILE|none",
        help="Lock file of gpustate driver solve [default: gpustate.lock beside POLICY].",
    ),
    heading="Policy",
)


def lock_file(source: str, options: Mapping[str, Any]) -> str | None:
    """The lock file of a policy; ``None`` if there is none or the options disable it."""
    from gpustate.api import sources

    path = options.get("lock")
    return None if path == NO_LOCK else sources.lock_file(source, path or True)


def locked(policy: Policy, inventory: Inventory, source: str, options: dict[str, Any]) -> Policy:
    """The policy with what the lock file says of an inventory's nodes; as it was without one."""
    notes.report_unknown_targets(inventory, policy, source, options)
    file = lock_file(source, options)
    if file is None:
        return policy
    from gpustate.package_sets import lock_layers

    return lock_layers.onto(policy, inventory, lock_layers.load(file), file, known_states())


def load_inventory(
    options: dict[str, Any], *, reach: bool = True, empty: bool = False, notes_shown: bool = True
) -> Inventory:
    """Load the inventory of the options, and apply the connection options to it.

    Args:
        options: of the verb.
        reach: nodes will be connected to, so their passwords are needed.
        empty: clusters without a Node with GPUs are no error.
        notes_shown: print its notes.
    """
    from gpustate.api import sources

    source = options.get("inventory")
    if not source:
        raise UsageError(
            "no inventory", fix="give one with -i: a file, a directory, or node1,node2"
        )
    loaded = sources.load_inventory(
        source, limit=options.get("limit"), vault=_vault(options), empty=empty
    )
    if notes_shown:
        notes.print_notes(loaded.notes)
    if options.get("private_key"):
        check_readable(os.path.expanduser(options["private_key"]), "private key", "--private-key")
    password = None
    if options.get("ask_become_pass"):
        password = click.prompt("sudo password", hide_input=True, err=True)
    nodes = []
    for node in loaded.nodes:
        route = node.connection
        changes: dict[str, Any] = {}
        if options.get("user") and route.user is None:
            changes["user"] = options["user"]
        if options.get("private_key") and route.key_file is None:
            changes["key_file"] = os.path.expanduser(options["private_key"])
        if options.get("become"):
            changes["become"] = True
        if password is not None and route.become_password is None:
            changes["become_password"] = password
        if options.get("host_key_checking"):
            changes["strict_host_key"] = options["host_key_checking"]
        nodes.append(replace(node, connection=replace(route, **changes)) if changes else node)
    if reach:
        for node in nodes:  # prompts for passwords come before the first connection
            _ = (node.connection.login_password, node.connection.sudo_password)
    return replace(loaded, nodes=tuple(nodes))


def load_named(name: str, options: dict[str, Any], *, reach: bool = True) -> Inventory:
    """Load the nodes that the argument NODE selects; an error in it is not reported as one of ``--limit``."""
    if options.get("limit"):
        return load_inventory({**options, "limit": f"{options['limit']}:&{name}"}, reach=reach)
    try:
        return load_inventory({**options, "limit": name}, reach=reach)
    except InventoryError as error:
        place = None if error.place == "--limit" else error.place
        raise InventoryError(error.message, place=place, fix=error.fix) from None


def _vault(options: Mapping[str, Any]) -> Vault:
    """Vault passwords, from the same options and variables as Ansible's."""
    from gpustate.inventory import vault

    def query(label: str) -> str:
        return str(click.prompt(f"Vault password ({label})", hide_input=True, err=True))

    for path in options.get("vault_password_file") or ():
        check_readable(os.path.expanduser(path), "vault password file", "--vault-password-file")
    sources = vault.sources(
        options.get("vault_id") or (),
        options.get("vault_password_file") or (),
        query=bool(options.get("ask_vault_pass")),
        environment=os.environ,
    )
    return vault.Vault(sources, query if sys.stdin is not None and sys.stdin.isatty() else None)


def check_readable(path: str, title: str, flag: str) -> None:
    """Refuse an unreadable file of an option once, before any node, instead of once per node.

    Args:
        path: of the file.
        title: it is.
        flag: of the option that names it.
    """
    try:
        with open(path, "rb") as file:
            file.read(1)
    except OSError as error:
        raise UsageError(
            f"cannot read the {title} ({error.strerror})",
            place=path,
            fix=f"name a readable {title} with {flag}",
        ) from error


#: ``--values``, ``--set``, ``--patch`` and ``--release``, which change the policy before its use.
change_options = options(
    click.option(
        "--values",
        multiple=True,
        metavar="FILE",
        help="YAML merged into the policy; '-': standard input.",
    ),
    click.option(
        "--set",
        "set_typed",
        multiple=True,
        metavar="PATH=VALUE",
        help="Set values: driver.branch=580, groups.a100.driver.branch=570.",
    ),
    click.option(
        "-p",
        "--patch",
        "patch",
        multiple=True,
        metavar="PATCH|@FILE",
        help="JSON patch (a list) or merge patch, as of kubectl.",
    ),
    click.option(
        "--release", metavar="VERSION", help="Release of the Operator that its file is for."
    ),
    heading="Policy",
)
#: The same, and ``--bundle``.
policy_options = options(
    change_options,
    click.option("--bundle", metavar="FILE", help="Install packages from this bundle alone."),
    heading="Policy",
)


#: ``--set`` of a verb without a policy's other options.
set_option = options(
    click.option(
        "--set",
        "set_typed",
        multiple=True,
        metavar="PATH=VALUE",
        help="Set values of the rollout and its drains: rollout.canary=1,drain.timeout_s=600.",
    ),
    heading="Rollout",
)


#: Options that change a policy, in the order of :class:`gpustate.policies.Changes`.
_CHANGES = ("values", "set_typed", "patch")


class PolicyArgument(click.Argument):
    """POLICY; with options that change it alone, the chart of the GPU Operator, as for ``helm install``."""

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        name = self.name or ""
        texts = [str(text) for key in (*_CHANGES, "release") for text in opts.get(key) or ()]
        # How a rollout goes is no reason to apply the chart.
        changes = [text for text in texts if not text.startswith(("rollout.", "drain."))]
        if not isinstance(opts.get(name), str) and changes:
            from gpustate.policies import CHART

            opts = {**opts, name: CHART}
        return super().handle_parse_result(ctx, opts, args)


policy_argument = click.argument("policy", cls=PolicyArgument)


def changes_of(options: Mapping[str, Any]) -> Changes | None:
    """The options' changes of the policy; ``None`` if there are none."""
    if not any(options.get(name) for name in _CHANGES):
        return None
    from gpustate.policies import Changes

    return Changes(*(tuple(options.get(name) or ()) for name in _CHANGES))


def check_sections_alone(options: Mapping[str, Any], why: str) -> None:
    """Refuse changes of a policy where only its rollout and its drains may be set."""
    changes = changes_of(options)
    beyond = changes.beyond_sections if changes else ""
    if beyond:
        raise UsageError(
            f"{why}; only rollout.* and drain.* can be set",
            place=beyond,
            fix="for other values make a new plan: gpustate plan POLICY --out FILE",
        )


def load_policy(
    source: str, options: Mapping[str, Any] | None = None, *, origins: bool = False
) -> Policy:
    """Load the policy of the command line, with the changes of the options."""
    from gpustate.api import sources

    values = options or {}
    policy = sources.load_policy(
        source,
        changes=changes_of(values),
        bundle=values.get("bundle"),
        strict=bool(values.get("strict")),
        release=values.get("release"),
        origins=origins,
        driver=values.get("driver") or "",
    )
    if values.get("cluster_objects"):
        from gpustate.gpu_operator.desired import ONLY_WITH_OBJECTS

        policy.notes = tuple(note for note in policy.notes if f" {ONLY_WITH_OBJECTS}: " not in note)
    return policy


def known_states() -> Collection[str]:
    """Names of all registered states."""
    from gpustate import registry

    return registry.names()


_REMAINING = "the nodes finish their steps on their own"


class Interrupt:
    """Ctrl-C: the first stops the run after its current steps, the second exits at once."""

    def __init__(self, announce: Callable[[], None], remaining: str = _REMAINING) -> None:
        self.count = 0
        self._announce = announce
        self._remaining = remaining

    def __call__(self) -> bool:
        return self.count > 0

    def arm(self) -> None:
        """Take over SIGINT and SIGTERM."""

        def hit(number: int, frame: object) -> None:
            self.count += 1
            if self.count > 1:
                sys.stderr.write(f"\ngpustate: exiting at once; {self._remaining}\n")
                sys.stderr.flush()
                os._exit(130)
            self._announce()

        signal.signal(signal.SIGINT, hit)
        signal.signal(signal.SIGTERM, hit)


@contextmanager
def watched(
    inventory: Inventory, *, quiet: bool = False, resume: str = ""
) -> Iterator[tuple[Listener, Interrupt]]:
    """Progress on standard error, and Ctrl-C, for one run; ``resume`` is the command to continue it."""
    from gpustate.cli.progress import Progress

    progress = Progress([node.name for node in inventory], quiet=quiet)

    def announce() -> None:
        progress.say(
            "interrupted: running steps are finished, no new ones are started; again: exit at once"
            + (f"; resume it with: {resume}" if resume else "")
        )

    held = f", and those out of service stay so until: {resume}" if resume else ""
    stop = Interrupt(announce, f"{_REMAINING}{held}")
    stop.arm()
    with progress:
        yield progress.event, stop


def check_out(path: str, fix: str = "name another file with --out") -> None:
    """Check before a run that its result can be written; ``fix`` is the next step if it cannot."""
    folder = Path(path).parent
    if not os.access(folder, os.W_OK | os.X_OK):
        why = "is not writable" if folder.is_dir() else "is not a directory"
        raise UsageError(f"{folder} {why}", place=path, fix=fix)


def raise_all(errors: Sequence[GpustateError]) -> None:
    """Print all errors but the last, and raise that."""
    from gpustate.formats.words import printable

    for error in errors[:-1]:
        click.echo(f"gpustate: {printable(str(error))}", err=True)
    if errors:
        raise errors[-1]


def write_out(text: str, path: str | None = None) -> None:
    """Print, or write a file atomically, readable by its owner only."""
    from gpustate.formats.masking import mask

    text = mask(text)
    if path is None:
        click.echo(text, nl=not text.endswith("\n"))
        return
    try:
        write_private(Path(path), text.encode())
    except OSError as error:
        raise UsageError(f"cannot write the file ({error.strerror})", place=path) from error


def serial(sizes: str | None) -> tuple[str, ...]:
    """Sizes of batches in the option ``--serial``."""
    return tuple(sizes.split(",")) if sizes else ()


def as_json(document: Any) -> str:
    """A document as printed and saved, with control characters escaped."""
    from gpustate.formats.json_pages import dumps
    from gpustate.formats.masking import mask_data
    from gpustate.formats.words import json_text

    return json_text(dumps(mask_data(document))) + "\n"


def query_nodes(
    inventory: Inventory, forks: int, query: Callable[[Node], dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[int]]:
    """Query nodes without changing them.

    Returns:
        A row per node: its name with the result, or with an ``error``; and an exit code for each error,
        including those that ``query`` itself returned.
    """
    from gpustate.engine import fleet

    rows: list[dict[str, Any]] = []
    codes: list[int] = []
    for node, data, error in fleet.question(inventory.nodes, forks, query):
        if error is not None or data is None:
            codes.append(error.exit_code if error else EXIT_ERROR)
            rows.append({"name": node.name, "error": str(error)})
            continue
        if "error" in data:
            codes.append(EXIT_ERROR)
        rows.append({"name": node.name, **data})
    from gpustate.formats.masking import mask_data

    return mask_data(rows), codes


def finish(*codes: int) -> None:
    """Exit with the worst of some exit codes."""
    code = worst_exit_code(codes)
    if code:
        raise click.exceptions.Exit(code)
