"""Context of a document: inventory, limit, person, commit, and the command to retry."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: Options that affect a run, in the order of a command line; others, like ``--diff``, do not matter.
_VALUES = (
    *("inventory", "forks", "user", "private_key", "host_key_checking"),
    *("vault_password_file", "vault_id", "values", "set_typed"),
    *("patch", "release", "bundle", "lock", "serial", "max_failures", "max_unavailable"),
    *("max_disruption", "reason", "driver", "folder"),
    *("kubeconfig", "timeout_s"),
)
_SWITCHES = (
    *("become", "ask_become_pass", "ask_vault_pass", "strict", "all_or_nothing"),
    *("removal", "ignore_scheduler", "cluster_objects", "force_conflicts"),
    *("dry_run", "yes"),
)
#: Flags of options that have another name.
_FLAGS = {
    "inventory": "-i",
    "forks": "-f",
    "user": "-u",
    "set_typed": "--set",
    "patch": "-p",
    "folder": "--tests",
    "timeout_s": "--timeout",
    "become": "-b",
    "ask_become_pass": "-K",
    "ask_vault_pass": "-J",
    "removal": "--remove",
}
_DEFAULTS = {"forks": 50, "max_disruption": "reboot", "timeout_s": 60.0}


def context(verb: str, source: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the context for a plan or a result."""
    from gpustate.engine.fleet import controller

    data: dict[str, Any] = {"inventory": options.get("inventory") or ""}
    if options.get("limit"):
        data["limit"] = options["limit"]
    data["person"] = controller().name
    revision = commit(source)
    if revision:
        data["commit"] = revision
    data["retry"] = ["gpustate", verb, *filter(None, (source,)), *words(verb, options)]
    return data


def _flag(key: str) -> str:
    return _FLAGS.get(key) or f"--{key.replace('_', '-')}"


def words(verb: str, options: Mapping[str, Any]) -> list[str]:
    """The options of a command as words of a command line, without those at their defaults."""
    line: list[str] = []
    for key in _VALUES:
        value = options.get(key)
        value = getattr(value, "word", value)
        # An upgrade ignores the lock file without being asked.
        implied = verb == "upgrade" and key == "lock"
        if not value or value == _DEFAULTS.get(key) or implied:
            continue
        for text in value if isinstance(value, list | tuple) else (value,):
            line += [_flag(key), str(text)]
    return line + [_flag(key) for key in _SWITCHES if options.get(key)]


def commit(source: str) -> str:
    """The commit of a policy's file, marked if the file differs from it; empty without git.

    No program that the repository's configuration names is run: it may have come with an archive.
    """
    path = Path(source)
    if not path.is_file():
        return ""

    def git(*words: str) -> str:
        process = subprocess.run(
            ["git", "-C", str(path.parent), "-c", "core.fsmonitor=false", *words],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=5,
            check=True,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_ALLOW_PROTOCOL": "none"},
        )
        return process.stdout.strip()

    try:
        revision = git("rev-parse", "--short=12", "HEAD")
        written = git("rev-parse", "--verify", "--quiet", f"HEAD:./{path.name}")
        changed = written != git("hash-object", "--no-filters", "--", path.name)
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"{revision} (with uncommitted changes)" if changed else revision
