"""A node fetches packages with its own apt: this machine, with a repository of small packages that apt reads by http and file."""

from __future__ import annotations

import functools
import http.server
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpustate.bundle.indexes import FetchedPackage
from gpustate.core.inventory import Connection, InventoryNode
from gpustate.errors import RefusedError
from gpustate.remote import download
from gpustate.remote.session import Session

#: Name, version and what it needs: by http, and in a folder.
HTTP = (
    ("gpustate-app", "1.0", "gpustate-one (>= 1:1.0), gpustate-local"),
    ("gpustate-one", "1:1.0", ""),
)
FOLDER = (("gpustate-local", "2", ""), ("gpustate-unused", "1", ""))


def repository(folder: Path, packages: tuple[tuple[str, str, str], ...]) -> None:
    folder.mkdir()
    index = ""
    for name, version, depends in packages:
        control = folder / "build" / "DEBIAN" / "control"
        control.parent.mkdir(parents=True)
        control.write_text(
            f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: x <x@example.net>\n"
            f"Description: x\n{f'Depends: {depends}' if depends else 'Priority: optional'}\n"
        )
        file = folder / f"{name}.deb"
        words = ["dpkg-deb", "-b", "--root-owner-group", str(folder / "build"), str(file)]
        subprocess.run(words, check=True, capture_output=True)
        shutil.rmtree(folder / "build")
        fields = subprocess.run(
            ["dpkg-deb", "-f", file], check=True, capture_output=True, text=True
        )
        digest = subprocess.run(["sha256sum", file], check=True, capture_output=True, text=True)
        index += f"{fields.stdout}Filename: ./{file.name}\nSize: {file.stat().st_size}\nSHA256: {digest.stdout.split()[0]}\n\n"
    (folder / "Packages").write_text(index)


@pytest.fixture
def address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An apt that has read two repositories; the address of the first one."""
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        pytest.skip("no apt on this machine")
    repository(tmp_path / "http", HTTP)
    repository(tmp_path / "local", FOLDER)
    for name in ("lists/partial", "cache"):
        (tmp_path / name).mkdir(parents=True)
    handler = functools.partial(
        http.server.SimpleHTTPRequestHandler, directory=str(tmp_path / "http")
    )
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    (tmp_path / "sources.list").write_text(
        f"deb [trusted=yes] {url} ./\ndeb [trusted=yes] file:{tmp_path}/local ./\n"
    )
    conf = tmp_path / "apt.conf"
    conf.write_text(
        f'Dir::Etc::sourcelist "{tmp_path}/sources.list"; Dir::Etc::sourceparts "-";\n'
        f'Dir::Etc::preferencesparts "-"; Dir::State "{tmp_path}/state"; Dir::State::status "{tmp_path}/status"; Dir::State::lists "{tmp_path}/lists"; Dir::Cache "{tmp_path}/cache";\n'
        'APT::Sandbox::User "root"; Acquire::http::Proxy::127.0.0.1 "DIRECT"; Acquire::Languages "none";\n'
    )
    (tmp_path / "state").mkdir()
    (tmp_path / "status").touch()
    monkeypatch.setenv("APT_CONFIG", str(conf))
    subprocess.run(["apt-get", "-q", "update"], check=True, capture_output=True)
    yield url
    server.shutdown()
    server.server_close()


def fetch(folder: Path, *words: str) -> list[FetchedPackage]:
    folder.mkdir()
    session = Session(InventoryNode("here", connection=Connection(kind="local")))
    return download.fetch(
        session, {word: word.partition("=")[0] for word in words}, "", folder, lambda _: None
    )


def test_packages_come_with_what_they_need_and_say_where_they_are_from(
    address: str, tmp_path: Path
) -> None:
    packages = fetch(tmp_path / "fetched", "gpustate-app=1.0")
    assert {one.identity: one.source for one in packages} == {
        ("gpustate-app", "1.0", "all"): f"{address}/.",
        ("gpustate-one", "1:1.0", "all"): f"{address}/.",
        ("gpustate-local", "2", "all"): f"file:{tmp_path}/local/.",
    }
    for one in packages:
        assert one.path.stat().st_size == one.file.size
        subprocess.run(["dpkg-deb", "-c", str(one.path)], check=True, capture_output=True)
    assert not any("%3a" in one.file.name for one in packages)
    assert not list(Path("/var/tmp").glob("tmp.*/archives"))


def test_what_is_installed_for_the_packages_alone_comes_too(address: str, tmp_path: Path) -> None:
    """A node that the policy was applied to gives the same bundle; what it had before is not in it."""
    rows = [
        ("gpustate-app", "1.0", HTTP[0][2]),
        ("gpustate-one", "1:1.0", ""),
        ("gpustate-local", "2", ""),
    ]
    (tmp_path / "status").write_text(
        "".join(
            f"Package: {name}\nStatus: install ok installed\nMaintainer: x\nArchitecture: all\n"
            f"Version: {version}\n{f'Depends: {depends}' if depends else 'Priority: optional'}\nDescription: x\n\n"
            for name, version, depends in rows
        )
    )
    (tmp_path / "state/extended_states").write_text(
        "Package: gpustate-one\nArchitecture: all\nAuto-Installed: 1\n\n"
    )
    packages = fetch(tmp_path / "fetched", "gpustate-app=1.0")
    assert {one.identity[0] for one in packages} == {"gpustate-app", "gpustate-one"}


def test_what_cannot_be_fetched_is_said_in_the_words_of_apt(address: str, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match="Unable to locate package gpustate-none"):
        fetch(tmp_path / "fetched", "gpustate-app", "gpustate-none")
    for file in (tmp_path / "http").glob("*.deb"):
        file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(RefusedError, match=r"Hash Sum mismatch|unexpected size"):
        fetch(tmp_path / "more", "gpustate-app")
