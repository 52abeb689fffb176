"""MkDocs hook: the section Reference, and the start page.

Generated with every build from the source: a page for each state (from its parameters and
docstrings), each verb (from the command line), each JSON document (from its schema), one of the fields of Operator
files and one of all exit codes. So a new state, verb or schema needs no page written by hand. The start page is README.md.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

sys.path.append(str(Path(__file__).parents[2] / "tests" / "support"))  # what tests prove

import leafpage
import statetable

import gpustate
from gpustate import api, errors, registry
from gpustate.cli.main import cli
from gpustate.core.state import AnyState
from gpustate.policies import schemas

TOP = Path(__file__).parents[2]
PACKAGE = Path(gpustate.__file__).parent

#: Units by the end of a parameter's name.
UNITS = {
    "s": "seconds",
    "ms": "milliseconds",
    "mib": "MiB",
    "gib": "GiB",
    "w": "watts",
    "c": "°C",
    "mhz": "MHz",
    "percent": "%",
}
_ROLE = re.compile(r":\w+:`~?([^`]+)`")
_TITLE = re.compile(r"^([A-Z][A-Za-z ]*):\n((?: {4}.*\n?|\n)+)", re.M)


# --- MkDocs ---------------------------------------------------------------------------------------


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, and the navigation to them."""
    generated = pages()
    for path, text in {"index.md": start(), **generated}.items():
        files.append(File.generated(config, path, content=text))
    nav: list[Any] = list(config.nav or [])
    decisions = sorted(
        file.src_uri
        for file in files
        if file.src_uri.startswith("decisions/") and "index" not in file.src_uri
    )
    nav.append({"Decisions": ["decisions/index.md", *decisions]})
    nav.append(
        {
            "Reference": [
                {"States": _below(generated, "states")},
                {"Verbs": _below(generated, "verbs")},
                "reference/operator-fields.md",
                "reference/exit-codes.md",
                "reference/python-api.md",
                {"JSON documents": _below(generated, "json")},
            ]
        }
    )
    config.nav = nav
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Show links to folders, and to what is outside of the documentation, as the words they have."""
    return re.sub(
        r"\[([^\]]*)\]\(([^)#:]+)\)",
        lambda match: match[0] if "." in Path(match[2]).name and _inside(match[2]) else match[1],
        markdown,
    )


def _inside(target: str) -> bool:
    return not target.startswith("../") or bool(
        re.match(r"(\.\./)+(reference|exit-codes|states)", target)
    )


def _below(generated: Mapping[str, str], folder: str) -> list[str]:
    paths = sorted(path for path in generated if path.startswith(f"reference/{folder}/"))
    index = f"reference/{folder}/index.md"
    return [index, *(path for path in paths if path != index)]


def start() -> str:
    """README.md, its links as they are from here."""
    text = (TOP / "README.md").read_text("utf-8")
    return re.sub(
        r"\[([^\]]+)\]\(([^)]+)\)",
        lambda match: (
            f"[{match[1].removeprefix('docs/')}]({match[2].removeprefix('docs/')})"
            if match[2].startswith("docs/")
            else f"`{match[1]}`"
        ),
        text,
    )


# --- all pages ------------------------------------------------------------------------------------


def pages() -> dict[str, str]:
    """Every generated page of the section, by its path."""
    generated = {"reference/exit-codes.md": exit_codes()}
    states = {name: state(cls, definition) for name, cls, definition in described()}
    generated["reference/states/index.md"] = statetable.page(statetable.rows())
    generated["reference/operator-fields.md"] = leafpage.page()
    generated |= {f"reference/states/{name}.md": text for name, text in states.items()}
    generated["reference/verbs/index.md"] = verbs_index()
    generated |= {f"reference/verbs/{name}.md": verb(name, command) for name, command in verbs()}
    generated["reference/python-api.md"] = python_api()
    generated["reference/json/index.md"] = documents_index()
    generated |= {f"reference/json/{name}.md": document(data) for name, data in documents().items()}
    return generated


def cell(text: object) -> str:
    """A text in a cell of a table."""
    return prose(str(text)).replace("|", "\\|").replace("\n", " ")


def prose(text: str) -> str:
    """A docstring's words in Markdown; what looks like a tag is none."""
    text = _ROLE.sub(lambda match: f"`{match[1].rpartition('.')[2]}`", text).replace("``", "`")
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else re.sub(r"([<*_\[\]])", r"\\\1", part) for part in parts
    )


