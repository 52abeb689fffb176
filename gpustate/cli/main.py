"""``gpustate``: runs a verb, and prints every error that a user can cause as one line.

Verbs are imported on demand, so that ``gpustate --help`` is fast.
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

#: Allocations between collections of garbage; a run loads fewer before it contacts nodes: :func:`gc.set_threshold`.
GC_THRESHOLD = 150_000

#: One line of help for each verb, in the order of the help.
VERBS = {
    "plan": "Show pending changes and their disruption per node.",
    "apply": "Apply a policy, or a saved plan exactly as it was saved.",
    "validate": "Validate nodes end to end: driver, runtime, CDI, a CUDA kernel on every GPU.",
    "drift": "Detect drift from the policy (exit 2 if there is any).",
    "explain": "Diagnose a node: first failing layer from PCI to scheduler, cause and fix.",
    "health": "Show GPU health: Xids, remapped rows, links, clocks, and the recommended action.",
    "quarantine": "Quarantine a GPU for a while, with a reason, or end its quarantine.",
    "facts": "Show node facts: distribution, kernel, runtimes, GPUs.",
    "fabric": "Show NVLink/NVSwitch topology and the services it needs.",
    "labels": "Show the labels of GPU feature discovery, or gres.conf lines for Slurm.",
    "graph": "Show the dependency graph of states, and the reason for each edge.",
    "resolve": "Show a node's effective policy and where each value is set.",
    "convert": "Convert a policy to YAML, Python or ClusterPolicy.",
    "render": "Print the Kubernetes objects of a policy as YAML, for GitOps.",
    "adopt": "Take a cluster over from an installed GPU Operator, without restarting a pod.",
    "release": "Release a cluster's objects to the GPU Operator.",
    "watch": "Apply a policy to Nodes that join, reboot, or get another MIG label.",
    "upgrade": "Upgrade the driver in waves; a wave in which a node fails is rolled back.",
    "rollback": "Roll nodes back to their state before a run.",
    "remove": "Remove everything a policy installed.",
    "lock": "Lock nodes: no gpustate run changes them until the lock is released or expires.",
    "unlock": "Release locks that `gpustate lock` set.",
    "bake": "Apply a policy to the mounted root of a node image.",
    "bundle": "Build an offline bundle for air-gapped nodes.",
    "pause": "Pause a running rollout: no further node is started.",
    "resume": "Lift a pause, or resume an interrupted run.",
    "abort": "End a running rollout after the nodes in progress.",
    "history": "Show the last runs from this controller: person, policy, reason, outcome.",
    "support-bundle": "Collect versions, policy, run, logs and diagnosis of nodes for a bug report.",
    "status": "Show running rollouts, and nodes out of service: phase, run, since when, and why.",
    "solve": "Resolve a driver package set for each node and write the lock file.",
    "outdated": "Show driver versions newer than the lock file's, and what blocks them.",
    "lint": "Check GPU Operator files: unsupported, deprecated and misspelt keys.",
    "mig": "Show MIG profiles and layouts, plan layout changes, export mig-parted files.",
    "dcgm": "Write alert rules, a dashboard and counters files for dcgm-exporter; check what GPUs report.",
    "matrix": "Query the compatibility matrix: versions, GPUs, kernels, with the source of each rule.",
    "completion": "Print shell completion for bash, zsh or fish.",
}
#: Module below ``gpustate.cli`` and attribute of verbs that are not called like both.
_ELSEWHERE = {
    "quarantine": ("health", "quarantine"),
    "release": ("adopt", "release"),
    "unlock": ("lock", "unlock"),
    "bundle": ("bundle", "group"),
    "abort": ("pause", "abort"),
    "mig": ("mig", "group"),
    "dcgm": ("dcgm", "group"),
    "matrix": ("matrix", "group"),
}


class _Verbs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*VERBS, *plugins.verbs(VERBS)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            point = plugins.verbs(VERBS).get(cmd_name)
            return None if point is None else plugins.load(point)
        module, attribute = _ELSEWHERE.get(cmd_name) or (cmd_name.replace("-", "_"),) * 2
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
                if (folder := plugins.FOLDERS.get(args[0])) is not None:
                    hint = f"install it from a clone of gpustate: pipx inject gpustate {folder}"
                    raise UsageError(f"no verb {args[0]!r}", fix=hint)
                from gpustate.cli import common

                raise common.unknown_verb(args[0], known, ctx.command_path)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        installed = plugins.verbs(VERBS)
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))
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
    message = error.format_message().removesuffix(".")
    if error.ctx is None:
        return message
    path = error.ctx.command_path
    verb = path.removeprefix("gpustate").strip()
    return f"{verb + ': ' if verb else ''}{message}; see: {path} --help"


def _print_error(text: str) -> None:
    from gpustate.formats.masking import mask
    from gpustate.formats.words import printable

    print(f"gpustate: {printable(mask(' '.join(text.splitlines())))}", file=sys.stderr)
