"""Asks of a kind that one call answers leave as one, and each reads its own part of the answer."""

from __future__ import annotations

from gpustate.core.file_queries import FileText
from gpustate.core.inventory import InventoryNode
from gpustate.core.queries import Answer, Candidates, Packages, Shell, Units
from gpustate.remote.batch import Batch, make_batch

NODE = InventoryNode(name="gpu1")


def batch(*queries: object) -> Batch:
    return make_batch(NODE, queries, "nonce")  # type: ignore[arg-type]


def test_asks_of_a_kind_leave_as_one_behind_whatever_waits() -> None:
    first, wait, second = Units(("a.service",)), Shell("sleep 1"), Units(("b.service",))
    made = batch(first, FileText("/etc/x"), wait, second)
    assert made.queries == (FileText("/etc/x"), wait, Units(("b.service", "a.service")))
    assert made.numbers == (2, 0, 1, 2)
    assert made.script.count("UNIT_FILES=$(") == 1


def test_a_lone_ask_leaves_as_it_is() -> None:
    made = batch(Units(("a.service",)), Packages(("x*",)))
    assert made.queries == (Units(("a.service",)), Packages(("x*",)))
    assert made.numbers == (0, 1)


def test_each_reads_its_own_units_and_what_shows_under_another_name() -> None:
    text = (
        b"=asked b.service a.service alias.service\n"
        b"Id=b.service\nLoadState=loaded\n\nId=a.service\nLoadState=loaded\n\n"
        b"Id=real.service\nLoadState=loaded\n\n=unit-files\na.service enabled enabled\n"
    )
    found = Units(("a.service", "alias.service")).parse(Answer(0, text))
    assert set(found) == {"a.service", "real.service"}
    assert found["a.service"].enabled
    assert set(Units(("b.service",)).parse(Answer(0, text))) == {"b.service", "real.service"}


def test_each_reads_its_own_packages_and_versions() -> None:
    rows = b"libcuda1|amd64|580.1-1|ii \nnvlsm|amd64|1-1|hi \n"
    assert set(Packages(("libcuda*",)).parse(Answer(0, rows))) == {"libcuda1"}
    assert set(Packages(("nv*", "libcuda1")).parse(Answer(0, rows))) == {"libcuda1", "nvlsm"}
    offers = b" nvlsm | 2-1 | http://x  Packages\n dcgm | 1-1 | http://x  Packages\n"
    assert set(Candidates(("dcgm",)).parse(Answer(0, offers))) == {"dcgm"}
    assert Packages(("a",)).joined([Packages(("b", "a"))]) == Packages(("a", "b"))
    assert Candidates(("a",)).joined([Candidates(("c",))]) == Candidates(("a", "c"))
