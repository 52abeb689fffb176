"""The DCGM host engine: packages by CUDA major, its service, its address, what was there before."""

from __future__ import annotations

from typing import Any

import pytest

from gpustate import Disruption, NodeFacts, ops
from gpustate.core.policy import build
from gpustate.errors import PolicyError
from gpustate.formats.dcgm import packages, services
from gpustate.states.dcgm import DROP_IN_PATH, UNIT, DcgmRunning
from gpustate.testing import FakeNode, check_contract, converge

VERSIONS = ("1:4.6.0-1", "1:4.5.3-1")


def version_file(driver: str) -> dict[str, str]:
    line = (
        f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {driver}  Release Build  (x)\n"
    )
    return {"/proc/driver/nvidia/version": line}


def node(driver: str = "580.65.06", *, foreign: bool = False, **more: Any) -> FakeNode:
    """A node whose host engine, once it runs, has the arguments of its drop-in."""
    offered = {name: [(one, "vendor") for one in VERSIONS] for name in packages.all_names()}

    def look(fake: FakeNode) -> tuple[int, str]:
        if fake.unit_states.get(UNIT) != "active":
            return 0, "tcp=0: 0100007F:15B3 00000000:0000 0A x\n" if foreign else ""
        text = fake.files.get(DROP_IN_PATH, "")
        command = text.rpartition("ExecStart=")[2].strip() if "ExecStart" in text else ""
        words = command or f"{services.ENGINE} -n --service-account nvidia-dcgm"
        address = "00000000" if "-b ALL" in words else "0100007F"
        port = f"{int(words.rpartition('-p ')[2]):04X}" if "-p " in words else "15B3"
        return 0, f"words={words} \ntcp=0: {address}:{port} 00000000:0000 0A x\n"

    settings: dict[str, Any] = {
        "files": version_file(driver) if driver else {},
        "candidates": offered,
        "shell": {"MainPID": look},
    }
    return FakeNode(**{**settings, **more})


@pytest.mark.parametrize(("driver", "major"), [("580.65.06", 13), ("570.211.01", 12)])
def test_the_packages_go_by_the_drivers_cuda_major(driver: str, major: int) -> None:
    one = node(driver)
    first, second = converge(DcgmRunning(), one)
    assert one.installed == dict.fromkeys(packages.names(major, closed=True), VERSIONS[0])
    assert one.held == set(one.installed)
    assert one.unit_states[UNIT] == "active"
    assert UNIT in one.enabled
    assert first.disruption is Disruption.NONE
    assert not second


def test_the_closed_packages_can_be_left_out() -> None:
    one = node()
    *_, last = converge(DcgmRunning(proprietary=False, hold=False), one)
    assert set(one.installed) == set(packages.names(13, closed=False))
    assert one.held == set()
    assert not last


def test_a_driver_of_another_major_brings_other_packages_and_the_old_ones_go() -> None:
    there = dict.fromkeys(packages.names(12, closed=True), VERSIONS[1])
    one = node(packages=there, units={UNIT: "active"})
    first, second = converge(DcgmRunning(), one)
    assert set(one.installed) == set(packages.names(13, closed=True))
    assert first.disruption is Disruption.RESTART
    assert not second
    step = next(step for step in one.done if isinstance(step, ops.AptInstall))
    assert set(step.remove) == {f"{packages.PREFIX}-cuda12", f"{packages.CLOSED}-cuda12"}


def test_what_else_is_there_of_dcgm_moves_along() -> None:
    more = f"{packages.PREFIX}-dev"
    there = {**dict.fromkeys(packages.names(13, closed=True), VERSIONS[1]), more: VERSIONS[1]}
    one = node(packages=there)
    *_, last = converge(DcgmRunning(version="4.6.0"), one)
    assert one.installed[more] == VERSIONS[0]
    assert not last


