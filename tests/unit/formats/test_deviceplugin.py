"""The device plugin's configuration, read strictly."""

from __future__ import annotations

import pytest
import yaml

from gpustate.errors import PolicyError
from gpustate.formats.deviceplugin import (
    Shared,
    Sharing,
    as_text,
    choose,
    faults,
    read,
    read_all,
    read_data,
)

SLICED = """version: v1
sharing:
  timeSlicing:
    renameByDefault: false
    failRequestsGreaterThanOne: true
    resources:
    - name: nvidia.com/gpu
      replicas: 4
"""


@pytest.mark.parametrize("text", ["", "# nothing\n"])
def test_an_empty_file_has_no_fault(text: str) -> None:
    assert faults(text, "c") == ([], [])


def test_time_slicing_is_read() -> None:
    assert read(SLICED, "f").sharing == Sharing("time-slicing", (Shared("nvidia.com/gpu", 4),))


def test_mps_is_read_and_a_short_name_is_the_long_one() -> None:
    text = "sharing: {mps: {renameByDefault: true, resources: [{name: gpu, replicas: 48}]}}"
    assert read(text, "f").sharing == Sharing("mps", (Shared("nvidia.com/gpu", 48),), renamed=True)


@pytest.mark.parametrize("text", ["", "version: v1\n", "flags:\nsharing:\n", "{}"])
def test_a_file_without_sharing_shares_nothing(text: str) -> None:
    assert read(text, "f").sharing == Sharing()


def shared(resource: str, *, kind: str = "timeSlicing", more: str = "") -> str:
    return f"sharing:\n  {kind}:\n    {more}\n    resources:\n    - {resource}\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SLICED.replace("replicas", "replica"), "did you mean replicas"),
        (SLICED.replace("nvidia.com/gpu", "nvidia.com/gpus"), "did you mean nvidia.com/gpu"),
        (SLICED.replace("replicas: 4", "replicas: 1"), "f:8: sharing.timeSlicing.resources[0].replicas"),
        (SLICED.replace("replicas: 4", "replicas: true"), "wanted a whole number"),
        (SLICED.replace("replicas: 4", "replicas: '4'"), "wanted a whole number"),
        (SLICED.replace("replicas: 4", "replicas: 1e99"), "wanted a whole number"),
        (SLICED.replace("replicas: 4", "replicas: 10000000"), "at most"),
        (SLICED.replace("      replicas: 4\n", ""), "replicas is missing"),
        (SLICED.replace("version: v1", "version: v2"), "wanted v1"),
        (SLICED + "    - name: gpu\n      replicas: 2\n", "duplicate resource"),
        (shared("{name: mig-1g.10gb+me, replicas: 2}"), "named nvidia.com/mig-1g.10gb.me"),
        (shared("{name: 1g.10gb, replicas: 2}"), "named nvidia.com/mig-1g.10gb"),
        (shared("{name: mig-1g.10gb, replicas: 2}", kind="mps"), "cannot be shared with MPS"),
        (shared("{name: gpu, replicas: 49}", kind="mps"), "supports 48"),
        (shared("{name: gpu, replicas: 2}") + "  mps: {resources: [{name: gpu, replicas: 2}]}", "would have no effect"),
        (shared("{name: gpu, replicas: 2}", kind="mps") + "flags: {migStrategy: mixed}", "refuses together"),
        (shared("{name: mig-1g.5gb, replicas: 2}") + "flags: {migStrategy: single}", "with flags.migStrategy mixed"),
        ("sharing: {timeSlicing: {}}", "resources is missing"),
        ("sharing: {timeSlicing: {resources: []}}", "is empty"),
        ("sharing: {timeSlicing: {resources: {a: b}}}", "wanted a list"),
        ("sharing: [1]", "wanted a mapping"),
        ("flags: {gfd: {sleepInterval: 60}}", "nanoseconds"),
        ("flags: {gfd: {sleepInterval: 1 minute}}", "write 60s"),
        ("flags: {migStrategy: mix}", "did you mean mixed"),
        ("flags: {plugin: {deviceListStrategy: [envvar, cdi-crio]}}", "did you mean cdi-cri"),
        ("flags: {failOnInitError: 'yes'}", "wanted true or false"),
        ("imex: {channelIDs: [1]}", "wanted [] or [0]"),
        ("[]", "is a list"),
        ("a: [", "is not YAML"),
        ("x: !!python/object/apply:os.system [id]", "tag"),
        ("a: &a [*a]", "f"),
    ],
)  # fmt: skip
def test_what_the_plugin_would_take_in_silence_is_an_error_with_the_way_out(
    text: str, words: str
) -> None:
    with pytest.raises(PolicyError) as caught:
        read(text, "f")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        # NVIDIA/k8s-device-plugin#1433: upstream's own README had it at this place.
        (
            SLICED.replace("    renameByDefault: false\n", "").replace(
                "  timeSlicing:", "  renameByDefault: true\n  timeSlicing:"
            ),
            "f:3: sharing: unknown key renameByDefault; move renameByDefault to "
            "sharing.timeSlicing",
        ),
        (SLICED.replace("timeSlicing", "time-slicing"), "did you mean timeSlicing"),
        (SLICED.replace("sharing:", "share:"), "did you mean sharing"),
        (SLICED + "      rename: shared-gpu\n", "set renameByDefault: true"),
        (SLICED + "      devices: [0, '1:0']\n", "resources[0].devices: has no effect; the device plugin ignores it and shares all"),
        (SLICED + "      devices: 2\n", "shares all devices"),
        (SLICED + "resources: {gpus: [{pattern: '*', name: gpu}]}\n", "f:9: resources.gpus: has no effect"),
        (SLICED + "resources: {mig: [{pattern: '1g*', name: small}]}\n", "the device plugin ignores it; remove it"),
        (SLICED.replace("failRequestsGreaterThanOne", "failRequestsGreaterThen1"), "did you mean fail"),
        (SLICED + "sharing: {}\n", "is a duplicate of line 2"),
        ("flags: {deviceListStrategy: envvar}", "to flags.plugin"),
    ],
)  # fmt: skip
def test_what_the_plugin_goes_past_is_a_warning_in_a_file_and_an_error_in_a_policy(
    text: str, words: str
) -> None:
    config = read(text, "f")
    assert any(words in warning for warning in config.warnings)
    again = read(as_text(config), "g")
    assert (again.sharing, again.warnings) == (config.sharing, ())
    errors, passed = faults(text, "f")
    assert (errors, [str(one) for one in passed]) == ([], list(config.warnings))
    if "duplicate of line" not in words:
        with pytest.raises(PolicyError, match=r"unknown key|has no effect"):
            read_data(yaml.safe_load(text), "")


