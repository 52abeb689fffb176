"""Files that a runtime reads come over byte by byte, in one piece; a torn listing is an error."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpustate.errors import ProbeError
from gpustate.ops.daemon_seen import BLOBS, Rows, read_rows


def listed(folder: Path, text: str) -> Rows:
    script = f"G={folder}/state\ncd {folder}\n{BLOBS}{text}"
    done = subprocess.run(["sh", "-c", script], capture_output=True, check=True)
    assert not done.stderr
    return read_rows(done.stdout, "files", ("file", "conf"))


def test_files_and_kept_originals_are_told_together_with_all_their_bytes(tmp_path: Path) -> None:
    contents = {"a b.toml": b"x\r\n\n\n", "empty": b"", "c": b"several=file /no\ncontents=\n\xff"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    kept = tmp_path / "state/originals"
    kept.mkdir(parents=True)
    for name, path in (("1", "/etc/r/one"), ("2", "/etc/r/two"), ("3", "/etc/s/three")):
        (kept / f"{name}.path").write_text(path)
        if name != "2":
            (kept / name).write_text("before\n")
    rows = listed(
        tmp_path,
        "echo program=/p; blob file 'a b.toml' 'a b.toml'; blob conf empty empty; echo more=1\n"
        "blob file c c; known '/etc/r/*'; print_blobs; print_blobs; echo end=1",
    )
    assert rows.blobs["file"] == {
        "a b.toml": "x\r\n\n\n",
        "c": "several=file /no\ncontents=\n\ufffd",
    }
    assert rows.blobs["conf"] == {"empty": ""}
    assert rows.originals == {"/etc/r/one": "before\n", "/etc/r/two": None}
    assert (rows.last("program"), rows.last("more"), rows.last("end")) == ("/p", "1", "1")


@pytest.mark.parametrize(
    "out",
    [
        b"file=400 /a\nabc\n",
        b"several=file /a\n",
        b"several=file /a\ncontents=\n400\nabc\n",
        b"several=file /a\ncontents=\n2\nabc\n",
        b"several=file /a\nseveral=file /b\ncontents=\n3\nabc\n",
        b"several=file /a\ncontents=\n",
        b"several=other /a\ncontents=\n1\na\n",
    ],
)
def test_a_torn_listing_is_an_error(out: bytes) -> None:
    with pytest.raises(ProbeError, match=r"the listing of files is (truncated|inconsistent)"):
        read_rows(out, "files", ("file",))
