"""Containers as nodes, with a stand-in called docker that prints what docker prints.

Sources:
    docker/cli 27: ``docker container inspect --format`` and ``docker exec``; moby's messages "No such container"
    and "Cannot connect to the Docker daemon".
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpustate.core.inventory import Connection, InventoryNode
from gpustate.core.queries import Shell
from gpustate.errors import ConnectionFailed
from gpustate.remote.chroot import ChrootSession
from gpustate.remote.session import Session

STAND_IN = """#!/bin/sh
echo "$1 $2 $3 $4 $5" >>"${0%/*}/calls"
case "$*" in
"container inspect --format {{.State.Running}} web") echo true ;;
"container inspect --format {{.State.Running}} stopped") echo false ;;
"container inspect --format {{.State.Running}} down")
  echo 'Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?' >&2; exit 1 ;;
"container inspect "*) echo; echo "Error response from daemon: No such container: $5" >&2; exit 1 ;;
"exec -i -u 0 web /bin/sh -c "*) shift 5; exec "$@" ;;
*) exit 125 ;;
esac
"""


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "docker"
    program.write_text(STAND_IN)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def node(name: str, kind: str = "docker") -> InventoryNode:
    return InventoryNode(name, connection=Connection(kind, name))


def test_queries_run_in_the_container_through_one_exec(docker: Path) -> None:
    session = Session(node("web"))
    session.connect()
    answer = session.answer((Shell("echo from $0; id -u"), Shell("exit 3")))
    assert [one.status for one in answer] == [0, 3]
    assert answer[0].text.endswith(f"{os.geteuid()}\n")
    assert session.execs == 1
    session.close()
    assert (docker / "calls").read_text().splitlines() == [
        "container inspect --format {{.State.Running}} web",
        "exec -i -u 0 web",
    ]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("stopped", "container stopped is not running; docker start stopped"),
        ("nope", "No such container: nope"),
        ("down", "Cannot connect to the Docker daemon"),
    ],
)
def test_a_container_that_does_not_run_is_not_reached(name: str, said: str, docker: Path) -> None:
    with pytest.raises(ConnectionFailed, match=said):
        Session(node(name)).connect()


def test_without_the_program_it_is_named(docker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConnectionFailed, match=r"cannot run podman .*; install podman"):
        Session(node("web", "podman")).connect()


def test_an_image_has_a_session_of_its_own_that_holds_it(tmp_path: Path) -> None:
    session = ChrootSession(node(str(tmp_path), "chroot"))
    with pytest.raises(
        ConnectionFailed, match=r"/dev is missing|no operating system|requires root|namespace"
    ):
        session.connect()
    session.close()
