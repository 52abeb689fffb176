"""``python -m bench.fresh``: a fresh node by ``gpustate apply`` beside the bare commands, in turns.

Each run has a new lab node. The bare commands (``bare.sh``) install the same packages and start the same services as
``gpustate apply docs/examples/clusterpolicy.yaml``; they look at nothing and validate nothing. What the validation of that
policy takes, a CUDA kernel on each GPU and in containers, is measured on the same node afterwards.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from dataclasses import astuple, dataclass

import click

from bench.contenders import GPUSTATE, HERE
from gpustate_lab import api
from gpustate_lab.node import Node
from gpustate_lab.process import CGROUP_PREFIX, CGROUP_ROOT
from gpustate_lab.spec import LabSpec

_POLICY = HERE.parent / "docs/examples/clusterpolicy.yaml"
_LAB = "bench-fresh"
_WORKS = (
    "nvidia-smi -L | grep -c ^GPU | grep -qx 8 && systemctl is-active -q nvidia-fabricmanager containerd "
    "&& containerd config dump | grep -q nvidia-container-runtime"
)
_VALIDATE = "sh /var/lib/gpustate/validator/validate"
_TRANSACTIONS = "grep -c '^Install: .*nvidia' /var/log/apt/history.log"


@dataclass(frozen=True, slots=True)
class Run:
    """What one run cost.

    Args:
        wall_s: seconds from start to end.
        node_s: CPU seconds of the node.
        validation_s: seconds of another validation; 0: without one.
        transactions: of apt that brought packages of NVIDIA.
    """

    wall_s: float
    node_s: float
    validation_s: float
    transactions: float


def _cpu_s(node: Node) -> float:
    for hierarchy in (CGROUP_ROOT / "cpuacct", CGROUP_ROOT):
        folder = hierarchy / CGROUP_PREFIX / node.cgroup
        if (folder / "cpuacct.usage").exists():
            return int((folder / "cpuacct.usage").read_text()) / 1e9
        if (folder / "cpu.stat").exists():
            return int((folder / "cpu.stat").read_text().split()[1]) / 1e6
    raise click.ClickException(f"no cgroup below {CGROUP_ROOT} tells the CPU of {node.name}")


def _bare(lab: api.Lab) -> None:
    node = lab.nodes[0]
    (node.root / "root/bare.sh").write_text((HERE / "bare.sh").read_text())
    (node.root / "root/key").write_text(lab.repository_key.read_text())
    command = f"sh /root/bare.sh {lab.repository_url} </root/key"
    subprocess.run([*node.ssh_args(), command], check=True, capture_output=True, timeout=900)


def _gpustate(lab: api.Lab) -> None:
    words = [str(GPUSTATE), "apply", str(_POLICY), "-i", str(lab.inventory), "--yes"]
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "XDG_STATE_HOME": folder}
        subprocess.run(words, check=True, capture_output=True, env=environment, timeout=900)


_CONTENDERS = {"bare": _bare, "gpustate": _gpustate}


def _run(name: str) -> Run:
    lab = api.up(LabSpec(name=_LAB, nodes=1, images=("ubuntu2404",), gpus=("8xH100",)))
    try:
        node = lab.nodes[0]
        node.run("systemctl is-system-running --wait || :", timeout_s=120)
        cpu_s, start_s = _cpu_s(node), time.monotonic()
        _CONTENDERS[name](lab)
        wall_s, cpu_s = time.monotonic() - start_s, _cpu_s(node) - cpu_s
        node.run(_WORKS)
        transactions = float(node.run(_TRANSACTIONS).stdout)
        validation_s = 0.0
        if name == "gpustate":
            start_s = time.monotonic()
            node.run(_VALIDATE, timeout_s=300)
            validation_s = time.monotonic() - start_s
        return Run(wall_s, cpu_s, validation_s, transactions)
    finally:
        api.down(_LAB)


@click.command()
@click.option("--rounds", default=3, show_default=True, help="Runs of each, in turns.")
def main(rounds: int) -> None:
    """Compare a fresh apply with the bare commands. Needs root and the lab."""
    runs: dict[str, list[Run]] = {name: [] for name in _CONTENDERS}
    for number in range(rounds):
        for name in _CONTENDERS:
            try:
                runs[name].append(_run(name))
            except subprocess.CalledProcessError as error:
                said = (error.stderr or error.stdout or b"").decode(errors="replace")
                raise click.ClickException(f"{name}: {said[-600:]}") from error
            click.echo(
                f"bench: {name}: {runs[name][-1].wall_s:.1f} s (round {number + 1})", err=True
            )
    medians = {
        name: Run(*(statistics.median(column) for column in zip(*map(astuple, rows), strict=True)))
        for name, rows in runs.items()
    }
    bare = medians["bare"]
    click.echo(f"{'fresh node':<12} {'wall s':>7} {'x':>5} {'node CPU s':>11} {'x':>5} {'apt':>4}")
    for name, row in medians.items():
        click.echo(
            f"{name:<12} {row.wall_s:7.1f} {row.wall_s / bare.wall_s:5.2f} {row.node_s:11.1f} "
            f"{row.node_s / bare.node_s:5.2f} {row.transactions:4.0f}"
        )
    wall_s = medians["gpustate"].wall_s - medians["gpustate"].validation_s
    click.echo(f"{'  unvalidated':<12}{wall_s:7.1f} {wall_s / bare.wall_s:5.2f}")
    click.echo(
        "x: ratio to the bare commands; apt: transactions; unvalidated: without the validation"
    )


if __name__ == "__main__":
    main()
