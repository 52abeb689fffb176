"""What packages leave behind when a rollback takes them to an older version, with real dpkg in a folder of its own."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from filestates import First, Third

from gpustate import registry
from gpustate.core.building import parameters
from gpustate.core.queries import Answer
from gpustate.core.state import AnyState
from gpustate.engine import leftovers
from gpustate.engine.before import BeforeQuery, RunBefore
from gpustate.engine.fleet import ordered_back
from gpustate.engine.leftovers import Leftovers, LeftoversQuery, PackageLeftoversRemoved
from gpustate.graph.build import build
from gpustate.graph.order import order
from gpustate.testing import FakeNode

UNIT = "/etc/systemd/system/nvidia-x.path"


class Dpkg:
    """dpkg's database in a folder, and packages of one name with these configuration files."""

    def __init__(self, folder: Path) -> None:
        self.root, self.folder = folder / "root", folder
        for name in ("info", "updates", "triggers"):
            (self.root / "var/lib/dpkg" / name).mkdir(parents=True)
        for name in ("status", "available"):
            (self.root / "var/lib/dpkg" / name).touch()
        self.programs = folder / "bin"
        self.programs.mkdir()
        program = self.programs / "dpkg-query"
        program.write_text(
            f'#!/bin/sh\nexec /usr/bin/dpkg-query --admindir={self.root}/var/lib/dpkg "$@"\n'
        )
        program.chmod(0o755)

    def install(self, name: str, version: str, **files: str) -> None:
        tree = self.folder / f"{name}-{version}"
        paths = []
        for key, text in files.items():
            # The query reads paths of the whole machine, so files are where they say they are.
            path = f"{self.folder}/files/{key}"
            (tree / path[1:]).parent.mkdir(parents=True, exist_ok=True)
            (tree / path[1:]).write_text(text)
            paths.append(path)
        (tree / "DEBIAN").mkdir(parents=True)
        (tree / "DEBIAN/control").write_text(
            f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: a <a@b>\nDescription: x\n"
        )
        (tree / "DEBIAN/conffiles").write_text("".join(f"{path}\n" for path in paths))
        package = self.folder / f"{name}-{version}.deb"
        for words in (
            ["dpkg-deb", "--root-owner-group", "-b", str(tree), str(package)],
            ["dpkg", f"--root={self.root}", "--force-not-root", "--force-bad-path", "--force-confdef",
             "--force-confold", "--log=/dev/null", "-i", str(package)],
        ):  # fmt: skip
            subprocess.run(words, check=True, capture_output=True)
        for key in files:
            target = Path(f"{self.folder}/files/{key}")
            source = self.root / str(target)[1:]
            target.parent.mkdir(exist_ok=True)
            if source.exists() and not target.exists():
                target.write_text(source.read_text())

    def query(self, since: int) -> Leftovers:
        query = LeftoversQuery(since)
        environment = {**os.environ, "PATH": f"{self.programs}:{os.environ['PATH']}"}
        done = subprocess.run(
            ["sh", "-c", query.script()], capture_output=True, env=environment, check=True
        )
        return query.parse(Answer(0, done.stdout))


@pytest.fixture
def dpkg(tmp_path: Path) -> Dpkg:
    return Dpkg(tmp_path)


def test_obsolete_files_that_came_since_and_are_unchanged_are_found(dpkg: Dpkg) -> None:
    since = int(time.time())
    dpkg.install("nvidia-x", "1", stays="a")
    dpkg.install("nvidia-x", "2", stays="a", unit="[Unit]\n", edited="b")
    dpkg.install("other", "2", unrelated="c")
    assert dpkg.query(since).obsolete == ()
    dpkg.install("nvidia-x", "1.5", stays="a")
    dpkg.install("other", "1")
    (dpkg.folder / "files/edited").write_text("of the site")
    found = dpkg.query(since)
    assert [row.rpartition("/")[2] for row in found.obsolete] == ["unit"]
    assert found.obsolete[0].startswith("nvidia-x|1.5|")
    assert [path.rpartition("/")[2] for path in found.changed] == ["edited"]
    assert "root" in found.users
    assert dpkg.query(since + 1000).obsolete == (), "it was there before the run"


def test_users_that_came_since_are_named_and_stay() -> None:
    observed = Leftovers(changed=("/etc/x",), users=("nvidia-dcgm",))
    assert leftovers.stays(observed) == (
        "stays: users that packages created: nvidia-dcgm",
        "stays: /etc/x, which was changed and whose package does not have it any more",
    )
    assert not PackageLeftoversRemoved().plan(observed)
    assert leftovers.stays({"anything": 1}) == ()


def test_a_record_is_followed_by_the_users_of_its_time() -> None:
    text = f"{RunBefore('r1').text()}\nusers root daemon\n{RunBefore('r2', drain={'grace_period_s': 5}, rollout={'serial': 2}).text()}\n"
    first, second = BeforeQuery().parse(Answer(0, text.encode()))
    assert (first.users, second.users) == (("root", "daemon"), ())
    assert (second.drain, second.rollout) == ({"grace_period_s": 5}, {"serial": 2})


def test_only_states_with_packages_of_their_own_are_followed_by_it() -> None:
    states: tuple[AnyState, ...] = (First(), Third())
    assert leftovers.with_removal(states, 5, ()) == states

    states = (First(), registry.get("container-toolkit")())
    *same, state = leftovers.with_removal(states, 5, ("root",))
    assert tuple(same) == states
    assert (state.name, state.known_after) == ("package-leftovers", ("container-toolkit",))


def test_states_that_look_for_what_packages_bring_wait_for_it_and_none_ahead_of_packages_does() -> (
    None
):
    names = (
        "driver",
        "fabric-manager",
        "container-toolkit",
        "cdi",
        "containerd",
        "dcgm",
        "dcgm-exporter",
        "validator",
    )
    states = tuple(registry.get(name)() for name in names)
    found = leftovers.with_removal(states, 5, ())
    order = [state.name for state in ordered_back(found, registry.names())]
    waiting = {state.name for state in found if "package-leftovers" in state.known_after}
    # Where an older toolkit brings no units that write the CDI specification, gpustate's own do.
    assert {"cdi", "validator"} <= waiting
    # The exporter comes after Fabric Manager, and has packages of its own.
    assert not waiting & {"driver", "fabric-manager", "dcgm", "dcgm-exporter"}
    assert all(order.index("package-leftovers") < order.index(name) for name in waiting)
    cdi = next(state for state in found if state.name == "cdi")
    assert parameters(cdi) == parameters(registry.get("cdi")())


def test_it_comes_before_the_validator() -> None:
    states = (registry.get("driver")(), registry.get("validator")())
    everything = leftovers.with_removal(states, 5, ("root",))
    assert order(build(everything)) == ["driver", "package-leftovers", "validator"]


def test_its_step_removes_only_what_is_still_as_it_was_seen() -> None:
    row = f"nvidia-x|1.5|{'0' * 32}|{UNIT}"
    state = PackageLeftoversRemoved(since=1)
    observed = Leftovers(obsolete=(row,))
    (step,) = state.apply(observed, state.plan(observed))
    assert step.label == f"remove {UNIT}"
    assert f"set -- '{row}'" in step.script()


def test_a_forecast_names_what_stays() -> None:
    node = FakeNode(answers={"LeftoversQuery": lambda _: Leftovers(users=("nvidia-x",))})
    state = PackageLeftoversRemoved(users=("root",))
    removed, *stay = state.forecast(node, "").notes
    assert removed.startswith("configuration files that came since")
    assert stay[0] == "stays: users that packages created: nvidia-x"
