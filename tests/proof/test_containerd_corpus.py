"""75 configurations of containerd as images and installers ship them, on containerd 1.6, 1.7 and 2.1 to 2.4:
only what was asked for differs in what containerd makes of its files, and every byte comes back.

Judged by ``containerd config dump`` of real programs; nothing is started. What a release cannot load and what is
refused is in ``tests/support/containerdcorpus.py``, so that nothing is left out silently.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import containerds
import pytest
from containerdcorpus import CORPUS, DISABLED, NAMES, cannot_load, lay_out, refusal
from containerds import dump, read, snapshot, write
from shares import share

from gpustate.errors import RefusedError
from gpustate.formats.containerd import (
    Handler,
    deciding_runtime,
    disabled_cri,
    effective,
    effective_change,
    handler_problems,
    plan_edit,
    plan_removal,
)
from gpustate.formats.toml_scan import parse

pytestmark = pytest.mark.node

#: A repository, or a publisher whose configuration it is.
_SOURCE = re.compile(
    r"# shape of: (?:[\w.-]+/[\w.-]+|kubernetes\.io|containerd\.io package|NVIDIA (?:GPU Operator|container toolkit))"
)


@dataclass(frozen=True)
class Case:
    """A configuration on a release, and whether the handler is to be the default as well."""

    name: str
    release: str
    default: bool

    def __str__(self) -> str:
        return f"{self.name}-{self.release}{'-default' if self.default else ''}"


POINTS = [
    Case(name, release, default)
    for name in NAMES
    for release in containerds.releases()
    for default in (False, True)
]


@pytest.mark.parametrize("case", share("containerd corpus", POINTS, most=12), ids=str)
def test_only_what_was_asked_for_differs_and_every_byte_comes_back(
    lab_machine: None, case: Case, tmp_path: Path
) -> None:
    program = containerds.program(case.release)
    version = f"{case.release}.0"
    # Without CDI where it is the default too: what is not asked for must not change.
    handler = Handler(default=case.default, enable_cdi=None if case.default else True)
    etc = tmp_path / "containerd"
    lay_out(case.name, etc, str(etc))
    old, files = snapshot(etc), read(etc)
    ran = dump(program, files)
    assert (ran.returncode != 0) == cannot_load(case.name, case.release), ran.stderr
    if ran.returncode:
        return
    before = ran.stdout
    assert bool(disabled_cri(parse(before, case.name))) == (case.name in DISABLED)
    if case.name in DISABLED:
        return
    expected = refusal(case.name, case.release, case.default)
    if expected:
        with pytest.raises(RefusedError, match=expected):
            plan_edit(files, handler, containerd_version=version, dump_text=before)
        return

    write(plan_edit(files, handler, containerd_version=version, dump_text=before))

    there = read(etc)
    after = dump(program, there).stdout
    # containerd 1.x has no runc where files name other runtimes and not it; its CRI plugin did not load.
    grown = {"runc"} - effective(before).runtimes.keys()
    foreign = effective_change(before, after, handler).foreign
    assert [
        line for line in foreign if not any(f".runtimes.{name}" in line for name in grown)
    ] == []
    now = effective(after)
    assert now.default_runtime in now.runtimes, "the CRI plugin would not load"
    model = deciding_runtime(there, handler, containerd_version=version, dump_text=after)
    lacks = handler_problems(now, handler, low_level=model)
    assert [one for one in lacks if case.release != "1.6" or "cdi" not in one] == []
    was = effective(before).runtimes.get(handler.name, {}).get("options", {})
    if was.get("SystemdCgroup"):
        assert now.runtimes[handler.name]["options"]["SystemdCgroup"] is True
    assert plan_edit(there, handler, containerd_version=version, dump_text=after).files == {}
    write(plan_removal(there, handler))
    assert snapshot(etc) == old


def test_the_corpus_is_as_large_as_it_says_and_names_its_sources() -> None:
    assert len(NAMES) >= 75
    for name in NAMES:
        first, _, rest = (CORPUS / f"{name}.toml").read_text().partition("\n")
        assert first.startswith("# shape of: ")
        assert "general knowledge" not in first
        assert rest
    sourced = [name for name in NAMES if _SOURCE.match((CORPUS / f"{name}.toml").read_text())]
    assert len(sourced) >= 60
