"""``gpustate node fabric``, with nodes in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gpustate import NodeFacts, PciGpu
from gpustate.cli import common
from gpustate.cli.main import cli
from gpustate.core.inventory import Connection, InventoryNode
from gpustate.engine import fleet
from gpustate.errors import ConnectionFailed
from gpustate.formats.nvml_report import Gpu, NvmlFacts
from gpustate.testing import FakeNode

CLUSTER = "5e1b0a8e-0000-4000-8000-00000000cafe"


def tray(
    name: str, *addresses: str, state: str = "completed", imex: str | None = "active"
) -> FakeNode:
    done = state == "completed"
    gpu = Gpu(
        0,
        fabric_state=state,
        fabric_status="success" if done else "",
        fabric_cluster=CLUSTER if done else "",
        fabric_clique=7 if done else None,
    )
    return FakeNode(
        name,
        facts=NodeFacts(pci=(PciGpu("0000:10:00.0", "2941", "030200", None),)),
        units={} if imex is None else {"nvidia-imex.service": imex},
        answers={"BridgesQuery": 0, "GpuFacts": NvmlFacts(driver_loaded=True, gpus=(gpu,))},
        shell={"nvidia-imex-ctl": (0, "\n".join(f"address={one}" for one in (*addresses, name)))},
    )


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    def go(nodes: list[FakeNode | str], *words: str) -> Result:
        rows = [
            InventoryNode(
                one if isinstance(one, str) else one.name,
                connection=Connection(host=f"10.0.0.{number + 1}"),
            )
            for number, one in enumerate(nodes)
        ]

        def question(_nodes: Any, _forks: int, query: Any) -> Iterator[Any]:
            for row, one in zip(rows, nodes, strict=True):
                if isinstance(one, str):
                    yield row, None, ConnectionFailed("does not answer", place=one)
                else:
                    yield row, query(one), None

        monkeypatch.setattr(fleet, "question", question)
        monkeypatch.setattr(common, "load_inventory", lambda _: SimpleNamespace(nodes=rows))
        return CliRunner().invoke(cli, ["node", "fabric", "-i", "x", *words])

    return go


def test_the_list_of_a_domain_is_sorted_by_address_whatever_the_inventory(
    run: Callable[..., Result],
) -> None:
    nodes = [tray("t1", "10.0.0.10"), tray("t2", "10.0.0.9", "192.168.1.2")]
    done = run(nodes, "-o", "domains")
    assert done.stdout == f"imex:\n  domains:\n    {CLUSTER}.7: [10.0.0.9, 10.0.0.10]\n"
    assert done.exit_code == 0


def test_the_network_that_is_asked_for_gives_the_addresses(run: Callable[..., Result]) -> None:
    nodes = [tray("t1", "10.0.0.1", "192.168.1.1"), tray("t2", "10.0.0.2")]
    done = run(nodes, "-o", "domains", "--network", "192.168.0.0/16")
    assert f"{CLUSTER}.7: [192.168.1.1]" in done.stdout
    assert "t2: no address in 192.168.0.0/16" in done.stderr
    assert done.exit_code == 1


def test_nodes_that_are_in_no_list_are_named(run: Callable[..., Result]) -> None:
    done = run([tray("t1", "10.0.0.1", state="in progress"), "t2"], "-o", "domains")
    assert done.stdout == "imex:\n  domains: {}\n"
    assert "t1: fabric in progress on 1 of 1 GPUs, in no domain yet" in done.stderr
    assert "t2" in done.stderr
    assert done.exit_code != 0


def test_a_fabric_that_is_needed_and_not_complete_is_a_failed_validation(
    run: Callable[..., Result],
) -> None:
    assert run([tray("t1", "10.0.0.1", state="in progress")]).exit_code == 3
    done = run([tray("t1", "10.0.0.1")])
    assert done.exit_code == 0
    assert "multi-node  needs nvidia-imex (active)" in done.stdout
    assert f"NVLink domain {CLUSTER}.7" in done.stdout


@pytest.mark.parametrize(("imex", "told"), [("failed", "failed"), (None, "not installed")])
def test_a_service_that_is_needed_and_does_not_run_is_told_and_keeps_nobody_from_making_lists(
    run: Callable[..., Result], imex: str | None, told: str
) -> None:
    done = run([tray("t1", "10.0.0.1", imex=imex)])
    assert (done.exit_code, f"needs nvidia-imex ({told})" in done.stdout) == (3, True)
    assert run([tray("t1", "10.0.0.1", imex=imex)], "-o", "domains").exit_code == 0


@pytest.mark.parametrize(
    "words", [("--network", "10.0.0.0/8"), ("-o", "domains", "--network", "10.0.0.0/99")]
)
def test_a_network_that_is_none_is_refused(
    run: Callable[..., Result], words: tuple[str, ...]
) -> None:
    done = run([tray("t1", "10.0.0.1")], *words)
    assert done.exit_code != 0
    assert "--network" in str(done.exception)
