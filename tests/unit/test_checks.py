"""Format, lint, types and imports, so that one command checks everything.

Each tool runs once, from the environment the tests run in, with its settings in pyproject.toml.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tomllib
from collections.abc import Collection, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
BIN = Path(sys.executable).parent

TOOLS = {
    "ruff-format": ["ruff", "format", "--check"],
    "ruff": ["ruff", "check", "--output-format", "concise"],
    "mypy": ["mypy", "--no-error-summary"],
    "pyright": ["pyright"],
    "imports": ["lint-imports"],
}


@pytest.mark.parametrize("name", TOOLS)
def test_the_tools_have_nothing_to_say(name: str) -> None:
    program, *arguments = TOOLS[name]
    # lint-imports finds the package through the import path, pyright asks the network for a newer one.
    environment = {**os.environ, "PYTHONPATH": str(TOP), "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    done = subprocess.run(
        [BIN / program, *arguments], cwd=TOP, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{program}:\n{done.stdout[-6000:]}{done.stderr[-2000:]}"


def test_a_broken_rule_of_imports_would_be_seen(tmp_path: Path) -> None:
    """The contracts are only worth something if they can fail: a state that imports another does."""
    package = tmp_path / "gpustate"
    (package / "states").mkdir(parents=True)
    for folder in (package, package / "states"):
        (folder / "__init__.py").write_text("")
    for row in _rows():
        if not (package / row).exists():
            (package / f"{row}.py").write_text("")
    (package / "states" / "one.py").write_text(
        "import httpx2, lightkube, paramiko, pyinfra\nfrom gpustate import engine\n"
    )
    (package / "states" / "two.py").write_text("from gpustate.states import one\n")
    (package / "formats.py").unlink()
    (package / "formats").mkdir()
    (package / "formats" / "__init__.py").write_text("import gevent, socket\n")
    contracts = tomllib.loads((TOP / "pyproject.toml").read_text())["tool"]["importlinter"]
    by_id = {contract["id"]: contract for contract in contracts["contracts"]}
    for module in by_id["core"]["forbidden_modules"]:
        (tmp_path / module.replace(".", "/")).with_suffix(".py").write_text("")
    (package / "core.py").write_text("from gpustate.formats import deviceplugin\n")
    (package / "unplaced.py").write_text("")
    done = subprocess.run(
        [BIN / "lint-imports", "--no-cache", "--config", TOP / "pyproject.toml"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    for contract in by_id.values():
        assert f"{contract['name']} BROKEN" in done.stdout, done.stdout[-4000:]
    assert "unplaced" in done.stdout, "a new folder has to be given its row"


def _rows() -> list[str]:
    data = tomllib.loads((TOP / "pyproject.toml").read_text())
    layers = data["tool"]["importlinter"]["contracts"][0]["layers"]
    return [name for layer in layers for name in layer.replace("|", " ").replace(":", " ").split()]


def _modules() -> dict[str, Path]:
    found: dict[str, Path] = {}
    for folder, package in (("gpustate", "gpustate"), ("states", "gpustate.states")):
        for path in sorted((TOP / folder).rglob("*.py")):
            parts = path.relative_to(TOP / folder).with_suffix("").parts
            if not (folder == "gpustate" and parts[0] == "states"):
                found[".".join((package, *parts)).removesuffix(".__init__")] = path
    return found


def _imported(source: str, modules: Collection[str]) -> set[str]:
    """Modules that a source imports anywhere: in functions and for type checkers too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            below = {f"{node.module}.{one.name}" for one in node.names}
            found |= below & set(modules)
            if not below <= set(modules):
                found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
    return found & set(modules)


def _cycles(imports: Mapping[str, set[str]]) -> list[list[str]]:
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return [error.args[1]]
    return []


def test_no_module_imports_itself_by_way_of_others() -> None:
    modules = _modules()
    assert len(modules) > 400
    imports = {
        name: _imported(path.read_text("utf-8"), modules) - {name} for name, path in modules.items()
    }
    assert _cycles(imports) == []


def test_a_cycle_behind_a_local_import_or_for_type_checkers_would_be_found() -> None:
    local = "def f():\n    from gpustate.b import g\n"
    typed = "if TYPE_CHECKING:\n    from gpustate import a\n"
    modules = ("gpustate.a", "gpustate.b")
    imports = {"gpustate.a": _imported(local, modules), "gpustate.b": _imported(typed, modules)}
    assert _cycles(imports)
