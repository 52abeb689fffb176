"""Identify the program of the hook that failed in a container.

runc reports a failed hook by its number: ``error running hook #0``. The hooks stand in the container's OCI
specification, and containerd removes that together with the failed container. So NVIDIA's runtime gets the same
request again, for a bundle without a root file system. It adds its hooks to the specification and hands over to
runc, which refuses the bundle before it runs anything.

Surprising: a CDI device that containerd, docker or podman injects is requested from NVIDIA's runtime here too. All of
them take the hooks from the same specification with the same library, so their order is the same.

Standard library only, Python 3.9.

Sources:
    opencontainers/runc, libcontainer/configs (1.1: "error running hook #%d"; 1.2: "error running %s hook #%d");
    opencontainers/runtime-spec, config.md, "POSIX-platform Hooks";
    NVIDIA/nvidia-container-toolkit, internal/runtime (the specification is flushed, then runc is executed).
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

#: Of the toolkit's package; looked up in PATH.
NVIDIA_RUNTIME = "nvidia-container-runtime"
#: In the order in which they run.
STAGES = (
    *("prestart", "createRuntime", "createContainer"),
    *("startContainer", "poststart", "poststop"),
)

_FAILED = re.compile(r"error running (?:(\w+) )?hook #(\d+)")

#: Each stage's hooks as command lines.
Hooks = Mapping[str, Sequence[str]]


def _command(hook: Mapping[str, Any]) -> str:
    """The program of a hook with its subcommand, since NVIDIA's programs have many."""
    subcommand = [str(word) for word in list(hook.get("args") or ())[1:2]]
    return " ".join([str(hook.get("path") or ""), *subcommand])


def read(bundle: str) -> Hooks:
    """The hooks in a bundle's OCI specification; empty if it cannot be read."""
    try:
        config = json.loads(Path(bundle, "config.json").read_text(encoding="utf-8"))
        hooks = config.get("hooks") or {}
        return {stage: [_command(hook) for hook in hooks.get(stage) or ()] for stage in STAGES}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def injected(
    binary: str,
    environment: Sequence[str],
    annotations: Mapping[str, str],
    mounts: Sequence[str],
    attempt: Callable[[Sequence[str]], str],
) -> Hooks:
    """The hooks that NVIDIA's runtime adds to a container with this request.

    Args:
        binary: the handler's program.
        environment: variables of the container, ``NAME=value``.
        annotations: annotations of the container.
        mounts: paths in the container on which /dev/null is mounted.
        attempt: runs a command that may fail.
    """
    folder = tempfile.mkdtemp(prefix="gpustate-validate-", dir="/run")
    mount = {"source": "/dev/null", "type": "bind", "options": ["bind", "ro"]}
    config = {
        "ociVersion": "1.0.2",
        "process": {"cwd": "/", "args": ["/"], "env": list(environment)},
        "root": {"path": f"{folder}/absent"},
        "mounts": [{**mount, "destination": path} for path in mounts],
        "annotations": dict(annotations),
        "linux": {"namespaces": [{"type": "mount"}]},
    }
    try:
        Path(folder, "config.json").write_text(json.dumps(config), encoding="utf-8")
        name = folder.rpartition("/")[2]
        attempt([binary, "--root", f"{folder}/state", "create", "--bundle", folder, name])
        return read(folder)
    except OSError:
        return {}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def failed(error: str) -> bool:
    """Whether an error reports a hook by its number."""
    return _FAILED.search(error) is not None


def named(error: str, hooks: Hooks) -> str:
    """Add the failed hook's program to an error; unchanged if it is unknown."""
    match = _FAILED.search(error)
    if match is None:
        return error
    stages = [match[1]] if match[1] else STAGES
    at = int(match[2])
    programs = dict.fromkeys(hooks[s][at] for s in stages if s in hooks and at < len(hooks[s]))
    return f"{error}; hook #{at} is {' or '.join(programs)}" if programs else error
