"""Plans of a node: modes by architecture, what goes and who uses it, refusals that prove themselves."""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError

from gpustate.core.change import Disruption
from gpustate.errors import RefusedError, UsageError
from gpustate.mig import config, document, layout, refute, tables
from gpustate.mig.config import Config, Entry
from gpustate.mig.geometry import ComputeProfile, Geometry, Media, Profile
from gpustate.mig.layout import ComputeInstance, GpuInstance, GpuLayout, Layout, Users
from gpustate.mig.plan import NodePlan, plan

A100, H100, RTX, T4 = "20b2", "2330", "2bb5", "1eb8"


def schema(name: str) -> Draft202012Validator:
    text = resources.files("gpustate.plan").joinpath("schema", f"{name}.json").read_text("utf-8")
    Draft202012Validator.check_schema(json.loads(text))
    return Draft202012Validator(json.loads(text))


PLAN, LAYOUT = schema("mig-plan"), schema("mig-layout")


def whole(number: int, profile: str, start: int, users: Users = ()) -> GpuInstance:
    slices = int(profile.split("g.")[0])
    return GpuInstance(
        id=number,
        profile=profile,
        start=start,
        compute=(ComputeInstance(id=0, slices=slices, users=users),),
    )


def one(
    device: str,
    wanted: dict[str, int] | None,
    *instances: GpuInstance,
    now: bool | None = True,
    pending: bool | None = None,
    indices: tuple[int, ...] | None = None,
) -> NodePlan:
    gpu = GpuLayout(
        index=0, device_id=device, enabled=now, pending=pending, instances=tuple(instances)
    )
    entry = Entry(wanted is not None, wanted or {}, indices, place="mig.yaml:7")
    made = plan(Config("asked", (entry,)), Layout(gpus=(gpu,)))
    PLAN.validate(document.as_data(made))
    return made


def steps(made: NodePlan) -> list[str]:
    return [step.do for gpu in made.gpus for step in gpu.steps]


def test_ampere_needs_a_reset_to_change_its_mode_and_hopper_only_quiet() -> None:
    ampere, hopper = one(A100, {}, now=False), one(H100, {}, now=False)
    assert (steps(ampere), ampere.disruption) == (["set-mode", "reset"], Disruption.RESET)
    assert (steps(hopper), hopper.disruption) == (["set-mode"], Disruption.DRAIN)
    assert "the GPU must not be in use, no reset" in hopper.gpus[0].why[0]
    assert "the node must be rebooted" in ampere.gpus[0].notes[-1]


def test_a_mode_that_waits_for_its_reset_is_not_set_again() -> None:
    made = one(A100, {}, now=False, pending=True)
    assert steps(made) == ["reset"]
    assert "already pending" in made.gpus[0].why[0]


def test_a_pending_mode_that_nobody_wants_is_taken_back_at_no_cost() -> None:
    made = one(A100, {}, now=True, pending=False)
    assert [(s.do, s.data) for s in made.gpus[0].steps] == [("set-mode", {"enabled": True})]
    assert made.disruption is Disruption.NONE


def test_an_architecture_nobody_knows_is_taken_to_need_a_reset() -> None:
    assert one("ffff", {}, now=False).disruption is Disruption.RESET


def test_turning_mig_off_takes_every_instance_and_names_their_users() -> None:
    made = one(A100, None, whole(1, "3g.40gb", 0, ("pod a/b",)), whole(2, "1g.10gb", 4))
    assert steps(made) == [
        *["destroy-compute-instance", "destroy-gpu-instance"] * 2,
        "set-mode",
        "reset",
    ]
    text = document.as_text(made)
    assert "disruption: reset" in text
    assert "- 3g.40gb at 0 (GPU instance 1)" in text
    data = document.as_data(made)["gpus"][0]["steps"]
    assert data[0]["users"] == ["pod a/b"]


def test_what_is_wanted_already_is_nothing_to_do() -> None:
    made = one(H100, {"1g.10gb": 2}, whole(4, "1g.10gb", 6, ("pod",)), whole(9, "1g.10gb", 1))
    assert not made
    assert "nothing to do" in document.as_text(made)


def test_the_instance_in_use_stays_and_the_idle_ones_go() -> None:
    made = one(
        H100,
        {"3g.40gb": 1, "1g.10gb": 2},
        whole(1, "1g.10gb", 0, ("pod",)),
        whole(2, "1g.10gb", 4),
        whole(3, "1g.10gb", 5),
    )
    assert [kept.instance.id for kept in made.gpus[0].change.preserved] == [1]
    assert made.disruption is Disruption.NONE
    assert [(c.profile, c.span.start) for c in made.gpus[0].change.created][-1] == ("3g.40gb", 4)


