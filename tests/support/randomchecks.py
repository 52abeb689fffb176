"""What has to hold for every input nobody meant, and the way of a run without a node.

For ``tests/proof/test_random_input.py``: see there.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import randominput as ri
import sandbox
import shares
from hypothesis import settings
from hypothesis import strategies as st

from gpustate import ops, presets, registry
from gpustate.cli.common import as_json
from gpustate.core.inventory import InventoryNode
from gpustate.core.outcome import NodeResult, Outcome
from gpustate.core.policy import Policy, resolve
from gpustate.core.state import AnyState
from gpustate.core.step import Step
from gpustate.engine import fleet, verdicts
from gpustate.engine.ledger import LedgerQuery
from gpustate.engine.probing import probe_states
from gpustate.errors import GpustateError
from gpustate.plan import document, make, render
from gpustate.remote.batch import make_batch

T = TypeVar("T")
#: Inputs tried by kind; the end of the run tells them.
TRIED: Counter[str] = Counter()
#: CPU time: an input that takes longer than this stops somebody's work.
LIMIT_S = 5.0
#: What a terminal acts on. A tab is text.
ACTED_ON = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
NODE = InventoryNode("gpu1", ("gpu",))
RUN: set[str] = set()


def some(share_of_5000: int) -> settings:
    """That many inputs with --proof, a tenth of it otherwise."""
    return settings(
        max_examples=share_of_5000 if shares.everything() else max(25, share_of_5000 // 10)
    )


def attempt(what: str, call: Callable[[], T]) -> T | None:
    """Do it, within the time an operator has; only gpustate's own errors get out, each one line."""
    TRIED[what] += 1
    before = time.process_time()
    error: GpustateError | None = None
    try:
        return call()
    except GpustateError as caught:
        error = caught
    finally:
        assert time.process_time() - before < LIMIT_S, "this takes too long"
    assert error.message.strip(), "an error that says nothing"
    assert len(str(error)) < 4000, str(error)
    check_line(str(error))
    return None


def check_line(said: str) -> None:
    """An error is one line, and what is shown of it is text, and not without end."""
    assert len(said.splitlines()) == 1, said
    shown = render_error(said)
    assert len(shown) < 20_000, said
    check_shown(shown)


def render_error(text: str) -> str:
    """An error as the command line prints it."""
    page = render.Page()
    page.add(text)
    shown = page.plain()
    assert shown.count("\n") == 1
    return shown.removesuffix("\n")


def check_shown(text: str) -> None:
    """What goes to a terminal is text and nothing else."""
    found = ACTED_ON.search(text)
    assert found is None, text[max(0, found.start() - 60) : found.start() + 60] if found else ""
    text.encode()


def check_node(node: InventoryNode) -> None:
    """Nothing of a node's description is taken for something else by what it is handed to."""
    connection = node.connection
    for text in (node.name, connection.host or "", connection.user or ""):
        assert not text.startswith("-")
        assert not set(text) & set("'`\"$\\;&<>|(){}\n\0"), text
    for path in (node.state_folder, node.proc_root, node.sys_root):
        assert re.fullmatch(r"(/[A-Za-z0-9_.+@:-]+)+", path), path
    assert set(node.origins) == set(node.vars)
    attempt("overrides of an inventory", lambda: resolve(presets.slurm_node(), node, known()))


def known() -> frozenset[str]:
    return frozenset(registry.states())


def fields_of(cls: type[AnyState]) -> st.SearchStrategy[dict[str, Any]]:
    """Parameters of a state: values of any kind, most of them texts with something planted."""
    texts = st.one_of(
        ri.payloads,
        ri.payloads.map(lambda p: f"/etc/{p}"),
        ri.payloads.map(lambda p: f"https://example.net/{p}"),
        ri.payloads.map(lambda p: re.sub(r"\s", "${IFS}", f"https://example.net/{p}")),
        ri.payloads.map(lambda p: f"580.95.05{p}"),
    )
    values = st.one_of(
        texts,
        texts,
        ri.anything,
        st.lists(texts, max_size=2),
        st.dictionaries(texts, texts, max_size=2),
    )
    return st.dictionaries(st.sampled_from(sorted(cls.model_fields)), values, max_size=3)


