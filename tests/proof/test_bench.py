"""What a fleet costs, in one run with the floor: one exec of the same script a node, through asyncssh.

Counts and memory do not depend on how busy the machine is and are held to the figure always. Times are
held to theirs with ``--proof`` only, as medians of interleaved rounds; without it a busy machine gets room.
"""

from __future__ import annotations

import functools
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import GPUSTATE

TOP = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.long,
    pytest.mark.node,
    pytest.mark.skipif(os.geteuid() != 0, reason="the light nodes' sshd must run as root"),
    pytest.mark.skipif(
        shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin") is None,
        reason="sshd is not installed (Debian: openssh-server)",
    ),
]

Costs = dict[tuple[str, int, float, bool], dict[str, float]]


@functools.cache
def bench(*words: str) -> Costs:
    """Medians by contender, nodes, round trip and drift."""
    done = subprocess.run(
        [sys.executable, "-m", "bench", *words, "-o", "json"],
        cwd=TOP,
        capture_output=True,
        text=True,
    )
    if "cannot be made" in done.stderr:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr[-3000:]
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return {
        (row["contender"], row["nodes"], row["round_trip_s"], row["drifted"]): row["cost"]
        for row in rows
    }


def more_node_s(costs: Costs, name: str, few: int, many: int) -> float:
    """Controller CPU of one more node."""
    used = [costs[name, count, 0.0, False]["cpu_s"] for count in (few, many)]
    return (used[1] - used[0]) / (many - few)


def assert_counts_and_memory(costs: Costs) -> None:
    """One connection and channel where nothing is to do; else one of each for the waves, and three for a stage."""
    observed = 0
    for (name, nodes, _, drifted), cost in costs.items():
        if name == "gpustate":
            observed += 1
            assert cost["connections"] == (2 if drifted else 1)
            assert cost["channels"] == (4 if drifted else 1)
            # Libraries count whole where no other process shares them: 58 to 79 MiB were seen of the same code.
            assert cost["memory_mib"] <= 80 + 0.1 * nodes
    assert observed


def test_a_node_costs_one_connection_and_one_channel_or_three_when_it_drifted() -> None:
    modes = ("--mode", "converged,drifted")
    costs = bench("--n", "12", "--rtt", "0", "--rounds", "1", "--only", "gpustate", *modes)
    assert_counts_and_memory(costs)


def test_one_more_node_costs_hardly_more_than_the_floor_does() -> None:
    """In controller CPU, which a busy machine stretches for both."""
    costs = bench("--n", "1,40", "--rtt", "0", "--rounds", "2", "--only", "floor,gpustate")
    assert_counts_and_memory(costs)
    ratio = more_node_s(costs, "gpustate", 1, 40) / more_node_s(costs, "floor", 1, 40)
    assert ratio < 4, f"one more node costs {ratio:.1f} times the floor's"


def test_twenty_operations_of_pyinfra_cost_one_more_node_hardly_more_than_the_floor_does() -> None:
    costs = bench("--n", "1,60", "--rtt", "0", "--rounds", "2", "--only", "floor,operations")
    for (name, *_), cost in costs.items():
        if name == "operations":
            assert (cost["connections"], cost["channels"]) == (1, 1)
    ratio = more_node_s(costs, "operations", 1, 60) / more_node_s(costs, "floor", 1, 60)
    assert ratio < 4, f"one more node costs {ratio:.1f} times the floor's"


def test_help_costs_next_to_nothing() -> None:
    least = min(_cpu_s([GPUSTATE, "--help"]) for _ in range(5))
    assert least < 0.15, f"--help takes {least * 1000:.0f} ms of CPU"


def _cpu_s(words: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.proof
@pytest.mark.parametrize(
    ("trip", "nodes", "most"), [("0", 1, 1.5), ("0", 100, 1.3), ("50", 100, 1.2)]
)
def test_the_wall_is_near_the_floor(trip: str, nodes: int, most: float) -> None:
    rounds = "7" if nodes == 1 else "3"
    costs = bench("--n", str(nodes), "--rtt", trip, "--rounds", rounds, "--only", "floor,gpustate")
    assert_counts_and_memory(costs)
    walls = {name: cost["wall_s"] for (name, *_), cost in costs.items()}
    assert walls["gpustate"] <= most * walls["floor"], walls


@pytest.mark.proof
def test_pyinfra_takes_nine_times_as_long() -> None:
    costs = bench("--n", "50", "--rtt", "0", "--rounds", "1", "--only", "gpustate,pyinfra")
    walls = {name: cost["wall_s"] for (name, *_), cost in costs.items()}
    assert walls["pyinfra"] >= 9 * walls["gpustate"], walls


@pytest.mark.proof
def test_a_thousand_nodes_fit_into_one_process() -> None:
    costs = bench("--n", "1,1000", "--rtt", "0", "--rounds", "1", "--only", "floor,gpustate")
    assert_counts_and_memory(costs)
    # Where a machine is so slow that the floor comes near that figure, what counts is how near we are to the floor.
    most = max(0.008, 1.3 * more_node_s(costs, "floor", 1, 1000))
    more = more_node_s(costs, "gpustate", 1, 1000)
    assert more <= most, (
        f"one more node costs {more * 1000:.1f} ms of CPU, {most * 1000:.1f} at most"
    )


@pytest.mark.proof
def test_the_others_take_many_times_as_long() -> None:
    costs = bench("--n", "20", "--rtt", "0", "--rounds", "1")
    walls = {name: cost["wall_s"] for (name, *_), cost in costs.items()}
    assert walls["mitogen"] >= 40 * walls["gpustate"], walls
    assert walls["ansible"] >= 100 * walls["gpustate"], walls