def test_a_loss_that_cannot_be_avoided_is_a_drain_with_names() -> None:
    made = one(H100, {"7g.80gb": 1}, whole(1, "1g.10gb", 0, ("pod", "job 7")))
    assert made.disruption is Disruption.DRAIN
    assert "used by pod, job 7" in document.as_text(made)


def test_an_instance_nobody_looked_at_is_taken_for_used() -> None:
    made = one(H100, {}, whole(1, "1g.10gb", 0, None))
    assert made.disruption is Disruption.DRAIN
    assert "its use is unknown" in made.gpus[0].why[0]


def test_what_is_in_use_goes_first_so_that_nothing_is_lost_when_it_does_not_go() -> None:
    made = one(H100, {}, whole(1, "1g.10gb", 0), whole(2, "1g.10gb", 1, ("pod",)))
    gone = [s.data["gpu_instance"] for s in made.gpus[0].steps if s.do == "destroy-gpu-instance"]
    assert gone == [2, 1]


def test_new_instances_leave_room_for_large_ones() -> None:
    made = one(H100, {"1g.10gb": 1})
    assert made.gpus[0].change.created[0].span.start == 6


def test_compute_instances_of_an_instance_in_use_are_changed_around_it() -> None:
    present = GpuInstance(
        id=1,
        profile="3g.40gb",
        start=4,
        compute=(
            ComputeInstance(id=0, slices=1, start=2, users=("pod",)),
            ComputeInstance(id=1, slices=1, start=0, users=()),
        ),
    )
    made = one(H100, {"1c.3g.40gb": 1, "2c.3g.40gb": 1}, present)
    kept = made.gpus[0].change.preserved[0]
    assert [c.id for c in kept.compute] == [0]
    assert [tuple(span) for span in kept.created] == [(0, 2)]
    assert steps(made) == ["destroy-compute-instance", "create-compute-instance"]
    assert made.disruption is Disruption.NONE
    text = document.as_text(made)
    assert "-   1c.3g.40gb (compute instance 1 of GPU instance 1)" in text
    assert "+   2c.3g.40gb at 0 of the instance at 4" in text


def test_an_earlier_name_of_a_profile_is_the_same_profile() -> None:
    made = one("2941", {"3g.95gb": 1}, whole(1, "3g.93gb", 4, ("pod",)))
    assert not made


def test_a_number_that_no_gpu_has_is_noted() -> None:
    made = one(H100, {}, indices=(0, 5, 9))
    assert made.notes == (
        "mig.yaml:7: GPU 5, 9 of devices does not exist: the node has GPUs 0 to 0",
    )
    assert "note: mig.yaml:7: GPU 5, 9" in document.as_text(made)
    assert one(H100, {}, indices=(0,)).notes == ()
    assert "notes" not in document.as_data(one(H100, {}))


def test_of_two_entries_for_one_gpu_the_last_counts_and_that_is_noted() -> None:
    gpus = tuple(GpuLayout(index=i, device_id=H100, enabled=False) for i in range(3))
    on, off = (
        Entry(on, {}, (0, 1), place=f"mig.yaml:{line}") for on, line in ((True, 4), (False, 7))
    )
    rest = Entry(True, {}, (2,), place="mig.yaml:9")
    made = plan(Config("asked", (on, off, rest, rest)), Layout(gpus=gpus))
    assert [gpu.entry and gpu.entry.enabled for gpu in made.gpus] == [False, False, True]
    assert made.notes == ("mig.yaml:7: overrides mig.yaml:4 for GPU 0, 1",)


def test_gpus_that_the_configuration_leaves_out_or_that_have_no_mig_stay_as_they_are() -> None:
    assert "not changed" in one(H100, {}, indices=(5,)).gpus[0].notes[0]
    assert "does not support MIG" in one(T4, {"1g.5gb": 1}, now=None).gpus[0].notes[0]
    with pytest.raises(
        RefusedError, match=r"mig\.yaml:7: GPU 0 .*: it does not support MIG; remove"
    ):
        one(T4, {"1g.5gb": 1}, now=None, indices=(0,))


BY_BOARD = """version: v1
mig-configs:
  all-disabled:
    - {devices: all, mig-enabled: false}
  all-1g.5gb:
    - {devices: all, mig-enabled: true, mig-devices: {1g.5gb: 7}}
  all-1g.35gb:
    - {device-filter: ["0x233510DE"], devices: all, mig-enabled: true, mig-devices: {1g.35gb: 4}}
  all-1g.10gb:
    - {device-filter: ["0x233010DE"], devices: all, mig-enabled: true, mig-devices: {1g.10gb: 7}}
"""
H200 = "2335"


