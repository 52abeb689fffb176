"""Answers of the common asks that make no sense: an error that says so, or the rest of them."""

from __future__ import annotations

import re

import pytest

from gpustate.core.facts import FactsQuery
from gpustate.core.file_queries import FileStat, FileStats, FileText, FileTexts
from gpustate.core.queries import Answer, Units
from gpustate.engine.ledger import LedgerQuery, Lock, read_lock
from gpustate.errors import ProbeError, RefusedError


@pytest.mark.parametrize("size", ["-5", "9" * 30, "9" * 5000, "٣", "", "x", "2", "4"])
def test_a_file_with_another_size_than_was_said_is_torn(size: str) -> None:
    said = f"files=1\n/x/a\n{size} /x/a\nabc".encode()
    with pytest.raises(ProbeError, match="/x/a: it changed while it was read"):
        FileText("/x/a").parse(Answer(0, said))


@pytest.mark.parametrize("head", ["", "files=", "files=-1", "files=x", "3"])
def test_a_list_of_files_without_their_number_is_torn(head: str) -> None:
    for query in (FileText("/x/a"), FileTexts("/x/*")):
        with pytest.raises(ProbeError, match="torn"):
            query.parse(Answer(0, f"{head}\n/x/a\n0 /x/a\n".encode()))


def stat_of_x(line: str) -> dict[str, FileStat]:
    query = FileStats(("/x",))
    mark = re.findall(r"'([0-9a-f]{8})\|", query.script())[0]
    return query.parse(Answer(0, f"{mark}|/x|\n{line}\n".encode()))


def test_a_file_whose_mode_is_none_is_an_error() -> None:
    with pytest.raises(ProbeError, match="stat answered"):
        stat_of_x("regular file|9z|0|0|1|0|0|/x")


def test_numbers_of_a_file_that_are_none_are_zero() -> None:
    found = stat_of_x("character special file|644|²|x|-1|zz|1|/x")
    assert found == {"/x": FileStat("char", 0o644, 0, 0, 0, None, (0, 1))}


@pytest.mark.parametrize(
    "row", ["0000:1b:00.0 0xzz 0x030200 -", "a b c", "0000:1b:00.0 2330 0x030200 -"]
)
def test_a_pci_device_without_ids_is_an_error(row: str) -> None:
    with pytest.raises(ProbeError, match="for a PCI device"):
        FactsQuery().parse(Answer(0, f"kernel=6.1\npci={row}\n".encode()))


def test_whether_a_unit_is_enabled_is_what_the_disk_says_not_what_systemd_remembers() -> None:
    text = (
        "Id=a.service\nUnitFileState=disabled\n\nId=b@1.service\nUnitFileState=enabled\n\n"
        "Id=c.service\nUnitFileState=enabled\n"
        "=unit-files\na.service enabled enabled\nc.service alias -\nd.service disabled enabled\n"
    )
    found = Units(("a.service", "b@1.service", "c.service")).parse(Answer(0, text.encode()))
    assert {name: unit.unit_file_state for name, unit in found.items()} == {
        "a.service": "enabled",
        "b@1.service": "enabled",
        "c.service": "enabled",
    }


@pytest.mark.parametrize("at", [10**30, -(10**30), 2**62])
def test_a_lock_with_an_invalid_time_is_described(at: int) -> None:
    text = Lock("r", "me@here", "apply", at, at).describe()
    assert "until an invalid time" in text


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"run": 1, "holder": 1, "since": Infinity, "expires": 1}',
        "[]",
        "null",
        "1e999",
    ],
)
def test_a_lock_that_is_none_holds_nobody(text: str) -> None:
    assert read_lock(text) is None


def test_the_name_of_a_run_that_is_none_is_put_into_no_script() -> None:
    """It was a folder's name on the node, and would have been a word of a script."""
    for run in ("$(touch /x)", "a;b", "-a", "a" * 200):
        assert LedgerQuery().parse(Answer(0, f"program {run} 1 x\n".encode())).program is None
    found = LedgerQuery().parse(Answer(0, b"now 7\nprogram 20260101-000000-abcdef-1 1 {\n"))
    assert found.now == 7
    assert found.program is not None


def test_a_state_folder_that_is_none_is_refused_with_the_way_out() -> None:
    row = b"odd=/var/lib/gpustate/lock/info|/var/lib/gpustate|folder|a file\n"
    with pytest.raises(RefusedError) as refused:
        LedgerQuery().parse(Answer(0, row))
    assert str(refused.value) == (
        "/var/lib/gpustate is a file, and a folder belongs there; "
        "move it away: mv /var/lib/gpustate /var/lib/gpustate.moved"
    )
