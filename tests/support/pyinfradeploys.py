"""Deploys for tests, in a module so that they are found by their names."""

from __future__ import annotations

from io import StringIO

from pyinfra.api.deploy import deploy
from pyinfra.context import host
from pyinfra.facts.files import File, FileContents
from pyinfra.operations import files, server


@deploy("Web server")
def web(folder: str, greeting: str = "hello") -> None:
    """The second operation runs only if the first one changes something."""
    page = files.put(src=StringIO(f"{greeting}\n"), dest=f"{folder}/page")
    server.shell(commands=[f"echo reloaded >>{folder}/log"], _if=page.did_change)
    files.line(path=f"{folder}/list", line="page")


@deploy("Two steps")
def chained(folder: str) -> None:
    """What it does depends on what it has done."""
    files.file(path=f"{folder}/first")
    if host.get_fact(File, path=f"{folder}/first"):
        files.file(path=f"{folder}/second")


@deploy("From the inventory")
def from_data() -> None:
    """A folder that the inventory names."""
    files.directory(path=f"{host.data.folder}/made")


@deploy("What a file names")
def follows(folder: str, name_file: str) -> None:
    """Which file it looks at stands in another one."""
    lines = host.get_fact(FileContents, path=name_file)
    if lines and lines[0]:
        files.file(path=f"{folder}/{lines[0]}")
