"""``python -m bench``: the table, as text or JSON."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from bench import environments, table
from bench.contenders import ALL, Contender, Stage
from bench.measure import Failed, Row, rounds
from bench.testbed import Testbed


def _numbers(text: str) -> list[float]:
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a list of numbers") from None


def _chosen(only: str | None, count: int) -> list[Contender]:
    if only is None:
        return [one for one in ALL.values() if one.by_default and count <= one.most]
    unknown = [name for name in only.split(",") if name not in ALL]
    if unknown:
        raise click.BadParameter(f"no contender {unknown[0]!r}; there are {', '.join(ALL)}")
    return [ALL[name] for name in only.split(",")]


def _available(some: Sequence[Contender]) -> None:
    for name in dict.fromkeys(one.environment for one in some if one.environment):
        try:
            environments.programs(name)
        except OSError as error:
            raise click.ClickException(f"the environment {name} cannot be made: {error}") from error


def _say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


@click.command()
@click.option("--n", "counts", default="20,100", show_default=True, help="Numbers of nodes.")
@click.option("--rtt", "trips", default="0,50", show_default=True, help="Round trips added, in ms.")
@click.option("--mode", "modes", default="converged", show_default=True, help="converged, drifted.")
@click.option("--rounds", "turns", default=3, show_default=True, help="Runs of each, in turns.")
@click.option("--only", help=f"Contenders: {','.join(ALL)}.")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text")
def main(counts: str, trips: str, modes: str, turns: int, only: str | None, output: str) -> None:
    """Compare what a fleet costs gpustate, the floor and the others. Needs root and sshd."""
    if os.geteuid() != 0:
        raise click.ClickException("the nodes' sshd must run as root")
    # Terminated or interrupted, it takes its nodes down.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    numbers = [int(number) for number in _numbers(counts)]
    wanted = modes.split(",")
    if set(wanted) - {"converged", "drifted"}:
        raise click.BadParameter(f"--mode: {modes!r}, wanted converged or drifted or both")
    _available([one for count in numbers for one in _chosen(only, count)])
    rows: list[Row] = []
    work = Path(tempfile.mkdtemp(prefix="gpustate-bench-"))
    try:
        with Testbed(work, max(numbers)) as bed:
            for trip_ms in _numbers(trips):
                bed.delay(trip_ms / 1000)
                for count in numbers:
                    for mode in wanted:
                        _say(f"{count} nodes {mode}, {trip_ms:g} ms")
                        some = _chosen(only, count)
                        rows += rounds(Stage(bed, count), some, turns, mode == "drifted", _say)
    except Failed as error:
        raise click.ClickException(str(error)) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if output == "json":
        print(json.dumps([row.data() for row in rows], indent=1))
    else:
        print(table.text(rows))


if __name__ == "__main__":
    main()
