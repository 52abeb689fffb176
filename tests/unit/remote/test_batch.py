"""Scripts that go out and answers that come back."""

from __future__ import annotations

import gzip
import os
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shares import tries

from gpustate.core import shared_probes
from gpustate.core.file_queries import FileStats, FileText, FileTexts
from gpustate.core.inventory import InventoryNode
from gpustate.core.queries import Answer, Shell
from gpustate.errors import ProbeError, RefusedError
from gpustate.probes.gpu_facts import GpuFacts
from gpustate.remote import batch

NODE = InventoryNode("n")
NONCE = "gpustate-0123"


def answered(made: batch.Batch, before: bytes = b"", after: bytes = b"") -> tuple[Answer, ...]:
    """Run a batch as a node would and read what it prints."""
    done = subprocess.run(
        ["sh", "-c", batch.command_line(len(made.packed))],
        input=made.packed,
        capture_output=True,
        check=False,
    )
    reader = batch.AnswerReader(made)
    for piece in (before, done.stdout, after):
        reader.feed(piece)
    assert reader.done
    return reader.answers()


def test_answers_come_back_in_order_with_their_status(tmp_path) -> None:
    queries = (
        Shell("printf '\\377\\0binary\\n\\n'"),
        FileText(str(tmp_path / "none")),
        Shell("echo x; exit 7"),
    )
    first, second, third = answered(batch.make_batch(NODE, queries, NONCE))
    assert first == Answer(0, b"\xff\x00binary\n\n")
    assert queries[1].parse(second) is None
    assert third == Answer(7, b"x\n")


def test_what_a_login_shell_prints_around_the_answer_is_ignored() -> None:
    made = batch.make_batch(NODE, (Shell("echo x"),), NONCE)
    assert answered(made, b"Welcome!\n\x1b[31mred", b"\nlogout\n") == (Answer(0, b"x\n"),)


def test_a_file_that_holds_a_frame_of_another_exec_changes_nothing(tmp_path) -> None:
    (tmp_path / "a").write_text("\ngpustate-9999 0\nfake\ngpustate-9999 = 0 0\n")
    query = FileText(str(tmp_path / "a"))
    (answer,) = answered(batch.make_batch(NODE, (query,), NONCE))
    assert query.parse(answer) == "\ngpustate-9999 0\nfake\ngpustate-9999 = 0 0\n"


def test_several_files_come_back_with_exact_bytes(tmp_path) -> None:
    (tmp_path / "a.conf").write_text("no newline")
    (tmp_path / "b.conf").write_text("two\n\n")
    query = FileTexts(f"{tmp_path}/*.conf")
    (answer,) = answered(batch.make_batch(NODE, (query,), NONCE))
    assert list(query.parse(answer).values()) == ["no newline", "two\n\n"]


def test_files_that_several_states_read_come_back_each_to_whom_asked(tmp_path) -> None:
    contents = {"a": b"no newline", "b": b"", "c": b"\n\n7 x\n", "d e'f": "\u2603\n".encode()}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "folder").mkdir()
    (tmp_path / "lost").symlink_to("nowhere")
    (tmp_path / "link").symlink_to("a")
    wanted = {name: content.decode() for name, content in contents.items()}
    wanted |= {"none": None, "lost": None, "link": "no newline", "folder": None}
    queries = [FileText(str(tmp_path / name)) for name in wanted]
    made = batch.make_batch(NODE, queries, NONCE)
    assert len(made.queries) == 1
    found = dict(zip(wanted, zip(queries, answered(made), strict=True), strict=True))
    with pytest.raises(RefusedError, match="folder is a folder, and a file belongs there; move it"):
        found["folder"][0].parse(found.pop("folder")[1])
    assert {name: query.parse(answer) for name, (query, answer) in found.items()} == {
        name: wanted[name] for name in found
    }


