"""Where a container runtime's file belongs there is something else: refused before anything, and nothing waits for a pipe."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from nodetrees import TOOLS

from gpustate.core.queries import Answer, Query
from gpustate.errors import RefusedError
from gpustate.states.containerd.query import ContainerdQuery
from gpustate.states.crio.query import CrioQuery
from gpustate.states.docker.query import DockerQuery
from gpustate.states.k0s import K0sQuery
from gpustate.states.microk8s import Microk8sQuery

#: A runtime, a file that gpustate reads or writes, and what has to be there for the state to look at it at all.
CONTAINERD = ContainerdQuery("containerd.service")
FILES: list[tuple[Query[Any], str, str]] = [
    (CONTAINERD, "etc/containerd/config.toml", "bin/containerd"),
    (CONTAINERD, "etc/containerd/conf.d/99-nvidia.toml", "bin/containerd"),
    (ContainerdQuery("containerd.service", "/etc/more.toml"), "etc/more.toml", "bin/containerd"),
    (DockerQuery("docker.service"), "etc/docker/daemon.json", "bin/dockerd"),
    (CrioQuery("crio.service"), "etc/crio/crio.conf.d/99-zz-gpustate.toml", "bin/crio"),
    (CrioQuery("crio.service", "50-gpu.conf"), "etc/crio/crio.conf.d/50-gpu.conf", "bin/crio"),
    (CrioQuery("crio.service"), "etc/crio/crio.conf", "bin/crio"),
    (K0sQuery(), "etc/k0s/containerd.d/zz-gpustate.toml", "etc/systemd/system/k0sworker.service"),
    (K0sQuery(), "etc/k0s/containerd.toml", "etc/systemd/system/k0sworker.service"),
    (
        Microk8sQuery(),
        "var/snap/microk8s/current/args/containerd-template.toml",
        "snap/microk8s/current/bin/containerd",
    ),
]
_ROOTED = re.compile(r"""(?<![\w$}./*\\-])/(?=(?:etc|var|run|lib|usr/lib|snap)/)""")


def _socket(path: Path) -> None:
    # Its own name may be too long for a socket's address.
    folder = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"/proc/self/fd/{folder}/{path.name}")
    os.close(folder)


ODD: dict[str, Callable[[Path], object]] = {
    "a folder": Path.mkdir,
    "a named pipe": os.mkfifo,
    "a socket": _socket,
    "a device": lambda path: path.symlink_to("/dev/null"),
    "a symbolic link to nowhere, which is not there": lambda path: path.symlink_to("nowhere"),
}


def asked(query: Query[Any], tree: Path) -> Any:
    """What an ask's real fragment says of a tree."""
    done = subprocess.run(
        ["/bin/sh", "-c", _ROOTED.sub(f"{tree}/", query.script())],
        env={"PATH": f"{tree}/bin", "G": f"{tree}/G", "PROC": "/proc", "SYS": "/sys"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=15,
        check=False,
    )
    return query.parse(Answer(0, done.stdout.replace(str(tree).encode(), b"")))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """An empty root with a few programs."""
    (tmp_path / "bin").mkdir()
    for name in TOOLS:
        (tmp_path / "bin" / name).symlink_to(os.path.realpath(str(shutil.which(name))))
    return tmp_path


def program(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n[ $1 = --version ] && echo 'x version 2.1.0'\n")
    path.chmod(0o755)


@pytest.mark.parametrize("what", ODD)
@pytest.mark.parametrize(("query", "path", "needs"), FILES, ids=[row[1] for row in FILES])
def test_what_is_no_file_is_refused_with_path_and_next_move(
    tree: Path, query: Query[Any], path: str, needs: str, what: str
) -> None:
    program(tree / needs)
    place = tree / path
    place.parent.mkdir(parents=True, exist_ok=True)
    asked(query, tree)
    ODD[what](place)
    with pytest.raises(RefusedError) as refused:
        asked(query, tree)
    # Out of a folder of which all is read.
    away = re.sub(r"/[a-z.]+\.d/|/conf\.d/", "/", path)
    assert str(refused.value) == (
        f"/{path} is {what}, and a file belongs there; move it away: mv /{path} /{away}.moved"
    )
    # Where the runtime is not installed, that is nobody's business.
    (tree / needs).unlink()
    asked(query, tree)


@pytest.mark.parametrize(("query", "path", "needs"), FILES, ids=[row[1] for row in FILES])
def test_a_file_and_a_link_to_one_are_what_belongs_there(
    tree: Path, query: Query[Any], path: str, needs: str
) -> None:
    program(tree / needs)
    place = tree / path
    place.parent.mkdir(parents=True, exist_ok=True)
    (tree / "real").write_text("{}\n" if path.endswith("json") else "# empty\n")
    place.symlink_to(tree / "real")
    linked = asked(query, tree)
    place.unlink()
    (tree / "real").rename(place)
    if hasattr(linked, "links"):  # what writes there is refused
        assert list(linked.links.values()) == ["/real"]
        linked = replace(linked, links={})
    assert asked(query, tree) == linked