def test_the_package_of_dcgm_3_is_named_and_replaced_or_refused() -> None:
    one = node(packages={packages.OLD: "1:3.3.9"}, units={UNIT: "active"})
    first, second = converge(DcgmRunning(), one)
    assert "old" in first.fields
    assert packages.OLD not in one.installed
    assert not second
    refused = DcgmRunning(old="refuse")
    reason = refused.refuse(refused.probe(node(packages={packages.OLD: "1:3.3.9"})))
    assert reason is not None
    assert "datacenter-gpu-manager 1:3.3.9" in reason


def test_another_address_costs_a_restart_and_is_what_it_is_bound_to() -> None:
    one = node()
    list(converge(DcgmRunning(), one))
    first, second = converge(DcgmRunning(address="ALL", port=5566), one)
    assert first.fields == {"drop_in", "bound", "words"}
    assert first.disruption is Disruption.RESTART
    assert not second


def test_a_program_that_is_gone_comes_back_with_its_package() -> None:
    one = node()
    list(converge(DcgmRunning(), one))
    damaged = [f"{packages.CORE}: /usr/bin/nv-hostengine is missing"]
    one.answers["PackageFiles"] = lambda _: tuple(damaged)
    state = DcgmRunning()
    observed = state.probe(one)
    plan = state.plan(observed)
    assert plan.fields == {"damaged"}
    assert plan.disruption is Disruption.RESTART
    first, last = state.apply(observed, plan)
    assert isinstance(first, ops.AptInstall)
    assert first.reinstall
    assert [name for name, _ in first.packages] == [packages.CORE]
    assert isinstance(last, ops.RestartUnit)


@pytest.mark.parametrize(
    ("made", "state", "said"),
    [
        (node(driver=""), DcgmRunning(), "no driver is loaded"),
        (node(candidates={}), DcgmRunning(), f"no repository offers {packages.CORE}"),
        (node(), DcgmRunning(version="4.9.9"), f"{packages.CORE} 4.9.9; there is 1:"),
        (node(foreign=True), DcgmRunning(), "something else listens on port 5555 (127.0.0.1)"),
        (node(facts=NodeFacts(systemd=False)), DcgmRunning(), "no systemd"),
    ],
)
def test_what_cannot_be_is_refused_with_the_next_move(
    made: FakeNode, state: DcgmRunning, said: str
) -> None:
    observed = state.probe(made)
    reason = state.refuse(observed) or state.plan(observed).refusal
    assert reason is not None
    assert said in reason


@pytest.mark.parametrize(
    "parameters",
    [{"address": "localhost"}, {"port": 0}, {"version": "newest"}, {"old": "keep"}, {"x": 1}],
)
def test_what_makes_no_sense_is_refused_before_any_node(parameters: dict[str, object]) -> None:
    with pytest.raises(PolicyError):
        build(DcgmRunning, parameters)


def test_it_keeps_the_contract() -> None:
    check_contract(DcgmRunning(), node())


def test_an_address_that_is_none_is_an_error_of_the_policy() -> None:
    with pytest.raises(PolicyError, match="is no IPv4 address"):
        build(DcgmRunning, {"address": "300.1.1.1"})


def test_an_address_of_another_host_is_refused_while_the_engine_still_runs() -> None:
    state = DcgmRunning(address="192.0.2.7")
    reason = state.refuse(state.probe(node(shell={"MainPID": lambda _: (0, "elsewhere=1\n")})))
    assert reason is not None
    assert "192.0.2.7 is not an address of this node" in reason


def test_a_drop_in_with_the_last_word_is_refused_unless_it_says_the_same() -> None:
    theirs = f"/etc/systemd/system/{UNIT}.d/site.conf"
    same = f"[Service]\nExecStart=\nExecStart={services.ENGINE} -n --service-account nvidia-dcgm\n"
    for text, refused in ((same, False), ("[Service]\nExecStart=\nExecStart=/bin/false\n", True)):
        one = node(files={**version_file("580.65.06"), theirs: text})
        reason = DcgmRunning().refuse(DcgmRunning().probe(one)) or ""
        assert (f"{theirs} sets the command of {UNIT} to '/bin/false'" in reason) is refused
