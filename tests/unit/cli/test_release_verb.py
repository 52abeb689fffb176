"""``gpustate release`` asks the namespace of the installed Operator."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import NoReturn

import pytest
from commandline import Cli

from gpustate.cli import adopt
from gpustate.errors import ClusterError


@pytest.mark.parametrize(
    ("words", "namespace"), [((), "gpu-operator"), (("--namespace", "gpus"), "gpus")]
)
def test_the_namespace_is_the_operators(
    words: tuple[str, ...], namespace: str, gpustate: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan_release(_: object, asked: str) -> NoReturn:
        raise ClusterError(f"asked {asked}")

    monkeypatch.setattr(adopt, "connected", lambda _: nullcontext(SimpleNamespace(server="s")))
    monkeypatch.setattr(adopt, "plan_release", plan_release)
    done = gpustate("release", "--kubeconfig", "k", "--dry-run", *words)
    assert (done.status, done.err) == (1, f"gpustate: asked {namespace}\n")


def test_an_empty_namespace_is_an_error(gpustate: Cli) -> None:
    done = gpustate("release", "--kubeconfig", "k", "--dry-run", "--namespace", "")
    assert "--namespace is empty; give it a value, or omit it" in done.err
