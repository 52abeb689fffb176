"""Keys of the container toolkit's config.toml."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustate.errors import PolicyError, ProbeError
from gpustate.formats.toolkit_config import KEYS, read_keys, set_keys

SHIPPED = """\
#accept-nvidia-visible-devices-as-volume-mounts = false
disable-require = false
#swarm-resource = "DOCKER_RESOURCE_GPU"

[nvidia-container-cli]
#debug = "/var/log/nvidia-container-toolkit.log"
environment = []
#ldcache = "/etc/ld.so.cache"
ldconfig = "@/sbin/ldconfig"
load-kmods = true
#no-cgroups = false

[nvidia-container-runtime]
#debug = "/var/log/nvidia-container-runtime.log"
log-level = "info"
mode = "auto"   # by request
runtimes = ["runc", "crun"]

[nvidia-container-runtime.modes]

[nvidia-container-runtime.modes.cdi]
annotation-prefixes = ["cdi.k8s.io/"]
spec-dirs = [
  "/etc/cdi",
  "/var/run/cdi", # tmpfs
]
"""


def test_a_value_is_replaced_and_its_comment_stays() -> None:
    text = set_keys(SHIPPED, {"nvidia-container-runtime.mode": "cdi"})
    assert text == SHIPPED.replace('mode = "auto"   #', 'mode = "cdi"   #')


def test_a_default_written_as_comment_becomes_the_place_of_the_key() -> None:
    text = set_keys(
        SHIPPED,
        {
            "nvidia-container-runtime.debug": "/dev/null",
            "accept-nvidia-visible-devices-as-volume-mounts": True,
        },
    )
    assert text == SHIPPED.replace(
        '#debug = "/var/log/nvidia-container-runtime.log"', 'debug = "/dev/null"'
    ).replace(
        "#accept-nvidia-visible-devices-as-volume-mounts = false",
        "accept-nvidia-visible-devices-as-volume-mounts = true",
    )


def test_a_key_without_a_place_goes_to_the_end_of_its_section() -> None:
    text = set_keys(SHIPPED, {"nvidia-container-runtime.modes.cdi.default-kind": "nvidia.com/gpu"})
    assert text == SHIPPED + 'default-kind = "nvidia.com/gpu"\n'
    text = set_keys(SHIPPED, {"nvidia-container-cli.user": "root:video"})
    assert 'load-kmods = true\nuser = "root:video"\n#no-cgroups' in text


def test_a_section_that_is_missing_is_added_at_the_end() -> None:
    text = set_keys(SHIPPED, {"features.allow-ldconfig-from-container": True})
    assert text == SHIPPED + "\n[features]\nallow-ldconfig-from-container = true\n"
    assert set_keys("", {"disable-require": True}) == "disable-require = true\n"


def test_a_list_over_several_lines_is_replaced_whole() -> None:
    key = "nvidia-container-runtime.modes.cdi.spec-dirs"
    assert set_keys(SHIPPED, {key: ["/etc/cdi"]}).endswith('spec-dirs = ["/etc/cdi"]\n')


def test_unsetting_makes_a_comment_and_setting_uses_it_again() -> None:
    text = set_keys(SHIPPED, {"nvidia-container-cli.ldconfig": None})
    assert text == SHIPPED.replace("\nldconfig", "\n#ldconfig")
    assert set_keys(text, {"nvidia-container-cli.ldconfig": "@/sbin/ldconfig"}) == SHIPPED
    assert set_keys(text, {"nvidia-container-cli.ldconfig": None}) == text
    gone = set_keys(SHIPPED, {"nvidia-container-runtime.modes.cdi.spec-dirs": None})
    assert gone.endswith('#spec-dirs = [\n#  "/etc/cdi",\n#  "/var/run/cdi", # tmpfs\n#]\n')


def test_what_is_right_already_changes_no_byte() -> None:
    assert (
        set_keys(SHIPPED, {"disable-require": False, "nvidia-container-runtime.mode": "auto"})
        == SHIPPED
    )


def test_line_breaks_and_their_absence_are_kept() -> None:
    crlf = SHIPPED.replace("\n", "\r\n").rstrip()
    text = set_keys(
        crlf,
        {"nvidia-container-cli.no-cgroups": True, "features.disable-imex-channel-creation": True},
    )
    assert text.count("\n") == text.count("\r\n")
    assert "\r\nno-cgroups = true\r\n" in text
    bare = '[nvidia-container-runtime]\nmode = "auto"'
    assert (
        set_keys(bare, {"nvidia-container-runtime.log-level": "debug"})
        == bare + '\nlog-level = "debug"'
    )


def test_an_unknown_key_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(PolicyError, match=r"did you mean nvidia-container-runtime\.log-level"):
        set_keys(SHIPPED, {"nvidia-container-runtime.loglevel": "debug"})


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("disable-require", "yes", "true or false"),
        ("nvidia-container-runtime.runtimes", "runc", "a list of strings"),
        ("nvidia-container-runtime.log-level", True, "a string"),
        ("nvidia-container-runtime.mode", "CDI", "one of auto, legacy, cdi, jit-cdi, csv"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused(key: str, value: bool | str, wanted: str) -> None:
    with pytest.raises(PolicyError, match=f"wanted {wanted}"):
        set_keys(SHIPPED, {key: value})


def test_a_file_that_is_not_toml_is_named_with_its_line() -> None:
    with pytest.raises(ProbeError, match=r"config\.toml:2: not valid TOML"):
        read_keys("a = 1\nb = = 2\n")


def test_an_inline_table_in_the_way_is_an_error_with_a_next_move() -> None:
    text = 'nvidia-container-runtime = { mode = "auto" }\n'
    with pytest.raises(ProbeError, match="write its table as a"):
        set_keys(text, {"nvidia-container-runtime.log-level": "debug"})


@given(st.sampled_from(sorted(KEYS)), st.data())
def test_every_known_key_can_be_set_and_unset(key: str, data: st.DataObject) -> None:
    values = {
        bool: st.booleans(),
        str: st.text(max_size=8),
        list: st.lists(st.text(max_size=4), max_size=3),
    }
    value: Any = data.draw(values[KEYS[key]])
    if key.endswith((".mode", "cuda-compat-mode")):
        value = "disabled" if key.endswith("cuda-compat-mode") else "csv"
    text = set_keys(SHIPPED, {key: value})
    assert read_keys(text) == {**read_keys(SHIPPED), key: value}
    assert set_keys(text, {key: value}) == text
    kept = {
        line
        for line in SHIPPED.splitlines()
        if key.rpartition(".")[2] not in line and "cdi" not in line and line != "]"
    }
    assert kept <= set(text.splitlines())
    unset = set_keys(text, {key: None})
    assert key not in read_keys(unset)
    tomllib.loads(unset)
