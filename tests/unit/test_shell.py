"""Shell fragments kept as files pass shellcheck and shfmt; shell inside Python stays short."""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
import sysconfig
from collections import Counter
from pathlib import Path

import pytest

from gpustate import shell

TOP = Path(__file__).parents[2]
FRAGMENTS = sorted(
    {path.resolve() for folder in ("gpustate", "states") for path in (TOP / folder).rglob("*.sh")}
)
SHELLCHECK = Path(sysconfig.get_path("scripts")) / "shellcheck"
SHFMT = Path(sysconfig.get_path("scripts")) / "shfmt"
#: Columns of a line, as of Python's.
WIDTH = 100

#: Words and forms of sh that Python text does not have at the start of a line.
SH = re.compile(
    r"^\s*(done|fi|esac|then)\b|^\s*\w+\(\) ?\{|^\s*\[ .* \] (&&|\|\|)|;\s*(then|do)\s*$", re.M
)
LINES = 3
#: Constants that look like sh of more than :data:`LINES` lines. Lower a number when it sinks.
LIMITS: dict[str, int] = {}


def long_shell() -> Counter[str]:
    """Number of long shell constants in each folder of the product."""
    counts: Counter[str] = Counter()
    files = {path for folder in ("gpustate", "states") for path in (TOP / folder).rglob("*.py")}
    for path in {path.resolve() for path in files}:
        parts = path.relative_to(TOP).parts[:-1]
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value.strip()
                if text.count("\n") >= LINES and len(SH.findall(text)) > 1:
                    counts["/".join(parts[:2])] += 1
    return counts


def test_fragments_pass_shellcheck() -> None:
    assert FRAGMENTS
    done = subprocess.run(
        [SHELLCHECK, "--severity=warning", "--format=gcc", *FRAGMENTS],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(not SHFMT.exists(), reason="shfmt-py, of gpustate[test], is not installed")
def test_fragments_have_the_form_of_shfmt() -> None:
    """The form is in ``.editorconfig``; ``shfmt -w FILE`` writes it."""
    done = subprocess.run(
        [SHFMT, "--diff", *FRAGMENTS], cwd=TOP, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_lines_of_fragments_fit_on_a_screen() -> None:
    long_lines = [
        f"{path.relative_to(TOP)}:{number}"
        for path in FRAGMENTS
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if len(line) > WIDTH
    ]
    assert not long_lines


def test_placeholders_are_filled_in_one_pass() -> None:
    assert shell.fill("a=@A@; b=@B@ @A@", A="@B@", B="2") == "a=@B@; b=2 @B@"
    assert shell.fill("echo $@ user@HOST x@y@z", A="unused") == "echo $@ user@HOST x@y@z"
    with pytest.raises(KeyError, match="A"):
        shell.fill("a=@A@", B="2")


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ("", "begin\nend\n"),
        ("one\ntwo\n", "begin\none\ntwo\nend\n"),
        ("one", "begin\n  one\nend\n"),
    ],
)
def test_a_placeholder_alone_on_its_line_makes_room_for_lines(lines: str, text: str) -> None:
    assert shell.fill("begin\n  @ROWS@\nend\n", ROWS=lines) == text


def test_fragments_begin_with_dialect_and_purpose() -> None:
    for path in FRAGMENTS:
        first, second, *_ = path.read_text("utf-8").splitlines()
        assert first in ("# shellcheck shell=sh", "#!/bin/sh"), path.name
        assert re.match(r"# [A-Z][a-z]+s ", second) or first == "#!/bin/sh", path.name


def test_exceptions_from_shellcheck_are_named_one_by_one_with_a_reason() -> None:
    for path in FRAGMENTS:
        for line in path.read_text("utf-8").splitlines():
            if "shellcheck disable" in line:
                assert re.fullmatch(r"\s*# shellcheck disable=SC\d{4} # \S.*", line), path.name


def test_placeholders_are_explained_in_the_first_comment() -> None:
    for path in FRAGMENTS:
        lines = path.read_text("utf-8").splitlines(keepends=True)
        head = "".join(itertools.takewhile(lambda line: line.startswith("#"), lines))
        words = set(re.findall(r"@[A-Z_]+@", "".join(lines)))
        assert words == set(re.findall(r"@[A-Z_]+@", head)), path.name


def test_long_shell_in_python_does_not_grow() -> None:
    counts = long_shell()
    assert counts <= Counter(LIMITS), "move the new fragment to an .sh file beside its module"
