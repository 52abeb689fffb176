"""The documentation site builds without a warning, with a page for every state, verb, exit code and document."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from gpustate import api, errors, registry
from gpustate.cli.main import cli

TOP = Path(__file__).parents[2]
CONFIG = TOP / "docs/site/mkdocs.yml"


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", CONFIG.with_name("reference.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages(reference: ModuleType) -> dict[str, str]:
    generated: dict[str, str] = reference.pages()
    return generated


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a warning of the builder is an error."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mkdocs", "build", "--strict"),
            *("--config-file", CONFIG, "--site-dir", folder),
        ],
        cwd=folder,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_page_is_in_the_site(site: Path, pages: dict[str, str]) -> None:
    written = [path.relative_to(TOP / "docs") for path in (TOP / "docs").rglob("*.md")]
    for page in (*map(str, written), *pages, "index.md"):
        assert (site / page).with_suffix(".html").is_file(), page
    assert not (site / "site").exists()


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    for page in ("index.html", "reference/states/driver.html"):
        text = (site / page).read_text("utf-8")
        assert re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="https?://[^"]+"', text) == []


def test_every_state_has_a_page_with_all_of_its_parameters(pages: dict[str, str]) -> None:
    for name, cls in registry.states().items():
        text = pages[f"reference/states/{name}.md"]
        rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", text, re.M))
        assert set(rows) == set(cls.model_fields), name
        for parameter, row in rows.items():
            kind, default, _, meaning = re.split(r"(?<!\\) \| ?", row, maxsplit=3)
            assert kind, (name, parameter)
            assert default, (name, parameter)
            assert meaning.strip(), (name, parameter)
        for word, names in (("needs", cls.needs), ("after", cls.after), ("before", cls.before)):
            line = re.search(rf"^- \*\*{word}\*\* (.*)$", text, re.M)
            assert (line is None) == (not names), (name, word)
            for other in names:
                assert line is not None
                assert f"`{other}`" in line[1], (name, word, other)
        assert f"import {cls.__name__}\n" in text
        assert re.search(r"^## Disruption\n\n\S", text, re.M), name


def test_units_follow_from_the_end_of_a_name(pages: dict[str, str]) -> None:
    assert (
        "| `reboot_timeout_s` | integer ≥ 30 | `900` | seconds |"
        in pages["reference/states/driver.md"]
    )
    assert "| `boot_mib` | integer ≥ 0 | `100` | MiB |" in pages["reference/states/preflight.md"]


def test_every_verb_has_a_page_with_its_options(pages: dict[str, str]) -> None:
    import click

    context = click.Context(cli, info_name="gpustate", **cli.context_settings)
    names = cli.list_commands(context)
    assert {f"reference/verbs/{name}.md" for name in names} <= set(pages)
    plan = cli.get_command(context, "plan")
    assert plan is not None
    for option in (one for one in plan.params if isinstance(one, click.Option) and not one.hidden):
        assert option.opts[-1] in pages["reference/verbs/plan.md"]
    assert "| `-h, --help` |" in pages["reference/verbs/plan.md"]
    assert "## node lock\n" in pages["reference/verbs/node.md"]


def test_every_name_of_the_api_is_on_its_page(pages: dict[str, str]) -> None:
    text = pages["reference/python-api.md"]
    assert sorted(re.findall(r"^## (\w+)$", text, re.M)) == sorted(api.__all__)
    assert "\n    max_disruption: Disruption = Disruption.REBOOT,\n" in text
    assert "0x" not in text


def test_every_exit_code_is_listed_in_its_order(pages: dict[str, str]) -> None:
    listed = re.findall(r"^\| (\d+) \|", pages["reference/exit-codes.md"], re.M)
    codes = {
        value
        for name, value in vars(errors).items()
        if re.fullmatch("EXIT_[A-Z_]+", name) and isinstance(value, int)
    }
    assert {int(code) for code in listed} == codes == set(errors.EXIT_CODES)
    for number, code in enumerate(listed):
        assert errors.worst_exit_code(map(int, listed[number:])) == int(code)


def test_every_schema_has_a_page_with_its_keys(pages: dict[str, str]) -> None:
    for title, version in (("plan", 1), ("result", 1), ("policy", 1), ("lock", 2)):
        text = pages[f"reference/json/{title}.md"]
        assert text.startswith(f"# gpustate.{title}/{version}\n")
        assert f'`"gpustate.{title}/{version}"`' in text
    index = pages["reference/json/index.md"]
    assert "`gpustate.facts/1`" in index


def test_a_new_state_needs_no_page_by_hand(reference: ModuleType) -> None:
    """The module that makes the pages names no state."""
    text = CONFIG.with_name("reference.py").read_text("utf-8") + CONFIG.read_text("utf-8")
    for name in set(registry.states()) - {"driver", "mig", "kernel", "validator", "bundle"}:
        assert not re.search(rf"[\"'`]{name}[\"'`]", text), name


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("``a_b`` and *c_d*", "`a_b` and \\*c\\_d\\*"),
        (":class:`~gpustate.model.State` [x]", "`State` \\[x\\]"),
        ("<INVENTORY>", "\\<INVENTORY>"),
    ],
)
def test_words_of_docstrings_are_no_markdown(reference: ModuleType, text: str, shown: str) -> None:
    assert reference.prose(text) == shown
