"""Whatever is done to an Operator file, reading it ends in a policy or in one clear error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from shares import tries

from gpustate import gpu_operator
from gpustate.errors import PolicyError
from gpustate.gpu_operator.keys import Support, fields
from gpustate.policies import python

SAMPLE = (Path(__file__).parents[2] / "docs" / "examples" / "clusterpolicy.yaml").read_text()
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "string": st.text("abc123.-/:", max_size=8),
    "boolean": st.booleans(),
    "integer": st.integers(0, 99),
    "int-or-string": st.integers(0, 99) | st.just("25%"),
    "list[string]": st.lists(st.text("ab", max_size=3), max_size=2),
    "list[integer]": st.lists(st.integers(0, 9), max_size=2),
    "map[string]": st.dictionaries(st.text("ab", min_size=1), st.text("ab"), max_size=2),
    "map[quantity]": st.dictionaries(st.text("ab", min_size=1), st.integers(), max_size=2),
}
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
ANYTHING = st.recursive(
    SCALARS,
    lambda below: (
        st.lists(below, max_size=3)
        | st.dictionaries(
            st.text(max_size=6) | st.sampled_from(["name", "enabled"]), below, max_size=3
        )
    ),
    max_leaves=6,
)
quick = settings(
    max_examples=tries(150, 50), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def outcome(text: str) -> gpu_operator.Reading | None:
    """Read; a refusal is one line that begins with a place."""
    try:
        return gpu_operator.read(text, "cp.yaml")
    except PolicyError as error:
        said = str(error)
        assert said.startswith("cp.yaml"), said
        assert "\n" not in said
        assert len(said) < 2000
        return None


@quick
@given(st.data())
def test_a_file_with_characters_changed_is_read_or_refused_in_one_line(data: st.DataObject) -> None:
    text = SAMPLE
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 12)))
        middle = data.draw(st.text(max_size=4) | st.text(":-#{}[]&*!|>'\"%@\t\n ~<", max_size=4))
        text = text[:start] + middle + text[end:]
    outcome(text)


@quick
@given(st.data())
def test_a_file_with_values_changed_is_read_or_refused_in_one_line(data: st.DataObject) -> None:
    policy, config_map = list(yaml.safe_load_all(SAMPLE))
    item, steps = policy, data.draw(st.integers(1, 5))
    for step in range(steps):
        if not isinstance(item, dict) or not item:
            break
        key = data.draw(st.sampled_from(sorted(item)))
        if step == steps - 1 or not isinstance(item[key], dict):
            item[key] = data.draw(ANYTHING)
            break
        item = item[key]
    outcome(yaml.safe_dump_all([policy, config_map]))


def _set(spec: dict[str, Any], path: str, value: object) -> None:
    *above, last = path.split(".")
    for name in above:
        if name.endswith("[]"):
            items = spec.setdefault(name.removesuffix("[]"), [{}])
            spec = items[0]
        else:
            spec = spec.setdefault(name, {})
    spec[last] = value


@quick
@given(st.data())
def test_every_key_of_a_right_file_is_honoured_or_named_in_a_note(data: st.DataObject) -> None:
    """Right by the schema; meaning may still be refused (a version that is none)."""
    plain = sorted(path for path in fields("clusterpolicy") if "[]" not in path)
    spec: dict[str, Any] = {}
    chosen = data.draw(st.lists(st.sampled_from(plain), min_size=1, max_size=6, unique=True))
    for path in chosen:
        leaf = fields("clusterpolicy")[path]
        value = st.sampled_from(leaf.choices) if leaf.choices else VALUES[leaf.type]
        _set(spec, path, data.draw(value))
    document = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "spec": spec}
    text = yaml.safe_dump(document)
    reading = outcome(text)
    if reading is None:
        return
    notes = " ".join(reading.notes)
    for path in chosen:
        section = path.partition(".")[0]
        if fields("clusterpolicy")[path].support is not Support.HONOURED:
            assert f"{path} (line " in notes or f"{section} (" in notes, (path, notes)


@quick
@given(st.text(max_size=60))
@example("\ud800")
@example("\x00")
@example("%YAML 9.9\n---\na: 1")
@example("? [a]\n: b")
@example("driver: !!float x")
@example("driver: {<<: 1}")
@example("0x_: 1\n0b: 2")
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    outcome(text)


@quick
@given(st.text("abc =()[]{}:'\"\n\\#@1.,+\t", max_size=40))
def test_any_python_text_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(PolicyError) as caught:
        python.run(text, "policy.py")
    assert str(caught.value).startswith("policy.py")
    assert "\n" not in str(caught.value)
