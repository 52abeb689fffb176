"""The documents say what is so: their snippets run, their examples load, their tables agree."""

from __future__ import annotations

import ast
import html
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from readme import first_commands

import gpustate as public
from gpustate import errors, inventory, ops, policies, registry, shell, testing
from gpustate.bases.kernel_module import KernelModuleState
from gpustate.bases.service import DriverServiceState, ServiceState
from gpustate.cli.main import cli
from gpustate.cli.verbs import GROUPS, VERBS
from gpustate.core import packages, queries, shared_probes, state
from gpustate.core.change import Plan
from gpustate.core.facts import NodeFacts
from gpustate.core.node import Node
from gpustate.core.state import State

TOP = Path(__file__).parents[2]
PAGES = [TOP / "README.md", TOP / "CONTRIBUTING.md", *sorted((TOP / "docs").rglob("*.md"))]
PROGRAM = Path(sys.executable).with_name("gpustate")


def snippets(page: Path) -> Iterator[tuple[int, str, str]]:
    """Line, language and text of the fenced snippets of a page."""
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S):
        line = page.read_text("utf-8")[: match.start()].count("\n") + 1
        yield line, match[1], match[2]


ALL = [
    pytest.param(language, text, id=f"{page.name}:{line}")
    for page in PAGES
    for line, language, text in snippets(page)
]


def commands(page: Path) -> Iterator[list[str]]:
    """Lines of a page that begin with ``gpustate``, as words."""
    for line in re.findall(r"^ {4}\$? ?(gpustate .*)$", page.read_text("utf-8"), re.M):
        bare = re.sub(r"[$<]\(.*\)", "X", line)
        yield shlex.split(bare.split(" #")[0].split(";")[0], comments=True)


def gpustate(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM, *words], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(("language", "text"), ALL)
def test_a_snippet_is_what_it_claims_to_be(language: str, text: str) -> None:
    readers: dict[str, Any] = {
        "python": ast.parse,
        "toml": tomllib.loads,
        "yaml": lambda text: list(yaml.safe_load_all(text)),
        "json": json.loads,
        "ini": str.splitlines,
        "mermaid": str.splitlines,
        "sh": lambda text: subprocess.run(["sh", "-n"], input=text, text=True, check=True),
    }
    assert language in readers, "name the language of a snippet"
    assert readers[language](text)


