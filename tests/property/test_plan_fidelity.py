"""A plan is faithful: what it says is done and nothing else, and afterwards nothing is left to do.

First for every registered state, on observations nobody would think of; then through the whole
engine, with real files on this machine.
"""

from __future__ import annotations

import importlib
import json
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

import pytest
from filebench import BAD, SCRIPTS, Bench, Wish, identity, new, outcomes, wishes
from hypothesis import example, given, note, settings
from hypothesis import strategies as st
from shares import tries

from gpustate import ops, registry
from gpustate.bases.service import PackagedService
from gpustate.core.change import Plan
from gpustate.core.encode import fingerprint, plain
from gpustate.core.facts import FactsQuery, NodeFacts, NodeView
from gpustate.core.outcome import Outcome, StateResult
from gpustate.core.policy import build, parameters
from gpustate.core.state import AnyState
from gpustate.engine import before
from gpustate.ops.daemon_seen import digest as files_digest
from gpustate.plan.document import state_data
from gpustate.plan.make import Observations
from gpustate.states.microk8s import TEMPLATE_PATH

DOCKER_FILE = "/etc/docker/daemon.json"

#: Parameters worth trying beside the defaults.
PARAMETERS: dict[str, tuple[dict[str, Any], ...]] = {
    "driver": (
        {"branch": 570},
        {"version": "580.95.05"},
        {"parameters": {"NVreg_EnableStreamMemOPs": 1, "nvidia-uvm.uvm_debug_prints": "0"}},
        {"module_type": "open", "packages": "full", "hold": False},
        {"load": False, "headers": "require"},
        {"precompiled": True, "in_use": "reboot"},
    )
}

_WORDS = (
    "",
    "580.95.05",
    "580.95.05 open",
    "570.133.20 proprietary",
    "580.95.05-1",
    "6.1.0-28-amd64",
    "6.12.57+deb13-amd64",
    "debian",
    "debian12",
    "ubuntu",
    "apt",
    "clean",
    "nouveau",
    "nova_core",
    "nvidia",
    "nvidia-driver-cuda",
    "nvidia-container-toolkit",
    "linux-headers-6.1.0-28-amd64",
    "containerd.service",
    "nvidia-persistenced.service",
    "/etc/containerd/config.toml",
    "/etc/apt/sources.list.d/x.list",
    "ok",
    "failed",
    "not applicable",
    "holds",
    "none",
    "pci",
    "version = 2\n",
    "a line\nand another\n",
)
_JSON = st.dictionaries(
    st.just(DOCKER_FILE),
    st.sampled_from(
        (
            "{}",
            '{"runtimes": {"nvidia": {"path": "/usr/bin/nvidia-container-runtime"}}}',
            '{\n  "features": {"cdi": false, "x": 1},\n  "default-runtime": "nvidia"\n}\n',
            "not JSON",
        )
    ),
)
_HOOKS = st.lists(st.sampled_from(("/etc/a.json", "/usr/share/b.json")), unique=True).map(tuple)
_CLASS_IDS = ("030200", "030000", "068000")
_DEVICE_IDS = ("2330", "20b0", "1db6", "2901", "ffff")

#: Fields whose values have a form of their own; anything else goes by its type.
FIELDS: dict[tuple[str, str], st.SearchStrategy[Any]] = {
    ("PciGpu", "device_id"): st.sampled_from(_DEVICE_IDS),
    ("PciGpu", "class_id"): st.sampled_from(_CLASS_IDS),
    ("PciGpu", "address"): st.from_regex(r"0000:[0-9a-f]{2}:00\.0", fullmatch=True),
    ("gpustate.states.cdi.reading", "leftovers"): st.lists(
        st.sampled_from(("/etc/cdi/a.yaml", "/etc/cdi/b.json")), unique=True
    ).map(tuple),
    ("gpustate.states.cdi.reading", "dropins"): st.dictionaries(
        st.sampled_from(("/etc/systemd/system/a.service.d/gpustate-quarantine.conf", "/etc/b.d/c")),
        st.sampled_from(("[Service]\n", "")),
    ),
    ("gpustate.states.cdi.reading", "proc"): st.just("/proc"),
    # Layouts have a property test of their own, over the simulator: test_mig_simulator.py.
    ("gpustate.states.mig.observed", "gpus"): st.just(()),
    ("gpustate.states.gds", "offered"): st.lists(
        st.sampled_from(("2.26.6-1", "2.17.5-1")), unique=True
    ).map(lambda versions: (("nvidia-fs-dkms", tuple(versions)),)),
    ("gpustate.states.mig.observed", "folder"): st.just("/var/lib/gpustate/mig"),
    ("gpustate.states.docker", "files"): _JSON,
    ("gpustate.states.docker.query", "originals"): _JSON,
    ("gpustate.states.docker.query", "config_path"): st.just(DOCKER_FILE),
    ("gpustate.states.docker", "ours"): st.lists(
        st.sampled_from(("runtimes.nvidia", "default-runtime", "features.cdi")), unique=True
    ).map(lambda keys: tuple(sorted(keys))),
    ("gpustate.states.podman", "leftovers"): _HOOKS,
    ("gpustate.states.podman", "kept"): _HOOKS,
    ("gpustate.states.preflight", "room"): st.lists(
        st.tuples(
            st.sampled_from(("/boot", "/usr", "/var")),
            st.sampled_from(("/", "/boot", "/var")),
            st.integers(0, 10_000),
        ),
        max_size=3,
        unique_by=lambda row: row[0],
    ).map(tuple),
}

