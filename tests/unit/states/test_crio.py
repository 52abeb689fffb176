"""CRI-O's state on nodes in memory."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from goingback import rolled_back
from runtimeinputs import CRIO

from gpustate import PolicyError
from gpustate.core.policy import build
from gpustate.core.queries import Answer
from gpustate.probes.cri_status import CriHandler, CriStatus
from gpustate.states.crio import CrioHandlerRegistered
from gpustate.states.crio.query import CrioQuery, Found
from gpustate.testing import FakeNode
from gpustate.testing.fake import converge

STEPLESS = {"crio": "CRI-O is not on these nodes"}

BINARY = "/usr/bin/nvidia-container-runtime"
DROP_IN = "/etc/crio/crio.conf.d/99-zz-gpustate.toml"
PACKAGED = {f"/etc/crio/{name}": text for name, text in CRIO["packaged"].items()}
DUMP = "[crio.runtime]\n# default_runtime = 'crun'\n"

#: What is compared after a rollback: see :mod:`goingback`.
GOES_BACK = {"crio": "the drop-in, among the package's files"}


def found(node: FakeNode, facts: Mapping[str, Any]) -> Found:
    ours = node.files.get(DROP_IN, "")
    base = Found(
        program="/usr/bin/crio",
        version="1.31.2",
        active="active",
        files=dict(node.files),
        originals=dict(node.originals),
        dump=DUMP + ours,
        low_level=("/usr/bin/runc",),
    )
    return replace(base, **facts)


def node_with(files: Mapping[str, str] = PACKAGED, **facts: Any) -> FakeNode:
    labels = ("check ", "snapshot", "validate crio", "discard the snapshot of")
    return FakeNode(
        files=files,
        answers={"CrioQuery": lambda node: found(node, facts)},
        runs=dict.fromkeys(labels, lambda node: None),
    )


def test_a_runtime_that_somebody_renamed_in_the_drop_in_is_replaced() -> None:
    node = node_with()
    state = CrioHandlerRegistered()
    list(converge(state, node))
    node.files[DROP_IN] = node.files[DROP_IN].replace("runtimes.nvidia]", "runtimes.other]")
    renamed = node.files[DROP_IN]
    observed = state.probe(node)
    script = f"{state.daemon(observed).functions}\nothers"
    settings = [
        subprocess.run(["sh", "-ec", script], input=text, text=True, capture_output=True).stdout
        for text in (DUMP + renamed, DUMP, DUMP + "[crio.runtime.runtimes.foreign]\nx = 1\n")
    ]
    assert settings[0] == settings[1] != settings[2]


@pytest.mark.parametrize("damage", ["", "x = [\n", "\ufffd", "[crio.network]\n"])
@pytest.mark.parametrize("ensure", ["present", "absent"])
def test_its_own_file_is_mended_whatever_stands_in_it(damage: str, ensure: str) -> None:
    node = node_with()
    list(converge(CrioHandlerRegistered(), node))
    right = node.files[DROP_IN]
    node.files[DROP_IN] = damage
    state = build(CrioHandlerRegistered, {"ensure": ensure})
    assert state.refuse(state.probe(node)) is None
    *_, last = converge(state, node)
    assert not last
    assert node.files.get(DROP_IN) == (right if ensure == "present" else None)


def test_a_comment_in_its_file_asks_for_nothing() -> None:
    node = node_with()
    list(converge(CrioHandlerRegistered(), node))
    node.files[DROP_IN] += "# mine\n"
    assert not CrioHandlerRegistered().plan(CrioHandlerRegistered().probe(node))


@pytest.mark.parametrize(
    ("files", "facts", "reason"),
    [
        ({"/etc/crio/crio.conf.d/10.conf": "[crio\n"}, {}, "not valid TOML"),
        ({"/etc/crio/crio.conf.d/10.conf": "# \ufffd\n"}, {}, "is not UTF-8"),
        (PACKAGED, {"dump": "", "error": "invalid runtime_path"}, "invalid runtime_path; fix"),
        (PACKAGED, {"main_path": "$X"}, "an absolute path"),
        ({**PACKAGED, DROP_IN: "# mine\n"}, {}, "foreign"),
    ],
)
def test_what_cannot_be_done_safely_is_refused_in_one_line(
    files: dict[str, str], facts: dict[str, Any], reason: str
) -> None:
    state = CrioHandlerRegistered()
    observed = state.probe(node_with(files, **facts))
    refused = state.refuse(observed)
    assert refused is not None
    assert reason in refused
    assert "\n" not in refused
    assert state.verify(observed), "a look that cannot be judged is not a success"


def test_a_node_without_crio_has_nothing_to_do_and_unread_drop_ins_are_named() -> None:
    state = CrioHandlerRegistered()
    plan = state.plan(state.probe(node_with({}, program="", active="")))
    assert not plan
    assert "not installed" in plan.notes[0]
    observed = state.probe(node_with(unread=("/etc/crio/conf.d/99-nvidia.toml",)))
    assert (
        "CRI-O does not read /etc/crio/conf.d/99-nvidia.toml: remove it"
        in state.plan(observed).notes
    )


@pytest.mark.parametrize(
    "parameters",
    [{"handler": "N"}, {"binary": "x"}, {"drop_in_name": "../x"}, {"drop_in_name": ".x"}],
)
def test_parameters_that_make_no_sense_are_errors(parameters: dict[str, Any]) -> None:
    with pytest.raises(PolicyError):
        build(CrioHandlerRegistered, parameters)


def test_the_answer_of_a_node_is_read() -> None:
    out = (
        b"unit=1\nactive=active\nmain=/m\nfolder=/d\nfile=2 /d/a\n#\n\nnewer=/d/a\nmissing=/d/b\n"
        b"low=/usr/bin/runc\nprogram=/c\nversion=1.31.2\ndump=2 \n#\n\n"
    )
    observed = CrioQuery("crio.service").parse(Answer(0, out))
    assert (observed.main_path, observed.folder, observed.files) == ("/m", "/d", {"/d/a": "#\n"})
    assert (observed.newer, observed.originals, observed.low_level) == (
        ("/d/a",),
        {"/d/b": None},
        ("/usr/bin/runc",),
    )


def in_sh(text: str, dump: str) -> tuple[int, str]:
    """Run one of the functions that steps have, on a dump."""
    state = CrioHandlerRegistered()
    observed = state.probe(node_with())
    script = state.daemon(observed).prelude() + text
    done = subprocess.run(["sh", "-ec", script], input=dump, text=True, capture_output=True)
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_the_node_tells_what_is_ours_in_a_dump_from_what_is_not() -> None:
    old = (
        '[crio.runtime]\n# default_runtime = "crun"\npids_limit = 9\n[crio.runtime.runtimes.crun]\n'
    )
    new = old + f'[crio.runtime.runtimes.nvidia]\nruntime_path = "{BINARY}"\nruntime_type = "oci"\n'
    assert in_sh("serves", old)[0] == 1
    assert in_sh("serves", new)[0] == 0
    assert in_sh("others", new) == in_sh("others", old)
    assert in_sh("others", new.replace("= 9", "= 8")) != in_sh("others", old)


RECORDED = Path(__file__).parents[2] / "data" / "crio" / "1.34.0"


def test_in_crios_own_print_only_the_handler_counts_as_changed(tmp_path: Path) -> None:
    state = CrioHandlerRegistered()
    observed = state.probe(node_with({}, dump=(RECORDED / "nothing.txt").read_text()))
    assert observed.problem == ""
    script = (
        f"{state.daemon(observed).functions}\nothers <{RECORDED}/nothing.txt | sort >{tmp_path}/1\n"
        f"others <{RECORDED}/handler.txt | sort >{tmp_path}/2; comm -3 {tmp_path}/1 {tmp_path}/2\n"
        f"wc -l <{tmp_path}/1; serves <{RECORDED}/handler.txt && echo serves; serves <{RECORDED}/nothing.txt || echo none"
    )
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    count, *rest = done.stdout.split()
    assert (int(count) > 150, rest) == (True, ["serves", "none"])


def test_a_running_crio_that_does_not_answer_or_lacks_the_handler_is_seen() -> None:
    node = node_with()
    list(converge(CrioHandlerRegistered(), node))
    state = CrioHandlerRegistered()
    dead = CriStatus("/var/run/crio/crio.sock", "silent", "no answer")
    reason = state.refuse(state.probe(node_with(node.files, cri=dead)))
    assert reason is not None
    assert "CRI-O runs and does not answer: no answer" in reason
    other = CriStatus("/var/run/crio/crio.sock", "ok", handlers=(CriHandler("crun"),))
    observed = state.probe(node_with(node.files, cri=other, served=True))
    assert state.plan(observed).fields == {"read"}


def test_a_rollback_restores_the_bytes() -> None:
    rolled_back(node_with(), None, CrioHandlerRegistered())
    rolled_back(node_with(), CrioHandlerRegistered(), CrioHandlerRegistered(ensure="absent"))
