"""The bounded reader."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from gpustate.errors import InventoryError, PolicyError
from gpustate.files import TextFiles

POLICIES = TextFiles("policy", PolicyError, 1)
INVENTORIES = TextFiles("inventory", InventoryError, 1)


def test_a_pipe_nobody_writes_to_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for reader in (POLICIES, INVENTORIES):
        with pytest.raises(reader.error, match="is neither a file nor a link to one"):
            reader.text(str(tmp_path / "pipe"))


def test_what_a_shell_hands_over_is_read() -> None:
    read, write = os.pipe()
    threading.Thread(
        target=lambda: (os.write(write, b"\xef\xbb\xbfhello\n"), os.close(write))
    ).start()
    assert POLICIES.head(f"/dev/fd/{read}") == ""
    assert POLICIES.text(f"/dev/fd/{read}") == "hello\n"
    os.close(read)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"x" * (1024 * 1024 + 1), "f: is larger than 1 MiB, which no policy is; check that this is the policy"),
        (b"a\0b", "f: is a binary file (a zero byte at offset 1), wanted text"),
        (b"a\n\xff", "f:2: is not UTF-8 (byte 0xff at offset 2); save the file as UTF-8"),
    ],
)  # fmt: skip
def test_what_is_no_text_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("f").write_bytes(data)
    with pytest.raises(PolicyError) as caught:
        POLICIES.text("f")
    assert str(caught.value) == said


def test_what_is_not_there_or_no_file_is_one_error(tmp_path: Path) -> None:
    for path, said in (
        (f"{tmp_path}/no", "no such file"),
        (str(tmp_path), "is a directory"),
        ("a\0", "cannot be read"),
    ):
        with pytest.raises(InventoryError, match=said):
            INVENTORIES.text(path)