# --- states ---------------------------------------------------------------------------------------


def described() -> Iterator[tuple[str, type[AnyState], dict[str, Any]]]:
    """States that come with gpustate, with the JSON Schema of their parameters."""
    classes = {
        name: cls
        for name, cls in registry.states().items()
        if cls.__module__.startswith("gpustate.states.")
    }
    definitions = schemas.schema(classes)["$defs"]
    for name, cls in classes.items():
        yield name, cls, definitions[name] | {"all": definitions}


def state(cls: type[AnyState], definition: Mapping[str, Any]) -> str:
    """The page of one state."""
    module = inspect.getmodule(cls)
    about = inspect.cleandoc(module.__doc__ or "") if module else ""
    sources = section(about, "Sources")
    words = inspect.cleandoc(cls.__doc__ or "")
    path = cls.__module__.removeprefix("gpustate.states.").partition(".")[0]
    lines = [
        f"# {cls.name}",
        "",
        prose(definition["description"]),
        "",
        "## Use",
        "",
        "```yaml",
        "format: gpustate.policy/1",
        "states:",
        f"  {cls.name}: {{}}",
        "```",
        "",
        "```python",
        f"from gpustate.states.{path} import {cls.__name__}",
        "```",
        "",
        "## Disruption",
        "",
        prose(section(words, "Disruption") or "none"),
        "",
        "## Order",
        "",
        *order(cls),
        "",
        "## Parameters",
        "",
        "| parameter | type | default | unit | meaning |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [
        parameter(name, value, definition) for name, value in definition["properties"].items()
    ]
    notes = [line for line in traits(cls) if line]
    if notes:
        lines += ["", "## Notes", "", *(f"- {line}" for line in notes)]
    background = paragraphs(_TITLE.sub("", about))
    if background:
        lines += ["", "## Background", "", background]
    if sources:
        lines += ["", "## Sources", "", prose(sources)]
    return "\n".join(lines) + "\n"


def order(cls: type[AnyState]) -> list[str]:
    """What a state needs, and what it comes after and before."""
    known = registry.states()
    rows = (
        ("needs", cls.needs, "must hold first; when one fails, this state is not applied"),
        ("after", cls.after, "order only, where they are in the policy"),
        ("before", cls.before, "order only, where they are in the policy"),
        ("known after", cls.known_after, "planned only once their pending changes are made"),
    )
    lines = []
    for word, names, meaning in rows:
        if names:
            links = ", ".join(f"[`{n}`]({n}.md)" if n in known else f"`{n}`" for n in names)
            lines.append(f"- **{word}** {links}: {meaning}.")
    return lines or ["None: it neither needs another state nor comes before one."]


def traits(cls: type[AnyState]) -> Iterator[str]:
    """What else is declared."""
    if cls.known_after:
        yield f"Until it is known, a plan shows `{cls.worst.word}` as its worst disruption."
    if cls.validating:
        yield "It only validates: a failure is exit code 3."
    if cls.needs_gpu:
        yield "Not applicable on nodes for which the policy expects no GPU (`preflight: {gpus: 0}`)."
    if cls.left_to_apply:
        yield "Not part of an image: `gpustate apply` on the machine applies it."


def parameter(name: str, value: Mapping[str, Any], definition: Mapping[str, Any]) -> str:
    """One row of the table of parameters."""
    required = name in definition.get("required", ())
    default = (
        "required"
        if required
        else f"`{json.dumps(value['default'])}`"
        if "default" in value
        else "empty"
    )
    unit = UNITS.get(name.rpartition("_")[2], "") if "_" in name else ""
    return (
        f"| `{name}` | {kind(value, definition['all'])} | {default.replace('|', chr(92) + '|')} | {unit} "
        f"| {cell(value.get('description', ''))} |"
    )


def kind(value: Mapping[str, Any], definitions: Mapping[str, Any], deep: int = 0) -> str:
    """The type of a value as people say it."""
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        target = definitions.get(name, {})
        if deep < 2 and ("enum" in target or target.get("type") in ("string", "integer", "number")):
            return kind(target, definitions, deep + 1)
        return name.rpartition(".")[2]
    for key in ("anyOf", "oneOf"):
        if key in value:
            return " or ".join(dict.fromkeys(kind(one, definitions, deep) for one in value[key]))
    if "const" in value:
        return f"`{json.dumps(value['const'])}`"
    if "enum" in value:
        return " or ".join(f"`{json.dumps(one)}`" for one in value["enum"])
    word = value.get("type", "any")
    if isinstance(word, list):
        return " or ".join(word)
    if word == "array":
        items = value.get("items")
        return f"list of {kind(items, definitions, deep)}" if items else "list"
    if word == "object":
        more = value.get("additionalProperties")
        return (
            f"mapping to {kind(more, definitions, deep)}"
            if isinstance(more, Mapping)
            else "mapping"
        )
    low, high = value.get("minimum"), value.get("maximum")
    if high is not None:
        return f"{word} {low}–{high}" if low is not None else f"{word} ≤ {high}"
    return f"{word} ≥ {low}" if low is not None else word


