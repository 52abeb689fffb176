"""``gpustate``: finds the verb, and turns every error a user can cause into one line.

Verbs are imported when they are asked for, so that ``gpustate --help`` costs next to nothing.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import sys
from typing import Any, NoReturn

import click

from gpustate import __version__
from gpustate.cli import plugins
from gpustate.errors import EXIT_ERROR, EXIT_INTERRUPTED, GpustateError, UsageError

#: Verb, module below ``gpustate.cli``, attribute, one line of help.
VERBS: dict[str, tuple[str, str, str]] = {
    "plan": ("plan", "plan", "Say what would change, and what it would cost each node."),
    "apply": (
        "apply",
        "apply",
        "Make nodes as the policy says; a saved plan is applied as it stands.",
    ),
    "validate": (
        "validate",
        "validate",
        "Prove use: a CUDA kernel on every GPU, the runtime, CDI.",
    ),
    "drift": ("drift", "drift", "Tell whether nodes are still as the policy says (exit 2: no)."),
    "explain": (
        "explain",
        "explain",
        "Name the first broken link between a node and a usable GPU.",
    ),
    "health": (
        "health",
        "health",
        "Show how well each GPU is: Xids, remapped rows, links, clocks, and the next move.",
    ),
    "quarantine": (
        "health",
        "quarantine",
        "Take one GPU of a node out of use for a while, with a reason, or back.",
    ),
    "facts": ("facts", "facts", "Show what nodes are: system, kernel, runtimes, GPUs."),
    "fabric": (
        "fabric",
        "fabric",
        "Show what joins the GPUs of nodes, and what they need for that.",
    ),
    "labels": (
        "labels",
        "labels",
        "Show the labels of GPU feature discovery, or Slurm's lines for GPUs.",
    ),
    "graph": ("graph", "graph", "Show the order of states, and why."),
    "resolve": ("resolve", "resolve", "Show what a policy comes to on a node, and who said so."),
    "convert": (
        "convert",
        "convert",
        "Write a policy in another shape: YAML, Python or ClusterPolicy.",
    ),
    "remove": ("remove", "remove", "Remove what a policy put on nodes."),
    "lock": ("lock", "lock", "Keep gpustate off nodes for a while."),
    "unlock": ("lock", "unlock", "Let gpustate on locked nodes again."),
    "bake": ("bake", "bake", "Bake a policy into the mounted root of an image."),
    "bundle": (
        "bundle",
        "group",
        "Fetch every package a policy needs into one file, for air-gapped nodes.",
    ),
    "resume": ("resume", "resume", "Go on with a run that was interrupted."),
    "solve": ("solve", "solve", "Find one driver set for each node, and lock it."),
    "outdated": (
        "outdated",
        "outdated",
        "Show drivers newer than the locked ones, and why they may not be taken.",
    ),
    "lint": (
        "lint",
        "lint",
        "Say which keys of a file of the GPU Operator do nothing, and what was meant.",
    ),
    "mig": (
        "mig",
        "group",
        "MIG profiles of GPUs, the smallest change to a layout, mig-parted files.",
    ),
    "dcgm": (
        "dcgm",
        "group",
        "Alert rules, dashboard and counters file for dcgm-exporter; what GPUs can report of it.",
    ),
    "matrix": (
        "matrix",
        "group",
        "Ask which versions, GPUs and kernels go together, and who says so.",
    ),
    "completion": ("completion", "completion", "Print shell completion for bash, zsh or fish."),
}


class _Verbs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*VERBS, *plugins.verbs(VERBS)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            point = plugins.verbs(VERBS).get(cmd_name)
            return None if point is None else plugins.load(point)
        module, attribute, _ = VERBS[cmd_name]
        found: Any = getattr(importlib.import_module(f"gpustate.cli.{module}"), attribute)
        if not isinstance(found, click.Command):
            raise click.ClickException(f"{cmd_name} is not a command")
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            known = self.list_commands(ctx)
            if args[0] not in known:
                import difflib

                near = difflib.get_close_matches(args[0], known, 1)
                hint = f"did you mean {near[0]!r}" if near else f"there are {', '.join(known)}"
                if args[0] in plugins.PACKAGES:
                    package = plugins.PACKAGES[args[0]]
                    hint = f"install {package}: pipx inject gpustate {package}"
                raise UsageError(f"no verb {args[0]!r}", fix=hint)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        installed = plugins.verbs(VERBS)
        with formatter.section("Verbs"):
            formatter.write_dl([(name, VERBS[name][2]) for name in VERBS])
        if installed:
            with formatter.section("Verbs of installed packages"):
                formatter.write_dl(
                    [(name, plugins.summary(point)) for name, point in installed.items()]
                )


@click.command(
    cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, message="%(prog)s %(version)s")
def cli() -> None:
    """Ordered, idempotent state for NVIDIA GPU nodes: plan, apply, verify and prove, over plain SSH.

    Exit codes: 0 done, 1 error, 2 changes pending, 3 validation failed, 4 a node could not be
    reached, 5 refused, 6 stopped early, 7 rolled back, 8 a lock is held, 9 somebody has
    to be at the console, 130 interrupted.
    """


def entry() -> NoReturn:
    """The program. Short runs are most of what it is asked for, so it neither collects garbage often
    nor takes a thousand modules apart at its end: that is a fifth of looking at one node.
    """
    from gpustate.cli.masked import mask_output

    gc.set_threshold(50_000)
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
    """Run; end with one line and the documented exit code for everything a user can cause."""
    try:
        # Outside of click's standalone mode an exit code is a return value.
        code = cli.main(standalone_mode=False, prog_name="gpustate")
    except GpustateError as error:
        _complain(str(error))
        return error.exit_code
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.Abort:
        _complain("interrupted")
        return EXIT_INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)
        return EXIT_ERROR
    except click.UsageError as error:
        _complain(_with_place(error))
        return EXIT_ERROR
    except click.ClickException as error:
        _complain(error.format_message())
        return EXIT_ERROR
    except KeyboardInterrupt:
        _complain("interrupted")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has seen enough; leave without a second complaint at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_ERROR
    except OSError as error:
        _complain(f"{error.filename or 'gpustate'}: {error.strerror or error}")
        return EXIT_ERROR
    return code if isinstance(code, int) else 0


def _with_place(error: click.UsageError) -> str:
    """What click says, with the verb before it and the way to its help behind it."""
    said = error.format_message().removesuffix(".")
    if error.ctx is None:
        return said
    path = error.ctx.command_path
    verb = path.removeprefix("gpustate").strip()
    return f"{verb + ': ' if verb else ''}{said}; see: {path} --help"


def _complain(text: str) -> None:
    from gpustate.formats.masking import masked
    from gpustate.formats.words import printable

    print(f"gpustate: {printable(masked(' '.join(text.splitlines())))}", file=sys.stderr)