def test_files_behind_several_patterns_come_back_each_to_whom_asked(tmp_path) -> None:
    for name in ("a.conf", "b.conf", "c.list", "new\nline.conf"):
        (tmp_path / name).write_text(f"in {name}")
    queries = [FileTexts(f"{tmp_path}/*.conf"), FileTexts(f"{tmp_path}/*"), FileTexts("/nowhere/*")]
    found = [
        query.parse(answer)
        for query, answer in zip(
            queries, answered(batch.make_batch(NODE, queries, NONCE)), strict=True
        )
    ]
    names = [[path.rpartition("/")[2] for path in one] for one in found]
    assert names == [["a.conf", "b.conf"], ["a.conf", "b.conf", "c.list"], []]
    assert found[1][f"{tmp_path}/c.list"] == "in c.list"
    stats = [FileStats((f"{tmp_path}/*.conf",)), FileStats((f"{tmp_path}/*.list", "/none"))]
    observed = [
        query.parse(answer)
        for query, answer in zip(stats, answered(batch.make_batch(NODE, stats, NONCE)), strict=True)
    ]
    assert [set(one) for one in observed][1] == {f"{tmp_path}/c.list"}
    assert f"{tmp_path}/a.conf" in observed[0]


def test_stats_tell_links_from_files(tmp_path) -> None:
    (tmp_path / "a").write_text("x")
    (tmp_path / "b").symlink_to("a")
    query = FileStats((f"{tmp_path}/*",))
    (answer,) = answered(batch.make_batch(NODE, (query,), NONCE))
    stats = query.parse(answer)
    assert stats[f"{tmp_path}/a"].kind == "file"
    assert stats[f"{tmp_path}/b"].target == "a"


def test_a_torn_answer_is_an_error_not_a_short_answer() -> None:
    made = batch.make_batch(NODE, (Shell("echo x"),), NONCE)
    body = b"\ngpustate-0123 0\nx\n"
    reader = batch.AnswerReader(made)
    reader.feed(b"gpustate-0123 begin\ngpustate-0123 answer\n" + gzip.compress(body))
    with pytest.raises(ProbeError, match="1 of 1 queries have no result"):
        reader.answers()


def test_an_answer_that_is_not_compressed_is_an_error() -> None:
    reader = batch.AnswerReader(batch.make_batch(NODE, (), NONCE))
    with pytest.raises(ProbeError, match="invalid answer"):
        reader.feed(b"gpustate-0123 begin\ngpustate-0123 answer\nsh: gzip: not found\n")


@settings(max_examples=tries(300, 100), deadline=None)
@given(st.lists(st.binary(max_size=200), max_size=8))
def test_no_bytes_make_the_reader_raise_anything_but_a_probe_error(pieces: list[bytes]) -> None:
    reader = batch.AnswerReader(batch.make_batch(NODE, (Shell("true"),), NONCE))
    try:
        reader.feed(b"gpustate-0123 begin\n")
        for piece in pieces:
            reader.feed(piece)
        reader.answers()
    except ProbeError:
        pass


@settings(max_examples=tries(100, 33), deadline=None)
@given(
    st.lists(st.tuples(st.binary(max_size=100), st.integers(0, 255)), max_size=6),
    st.integers(1, 50),
)
def test_any_output_survives_framing_however_it_is_cut(
    outputs: list[tuple[bytes, int]], step: int
) -> None:
    made = batch.make_batch(NODE, tuple(Shell(f"# {n}") for n in range(len(outputs))), NONCE)
    body = b"".join(
        b"\ngpustate-0123 %d\n%s\ngpustate-0123 = %d %d\n" % (n, out, n, status)
        for n, (out, status) in enumerate(outputs)
    )
    stream = b"gpustate-0123 begin\ngpustate-0123 answer\n" + gzip.compress(body)
    reader = batch.AnswerReader(made)
    for at in range(0, len(stream), step):
        reader.feed(stream[at : at + step])
    assert [(a.out, a.status) for a in reader.answers()] == outputs


def test_a_file_is_sent_once_however_often_it_is_asked_for() -> None:
    made = batch.make_batch(NODE, [GpuFacts()], NONCE)
    digest = next(iter(made.shipped))
    reader = batch.AnswerReader(made)
    reader.feed(f"{NONCE} begin\n{NONCE} need {digest}\n".encode())
    assert reader.needed == [digest]
    with pytest.raises(ProbeError, match="unknown frame: 'need"):
        reader.feed(f"{NONCE} need {digest}\n".encode())