@st.composite
def overrides(draw: st.DrawFn) -> dict[str, Any]:
    """What an inventory may say about states."""
    names = draw(st.sets(st.sampled_from(sorted(known())), max_size=3))
    found: dict[str, Any] = {name: draw(fields_of(registry.get(name))) for name in sorted(names)}
    if "driver-repository" in found and draw(st.booleans()):
        url = re.sub(r"\s", "${IFS}", f"https://example.net/{draw(ri.payloads)}")
        found["driver-repository"] |= {"key": url, "fingerprint": "A" * 40}
    return found


def walk(states: Any, node: InventoryNode, answerer: ri.BentNode) -> dict[str, str]:
    """Look, plan, render and compile as a run does; return every script that would be run."""
    ordered = fleet.ordered(states, known())
    before = time.process_time()
    try:
        observations, _, answers = probe_states(node, ordered, answerer, (LedgerQuery(),))
        ledger = LedgerQuery().parse(answers[LedgerQuery()])
    except GpustateError as error:
        check_line(str(error))
        return {"probe": make_batch(node, tuple(answerer.asked), "n").script}
    if ledger.lock is not None:
        render_error(ledger.lock.describe())
    results = make.make(ordered, observations)
    for name, result in results.items():
        assert "this is a bug in the state" not in result.reason, (name, result.reason)
        if result.reason:
            check_line(result.reason)
    verdicts.reboot_blocker(ordered, observations)
    show(Policy(*ordered), observations, results)
    scripts = {"probe": make_batch(node, tuple(answers), "n").script}
    for state in ordered:
        if results[state.name].outcome is Outcome.PENDING:
            scripts |= steps_of(state, observations.observed[state.name], results[state.name].plan)
        elif state.name in observations.observed:
            # A run would not go there; but what would be made of it is not to run anything either.
            with contextlib.suppress(Exception):
                observed = observations.observed[state.name]
                scripts |= steps_of(state, observed, state.plan(observed))
    assert time.process_time() - before < LIMIT_S, "this takes too long"
    return scripts


def show(policy: Policy, observations: make.Observations, results: Any) -> None:
    """Make a document and a page of it, as ``plan --diff --all`` does."""
    row = NodeResult("gpu1", states=list(results.values()))
    row.observed = make.observed_data(policy.states, observations)
    made = document.plan_document(policy, "policy.py", [row], run="r", created="now")
    assert json.loads(as_json(made)) == json.loads(json.dumps(made))
    check_shown(as_json(made))
    check_shown(render.nodes_page(made, diff=True, full=True).plain())
    check_shown(render.troubles_page(made, diff=True, full=True).plain())


def steps_of(state: AnyState, observed: Any, plan: Any) -> dict[str, str]:
    """The scripts of a state's steps, and the scripts among the files they write."""
    try:
        steps: tuple[Step, ...] = tuple(state.apply(observed, plan))
        program = ops.compile_program((ops.Block(state.name, (), steps),))
    except GpustateError as error:
        check_line(str(error))
        return {}
    found = {f"{state.name} {name}": text for name, text in program.files.items()}
    for step in steps:
        if isinstance(step, ops.PutText) and step.text.startswith("#!/bin/sh"):
            found[f"{state.name} file {step.path}"] = step.text
    return found


def run_planted(scripts: dict[str, str], no_sandbox: str) -> None:
    """Run those scripts that something planted has come into, each once."""
    planted = {name: text for name, text in scripts.items() if "anary" in text and text not in RUN}
    if not planted or no_sandbox:
        return
    RUN.update(planted.values())
    TRIED["scripts run with something planted"] += len(planted)
    for name, ran in sandbox.run(planted, ops.LIBRARY).items():
        assert ran.status != -1, ran.output
        assert ran.canaries == (), (name, planted[name], ran.output[-2000:])


def tell() -> None:
    """Have the end of the run tell how many inputs were tried."""
    rows = ", ".join(f"{count} {what}" for what, count in sorted(TRIED.items()))
    shares.TAKEN["random input"] = f"{sum(TRIED.values())} inputs: {rows}"
