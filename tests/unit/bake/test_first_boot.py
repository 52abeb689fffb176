"""The first boot of an image: what is left to it, and the program that does it, which runs here."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gpustate import Node, NodeFacts, Plan, State, Step, ops
from gpustate.bake import first_boot
from gpustate.bake.first_boot import UNIT_PATH, compiled, first_boot_of
from gpustate.core.inventory import InventoryNode
from gpustate.core.state import diff
from gpustate.core.step import Step as AnyStep
from gpustate.ops import first_boot as settling
from gpustate.testing import FakeNode


@dataclass(frozen=True, slots=True)
class Seen:
    text: str | None
    active: bool


class Service(State[Seen]):
    """A file and a service, by somebody who never thought of images.

    Disruption:
        RESTART.
    """

    name: ClassVar[str] = "acme-service"

    def probe(self, node: Node) -> Seen:
        return Seen(node.read_text("/etc/acme"), node.units("acme.service")["acme.service"].active)

    def desired(self, observed: Seen) -> Seen:
        return Seen("x\n", True)

    def apply(self, observed: Seen, plan: Plan) -> Iterator[Step]:
        if "text" in plan.fields:
            yield ops.PutText("/etc/acme", "x\n")
            yield ops.DaemonReload()
        if "active" in plan.fields:
            yield ops.EnableUnit("acme.service")
            yield ops.LoadModules(("acme",))
            yield ops.RestartUnit("acme.service")
        yield ops.Reboot("to be sure")


def test_a_state_that_never_thought_of_images_is_baked_as_far_as_it_goes() -> None:
    state = Service()
    observed = Seen(None, False)
    steps = list(state.apply(observed, diff(observed, state.desired(observed))))
    baked = [step.in_image.label for step in steps if step.in_image is not None]
    assert baked == ["write /etc/acme", "enable acme.service"]
    left = [step.label for step in state.first_boot(observed)]
    assert left == ["start acme.service", "load acme"]
    # What is left does not depend on what the image still lacks.
    assert [step.label for step in state.first_boot(state.desired(observed))] == left


def image(**more: Any) -> FakeNode:
    return FakeNode(facts=NodeFacts(image=True), units={"acme.service": "inactive"}, **more)


def test_it_is_put_into_the_image_once() -> None:
    state = first_boot_of([Service()], InventoryNode("image"))
    assert state.known_after == ("acme-service",)
    links: set[str] = set()
    node = image(runs={"enable gpustate": lambda _: links.add(first_boot.UNIT_LINK)})
    observed = state.probe(node)
    for step in state.apply(observed, state.plan(observed)):
        node.carry_out(step)
    assert node.files[UNIT_PATH].startswith("# Written by gpustate image bake")
    node.files |= dict.fromkeys(links, "")
    again = state.probe(node)
    assert again.work == ("acme-service: start acme.service", "acme-service: load acme")
    assert not state.plan(again)
    # A machine that has booted was made an image again.
    node.files["/var/lib/gpustate/firstboot/result"] = "done\n"
    assert state.plan(state.probe(node)).fields == {"result"}


def test_a_policy_that_leaves_nothing_gets_no_unit() -> None:
    state = first_boot_of([], InventoryNode("image"))
    assert not state.plan(state.probe(image()))


def baked(folder: Path, *steps: AnyStep) -> Path:
    """The program as a machine has it, with its state folder in ours."""
    node = InventoryNode("image", vars={"gpustate_state_folder": str(folder)})
    state = Service()
    files, _ = compiled([(state, steps)], [state], node)
    for path, text in files.items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text)
    return folder / "firstboot"


def boot(made: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", made / "run"], capture_output=True, text=True, timeout=60)


def result(made: Path) -> str:
    return (made / "result").read_text().strip()


def later(text: str) -> ops.Run:
    return ops.RunLive(text, "do it")


@pytest.fixture(autouse=True)
def link_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    link = tmp_path / "wants" / "unit"
    link.parent.mkdir()
    link.symlink_to("nowhere")
    monkeypatch.setattr(first_boot, "UNIT_LINK", str(link))
    return link


def test_a_first_boot_that_works_says_so_and_disables_itself(
    tmp_path: Path, link_of_ours: Path
) -> None:
    made = baked(tmp_path / "g", later(f"touch {tmp_path}/did"))
    done = boot(made)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "did").exists()
    assert result(made) == "done"
    assert not link_of_ours.is_symlink()
    assert not (tmp_path / "g/lock").exists()


def test_a_first_boot_that_fails_names_the_step_and_stays_enabled(
    tmp_path: Path, link_of_ours: Path
) -> None:
    made = baked(tmp_path / "g", later("echo 'error: no GPU'; exit 3"), later("echo never"))
    done = boot(made)
    assert done.returncode == 1
    assert result(made) == "failed: acme-service: do it: error: no GPU"
    assert "acme-service: do it: error: no GPU" in done.stderr
    assert link_of_ours.is_symlink()


def test_a_first_boot_that_was_cut_off_is_done_again(tmp_path: Path) -> None:
    made = baked(
        tmp_path / "g", later(f"echo x >>{tmp_path}/did; [ -e {tmp_path}/go ] || sleep 60")
    )
    first = subprocess.Popen(["sh", made / "run"])
    while not (tmp_path / "did").exists():
        time.sleep(0.02)
    assert (tmp_path / "g/lock/run").read_text().startswith("firstboot-")
    for entry in Path("/proc").glob("[0-9]*/cmdline"):  # as a power cut does
        if bytes(tmp_path) in entry.read_bytes() and int(entry.parent.name) != os.getpid():
            os.kill(int(entry.parent.name), signal.SIGKILL)
    first.wait()
    (tmp_path / "go").touch()
    assert boot(made).returncode == 0
    assert result(made) == "done"


def test_what_the_machine_computes_is_written_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "one/file", tmp_path / "two/file"
    for path in (first, second):
        path.parent.mkdir()
        path.with_name("other").write_text("kept\n")
    python = tmp_path / "bin/python3"
    python.parent.mkdir()
    python.write_text(
        '#!/bin/sh\nfor w; do o=$w; done\ncase "$*" in *first_boot.py*) mkdir "$o"; echo 1 >"$o/0"; echo 2 >"$o/1" ;; esac\n'
    )
    python.chmod(0o755)
    monkeypatch.setenv("PATH", f"{python.parent}:{os.environ['PATH']}")
    writes = {str(first): f"put {first} 0644 own", str(second): f"put {second} - -"}
    made = baked(tmp_path / "g", settling.compute_files("labels", "{}", writes, "write both"))
    done = boot(made)
    assert (done.returncode, result(made)) == (0, "done"), done.stderr
    assert (first.read_text(), second.read_text()) == ("1\n", "2\n")
    assert [path.with_name("other").read_text() for path in (first, second)] == ["kept\n"] * 2
    assert not list((tmp_path / "g").glob("runs/*/modules"))


def test_a_first_boot_waits_for_who_holds_the_node(tmp_path: Path) -> None:
    made = baked(tmp_path / "g", later("true"))
    lock = tmp_path / "g/lock"
    lock.mkdir()
    (lock / "run").write_text("20261121-1")
    (lock / "expires").write_text(str(int(time.time()) + 2))
    began = time.monotonic()
    assert boot(made).returncode == 0
    assert time.monotonic() - began > 1
