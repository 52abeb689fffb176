"""Policies and their parameters: everything wrong is one line with the place and what is wanted."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from filestates import file_state
from pydantic import Field

from gpustate import Policy, PolicyError, where
from gpustate.core.inventory import InventoryNode
from gpustate.core.policy import build, parameters, resolve
from gpustate.core.state import State


class Driver(file_state("driver")):  # type: ignore[misc]
    """A state with parameters of many kinds."""

    branch: Annotated[int, Field(ge=400, le=999)] | None = None
    kind: Literal["open", "proprietary"] = "open"
    names: tuple[str, ...] = ()
    options: dict[str, int | str] = Field(default_factory=dict)


Other = file_state("other")


def node(overrides: Any, origins: dict[str, str] | None = None) -> InventoryNode:
    return InventoryNode("gpu1", vars={"gpustate": overrides}, origins=origins or {})


def message(*states: State[Any], overrides: Any, origins: dict[str, str] | None = None) -> str:
    with pytest.raises(PolicyError) as caught:
        resolve(Policy(*states), node(overrides, origins))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_one_name_twice_is_an_error() -> None:
    with pytest.raises(PolicyError, match="state 'driver' is defined twice; keep one"):
        Policy(Driver(), Other(), Driver(branch=570))


@pytest.mark.parametrize("value", [Driver, "driver", None])
def test_what_is_no_state_is_an_error(value: Any) -> None:
    with pytest.raises(PolicyError, match="is not a state; call the state class"):
        Policy(value)


@pytest.mark.parametrize("cluster", [{}, {"dcgm": {}}, "dcgm", 1])
def test_what_is_no_settings_of_a_cluster_is_an_error_that_says_what_to_write(cluster: Any) -> None:
    with pytest.raises(PolicyError, match="wanted settings") as caught:
        Policy(cluster=cluster)
    assert "ClusterSettings" in (caught.value.fix or "")


def test_a_policy_shows_its_states() -> None:
    assert repr(Policy(Driver(), Other())) == "Policy(driver, other)"


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"brnch": 570}, "driver: no parameter 'brnch'; did you mean 'branch'"),
        ({"zzz": 1}, "driver: no parameter 'zzz'; it has branch, cost, ensure, kind"),
        (
            {"branch": "570"},
            "driver: branch: wanted a whole number (given: '570', which is text; quotes make it that)",
        ),
        ({"branch": 57}, "driver: branch: wanted 400 or more (given: 57)"),
        ({"branch": 570.5}, "driver: branch: wanted a whole number (given: 570.5)"),
        ({"kind": "opem"}, "driver: kind: wanted 'open' or 'proprietary' (given: 'opem')"),
        ({"ensure": "gone"}, "driver: ensure: wanted 'present' or 'absent'"),
        ({"names": "a"}, "driver: names: wanted a list (given: 'a')"),
        ({"only": "group(gpu)"}, "driver: condition 'group(gpu)': 'gpu' is not a value"),
        ({"only": 7}, "driver: only: "),
        ({"branch": object()}, "driver: Object of type object is not JSON serializable"),
        ({"branch": 1, "kind": "x"}, "; kind: wanted 'open'"),
    ],
)
def test_a_wrong_parameter_is_named_with_what_was_given(values: Any, told: str) -> None:
    with pytest.raises(PolicyError) as caught:
        build(Driver, values, place="policy.yaml:3")
    text = str(caught.value)
    assert text.startswith("policy.yaml:3: driver: ")
    assert told in text
    assert "\n" not in text


def test_only_the_parameters_that_were_given_are_kept() -> None:
    state = Driver(branch=570, only=where.group("a") & ~where.gpu, names=("x",))
    kept = parameters(state)
    assert kept == {"branch": 570, "only": "(group('a') & ~gpu)", "names": ["x"]}
    assert build(Driver, kept) == state


def test_removal_keeps_parameters_and_notes() -> None:
    gone = Policy(Driver(branch=570), Other(), name="p", notes=("n",)).with_ensure("absent")
    assert [(s.name, s.ensure) for s in gone.states] == [("driver", "absent"), ("other", "absent")]
    assert gone.states[0] == Driver(branch=570, ensure="absent")
    assert (gone.name, gone.notes) == ("p", ("n",))


def test_a_node_without_overrides_has_the_policy_s_own_states() -> None:
    policy = Policy(Driver(), Other())
    assert resolve(policy, InventoryNode("gpu1")).states == policy.states


def test_overrides_of_a_node_replace_single_parameters() -> None:
    resolved = resolve(
        Policy(Driver(branch=580, kind="open"), Other()),
        node({"driver": {"branch": 570, "options": {"a": 1}}}),
    )
    assert resolved.states == (Driver(branch=570, kind="open", options={"a": 1}), Other())
    assert resolved.notes == ()


def test_an_override_may_say_where_a_state_applies() -> None:
    resolved = resolve(Policy(Driver()), node({"driver": {"only": "group('x')"}}))
    assert resolved.states[0].only == where.group("x")


def test_an_override_of_a_state_that_the_policy_lacks_is_a_note() -> None:
    resolved = resolve(
        Policy(Other()), node({"driver": {"branch": 570}}, {"gpustate": "all.yml:2"})
    )
    assert resolved.notes == (
        "all.yml:2: gpu1: gpustate.driver: the policy has no such state; ignored",
    )


def test_an_override_of_a_state_that_nobody_has_is_an_error_with_the_nearest_name() -> None:
    overrides = node({"drivr": {"branch": 570}}, {"gpustate": "all.yml:2"})
    with pytest.raises(
        PolicyError,
        match=r"all\.yml:2: gpu1: gpustate: there is no state 'drivr'; did you mean 'driver'",
    ):
        resolve(Policy(Other()), overrides, registered=("driver", "other"))
    other = resolve(
        Policy(Other()), node({"driver": {"branch": 570}}), registered=("driver", "other")
    )
    assert other.notes == ()


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["driver"], "must map states to parameters, is ['driver']"),
        ("driver", "must map states to parameters, is 'driver'"),
        ({"driver": 570}, "driver: must map parameters to values, is 570"),
        ({"driver": {"branch": "x"}}, "driver: branch: wanted a whole number (given: 'x')"),
        ({"driver": {"brnch": 1}}, "driver: no parameter 'brnch'; did you mean 'branch'"),
        ({"driver": {1: 2}}, "driver: no parameter '1'"),
    ],
)
def test_a_wrong_override_names_its_place_in_the_inventory(overrides: Any, told: str) -> None:
    text = message(Driver(), overrides=overrides, origins={"gpustate": "group_vars/a.yml:3"})
    assert text.startswith("group_vars/a.yml:3: gpu1: gpustate: ")
    assert told in text


def test_without_a_known_place_the_inventory_is_named() -> None:
    assert message(Driver(), overrides=7).startswith("inventory: gpu1: gpustate: ")


def test_what_is_wrong_is_told_in_one_short_line_whatever_was_given() -> None:
    harm = {f"x\x1b\u2028{n}": "y" * 5000 for n in range(20)}
    said = message(Driver(), overrides={"driver": harm})
    assert said.isprintable()
    assert len(said) < 1500
    assert "and 15 more" in said


def test_what_is_nested_too_deep_for_a_parameter_is_one_error() -> None:
    value: Any = "x"
    for _ in range(3000):
        value = [value]
    with pytest.raises(PolicyError, match="nested too deep"):
        build(Driver, {"names": value})
