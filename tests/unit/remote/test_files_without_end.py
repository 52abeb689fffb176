"""What a person names for the connection may be no file: a device without end, a pipe nobody writes to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpustate.errors import UsageError
from gpustate.remote import ssh
from gpustate.remote.known_hosts import KnownHosts


@pytest.fixture(params=["device", "pipe", "folder"])
def endless(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "device":
        return "/dev/zero"
    path = tmp_path / "it"
    if request.param == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    return str(path)


def test_no_known_hosts_are_read_from_it(endless: str) -> None:
    with pytest.raises(UsageError, match=r"neither a file nor a link|is a directory"):
        KnownHosts((endless,))


def test_no_configuration_is_read_from_it(endless: str) -> None:
    with pytest.raises(UsageError, match=r"neither a file nor a link|is a directory"):
        ssh._config(endless)


def test_no_key_is_read_from_it(endless: str) -> None:
    with pytest.raises(UsageError, match="private key is not a file"):
        ssh._private_key(endless)


def test_null_and_none_stand_for_nothing() -> None:
    assert not KnownHosts((os.devnull, "/nonexistent/known_hosts")).entries("gpu1")
    for nothing in (os.devnull, "none"):
        assert ssh._config(nothing).lookup("gpu1") == {"hostname": "gpu1"}