def test_a_frame_that_does_not_end_is_given_up() -> None:
    reader = batch.AnswerReader(batch.make_batch(NODE, [], NONCE))
    with pytest.raises(ProbeError, match="prints more than 1 MB"):
        reader.feed(f"{NONCE} ".encode() + b"x" * 2_000_000)


@pytest.mark.parametrize("status", ["9" * 5000, "-1", "x", ""])
def test_a_status_that_is_none_is_a_missing_part(status: str) -> None:
    body = f"\n{NONCE} 0\nx\n\n{NONCE} = 0 {status}\n".encode()
    with pytest.raises(ProbeError, match="1 of 1 queries have no result"):
        batch.split_answers(body, NONCE, 1)


def test_beginnings_without_end_cost_no_more_than_their_length() -> None:
    body = b"".join(b"\n%s %d\n" % (NONCE.encode(), number % 999_999) for number in range(200_000))
    before = time.process_time()
    with pytest.raises(ProbeError, match="1 of 1 queries have no result"):
        batch.split_answers(body, NONCE, 1)
    assert time.process_time() - before < 5


def test_the_status_of_a_part_is_its_own() -> None:
    n = NONCE.encode()
    body = b"\n%s 0\n\n%s = 1 7\n\n%s = 0 3\n\n%s 1\nb\n%s = 1 4\n" % (n, n, n, n, n)
    assert [a.status for a in batch.split_answers(body, NONCE, 2)] == [3, 4]


def on_a_node(run: Path, *queries: Shell, image: bool = False) -> list[Answer]:
    """Answers of a node where systemd runs, or of an image; ``run`` is its /run."""
    (run / "systemd/system").mkdir(parents=True)
    made = batch.make_batch(NODE, queries, NONCE)
    script = made.script.replace("/run/", f"{run}/")
    done = subprocess.run(
        ["sh"],
        input=("GPUSTATE_IMAGE=1\n" if image else "").encode() + script.encode(),
        capture_output=True,
        check=False,
    )
    reader = batch.AnswerReader(made)
    reader.feed(done.stdout)
    return list(reader.answers())


def test_fragments_that_hang_on_nothing_run_side_by_side_and_leave_nothing(tmp_path: Path) -> None:
    run = tmp_path / "run"
    # Each of the first two waits for what the other does.
    meet = ": >@/{}; n=0; until [ -e @/{} ]; do sleep 0.1; n=$((n + 1)); [ $n -lt 100 ] || exit 1; done"
    meet = meet.replace("@", str(tmp_path))
    numbered = [Shell(f"echo {n}; exit {n}") for n in range(2, 12)]
    found = on_a_node(run, Shell(meet.format("a", "b")), Shell(meet.format("b", "a")), *numbered)
    assert [one.status for one in found] == [0, 0, *range(2, 12)]
    assert [one.text for one in found[2:]] == [f"{n}\n" for n in range(2, 12)]
    assert os.listdir(run) == ["systemd"]


@pytest.mark.parametrize("image", [False, True])
def test_what_several_want_to_know_is_there_before_those_that_want_it(
    tmp_path: Path, image: bool
) -> None:
    wants = f'echo "{shared_probes.APT_KEY}" >@; [ "$APT_KEY" ] && [ "$KERNEL_RELEASE" ] && echo "${{KERNEL_RELEASE-$(uname -r)}}"'
    first, last = (Shell(wants.replace("@", str(tmp_path / name))) for name in "ab")
    others = [Shell(f'echo {n} "${{KERNEL_RELEASE-$(uname -r)}}"') for n in range(10)]
    found = [one.text for one in on_a_node(tmp_path / "run", first, *others, last, image=image)]
    release = os.uname().release
    assert found == [f"{release}\n", *(f"{n} {release}\n" for n in range(10)), f"{release}\n"]
    assert (tmp_path / "a").read_text() == (tmp_path / "b").read_text() != "\n"


def test_a_look_at_an_image_writes_nothing_into_its_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "systemd").mkdir(parents=True)
    os.utime(run, (1, 1))
    found = on_a_node(run, *(Shell(f"echo {n}") for n in range(10)), image=True)
    assert [one.text for one in found] == [f"{n}\n" for n in range(10)]
    assert run.stat().st_mtime == 1
