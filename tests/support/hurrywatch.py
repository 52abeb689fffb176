"""Run in a process of ``gpustate watch`` before the program, as ``hurry.py``: shorter waits for Nodes and Leases, too."""

from __future__ import annotations

import runpy
from pathlib import Path

from gpustate.watch import watcher, work_queue

runpy.run_path(str(Path(__file__).with_name("hurry.py")))
work_queue.SETTLE_S, work_queue._FIRST_S, watcher._LOOK_S, watcher._LEASE_S = 0.3, 1.0, 0.1, 0.3