def section(text: str, title: str) -> str:
    """One section of a docstring, as one paragraph."""
    for match in _TITLE.finditer(text + "\n"):
        if match[1] == title:
            return " ".join(match[2].split())
    return ""


def paragraphs(text: str) -> str:
    """A module's docstring without its sections; indented lines are code."""
    lines = []
    for part in re.split(r"\n\s*\n", text.strip()):
        if part.startswith("    ") or not part.strip():
            lines.append(part)
        else:
            lines.append(prose(" ".join(part.split()).removesuffix("::")))
    return "\n\n".join(lines)


# --- verbs ----------------------------------------------------------------------------------------


def verbs() -> Iterator[tuple[str, click.Command]]:
    """Every verb of the command line."""
    context = click.Context(cli, info_name="gpustate", **cli.context_settings)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        yield name, command


def verbs_index() -> str:
    """All verbs in one table."""
    lines = [
        "# Verbs",
        "",
        "Every verb takes `--help`. [Exit codes](../exit-codes.md) are the same for all.",
        "",
        "| verb | does |",
        "| --- | --- |",
    ]
    lines += [
        f"| [`{name}`]({name}.md) | {cell(command.get_short_help_str(200))} |"
        for name, command in verbs()
    ]
    return "\n".join(lines) + "\n"


def verb(name: str, command: click.Command) -> str:
    """The page of one verb, with those below it."""
    parent = click.Context(cli, info_name="gpustate", **cli.context_settings)
    return "\n".join(_command(name, command, parent, "#")) + "\n"


def _command(name: str, command: click.Command, parent: click.Context, level: str) -> list[str]:
    context = click.Context(command, info_name=name, parent=parent)
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [
        f"{level} {context.command_path.removeprefix('gpustate ')}",
        "",
        "```text",
        f"{context.command_path} {usage}",
        "```",
        "",
        paragraphs(inspect.cleandoc(command.help or "").replace("\b\n", "")),
        "",
    ]
    rows = [
        row
        for one in command.get_params(context)
        if isinstance(one, click.Option) and (row := one.get_help_record(context))
    ]
    if rows:
        lines += ["| option | meaning |", "| --- | --- |"]
        lines += [
            f"| `{words.replace('|', chr(92) + '|')}` | {cell(text)} |" for words, text in rows
        ]
        lines.append("")
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            subcommand = command.get_command(context, below)
            if subcommand is not None:
                lines += _command(below, subcommand, context, "##")
    return lines


# --- Python API -----------------------------------------------------------------------------------


def python_api() -> str:
    """The page of everything that gpustate.api exports."""
    named = [(name, getattr(api, name)) for name in api.__all__]
    lines = ["# gpustate.api", "", "How to use it: [Python API](../python-api.md).", ""]
    for name, function in named:
        if inspect.isfunction(function):
            lines += [f"## {name}", "", "```python", _signature(name, function), "```", ""]
            lines += _documented(function)
    for name, cls in named:
        if inspect.isclass(cls):
            lines += [f"## {name}", "", *_documented(cls)]
            fields = [f"- {one}" for one in _members(cls)]
            lines += [*fields, ""] if fields else []
    return "\n".join(lines) + "\n"


def _signature(name: str, function: Any) -> str:
    signature = inspect.signature(function)
    rows, named = [], False
    for one in signature.parameters.values():
        if one.kind is one.KEYWORD_ONLY and not named:
            rows, named = [*rows, "*"], True
        text = re.sub(r"^(\w+): '(.*?)'(?= = |$)", r"\1: \2", str(one))
        text = re.sub(r"<function .*>", "...", text)
        rows.append(re.sub(r"<(\w+\.\w+): .*>", r"\1", text))
    return "\n".join(
        [f"{name}(", *(f"    {row}," for row in rows), f") -> {signature.return_annotation}"]
    )


