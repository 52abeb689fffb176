"""``gpustate cluster release`` asks the namespace of the installed Operator."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest
from commandline import Cli

from gpustate.cli import adopt
from gpustate.cluster import objects as cluster_objects
from gpustate.errors import ClusterError


@pytest.mark.parametrize(
    ("words", "namespace"), [((), "gpu-operator"), (("--namespace", "gpus"), "gpus")]
)
def test_the_namespace_is_the_operators(
    words: tuple[str, ...], namespace: str, gpustate: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan_release(_: object, asked: str) -> NoReturn:
        raise ClusterError(f"asked {asked}")

    monkeypatch.setattr(
        cluster_objects, "opened", lambda _: nullcontext(SimpleNamespace(server="s"))
    )
    monkeypatch.setattr(adopt, "plan_release", plan_release)
    done = gpustate("cluster", "release", "--kubeconfig", "k", "--dry-run", *words)
    assert (done.status, done.err) == (1, f"gpustate: asked {namespace}\n")


def test_adopt_names_settings_that_are_not_used(
    project: Path, gpustate: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "p.yaml").write_text(
        "apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nmetadata: {name: p}\nspec:\n"
        "  dcgmExporter: {enabled: true, serviceMonitor: {enabled: true}}\n"
    )
    monkeypatch.setattr(
        cluster_objects, "opened", lambda _: nullcontext(SimpleNamespace(server="s"))
    )
    monkeypatch.setattr(adopt, "plan_adoption", lambda *_, **__: None)
    done = gpustate("cluster", "adopt", "p.yaml", "--kubeconfig", "k", "--dry-run")
    assert "as pods with --set dcgmExporter.enabled=null" in done.err, done


def test_an_empty_namespace_is_an_error(gpustate: Cli) -> None:
    done = gpustate("cluster", "release", "--kubeconfig", "k", "--dry-run", "--namespace", "")
    assert "--namespace is empty; give it a value, or omit it" in done.err
