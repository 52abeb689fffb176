"""The lock file: the same bytes for the same content, read strictly, kept until asked to move."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gpustate.core.inventory import InventoryNode, VarsLayer
from gpustate.core.policy import Policy, layers_of, parameters, resolve
from gpustate.core.provenance import resolution
from gpustate.errors import PolicyError
from gpustate.package_sets import lock_layers
from gpustate.package_sets.driver_sets import Survey, resolve_all
from gpustate.solve import branches, document, keeping, lock
from gpustate.solve.keeping import Case
from gpustate.solve.lock import Lock, LockedSet, Platform, from_text, merge_sets, to_text
from gpustate.solve.request import DriverRequest, OfferedDriver, Solution
from gpustate.states.driver import DriverInstalled

H100 = "2330"
HERE = Platform("debian12", "bookworm", "x86_64", (H100,))
BRANCH = DriverRequest(branch=580)
NAMES = ("libcuda1", "nvidia-driver-cuda", "nvidia-kernel-open-dkms")


def schema(name: str) -> Any:
    text = resources.files("gpustate.solve").joinpath("schema", f"{name}.json").read_text("utf-8")
    return json.loads(text)


def case(
    version: str = "580.178.04",
    wanted: DriverRequest = BRANCH,
    *,
    offered: tuple[str, ...] = ("595.91.07", "580.178.04", "580.65.06"),
    platform: Platform = HERE,
    blocked: str = "",
    problem: str = "",
) -> Case:
    """A node on which the driver's state chooses a version."""
    drivers = tuple(
        OfferedDriver(v, "open", () if v.startswith("580") else ("the policy requests branch 580",))
        for v in offered
    )
    offers = {name: tuple(f"{v}-1" for v in offered) for name in NAMES}
    packages: dict[str, str] = {} if problem else dict.fromkeys(NAMES, f"{version}-1")
    return Case(
        wanted,
        platform,
        Solution(version, "open", packages, offers, drivers, problem),
        lambda v, kind: (f"blocked by compatibility rule {v}: it hangs",) if v == blocked else (),
    )


def one_set(wanted: DriverRequest = BRANCH, version: str = "580.65.06") -> LockedSet:
    return keeping.resolve(case(version, wanted), None).set  # type: ignore[return-value]


def a_lock(*nodes: str) -> Lock:
    return merge_sets(dict.fromkeys(nodes or ("gpu2", "gpu1"), one_set()))


TEXT = to_text(a_lock())

# --- the file --------------------------------------------------------------------------------


def test_what_is_written_is_read_back_and_is_of_the_schema() -> None:
    assert from_text(TEXT, "x") == a_lock()
    assert to_text(from_text(TEXT, "x")) == TEXT
    jsonschema.validate(json.loads(TEXT), schema("lock"))


def test_the_order_of_the_nodes_makes_no_difference() -> None:
    assert to_text(a_lock("b", "a", "c")) == to_text(a_lock("c", "b", "a"))


def changed(**keys: object) -> str:
    data = json.loads(TEXT)
    data["sets"][0].update(keys)
    return json.dumps(data)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not a lock file"),
        ("[" * 100_000, "nested too deep"),
        ("[]", "is a list, expected a mapping"),
        ("{}", "format: is missing"),
        ('{"format": "gpustate.lock/1"}', "format is 'gpustate.lock/1', expected gpustate.lock/2"),
        (
            '{"format": "gpustate.lock/2", "format": "x"}',
            "the key format is defined twice; solve again",
        ),
        (TEXT.replace('"sets"', '"format": 1,\n"sets"', 1), "gpustate.lock:3: the key format is"),
        ('{"format": NaN}', "gpustate.lock:1: NaN is not a JSON number; solve again"),
        ('{"format": ' + "1" * 5000 + "}", "is not a lock file"),
        (TEXT.replace('"sets"', '"set"'), "sets: is missing"),
        (changed(driver="latest"), "sets[0].driver: is 'latest', expected a driver version"),
        (changed(module_type=True), "sets[0].module_type: is 'True', expected open or proprietary"),
        (changed(nodes="gpu1"), "sets[0].nodes: is a string, expected a list"),
        (changed(nodes=["a", "a"]), "sets[0].nodes: has a duplicate item"),
        (changed(nodes=[1]), "sets[0].nodes[0]: is a number"),
        (changed(packages=[]), "sets[0].packages: is a list, expected a mapping"),
        (changed(packages={}), "sets[0].packages"),
        (
            changed(wanted={"branch": "580"}),
            "sets[0].wanted.branch: is a string, expected a whole number",
        ),
        (
            changed(wanted={"colour": 1}),
            "sets[0].wanted: unknown key colour, expected version, channel",
        ),
        (changed(driver="595.91.07"), "a mixed set"),
        (TEXT.replace("libcuda1", "lib cuda"), "sets[0].packages"),
        (TEXT.replace('"580.65.06-1"', '"580.65.06-1;rm -rf"', 1), "expected a plain word"),
    ],
)
def test_a_file_that_is_none_is_one_clear_error(text: str, said: str) -> None:
    with pytest.raises(PolicyError, match=r"^gpustate\.lock") as error:
        from_text(text, "gpustate.lock")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_node_in_two_sets_is_an_error() -> None:
    data = json.loads(TEXT)
    data["sets"].append(data["sets"][0])
    with pytest.raises(PolicyError, match=r"node gpu1 is in sets\[0\] and in sets\[1\]"):
        from_text(json.dumps(data), "x")


