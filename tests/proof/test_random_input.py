"""Random input: whatever inventories, policies, nodes and journals say, gpustate keeps its temper.

Nothing but gpustate's own errors gets out, each one line; whatever is printed is free of control
characters; and no text that came from data is ever run: planted commands are looked for in a sandbox
where the scripts are run for real. How many inputs were tried is told at the end of the run.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import operator
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import randominput as ri
import sandbox
import shares
from hypothesis import example, given
from hypothesis import strategies as st
from randomchecks import (
    NODE,
    TRIED,
    attempt,
    check_node,
    check_shown,
    known,
    overrides,
    render_error,
    run_planted,
    some,
    tell,
    walk,
)

from gpustate import ops, policies, presets
from gpustate.api import load_policy
from gpustate.api.saved import policy_of, read_json
from gpustate.cli.common import as_json
from gpustate.cli.explain import checks_page
from gpustate.cli.facts import _node as facts_page
from gpustate.core.encode import plain
from gpustate.core.inventory import InventoryNode
from gpustate.core.outcome import NodeResult
from gpustate.core.policy import Policy, resolve
from gpustate.core.queries import Answer
from gpustate.engine import fleet, journal
from gpustate.engine.probing import probe_states, query_node
from gpustate.errors import ConnectionFailed
from gpustate.explain import walk as explaining
from gpustate.inventory import load, select
from gpustate.plan import document, make, render
from gpustate.probes.excluded_gpus import ExcludedGpusQuery
from gpustate.probes.gpu_facts import GpuFacts
from gpustate.remote.batch import AnswerReader, make_batch
from gpustate.remote.session import read_entry

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True, scope="module")
def told() -> Iterator[None]:
    """Tell how many inputs were tried."""
    yield
    tell()


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


# --- inventories ---------------------------------------------------------------------------


@some(1500)
@given(files=ri.inventory_files(), whole=st.booleans(), limit=st.none() | ri.words)
def test_an_inventory_is_read_or_refused_in_one_line(
    files: dict[str, bytes], whole: bool, limit: str | None
) -> None:
    with tempfile.TemporaryDirectory() as made:
        for path, data in files.items():
            (Path(made) / path).parent.mkdir(parents=True, exist_ok=True)
            (Path(made) / path).write_bytes(data)
        name = next(path for path in files if path.startswith("hosts"))
        source = made if whole else f"{made}/{name}"
        loaded = attempt("inventories", lambda: load(source))
        if loaded is None:
            return
        for note in loaded.notes:
            render_error(note)
        if limit is not None:
            attempt("limit patterns", lambda: select(loaded, limit))
        for node in loaded:
            check_node(node)


@some(300)
@given(st.lists(ri.words, min_size=1, max_size=3).map(",".join), ri.words)
@example("gpu[01:99999999999999],", "~(a+)+$")
@example("a" * 5000 + ",", "a" * 5000)
def test_a_list_and_a_limit_are_read_or_refused_in_one_line(text: str, limit: str) -> None:
    loaded = attempt("lists", lambda: load(text.replace("/", "") + ","))
    if loaded is not None:
        attempt("limit patterns", lambda: select(loaded, limit.replace("@", "")))


# --- policies ------------------------------------------------------------------------------


@some(1000)
@given(ri.operator_files())
def test_an_operator_file_is_read_or_refused_in_one_line(directory: Path, data: bytes) -> None:
    path = directory / "policy.yaml"
    path.write_bytes(data)
    policy = attempt("policies", lambda: policies.load(str(path)))
    if policy is None:
        return
    check_shown(render.notes_page(policy.notes).plain())
    walk(policy.states, NODE, ri.BentNode(ri.RIGHT))


@pytest.fixture(scope="module")
def no_sandbox() -> str:
    return sandbox.missing()


@some(800)
@given(given_=overrides(), absent=st.booleans())
def test_parameters_of_states_are_taken_or_refused_and_never_run(
    no_sandbox: str, given_: dict[str, Any], absent: bool
) -> None:
    node = InventoryNode("gpu1", ("gpu",), {"gpustate": given_}, {"gpustate": "hosts:1"})
    resolved = attempt("parameters", lambda: resolve(presets.kubernetes_node(), node, known()))
    if resolved is None:
        return
    policy = Policy(*resolved.states)
    scripts = walk(
        policy.with_ensure("absent").states if absent else policy.states,
        node,
        ri.BentNode(ri.RIGHT),
    )
    run_planted(scripts, no_sandbox)


# --- answers of nodes ----------------------------------------------------------------------


@some(1200)
@given(whims=ri.whims, absent=st.booleans())
def test_what_a_node_answers_is_planned_or_told_in_one_line_and_never_run(
    no_sandbox: str, whims: ri.Whims, absent: bool
) -> None:
    TRIED["node answers"] += 1
    policy = presets.kubernetes_node()
    states = policy.with_ensure("absent").states if absent else policy.states
    run_planted(walk(states, NODE, ri.BentNode(whims)), no_sandbox)


@some(400)
@given(whims=ri.whims)
def test_what_a_node_answers_is_explained_in_text_and_nothing_else(whims: ri.Whims) -> None:
    view = attempt("node answers", lambda: query_node(NODE, explaining.query, ri.BentNode(whims)))
    if view is not None:
        page = render.Page()
        checks_page(page, plain(explaining.diagnose(view).checks))
        check_shown(page.plain())
        json.loads(as_json(plain(view)))
    facts = attempt(
        "node answers",
        lambda: query_node(
            NODE,
            lambda node: (node.facts(), node.query(GpuFacts()), node.query(ExcludedGpusQuery())),
            ri.BentNode(whims),
        ),
    )
    if facts is not None:
        page = render.Page()
        one, nvml, held = facts
        row = {"distribution": one.distribution, "nvml": plain(nvml)}
        row["quarantine"] = [entry.text for entry in held.active]
        facts_page(page, "gpu1", {**plain(one), **row})
        check_shown(page.plain())


@pytest.mark.parametrize(
    ("ensure", "pick"),
    shares.share(
        "scripts of a run",
        [(ensure, pick) for ensure in ("present", "absent") for pick in range(4)],
        most=2,
        kind=operator.itemgetter(0),
    ),
)
def test_no_script_runs_what_the_programs_of_a_node_say(
    no_sandbox: str, ensure: str, pick: int
) -> None:
    """Everything a run would send, run for real while every program there prints what is planted."""
    if no_sandbox:
        pytest.skip(no_sandbox)
    states = presets.kubernetes_node().with_ensure(ensure).states
    scripts = walk(states, NODE, ri.BentNode((pick, {}, [])))
    said = "".join(f"{p}\nnvidia-{p}|{p}|{p}|ii\nId={p}\n" for p in ri.PAYLOADS)
    TRIED["scripts run with something planted"] += len(scripts)
    for name, ran in sandbox.run(scripts, ops.LIBRARY, said).items():
        assert ran.status != -1, ran.output
        # A stand-in is told options that another one printed: on a node that is dpkg itself.
        commands = tuple(one for one in ran.canaries if not one.startswith("option-of-"))
        assert commands == (), (name, ran.output[-2000:])


def test_the_sandbox_tells_when_something_planted_is_run(no_sandbox: str) -> None:
    """The check has teeth: every payload for a shell does run where a script is made carelessly."""
    if no_sandbox:
        pytest.skip(no_sandbox)
    careless = {f"{number}": f"echo {text}\n:\n" for number, text in enumerate(ri.SHELL[:3])}
    careless |= {
        "quoted": f"echo '{ri.SHELL[3]}'\n",
        "double": f'echo "{ri.SHELL[4]}"\n',
        "here": f"cat <<END\n{ri.SHELL[11]}END\n",
        "option": f"apt-get install {ri.OPTIONS[0]}\n",
    }
    for name, ran in sandbox.run(careless).items():
        assert ran.canaries, (name, ran)


# --- frames and journals -------------------------------------------------------------------


def wire(nonce: str, count: int, changes: list[ri.Bend]) -> bytes:
    """What a node sends for some asks, the part that is compressed bent before it is."""
    body = b"".join(
        b"\n%s %d\nkey=value %d\n\n%s = %d 0\n" % (nonce.encode(), i, i, nonce.encode(), i)
        for i in range(count)
    )
    packed = gzip.compress(ri.bent(body + b"\n%s end\n" % nonce.encode(), changes))
    return b"motd\n\n%s begin\n%s answer\n%s" % (nonce.encode(), nonce.encode(), packed)


@some(800)
@given(
    queries=st.integers(1, 5),
    inner=st.lists(ri.bends, max_size=3),
    outer=st.lists(ri.bends, max_size=3),
    noise=st.none() | st.binary(max_size=200),
    chunk=st.sampled_from([1, 7, 4096]),
)
def test_bytes_of_a_node_are_an_answer_or_an_error(
    queries: int, inner: list[ri.Bend], outer: list[ri.Bend], noise: bytes | None, chunk: int
) -> None:
    batch = make_batch(NODE, [GpuFacts(timeout_s=n + 1) for n in range(queries)], "gpustate-1")
    data = ri.bent(wire("gpustate-1", queries, inner), outer)
    data = data if noise is None else data + noise

    def read() -> tuple[Answer, ...]:
        reader = AnswerReader(batch)
        for start in range(0, len(data), chunk):
            reader.feed(data[start : start + chunk])
            assert len(reader.needed) <= len(batch.shipped)
        if not reader.done:
            raise ConnectionFailed("the connection broke in the middle of the answer")
        return reader.answers()

    found = attempt("frames", read)
    if found is not None:
        assert len(found) == queries
        if not inner and not outer:
            assert [a.out for a in found] == [b"key=value %d\n" % i for i in range(queries)]


STEPS = ops.compile_program((ops.Block("a", (), (ops.Run("x", "do x"), ops.Run("y", "do y"))),))


@some(600)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.sampled_from(ri.JOURNAL), st.lists(ri.bends, max_size=3)).map(
                lambda p: ri.bent(*p)
            ),
            ri.anything.map(
                lambda value: json.dumps(
                    {"e": "result", "i": 1, "rc": value, "out": value}, default=str
                ).encode()
            ),
            st.binary(max_size=40),
        ),
        max_size=8,
    )
)
@example([b"[" * 100_000])
@example([b'{"e":"result","i":1,"rc":1e999}', b'{"e":"intent","i":' + b"9" * 5000 + b"}"])
def test_a_journal_is_taken_whatever_its_lines_are(lines: list[bytes]) -> None:
    TRIED["journals"] += 1
    record = journal.Record()
    for raw in b"\n".join(lines).split(b"\n"):
        record.take(read_entry(raw.decode("utf-8", "replace")), STEPS)
    for name, one in record.states.items():
        page = render.Page()
        for text in (
            name,
            one.failed_step,
            one.skipped_because,
            journal.cause(one.output),
            journal.last_lines(one.output),
        ):
            page.add(*text.splitlines())
        check_shown(page.plain())
        assert isinstance(one.status, int)


# --- saved plans ---------------------------------------------------------------------------


def saved_plan() -> bytes:
    """A plan of one lab node, as ``plan --out`` writes it."""
    policy = presets.kubernetes_node()
    ordered = fleet.ordered(policy.states, known())
    observations, _, _ = probe_states(NODE, ordered, ri.BentNode(ri.RIGHT))
    row = NodeResult("gpu1", states=list(make.make(ordered, observations).values()))
    row.observed = make.observed_data(ordered, observations)
    made = document.plan_document(policy, "policy.py", [row], run="r", created="now")
    return as_json(made).encode()


@some(200)
@given(changes=st.lists(ri.bends, max_size=3), retold=st.booleans())
def test_a_saved_plan_is_read_as_it_was_made_or_refused(
    directory: Path, changes: list[ri.Bend], retold: bool
) -> None:
    path = directory / "plan.json"
    path.write_bytes(ri.bent(saved_plan(), changes))

    def read() -> Policy:
        data = read_json(str(path))
        if retold and isinstance(data, dict):
            # Somebody who fixes the fingerprint too.
            with contextlib.suppress(TypeError, KeyError, ValueError):
                data["id"] = document.plain_fingerprint([data["policy"], data["nodes"]])
        made = document.read_plan(data, place=str(path))
        document.planned_observations(made)
        check_shown(render.nodes_page(made, diff=True, full=True).plain())
        check_shown(render.troubles_page(made, diff=True, full=True).plain())
        check_shown(render.plan_sentence(made))
        found: Policy = policy_of(made, load_policy, str(path))
        return found

    attempt("saved plans", read)
