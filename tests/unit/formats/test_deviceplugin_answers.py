"""The device plugin's own parser and ours on the same files, by recorded answers of it."""

from __future__ import annotations

import json
from pathlib import Path

from gpustate.errors import PolicyError
from gpustate.formats import deviceplugin

ANSWERS = json.loads(
    (Path(__file__).parents[2] / "data/deviceplugin/config-answers.json").read_text()
)
#: Refused here although the plugin starts with it: it cannot do what the file says.
STRICTER = (
    *("a second document begins", "duplicate resource", "would have no effect"),
    *("version: is '', wanted v1", "wanted a whole number", "wanted at most 10000"),
    *("the device plugin advertises", "is advertised only with flags.migStrategy mixed"),
    *("MPS supports", "MIG devices cannot be shared with MPS", "refuses that together"),
    *("reads as nanoseconds", "wanted a duration", "wanted [] or [0]"),
)


def test_the_device_plugin_and_gpustate_agree_on_recorded_answers() -> None:
    accepted = refused = 0
    for answer in ANSWERS["answers"]:
        try:
            config = deviceplugin.read(answer["text"], "f")
        except PolicyError as error:
            refused += 1
            said = str(error)
            assert answer["refused"] or any(why in said for why in STRICTER), answer
            continue
        assert not answer["refused"], answer["text"]
        assert config.sharing.strategy == answer["strategy"]
        accepted += 1
    assert accepted > 70
    assert refused > 90


def test_what_the_plugin_logs_as_ignored_is_a_warning_here() -> None:
    ignored = 0
    for answer in ANSWERS["naming"]["answers"]:
        try:
            config = deviceplugin.read(answer["text"], "f")
        except PolicyError:
            assert answer["refused"], answer["text"]
            continue
        assert not answer["refused"], answer["text"]
        assert config.sharing.strategy == answer["strategy"]
        warned = any(
            "has no effect; the device plugin ignores it" in one for one in config.warnings
        )
        assert warned == answer["ignored"], answer["text"]
        ignored += warned
    assert ignored == 20
