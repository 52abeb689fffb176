"""The controller of a rollout over Slurm's nodes is killed before and after every write by ``scontrol``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import slurmhead
from rolloutbed import NEW, SUPPORT, Bed, Ran, finish

WORDS = ("--forks", "1")
FOREIGN = "disk swap"


class SlurmBed(Bed):
    """Two machines with slurmd, and a head with the tools of their Slurm."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, 2, ("slurmd",))

    def reset(self) -> None:
        super().reset()
        head = self.head.folder
        for name in ("writes", "trap"):
            (head / name).unlink(missing_ok=True)
        for name in ("scontrol", "sinfo", "squeue"):
            program = head / "programs" / name
            # What the Lease asks for with every renewal is answered without an interpreter.
            config = f"StateSaveLocation       = {head}/state"
            program.write_text(
                f"#!/bin/sh\n[ \"$*\" != 'show config' ] || {{ echo '{config}'; exit; }}\n"
                f'exec {sys.executable} -I -S {SUPPORT}/slurmhead.py {head} {name} "$@"\n'
            )
            program.chmod(0o755)
        (head / "slurm.json").write_text(json.dumps(slurmhead.new([m.name for m in self.machines])))

    @property
    def writes(self) -> list[str]:
        """What was written so far, each with its number."""
        path = self.head.folder / "writes"
        log = path.read_text().splitlines() if path.exists() else []
        return [f"{one} {log[: number + 1].count(one)}" for number, one in enumerate(log)]

    def slurm_wrong(self) -> list[str]:
        """What is not as it has to be after a run that ended well."""
        nodes = json.loads((self.head.folder / "slurm.json").read_text())
        found: list[str] = []
        for machine in self.machines:
            node = nodes[machine.name]
            for file in ("driver", "firmware"):
                if machine.read(file) != NEW:
                    found.append(f"{machine.name}: {file} is {machine.read(file) or 'missing'}")
            if len(machine.read("driver.count").split()) > 1:
                found.append(f"{machine.name}: the driver was installed more than once")
            if node["state"] != "idle" or node["reason"]:
                found.append(f"{machine.name}: {node['state']}: {node['reason']}")
        return found

    def killed(self, write: str, when: str, *words: str) -> Ran:
        """Kill a run before or after a write."""
        (self.head.folder / "trap").write_text(json.dumps({"write": write, "when": when}))
        hold = self.hold(self.head)
        command = self.start(*words)
        reached = hold.wait(60.0)
        command.kill()
        ran = finish(command)
        if reached:
            hold.go()
        hold.close()
        assert reached, f"{write} was not reached: {ran.text}"
        return ran
