"""The bench's command line: round trips are given in milliseconds, as every text has them."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

ROOT = Path(__file__).parents[2]


def test_round_trips_are_given_in_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    from bench import __main__ as bench

    delays: list[float] = []

    class Bed:
        def __init__(self, *_: object) -> None:
            pass

        def __enter__(self) -> Bed:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def delay(self, seconds: float) -> None:
            delays.append(seconds)
            raise SystemExit(0)

    monkeypatch.setattr(bench, "Testbed", Bed)
    monkeypatch.setattr(bench, "_available", lambda _: None)
    monkeypatch.setattr(bench.os, "geteuid", lambda: 0)
    monkeypatch.setattr(bench.signal, "signal", lambda *_: None)
    done = CliRunner().invoke(bench.main, ["--rtt", "50", "--n", "1", "--only", "floor"])
    assert (done.exit_code, delays) == (0, [0.05]), done.output
    assert "in ms" in CliRunner().invoke(bench.main, ["--help"]).output
