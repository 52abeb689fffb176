"""One desired state in every shape: round trips lose nothing unnamed, and any text ends in one line."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from shares import tries

from gpustate import Policy, policies, where
from gpustate.core.policy import build
from gpustate.errors import GpustateError, PolicyError
from gpustate.policies import Changes, document, jsonpatch, python, trees
from gpustate.policies.changes import Format
from gpustate.policies.converting import convert
from gpustate.states.cdi import CdiSpecificationCurrent
from gpustate.states.container_toolkit import ContainerToolkitInstalled
from gpustate.states.containerd import ContainerdHandlerRegistered
from gpustate.states.driver import DriverInstalled
from gpustate.states.nouveau import NouveauBlacklisted
from gpustate.states.persistenced import PersistenceModeEnabled
from gpustate.states.preflight import PreflightPassed
from gpustate.states.validator import NodeValidated

quick = settings(
    max_examples=tries(40, 13),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TEXT = st.text(
    st.characters(
        min_codepoint=32, max_codepoint=0x2FFF, exclude_categories=["Cs", "Cc", "Cf", "Zl", "Zp"]
    ),
    max_size=8,
)
WORD = st.text("abcXYZ019-_.'\" :#\\", min_size=1, max_size=6)
SIMPLE = [where.gpu, where.mig_capable, where.nvswitch]
CONDITIONS = st.recursive(
    st.sampled_from(SIMPLE)
    | TEXT.map(where.group)
    | st.builds(where.var, TEXT, TEXT | st.integers(-9, 9)),
    lambda below: (
        st.builds(lambda a, b: a & b, below, below)
        | st.builds(lambda a, b: a | b, below, below)
        | below.map(lambda a: ~a)
    ),
    max_leaves=4,
)
SHARED: dict[str, st.SearchStrategy[Any]] = {
    "ensure": st.sampled_from(["present", "absent"]),
    "only": st.none() | CONDITIONS.map(lambda c: c.text),
}
VERSION = st.sampled_from(["580.65.06", "580.95.05", "580.9"])
PARAMETERS = st.dictionaries(
    st.sampled_from(["NVreg_A", "NVreg_B", "nvidia-uvm.c", "nvidia-drm.modeset"]),
    st.integers(0, 99) | st.sampled_from(["a", "b=c"]),
    max_size=3,
)
STATES: dict[type[Any], dict[str, st.SearchStrategy[Any]]] = {
    PreflightPassed: {
        "gpus": st.integers(0, 9) | st.just("8xH100"),
        "other_systems": st.lists(WORD, max_size=2),
    },
    NouveauBlacklisted: {"reboot_timeout_s": st.integers(0, 9999)},
    DriverInstalled: {
        "version": st.none() | VERSION,
        "branch": st.sampled_from([None, 580]),
        "module_type": st.sampled_from(["auto", "open", "proprietary"]),
        "hold": st.booleans(),
        "precompiled": st.booleans(),
        "parameters": PARAMETERS,
    },
    PersistenceModeEnabled: {"uvm_persistence": st.booleans()},
    ContainerToolkitInstalled: {
        "version": st.none() | st.just("1.17.8"),
        "mode": st.none() | st.sampled_from(["cdi", "legacy"]),
        "accept_volume_mounts": st.none() | st.booleans(),
        "config": st.fixed_dictionaries({}, optional={"nvidia-container-cli.debug": st.just("/x")}),
    },
    ContainerdHandlerRegistered: {
        "handler": st.sampled_from(["nvidia", "gpu"]),
        "default": st.booleans(),
        "enable_cdi": st.none() | st.booleans(),
        "config_path": st.none() | st.just("/etc/c.toml"),
        "restart": st.sampled_from(["systemd", "none"]),
    },
    CdiSpecificationCurrent: {},
    NodeValidated: {
        "cuda": st.booleans(),
        "handler": st.sampled_from(["nvidia", "gpu", ""]),
        "cdi": st.booleans(),
    },
}


SECONDS = st.integers(0, 10**6)
SELECTORS = st.sampled_from(["", "app=train", "a!=b,!c", "tier in (a, b)"])
EVICTION = st.fixed_dictionaries(
    {},
    optional={
        "force": st.booleans(),
        "delete_empty_dir": st.booleans(),
        "timeout_s": SECONDS,
        "pod_selector": SELECTORS,
    },
)
DRAIN = st.none() | st.fixed_dictionaries(
    {},
    optional={
        "wait_selector": SELECTORS,
        "wait_timeout_s": SECONDS,
        "gpu_pods": EVICTION,
        "node": EVICTION,
        "node_after_gpu_pods": st.booleans(),
        "grace_period_s": st.none() | SECONDS,
    },
)


def some(cls: type[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Parameters of a state."""
    return st.fixed_dictionaries({}, optional={**SHARED, **STATES[cls]})