def _members(cls: type) -> list[str]:
    """Fields, properties and members of an enumeration, each with its own words where it has some."""
    if issubclass(cls, Enum):
        return [f"`{one.name}`" for one in cls]
    lines = []
    for name, member in vars(cls).items():
        if name.startswith("_") or not (isinstance(member, property) or inspect.isfunction(member)):
            continue
        words = inspect.cleandoc(member.__doc__ or "").split("\n")[0]
        called = f"{name}()" if inspect.isfunction(member) else name
        lines.append(f"`{called}`: {prose(words)}")
    return lines


def _documented(thing: Any) -> list[str]:
    """A docstring: its words, then its parameters and errors as a list."""
    text = inspect.cleandoc(thing.__doc__ or "")
    lines = [paragraphs(_TITLE.sub("", text + "\n")), ""]
    for match in _TITLE.finditer(text + "\n"):
        lines += [f"**{match[1]}**", ""]
        rows = re.split(r"\n(?= {4}\S)", match[2].rstrip())
        lines += [f"- {prose(' '.join(row.split()))}" for row in rows]
        lines.append("")
    return lines


# --- exit codes and documents ---------------------------------------------------------------------


def exit_codes() -> str:
    """The page of all exit codes."""
    lines = [
        "# Exit codes",
        "",
        "When several apply, the one highest in this table is returned.",
        "",
        "| code | meaning |",
        "| --- | --- |",
    ]
    lines += [f"| {code} | {cell(meaning)} |" for code, meaning in errors.EXIT_CODES.items()]
    return "\n".join(lines) + "\n"


def documents() -> dict[str, dict[str, Any]]:
    """Published schemas by the name of their format, as ``plan`` for ``gpustate.plan/1``."""
    published: dict[str, dict[str, Any]] = {}
    for path in sorted(PACKAGE.rglob("schema/*.json")):
        data = json.loads(path.read_text("utf-8"))
        published[str(data["title"]).removeprefix("gpustate.").partition("/")[0]] = data
    return dict(sorted(published.items()))


def documents_index() -> str:
    """All documents with a schema, and the formats that have none."""
    published = documents()
    lines = [
        "# JSON documents",
        "",
        "Every document carries its format and version. Keys keep their order; a change that breaks a reader is a new version.",
        "",
        "| format | what |",
        "| --- | --- |",
    ]
    lines += [
        f"| [`{data['title']}`]({name}.md) | {cell(data.get('description', ''))} |"
        for name, data in published.items()
    ]
    others = sorted(formats() - {data["title"] for data in published.values()})
    if others:
        lines += ["", "Without a published schema:", "", *(f"- `{name}`" for name in others)]
    return "\n".join(lines) + "\n"


def formats() -> set[str]:
    """Every format that the source names."""
    named = re.compile(r'"(gpustate\.[a-z-]+/\d+)"')
    return {
        name for path in PACKAGE.rglob("*.py") for name in named.findall(path.read_text("utf-8"))
    }


def document(data: Mapping[str, Any]) -> str:
    """The page of one format."""
    definitions = data.get("$defs", {})
    lines = [f"# {data['title']}", "", prose(data.get("description", "")), ""]
    lines += _keys(data, definitions)
    for name, value in definitions.items():
        if _is_state(data, name):
            continue
        lines += ["", f"## {name}", ""]
        if value.get("description"):
            lines += [prose(value["description"]), ""]
        keys = _keys(value, definitions)
        lines += keys or [f"{kind(value, definitions)}."]
    if data["title"] == schemas.FORMAT:
        lines += ["", "Parameters of each state: [states](../states/index.md)."]
    return "\n".join(lines) + "\n"


def _is_state(data: Mapping[str, Any], name: str) -> bool:
    """In the schema of policies, what has a page of its own."""
    return data["title"] == schemas.FORMAT and (name.partition(".")[0] in registry.states())


def _keys(value: Mapping[str, Any], definitions: Mapping[str, Any]) -> list[str]:
    properties = value.get("properties")
    if not properties:
        return []
    required = value.get("required", ())
    lines = ["| key | type | always there | meaning |", "| --- | --- | --- | --- |"]
    for name, one in properties.items():
        meaning = one.get("description", "") if isinstance(one, Mapping) else ""
        lines.append(
            f"| `{name}` | {kind(one, definitions) if isinstance(one, Mapping) else 'any'} "
            f"| {'yes' if name in required else 'no'} | {cell(meaning)} |"
        )
    return lines