_RUNTIMES = ("containerd", "crio", "docker", "k0s", "microk8s")
#: Fields that follow from others, which are the ones a plan tells.
FOLLOWS: dict[str, frozenset[str]] = {
    **dict.fromkeys(_RUNTIMES, frozenset({"digest", "found", "dead"})),
    "k3s": frozenset({"late", "active"}),
}

#: Modules below ``tests/support/observed``, one a state that wants it: more of the tables above, and ``possible``.
OWN = [
    importlib.import_module(f"observed.{path.stem}")
    for path in sorted((Path(__file__).parents[1] / "support/observed").glob("*.py"))
]
for _module in OWN:
    PARAMETERS.update(getattr(_module, "PARAMETERS", {}))
    FIELDS.update(getattr(_module, "FIELDS", {}))
    FOLLOWS.update(getattr(_module, "FOLLOWS", {}))

text = st.sampled_from(_WORDS) | st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12
)


def of(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type as observations have it."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return st.one_of(*(of(one) for one in arguments))
    if origin is tuple and arguments[-1] is Ellipsis:
        return st.lists(of(arguments[0]), max_size=3, unique_by=fingerprint).map(tuple)
    if origin is tuple:
        return st.tuples(*(of(one) for one in arguments))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return st.dictionaries(of(arguments[0]), of(arguments[1]), max_size=3)
    if is_dataclass(kind) and isinstance(kind, type):
        return observations(kind)
    simple: dict[Any, st.SearchStrategy[Any]] = {
        str: text,
        bool: st.booleans(),
        int: st.integers(0, 2**40),
        type(None): st.none(),
    }
    return simple[kind] if kind in simple else st.from_type(cast("type[Any]", kind))


@cache
def observations(kind: type[Any]) -> st.SearchStrategy[Any]:
    """Instances of a dataclass, each field by its type or by its own table row."""
    hints = get_type_hints(kind)
    values: dict[str, st.SearchStrategy[Any]] = {}
    for field in fields(kind):
        own = ((kind.__name__, field.name), (kind.__module__, field.name))
        known = next((FIELDS[key] for key in own if key in FIELDS), None)
        values[field.name] = of(hints[field.name]) if known is None else known
    return st.builds(kind, **values)


def possible(state: AnyState, seen: Any) -> Any:
    """An observation that the state's own probe could have made: fields that belong together do."""
    for module in OWN:
        if hasattr(module, "possible"):
            seen = module.possible(state, seen)
    if state.name == "driver":
        # One row of facts for each kernel, and one value for each parameter that was asked for.
        return replace(
            seen,
            headers={kernel: seen.headers.get(kernel, False) for kernel in seen.built},
            parameters={
                name: seen.parameters.get(name) for name in getattr(state, "parameters", {})
            },
        )
    if state.name == "container-toolkit":
        installed = {name for name, version in seen.versions.items() if version}
        held = tuple(name for name in seen.held if name in installed)
        return damaged_files(replace(seen, held=held), installed)
    if state.name == "nouveau" and seen.hook_text is None:
        return replace(seen, hook_executable=False)
    if state.name == "persistenced" and not seen.has_gpus:
        return replace(seen, persistent={})
    if isinstance(seen, PackagedService):
        if not (seen.package and seen.version):
            seen = replace(seen, package=None, version=None, held=False)
        return damaged_files(seen, seen.installed)
    if state.name == "dcgm":
        return damaged_files(seen, seen.packages)
    if state.name in _RUNTIMES:
        return possible_runtime(state, seen)
    # What one lacks that does not run, it finds when it starts.
    if state.name == "k3s" and (state.absent or not seen.unit or not seen.running):
        return replace(seen, lacks=(), dead="")
    return seen


def damaged_files(seen: Any, installed: Iterable[str]) -> Any:
    """Only files of installed packages are found damaged."""
    names = (name for name in sorted(installed) if re.fullmatch(r"[a-z0-9][a-z0-9.+-]+", name))
    rows = tuple(f"{name}: /usr/bin/{name} is missing" for name in names)
    return replace(seen, damaged=rows if seen.damaged else ())


def possible_runtime(state: AnyState, seen: Any) -> Any:
    """What a runtime's state says of its files is what was found there."""
    found = replace(seen.found, files=seen.files)
    if state.name == "docker":
        found = replace(found, ours=seen.ours, version=seen.version)
        if not found.program:
            found = replace(found, runtimes={})
        broken = "it is no JSON" if found.text == "not JSON" else ""
        # What cannot be read cannot be compared with what the service has read.
        seen = replace(seen, problem=broken, read=seen.read or bool(broken))
    elif state.name == "microk8s":
        files = dict.fromkeys((TEMPLATE_PATH,) if seen.files else (), "version = 2\n")
        found = replace(found, files=files, program=found.program if files else "")
    if state.name in ("k0s", "microk8s"):  # their services are not started
        seen = replace(seen, running=True)
    if state.name == "k0s" or not found.program:
        seen = replace(seen, read=True)
    if not found.program:
        found = replace(found, active="", dump="", restart_pending=False)
    if state.absent or not found.program:
        seen = replace(seen, lacks=(), dead="")
    return replace(seen, found=found, files=found.files, digest=files_digest(found.files))


@st.composite
def cases(draw: st.DrawFn, name: str) -> tuple[AnyState, Any]:
    """A state with some parameters, and an observation: anything, or nearly what is desired."""
    cls = registry.get(name)
    given_ = draw(st.sampled_from(({}, *PARAMETERS.get(name, ()))))
    state = build(cls, {**given_, "ensure": draw(st.sampled_from(("present", "absent")))})
    seen = possible(state, draw(observations(cls.observation_type())))
    if draw(st.booleans()):
        wanted = state.desired(seen)
        names = [field.name for field in fields(seen)]
        settled = draw(st.sets(st.sampled_from(names)))
        seen = replace(seen, **{name: getattr(wanted, name) for name in settled})
    return state, possible(state, seen)


NAMES = sorted(registry.states())
FEW = settings(max_examples=tries(50, 16))


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@FEW
def test_what_is_desired_needs_no_plan(name: str, data: st.DataObject) -> None:
    state, seen = data.draw(cases(name))
    wanted = state.desired(seen)
    assert state.desired(wanted) == wanted
    rest = state.plan(wanted)
    assert not rest, rest.changes
    assert fingerprint(wanted) == fingerprint(state.desired(wanted))


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(max_examples=tries(15, 5))
def test_every_field_that_a_plan_shows_has_a_label(name: str, data: st.DataObject) -> None:
    state, seen = data.draw(cases(name))
    names = {field.name for field in fields(seen)}
    assert set(state.labels) <= names, "a label is of no field"
    unlike = data.draw(observations(type(seen)))
    settled = state.desired(seen)
    for field in names:
        try:
            other = possible(state, replace(settled, **{field: getattr(unlike, field)}))
            plan = state.plan(other)
        except ValueError:  # no node has such a value
            continue
        for change in plan.changes:
            assert change.path or change.lines or state.field_label(change.field), change.field


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@FEW
def test_a_plan_says_exactly_what_differs(name: str, data: st.DataObject) -> None:
    state, seen = data.draw(cases(name))
    before, wanted = plain(seen), plain(state.desired(seen))
    plan = state.plan(seen)
    differing = {key for key in before if before[key] != wanted[key]}
    assert plan.fields == differing - FOLLOWS.get(name, frozenset())
    for change in plan.changes:
        if isinstance(before[change.field], dict) and change.path is not None:
            # One change for each of several files.
            both = before[change.field].get(change.path), wanted[change.field].get(change.path)
        else:
            both = before[change.field], wanted[change.field]
        assert (change.before, change.after) == both
    assert state.plan(seen) == plan, "a plan is a function of the observation"
    if state.known_after and not state.absent:
        case = state.worst_case(seen, NodeFacts())
        assert case is None or plan.disruption <= case[0], (
            "a plan may not cost more than was said beforehand"
        )


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@FEW
def test_steps_come_from_the_plan_and_always_the_same(name: str, data: st.DataObject) -> None:
    state, seen = data.draw(cases(name))
    plan = state.plan(seen)
    if state.refuse(seen) is not None or plan.refusal is not None:
        return
    steps = tuple(state.apply(seen, plan))
    note(f"steps: {[step.label for step in steps]}")
    assert tuple(state.apply(seen, plan)) == steps
    if not state.absent:  # what is removed may be swept up as a whole
        assert not tuple(state.apply(seen, Plan())), "nothing planned, and yet there are steps"
    if plan:
        assert steps, "a plan that nothing carries out"
        program = ops.compile_program((ops.Block(state.name, (), steps),))
        # A reboot is a barrier of the walk, not a step on the node.
        assert len(program.steps) == sum(not isinstance(step, ops.Reboot) for step in steps)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@FEW
def test_a_plan_and_its_observation_survive_json(name: str, data: st.DataObject) -> None:
    state, seen = data.draw(cases(name))
    plan = state.plan(seen)
    row = state_data(StateResult(name, Outcome.PENDING, plan, worst=plan.disruption))
    assert json.loads(json.dumps(row)) == row
    observed = plain(seen)
    again = json.loads(json.dumps(observed))
    assert fingerprint(again) == fingerprint(observed)
    for refusal in (state.refuse(seen), state.reboot_blocker(seen), plan.refusal):
        assert refusal != "", "refused, and no word why"


#: States, with fields of theirs that a rollback does not bring back, and the reason.
STAYS: dict[str, dict[str, str]] = {
    "cdi": {"leftovers": "an outdated specification that was removed is not written again"},
    "container-toolkit": {"config_access": "a file that users may read stays readable"},
    "dev-char": dict.fromkeys(
        ("rule_text", "missing"), "links that exist harm nothing, and need no rule while they do"
    ),
    **dict.fromkeys(
        ("driver-repository", "toolkit-repository"),
        dict.fromkeys(
            ("folder_access", "key_access"), "what apt could not read is not broken again"
        ),
    ),
    "gds": dict.fromkeys(
        ("built", "says", "loaded", "stale"),
        "a module that no package brought is replaced by one that goes again",
    ),
    "k3s": dict.fromkeys(
        ("lacks", "late", "dead", "active", "running"), "a k3s that works is not broken again"
    ),
    "nvlsm": {"loaded": "modules stay loaded until the next boot"},
    "nouveau": dict.fromkeys(
        ("loaded", "bound", "initramfs"), "the next boot loads nouveau; a rollback does not"
    ),
    "ofed": {"stale": "modules that fit OFED are not replaced by ones that do not"},
    "mps": {"folder": "a directory of pipes that users may enter stays so"},
    "peermem": {
        "built": "a module that fits the loaded stack is not replaced by one that does not",
        "loaded": "a module that the state kept loaded goes with its file",
    },
    "podman": dict.fromkeys(("leftovers", "kept"), "the node alone knows hooks that it keeps"),
    "secure-boot": dict.fromkeys(
        ("tools", "enrolment", "signed"), "a queued key and signed modules need no way back"
    ),
    "slurm-gres": {
        "gres_file": "it follows from slurm.conf, which is compared",
        "gres_text": "an empty gres.conf is removed as one that was not there",
    },
}
#: Made-up versions that are no version: the state's own parameters refuse them.
_NO_VERSION = "version: wanted"


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(max_examples=tries(25, 8))
def test_a_rollback_leads_to_the_observation_before(name: str, data: st.DataObject) -> None:
    """A run with some parameters, another one with others, and back: all that the policy decides is as before."""
    cls = registry.get(name)
    one, other = (
        {
            **data.draw(st.sampled_from(({}, *PARAMETERS.get(name, ())))),
            "ensure": data.draw(st.sampled_from(("present", "absent"))),
        }
        for _ in range(2)
    )
    first, second = build(cls, one), build(cls, other)
    clean = build(cls, {"ensure": "absent"})
    start = clean.desired(possible(clean, data.draw(observations(cls.observation_type()))))
    then = first.desired(possible(first, start))
    if first.refuse(then) is not None or second.refuse(then) is not None:
        return
    if not second.plan(then):
        return
    view = NodeView("n", (), {}, FactsQuery().placeholder())
    planned = {name: StateResult(name, Outcome.PENDING)}
    seen = before.record(
        [second],
        Observations(view, {name: then}),
        planned,
        lambda states: [possible(clean, then) for _ in states],
    )
    runs = (
        before.RunBefore("first", states={name: before.StateBefore(parameters(first))}),
        before.RunBefore("second", states=seen),
    )
    way = before.way_back(runs, "second", {name: cls})
    if way.stays:
        assert len(way.stays) == 1
        assert _NO_VERSION in way.stays[0]
        return
    (back,) = way.states
    note(f"back: {back!r}")
    there, wanted = plain(back.desired(second.desired(then))), plain(then)
    names = cls.stable or tuple(wanted)
    differing = {key for key in names if there[key] != wanted[key]}
    assert differing <= FOLLOWS.get(name, frozenset()) | set(STAYS.get(name, {})), differing


# --- through the engine --------------------------------------------------------------------


@given(plan=wishes(("",)))
@example(plan=[new(), new(known_after=(0,)), new(needs=(1,))])
@settings(max_examples=tries(16, 5))
def test_after_an_apply_nothing_is_left_to_do_and_only_what_was_planned_was_done(
    plan: list[Wish],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), plan)
        before = {path: identity(path) for path in bench.files}
        planned = bench.run(bench.states(), apply=False)
        assert not bench.steps
        assert {path: identity(path) for path in bench.files} == before, "a plan wrote something"
        announced = {s.state for s in planned.outcomes(Outcome.PENDING, Outcome.KNOWN_AFTER)}

        done = bench.run(bench.states(), apply=True)
        assert outcomes(done) == bench.expected()
        assert set(bench.steps) <= announced
        bench.check_order()
        for path, wish in zip(bench.files, plan, strict=True):
            assert path.read_bytes() == wish.text.encode()
            if wish.start == wish.text:
                assert identity(path) == before[path], "a file that was right was touched"

        again = bench.run(bench.states(), apply=True)
        assert set(outcomes(again).values()) == {Outcome.UNCHANGED}
        assert not bench.steps
        assert again.execs == 1