@pytest.mark.parametrize("content", [b"\xff\xfe", b"\0", b"{"])
def test_a_file_that_is_no_text_is_one_clear_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / lock.NAME
    path.write_bytes(content)
    with pytest.raises(PolicyError, match=str(path)):
        lock_layers.load(str(path))


# --- staying put -----------------------------------------------------------------------------


def test_a_locked_set_stays_although_something_newer_is_offered() -> None:
    had = a_lock().sets[0]
    assert keeping.resolve(case(), had).set == had
    moved = keeping.resolve(case(), had, update=True)
    assert (moved.how, moved.set and moved.set.driver) == ("moved", "580.178.04")


def test_a_node_like_others_joins_them_and_another_is_solved() -> None:
    had = a_lock().sets
    joined = keeping.resolve(case(), None, had)
    assert (joined.how, joined.set and joined.set.driver) == ("joined", "580.65.06")
    elsewhere = Platform("debian13", "trixie", "x86_64", (H100,))
    for node in (case(platform=elsewhere), case(offered=("580.178.04",))):
        solved = keeping.resolve(node, None, had)
        assert (solved.how, solved.set and solved.set.driver) == ("solved", "580.178.04")


def test_a_set_moves_when_the_policy_wants_something_else() -> None:
    wanted = DriverRequest(branch=595)
    moved = keeping.resolve(case("595.91.07", wanted), a_lock().sets[0])
    assert moved.why == "it was locked for branch 580, the policy now requests branch 595"
    assert moved.set is not None
    assert moved.set.driver == "595.91.07"


def test_a_locked_set_that_is_gone_or_blocked_stays_and_says_so() -> None:
    node = case(offered=("580.178.04",), blocked="580.65.06")
    kept = keeping.resolve(node, a_lock().sets[0])
    assert kept.how == "kept"
    assert [note.partition(" ")[0] for note in kept.notes] == ["no", "blocked"]


def test_what_cannot_be_installed_or_is_blocked_has_no_set() -> None:
    problem = "apt cannot install driver 580.178.04: it depends on dkms"
    assert keeping.resolve(case(problem=problem), None).why == problem
    blocked = keeping.resolve(case(blocked="580.178.04"), None)
    assert blocked.set is None
    assert blocked.why == (
        "driver 580.178.04: blocked by compatibility rule 580.178.04: it hangs; request another version or branch"
    )


# --- outdated --------------------------------------------------------------------------------


def test_outdated_says_of_each_newer_driver_why_it_is_or_is_not_allowed() -> None:
    result = keeping.outdated(a_lock().sets[0], case(blocked="595.91.07"), "2029-01")
    obstacles = {one.version: one.obstacles for one in result.newer}
    assert obstacles == {
        "595.91.07": (
            "the policy requests branch 580",
            "blocked by compatibility rule 595.91.07: it hangs",
        ),
        "580.178.04": (),
    }
    assert result.allowed is not None
    assert result.notes == ("branch 580 is past its end of support (2028-06)",)
    data = document.outdated_data([result], {"gpu9": "unreachable"})
    jsonschema.validate(data, schema("outdated"))
    text = document.outdated_text([result], {})
    assert "595.91.07 open  not allowed:" in text
    assert "- blocked by compatibility rule 595.91.07: it hangs" in text
    assert text.endswith("sets=1 updates=1 troubles=0\n")