@pytest.mark.parametrize(
    "text", [SLICED + "      devices: all\n", SLICED + "resources: {gpus: []}\n"]
)
def test_an_ignored_key_that_asks_for_what_the_plugin_does_anyway_is_no_warning(text: str) -> None:
    assert read(text, "f").warnings == ()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("      devices: none\n", "wanted all, a count or a list of devices"),
        ("      devices: [first]\n", "wanted a device index or UUID"),
        ("      rename: Shared\n", "wanted lower-case letters"),
        ("resources: {gpus: [{name: gpu}]}\n", "has an entry without pattern"),
        ("resources: {gpus: all}\n", "wanted a list"),
    ],
)
def test_a_value_that_the_plugin_refuses_is_an_error_although_the_key_has_no_effect(
    more: str, words: str
) -> None:
    with pytest.raises(PolicyError, match="f:9") as caught:
        read(SLICED + more, "f")
    assert words in str(caught.value)


def test_a_missing_key_is_named_beside_one_that_has_no_effect() -> None:
    with pytest.raises(PolicyError, match="replicas is missing"):
        read(SLICED.replace("replicas: 4", "rename: shared"), "f")


def test_a_key_counts_in_any_case_as_for_the_plugin() -> None:
    text = SLICED.replace("timeSlicing", "timeslicing").replace("version", "Version")
    assert read(text, "f") == read(SLICED, "f")
    with pytest.raises(PolicyError, match="did you mean timeSlicing"):
        read_data(yaml.safe_load(text.replace("Version", "version")), "")


def test_keys_that_the_operator_overrides_are_told() -> None:
    (note,) = read("flags: {migStrategy: single}", "f").notes
    assert "mig.strategy" in note


def test_what_is_written_reads_back_the_same() -> None:
    config = read(SLICED, "f")
    again = read(as_text(config), "g")
    assert again.data == config.data
    assert as_text(again) == as_text(config)


CONFIG_MAP = yaml.safe_dump(
    {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "c"},
        "data": {"any": "version: v1\n", "shared": SLICED},
    }
)


def test_a_config_map_and_helm_values_hold_named_ones() -> None:
    named = read_all(CONFIG_MAP, "f")
    assert list(named) == ["any", "shared"]
    helm = yaml.safe_dump({"devicePlugin": {"config": {"data": {"a": SLICED}}}})
    assert read_all(helm, "f")["a"].sharing.strategy == "time-slicing"
    assert list(read_all(SLICED, "f")) == [""]


def test_the_one_that_counts_is_asked_for_or_default_or_the_only_one() -> None:
    named = read_all(CONFIG_MAP, "f")
    assert choose(named, "shared").sharing.strategy == "time-slicing"
    assert choose(named, "", "any").sharing.strategy == "none"
    assert choose({"default": named["shared"], "x": named["any"]}) == named["shared"]
    assert choose({"x": named["any"]}) == named["any"]
    for words, arguments in (("did you mean shared", ("sharde",)), ("select one of any", ())):
        with pytest.raises(PolicyError) as caught:
            choose(named, *arguments)
        assert words in str(caught.value)


def test_an_error_in_a_named_one_says_which() -> None:
    with pytest.raises(PolicyError) as caught:
        read_all(CONFIG_MAP.replace("replicas", "replica"), "f")
    assert "shared" in str(caught.value)


def test_plain_data_is_checked_like_text() -> None:
    with pytest.raises(PolicyError, match="did you mean sharing"):
        read_data({"sharin": {}}, "")
