"""CUDA toolkits beside each other, in memory."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import ValidationError

from gpustate.states.cuda_toolkit import LINK_RECORD, CudaToolkitsInstalled
from gpustate.testing import FakeNode, converge

STEPLESS = {"cuda-toolkit": "its default names no version"}

OFFERED = {
    "cuda-toolkit-12-9": [("12.9.1-1", "x"), ("12.9.0-1", "x")],
    "cuda-toolkit-13-0": [("13.0.2-1", "x")],
}
RECORD = "/var/lib/gpustate/brought/cuda-toolkit"


class Cuda(FakeNode):
    """A node whose packages move /usr/local/cuda to the highest version while it is automatic."""

    def __init__(self, installed: dict[str, str] | None = None, **more: Any) -> None:
        self.auto, self.value = True, ""
        self.leads = "/etc/alternatives/cuda"
        self.broken: set[str] = set()
        super().__init__(
            candidates=OFFERED,
            packages=installed,
            shell={"update-alternatives --query": lambda _: (0, self._said())},
            runs={
                "record the target of": lambda _: self._note(),
                "verify the target of /usr/local/cuda": lambda _: self._keep(),
                "install cuda": lambda _: self._install(),
                "restore missing files": lambda _: self.broken.clear(),
                "remove": lambda _: self._remove(),
                "restore the original /usr/local/cuda": lambda _: self._back(),
            },
            **more,
        )
        self._move()

    def versions(self) -> list[str]:
        names = (re.fullmatch(r"cuda-toolkit-(\d+)-(\d+)", name) for name in self.installed)
        return sorted(f"{m[1]}.{m[2]}" for m in names if m)

    def _move(self) -> None:
        there = [f"/usr/local/cuda-{v}" for v in self.versions()]
        if self.auto or self.value not in there:
            self.value = there[-1] if there else ""

    def _said(self) -> str:
        lines = [f"nvcc={v} {'' if v in self.broken else v + '.86'}" for v in self.versions()]
        if self.value:
            status = "auto" if self.auto else "manual"
            lines += ["Link: /usr/local/cuda", f"Status: {status}", f"Value: {self.value}"]
            lines += [f"Alternative: /usr/local/cuda-{v}" for v in self.versions()]
            lines += [f"leads={self.leads}"] if self.leads else []
        return "\n".join(lines) + "\n"

    def _note(self) -> None:
        status = "auto" if self.auto else "manual"
        self.files.setdefault(LINK_RECORD, f"{status} {self.value}\n" if self.value else "none\n")

    def _install(self) -> None:
        step = self.done[-1].label
        for name, version in re.findall(r"(cuda-toolkit-\S+?)=([\w.-]+)", step):
            if name not in self.installed:
                self.files[RECORD] = self.files.get(RECORD, "") + f"{name}\n"
            self.installed[name] = version
        self._move()

    def _keep(self) -> None:
        if self.wanted:
            self.leads = "/etc/alternatives/cuda"
            self.auto, self.value = False, f"/usr/local/cuda-{self.wanted}"
            return
        words = self.files[LINK_RECORD].split()
        if len(words) == 2 and words[1] != self.value:
            self.auto, self.value = False, words[1]

    wanted = ""

    def _remove(self) -> None:
        for name in self.files.pop(RECORD, "").split():
            self.installed.pop(name, None)
        self._move()

    def _back(self) -> None:
        words = self.files.pop(LINK_RECORD).split()
        self.auto = words[0] != "manual"
        self._move()


@pytest.mark.parametrize("leads", ["", "/usr/local/cuda-12.9", "cuda-12.9"])
def test_a_link_that_is_gone_or_was_laid_by_hand_is_put_back(leads: str) -> None:
    node = Cuda({"cuda-toolkit-13-0": "13.0.1-1", "cuda-toolkit-12-9": "12.9.1-1"})
    state = CudaToolkitsInstalled(versions=("13.0",), default="13.0")
    node.wanted = "13.0"
    list(converge(state, node))
    node.leads = leads
    first, second = converge(state, node)
    assert first.fields == {"link"}
    assert not second


def test_a_folder_in_place_of_the_link_is_refused_although_there_are_alternatives() -> None:
    node = Cuda({"cuda-toolkit-13-0": "13.0.1-1"})
    node.leads = "."
    state = CudaToolkitsInstalled(versions=("13.0",), default="13.0")
    assert "is a folder that no package" in str(state.refuse(state.probe(node)))


def test_a_link_that_somebody_moved_goes_back() -> None:
    node = Cuda({"cuda-toolkit-12-9": "12.9.1-1"})
    state = CudaToolkitsInstalled(versions=("13.0",))
    list(converge(state, node))
    node.value = "/usr/local/cuda-13.0"
    first, second = converge(state, node)
    assert first.fields == {"link"}
    assert node.value == "/usr/local/cuda-12.9"
    assert not second


def test_removal_takes_what_came_and_gives_the_link_back_its_mode() -> None:
    node = Cuda({"cuda-toolkit-12-9": "12.9.1-1"})
    list(converge(CudaToolkitsInstalled(versions=("12.9", "13.0")), node))
    *_, last = converge(CudaToolkitsInstalled(versions=("12.9", "13.0"), ensure="absent"), node)
    assert node.versions() == ["12.9"]
    assert (node.auto, node.value) == (True, "/usr/local/cuda-12.9")
    assert node.files == {}
    assert not last


def test_a_compiler_that_does_not_answer_comes_back() -> None:
    node = Cuda()
    state = CudaToolkitsInstalled(versions=("12.9",))
    list(converge(state, node))
    node.broken.add("12.9")
    first, second = converge(state, node)
    assert first.fields == {"nvcc"}
    assert not second


REFUSALS = [
    ({"versions": ("11.8",)}, {}, "cuda-toolkit-11-8"),
    ({"versions": ("12.9",), "releases": {"12.9": "12.9.9-1"}}, {}, "12.9.1-1"),
    ({"default": "13.0"}, {}, "name it in versions"),
]


@pytest.mark.parametrize(("parameters", "world", "word"), REFUSALS)
def test_what_is_not_to_be_had_is_refused(
    parameters: dict[str, Any], world: dict[str, Any], word: str
) -> None:
    state = CudaToolkitsInstalled(**parameters)
    observed = state.probe(Cuda(**world))
    reason = state.refuse(observed) or state.plan(observed).refusal
    assert reason is not None
    assert word in reason


def test_a_link_that_no_package_made_is_not_switched() -> None:
    node = FakeNode(
        candidates=OFFERED, shell={"update-alternatives --query": (0, "leads=/opt/cuda\n")}
    )
    state = CudaToolkitsInstalled(versions=("12.9",), default="12.9")
    assert "/opt/cuda" in (state.refuse(state.probe(node)) or "")


@pytest.mark.parametrize(
    "parameters",
    [
        {"versions": ("12",)},
        {"versions": ("12.9; id",)},
        {"versions": (12.9,)},
        {"default": "latest"},
        {"releases": {"12.9": "1"}},
        {"versions": ("12.9",), "releases": {"12.9": "$(id)"}},
    ],
)
def test_wrong_parameters_are_errors_before_any_node_is_reached(parameters: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        CudaToolkitsInstalled(**parameters)
