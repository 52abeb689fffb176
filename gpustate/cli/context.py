"""Context of a document: inventory, limit, person, commit, and the command to retry."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpustate.cli.schedulers import is_given

#: Options that affect a run, with their flags; others, like ``--diff``, do not matter.
_VALUES = {
    "inventory": "-i",
    "exclude": "--exclude",
    "forks": "-f",
    "user": "-u",
    "private_key": "--private-key",
    "host_key_checking": "--host-key-checking",
    "vault_password_file": "--vault-password-file",
    "vault_id": "--vault-id",
    "values": "--values",
    "set_typed": "--set",
    "set_string": "--set-string",
    "set_json": "--set-json",
    "patch": "-p",
    "release": "--release",
    "bundle": "--bundle",
    "lock": "--lock",
    "serial": "--serial",
    "max_failures": "--max-failures",
    "canary": "--canary",
    "soak": "--soak",
    "window": "--window",
    "spread": "--spread",
    "startup_taint": "--startup-taint",
    "max_disruption": "--max-disruption",
    "reason": "--reason",
    "driver": "--driver",
    "folder": "--tests",
    "tests_limit": "--tests-limit",
    "kubeconfig": "--kubeconfig",
    "namespace": "--namespace",
    "rollout_timeout": "--rollout-timeout",
    "pod_timeout": "--pod-timeout",
    "drain_timeout": "--drain-timeout",
    "max_unavailable": "--max-unavailable",
    "grace_period": "--grace-period",
    "pod_selector": "--pod-selector",
    "wait_selector": "--wait-selector",
    "wait_timeout": "--wait-timeout",
}
_FLAGS = {
    "become": "-b",
    "ask_become_pass": "-K",
    "ask_vault_pass": "-J",
    "no_lock": "--no-lock",
    "strict": "--strict",
    "all_or_nothing": "--all-or-nothing",
    "soak_pods": "--soak-pods",
    "removal": "--remove",
    "ignore_scheduler": "--ignore-scheduler",
    "delete_emptydir_data": "--delete-emptydir-data",
    "drain_force": "--drain-force",
    "cluster_objects": "--cluster-objects",
    "install_nfd": "--install-nfd",
    "force_conflicts": "--force-conflicts",
    "rollback_on_failure": "--rollback-on-failure",
    "dry_run": "--dry-run",
    "yes": "--yes",
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


def words(verb: str, options: Mapping[str, Any]) -> list[str]:
    """The options of a command as words of a command line, without those at their defaults."""
    found: list[str] = []
    for key, flag in _VALUES.items():
        value = options.get(key)
        value = getattr(value, "word", value)
        if not is_given({key: value}, key) or value == _DEFAULTS.get(key):
            continue
        for one in value if isinstance(value, list | tuple) else (value,):
            found += [flag, str(one)]
    built_in = _BUILT_IN if verb == "upgrade" else {}
    found += [flag for key, flag in _FLAGS.items() if options.get(key) and key not in built_in]
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
