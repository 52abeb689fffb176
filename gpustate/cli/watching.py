"""Set-up for programs that watch a run: event stream, webhook, audit log."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any

import click

from gpustate.cli import common
from gpustate.errors import EXIT_ERROR, EXIT_INTERRUPTED, GpustateError, UsageError

if TYPE_CHECKING:
    from gpustate.core.inventory import Inventory
    from gpustate.engine.events import Event, Listener
    from gpustate.reporting.runs import Run
    from gpustate.reporting.stream import EventStream
    from gpustate.reporting.watchers import Watchers

#: Options that no record of a run contains: they are for this one process, or secret.
OWN = ("events", "reports")


def _open(ctx: click.Context, _: click.Parameter, value: str | None) -> EventStream | None:
    """Open the stream; with ``-`` everything for people goes to standard error from now on."""
    if value is None or ctx.resilient_parsing:
        return None
    from gpustate.reporting.stream import STDOUT, open_stream

    stream = open_stream(value, warn)
    ctx.call_on_close(stream.close)
    if value == STDOUT:
        ctx.with_resource(redirect_stdout(sys.stderr))
    return stream


events_option = click.option(
    "--events",
    metavar="FILE|-",
    callback=_open,
    help="Append events as JSON lines; '-': standard output.",
)

#: ``--events``.
watch_options = common.options(events_option, heading="Output")


def warn(text: str) -> None:
    """Print a warning."""
    from gpustate.formats.words import printable

    print(f"gpustate: warning: {printable(text)}", file=sys.stderr, flush=True)


def recorded(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that belong into the record of a run."""
    return {key: value for key, value in options.items() if key not in OWN}


@contextmanager
def watching(
    run: Run,
    options: Mapping[str, Any],
    inventory: Inventory,
    *,
    output: str,
    audited: bool = False,
) -> Iterator[Watchers]:
    """Those who watch a run; one that fails as a whole has an outcome too.

    Args:
        run: it.
        options: of the verb.
        inventory: its nodes.
        output: format of the output.
        audited: it may change nodes; only then the inventory's webhook counts.

    Raises:
        UsageError: the options contradict each other, or a URL is invalid.
    """
    from gpustate.reporting import webhook
    from gpustate.reporting.runs import Outcome
    from gpustate.reporting.watchers import Watchers

    stream: EventStream | None = options.get("events")
    if stream is not None and stream.is_stdout and output != "text":
        raise UsageError(
            f"--events - and -o {output} both write to standard output",
            fix="name a file: --events FILE",
        )
    watchers = Watchers(
        run,
        stream=stream,
        webhooks=webhook.urls(os.environ.get("GPUSTATE_WEBHOOK"), inventory if audited else ()),
        audited=audited,
        warn=warn,
    )
    try:
        yield watchers
    except BaseException as error:
        if watchers.open:
            watchers.end(Outcome(_exit_code(error), error=str(error) or type(error).__name__))
        raise
    finally:
        watchers.notify()


def _exit_code(error: BaseException) -> int:
    if isinstance(error, GpustateError):
        return error.exit_code
    stopped = isinstance(error, KeyboardInterrupt | click.Abort)
    return EXIT_INTERRUPTED if stopped else EXIT_ERROR


def listener(watchers: Watchers, listen: Listener) -> Listener:
    """Tell the watchers and the progress."""

    def both(event: Event) -> None:
        watchers.event(event)
        listen(event)

    return both
