"""Steps as scripts: what is data stays data."""

from __future__ import annotations

import subprocess
from pathlib import Path

from gpustate import ops


def test_the_name_of_a_unit_is_never_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    unit = f"a'; touch {mark}; '.service"
    script = ops.RestartUnit(unit, roll_back=("/etc/x",)).script()
    stand_ins = "".join(
        f"{name}() {{ return 1; }}\n"
        for name in ("systemctl", "journalctl", "wait_for", "roll_back")
    )
    done = subprocess.run(["sh"], input=stand_ins + script, text=True, capture_output=True)
    assert done.returncode == 1
    assert f"{unit} did not come up" in done.stdout
    assert not mark.exists()