@st.composite
def made(draw: st.DrawFn) -> Policy:
    """Any policy, with layers."""
    classes = draw(st.lists(st.sampled_from(list(STATES)), unique=True, max_size=6))
    states = [build(cls, draw(some(cls))) for cls in classes]

    def layers() -> dict[str, Any]:
        body = st.fixed_dictionaries({}, optional={cls.name: some(cls) for cls in classes})
        return draw(st.dictionaries(WORD, body, max_size=2))

    allow = draw(st.dictionaries(WORD, WORD.filter(str.strip), max_size=2))
    name = draw(st.none() | WORD)
    return Policy(
        *states, name=name, groups=layers(), nodes=layers(), allow=allow, drain=draw(DRAIN)
    )


@quick
@given(made())
def test_yaml_and_python_bring_every_policy_back(policy: Policy) -> None:
    for to, read in (
        ("yaml", lambda text: document.make(document.read(text, "x"))),
        ("python", lambda text: python.run(text, "x.py")),
    ):
        done = convert(policy, to)
        assert done.lost == ()
        assert document.as_data(read(done.text)) == document.as_data(policy)


def loaded(text: str, name: str, changes: Changes | None = None) -> Policy:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        return policies.load(str(path), changes=changes)


def refusal(work: Callable[[], object]) -> GpustateError | None:
    """What is said against it; ``None`` when it works."""
    try:
        work()
    except GpustateError as error:
        return error
    return None


def one_line(work: Callable[[], object]) -> None:
    """It works, or is refused in one short line."""
    said = str(refusal(work) or "")
    assert "\n" not in said
    assert len(said) < 2500


SAMPLE = (
    "format: gpustate.policy/1\nname: blue\nstates:\n  nouveau:\n  driver: {branch: 580, parameters: {A: 1}}\n"
    "  containerd:\n    only: runtime('containerd')\ngroups:\n  a: {driver: {hold: false}}\nallow: {r: why}\n"
)
OPERATOR = (Path(__file__).parents[2] / "docs" / "examples" / "clusterpolicy.yaml").read_text(
    "utf-8"
)
HARM = st.text(max_size=4) | st.text(":-#{}[]&*!|>'\"%@\t\n ~<", max_size=4)


@quick
@given(st.data())
def test_a_policy_with_characters_changed_is_read_or_refused_in_one_line(
    data: st.DataObject,
) -> None:
    text = SAMPLE
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 12)))
        text = text[:start] + data.draw(HARM) + text[end:]
    one_line(lambda: document.make(document.read(text, "p.yaml")))


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda below: (
        st.lists(below, max_size=3)
        | st.dictionaries(
            st.text(max_size=5) | st.sampled_from(["driver", "branch", "only"]), below, max_size=3
        )
    ),
    max_leaves=6,
)


@quick
@given(st.data())
def test_a_policy_with_values_changed_is_read_or_refused_at_a_line(data: st.DataObject) -> None:
    whole = yaml.safe_load(SAMPLE)
    item = whole
    for _ in range(data.draw(st.integers(1, 4))):
        key = data.draw(st.sampled_from(sorted(item)))
        if not isinstance(item[key], dict) or not item[key] or data.draw(st.booleans()):
            item[key] = data.draw(ANYTHING)
            break
        item = item[key]
    text = yaml.safe_dump(whole)

    def work() -> None:
        error = refusal(lambda: document.make(document.read(text, "p.yaml")))
        assert error is None or str(error).startswith("p.yaml:"), error

    one_line(work)


