"""``gpustate``: runs a verb, and prints every error that a user can cause as one line."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from typing import NoReturn

import click

from gpustate import __version__
from gpustate.cli.verbs import Top
from gpustate.errors import EXIT_ERROR, EXIT_INTERRUPTED, GpustateError

#: Allocations between collections of garbage; a run loads fewer before it contacts nodes: :func:`gc.set_threshold`.
GC_THRESHOLD = 150_000


@click.command(
    cls=Top,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Topics: gpustate help VERB, gpustate help connection, gpustate help completion.",
)
@click.version_option(__version__, message="%(prog)s %(version)s")
def cli() -> None:
    """Ordered, idempotent state for NVIDIA GPU nodes: plan, apply, verify and validate over plain SSH.

    Exit codes: 0 done, 1 error, 2 changes pending, 3 validation failed, 4 a node could not be
    reached, 5 refused, 6 stopped early, 7 rolled back, 8 a lock is held, 9 confirmation
    at the node's console required, 130 interrupted.
    """


def entry() -> NoReturn:
    """Entry point of the program. Most runs are short, so it collects garbage rarely and skips the cleanup of
    modules at exit, which would be a fifth of the time of probing one node.
    """
    from gpustate.cli.masked import mask_output

    gc.set_threshold(GC_THRESHOLD)
    # pydantic would read the metadata of every installed package for plugins; none is needed here.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    mask_output()
    code = run()
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        code = code or EXIT_ERROR
    os._exit(code)


def run() -> int:
    """Run; print one line and return the documented exit code for every error that a user can cause."""
    try:
        # Outside of click's standalone mode an exit code is a return value.
        code = cli.main(standalone_mode=False, prog_name="gpustate")
    except GpustateError as error:
        _print_error(str(error))
        return error.exit_code
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.Abort:
        _print_error("interrupted")
        return EXIT_INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)
        return EXIT_ERROR
    except click.UsageError as error:
        _print_error(_with_place(error))
        return EXIT_ERROR
    except click.ClickException as error:
        _print_error(error.format_message())
        return EXIT_ERROR
    except KeyboardInterrupt:
        _print_error("interrupted")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader closed the pipe; avoid a second error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_ERROR
    except OSError as error:
        _print_error(f"{error.filename or 'gpustate'}: {error.strerror or error}")
        return EXIT_ERROR
    return code if isinstance(code, int) else 0


def _with_place(error: click.UsageError) -> str:
    """Click's message with the verb, and the command for its help."""
    from gpustate.cli.alternatives import message

    if error.ctx is None:
        return message(error)
    path = error.ctx.command_path
    verb = path.removeprefix("gpustate").strip()
    return f"{verb + ': ' if verb else ''}{message(error)}; see: {path} --help"


def _print_error(text: str) -> None:
    from gpustate.formats.masking import mask
    from gpustate.formats.words import printable

    print(f"gpustate: {printable(mask(' '.join(text.splitlines())))}", file=sys.stderr)
