"""States of one stage install their packages in one transaction, and each its own where that fails.

Real sh; apt and dpkg are stand-ins that keep a list of packages, for what they do on a node is judged there
(``tests/node/test_spine.py``).
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from gpustate import ops
from gpustate.core.step import Step

_APT_GET = """
case " $* " in *" install "*) ;; *) exit 0 ;; esac
words=
for word do case $word in -*|install|*::*|*=Dir*) ;; *) words="$words $word" ;; esac; done
case " $* " in
*" --download-only "*) kind=fetch ;;
*" -s "*) kind=simulate ;;
*) kind=install ;;
esac
echo "$kind$words" >>"$WORLD/log"
case "$kind $words" in
"simulate "*) for word in $words; do echo "Inst ${word%%=*} (1)"; done ;;
*absent*) echo "E: Unable to locate package absent"; exit 100 ;;
"install "*broken*) echo "E: Sub-process /usr/bin/dpkg returned an error code (1)"; exit 100 ;;
install*) for word in $words; do echo "${word%%=*} ${word#*=} installed" >>"$WORLD/packages"; done ;;
esac
"""
_STUBS = {
    "apt-get": _APT_GET,
    "apt-mark": 'case $1 in hold) echo "$*" >>"$WORLD/log" ;; esac',
    "apt-config": ":",
    "dpkg": ":",
    "dpkg-query": 'cat "$WORLD/packages" 2>/dev/null || :',
    "systemctl": "exit 1",
    "df": "printf 'Avail\\n99999999\\n'",
}


class World:
    """A node of stand-ins, and what its package manager was asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir()
        for name, text in _STUBS.items():
            program = folder / "bin" / name
            program.write_text(f"#!/bin/sh\n{text}\n")
            program.chmod(0o755)

    def run(self, *blocks: ops.Block) -> list[str]:
        """Run a program; return the labels of its steps in their order, with the status of those that failed."""
        run = self.folder / "state/runs/r"
        run.mkdir(parents=True)
        (run / "library").write_text(ops.LIBRARY)
        program = ops.compile_program(blocks)
        for name, text in program.files.items():
            (run / name).write_text(text)
        head = (
            f"G={self.folder}/state; RUN=r; R=$G/runs/r; LOCK=x; PROC=/proc; SYS=/sys; "
            "export G RUN R LOCK PROC SYS\n. $R/library\n"
        )
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "WORLD": str(self.folder)}
        subprocess.run(["sh", "-c", head + program.text], check=True, timeout=60, env=environment)
        labels: list[str] = []
        for line in (run / "journal").read_text().splitlines():
            entry = json.loads(line)
            if entry["e"] == "result":
                state, step = program.steps[entry["i"] - 1]
                failed = f" failed {entry['rc']}" if entry["rc"] else ""
                labels.append(f"{state}: {step.label}{failed}")
            elif entry["e"] == "skip":
                labels.append(f"{entry['state']}: skipped because of {entry['because']}")
        return labels

    @property
    def log(self) -> list[str]:
        """Installations and holds, in order; downloads and simulations left out."""
        lines = (self.folder / "log").read_text().splitlines()
        return [line for line in lines if not line.startswith(("fetch", "simulate"))]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def block(state: str, *steps: Step, needs: tuple[str, ...] = ()) -> ops.Block:
    return ops.Block(state, needs, steps)


def install(*names: str, hold: bool = False) -> Step:
    return ops.AptInstall(tuple((name, "1") for name in names), hold=hold)


def test_packages_of_all_states_come_in_one_transaction(world: World) -> None:
    steps = world.run(
        block("driver", install("d1", "d2", hold=True)),
        block("toolkit", install("t", hold=True)),
        block("dcgm", install("g")),
    )
    assert world.log == ["install d1=1 d2=1 t=1 g=1", "hold d1 d2", "hold t"]
    assert steps == ["driver: install d1=1, d2=1", "toolkit: install t=1", "dcgm: install g=1"]


