"""What ``helm get values`` writes is Helm values, below a line of its own."""

from __future__ import annotations

import pytest

from gpustate.errors import PolicyError
from gpustate.gpu_operator.lint import lint
from gpustate.policies import operator
from gpustate.policies.changes import Changes

VALUES = "driver:\n  enabled: true\n  version: 580.95.05\n"


@pytest.mark.parametrize("heading", ["USER-SUPPLIED VALUES:", "COMPUTED VALUES:"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_line_above_the_values_is_skipped_and_lines_keep_their_numbers(
    heading: str, end: str
) -> None:
    plain = operator.read(VALUES, "v")
    policy = operator.read(f"{heading}{end}{VALUES}", "v")
    assert policy.states == plain.states
    assert policy.places["states", "driver", "version"] == "v:4"
    with pytest.raises(PolicyError) as caught:
        operator.read(f"{heading}{end}{VALUES}  versio: x\n", "v", strict=True)
    assert caught.value.place == "v:5"
    assert [one.line for one in lint(f"{heading}{end}drivr: {{}}\n", "v").findings] == [2]


@pytest.mark.parametrize("rest", ["null\n", "{}\n", "", "\n"])
def test_no_values_are_what_the_chart_says(rest: str) -> None:
    text = f"USER-SUPPLIED VALUES:\n{rest}"
    assert operator.read(text, "v").states == operator.read("operator: {}\n", "v").states
    assert lint(text, "v").findings == ()


def test_changes_of_the_command_line_reach_values_below_that_line() -> None:
    changes = Changes(set_typed=("driver.version=580.105.08",))
    policy = operator.read(f"COMPUTED VALUES:\n{VALUES}", "v", changes=changes)
    assert "580.105.08" in str(policy.states)


def test_that_line_further_down_is_a_key_like_any_other() -> None:
    with pytest.raises(PolicyError, match="USER-SUPPLIED VALUES"):
        operator.read(f"{VALUES}USER-SUPPLIED VALUES:\n", "v", strict=True)


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ('driver: {enabled: "false"}', "driver.enabled", False),
        ('gds: {enabled: "yes"}', "gds.enabled", True),
        ('driver: {kernelModuleType: ""}', "driver.kernelModuleType", None),
        ('driver: {rdma: {enabled: "true"}}', "driver.rdma.enabled", True),
        ('dcgm: {enabled: ""}', "dcgm.enabled", None),
        ('driver: {upgradePolicy: {maxParallelUpgrades: "2"}}', "maxParallelUpgrades", 2),
        ('mig: {strategy: ""}', "mig.strategy", None),
    ],
)
def test_a_string_that_the_chart_writes_without_quotes_is_read_as_it_renders(
    text: str, path: str, value: object
) -> None:
    plain = text.replace('"', "") if value is not None else text.replace('""', "null")
    got, wanted = operator.read(text, "v.yaml"), operator.read(plain, "v.yaml")
    assert (got.states, got.rollout) == (wanted.states, wanted.rollout)
    assert any("v.yaml:1: warning: " in note and path in note for note in got.notes)
    (finding,) = (one for one in lint(text, "v.yaml").findings if one.level != "note")
    assert (finding.rule, finding.level) == ("rendered", "warning")
    shows = "null" if value is None else str(value).lower()
    assert f"renders as {shows}" in finding.message


@pytest.mark.parametrize(
    "text",
    [
        'cdi: {enabled: "true"}',  # the chart compares it with a boolean
        'driver: {nvidiaDriverCRD: {enabled: "false"}}',  # a string is true to the template
        'driver: {enabled: "maybe"}',
        'driver: {kernelModuleType: "closed"}',
        'dcgmExporter: {hpcJobMapping: {enabled: "true"}}',  # passed on as it is
        'ccManager: {defaultMode: ""}',  # with quotes
    ],
)
def test_other_strings_in_place_of_another_type_are_refused(text: str) -> None:
    with pytest.raises(PolicyError):
        operator.read(text, "v.yaml")
    assert [one.rule for one in lint(text, "v.yaml").findings if one.level == "error"]


def test_an_object_is_not_rendered_by_the_chart() -> None:
    text = "apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nmetadata: {name: x}\nspec:\n"
    with pytest.raises(PolicyError, match="wanted a boolean"):
        operator.read(f"{text}  driver: {{enabled: 'true'}}\n", "cp.yaml")
