"""Every configuration of docker and CRI-O at hand: foreign bytes kept, repeated to nothing, restored."""

from __future__ import annotations

import json
from typing import Any

import pytest
from runtimeinputs import BINARY, CRIO, DOCKER, DOCKER_TEXTS

from gpustate.errors import GpustateError, ProbeError, RefusedError
from gpustate.formats import crio, docker, jsonedit
from gpustate.formats.containerd import Handler

PATH = docker.CONFIG_PATH
TEXTS = {**DOCKER, **DOCKER_TEXTS}
HANDLERS = [Handler(binary=BINARY), Handler(binary=BINARY, default=True, enable_cdi=True)]
OWN = {("runtimes", "nvidia"), ("default-runtime",), ("features", "cdi")}


def after(file: docker.File, handler: Handler) -> docker.File:
    """The file once the edit is made, with the note of what is ours."""
    edit = docker.plan_edit(file, handler)
    if not edit.files:
        return file
    new = edit.files[PATH]
    ours = tuple(
        ".".join(path)
        for path in sorted(OWN)
        if jsonedit.lookup(jsonedit.parse(new or "", PATH), path)
        != jsonedit.lookup(file.data, path)
    )
    return docker.File(PATH, new, ours, file.text, version=file.version)


def foreign(text: str | None) -> dict[str, Any]:
    data = jsonedit.parse(text or "", PATH)
    for table, *key in (("runtimes", "nvidia"), ("features", "cdi")):
        inner = data.get(table)
        if isinstance(inner, dict):
            inner.pop(key[0], None)
            if not inner:
                del data[table]
    data.pop("default-runtime", None)
    return data


@pytest.mark.parametrize("handler", HANDLERS, ids=["plain", "default-and-cdi"])
@pytest.mark.parametrize("version", ["20.10.24", "26.1.5", "28.3.0"])
@pytest.mark.parametrize("case", TEXTS)
def test_dockers_file_keeps_what_is_not_ours_and_comes_back(
    case: str, version: str, handler: Handler
) -> None:
    before = docker.File(PATH, TEXTS[case], version=version)
    there = after(before, handler)
    data = jsonedit.parse(there.text or "", PATH)
    assert docker.equal_in_effect(data["runtimes"]["nvidia"], handler)
    assert foreign(there.text) == foreign(before.text)
    if not any(jsonedit.lookup(before.data, path) is not None for path in OWN):
        # Nothing was replaced, so all that was there is there, in its order.
        letters = iter(there.text or "")
        assert all(letter in letters for letter in before.text or "")
    assert not docker.plan_edit(there, handler).files
    if there is before:
        assert not docker.plan_removal(there, handler).files
        return
    try:
        assert docker.plan_removal(there, handler).files == {PATH: before.text}
    except RefusedError:
        assert case == "default-nvidia"


@pytest.mark.parametrize("case", DOCKER)
def test_an_edit_made_by_others_since_survives_the_removal(case: str) -> None:
    there = after(docker.File(PATH, DOCKER[case], version="26.1.5"), HANDLERS[1])
    if not there.managed:
        return
    edited = jsonedit.set_key(there.text or "", ("bip",), "10.9.0.1/24", PATH)
    edit = docker.plan_removal(
        docker.File(PATH, edited, there.managed, there.original, version="26.1.5"), HANDLERS[1]
    )
    left = jsonedit.parse(edit.files[PATH] or "", PATH)
    assert left == {**jsonedit.parse(there.original or "", PATH), "bip": "10.9.0.1/24"}
    assert any("foreign edits" in note for note in edit.notes)


def test_a_default_that_is_no_longer_asked_for_is_given_back_its_old_value() -> None:
    there = after(docker.File(PATH, DOCKER["other-default"], version="26.1.5"), HANDLERS[1])
    edit = docker.plan_edit(there, HANDLERS[0])
    data = jsonedit.parse(edit.files[PATH] or "", PATH)
    assert data["default-runtime"] == "crun"
    assert "features" not in data
    assert data["runtimes"]["nvidia"]["path"] == BINARY


def test_what_the_file_no_longer_names_is_named_away_first() -> None:
    before = json.dumps({"runtimes": {"nvidia": {"path": BINARY}}, "default-runtime": "nvidia"})
    first = docker.interim(before, '{"debug": false}', PATH)
    assert json.loads(first or "") == {"debug": False, "runtimes": {}, "default-runtime": "runc"}
    assert docker.interim('{"runtimes": {}}', '{"runtimes": {}}', PATH) is None
    assert json.loads(docker.interim(before, None, PATH) or "") == {
        "runtimes": {},
        "default-runtime": "runc",
    }


