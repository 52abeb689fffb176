"""Getting past sudo: a node that is reached and lets nobody become root has failed; it is not unreachable."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from filestates import First, here, request

from gpustate.engine import fleet
from gpustate.errors import ProbeError
from gpustate.remote import session

#: Wants a password, as sudo does with and without ``-n``, and takes none.
SUDO = """#!/bin/sh
case " $* " in *' -n '*) echo 'sudo: a password is required' >&2; exit 1 ;; esac
while [ $# -gt 0 ] && [ "$1" != -p ]; do shift; done
printf %s "$2" >&2; read -r word; printf %s "$2" >&2; read -r word
"""


@pytest.mark.parametrize(
    ("password", "said"),
    [(None, "use --ask-become-pass"), ("wrong", "sudo rejected the become password")],
)
def test_a_password_that_is_missing_or_wrong_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, password: str | None, said: str
) -> None:
    (tmp_path / "sudo").write_text(SUDO)
    (tmp_path / "sudo").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    node = here(tmp_path / "state")
    become = replace(node.connection, become=True, become_password=password)
    result = fleet.run(request(replace(node, connection=become), First(path=str(tmp_path / "a"))))
    assert result.exit_code == 1
    assert said in result.nodes[0].reason


def test_sudo_that_ended_before_anything_was_sent_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sudo").write_text(SUDO)
    (tmp_path / "sudo").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    class Slow(session.LocalChannel):
        def write(self, data: bytes, deadline: float) -> None:
            self._process.wait(10)
            super().write(data, deadline)

    monkeypatch.setattr(session, "LocalChannel", Slow)
    node = here(tmp_path / "state")
    one = session.Session(replace(node, connection=replace(node.connection, become=True)))
    with pytest.raises(ProbeError, match="the command did not start: sudo requires a password"):
        one.answer([])