@quick
@given(st.text(max_size=30) | st.text('ab.[]{}=,\\01 -null"', max_size=30))
@example("a[0][1].b={x,y},c=")
@example('a={"b": 1e400}')
@example("\ud800=1")
def test_any_set_is_carried_out_or_refused_in_one_line(text: str) -> None:
    changes = Changes(set_typed=(text,))
    tree = document.read(SAMPLE, "p.yaml")

    def work() -> None:
        done = changes.on(tree, Format(document.home, document.home))
        document.make(done.tree, touched=done.touched, before=tree)

    one_line(work)


@quick
@given(st.text(max_size=30) | ANYTHING.map(lambda value: json.dumps(value)))
def test_any_patch_is_carried_out_or_refused_in_one_line(text: str) -> None:
    tree = document.read(SAMPLE, "p.yaml")

    def work() -> None:
        done = Changes(patches=(text.removeprefix("@"),)).on(tree)
        document.make(done.tree, touched=done.touched, before=tree)

    one_line(work)


OPERATIONS = st.fixed_dictionaries(
    {
        "op": st.sampled_from(["add", "remove", "replace", "move", "copy", "test"]),
        "path": st.lists(st.sampled_from(["a", "b", "0", "1", "-", "~0"]), max_size=3).map(
            lambda keys: "".join(f"/{key}" for key in keys)
        ),
    },
    optional={"value": ANYTHING, "from": st.sampled_from(["/a", "/b", "/a/0", ""])},
)


@quick
@given(ANYTHING, st.lists(OPERATIONS, max_size=3))
def test_a_json_patch_is_carried_out_whole_or_not_at_all(
    data: Any, patch: list[dict[str, Any]]
) -> None:
    tree = trees.from_data({"a": data, "b": [1, {"a": 2}]}, "x")
    before = repr(trees.plain(tree))
    one_line(lambda: jsonpatch.apply(tree, trees.from_data(patch, "--patch"), {}))
    assert repr(trees.plain(tree)) == before


def merged(target: Any, patch: Any) -> Any:
    """RFC 7386's own algorithm, in Python."""
    if not isinstance(patch, dict):
        return patch
    target = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            target.pop(name, None)
        else:
            target[name] = merged(target.get(name), value)
    return target


@quick
@given(ANYTHING, ANYTHING)
def test_a_merge_patch_is_what_the_rfc_s_algorithm_makes(data: Any, patch: Any) -> None:
    done = jsonpatch.merge(trees.from_data(data, "x"), trees.from_data(patch, "y"), {})
    assert repr(trees.plain(done)) == repr(merged(data, patch))


@quick
@given(st.data())
def test_an_operator_file_with_a_change_means_what_the_changed_file_means(
    data: st.DataObject,
) -> None:
    """The text that is written for the reader says what the file and the change say together."""
    objects = list(yaml.safe_load_all(OPERATOR))
    keys = [
        "driver.version",
        "toolkit.version",
        "operator.runtimeClass",
        "daemonsets.priorityClassName",
    ]
    chosen = data.draw(
        st.dictionaries(
            st.sampled_from(keys), st.text("5.80v-x\u00e9\u2028", max_size=8), max_size=3
        )
    )
    for path, value in chosen.items():
        section, key = path.split(".")
        objects[0]["spec"].setdefault(section, {})[key] = value
    patch = json.dumps(
        {
            "spec": {
                k: objects[0]["spec"][k] for k in ("driver", "toolkit", "operator", "daemonsets")
            }
        }
    )
    outcomes: list[Any] = []
    for text, changes in (
        (yaml.safe_dump_all(objects), None),
        (OPERATOR, Changes(patches=(patch,))),
    ):
        try:
            outcomes.append(document.as_data(loaded(text, "cp.yaml", changes)))
        except PolicyError as error:
            outcomes.append(error.message)
    assert outcomes[0] == outcomes[1]
