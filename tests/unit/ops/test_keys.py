"""Keys are set on a node by its own sh and sed: run here for real, below a folder of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpustate.errors import PolicyError
from gpustate.formats.fabric_config import read
from gpustate.ops.keys import set_keys

#: What the library of a node program gives the step, as far as it is used here.
LIBRARY = (
    'LC_ALL=C; export LC_ALL; set -e\nfail() { echo "$*" >&2; exit 1; }\n'
    'no_link() { [ ! -L "$1" ] || fail "$1 is a symbolic link"; }\nput() { cat >"$1"; }\n'
)


def run(path: Path, values: dict[str, str | None]) -> subprocess.CompletedProcess[bytes]:
    script = f"R={path.parent}\n{LIBRARY}{set_keys(str(path), values).script()}"
    return subprocess.run(["sh", "-c", script], capture_output=True, check=False)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"A=1\nMODE=0\nB=2\n", b"A=1\nMODE=7\nB=2\n"),
        (b"A=1\r\nMODE=0\r\nB=2\r\n", b"A=1\r\nMODE=7\r\nB=2\r\n"),
        (b"MODE=0", b"MODE=7"),
        (b"MODE=", b"MODE=7"),
        (b"A=1", b"A=1\nMODE=7\n"),
        (b"", b"MODE=7\n"),
        (b"MODE=1\nMODE=2\n", b"MODE=7\nMODE=7\n"),
        (b"#MODE=0\n MODE=0\nMODE_X=0\n", b"#MODE=0\n MODE=0\nMODE_X=0\nMODE=7\n"),
        (b"\xff\xfe=\x01\tx\nMODE=0\n\n\n", b"\xff\xfe=\x01\tx\nMODE=7\n\n\n"),
    ],
)
def test_the_key_is_set_and_every_other_byte_is_kept(
    tmp_path: Path, before: bytes, after: bytes
) -> None:
    file = tmp_path / "a.cfg"
    file.write_bytes(before)
    assert run(file, {"MODE": "7"}).returncode == 0
    assert file.read_bytes() == after
    assert run(file, {"MODE": "7"}).returncode == 0
    assert file.read_bytes() == after
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.cfg"]


def test_a_key_that_was_absent_is_absent_again(tmp_path: Path) -> None:
    file = tmp_path / "a.cfg"
    before = b"A=1\r\n#MODE=0\nMODE_X=0\n"
    file.write_bytes(before)
    assert run(file, {"MODE": "7", "A": "2"}).returncode == 0
    assert run(file, {"MODE": None, "A": "1"}).returncode == 0
    assert file.read_bytes() == before
    assert run(file, {"OTHER": None}).returncode == 0
    assert file.read_bytes() == before


@pytest.mark.parametrize("value", ["/a/b", "a&b", r"a\1b", "it's", '$HOME `x` "y"', "", "ü"])
def test_a_value_is_taken_as_it_is(tmp_path: Path, value: str) -> None:
    for before in ("A=old\n", ""):
        file = tmp_path / "a.cfg"
        file.write_text(before)
        assert run(file, {"A": value, "B": "1"}).returncode == 0
        assert read(file.read_text(), ("A", "B")) == {"A": value, "B": "1"}


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = run(tmp_path / "gone.cfg", {"A": "1"})
    assert done.returncode == 1
    assert b"gone.cfg is missing" in done.stderr


@pytest.mark.parametrize(("key", "value"), [("A B", "1"), ("", "1"), ("A", "1\nB=2"), ("A;", "1")])
def test_what_cannot_stand_in_a_line_is_refused(key: str, value: str) -> None:
    with pytest.raises(PolicyError, match="is not a line"):
        set_keys("/etc/a.cfg", {key: value})