@given(plan=wishes(tuple(SCRIPTS)))
@example(plan=[new(script=BAD), Wish("x", "x", (0,), (), ""), new(needs=(1,))])
@example(plan=[new(), new(known_after=(0,), script=BAD), new(needs=(1,))])
@example(plan=[new(script=BAD), new(needs=(0,)), new(needs=(0, 1))])
@settings(max_examples=tries(16, 5))
def test_a_failure_stops_what_needs_it_and_nothing_else_and_the_next_run_goes_on(
    plan: list[Wish],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), plan)
        announced = {
            state.state
            for state in bench.run(bench.states(), apply=False).states
            if state.outcome in (Outcome.PENDING, Outcome.KNOWN_AFTER)
        }
        done = bench.run(bench.states(), apply=True)
        expected = bench.expected()
        assert outcomes(done) == expected
        ran = {name for name, one in expected.items() if one in (Outcome.CHANGED, Outcome.FAILED)}
        assert set(bench.steps) == ran
        bench.check_order()
        assert ran <= announced
        failed = [name for name, outcome in expected.items() if outcome is Outcome.FAILED]
        assert done.exit_code == (1 if failed else 0)
        for state in done.outcomes(Outcome.NOT_RUN):
            assert state.reason in {f"because {name} failed" for name in failed}
        for path, wish, outcome in zip(bench.files, plan, expected.values(), strict=True):
            text = wish.text if outcome in (Outcome.CHANGED, Outcome.UNCHANGED) else wish.start
            assert (path.read_bytes() if path.exists() else None) == (
                None if text is None else text.encode()
            )

        repaired = bench.run(bench.states(scripts=False), apply=True)
        assert set(outcomes(repaired).values()) <= {Outcome.CHANGED, Outcome.UNCHANGED}
        assert repaired.exit_code == 0
        assert all(
            path.read_bytes() == wish.text.encode()
            for path, wish in zip(bench.files, plan, strict=True)
        )


@given(plan=wishes(("",)))
@settings(max_examples=tries(8, 5))
def test_what_is_taken_away_leaves_the_folder_as_it_was(plan: list[Wish]) -> None:
    plan = [replace(wish, start=None) for wish in plan]
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), plan)
        bench.run(bench.states(), apply=True)
        gone = bench.run(bench.states(ensure="absent"), apply=True)
        assert set(outcomes(gone).values()) == {Outcome.CHANGED}
        assert [path for path in bench.files if path.exists()] == []
        again = bench.run(bench.states(ensure="absent"), apply=True)
        assert set(outcomes(again).values()) == {Outcome.UNCHANGED}
        assert not bench.steps