def test_snippets_were_found_at_all() -> None:
    assert len(ALL) >= 6


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text("utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_the_pages_have_verbs_and_options_that_exist(page: Path) -> None:
    for words in commands(page):
        command: click.Command | None = cli
        context = click.Context(cli)
        rest = words[1:]
        while isinstance(command, click.Group) and rest:
            command = command.get_command(context, rest.pop(0))
        assert command is not None, f"{page.name}: {words}"
        known = {name for option in command.params for name in option.opts}
        for word in rest:
            if word.startswith("-") and len(word) > 1:
                assert word.split("=")[0] in known | {"--help"}, f"{page.name}: {words}: {word}"


def words_of(picture: str) -> str:
    """The words of an SVG, as one text."""
    text = (TOP / "docs/pictures" / f"{picture}.svg").read_text("utf-8")
    return html.unescape(re.sub(r"<[^>]+>|\s", " ", text))


@pytest.mark.parametrize("diagram", sorted((TOP / "docs/diagrams").glob("*.dot")), ids=str)
def test_a_diagram_is_drawn_from_its_text(diagram: Path) -> None:
    drawn = words_of(diagram.stem)
    for label in re.findall(r'label="([^"]+)"', diagram.read_text("utf-8")):
        for line in label.split("\\n"):
            assert line in drawn, "make pictures"


def test_the_diagram_of_packages_is_the_import_contract() -> None:
    contracts = tomllib.loads((TOP / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    layers = next(row for row in contracts["contracts"] if row["type"] == "layers")["layers"]
    packages = re.findall(r"\w+", " ".join(layers))
    assert [word for word in words_of("rows").split() if word in packages] == packages, (
        "make pictures"
    )


#: Texts that may name commands.
TEXTS = [
    path
    for folder in (
        "gpustate",
        "states",
        "lab",
        "docs",
        "inventories",
        "vagrant",
        "bench",
        "README.md",
    )
    for path in sorted([*(TOP / folder).rglob("*"), TOP / folder])
    if path.suffix in (".py", ".md", ".yaml", ".yml", ".json", ".sh", ".html", ".toml")
]
#: Verbs of all groups.
BELOW = {verb for verbs in GROUPS.values() for verb in verbs}


def unknown_commands(text: str) -> Iterator[str]:
    """Commands in a text that the command line does not have; prose about gpustate is none."""
    for mark, top, verb in re.findall(
        r"(`?)\bgpustate +([a-z][a-z-]+)\b(?: +([a-z][a-z-]+)\b(?![:/.=]))?", text
    ):
        if top in GROUPS and mark and verb:
            known = verb in GROUPS[top]
        else:
            known = top in VERBS or top in ("help", "lab") or not (mark or top in BELOW)
        if not known:
            yield f"gpustate {top} {verb}".strip()


def test_commands_in_texts_exist() -> None:
    titles = re.compile(r"Origin: gpustate bundle|Label: gpustate bundle|title=\"gpustate bundle\"")
    unknown = {
        path.name: [*unknown_commands(titles.sub("", path.read_text("utf-8")))] for path in TEXTS
    }
    assert {name: commands for name, commands in unknown.items() if commands} == {}


def test_a_command_that_does_not_exist_is_seen() -> None:
    text = "run gpustate solve; `gpustate node lock`, `gpustate node wait`: gpustate quarantine -l n; gpustate itself"
    assert list(unknown_commands(text)) == [
        "gpustate solve",
        "gpustate node wait",
        "gpustate quarantine",
    ]


def table(page: str, head: str) -> list[list[str]]:
    """Rows of the table whose head has this text in its first cell."""
    lines = (TOP / page).read_text("utf-8").splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(f"| {head} |"))
    rows: list[list[str]] = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        cells = re.split(r"(?<!\\)\|", line.strip().strip("|"))
        rows.append([cell.strip() for cell in cells])
    return rows


def test_the_table_of_exit_codes_names_every_code() -> None:
    told = {int(row[0]) for row in table("docs/operate.md", "code")}
    assert told == set(errors.EXIT_CODES)


def test_the_order_of_exit_codes_is_the_one_of_the_code() -> None:
    text = (TOP / "docs/operate.md").read_text("utf-8")
    match = re.search(r"the first in this order wins: 130, ([\d, ]+)\.", text)
    assert match is not None
    told = [int(number) for number in match[1].split(", ")]
    for number, code in enumerate(told):
        assert errors.worst_exit_code([*told[number:], 0]) == code
    assert errors.worst_exit_code([*told, 130]) == 130


def test_formats_of_json_are_told_by_name() -> None:
    text = (TOP / "docs/operate.md").read_text("utf-8")
    for name in ("plan", "result"):
        path = TOP / "gpustate/plan/schema" / f"{name}.json"
        const = json.loads(path.read_text("utf-8"))["properties"]["format"]["const"]
        assert f"`{const}`" in text.replace("\n", " ")
    code = [*(TOP / "gpustate").rglob("*.py"), *(TOP / "lab/gpustate_lab").glob("*.py")]
    source = "".join(path.read_text("utf-8") for path in code)
    for told in re.findall(r"`gpustate\.(\w+)/1`", text):
        assert f'"gpustate.{told}/1"' in source


def test_rows_of_the_source_are_those_that_the_import_checks_have() -> None:
    data = tomllib.loads((TOP / "pyproject.toml").read_text("utf-8"))
    contract = data["tool"]["importlinter"]["contracts"][0]
    checked = [set(re.split(r"\s*[|:]\s*", layer)) for layer in contract["layers"]]
    told = [set(re.findall(r"`(\w+)`", row[0])) for row in table("docs/understand.md", "row")]
    assert told == checked


def test_sizes_of_packages_are_about_what_the_page_says() -> None:
    folders = {path.name: path for path in (TOP / "gpustate").iterdir() if path.is_dir()}
    found = {name: _lines(path) for name, path in folders.items() if name != "__pycache__"}
    rows = {
        row[0].strip("`"): (int(row[1].replace(",", "")), row[2].strip())
        for row in table("docs/understand.md", "package")
    }
    assert set(rows) == {name for name, lines in found.items() if lines}
    for name, (told, reason) in rows.items():
        assert abs(found[name] - told) <= max(200, told // 10), (name, found[name])
        assert reason or told <= 4000, name


def _lines(folder: Path) -> int:
    files = (path for path in folder.resolve().rglob("*") if path.suffix in (".py", ".sh"))
    return sum(len(path.read_text("utf-8").splitlines()) for path in files)


def test_steps_that_the_page_names_are_steps_there_are() -> None:
    text = (TOP / "docs/write-a-state.md").read_text("utf-8").partition("Steps there are:")[2]
    told = set(re.findall(r"`([A-Z]\w+)`", text))
    assert told
    for name in told:
        assert hasattr(ops, name), name


DOTTED = re.compile(r"gpustate(?:\.[A-Za-z_]\w*)+")
#: Quoted words of the page about states that are not names of the package: parameters, and variables of its tests.
WORDS = {"password", "PARTLESS", "PROVES", "STEPLESS"}
#: Files and entry point groups, which look like modules.
NO_MODULES = {
    "gpustate.toml",
    "gpustate.lock",
    "gpustate.yaml",
    "gpustate.verbs",
    "gpustate.policies",
}


def resolve(name: str) -> object:
    """The module or attribute with a dotted name."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_dotted_names_in_the_pages_exist(page: Path) -> None:
    for name in re.findall(r"`([^`\n]+)`", page.read_text("utf-8")):
        if DOTTED.fullmatch(name) and name not in NO_MODULES:
            assert resolve(name) is not None


BASES = (ServiceState, DriverServiceState, KernelModuleState)


def test_names_in_the_page_about_states_exist() -> None:
    page = TOP / "docs/write-a-state.md"
    example = "".join(text for _, _, text in snippets(page))
    prose = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.M | re.S)
    names = re.findall(r"`(?:(\w+)\.)?([A-Za-z_]\w*)(?:\([^`]*\)| = True)?`", prose)
    owners = {
        "": (State, state, packages, queries, shared_probes, ops, testing, public, *BASES),
        "ops": (ops,),
        "node": (Node,),
        "facts": (NodeFacts,),
        "plan": (Plan,),
        "shell": (shell,),
    }
    missing = [
        f"{owner}.{name}".strip(".")
        for owner, name in names
        if owner in owners
        and not any(hasattr(one, name) for one in owners[owner])
        and not (owner == "" and re.search(rf"\b{name}\b", example))
        and name not in WORDS
    ]
    assert missing == []
    assert len(names) > 50


def test_the_policy_of_the_readme_loads(tmp_path: Path) -> None:
    policy = next(text for _, language, text in snippets(TOP / "README.md") if language == "python")
    (tmp_path / "policy.py").write_text(policy, encoding="utf-8")
    short = next(text for _, language, text in snippets(TOP / "README.md") if language == "yaml")
    (tmp_path / "policy.yaml").write_text(short, encoding="utf-8")
    assert "validator" in {s.name for s in policies.load(str(tmp_path / "policy.yaml")).states}
    loaded = policies.load(str(tmp_path / "policy.py"))
    assert {"nouveau", "driver", "containerd", "validator"} <= {s.name for s in loaded.states}
    # A node test runs them as they stand.
    assert [words[0] for words in first_commands()] == ["plan", "apply", "drift", "explain"]


EXAMPLES = sorted(
    path
    for path in (TOP / "docs/examples").iterdir()
    if path.suffix in (".py", ".yaml", ".yml") and not path.name.startswith("demo")
)
SOURCES = sorted(
    path
    for path in (TOP / "inventories").iterdir()
    if path.is_file() and path.suffix in (".ini", ".yml", ".py")
)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_policy_loads_and_has_an_order(path: Path) -> None:
    done = gpustate("policy", "graph", str(path), folder=TOP)
    assert (done.returncode, done.stderr) == (0, "")
    assert "validator" in done.stdout


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_an_example_inventory_loads_without_a_note(path: Path) -> None:
    loaded = inventory.load(str(path))
    assert len(loaded) > 0
    assert loaded.notes == ()


def test_examples_were_found_at_all() -> None:
    assert len(EXAMPLES) >= 2
    assert len(SOURCES) >= 4


def test_states_of_ones_own_are_found_beside_their_policies(tmp_path: Path) -> None:
    folder = TOP / "docs/examples/own-states"
    done = gpustate("policy", "graph", "policies/cluster.py", folder=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert "acme-memlock" in done.stdout


@pytest.fixture(scope="module")
def own_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository made as docs/write-a-state.md says, file by file."""
    folder = tmp_path_factory.mktemp("own")
    text = (TOP / "docs/write-a-state.md").read_text("utf-8")
    found = [(language, body) for _, language, body in snippets(TOP / "docs/write-a-state.md")]
    names = ["acme_gpu/memlock.py", "tests/test_memlock.py", "gpustate.toml", None, "policy.py"]
    assert [language for language, _ in found] == ["python", "python", "toml", "toml", "python"]
    for name, (_, body) in zip(names, found, strict=True):
        if name is not None:
            assert f"`{name}`" in text or name == "policy.py"
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(body, encoding="utf-8")
    (folder / "inventory.yml").write_text(
        "all:\n  hosts:\n    here:\n      ansible_connection: local\n"
        f"      gpustate_state_folder: {folder}/state\n"
    )
    return folder


def test_the_tests_of_the_page_pass(own_repository: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"],
        cwd=own_repository,
        env={**os.environ, "PYTHONPATH": str(own_repository)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


def test_the_page_about_states_names_every_part_of_the_contract() -> None:
    parts = {name for name in vars(State) if not name.startswith(("_", "model_"))}
    parts -= {"field_label", "observation_type"}  # nothing that a state defines
    prose = (TOP / "docs/write-a-state.md").read_text("utf-8")
    assert len(parts) > 40
    assert parts - set(re.findall(r"`(\w+)", prose)) == set()


def test_the_state_of_the_page_is_found_and_its_commands_work(own_repository: Path) -> None:
    done = gpustate("policy", "graph", "policy.py", folder=own_repository)
    assert (done.returncode, done.stderr) == (0, "")
    assert " 1. acme-memlock" in done.stdout
    assert "Every user of a group may lock any amount of memory." in done.stdout
    page = TOP / "docs/write-a-state.md"
    told = [words for words in commands(page) if words[1] == "plan"]
    assert told == [["gpustate", "plan", "policy.py", "-i", "inventory.yml", "--diff"]]
    done = gpustate(*told[0][1:], folder=own_repository)
    assert done.returncode == 0, done.stderr
    assert "/etc/security/limits.d/90-acme-memlock.conf" in done.stdout
    done = gpustate("plan", "acme-memlock", "-i", "inventory.yml", folder=own_repository)
    assert done.returncode == 0, done.stderr


def test_an_entry_point_of_the_page_is_one_the_registry_reads() -> None:
    text = next(t for _, _, t in snippets(TOP / "docs/write-a-state.md") if "entry-points" in t)
    points = tomllib.loads(text)["project"]["entry-points"]
    assert list(points) == [registry.ENTRY_POINTS]


def test_no_page_knows_the_machine_it_was_written_on() -> None:
    for page in (*PAGES, *(TOP / "docs/examples").rglob("*.*"), TOP / "CHANGELOG.md"):
        if page.suffix in (".md", ".py", ".yaml", ".toml"):
            assert "/work/" not in page.read_text("utf-8"), page
