"""``scontrol``, ``sinfo`` and ``squeue`` of a cluster in a file, as far as gpustate uses them; they wait at a chosen write.

Run as ``slurmhead.py FOLDER PROGRAM ARGUMENTS``. A write without a reason, an unknown node, and an undrain of a node
that is not drained are refused, as slurmctld refuses them. A job ends a moment after its node is drained.

Sources:
    SchedMD/slurm, src/slurmctld/node_mgr.c: update_node, _valid_node_state_change.
"""

from __future__ import annotations

import fcntl
import json
import sys
import time
from pathlib import Path
from typing import Any

JOB_S = 0.3


def new(names: list[str]) -> dict[str, Any]:
    """Idle nodes, each with a job."""
    return {
        name: {"state": "mixed", "reason": "", "user": "", "job": 100 + number, "ends": 0.0}
        for number, name in enumerate(names)
    }


def main(folder: Path, program: str, words: list[str]) -> int:
    """Run one of the programs."""
    with (folder / "slurm.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if program == "scontrol" and words[0] == "update" and words[1].startswith("NodeName="):
            return _update(folder, dict(word.split("=", 1) for word in words[1:]))
        nodes = _read(folder)
        if program == "scontrol":
            name = words[3]
            if name not in nodes:
                print(f"Node {name} not found", file=sys.stderr)
                return 1
            print(
                f"NodeName={name} Arch=x86_64 BootTime=2026-11-24T09:00:00 SlurmdStartTime=2026-11-24T09:00:30"
            )
            return 0
        if program == "sinfo" and words[-1] == "%N|%G":
            print("".join(f"{name}|gpu:h100:8\n" for name in nodes), end="")
        elif program == "sinfo":
            only = words[words.index("-n") + 1] if "-n" in words else ""
            for name, one in nodes.items():
                if only in ("", name):
                    reason = one["reason"] or "none"
                    user = one["user"] or "Unknown"
                    state = one["state"]
                    print(f"{name}|127.0.0.1|{name}|{state}|{user}|2026-11-24T10:00:00|{reason}")
        elif program == "squeue":
            name = words[words.index("-w") + 1]
            if nodes[name]["job"]:
                print(f"{nodes[name]['job']}|RUNNING|ann|1|1|gres:gpu:2")
        else:
            print(f"{program} {words}: not known here", file=sys.stderr)
            return 1
    return 0


def _trap(folder: Path) -> dict[str, str]:
    path = folder / "trap"
    return json.loads(path.read_text()) if path.exists() else {}


def _written(folder: Path, nodes: dict[str, Any], label: str, trap: dict[str, str]) -> int:
    """Store what was written, and note that it was."""
    (folder / "slurm.json").write_text(json.dumps(nodes))
    with (folder / "writes").open("a") as file:
        file.write(label + "\n")
    count = (folder / "writes").read_text().splitlines().count(label)
    if trap == {"write": f"{label} {count}", "when": "after"}:
        _wait(folder)
    return 0


def _read(folder: Path) -> dict[str, Any]:
    nodes: dict[str, Any] = json.loads((folder / "slurm.json").read_text())
    for one in nodes.values():
        if one["job"] and one["ends"] and time.time() > one["ends"]:
            one["job"] = 0
            one["state"] = one["state"].replace("draining", "drained").replace("mixed", "idle")
    return nodes


def _update(folder: Path, values: dict[str, str]) -> int:
    name = values["NodeName"]
    log = (folder / "writes").read_text().splitlines() if (folder / "writes").exists() else []
    label = f"{values.get('State', 'Reason')} {name}"
    label += f" {log.count(label) + 1}"
    trap = _trap(folder)
    if trap == {"write": label, "when": "before"}:
        _wait(folder)
    nodes = _read(folder)
    if name not in nodes:
        print("slurm_update error: Invalid node name specified", file=sys.stderr)
        return 1
    one = nodes[name]
    state = values.get("State", "")
    drained = one["state"].startswith("drain")
    if state == "DRAIN" and not values.get("Reason"):
        print("slurm_update error: Reason required", file=sys.stderr)
        return 1
    if state in ("UNDRAIN", "RESUME") and not drained:
        print("slurm_update error: Invalid node state specified", file=sys.stderr)
        return 1
    if state == "DRAIN":
        one["state"] = "draining" if one["job"] else "drained"
        one["ends"] = one["ends"] or time.time() + JOB_S
    elif state:
        one["state"] = "idle"
    if "Reason" in values:
        one["reason"], one["user"] = values["Reason"], "root" if values["Reason"] else ""
    return _written(folder, nodes, label.rpartition(" ")[0], trap)


def _wait(folder: Path) -> None:
    """Say that the write was reached, and wait until somebody lets it go on."""
    (folder / "trap").unlink()
    (folder / "kill/reached").write_text("write\n")
    (folder / "kill/go").read_text()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
