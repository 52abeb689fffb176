"""The verbs and their groups. Modules of verbs are imported on demand, so that ``gpustate --help`` is fast."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import click

from gpustate.cli import plugins
from gpustate.errors import UsageError

#: One line of help for each verb, by the headings of the help.
HEADINGS = {
    "Every day": {
        "plan": "Show pending changes and their disruption per node.",
        "apply": "Apply a policy, or a saved plan exactly as it was saved.",
        "drift": "Detect drift from the policy (exit 2 if there is any).",
        "validate": "Validate nodes end to end: driver, runtime, CDI, a CUDA kernel on every GPU.",
        "explain": "Diagnose a node: first failing layer from PCI to scheduler, cause and fix.",
        "status": "Show running rollouts, nodes out of service and locks: run, since when, and why.",
    },
    "Changes": {
        "upgrade": "Upgrade the driver in waves; a wave in which a node fails is rolled back.",
        "rollback": "Roll nodes back to their state before a run.",
        "remove": "Remove everything a policy installed.",
        "watch": "Apply a policy to Nodes that join, reboot, or get another MIG label.",
    },
    "Files and facts": {
        "lint": "Check GPU Operator files: unsupported, deprecated and misspelt keys.",
        "facts": "Show node facts: distribution, kernel, runtimes, GPUs.",
        "health": "Show GPU health: Xids, remapped rows, links, clocks, and the recommended action.",
    },
    "Groups": {
        "policy": "Read policies: effective values, order of states, other formats, compatibility.",
        "driver": "Pin driver packages per node, and show newer versions.",
        "cluster": "Render a cluster's objects; take a cluster over from the GPU Operator, or back.",
        "rollout": "Pause, resume or abort a running rollout; show past runs.",
        "node": "Lock nodes, quarantine GPUs; show labels, NVLink, MIG, metrics; collect a bug report.",
        "image": "Apply a policy to a node image; build bundles for air-gapped nodes.",
    },
}
#: All verbs of the top, and one line of help for each.
VERBS = {name: line for verbs in HEADINGS.values() for name, line in verbs.items()}
#: One line of help for each verb of a group; ``help`` is not listed.
GROUPS = {
    "policy": {
        "resolve": "Show a node's effective policy and where each value is set.",
        "graph": "Show the dependency graph of states, and the reason for each edge.",
        "convert": "Convert a policy to YAML or Python.",
        "matrix": "Query the compatibility matrix: versions, GPUs, kernels, with the source of each rule.",
        "schema": "Print the JSON Schema of policies in YAML, for an editor's completion.",
    },
    "driver": {
        "solve": "Resolve a driver package set for each node and write the lock file.",
        "outdated": "Show driver versions newer than the lock file's, and what blocks them.",
    },
    "cluster": {
        "render": "Print the Kubernetes objects of a policy as YAML, for GitOps.",
        "adopt": "Take a cluster over from an installed GPU Operator, without restarting a pod.",
        "release": "Release a cluster's objects to the GPU Operator.",
    },
    "rollout": {
        "pause": "Pause a running rollout: no further node is started.",
        "resume": "Lift a pause, or resume an interrupted run.",
        "abort": "End a running rollout after the nodes in progress.",
        "history": "Show the last runs from this controller: person, policy, reason, outcome.",
    },
    "node": {
        "lock": "Lock nodes: no gpustate run changes them until the lock is released or expires.",
        "unlock": "Release locks that `gpustate node lock` set.",
        "quarantine": "Quarantine a GPU for a while, with a reason, or end its quarantine.",
        "labels": "Show the labels of GPU feature discovery, or gres.conf lines for Slurm.",
        "fabric": "Show NVLink/NVSwitch topology and the services it needs.",
        "mig": "Show MIG profiles and layouts, plan layout changes, export mig-parted files.",
        "dcgm": "Write alert rules, a dashboard and counters files for dcgm-exporter; check what GPUs report.",
        "support-bundle": "Collect versions, policy, run, logs and diagnosis of nodes for a bug report.",
    },
    "image": {
        "bake": "Apply a policy to the mounted root of a node image.",
        "bundle": "Build an offline bundle for air-gapped nodes.",
    },
    "help": {
        "connection": "Show how nodes are connected: options, variables, gpustate.toml.",
        "completion": "Print shell completion for bash, zsh or fish.",
    },
}
#: Module below ``gpustate.cli`` and attribute of verbs that are not called like both.
_ELSEWHERE = {
    "quarantine": ("health", "quarantine"),
    "release": ("adopt", "release"),
    "unlock": ("lock", "unlock"),
    "schema": ("convert", "schema"),
    "bundle": ("bundle", "group"),
    "abort": ("pause", "abort"),
    "mig": ("mig", "group"),
    "dcgm": ("dcgm", "group"),
    "matrix": ("matrix", "group"),
}


def load(name: str) -> click.Command:
    """Import a verb or make its group."""
    if name in GROUPS:
        return Group(name, help=VERBS.get(name, "Show help on a topic."), hidden=name not in VERBS)
    module, attribute = _ELSEWHERE.get(name) or (name.replace("-", "_"),) * 2
    command: Any = getattr(importlib.import_module(f"gpustate.cli.{module}"), attribute)
    if not isinstance(command, click.Command):
        raise click.ClickException(f"{name} is not a command")
    return command


#: Words of other tools and of habit, and the verb for each.
_SYNONYMS = {
    "diagnose": "explain",
    "driver lock": "driver solve",
    "node unquarantine": "node quarantine --end",
    "policy validate": "policy resolve",
    "rollout start": "apply",
}


def _path_of(name: str) -> str:
    """The verb of a group that has this name; empty if none has."""
    return next((f"{group} {name}" for group, verbs in GROUPS.items() if name in verbs), "")


def unknown_verb(name: str, names: Sequence[str], path: str) -> UsageError:
    """Return the error for a verb that does not exist: where it is, the nearest one, or all of them.

    Args:
        name: as given.
        names: verbs that exist.
        path: the command that has them, ``gpustate`` or ``gpustate node mig``.
    """
    place = path.removeprefix("gpustate").strip() or None
    synonym = _SYNONYMS.get(f"{place} {name}" if place else name)
    if command := synonym or ("" if place else _path_of(name)):
        return UsageError(f"no verb {name!r}", place=place, fix=f"it is: gpustate {command}")
    near = difflib.get_close_matches(name, names, 1)
    hint = f"did you mean {near[0]!r}" if near else f"verbs: {', '.join(names)}"
    return UsageError(f"no verb {name!r}", place=place, fix=f"{hint}; see: {path} --help")


class Verbs(click.Group):
    """A verb that has verbs of its own; click would cut their help to what fits in one line."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            raise unknown_verb(name, self.list_commands(ctx), ctx.command_path)
        return super().resolve_command(ctx, args)

    def sections(self) -> Mapping[str, Mapping[str, str]]:
        """One line of help for each verb, by headings."""
        lines = {name: verb.get_short_help_str(limit=200) for name, verb in self.commands.items()}
        return {"Verbs": lines}

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, lines in self.sections().items():
            with formatter.section(heading):
                formatter.write_dl(list(lines.items()))