def test_the_newest_long_term_branch_is_620() -> None:
    assert branches.in_channel("620.22", "latest-lts")
    assert branches.support_ended("620.22", "2029-09") is None
    assert branches.support_ended("615.71.09", "2026-11") == "past"


def test_what_was_solved_is_of_its_schema() -> None:
    found = Survey({"gpu1": case(), "gpu2": case(problem="no set")}, skipped={"gpu3": "no GPU"})
    solved = resolve_all(found, Lock())
    troubles = {"refused": solved.refused, "unreachable": {}, "skipped": found.skipped}
    data = document.solve_data(solved.resolutions, troubles, path="gpustate.lock", changed=True)
    jsonschema.validate(data, schema("solve"))
    text = document.solve_text(solved.resolutions, troubles, path="gpustate.lock", changed=True)
    assert "gpu2: refused: no set" in text
    assert text.splitlines()[-1] == (
        "nodes=3 solved=1 joined=0 kept=0 moved=0 refused=1 unreachable=0 skipped=1"
    )


# --- in plans --------------------------------------------------------------------------------


def locked_driver(policy: Policy, node: InventoryNode, made: Lock) -> Any:
    whole = lock_layers.onto(policy, (node,), made, "gpustate.lock")
    assert node.layers == () or [layer.scope for layer in node.layers] == ["node"]
    (state,) = resolve(whole, node).states
    return state


def test_a_lock_is_the_last_word_about_the_driver() -> None:
    said = VarsLayer("node", "gpu1", {"driver": {"branch": 580, "load": False}}, "host_vars/gpu1")
    node = InventoryNode("gpu1", layers=(said,))
    driver = locked_driver(Policy(DriverInstalled(branch=570)), node, a_lock())
    assert (driver.version, driver.module_type, driver.load) == ("580.65.06", "open", False)
    assert driver.locked == dict(one_set().packages)


def test_a_lock_for_a_channel_replaces_it() -> None:
    made = merge_sets({"gpu1": one_set(DriverRequest(channel="latest-lts"))})
    driver = locked_driver(
        Policy(DriverInstalled(version="latest-lts")), InventoryNode("gpu1"), made
    )
    assert driver.version == "580.65.06"


@pytest.mark.parametrize(
    ("state", "node", "said"),
    [
        (DriverInstalled(branch=580), "gpu9", "has no set for node gpu9"),
        (DriverInstalled(branch=595), "gpu1", "locks node gpu1 for branch 580, but the policy"),
        (DriverInstalled(branch=580, packages="full"), "gpu1", "other modules or packages"),
    ],
)
def test_a_lock_for_something_else_is_refused(state: DriverInstalled, node: str, said: str) -> None:
    with pytest.raises(PolicyError, match="update the lock file: gpustate driver solve") as error:
        locked_driver(Policy(state), InventoryNode(node), a_lock())
    assert said in str(error.value)


def test_a_policy_without_a_driver_needs_no_lock() -> None:
    absent = DriverInstalled(ensure="absent")
    assert locked_driver(Policy(absent), InventoryNode("gpu9"), a_lock()) == absent


def test_a_thousand_nodes_with_twenty_sets_are_locked_in_well_under_a_second() -> None:
    import time

    sets = {
        f"gpu{n}": replace(
            one_set(), platform=Platform("debian12", "bookworm", "x86_64", (f"{n:04x}",))
        )
        for n in range(20)
    }
    many = {f"node{n}": sets[f"gpu{n % 20}"] for n in range(1000)}
    before = time.process_time()
    made = from_text(to_text(merge_sets(many)), "x")
    nodes = [InventoryNode(name) for name in many]
    policy = lock_layers.onto(Policy(DriverInstalled(branch=580)), nodes, made, "x")
    found = {id(resolve(policy, node).states) for node in nodes}
    assert len(found) == 20, "nodes with one set share their states"
    assert len(made.sets) == 20
    assert time.process_time() - before < 1.0


