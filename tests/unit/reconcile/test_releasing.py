"""Releasing an object writes only what is left to write, for an interrupted release is continued by the next one."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from gpustate.documents import Json
from gpustate.manifests.kinds import Kind
from gpustate.manifests.ownership import OWNER
from gpustate.reconcile.releasing import Handover, Releaser

OURS = {"manager": "gpustate", "operation": "Apply"}
THEIRS = {"manager": "gpu-operator", "operation": "Update"}


class Patched:
    """Objects that only count patches.

    Args:
        patches: by path, in their order.
    """

    server = "https://127.0.0.1:6443"

    def __init__(self) -> None:
        self.patches: list[list[str]] = []

    def list(self, kind: Kind, namespace: str, names: Collection[str] = ()) -> list[Json]:
        return []

    def patch(self, item: Json, operations: list[Json]) -> Json:
        self.patches.append([one["path"] for one in operations])
        return item


@pytest.mark.parametrize(
    ("labels", "managers", "wanted"),
    [
        (
            OWNER,
            [OURS, THEIRS],
            [
                [
                    "/metadata/labels/app.kubernetes.io~1managed-by",
                    "/metadata/labels/gpustate.io~1owner",
                ],
                ["/metadata/managedFields"],
            ],
        ),
        ({}, [OURS, THEIRS], [["/metadata/managedFields"]]),
        ({}, [THEIRS], []),
    ],
)
def test_what_an_earlier_run_has_written_is_not_written_again(
    labels: Json, managers: list[Json], wanted: list[list[str]]
) -> None:
    item: Json = {
        "kind": "RuntimeClass",
        "metadata": {"name": "nvidia", "labels": dict(labels), "managedFields": managers},
    }
    objects = Patched()
    Releaser(objects).release(Handover("gpu-operator", (item,), None), start=False)  # type: ignore[arg-type]
    assert objects.patches == wanted
