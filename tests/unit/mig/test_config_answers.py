"""mig-parted's own parser and ours on the same files, by recorded answers of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpustate.errors import PolicyError
from gpustate.mig import config, plan, tables
from gpustate.mig.layout import empty
from gpustate.mig.names import parse_device_name

ANSWERS = json.loads((Path(__file__).parents[2] / "data/mig/config-answers.json").read_text())
#: Refused here although mig-parted accepts it: what cannot have been meant, or fits no GPU.
STRICTER = (
    *("is empty, wanted version and mig-configs", "needs at least one configuration"),
    *("is not a GPU number", "wanted true or false", "is not a count", "do not fit into"),
    *("wanted a MIG profile", "is a duplicate of a profile above", "wanted 0x, PCI device id"),
    *(
        "is a duplicate of line",
        "a second document begins",
        "is not text in YAML",
        "contains nothing",
    ),
)


def theirs(entry: dict[str, Any]) -> tuple[bool, tuple[int, ...] | None, dict[str, int]]:
    devices = entry["devices"]
    counts = {str(parse_device_name(n)): c for n, c in (entry["mig-devices"] or {}).items() if c}
    return entry["mig-enabled"], None if devices == "all" else tuple(sorted(set(devices))), counts


def test_mig_parted_and_gpustate_agree_on_recorded_answers() -> None:
    accepted = refused = 0
    for answer in ANSWERS["answers"]:
        try:
            file = config.read(answer["text"], "f")
        except PolicyError as error:
            refused += 1
            said = str(error)
            assert answer["refused"] or any(why in said for why in STRICTER), answer
            continue
        assert not answer["refused"], answer["text"]
        accepted += 1
        ours = {
            name: [(e.enabled, e.indices, dict(e.devices)) for e in one.entries]
            for name, one in file.configs.items()
        }
        assert ours == {n: [theirs(e) for e in es] for n, es in answer["spec"].items()}
    assert accepted > 40
    assert refused > 70


def test_a_configuration_that_stands_twice_is_a_warning_and_the_last_one_counts() -> None:
    text = (
        "version: v1\nmig-configs:\n  a:\n    - {devices: all, mig-enabled: true, mig-devices: {}}\n"
        "  a:\n    - {devices: all, mig-enabled: false}\n"
    )
    one = config.read(text, "my.yaml").config("a")
    assert [entry.enabled for entry in one.entries] == [False]
    said = "my.yaml:5: 'a' is a duplicate of line 3; the last one is used"
    assert one.warnings == (said,)
    assert said in plan.plan(one, empty(tables.find("H200"), 1)).notes


@pytest.mark.parametrize("key", ["1.10", "yes", "0x10", "null", "y", "~"])
def test_a_name_that_mig_parted_would_read_as_another_has_to_be_quoted(key: str) -> None:
    entry = "    - {devices: all, mig-enabled: false}\n"
    with pytest.raises(PolicyError, match="quote it"):
        config.read(f"version: v1\nmig-configs:\n  {key}:\n{entry}", "f")
    assert key in config.read(f"version: v1\nmig-configs:\n  '{key}':\n{entry}", "f").configs
