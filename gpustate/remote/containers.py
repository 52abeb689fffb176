"""Nodes that are containers on this machine: run commands in them with ``docker exec`` or ``podman exec``.

Sources:
    docker and podman, ``container inspect`` and ``exec``; pyinfra 3.10, ``connectors/docker.py``.
"""

from __future__ import annotations

import subprocess

from gpustate.errors import ConnectionFailed

PROGRAMS = ("docker", "podman")
_TIMEOUT_S = 30.0


def argv(program: str, container: str, command: str) -> list[str]:
    """Return the arguments that run a sh command in a container as root."""
    return [program, "exec", "-i", "-u", "0", container, "/bin/sh", "-c", command]


def check(program: str, container: str) -> None:
    """Raise unless a container is running.

    Raises:
        ConnectionFailed: it does not exist or is stopped, or the daemon does not respond.
    """
    inspect = [program, "container", "inspect", "--format", "{{.State.Running}}", container]
    try:
        result = subprocess.run(
            inspect, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_S
        )
    except OSError as error:
        raise ConnectionFailed(
            f"cannot run {program} ({error.strerror})", fix=f"install {program} on this machine"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ConnectionFailed(
            f"{program} container inspect timed out after {_TIMEOUT_S:g} s"
        ) from error
    if result.returncode != 0:
        lines = result.stderr.strip().splitlines()
        raise ConnectionFailed(lines[-1] if lines else f"{program} exited with {result.returncode}")
    if result.stdout.strip() != "true":
        raise ConnectionFailed(
            f"container {container} is not running", fix=f"{program} start {container}"
        )