@pytest.mark.parametrize(
    ("flags", "text", "reason"),
    [
        (("--add-runtime", "crun=/usr/bin/crun"), None, "--add-runtime"),
        (("--add-runtime=nvidia=/opt/x",), None, "--add-runtime nvidia=/opt/x"),
        (("--default-runtime=crun",), '{"runtimes": {}}', "--default-runtime"),
        (("--feature", "cdi=false"), '{"runtimes": {}}', "--feature"),
    ],
)
def test_what_dockers_command_line_sets_as_well_is_refused(
    flags: tuple[str, ...], text: str | None, reason: str
) -> None:
    file = docker.File(PATH, text, flags=flags, version="26.1.5")
    with pytest.raises(RefusedError, match=reason):
        docker.plan_edit(file, HANDLERS[1])


def test_a_handler_that_the_command_line_registers_is_left_to_it() -> None:
    file = docker.File(PATH, None, flags=("--add-runtime", f"nvidia={BINARY}"), version="26.1.5")
    edit = docker.plan_edit(file, HANDLERS[0])
    assert not edit.files
    assert "command line" in edit.notes[0]


# --- CRI-O -----------------------------------------------------------------------------------


def crio_files(case: str) -> crio.Files:
    texts = {f"/etc/crio/{name}": text for name, text in CRIO[case].items()}
    return crio.Files({p: texts[p] for p in crio.in_order(list(texts), crio.MAIN_PATH)})


@pytest.mark.parametrize("default", [False, True])
@pytest.mark.parametrize("case", CRIO)
def test_crio_gets_one_file_that_wins_and_goes_away_again(case: str, default: bool) -> None:
    handler = Handler(binary=BINARY, default=default)
    files = crio_files(case)
    edit = crio.plan_edit(files, handler)
    assert set(edit.files) <= {files.drop_in_path}
    texts = {**files.texts, **{p: t for p, t in edit.files.items() if t is not None}}
    order = crio.in_order(list(texts), crio.MAIN_PATH)
    there = crio.Files({path: texts[path] for path in order})
    says = crio.merge(there.texts)
    assert crio.handler_problems(says, handler) == ()
    model = says["crio"]["runtime"]["runtimes"].get("crun", {})
    if "runc" not in case and "alone" not in case:
        table = says["crio"]["runtime"]["runtimes"]["nvidia"]
        assert table.get("runtime_root") == model.get("runtime_root")
    assert bool(edit.files) == (case != "nvidia-ctk-same" or default)
    assert not crio.plan_edit(there, handler).files
    removal = crio.plan_removal(there, handler)
    assert removal.files == dict.fromkeys(edit.files, None)


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        ({"/etc/crio/crio.conf.d/10.conf": "[crio\n"}, "not valid TOML"),
        (
            {
                "/etc/crio/crio.conf.d/zz.conf": '[crio.runtime.runtimes.nvidia]\nruntime_path = "/x"\n'
            },
            "this file overrides",
        ),
        ({"/etc/crio/crio.conf.d/99-zz-gpustate.toml": "# mine\n"}, "foreign"),
    ],
)
def test_what_crio_would_not_follow_is_refused(texts: dict[str, str], reason: str) -> None:
    with pytest.raises(GpustateError, match=reason) as caught:
        crio.plan_edit(crio.Files(texts), Handler(binary=BINARY))
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, ProbeError | RefusedError)


def test_crio_is_not_left_with_a_default_that_nobody_defines() -> None:
    files = crio_files("packaged")
    edit = crio.plan_edit(files, Handler(binary=BINARY))
    theirs = {"/etc/crio/crio.conf.d/50-x.conf": '[crio.runtime]\ndefault_runtime = "nvidia"\n'}
    texts = {**files.texts, **theirs, **{p: t or "" for p, t in edit.files.items()}}
    with pytest.raises(RefusedError, match="set another default runtime first"):
        crio.plan_removal(crio.Files(texts), Handler(binary=BINARY))


def test_there_are_forty_configurations_and_more() -> None:
    assert len(TEXTS) >= 30
    assert len(CRIO) >= 20


@pytest.mark.parametrize("path", [BINARY, BINARY.rpartition("/")[2]])
def test_a_program_that_docker_finds_on_its_path_is_left_as_it_is(path: str) -> None:
    text = json.dumps({"runtimes": {"nvidia": {"args": [], "path": path}}})
    edit = docker.plan_edit(docker.File(PATH, text, version="28.0.0"), Handler(binary=BINARY))
    assert edit.files == {}
    assert any("with the same effect" in note for note in edit.notes)


def test_a_runtime_of_dockers_command_line_may_be_named_without_its_folder() -> None:
    flags = ("--add-runtime", f"nvidia={BINARY.rpartition('/')[2]}")
    edit = docker.plan_edit(docker.File(PATH, None, flags=flags), Handler(binary=BINARY))
    assert edit.files == {}
