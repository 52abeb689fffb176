"""The sh functions of a node program, run by the real sh on real files."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from pathlib import Path

import pytest

from gpustate import ops
from gpustate.formats import masking


class Place:
    """A state folder and a run folder in a temporary directory."""

    def __init__(self, root: Path) -> None:
        self.state = root / "state"
        self.count = 0

    def run(self, *blocks: ops.Block, stop_before: bool = False) -> list[dict[str, object]]:
        """Compile, run as the engine does, and return the journal."""
        self.count += 1
        run = self.state / "runs" / f"r{self.count}"
        run.mkdir(parents=True)
        (run / "library").write_text(ops.LIBRARY)
        program = ops.compile_program(blocks)
        for name, text in program.files.items():
            (run / name).write_text(text)
        if stop_before:
            (run / "stop").touch()
        head = f"G={self.state}; RUN=r{self.count}; R=$G/runs/$RUN; LOCK=x; PROC=/proc; SYS=/sys\nexport G RUN R LOCK PROC SYS\n. $R/library\n"
        subprocess.run(["sh", "-c", head + program.text], check=True, timeout=60)
        return [json.loads(line) for line in (run / "journal").read_text().splitlines()]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def one(
    *steps: (
        ops.PutText
        | ops.RemoveFile
        | ops.RemoveOwn
        | ops.Run
        | ops.KeepOriginal
        | ops.RestoreOriginal
    ),
) -> ops.Block:
    return ops.Block("one", (), steps)


def statuses(journal: list[dict[str, object]]) -> list[object]:
    return [entry["rc"] for entry in journal if entry["e"] == "result"]


def test_a_new_file_is_written_with_its_mode_and_no_temporary_file_is_left(
    place: Place, tmp_path: Path
) -> None:
    path = tmp_path / "deep" / "er" / "a.conf"
    place.run(one(ops.PutText(str(path), "a\nb", mode=0o600)))
    assert path.read_bytes() == b"a\nb"
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(path.parent) == ["a.conf"]


def test_a_file_that_is_right_already_is_not_touched(place: Place, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("same")
    os.utime(path, (1, 1))
    journal = place.run(one(ops.PutText(str(path), "same")))
    assert path.stat().st_mtime == 1
    assert {"e": "effect", "i": 1, "did": "same"} in journal


def test_an_existing_file_keeps_owner_and_mode(place: Place, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    path.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(path, 12, 34)
    place.run(one(ops.PutText(str(path), "new")))
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o640
    if os.geteuid() == 0:
        assert (path.stat().st_uid, path.stat().st_gid) == (12, 34)


def test_a_symbolic_link_is_refused_not_followed(place: Place, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("theirs")
    (tmp_path / "link").symlink_to(target)
    journal = place.run(one(ops.PutText(str(tmp_path / "link"), "ours")))
    assert statuses(journal) == [1]
    assert target.read_text() == "theirs"
    assert (tmp_path / "link").is_symlink()


def test_folders_that_were_made_for_a_file_go_with_it(place: Place, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    path = tmp_path / "theirs" / "made" / "too" / "a.conf"
    place.run(one(ops.PutText(str(path), "a")))
    journal = place.run(one(ops.RemoveFile(str(path))))
    assert statuses(journal) == [0]
    assert os.listdir(tmp_path / "theirs") == []
    assert (place.state / "folders").read_text() == ""


def test_a_folder_that_a_package_made_for_a_file_that_was_noted_goes_with_it(
    place: Place, tmp_path: Path
) -> None:
    path = tmp_path / "made" / "config.toml"
    place.run(one(ops.Run(f"keep {path}", "note that it is not there")))
    path.parent.mkdir()
    path.write_text("of a package's script")
    place.run(one(ops.PutText(str(path), "ours"), ops.RestoreOriginal(str(path))))
    assert not path.parent.exists()


def test_a_folder_that_a_step_made_goes_once_it_is_empty_and_one_that_was_there_stays(
    place: Place, tmp_path: Path
) -> None:
    (tmp_path / "theirs").mkdir()
    made, theirs = tmp_path / "theirs/made/jobs", tmp_path / "theirs"
    leave = one(ops.Run(f"left_folders {made}/job; left_folders {theirs}/job", "leave the folders"))
    place.run(one(ops.Run(f"folder {made}; folder {theirs}", "make the folders")))
    (made / "0").touch()
    place.run(leave)
    assert made.is_dir()
    (made / "0").unlink()
    place.run(leave)
    assert os.listdir(theirs) == []


def test_a_folder_that_others_use_or_that_a_package_owns_stays(
    place: Place, tmp_path: Path
) -> None:
    path = tmp_path / "made" / "too" / "a.conf"
    place.run(one(ops.PutText(str(path), "a")))
    (tmp_path / "made" / "theirs").touch()
    place.run(one(ops.RestoreOriginal(str(path))))
    assert os.listdir(tmp_path / "made") == ["theirs"]
    owns = ops.Run("packaged() { :; }; left_folders " + str(path), "ask as if a package owned it")
    (tmp_path / "made" / "theirs").unlink()
    place.run(one(owns))
    assert (tmp_path / "made").is_dir()
    # A kill between the file and its folder: the next removal finds the folder.
    place.run(one(ops.RemoveFile(str(tmp_path / "made" / "b"))))
    assert not (tmp_path / "made").exists()


def test_content_with_quotes_and_no_final_newline_arrives_byte_for_byte(
    place: Place, tmp_path: Path
) -> None:
    text = "a'b\"c $HOME `id` \\n\tä€\nEND\nEOF"
    place.run(one(ops.PutText(str(tmp_path / "a b'c"), text)))
    assert (tmp_path / "a b'c").read_bytes() == text.encode()


def test_the_original_comes_back_after_two_runs_with_bytes_mode_and_time(
    place: Place, tmp_path: Path
) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"first\r\nno newline")
    path.chmod(0o604)
    os.utime(path, (1000, 1000))
    place.run(one(ops.PutText(str(path), "second")))
    place.run(one(ops.PutText(str(path), "third")))
    place.run(one(ops.RestoreOriginal(str(path))))
    assert path.read_bytes() == b"first\r\nno newline"
    assert path.stat().st_mode & 0o777 == 0o604
    assert path.stat().st_mtime == 1000


def test_a_file_that_was_not_there_is_gone_again_after_restoring(
    place: Place, tmp_path: Path
) -> None:
    path = tmp_path / "a"
    place.run(one(ops.PutText(str(path), "x")))
    place.run(one(ops.RestoreOriginal(str(path))))
    assert not path.exists()


@pytest.mark.parametrize("content", ["# of the site\n", None])
def test_a_file_that_left_with_its_package_is_restored_with_its_folder(
    place: Place, tmp_path: Path, content: str | None
) -> None:
    path = tmp_path / "nvswitch" / "fabricmanager.cfg"
    if content is not None:
        path.parent.mkdir()
        path.write_text(content)
    place.run(one(ops.KeepOriginal(str(path)), ops.PutText(str(path), "of the package\n")))
    place.run(one(ops.PutText(str(path), "of the policy\n")))
    purge = ops.Run(f"rm {path}; rmdir {path.parent}; effect removed", "purge the package")
    assert statuses(place.run(one(purge, ops.RestoreOriginal(str(path))))) == [0, 0]
    assert (path.read_text() if path.exists() else None) == content
    assert path.parent.exists() == (content is not None)


def test_roll_back_puts_files_back_as_they_were_before_this_run(
    place: Place, tmp_path: Path
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("before")
    journal = place.run(
        one(
            ops.PutText(str(old), "after"),
            ops.PutText(str(new), "x"),
            ops.Run(f"roll_back {old} {new}; exit 1", "fail"),
        )
    )
    assert old.read_text() == "before"
    assert not new.exists()
    assert {"e": "effect", "i": 3, "did": "rolled-back"} in journal


def test_keeping_a_files_bytes_leaves_the_variables_of_a_step_alone(
    place: Place, tmp_path: Path
) -> None:
    path = tmp_path / "a"
    path.write_text("before")
    text = f'k=kernel; s=submenu; keep {path}; [ "$k $s" = "kernel submenu" ]; effect same'
    assert statuses(place.run(one(ops.Run(text, "keep")))) == [0]
    assert place.run(one(ops.RestoreOriginal(str(path))))


def test_a_failed_step_skips_the_rest_of_its_state_and_the_states_that_need_it(
    place: Place, tmp_path: Path
) -> None:
    journal = place.run(
        ops.Block("a", (), (ops.Run("false", "bad"), ops.Run(f"touch {tmp_path}/never", "never"))),
        ops.Block("b", ("a",), (ops.Run(f"touch {tmp_path}/never", "never"),)),
        ops.Block("c", ("b",), (ops.Run(f"touch {tmp_path}/never", "never"),)),
        ops.Block("d", (), (ops.Run(f"touch {tmp_path}/done", "done"),)),
    )
    assert not (tmp_path / "never").exists()
    assert (tmp_path / "done").exists()
    assert [e for e in journal if e["e"] == "skip"] == [
        {"e": "skip", "state": "b", "because": "a"},
        {"e": "skip", "state": "c", "because": "b"},
    ]


def test_any_command_of_a_step_that_fails_fails_the_step(place: Place, tmp_path: Path) -> None:
    journal = place.run(one(ops.Run(f"false\ntouch {tmp_path}/never", "bad")))
    assert statuses(journal) == [1]
    assert not (tmp_path / "never").exists()


def test_a_step_that_takes_too_long_is_killed_and_fails(place: Place) -> None:
    journal = place.run(one(ops.Run("sleep 60", "slow", timeout=1)))
    assert statuses(journal) == [124]


def test_a_stop_ends_the_program_before_its_next_step(place: Place, tmp_path: Path) -> None:
    journal = place.run(one(ops.Run(f"touch {tmp_path}/never", "never")), stop_before=True)
    assert not (tmp_path / "never").exists()
    assert journal[-1]["stopped"] == 1


def test_every_step_is_announced_before_it_runs(place: Place, tmp_path: Path) -> None:
    journal = place.run(
        one(ops.PutText(str(tmp_path / "a"), "x"), ops.RemoveFile(str(tmp_path / "a")))
    )
    assert [(e["e"], e.get("i")) for e in journal] == [
        ("intent", 1), ("effect", 1), ("result", 1), ("intent", 2), ("effect", 2), ("result", 2), ("end", None),
    ]  # fmt: skip


@pytest.mark.parametrize("path", ["relative", "/a\nb", ""])
def test_a_path_that_is_not_absolute_or_has_control_characters_is_refused(path: str) -> None:
    with pytest.raises(Exception, match="not an absolute path"):
        ops.PutText(path, "x").script()


def test_the_library_is_accepted_by_every_sh_there_is(tmp_path: Path) -> None:
    file = tmp_path / "library"
    file.write_text(ops.LIBRARY)
    for shell in ("sh", "dash", "bash"):
        if subprocess.run(["which", shell], capture_output=True).returncode == 0:
            subprocess.run([shell, "-n", str(file)], check=True)


def test_what_a_killed_program_left_half_written_is_removed_by_the_next_one(
    place: Place, tmp_path: Path
) -> None:
    path = tmp_path / "etc" / "a.conf"
    others = tmp_path / "etc" / ".gpustate.of-somebody"
    # The program, and then the step with all that belongs to it.
    half = "printf half >$new_file; kill -9 $(cut -d' ' -f4 /proc/$PPID/stat); kill -9 0"
    shadow = f"sync() {{ case $1 in *.gpustate.*) {half};; esac; }}"
    with pytest.raises(subprocess.CalledProcessError):
        place.run(one(ops.Run(f"{shadow}\n{ops.PutText(str(path), 'whole').script()}", "killed")))
    (left,) = path.parent.iterdir()
    assert left.read_text() == "half"
    others.write_text("theirs")
    place.run(one(ops.Run(":", "something else")))
    assert list(path.parent.iterdir()) == [others]


def test_a_program_waits_for_a_step_that_outlived_its_own_program(
    place: Place, tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    # Step and its timeout stay; only the shell of the program is killed.
    slow = f"kill -9 $(cut -d' ' -f4 /proc/$PPID/stat); sleep 1.5; echo first >>{marks}"
    with pytest.raises(subprocess.CalledProcessError):
        place.run(one(ops.Run(slow, "outlives its program")))
    assert not marks.exists()
    place.run(one(ops.Run(f"echo second >>{marks}", "next")))
    assert marks.read_text().split() == ["first", "second"]


def test_a_program_waits_for_no_process_that_only_names_a_step(place: Place) -> None:
    step = f"{place.state}/runs/x/step.1"
    words: list[tuple[list[str], str | None]] = [
        (["bash", "-c", f"exec -a {step} sleep 60"], None),
        (["sh", "-c", "read -r l", step], None),
    ]
    if os.geteuid() == 0:
        words.append((["bash", "-c", f"exec -a sh sleep 60 {step}"], "nobody"))
    others = [
        subprocess.Popen(argv, stdin=subprocess.PIPE, user=user, stderr=subprocess.DEVNULL)
        for argv, user in words
    ]
    try:
        assert statuses(place.run(one(ops.Run(":", "next")))) == [0]
    finally:
        for other in others:
            other.kill()
            other.communicate()


def test_a_program_waits_for_a_step_within_a_limit_and_names_it(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWEEP_POLLS", "12")
    step = place.state / "runs/x/step.1"
    step.parent.mkdir(parents=True)
    step.write_text("read -r line\n")
    other = subprocess.Popen(["sh", str(step)], stdin=subprocess.PIPE)
    try:
        journal = place.run(one(ops.Run(f"touch {tmp_path}/done", "next")))
    finally:
        other.communicate()
    assert {"e": "waits", "pid": other.pid} in journal
    assert statuses(journal) == [1]
    assert f"process {other.pid}, a step" in base64.b64decode(str(journal[-2]["out"])).decode()
    assert not (tmp_path / "done").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="files get another owner, which takes root")
def test_a_file_with_a_mode_of_ours_becomes_ours_again(place: Place, tmp_path: Path) -> None:
    path = tmp_path / "a.conf"
    path.write_text("a")
    os.chown(path, 1, 1)
    path.chmod(0)
    place.run(one(ops.PutText(str(path), "a", mode=0o644)))
    stat = path.stat()
    assert (stat.st_uid, stat.st_gid, stat.st_mode & 0o777) == (0, 0, 0o644)


@pytest.mark.skipif(os.geteuid() != 0, reason="a file system is mounted, which takes root")
@pytest.mark.parametrize(
    ("option", "why"), [("ro", "Read-only file system"), ("size=64k,nr_inodes=1", "No space left")]
)
def test_why_a_file_cannot_be_written_is_told_as_it_is(
    place: Place, tmp_path: Path, option: str, why: str
) -> None:
    folder = tmp_path / "etc"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", option, "none", str(folder)], check=True)
    try:
        journal = place.run(one(ops.PutText(str(folder / "a.conf"), "a", mode=0o644)))
    finally:
        subprocess.run(["umount", str(folder)], check=True)
    assert statuses(journal) == [1]
    said = base64.b64decode(str(journal[-2]["out"])).decode()
    assert f"{folder}/a.conf cannot be written: {folder}: {why}" in said
    assert "no room" not in said


@pytest.mark.parametrize(("size", "end"), [(9, "second\n"), (13, "first\nsecond\n")])
def test_no_line_of_a_log_is_cut_in_the_middle(
    place: Place, tmp_path: Path, size: int, end: str
) -> None:
    log = tmp_path / "log"
    log.write_text("first\nsecond\n")
    journal = place.run(one(ops.Run(f"log_end {size} {log}; exit 1", "show a log")))
    assert base64.b64decode(str(journal[-2]["out"])).decode() == end


def test_a_link_is_taken_away_and_kept_as_a_link(place: Place, tmp_path: Path) -> None:
    path = tmp_path / "a.service"
    path.symlink_to("/dev/null")
    journal = place.run(one(ops.RemoveFile(str(path))), one(ops.RestoreOriginal(str(path))))
    assert statuses(journal) == [0, 0]
    assert os.readlink(path) == "/dev/null"


@pytest.mark.parametrize("known", [True, False])
def test_a_file_of_ours_goes_where_nothing_is_known_of_a_time_before(
    place: Place, tmp_path: Path, known: bool
) -> None:
    path = tmp_path / "a.rules"
    path.write_text("theirs")
    place.run(one(ops.PutText(str(path), "ours", mode=0o644)))
    if not known:
        for kept in (place.state / "originals").iterdir():
            kept.unlink()
    assert statuses(place.run(one(ops.RestoreOriginal(str(path), own=True)))) == [0]
    assert (path.read_text() if path.exists() else None) == ("theirs" if known else None)
    assert not list((place.state / "originals").iterdir())


def test_a_file_that_is_wholly_ours_leaves_nothing_behind(place: Place, tmp_path: Path) -> None:
    path = tmp_path / "made/a.conf"
    place.run(one(ops.PutText(str(path), "ours")))
    assert statuses(place.run(one(ops.RemoveOwn(str(path))))) == [0]
    assert not path.parent.exists()
    assert not list((place.state / "originals").iterdir())
    assert statuses(place.run(one(ops.RemoveOwn(str(path))))) == [0]


def test_what_is_rolled_back_leaves_nothing_kept_but_of_an_earlier_run(
    place: Place, tmp_path: Path
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for path in (old, new):
        path.write_text("theirs")
    place.run(one(ops.PutText(str(old), "ours")))
    back = ops.Run(f"roll_back {old} {new}", "roll back", 30)
    journal = place.run(one(*(ops.PutText(str(path), "other") for path in (old, new)), back))
    assert statuses(journal) == [0, 0, 0]
    assert (old.read_text(), new.read_text()) == ("ours", "theirs")
    kept = [one.read_text() for one in (place.state / "originals").glob("*.path")]
    assert kept == [str(old)]
    place.run(one(ops.PutText(str(new), "third")), one(ops.RestoreOriginal(str(new))))
    assert new.read_text() == "theirs"


def left_in(folder: Path, secret: str) -> list[str]:
    """Files that hold a secret, plain or encoded."""
    words = (secret.encode(), base64.b64encode(secret.encode())[:-4])
    files = (path for path in folder.rglob("*") if path.is_file())
    return [path.name for path in files if any(word in path.read_bytes() for word in words)]


SECRET = "S3cr3t of a repository"


def test_a_secret_stays_in_the_file_it_is_for_and_nowhere_else(
    place: Place, tmp_path: Path
) -> None:
    masking.remember(SECRET)
    login, conf = tmp_path / "auth.conf.d" / "a.conf", tmp_path / "b.conf"
    me = f"{os.getuid()}:{os.getgid()}"
    for word in ("old", "new"):
        journal = place.run(
            one(
                ops.PutText(str(login), f"{word} {SECRET}\n", mode=0o600, owner=me, secret=True),
                ops.PutText(str(conf), f"{word} {SECRET}\n", mode=0o600),
                ops.Run(f"echo '{SECRET}'; echo '{SECRET}' >&2", "print it"),
            )
        )
        assert statuses(journal) == [0, 0, 0]
        assert login.read_text() == conf.read_text() == f"{word} {SECRET}\n"
        assert login.stat().st_mode & 0o777 == 0o600
        assert os.listdir(login.parent) == ["a.conf"]
        assert not left_in(place.state / "runs", SECRET)


def test_a_secret_step_that_fails_says_why_without_the_secret(place: Place, tmp_path: Path) -> None:
    masking.remember(SECRET)
    (tmp_path / "link").symlink_to("elsewhere")
    text = ops.PutText(str(tmp_path / "link"), SECRET, mode=0o600, secret=True)
    journal = place.run(one(text, ops.Run("echo next", "next")))
    (result,) = (entry for entry in journal if entry["e"] == "result")
    assert b"is a symbolic link to elsewhere" in base64.b64decode(str(result["out"]))
    assert not left_in(place.state, SECRET)


def test_what_a_killed_program_left_of_a_secret_goes_with_the_next_one(place: Place) -> None:
    masking.remember(SECRET)
    die = ops.Run("read -r _ _ _ p _ </proc/$PPID/stat; kill -9 $p", "die")  # above is timeout
    killed = one(die, ops.Run(f": '{SECRET}'", "never reached"))
    with pytest.raises(subprocess.CalledProcessError):
        place.run(killed)
    assert left_in(place.state, SECRET) == ["step.2"]
    place.run(one(ops.Run(":", "nothing")))
    assert not left_in(place.state, SECRET)
