"""Context of a document: inventory, limit, person, commit, and the command to retry."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpustate.cli.schedulers import is_given

#: Options that affect a run, in the order of a command line; others, like ``--diff``, do not matter.
_VALUES = (
    *("inventory", "exclude", "forks", "user", "private_key", "host_key_checking"),
    *("vault_password_file", "vault_id", "values", "set_typed", "set_string", "set_json"),
    *("patch", "release", "bundle", "lock", "serial", "max_failures", "canary", "soak"),
    *("window", "spread", "startup_taint", "max_disruption", "reason", "driver", "folder"),
    *("tests_limit", "kubeconfig", "namespace", "rollout_timeout", "pod_timeout"),
    *("drain_timeout", "max_unavailable", "grace_period", "pod_selector", "wait_selector"),
    *("wait_timeout",),
)
_SWITCHES = (
    *("become", "ask_become_pass", "ask_vault_pass", "no_lock", "strict", "all_or_nothing"),
    *("soak_pods", "removal", "ignore_scheduler", "delete_emptydir_data", "drain_force"),
    *("cluster_objects", "install_nfd", "force_conflicts", "rollback_on_failure", "dry_run"),
    *("yes",),
)
#: Flags of options that have another name.
_FLAGS = {
    "inventory": "-i",
    "forks": "-f",
    "user": "-u",
    "set_typed": "--set",
    "patch": "-p",
    "folder": "--tests",
    "become": "-b",
    "ask_become_pass": "-K",
    "ask_vault_pass": "-J",
    "removal": "--remove",
}
#: Flags that replace the policy's value when they are off.
_OFF = {"delete_emptydir_data": "--keep-emptydir-data", "drain_force": "--no-drain-force"}
#: What an upgrade does without being asked, with the flag that switches it off; empty: nothing does.
_BUILT_IN = {"no_lock": "", "rollback_on_failure": "--no-rollback-on-failure"}
_DEFAULTS = {
    "forks": 50,
    "max_disruption": "reboot",
    "tests_limit": 60.0,
    "pod_timeout": 60.0,
    "rollout_timeout": 300,
}


def context(verb: str, source: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the context for a plan or a result."""
    from gpustate.engine.fleet import controller

    made: dict[str, Any] = {"inventory": options.get("inventory") or ""}
    for key in ("limit", "exclude"):
        if options.get(key):
            made[key] = options[key]
    made["person"] = controller().name
    found = commit(source)
    if found:
        made["commit"] = found
    made["retry"] = ["gpustate", verb, *filter(None, (source,)), *words(verb, options)]
    return made


def _flag(key: str) -> str:
    return _FLAGS.get(key) or f"--{key.replace('_', '-')}"


def words(verb: str, options: Mapping[str, Any]) -> list[str]:
    """The options of a command as words of a command line, without those at their defaults."""
    found: list[str] = []
    for key in _VALUES:
        value = options.get(key)
        value = getattr(value, "word", value)
        if not is_given({key: value}, key) or value == _DEFAULTS.get(key):
            continue
        for one in value if isinstance(value, list | tuple) else (value,):
            found += [_flag(key), str(one)]
    built_in = _BUILT_IN if verb == "upgrade" else {}
    found += [_flag(key) for key in _SWITCHES if options.get(key) and key not in built_in]
    off = {**_OFF, **{key: flag for key, flag in built_in.items() if flag}}
    return found + [flag for key, flag in off.items() if options.get(key) is False]


def commit(source: str) -> str:
    """The commit of a policy's file, marked if the file differs from it; empty without git.

    No program that the repository's configuration names is run: it may have come with an archive.
    """
    path = Path(source)
    if not path.is_file():
        return ""

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(path.parent), "-c", "core.fsmonitor=false", *words],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=5,
            check=True,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_ALLOW_PROTOCOL": "none"},
        )
        return done.stdout.strip()

    try:
        found = git("rev-parse", "--short=12", "HEAD")
        written = git("rev-parse", "--verify", "--quiet", f"HEAD:./{path.name}")
        changed = written != git("hash-object", "--no-filters", "--", path.name)
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"{found} (with uncommitted changes)" if changed else found