def by_board(name: str, *devices: str) -> NodePlan:
    gpus = (
        GpuLayout(index=index, device_id=device, enabled=None if device == T4 else False)
        for index, device in enumerate(devices)
    )
    return plan(config.read(BY_BOARD, "mig.yaml").config(name), Layout(gpus=tuple(gpus)))


def test_layout_for_other_boards_is_refused_with_the_names_that_fit() -> None:
    with pytest.raises(RefusedError) as caught:
        by_board("all-1g.35gb", H100, T4)
    assert str(caught.value) == (
        "mig.yaml:7: no entry of all-1g.35gb matches a GPU of this node (H100 80GB HBM3); "
        "the file has for it: all-1g.10gb, all-disabled"
    )
    assert not by_board("all-1g.35gb", T4), "nothing to divide, as in a group of several boards"


def test_gpu_without_an_entry_beside_a_covered_one_is_named() -> None:
    made = by_board("all-1g.35gb", H200, H100, T4)
    assert made.notes == ("GPU 1 (H100 80GB HBM3): no entry of all-1g.35gb: not changed",)
    assert len(made.gpus[0].change.created) == 4


@pytest.mark.parametrize(
    ("device", "wanted", "said"),
    [
        (H100, {"1g.5gb": 7}, "1g.5gb is not a profile of this GPU, it has 1g.20gb, 1g.10gb"),
        (H100, {"1g.10gb": 8}, "8 x 1g.10gb requested, but a GPU has at most 7"),
        (
            H100,
            {"3g.40gb": 2, "1g.10gb": 1},
            "9 memory slices requested, but the GPU has 8 (3g.40gb: 2 x 4, 1g.10gb: 1 x 1)",
        ),
        (H100, {"3c.4g.40gb": 1}, "it has 1c.4g.40gb, 2c.4g.40gb, 4g.40gb"),
        (H100, {"1c.3g.40gb": 7}, "3 x 3g.40gb requested, but a GPU has at most 2"),
        (
            "20b7",
            {"1g.6gb+me": 1, "2g.12gb+me": 1},
            "2 JPEG engines requested, but the GPU has 1 (1g.6gb+me: 1 x 1, 2g.12gb+me: 1 x 1)",
        ),
        (RTX, {"1g.24gb+me.all": 1, "1g.24gb": 1}, "5 NVDEC engines requested, but the GPU has 4"),
        ("2bb3", {"1g.24gb": 1}, "its profiles are unknown (its placements are not published"),
        ("ffff", {"1g.24gb": 1}, "its profiles are unknown (it is not in the tables)"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_reason(
    device: str, wanted: dict[str, int], said: str
) -> None:
    with pytest.raises(RefusedError) as caught:
        one(device, wanted, now=True)
    assert said in str(caught.value)
    assert str(caught.value).startswith("mig.yaml:7: GPU 0 (")


def test_all_media_engines_in_one_instance_leave_the_others_without() -> None:
    assert one(RTX, {"1g.24gb+me.all": 1, "1g.24gb-me": 3})


#: A GPU that no table has, on which the places alone can be in the way.
ODD = Geometry(
    8,
    8,
    (
        Profile("4g.40gb", 4, 4, (0,), 1, Media(), (ComputeProfile(4, (0,)),)),
        Profile("2g.20gb", 2, 2, (0, 2, 4), 3, Media(), (ComputeProfile(2, (0,)),)),
        Profile("1g.10gb", 1, 1, (0, 1, 7), 3, Media(), (ComputeProfile(1, (0,)),)),
    ),
)


def test_a_conflict_of_places_is_told_with_what_stands_in_the_way() -> None:
    why = refute.why_not(ODD, {"4g.40gb": 1, "2g.20gb": 2})
    assert why[0] == "1 x 4g.40gb + 2 x 2g.20gb do not fit together in any arrangement"
    assert why[1:] == [
        "with 4g.40gb at 0-3, 2g.20gb at 4-5: no room for 2g.20gb, whose placements are "
        "0-1, 2-3, 4-5"
    ]
    assert refute.why_not(ODD, {"4g.40gb": 1, "2g.20gb": 1, "1g.10gb": 1}) == []


def test_a_conflict_leaves_out_what_is_not_in_the_way() -> None:
    why = refute.why_not(ODD, {"4g.40gb": 1, "2g.20gb": 1, "1g.10gb": 2})
    assert why[0] == "1 x 4g.40gb + 2 x 1g.10gb do not fit together in any arrangement"


LIVE: dict[str, Any] = {
    "memory_slices": 2,
    "compute_slices": 2,
    "media": {"JPEG": 1},
    "profiles": [
        {
            "name": "1g.12gb",
            "slices": 1,
            "size": 1,
            "starts": [0, 1],
            "most": 2,
            "compute": [{"slices": 1, "starts": [0], "nvml_id": 0}],
        }
    ],
}


def saved(*, count: int = 1, **gpu: Any) -> str:
    first = {"index": 0, "device_id": H100, "enabled": True, **gpu}
    return json.dumps({"format": layout.FORMAT, "gpus": [first] * count})


def test_what_nvml_says_wins_over_the_tables() -> None:
    read = layout.read(saved(geometry=LIVE), "now.json")
    assert read.gpus[0].profiles() is not None
    made = plan(Config("asked", (Entry(True, {"1g.12gb": 2}),)), read)
    assert document.as_data(made)["gpus"][0]["profiles_from"] == "NVML"
    with pytest.raises(RefusedError, match=r"1g\.10gb is not a profile of this GPU"):
        plan(Config("asked", (Entry(True, {"1g.10gb": 1}),)), read)


def test_a_layout_survives_being_saved() -> None:
    instances = (whole(3, "1g.10gb", 2, None), whole(4, "3g.40gb", 4, ("pod",)))
    gpu = GpuLayout(index=0, device_id=H100, enabled=True, pending=False, instances=instances)
    data = layout.as_data(Layout(gpus=(gpu,)))
    LAYOUT.validate(data)
    assert layout.read(json.dumps(data), "x") == Layout(gpus=(gpu,))
    LAYOUT.validate(json.loads(saved(geometry=LIVE)))


def instance(**changes: Any) -> list[dict[str, Any]]:
    return [{"id": 1, "profile": "1g.10gb", "start": 0, **changes}]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON (line 1"),
        ("[" * 100_000, "is not JSON"),
        ("{}", "is not a layout (gpustate.mig-layout/1)"),
        (saved(device_id="0x2330"), "gpus.0.device_id: "),
        (saved(enabled="yes"), "gpus.0.enabled: "),
        (saved(colour=1), "gpus.0.colour: Extra inputs are not permitted"),
        (saved(count=2), "GPU 0: is entry 1: entries must be in PCI order"),
        (saved(enabled=False, instances=instance()), "has instances, but MIG is not enabled"),
        (saved(instances=instance(profile="1g.5gb")), "1g.5gb is not a profile of this GPU"),
        (saved(instances=instance(profile="1c.3g.40gb")), "wanted the name of a GPU instance"),
        (saved(instances=instance(start=7)), "1g.10gb cannot begin at 7, only at 0, 1"),
        (saved(instances=instance(start=10**9)), "gpus.0.instances.0.start: "),
        (saved(instances=instance() * 2), "two GPU instances have the same id"),
        (
            saved(instances=[*instance(), *instance(id=2, profile="2g.20gb")]),
            "GPU instance 2 overlaps another one",
        ),
        (
            saved(instances=instance(compute=[{"id": 0, "slices": 2}])),
            "no compute instance of 2 slices can begin at 0",
        ),
        (saved(device_id="2bb3", instances=instance()), "add those reported by NVML"),
        (saved(geometry={**LIVE, "memory_slices": 10**9}), "gpus.0.geometry.memory_slices: "),
        (saved(geometry={**LIVE, "media": {"GPU": 1}}), "gpus.0.geometry.media"),
    ],
)
def test_a_layout_that_cannot_be_is_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        layout.read(text, "now.json")
    assert str(caught.value).startswith("now.json: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_gpus_of_one_fate_are_told_once() -> None:
    made = plan(
        Config("asked", (Entry(True, {"1g.10gb": 1}),)), layout.empty(tables.find("2330"), 3)
    )
    text = document.as_text(made)
    assert text.count("+ 1g.10gb at 6") == 1
    assert text.startswith("GPU 0, 1, 2 (H100 80GB HBM3): disruption: drain\n")
    last = "asked: GPU instances kept=0 destroyed=0 created=3 disruption=drain\n"
    assert text.endswith(last)


def test_the_schema_of_a_plan_takes_nothing_else() -> None:
    data = document.as_data(one(H100, {"1g.10gb": 1}))
    data["gpus"][0]["steps"][0]["more"] = 1
    with pytest.raises(ValidationError):
        PLAN.validate(data)
