"""Which machine needs what: the table of docs/fabric.md, row by row, and the packages that go with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpustate.formats import fabric
from gpustate.formats.fabric import GpuFabric, Sight, Topology
from gpustate.formats.nvml_report import Gpu, NvmlFacts

DONE = GpuFabric("completed", "success")
BUSY = GpuFabric("in progress")
CLUSTER = "5e1b0a8e-0000-4000-8000-00000000cafe"
RACK = GpuFabric("completed", "success", CLUSTER, 32766)
QUIET = GpuFabric()
A100, H100, H100_PCIE, H100_NVL = "20b2", "2330", "2331", "2321"
H200, B200, B300, GB200, GB300, L40S = "2335", "2901", "3182", "2941", "31c2", "26b9"

#: Name of the row, what is seen, what it is.
ROWS: dict[str, tuple[Sight, Topology]] = {
    "DGX A100": (Sight((A100,) * 8, 6, 0, True, (QUIET,) * 8), Topology.NVSWITCH),
    "HGX H100": (Sight((H100,) * 8, 4, 0, True, (DONE,) * 8), Topology.NVSWITCH),
    "HGX H200": (Sight((H200,) * 8, 4, 0, True, (BUSY,) * 8), Topology.NVSWITCH),
    "HGX H100 without a driver": (Sight((H100,) * 8, 4), Topology.NVSWITCH),
    "HGX B200": (Sight((B200,) * 8, 0, 4, True, (BUSY,) * 8), Topology.NVLINK5),
    "HGX B300": (Sight((B300,) * 8, 0, 4, True, (DONE,) * 8), Topology.NVLINK5),
    "HGX B200 without a driver": (Sight((B200,) * 8, 0, 4), Topology.NVLINK5),
    "service VM of a B200 board": (Sight((), 0, 4), Topology.NVLINK5),
    "service VM of an H100 board": (Sight((), 4), Topology.NVSWITCH),
    "GB200 NVL72 tray": (Sight((GB200,) * 4, 0, 0, True, (RACK,) * 4), Topology.MULTI_NODE),
    "GB300 NVL72 tray": (Sight((GB300,) * 4, 0, 0, True, (RACK,) * 4), Topology.MULTI_NODE),
    "GB200 tray, rack not up": (Sight((GB200,) * 4, 0, 0, True, (BUSY,) * 4), Topology.MULTI_NODE),
    "GB200 without a driver": (Sight((GB200,) * 4), Topology.UNKNOWN),
    "GB200 NVL4": (Sight((GB200,) * 4, 0, 0, True, (QUIET,) * 4), Topology.NONE),
    "GB200 tray with a bridge card": (
        Sight((GB200,) * 4, 0, 2, True, (RACK,) * 4),
        Topology.MULTI_NODE,
    ),
    "H100 PCIe cards": (Sight((H100_PCIE,) * 8, 0, 0, True, (QUIET,) * 8), Topology.NONE),
    "H100 NVL pairs": (Sight((H100_NVL,) * 4, 0, 0, True, (QUIET,) * 4), Topology.NONE),
    "L40S cards": (Sight((L40S,) * 4, 0, 0, True, (QUIET,) * 4), Topology.NONE),
    "A100 cards without a driver": (Sight((A100,) * 4), Topology.NONE),
    "one H100 SXM in a VM": (Sight((H100,), 0, 0, True, (DONE,)), Topology.ELSEWHERE),
    "eight B200 in a VM": (Sight((B200,) * 8, 0, 0, True, (BUSY,) * 8), Topology.ELSEWHERE),
    "no GPU": (Sight(), Topology.NONE),
}
WANTED = {
    Topology.NONE: set[str](),
    Topology.NVSWITCH: {"nvidia-fabricmanager"},
    Topology.NVLINK5: {"nvidia-fabricmanager", "nvlsm"},
    Topology.MULTI_NODE: {"nvidia-imex"},
    Topology.ELSEWHERE: set[str](),
    Topology.UNKNOWN: set[str](),
}


@pytest.mark.parametrize("row", ROWS)
def test_the_table_decides(row: str) -> None:
    sight, topology = ROWS[row]
    assert sight.topology is topology
    assert topology.packages == WANTED[topology]


def test_the_document_has_every_row_with_what_it_is() -> None:
    text = (Path(__file__).parents[3] / "docs/fabric.md").read_text("utf-8")
    cells = [[c.strip() for c in line.split("|")[1:-1]] for line in text.splitlines()]
    rows = {row[0]: row[-2] for row in cells if len(row) == 4}
    assert {name: rows.get(name) for name in ROWS} == {n: t.value for n, (_, t) in ROWS.items()}


def test_a_cluster_makes_any_gpu_a_part_of_a_rack() -> None:
    assert Sight(("ffff",), 0, 0, True, (RACK,)).topology is Topology.MULTI_NODE


def test_a_gpu_that_does_not_answer_says_nothing_of_the_fabric() -> None:
    observed = NvmlFacts(
        gpus=(Gpu(0, error=15), Gpu(1, fabric_state="completed", fabric_status="success"))
    )
    assert fabric.fabrics(observed) == (DONE,)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ((DONE, DONE), "complete"),
        ((QUIET, QUIET), ""),
        ((), ""),
        ((DONE, QUIET), "complete"),  # a card beside the board
        ((BUSY, DONE), "in progress on 1 of 2 GPUs"),
        (
            (BUSY, replace(DONE, status="unknown error"), GpuFabric("not started")),
            "completed with unknown error on 1 of 3 GPUs, in progress on 1 of 3 GPUs, not started on 1 of 3 GPUs",
        ),
        ((GpuFabric("completed"),), "completed with no status on 1 of 1 GPUs"),
    ],
)
def test_only_completed_with_success_is_complete(parts: tuple[GpuFabric, ...], said: str) -> None:
    assert fabric.summary(parts) == said


@pytest.mark.parametrize(
    ("parts", "domain"),
    [
        ((RACK, RACK), f"{CLUSTER}.32766"),
        ((RACK, replace(RACK, clique=1)), ""),
        ((RACK, BUSY), ""),
        ((DONE,), ""),
        ((RACK, QUIET), f"{CLUSTER}.32766"),
        ((replace(RACK, cluster=CLUSTER.upper()),), f"{CLUSTER}.32766"),
    ],
)
def test_a_domain_is_one_only_when_all_gpus_agree(
    parts: tuple[GpuFabric, ...], domain: str
) -> None:
    assert fabric.domain(parts) == domain


VENDOR_580 = ("nvidia-fabricmanager", "580.178.04-1")
VENDOR_580_UBUNTU = ("nvidia-fabricmanager", "580.178.04-1ubuntu1")
VENDOR_570 = ("nvidia-fabricmanager-570", "570.211.01-1")
ARCHIVE_580 = ("nvidia-fabricmanager-580", "580.178.04-0ubuntu0.24.04.1")
ARCHIVE_570 = ("nvidia-fabricmanager-570", "570.211.01-0ubuntu0.24.04.2")


@pytest.mark.parametrize(
    ("driver", "packages", "chosen"),
    [
        ("580.178.04", {"libcuda1": "580.178.04-1"}, VENDOR_580),
        ("580.178.04", {"libnvidia-compute": "580.178.04-1ubuntu1"}, VENDOR_580_UBUNTU),
        (
            "580.178.04",
            {"libnvidia-compute-580-server": "580.178.04-0ubuntu0.24.04.1"},
            ARCHIVE_580,
        ),
        (
            "580.178.04",
            {"libnvidia-compute-580-server": "580.178.04-0ubuntu0.24.04.9"},
            ARCHIVE_580,
        ),
        ("580.178.04", {}, VENDOR_580),
        ("570.211.01", {"libnvidia-compute-570": "570.211.01-0ubuntu1"}, VENDOR_570),
        (
            "570.211.01",
            {"libnvidia-compute-570-server": "570.211.01-0ubuntu0.24.04.1"},
            ARCHIVE_570,
        ),
        ("580.65.06", {"libcuda1": "580.65.06-1"}, None),
        (None, {}, None),
    ],
)
def test_the_package_comes_from_where_the_driver_is(
    driver: str | None, packages: dict[str, str], chosen: tuple[str, str] | None
) -> None:
    offered = (ARCHIVE_580, ARCHIVE_570, VENDOR_580, VENDOR_580_UBUNTU, VENDOR_570)
    assert fabric.fitting("nvidia-fabricmanager", driver, offered, packages) == chosen
    reverse = tuple(reversed(offered))
    if driver and packages:
        assert fabric.fitting("nvidia-fabricmanager", driver, reverse, packages) == chosen


@pytest.mark.parametrize(
    ("ids", "package", "may"),
    [
        ((), "nvidia-fabricmanager", True),
        ((), "nvlsm", False),
        ((H100,), "nvidia-fabricmanager", True),
        ((H100,), "nvlsm", False),
        ((B200,), "nvlsm", True),
        ((B200,), "nvidia-fabricmanager", True),
        ((GB200,), "nvidia-imex", True),
        ((GB200,), "nvidia-fabricmanager", False),
        ((L40S,), "nvidia-fabricmanager", False),
    ],
)
def test_an_image_gets_what_its_gpus_may_need(
    ids: tuple[str, ...], package: str, may: bool
) -> None:
    assert fabric.may_need(ids, package) is may


@pytest.mark.parametrize(
    ("text", "number"), [("580.65.06", 580), (None, 0), ("", 0), ("x.1", 0), ("1" * 9000, 0)]
)
def test_what_is_no_version_has_no_branch(text: str | None, number: int) -> None:
    assert fabric.branch(text) == number


@pytest.mark.parametrize(
    ("stem", "driver", "name"),
    [
        ("nvidia-fabricmanager", "580.126.09", "nvidia-fabricmanager"),
        ("nvidia-fabricmanager", "570.211.01", "nvidia-fabric-manager"),
        ("nvidia-imex", "580.126.09", "nvidia-imex"),
        ("nvidia-imex", "570.211.01", "nvidia-imex-570"),
    ],
)
def test_fabric_packages_are_found_under_their_rpm_names(stem: str, driver: str, name: str) -> None:
    """Names and releases as in the package lists of Amazon Linux 2023's release notes."""
    offered = (
        ("nvidia-fabric-manager", "570.211.01-1"),
        ("nvidia-fabricmanager", "580.126.09-1"),
        ("nvidia-imex", "580.126.09-1"),
        ("nvidia-imex-570", "570.211.01-1"),
    )
    known = [row for row in offered if row[0] in fabric.names(stem)]
    packages = {"nvidia-driver-cuda": f"3:{driver}-1.amzn2023"}
    assert fabric.fitting(stem, driver, known, packages) == (name, f"{driver}-1")
