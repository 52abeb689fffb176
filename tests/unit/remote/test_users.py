"""The user at the controller, also one without an entry in passwd, as in a pod."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpustate.core.inventory import Connection
from gpustate.engine import fleet
from gpustate.remote import ssh

#: Of nobody's: neither passwd nor systemd has a name for it.
UID = 3_000_000_019


@pytest.fixture
def nameless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # pytest makes tmp_path before: it checks its owner.
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME", "SUDO_USER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: UID)


@pytest.mark.parametrize(
    ("text", "host"),
    [
        (None, "gpu1"),
        ("Host gpu*\n  HostName %h.example.net\n", "gpu1.example.net"),
        (f"Match localuser {UID}\n  HostName 192.0.2.1\n", "192.0.2.1"),
    ],
    ids=["no file", "pattern", "local user"],
)
def test_a_user_without_a_name_connects(
    nameless: None, tmp_path: Path, text: str | None, host: str
) -> None:
    file = tmp_path / "config"
    if text is not None:
        file.write_text(text)
    connection = Connection(ssh_config_file=os.devnull if text is None else str(file))
    target = ssh._target("gpu1", connection)
    assert (target.host, target.user) == (host, "root")


def test_a_user_without_a_name_is_known_by_the_uid(nameless: None) -> None:
    assert fleet.person() == str(UID)
