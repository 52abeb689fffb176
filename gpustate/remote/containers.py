"""A node that is a container on this machine: commands run in it through docker's or podman's own program.

Sources:
    docker and podman, ``container inspect`` and ``exec``; pyinfra 3.10, ``connectors/docker.py``.
"""

from __future__ import annotations

import subprocess

from gpustate.errors import ConnectionFailed

PROGRAMS = ("docker", "podman")
_TIMEOUT_S = 30.0


def argv(program: str, container: str, command: str) -> list[str]:
    """How to run a sh command in a container, as root."""
    return [program, "exec", "-i", "-u", "0", container, "/bin/sh", "-c", command]


def check(program: str, container: str) -> None:
    """See that a container runs.

    Raises:
        ConnectionFailed: it does not, there is none, or the daemon does not answer.
    """
    inspect = [program, "container", "inspect", "--format", "{{.State.Running}}", container]
    try:
        done = subprocess.run(
            inspect, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_S
        )
    except OSError as error:
        raise ConnectionFailed(
            f"{program} cannot be run ({error.strerror})", fix=f"install {program} on this machine"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ConnectionFailed(f"{program} did not answer within {_TIMEOUT_S:g} s") from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise ConnectionFailed(lines[-1] if lines else f"{program} ended with {done.returncode}")
    if done.stdout.strip() != "true":
        raise ConnectionFailed(
            f"the container {container} is not running",
            fix=f"start it: {program} start {container}",
        )