# --- images and nodes that left --------------------------------------------------------------


def image_driver(made: Lock, **said: Any) -> Any:
    policy = Policy(DriverInstalled(**said))
    node = InventoryNode("/mnt")
    whole = lock_layers.onto_image(policy, node, made, "gpustate.lock")
    (state,) = resolve(whole, node).states
    return state


def test_a_lock_is_a_part_of_the_policy_and_of_what_is_made_from_it() -> None:
    node = InventoryNode("gpu1")
    whole = lock_layers.onto(Policy(DriverInstalled(branch=580)), (node,), a_lock(), "site.lock")
    for policy in (whole, whole.with_ensure("absent"), whole.with_states(*whole.states)):
        (state,) = resolve(policy, node).states
        assert parameters(state)["version"] == "580.65.06"
    assert whole.layers_data() == {}, "a saved plan has the lock itself"
    again = lock_layers.onto(whole, (node,), a_lock(), "site.lock")
    assert resolve(again, node).states == resolve(whole, node).states
    assert resolve(whole.with_locks({}, ""), node).states == (DriverInstalled(branch=580),)


def test_a_value_of_the_lock_file_names_it_and_yields_to_the_command_line() -> None:
    policy = Policy(
        DriverInstalled(branch=580, module_type="auto"), last=[("states", "driver", "load")]
    )
    whole = lock_layers.onto(policy, (InventoryNode("gpu1"),), a_lock(), "site.lock")
    found = {one.path: one.trace for one in resolution(whole, InventoryNode("gpu1")).values}
    assert (found["driver", "version"][-1].layer, found["driver", "version"][-1].place) == (
        "lock file",
        "site.lock",
    )
    assert layers_of(whole, InventoryNode("gpu1"))[-1].scope == "command line"


def test_an_image_gets_the_one_set_that_the_lock_has_for_its_policy() -> None:
    elsewhere = replace(one_set(), request=DriverRequest(branch=570))
    made = Lock((*a_lock().sets, elsewhere))
    driver = image_driver(made, branch=580)
    assert (driver.version, driver.locked) == ("580.65.06", dict(one_set().packages))


def test_an_image_is_refused_where_the_lock_has_none_or_several_sets() -> None:
    with pytest.raises(PolicyError, match="has no set for branch 595"):
        image_driver(a_lock(), branch=595)
    both = merge_sets({"gpu1": one_set(), "gpu2": one_set(version="580.178.04")})
    with pytest.raises(PolicyError, match="has 2 sets for branch 580") as error:
        image_driver(both, branch=580)
    assert "580.178.04 open, 580.65.06 open" in str(error.value)
    assert "--node NODE" in str(error.value)


def test_one_set_for_two_kinds_of_nodes_is_one_set_for_an_image() -> None:
    other = replace(one_set(), platform=replace(HERE, gpus=("2331",)))
    assert image_driver(merge_sets({"a": one_set(), "b": other}), branch=580).version == "580.65.06"


def test_an_image_without_a_driver_needs_no_set() -> None:
    assert image_driver(Lock(), ensure="absent").locked == {}


def test_nodes_leave_the_lock_only_when_they_are_said_to() -> None:
    had = a_lock("gpu1", "gpu2", "gpu3")
    assert resolve_all(Survey(), had).lock.sets == had.sets
    pruned = resolve_all(Survey(), had, absent_nodes=["gpu1", "gpu3"]).lock
    assert [one.nodes for one in pruned.sets] == [("gpu2",)]
    assert resolve_all(Survey(), had, absent_nodes=had.by_node()).lock.sets == ()


def test_nodes_that_left_the_inventory_are_told() -> None:
    troubles: dict[str, dict[str, str]] = {"refused": {}, "unreachable": {}, "skipped": {}}
    data = document.solve_data(
        {}, troubles, path="x", changed=True, absent_nodes=["gpu7"], pruned=True
    )
    jsonschema.validate(data, schema("solve"))
    assert (data["gone"], data["pruned"]) == (["gpu7"], True)
    stay = document.solve_text({}, troubles, path="x", changed=False, absent_nodes=["gpu7"])
    assert "not in the inventory, still locked; remove them with --prune: gpu7" in stay