@pytest.mark.parametrize("name", ["absent", "broken"])
def test_a_package_that_cannot_be_had_fails_its_own_state_alone(world: World, name: str) -> None:
    steps = world.run(
        block("driver", install("d")),
        block("toolkit", install(name)),
        block("containerd", install("c"), needs=("toolkit",)),
        block("dcgm", install("g")),
    )
    assert steps == [
        "driver: install d=1",
        f"toolkit: install {name}=1 failed 1",
        "containerd: skipped because of toolkit",
        "dcgm: install g=1",
    ]
    assert {"install d=1", "install g=1"} <= set(world.log)


def test_a_file_that_a_package_would_replace_is_written_before_it(
    world: World, tmp_path: Path
) -> None:
    path = str(tmp_path / "config")
    steps = world.run(
        block("driver", install("d")),
        block("toolkit", ops.KeepOriginal(path), ops.PutText(path, "a\n"), install("t")),
    )
    assert world.log == ["install d=1 t=1"]
    assert steps == [
        f"toolkit: record the original of {path}",
        f"toolkit: write {path}",
        "driver: install d=1",
        "toolkit: install t=1",
    ]


def test_what_disturbs_the_node_keeps_its_place(world: World) -> None:
    stop = ops.Run("systemctl stop x || :", "stop x")
    steps = world.run(block("driver", install("d")), block("gdrcopy", stop, install("g")))
    assert world.log == ["install d=1", "install g=1"]
    assert steps == ["driver: install d=1", "gdrcopy: stop x", "gdrcopy: install g=1"]


def test_a_state_that_failed_before_the_transaction_installs_nothing(
    world: World, tmp_path: Path
) -> None:
    (tmp_path / "config").mkdir()  # where its file belongs
    steps = world.run(
        block("driver", install("d")),
        block("toolkit", ops.PutText(str(tmp_path / "config"), "a\n"), install("t")),
        block("containerd", ops.Run(":", "restart"), needs=("toolkit",)),
    )
    assert steps == [
        f"toolkit: write {tmp_path}/config failed 1",
        "driver: install d=1",
        "containerd: skipped because of toolkit",
    ]
    assert world.log == ["install d=1"]


@pytest.mark.parametrize("manager", ["apt", "rpm"])
@pytest.mark.parametrize(
    ("swap", "status", "done"),
    [
        ("RC=0", 0, ["own more", "came"]),
        # Everything is as it was: the step goes on with its own packages.
        ("ROLLED=1 RC=1", 0, ["own more", "own"]),
        ("ROLLED= RC=1", 1, ["own more", "log of own more"]),
    ],
)
def test_packages_of_later_steps_come_along_or_are_dropped(
    tmp_path: Path, manager: str, swap: str, status: int, done: list[str]
) -> None:
    """The functions of both package managers, with a transaction that fails if it has more than its own packages."""
    (tmp_path / "along").write_text("more=1 more\n")
    text = f"""{ops.LIBRARY}
R={tmp_path} WANT=own NAMES=own AGAIN= OPENED=own
rpm_open() {{ OPENED="$*"; }}
apt_swap() {{
  echo "$*" >>"$R/done"; echo "log of $*"; {swap}
  [ "$*" != own ] || RC=0
  return $RC
}}
rpm_swap() {{ [ "$OPENED" = "$(echo "$NAMES" | sed s/=1//g | xargs)" ] && apt_swap $WANT; }}
{"along apt_swap own" if manager == "apt" else "rpm_along rpm_swap"} >>"$R/out" || status=$?
grep log "$R/out" >>"$R/done"; [ ! -s "$R/came" ] || echo came >>"$R/done"
[ ! -e "$R/along" ] && exit ${{status:-0}}
"""
    ran = subprocess.run(["sh", "-c", text], check=False, env={**os.environ, "G": str(tmp_path)})
    assert ran.returncode == status
    lines = (tmp_path / "done").read_text().splitlines()
    assert lines == [*done, *(["log of own"] if done[-1] == "own" else [])]