class Group(Verbs):
    """Verbs of :data:`GROUPS`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(GROUPS[self.name or ""])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return load(cmd_name) if cmd_name in GROUPS[self.name or ""] else None

    def sections(self) -> Mapping[str, Mapping[str, str]]:
        return {"Verbs": GROUPS[self.name or ""]}


class Top(Verbs):
    """``gpustate``: its verbs and groups, and verbs of installed packages."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        topics = ("-h", "--help", *GROUPS["help"])
        if args[0] == "help" and args[1:] and args[1] not in topics:  # of a verb, as git's
            args = [*args[1:], "--help"]
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*VERBS, *plugins.verbs(VERBS)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in VERBS or cmd_name in GROUPS:
            return load(cmd_name)
        point = plugins.verbs(VERBS).get(cmd_name)
        if point is None and (folder := plugins.FOLDERS.get(cmd_name)) is not None:
            hint = f"install it from a clone of gpustate: pipx inject gpustate {folder}"
            raise UsageError(f"no verb {cmd_name!r}", fix=hint)
        return None if point is None else plugins.load(point)

    def sections(self) -> Mapping[str, Mapping[str, str]]:
        installed = plugins.verbs(VERBS)
        lines = {name: plugins.summary(point) for name, point in installed.items()}
        return {**HEADINGS, "Installed packages": lines} if lines else HEADINGS
