"""Whatever nodes and policies say, a page says it too, and does nothing else with it."""

from __future__ import annotations

import re
import subprocess
from html.parser import HTMLParser
from shutil import which
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from pages import plan
from shares import tries

from gpustate.cli import reports
from gpustate.formats.words import printable
from gpustate.graph import draw
from gpustate.graph.about import About
from gpustate.graph.build import Edge, Graph
from gpustate.plan import html, markdown

_SPECIAL = st.sampled_from(list("ab1 .)-#+*_`|\\<>[]()!&@:~=\t\n\x1b/;{}$^'\"\u202e\u2028"))
TEXTS = st.text(_SPECIAL | st.characters(), max_size=14)
NASTY = (
    "<script>alert(1)</script>",
    "</style><img src=x onerror=alert(1)>",
    "--></svg><iframe>",
    "`` ` | \\| ```",
    "\x1b[2J\x1b]0;title\x07",
    "[x](javascript:alert(1)) ![y](http://z) http://w @team #1",
    "&lt;&#60; \u202e",
    "1. x\n# y\n- z\n> q",
)
#: What a terminal acts on, but for the end of a line.
_ACTED_ON = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\ud800-\udfff]")
_PARSER = MarkdownIt("commonmark").enable("table")
_INLINE = {"text", "code_inline", "strong_open", "strong_close", "softbreak"}


class Tags(HTMLParser):
    """Tags and attributes of a page, and its texts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.seen: list[tuple[str, tuple[str, ...]]] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, tuple(name for name, _ in attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def shape(page: str) -> set[tuple[str, tuple[str, ...]]]:
    return set(Tags(page).seen)


PLAIN = shape(html.report(plan("plain words")))


@given(TEXTS)
@example(NASTY[0])
@example(NASTY[1])
@example(NASTY[2])
@settings(max_examples=tries(40, 13))
def test_html_has_no_tags_or_attributes_but_its_own(text: str) -> None:
    page = html.report(plan(text))
    assert shape(page) <= PLAIN
    assert not _ACTED_ON.search(page)
    bare = " ".join(printable(text.replace("\n", " ")).split())
    assert bare in " ".join(" ".join(Tags(page).texts).split())


def tokens(source: str) -> tuple[list[Any], list[Any]]:
    """Blocks, and what is in them."""
    blocks = _PARSER.parse(source)
    return blocks, [child for block in blocks for child in block.children or []]


@given(TEXTS)
@example(NASTY[3])
@example(NASTY[5])
@example(NASTY[7])
@settings(max_examples=tries(60, 20))
def test_markdown_of_a_whole_plan_is_made_of_its_own_parts_only(text: str) -> None:
    source = markdown.report(plan(text), diff=True)
    blocks, children = tokens(source)
    assert {child.type for child in children} <= _INLINE
    kinds = [block.type for block in blocks if block.nesting == 1 or block.type == "fence"]
    assert "html_block" not in {block.type for block in blocks}
    assert [b.tag for b in blocks if b.type == "heading_open"] == PLAIN_HEADINGS
    assert kinds.count("table_open") == 1
    assert not _ACTED_ON.search(source)


PLAIN_HEADINGS = [
    block.tag
    for block in tokens(markdown.report(plan("plain words")))[0]
    if block.type == "heading_open"
]


@given(TEXTS)
@settings(max_examples=tries(150, 50))
def test_markdown_says_a_text_as_it_is(text: str) -> None:
    wanted = printable(text.replace("\n", " ").replace("\t", " ")).strip()
    _, children = tokens(f"- {markdown.text(text)}")
    assert "".join(child.content for child in children) == wanted
    assert {child.type for child in children} <= {"text"}
    row = markdown.table(["a", "b"], [[markdown.code(text, cell=True), markdown.text(text)]])
    blocks, children = tokens("\n".join(row))
    assert sum(block.type == "td_open" for block in blocks) == 2
    spans = [child.content.strip() for child in children if child.type == "code_inline"]
    assert spans == ([printable(text.replace("\n", " ")).strip()] if wanted else spans)


@given(TEXTS)
@example(NASTY[4])
@settings(max_examples=tries(40, 13))
def test_text_moves_no_cursor(text: str) -> None:
    assert not _ACTED_ON.search(reports.text(plan(text), "text", diff=True, whole=True))


def graph(text: str) -> tuple[Graph, dict[str, About]]:
    """Two states of which one has any name and any words about it."""
    name = text or "-"
    made = Graph(
        [name, "other"], [Edge(name, "other", "needs"), Edge(name, "other", "known after")]
    )
    return made, {name: About(name, text, text, text, text)}


@given(st.text(_SPECIAL | st.characters(), max_size=14).filter(lambda text: text != "other"))
@example(NASTY[0])
@example('"; } x [label="')
@settings(max_examples=tries(60, 20))
def test_a_drawing_is_well_formed_whatever_states_are_called(text: str) -> None:
    made, about = graph(text)
    lines = draw.as_mermaid(made, about).splitlines()
    assert len(lines) == 4
    for line in lines[1:3]:
        assert re.fullmatch(r'  s\d\["(?:[^"#;]|#\d+;)*"\]', line)
    for line in (draw.as_text(made, about), draw.as_dot(made, about), draw.as_mermaid(made, about)):
        assert not _ACTED_ON.search(line)


@pytest.mark.skipif(which("dot") is None, reason="dot is not installed (Debian package graphviz)")
@pytest.mark.parametrize("text", [*NASTY, '"; } x [label="', "\\", 'a\\"b', "\\N", "é漢"])
def test_dot_reads_what_is_written_for_it(text: str) -> None:
    made, about = graph(text)
    done = subprocess.run(
        ["dot", "-Tplain"],
        input=draw.as_dot(made, about).encode(),
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.count(b"\nnode ") == 2
    assert done.stdout.count(b"\nedge ") == 1
