"""A thousand nodes with twenty distinct plans: few seconds of the controller's processor.

Counted is all that a plan costs beyond the probe: reading the inventory, resolving, planning, holding against
the compatibility matrix, the document, and every rendering of it. A machine that has others to serve
takes more processor time for the same work, so the limit is in units of a small piece of work that is timed
in between; on an otherwise idle machine such a unit takes 5 ms, and the limit is 3 s.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from fleets import Fleet

from gpustate import inventory
from gpustate.cli import common, reports
from gpustate.cli.main import GC_THRESHOLD
from gpustate.engine import fleet
from gpustate.plan import document

LIMIT_S = 3.0
UNIT_S = 0.005
_ROWS = [
    {"name": f"n{n}", "values": list(range(20)), "on": {"a": 1.5, "b": None}} for n in range(400)
]


def unit() -> float:
    """What a fixed piece of work costs right now, in processor seconds."""
    began = time.process_time()
    text = json.dumps(_ROWS, indent=2, sort_keys=True)
    assert len(json.loads(text)) == len(_ROWS)
    return time.process_time() - began


def test_a_thousand_nodes_with_twenty_plans_cost_at_most_three_seconds(tmp_path: Path) -> None:
    """The best of some tries: others on the machine make the work dearer, never cheaper."""
    tries: list[float] = []
    thresholds = gc.get_threshold()
    gc.set_threshold(GC_THRESHOLD)  # as the program does
    try:
        while not tries or (min(tries) > LIMIT_S and len(tries) < 4):
            tries.append(cost(tmp_path))
    finally:
        gc.set_threshold(*thresholds)
    assert min(tries) <= LIMIT_S, tries


def cost(tmp_path: Path) -> float:
    """Processor seconds of the plans, as on an idle machine."""
    many = Fleet(1000, 20)
    path = many.write_inventory(tmp_path)
    units: list[float] = []
    spent = 0.0

    def counted(work: Callable[[], Any]) -> Any:
        nonlocal spent
        units.extend(unit() for _ in range(3))
        began = time.process_time()
        made = work()
        spent += time.process_time() - began
        return made

    gc.collect()
    loaded = counted(lambda: inventory.load(str(path)))
    request = many.request(loaded)
    with many.connected():
        result = counted(lambda: fleet.run(request))
    made = counted(
        lambda: document.plan_document(
            many.policy, "policy.py", result.nodes, run=result.run, created="2026-11-21T07:55:00Z"
        )
    )
    texts = {
        kind: counted(lambda kind=kind: reports.text(made, kind, diff=True, whole=False))
        for kind in ("text", "json", "markdown", "html")
    }
    assert len(result.nodes) == 1000
    assert len(made["fleet"]["groups"]) == 20
    assert "gpu[0001-0050] (50 nodes)" in texts["text"]
    assert json.loads(texts["json"]) == json.loads(common.as_json(made))
    assert texts["html"].count('<details class="group"') == 20
    beyond = spent - many.probe_s
    return beyond * UNIT_S / median(units)
