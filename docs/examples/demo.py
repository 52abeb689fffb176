"""Demo on two disposable nodes: plan, apply, validate, apply again.

    python docs/examples/demo.py [POLICY] [--keep]

Every command is printed before it runs, so that it can be repeated by hand. The nodes identify as Ubuntu 24.04, as
kubeadm leaves it, with real systemd, sshd, apt, dkms and containerd. GPUs and NVIDIA's packages and libraries are
simulated, see docs/lab.md.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NAME = "demo"
#: Keep the runs of the demo out of the list of `gpustate rollout resume`.
ENVIRONMENT = {**os.environ, "XDG_STATE_HOME": tempfile.mkdtemp(prefix="gpustate-demo-")}
GPUSTATE = str(Path(sys.executable).with_name("gpustate"))


def show(*words: str) -> str:
    """Print a command."""
    line = shlex.join(["gpustate", *words])
    print(f"\n$ {line}", flush=True)
    return line


def run(*words: str, expect: tuple[int, ...] = (0,)) -> str:
    """Run a command; print and return its output; exit if it fails."""
    show(*words)
    process = subprocess.Popen(
        [GPUSTATE, *words], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
    )
    output = ""
    for line in process.stdout or ():
        output += line
        print(line, end="", flush=True)
    if process.wait() not in expect:
        hint = (
            ""
            if words[:2] == ("lab", "up")
            else f"; to remove the nodes: gpustate lab down --name {NAME}"
        )
        raise SystemExit(f"demo: the command exited with {process.returncode}{hint}")
    return output


def lab(name: str) -> dict[str, str]:
    """Return the entry of a lab in ``gpustate lab list -o json``."""
    words = [GPUSTATE, "lab", "list", "--name", name, "-o", "json"]
    listed = subprocess.run(words, capture_output=True, text=True, check=True)
    entry: dict[str, str] = json.loads(listed.stdout)["labs"][0]
    return entry


def parse_arguments(arguments: list[str], default: str) -> tuple[str, bool]:
    """Return the policy, ``default`` if none is named, and whether to keep the lab."""
    named = [word for word in arguments if not word.startswith("-")]
    policy = named[0] if named else default
    if not Path(policy).is_file():
        raise SystemExit(f"demo: policy {policy} does not exist")
    return policy, "--keep" in arguments


def main(arguments: list[str]) -> None:
    policy, keep = parse_arguments(arguments, "docs/examples/policy.yaml")
    started = time.monotonic()
    run("lab", "up", "--name", NAME, "--nodes", "2", "--gpus", "8xH100")
    inventory = lab(NAME)["inventory"]
    run("plan", policy, "-i", inventory)
    run("apply", policy, "-i", inventory, "--yes")
    run("validate", policy, "-i", inventory)
    again = run("apply", policy, "-i", inventory, "--yes")
    if " changed=0 " not in again:
        raise SystemExit("demo: the second apply changed something; that is a bug in gpustate")
    if keep:
        print(
            f"\nThe nodes are still running: gpustate explain gpu1 -i {inventory}; gpustate lab down --name {NAME}"
        )
    else:
        run("lab", "down", "--name", NAME)
    print(f"\ndemo: done in {time.monotonic() - started:.0f} s; the second apply changed nothing")


if __name__ == "__main__":
    main(sys.argv[1:])
