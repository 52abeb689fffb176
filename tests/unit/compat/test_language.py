"""Versions, facts and conditions: what they mean, and what they say of what is not known."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gpustate import compat
from gpustate.compat import reading
from gpustate.compat.conditions import Condition
from gpustate.compat.versions import parse
from gpustate.errors import PolicyError, UsageError

ORDER = [
    "1.18.0",
    "1.19.0-rc.1",
    "1.19.0~rc7",
    "v1.19.0",
    "1:1.19.1-1",
    "1.19.2+k3s1",
    "1.19.10~ds1-1+deb12u1",
    "1.20.0",
    "2.0",
]


@pytest.mark.parametrize(("left", "right"), list(pairwise(ORDER)))
def test_versions_order_as_their_makers_mean_it(left: str, right: str) -> None:
    assert parse(left, 1).signs(parse(right, 1)) == {-1}
    assert parse(right, 1).signs(parse(left, 1)) == {1}


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("6.12.74+deb13+1-amd64", (6, 12, 74)),
        ("4.18.0-553.89.1.el8_10.x86_64", (4, 18, 0)),
        ("580.65.06", (580, 65, 6)),
    ],
)
def test_what_a_distribution_adds_is_left_out(text: str, parts: tuple[int, ...]) -> None:
    assert parse(text, 2).parts == parts


@pytest.mark.parametrize("text", ["", "latest", "580.x", "-1", "1..2", "1.2 3", "½", "580;rm"])
def test_what_is_no_version_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="not a version"):
        parse(text, 2)


@pytest.mark.parametrize(
    ("known", "bound", "signs"),
    [
        ("580", "570.133.20", {1}),
        ("570", "570.133.20", {-1, 0, 1}),
        ("550", "570.133.20", {-1}),
        ("6.8", "6.8", {0, 1}),
        ("6.8", "6.9", {-1}),
    ],
)
def test_the_beginning_of_a_version_says_what_it_can(
    known: str, bound: str, signs: set[int]
) -> None:
    assert parse(known, 3).signs(parse(bound, 1)) == signs


def test_facts_have_aliases_and_forms_that_people_write() -> None:
    known = compat.facts(
        {"Driver version": "1:580.65.06-0ubuntu1", "GPUs": "8x NVIDIA H100, L40S", "k8s": "v1.34.2"}
    )
    assert str(known["driver"]) == "580.65.06"
    assert known["gpu"] == {"H100", "L40S"}
    assert known["arch"] == {"hopper", "ada"}
    assert str(compat.facts({"os": "ubuntu24.04"})["os_version"]) == "24.04"
    assert compat.facts({"toolkit": "none"})["toolkit"] is None


#: Names of nvidia-smi, by the model of the matrix.
PRODUCTS = {
    "H100": ("NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "NVIDIA H100 NVL"),
    "A100": ("NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe", "8xA100"),
    "V100": ("Tesla V100-SXM2-32GB",),
    "GH200": ("NVIDIA GH200 480GB",),
    "RTX6000ADA": ("NVIDIA RTX 6000 Ada Generation",),
    "A5000": ("NVIDIA RTX A5000", "RTXA5000"),
    "P4000": ("Quadro P4000",),
    "GTX1050TI": ("NVIDIA GeForce GTX 1050 Ti",),
    "RTXPRO6000": ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",),
}


@pytest.mark.parametrize("model", PRODUCTS)
def test_a_gpu_has_the_name_that_nvidia_smi_prints(model: str) -> None:
    assert {str(compat.facts({"gpu": name})["gpu"]) for name in PRODUCTS[model]} == {
        str(frozenset({model}))
    }


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"gpu": "Quadro K2200"}, "did you mean K80 or K40"),
        ({"gpu": "NVIDIA PG506-232"}, "set arch instead of gpu"),
        ({"divr": "1"}, "unknown fact 'divr'; did you mean driver"),
        ({"driver": "latest"}, "driver is 'latest', wanted a version such as 580.65.06"),
        ({"gpu": "H1000"}, "gpu is 'H1000', wanted a GPU model such as H100; did you mean H100"),
        ({"module_type": "opne"}, "module_type is 'opne', wanted one of open, proprietary"),
        ({"secure_boot": "maybe"}, "secure_boot is 'maybe', wanted yes or no"),
        ({"nodes": "many"}, "nodes is 'many', wanted a number"),
        ({"driver": "1.2", "driver_version": "1.3"}, "driver is set twice"),
    ],
)
def test_a_wrong_fact_is_one_clear_line(given: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        compat.facts(given)
    assert said in str(caught.value)


def condition(text: str) -> Condition:
    """A condition written in one line."""
    head = "format: gpustate.compat/1\ntheme: t\nsources: {}\nrules:\n"
    source = "{address: 'https://example.org/', retrieved: '2026-08-21'}"
    rule = f"- {{id: a, when: {text}, verdict: warn, because: b., fix: c, source: {source}, tests: {{}}}}"
    reader = reading._Reader("t.yaml", reading.yaml_events.Lines())
    document = reading.yaml_events.documents(head + rule, "t.yaml", reading._YAML)[0]
    reader.lines = document.lines
    return reader.condition(document.data["rules"][0]["when"], 1)


@pytest.mark.parametrize(
    ("text", "given", "holds"),
    [
        ("{gpu: [B200, H100]}", {"gpu": "L40S,H100"}, True),
        ("{not: {gpu: B200}}", {"gpu": "L40S"}, True),
        ("{gpu: B200}", {}, None),
        ("{toolkit: {absent: true}}", {"toolkit": "none"}, True),
        ("{toolkit: {present: true}}", {"toolkit": "none"}, False),
        ("{toolkit: {range: '<1.18.0'}}", {"toolkit": "none"}, False),
        ("{toolkit: ['1.18.0', '1.19.0']}", {"toolkit": "1.19.0-1"}, True),
        ("{kubernetes: '1.33'}", {"kubernetes": "1.33.4"}, True),
        ("{driver: ['570', '580']}", {"driver": "580"}, True),
        ("{driver: {range: '<570.133.20'}}", {"driver": "570"}, None),
        ("{driver: {range: '<570.133.20'}, gpu: B200}", {"driver": "570", "gpu": "H100"}, False),
        ("{any: [{gpu: B200}, {driver: '580'}]}", {"driver": "580"}, True),
        ("{all: [{gpu: B200}, {driver: '580'}]}", {"driver": "570"}, False),
        ("{not: {driver: '580'}}", {}, None),
        (
            "{fabric_manager: {same_as: driver}}",
            {"fabric_manager": "580.65.06", "driver": "580"},
            None,
        ),
        (
            "{fabric_manager: {same_as: driver}}",
            {"fabric_manager": "570.1.2", "driver": "580"},
            False,
        ),
        ("{crio: {same_series_as: kubernetes}}", {"crio": "1.34.9", "kubernetes": "1.34"}, True),
        ("{nodes: {range: '>=300'}}", {"nodes": 400}, True),
        ("{secure_boot: true}", {"secure_boot": "no"}, False),
    ],
)
def test_a_condition_holds_does_not_or_cannot_be_told(
    text: str, given: dict[str, object], holds: bool | None
) -> None:
    assert condition(text).holds(compat.facts(given)) is holds


def test_what_cannot_be_told_says_what_is_missing() -> None:
    found = condition("{any: [{gpu: B200}, {driver: {range: '<570.133.20'}}], mig: true}")
    known = compat.facts({"driver": "570", "mig": "yes"})
    assert list(found.unknown(known)) == ["gpu", "driver"]


def test_unknown_facts_never_pass_for_a_fit() -> None:
    report = compat.check({})
    assert {result.holds for result in report.results} == {None}
    assert all(result.missing for result in report.results)


def test_a_rule_that_is_allowed_stays_in_the_report_with_its_reason() -> None:
    known = compat.facts({"driver": "580.65.06", "gpu": "B300"})
    assert "driver-first-b300" in [result.rule.id for result in compat.check(known).blocks]
    report = compat.check(known, allow={"driver-first-b300": "a  lab"})
    assert "driver-first-b300" not in [result.rule.id for result in report.blocks]
    assert [(r.rule.id, r.allowed) for r in report.overridden] == [("driver-first-b300", "a lab")]


def test_an_exception_wants_a_rule_and_a_reason() -> None:
    with pytest.raises(PolicyError, match="did you mean driver-first-b300"):
        compat.check({}, allow={"driver-first-b3000": "x"})
    with pytest.raises(PolicyError, match="the reason is missing"):
        compat.check({}, allow={"driver-first-b300": " "})


@pytest.mark.parametrize(
    ("gpu", "fabric"),
    [
        ("8xH100-SXM5", "nvswitch"),
        ("8x NVIDIA H100 80GB HBM3", "nvswitch"),
        ("8xA100SXM4", "nvswitch"),
        ("16 x A100-SXM4-40GB", "nvswitch"),
        ("8xB200", "nvlink5"),
        ("8xH100-PCIe", "pcie"),
        ("8x NVIDIA H200 NVL", "pcie"),
        # Both have been built.
        *((gpu, "") for gpu in ("8xH100", "4xH100-SXM5", "H100-SXM5", "8xV100-SXM2", "8xL40S")),
    ],
)
def test_the_fabric_follows_from_a_board_that_is_named(gpu: str, fabric: str) -> None:
    known = compat.facts({"gpu": gpu})
    assert known.get("fabric", frozenset()) == frozenset(filter(None, (fabric,)))
    assert compat.facts({"gpu": gpu, "fabric": "mnnvl"})["fabric"] == frozenset(("mnnvl",))


def test_words_that_people_type_mean_what_they_mean() -> None:
    for gpu, fabric in (("8xH100", "nvswitch"), ("8xB300", "nvlink5")):
        known = compat.facts({"gpu": gpu, "nvswitch": "yes", "fabric_manager": "no"})
        assert (known["fabric"], known["fabric_manager"]) == (frozenset((fabric,)), None)
    assert compat.facts({"nvswitch": "no"})["fabric"] == frozenset(("pcie",))
    with pytest.raises(UsageError, match="fabric_manager is 'yes', wanted a version"):
        compat.facts({"fabric_manager": "yes"})
    with pytest.raises(UsageError, match="fabric is set twice"):
        compat.facts({"fabric": "pcie", "nvswitch": "yes"})
