"""Data files from elsewhere: read strictly, with a line for every mistake, and only when their sums are right."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from gpustate import compat
from gpustate.compat import store
from gpustate.errors import RefusedError, UsageError

GOOD = """\
format: gpustate.compat/1
theme: mine
sources:
  house: {address: "https://example.org/rules", retrieved: "2026-08-21"}
rules:
  - id: no-t4
    when: {gpu: T4}
    verdict: block
    because: They are sold.
    fix: use another GPU
    source: house
    tests:
      positive: {gpu: T4}
      negative: {gpu: L4}
"""


def folder(path: Path, text: str = GOOD, name: str = "mine.yaml") -> Path:
    """A folder with one file and its sums."""
    (path / name).write_text(text, encoding="utf-8")
    (path / "SHA256SUMS").write_text(f"{hashlib.sha256(text.encode()).hexdigest()}  {name}\n")
    return path


def test_rules_of_a_folder_take_the_place_of_those_built_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = str(folder(tmp_path))
    assert list(compat.load(where).rules) == ["no-t4"]
    monkeypatch.setenv(store.VARIABLE, where)
    assert compat.load().origin == where
    report = compat.check(compat.facts({"gpu": "T4"}))
    assert [result.rule.id for result in report.blocks] == ["no-t4"]


def test_a_pin_holds_the_whole_folder(tmp_path: Path) -> None:
    where = folder(tmp_path)
    pin = hashlib.sha256((where / "SHA256SUMS").read_bytes()).hexdigest()
    assert compat.load(f"{where}#sha256={pin}").digest == pin
    with pytest.raises(RefusedError, match=r"is pinned; use the pinned data"):
        compat.load(f"{where}#sha256={'0' * 64}")


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    where = folder(tmp_path)
    (where / "mine.yaml").write_text(GOOD.replace("block", "warn"))
    with pytest.raises(RefusedError, match=r"mine\.yaml: is not the file that SHA256SUMS lists"):
        compat.load(str(where))


def test_a_file_that_is_not_listed_or_not_there_is_refused(tmp_path: Path) -> None:
    where = folder(tmp_path)
    (where / "more.yaml").write_text(GOOD)
    with pytest.raises(RefusedError, match=r"more\.yaml: is not listed"):
        compat.load(str(where))
    (where / "more.yaml").unlink()
    (where / "mine.yaml").unlink()
    with pytest.raises(RefusedError, match=r"mine\.yaml: is listed in SHA256SUMS, but missing"):
        compat.load(str(where))


@pytest.mark.parametrize(
    ("sums", "said"),
    [
        ("", "SHA256SUMS: lists no file"),
        ("abc\n", "SHA256SUMS:1: 'abc' is not a line of sha256sum"),
        (f"{'0' * 64}  ../x.yaml\n", "is not a line of sha256sum"),
        (f"{'0' * 64}  a.yaml\n" * 2, "SHA256SUMS:2"),
    ],
)
def test_sums_that_are_none_are_an_error_with_a_line(tmp_path: Path, sums: str, said: str) -> None:
    (folder(tmp_path) / "SHA256SUMS").write_text(sums)
    with pytest.raises(UsageError) as caught:
        compat.load(str(tmp_path))
    assert said in str(caught.value)


def test_a_folder_that_is_none_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a folder"):
        compat.load(str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match="no such file"):
        compat.load(str(tmp_path))


def test_one_id_in_two_files_is_an_error(tmp_path: Path) -> None:
    sums = hashlib.sha256(GOOD.encode()).hexdigest()
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(GOOD)
    (tmp_path / "SHA256SUMS").write_text(f"{sums}  a.yaml\n{sums}  b.yaml\n")
    with pytest.raises(
        UsageError, match=r"b\.yaml:6: rule no-t4 is defined twice, first in .*a\.yaml:6"
    ):
        compat.load(str(tmp_path))


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("gpustate.compat/1", "gpustate.compat/2", 1, "wanted gpustate.compat/1"),
        ("theme: mine\n", "", 1, "the file lacks theme"),
        ("verdict: block", "verdict: stop", 8, "verdict is 'stop', wanted block, warn, inform"),
        ("when: {gpu: T4}", "when: {gpuu: T4}", 7, "unknown fact 'gpuu'; did you mean gpu"),
        ("when: {gpu: T4}", "when: {gpu: T5}", 7, "wanted a GPU model such as H100"),
        ("when: {gpu: T4}", "when: {}", 7, "a condition is a mapping"),
        (
            "when: {gpu: T4}",
            "when: {driver: {rnage: '<5'}}",
            7,
            "unknown operator 'rnage'; did you mean range",
        ),
        ("when: {gpu: T4}", "when: {driver: {range: '5'}}", 7, "is not a range"),
        (
            "when: {gpu: T4}",
            "when: {toolkit: 1.10}",
            7,
            "toolkit: 1.10 is a number; write it in quotes: '1.10'",
        ),
        ("when: {gpu: T4}", "when: {any: {gpu: T4}}", 7, "any is a mapping, wanted a list"),
        (
            "when: {gpu: T4}",
            "when: {gpu: {same_as: driver}}",
            7,
            "gpu is a words, and driver a version",
        ),
        ("source: house", "source: hous", 11, "not among the file's sources; did you mean house"),
        ("https://example.org", "ftp://example.org", 4, "wanted https://"),
        ("2026-08-21", "last week", 4, "wanted a day such as 2026-08-21"),
        ("id: no-t4", "id: No T4", 6, "wanted small letters"),
        (
            "positive: {gpu: T4}",
            "positive: {gpu: L4}",
            13,
            "its positive test results in: does not hold",
        ),
        (
            "negative: {gpu: L4}",
            "negative: {mig: true}",
            14,
            "its negative test results in: cannot tell",
        ),
        ("    fix: use another GPU\n", "", 6, "a rule lacks fix"),
        ("    tests:", "    review: {reader: x}\n    tests:", 12, "review lacks date"),
        (
            "    tests:",
            "    review: {reader: x, date: 2026-11-23, verdict: fine}\n    tests:",
            12,
            "verdict is 'fine', wanted confirmed, corrected, unreachable, pending",
        ),
        (
            "    tests:",
            "    review: {reader: x, date: 2026-11-23, verdict: corrected}\n    tests:",
            12,
            "a review with verdict corrected needs a note",
        ),
        ("fix: use", "fxi: use", 10, "unknown key 'fxi'; did you mean fix"),
        ("    because:", "    verdict: block\n    because:", 9, "is a duplicate of line 8"),
    ],
)
def test_a_mistake_in_a_file_is_named_with_its_line(
    tmp_path: Path, old: str, new: str, line: int, said: str
) -> None:
    text = GOOD.replace(old, new, 1)
    assert text != GOOD
    with pytest.raises(UsageError) as caught:
        compat.load(str(folder(tmp_path, text)))
    assert f"mine.yaml:{line}: " in str(caught.value), str(caught.value)
    assert said in str(caught.value)
