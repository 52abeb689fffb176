from __future__ import annotations

import pytest

from gpustate.formats import fabric_config
from gpustate.formats.fabric_config import FABRIC_MANAGER, IMEX
from gpustate.probes.fabric import pinned


def test_known_keys_are_taken_as_they_will_stand() -> None:
    asked: dict[str, str | int] = {"FABRIC_MODE": 1, "LOG_FILE_NAME": "/var/log/fm.log"}
    assert fabric_config.validate(asked, FABRIC_MANAGER) == {
        "FABRIC_MODE": "1",
        "LOG_FILE_NAME": "/var/log/fm.log",
    }
    assert fabric_config.validate({"IMEX_WAIT_FOR_QUORUM": "NONE"}, IMEX)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("FABRIC_MOD", 1, "did you mean FABRIC_MODE"),
        ("fabric_mode", 1, "did you mean FABRIC_MODE"),
        ("FABRIC_MODE", 3, "one of 0, 1, 2"),
        ("FABRIC_MODE", "one", "one of 0, 1, 2"),
        ("STARTING_TCP_PORT", "many", "must be a number"),
        ("LOG_FILE_NAME", "a\nFABRIC_MODE=1", "one line"),
        ("LOG_FILE_NAME", "x" * 300, "at most 256"),
        ("", 1, "unknown key ''"),
        ("IMEX_CMD_PORT", 1, "unknown key"),
    ],
)
def test_what_the_daemon_would_ignore_is_refused(key: str, value: str | int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        fabric_config.validate({key: value}, FABRIC_MANAGER)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("FABRIC_MODE=1\n", "1"),
        ("FABRIC_MODE=1\r\n", "1"),
        ("FABRIC_MODE=\n", ""),
        ("# FABRIC_MODE=1\n", None),
        ("FABRIC_MODE=1\nFABRIC_MODE=1\n", "1"),
        ("FABRIC_MODE=1\nFABRIC_MODE=2\nFABRIC_MODE=1\n", "1\n2"),
        ("FABRIC_MODE_RESTART=1\n", None),
        ("", None),
        (None, None),
    ],
)
def test_a_key_is_what_all_its_lines_say(text: str | None, value: str | None) -> None:
    assert fabric_config.read(text, ("FABRIC_MODE",)) == {"FABRIC_MODE": value}


def test_a_rollback_restores_the_keys_that_a_run_sets() -> None:
    text = "LOG_LEVEL=2\nSERVER_PORT=\nNODES=/x\nDAEMONIZE=1\nDAEMONIZE=0\nLOG_FILE_NAME=\n"
    settings = ("LOG_LEVEL", "NETWORK_INTERFACE", "SERVER_PORT", "DAEMONIZE", "LOG_FILE_NAME")
    observed = fabric_config.read(text, (*settings, "NODES"))
    restored = {"LOG_LEVEL": "2", "NETWORK_INTERFACE": None, "LOG_FILE_NAME": ""}
    assert pinned(settings, observed, fabric_config.IMEX) == {"config": restored}
    assert fabric_config.validate(restored, fabric_config.IMEX) == restored
    assert pinned(("DAEMONIZE",), observed, fabric_config.IMEX) == {}
