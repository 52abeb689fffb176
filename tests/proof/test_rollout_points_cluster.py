"""A rollout over two nodes of a real cluster is disturbed at writes to its API server and at journal entries.

The points are those of ``test_rollout_points.py``, enumerated from a run over the lab's cluster: killed before and
after each write, the answer lost, the server away for a moment and for long, another client writing just before.
After any of them, one more run ends with both nodes done, in service and offering GPUs, or names who holds a node.
A point takes about a minute, so a run of all tests takes one of each kind.

``GPUSTATE_POINT='killed after @ hold gpu1 1'`` carries out one point alone; ``'*hold*'`` all that match.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pluginpods
import pytest
import shares
from commands import gpustate
from labbed import GPUS, LabBed
from labkubernetes import create, get, wait_for
from rolloutpoints import ENTRY, Point, carry_out, failures, record

from gpustate_lab.api import Lab
from gpustate_lab.spec import LabSpec

pytestmark = [pytest.mark.proof, pytest.mark.node]

POLICY = Path(__file__).parents[2] / "docs/examples/clusterpolicy.yaml"
POINT = os.environ.get("GPUSTATE_POINT", "")
FAST = "nodeStatusUpdateFrequency: 1s\\nnodeStatusReportFrequency: 30s\\n"
RUNTIME_CLASS = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "nvidia"},
    "handler": "nvidia",
}


def offers(lab: Lab, name: str) -> bool:
    found = get(lab, "node", name)["status"].get("allocatable", {})
    return int(found.get("nvidia.com/gpu", "0")) == GPUS["nvidia.com/gpu"]


@pytest.fixture(scope="module")
def bed(
    lab_programs: None,
    lab_factory: Callable[[LabSpec], Lab],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[LabBed]:
    """Two nodes on which the plugin's pods offer eight GPUs."""
    lab = lab_factory(LabSpec(nodes=2, images=("debian13",), kubernetes="1.36"))
    gpustate("apply", POLICY, "-i", lab.inventory, "--yes", code=0)
    create(lab, RUNTIME_CLASS)
    pluginpods.deploy(lab)
    for node in lab.nodes:
        # That a node offers GPUs again is in its status ten seconds later otherwise.
        node.run(f"printf '{FAST}' >>/var/lib/kubelet/config.yaml; systemctl restart kubelet")
    for node in lab.nodes:
        wait_for(lambda name=node.name: offers(lab, name), f"GPUs of {node.name}", 180)
    made = LabBed(tmp_path_factory.mktemp("bed"), lab)
    yield made
    made.close()


@pytest.fixture(scope="module")
def points(bed: LabBed) -> list[Point]:
    """Every point of an undisturbed run; there is no token that could expire."""
    found, ran = record(bed)
    assert ran.code == 0, ran.text
    return [point for point in found if point.what != "token expired"]


def chosen(points: list[Point]) -> list[Point]:
    """One of each kind, or those asked for."""
    if POINT:
        return [point for point in points if fnmatchcase(str(point), POINT)]
    kinds = len({point.what for point in points})
    return shares.share(
        "points on a real cluster", points, most=kinds, kind=lambda one: one.what, always=True
    )


def test_the_run_after_a_disturbed_one_ends_with_both_nodes_done_or_held_with_a_reason(
    bed: LabBed, points: list[Point]
) -> None:
    assert bed.wrong() == []
    names = {point.where.rpartition(" ")[0] for point in points if point.what != ENTRY}
    for node in ("gpu1", "gpu2"):
        assert names >= {f"hold {node}", f"evict training-{node}", f"note changing {node}", f"release {node}"}  # fmt: skip
    assert f"delete {pluginpods.NAME}" in names
    assert len(points) >= 150
    verdicts = []
    for point in chosen(points):
        verdicts.append(carry_out(bed, point))
        print(f"{point}: {'; '.join(verdicts[-1].wrong) or 'ok'}", flush=True)
    assert not any(verdict.wrong for verdict in verdicts), failures(verdicts)
    missed = [str(one.point) for one in verdicts if not one.fired]
    assert [point for point in missed if "renew" not in point and "publish" not in point] == []
