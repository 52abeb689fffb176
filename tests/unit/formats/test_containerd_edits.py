"""Plans for containerd's configuration against golden diffs, on dumps of real binaries."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

from gpustate.errors import ProbeError, RefusedError
from gpustate.formats import toml_scan
from gpustate.formats.containerd import (
    DROP_IN_PATH,
    ROOT_PATH,
    Edit,
    Files,
    Handler,
    dump_arguments,
    effective,
    effective_change,
    handler_present,
    handler_problems,
    is_imported,
    plan_edit,
    plan_removal,
)

DATA = Path(__file__).parents[2] / "data" / "containerd"
GOLDEN = Path(__file__).parents[2] / "golden" / "containerd"
DUMPS = sorted(path.relative_to(DATA / "dumps") for path in DATA.glob("dumps/*/*.toml"))
HANDLERS = (Handler(), Handler(default=True, enable_cdi=True))
V2 = 'plugins."io.containerd.grpc.v1.cri"'


def read(path: Path) -> str:
    return path.read_bytes().decode()


def files_of(case: str, version: str) -> Files:
    if case == "kubeadm":
        text = read(DATA / f"{version}-config-default.toml")
        return Files(text.replace("SystemdCgroup = false", "SystemdCgroup = true"))
    root = DATA / "inputs" / case / "config.toml"
    return Files(
        read(root) if root.exists() else None,
        {
            f"/etc/containerd/conf.d/{path.name}": read(path)
            for path in sorted((DATA / "inputs" / case / "conf.d").glob("*.toml"))
        },
    )


def dump_of(version: str, case: str | None = None) -> str:
    name = f"dumps/{version}/{case}.toml" if case else f"{version}-config-default.toml"
    return read(DATA / name)


def after(files: Files, edit: Edit) -> Files:
    """Return the files as they are once ``edit`` is written, with what the root then imports."""
    texts = {**files.texts(), **edit.files}
    drop_in = texts.pop(DROP_IN_PATH, None)
    root = texts.pop(ROOT_PATH)
    imported = {path: text for path, text in texts.items() if text is not None}
    if drop_in is not None and "conf.d/" in (root or ""):
        imported[DROP_IN_PATH] = drop_in
    return Files(root, imported, drop_in_text=drop_in)


def shown(files: Files, edit: Edit) -> str:
    """Return an edit as a diff in which every byte can be seen."""
    lines = [f"why: {edit.why}", *(f"note: {note}" for note in edit.notes)]
    for path, text in edit.files.items():
        old, new = ((t or "").splitlines(keepends=True) for t in (files.texts()[path], text))
        for line in difflib.unified_diff(old, new, path, path, n=1):
            end = "" if line.endswith("\n") else "\n\\ no line break at the end"
            lines.append(line.rstrip("\n").replace("\r", "^M") + end)
    return "\n".join(lines) + "\n"


def planned(files: Files, handler: Handler, version: str, dump: str) -> str:
    try:
        edit = plan_edit(files, handler, containerd_version=version, dump_text=dump)
    except RefusedError as error:
        return f"refused: {error}\n"
    return shown(files, edit)


@pytest.mark.parametrize("name", DUMPS, ids=str)
def test_the_edit_is_the_golden_one(name: Path, request: pytest.FixtureRequest) -> None:
    version, case = name.parts[0], name.stem
    files = files_of(case, version)
    text = "".join(
        f"### {handler}\n{planned(files, handler, version, dump_of(version, case))}"
        for handler in HANDLERS
    )
    golden = GOLDEN / version / f"{case}.txt"
    if request.config.getoption("--update-golden", default=False):
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_bytes(text.encode())
    assert read(golden) == text


@pytest.mark.parametrize("name", DUMPS, ids=str)
@pytest.mark.parametrize("handler", HANDLERS, ids=["plain", "default-and-cdi"])
def test_planning_again_finds_nothing_and_removal_gives_the_bytes_back(
    name: Path, handler: Handler
) -> None:
    version, case = name.parts[0], name.stem
    files, dump = files_of(case, version), dump_of(version, case)
    try:
        edit = plan_edit(files, handler, containerd_version=version, dump_text=dump)
    except RefusedError:
        assert case in ("version-1", "no-trailing-newline")
        return
    changed = after(files, edit)
    again = plan_edit(changed, handler, containerd_version=version, dump_text=dump)
    assert (again.files, again.why) == ({}, "")
    removal = plan_removal(changed, handler)
    assert after(changed, removal).texts() == files.texts()
    assert not plan_removal(files, handler)


@pytest.mark.parametrize("name", DUMPS, ids=str)
def test_a_changed_wish_leads_to_the_same_files_as_asking_for_it_at_once(name: Path) -> None:
    version, case = name.parts[0], name.stem
    files, dump = files_of(case, version), dump_of(version, case)
    plain, more = HANDLERS
    if case in ("version-1", "no-trailing-newline") and version.startswith("2."):
        pytest.skip("refused; the golden file says why")
    at_once = plan_edit(files, plain, containerd_version=version, dump_text=dump)
    first = after(files, plan_edit(files, more, containerd_version=version, dump_text=dump))
    then = plan_edit(first, plain, containerd_version=version, dump_text=dump)
    assert after(first, then).texts() == after(files, at_once).texts()


def test_an_upgrade_of_containerd_moves_the_handler_from_the_root_into_a_drop_in() -> None:
    files = files_of("debian", "1.7.24")
    old = plan_edit(
        files, Handler(), containerd_version="1.7.24", dump_text=dump_of("1.7.24", "debian")
    )
    assert set(old.files) == {ROOT_PATH}
    in_place = after(files, old)
    new = plan_edit(
        in_place, Handler(), containerd_version="2.1.9", dump_text=dump_of("2.1.9", "debian")
    )
    assert set(new.files) == {ROOT_PATH, DROP_IN_PATH}
    assert "BEGIN gpustate" not in (new.files[ROOT_PATH] or "")
    assert after(in_place, plan_removal(after(in_place, new), Handler())).texts() == files.texts()


def test_removal_keeps_what_the_administrator_changed_around_our_lines() -> None:
    files = files_of("foreign", "1.7.24")
    handler = Handler(default=True)
    edit = plan_edit(
        files, handler, containerd_version="1.7.24", dump_text=dump_of("1.7.24", "foreign")
    )
    text = edit.files[ROOT_PATH]
    assert text is not None
    text = text.replace('level = "info"', 'level = "debug"') + "[timeouts]\n"
    removal = plan_removal(
        Files(text, files.imported), handler, originals={ROOT_PATH: files.root_text}
    )
    expected = (files.root_text or "").replace('level = "info"', 'level = "debug"') + "[timeouts]\n"
    assert removal.files == {ROOT_PATH: expected}
    assert removal.notes == (f"{ROOT_PATH}: foreign edits are preserved",)


def test_a_default_runtime_set_by_hand_on_our_line_is_kept() -> None:
    files = files_of("foreign", "1.7.24")
    handler = Handler(default=True)
    dump = dump_of("1.7.24", "foreign")
    edit = plan_edit(files, handler, containerd_version="1.7.24", dump_text=dump)
    text = (edit.files[ROOT_PATH] or "").replace(
        'name = "nvidia" # gpustate', 'name = "kata" # gpustate'
    )
    removal = plan_removal(Files(text, files.imported), handler)
    left = removal.files[ROOT_PATH] or ""
    assert 'default_runtime_name = "kata"\n' in left
    assert '"crun"   # since 2024' not in left
    assert "gpustate" not in left
    assert "edited by hand" in removal.notes[0]


def test_removal_is_refused_while_somebody_else_names_the_handler_as_default() -> None:
    text = f'version = 2\n[{V2}.containerd]\n  default_runtime_name = "nvidia"\n'
    files = Files(text)
    edit = plan_edit(files, Handler(), containerd_version="2.1.9", dump_text=dump_of("2.1.9"))
    with pytest.raises(RefusedError, match="set another default runtime first"):
        plan_removal(after(files, edit), Handler())


def test_an_import_that_was_there_before_us_stays() -> None:
    text = 'version = 3\nimports = ["/etc/containerd/conf.d/99-nvidia*.toml"]\n'
    files = Files(text)
    edit = plan_edit(files, Handler(), containerd_version="2.1.9", dump_text=dump_of("2.1.9"))
    assert set(edit.files) == {DROP_IN_PATH}
    removal = plan_removal(after(files, edit), Handler(), originals={ROOT_PATH: text})
    assert removal.files == {DROP_IN_PATH: None}


@pytest.mark.parametrize(
    "binary", ["/usr/local/nvidia/toolkit/nvidia-container-runtime", Handler().binary]
)
def test_a_foreign_file_in_place_of_our_drop_in_stays_imported(binary: str) -> None:
    version = "2.1.9"
    files, dump = files_of("kubeadm", version), dump_of(version)
    planned = plan_edit(files, Handler(), containerd_version=version, dump_text=dump)
    ours = after(files, planned)
    table = 'plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia'
    foreign = (
        f'version = 3\n[{table}]\n  runtime_type = "io.containerd.runc.v2"\n'
        f'[{table}.options]\n  BinaryName = "{binary}"\n  SystemdCgroup = true\n'
    )
    replaced = Files(ours.root_text, {DROP_IN_PATH: foreign}, drop_in_text=foreign)
    edit = plan_edit(replaced, Handler(), containerd_version=version, dump_text=dump)
    then = after(replaced, edit)
    assert is_imported(
        toml_scan.parse(then.root_text or "", ROOT_PATH)["imports"], ROOT_PATH, DROP_IN_PATH
    )
    assert Handler().binary in (then.imported[DROP_IN_PATH] or "")
    assert plan_edit(then, Handler(), containerd_version=version, dump_text=dump).files == {}
    removal = plan_removal(then, Handler(), containerd_version=version)
    assert removal.files[ROOT_PATH] == files.root_text
    assert removal.files.get(DROP_IN_PATH, foreign) == foreign


def test_an_import_added_to_our_line_later_stays() -> None:
    files = Files("version = 3\n")
    edit = plan_edit(files, Handler(), containerd_version="2.1.9", dump_text=dump_of("2.1.9"))
    text = (edit.files[ROOT_PATH] or "").replace('*.toml"]', '*.toml", "/etc/containerd/own.toml"]')
    removal = plan_removal(Files(text), Handler())
    assert removal.files == {ROOT_PATH: 'version = 3\nimports = ["/etc/containerd/own.toml"]\n'}


def test_settings_added_to_a_file_we_made_keep_its_version() -> None:
    files = Files(None)
    edit = plan_edit(files, Handler(), containerd_version="2.1.9", dump_text=dump_of("2.1.9"))
    text = (edit.files[ROOT_PATH] or "") + '[debug]\n  level = "debug"\n'
    removal = plan_removal(Files(text), Handler(), originals={ROOT_PATH: None})
    assert removal.files == {ROOT_PATH: 'version = 3\n[debug]\n  level = "debug"\n'}


def test_a_table_defined_again_above_our_block_does_not_lock_us_out() -> None:
    files = files_of("debian", "1.7.24")
    dump = dump_of("1.7.24", "debian")
    edit = plan_edit(files, Handler(), containerd_version="1.7.24", dump_text=dump)
    runc = f'[{V2}.containerd.runtimes.runc]\n  runtime_type = "io.containerd.runc.v2"\n'
    text = (edit.files[ROOT_PATH] or "").replace("# BEGIN", runc + "# BEGIN")
    repaired = plan_edit(Files(text), Handler(), containerd_version="1.7.24", dump_text=dump)
    assert (repaired.files[ROOT_PATH] or "").count("runtimes.runc]") == 1


@pytest.mark.parametrize("drop_in", ["config.toml:2", "conf.d/50-broken.toml:2"])
def test_a_file_that_is_not_toml_is_named_with_its_line(drop_in: str) -> None:
    broken = "version = 2\nroot = =\n"
    root_is_broken = drop_in.startswith("config")
    files = Files(
        broken if root_is_broken else "version = 2\n",
        {} if root_is_broken else {"/etc/containerd/conf.d/50-broken.toml": broken},
    )
    with pytest.raises(ProbeError, match=f"^/etc/containerd/{drop_in}: not valid TOML"):
        plan_edit(files, Handler(), containerd_version="2.1.9", dump_text=dump_of("2.1.9"))


@pytest.mark.parametrize(
    "text", ["]", "=", "x = {", 'imports = ["', "[a", "version = 'two'", "a.b"]
)
def test_broken_texts_end_in_a_probe_error(text: str) -> None:
    with pytest.raises(ProbeError):
        plan_edit(Files(text), Handler(), containerd_version="2.1.9", dump_text=dump_of("2.1.9"))


def test_a_block_without_its_end_is_named() -> None:
    text = "version = 2\n# BEGIN gpustate: x\n[debug]\n"
    with pytest.raises(ProbeError, match=r"config.toml:2: gpustate's block begins here"):
        plan_removal(Files(text), Handler())


def test_the_drop_in_follows_the_root_file_and_not_the_dump() -> None:
    for root_version, table in (
        (2, "io.containerd.grpc.v1.cri"),
        (3, "io.containerd.cri.v1.runtime"),
    ):
        files = Files(f"version = {root_version}\n")
        dump = dump_of("2.3.4")
        edit = plan_edit(files, Handler(), containerd_version="2.3.4", dump_text=dump)
        drop_in = edit.files[DROP_IN_PATH] or ""
        assert "version = 4" in dump
        assert f"version = {root_version}\n" in drop_in
        assert f'[plugins."{table}".containerd.runtimes.nvidia]' in drop_in


def test_a_file_loaded_after_the_drop_in_is_edited_itself() -> None:
    late = "/etc/containerd/conf.d/zz.toml"
    cri = 'plugins."io.containerd.cri.v1.runtime"'
    files = Files(
        'version = 3\nimports = ["conf.d/*.toml"]\n',
        {late: f'version = 3\n[{cri}.containerd]\n  default_runtime_name = "runc"\n'},
    )
    edit = plan_edit(
        files, Handler(default=True), containerd_version="2.1.9", dump_text=dump_of("2.1.9")
    )
    assert 'default_runtime_name = "nvidia" # gpustate' in (edit.files[late] or "")


def test_a_kata_default_runtime_is_not_what_nvidia_copies() -> None:
    dump = dump_of("2.1.9").replace(
        "default_runtime_name = 'runc'", "default_runtime_name = 'kata'"
    )
    kata = "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.kata]\n"
    dump += kata + "runtime_type = 'io.containerd.kata.v2'\n"
    edit = plan_edit(Files("version = 3\n"), Handler(), containerd_version="2.1.9", dump_text=dump)
    assert 'runtime_type = "io.containerd.runc.v2"' in (edit.files[DROP_IN_PATH] or "")


def test_foreign_changes_between_dumps_are_told_apart_from_ours() -> None:
    before = dump_of("2.1.9")
    runtimes = "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia]\n"
    after_text = before.replace("sandbox = 'registry.k8s.io", "sandbox = 'registry.example.org")
    after_text += runtimes + "runtime_type = 'io.containerd.runc.v2'\nsnapshotter = ''\n"
    change = effective_change(before, after_text, Handler())
    assert change.expected == (
        "plugins.io.containerd.cri.v1.runtime.containerd.runtimes.nvidia.runtime_type:"
        " unset -> 'io.containerd.runc.v2'",
    )
    assert len(change.foreign) == 1
    assert "pinned_images.sandbox" in change.foreign[0]
    assert not effective_change(before, before, Handler())


def test_problems_of_a_registered_handler_are_listed() -> None:
    text = dump_of("1.7.24", "nvidia-ctk-differs")
    now = effective(text)
    assert handler_present(now, Handler())
    assert handler_problems(now, Handler()) == ("SystemdCgroup is False for nvidia, True for runc",)
    assert not handler_present(now, Handler(binary="/opt/nvidia-container-runtime"))
    assert handler_problems(effective(dump_of("1.7.24")), Handler()) == (
        "runtime nvidia is not defined",
    )
    wish = Handler(default=True, enable_cdi=True)
    assert "enable_cdi is False" in handler_problems(now, wish)


def test_the_dump_command_depends_on_version_and_root_file() -> None:
    assert dump_arguments(ROOT_PATH, None, "1.7.24~ds1") == ["config", "default"]
    assert dump_arguments(ROOT_PATH, "", "1.7.24")[-1] == "dump"
    assert dump_arguments(ROOT_PATH, "version = 2\n", "v2.0.5")[-1] == "migrate"
    assert dump_arguments(ROOT_PATH, None, "2.1.9") == ["--config", ROOT_PATH, "config", "dump"]
    with pytest.raises(ProbeError, match=r"wanted one such as 1\.7\.24"):
        dump_arguments(ROOT_PATH, None, "unknown")


def test_a_dump_without_the_cri_plugin_is_an_error_with_a_next_move() -> None:
    with pytest.raises(ProbeError, match="disabled_plugins"):
        effective("version = 2\n")


def test_imports_are_matched_as_containerd_does() -> None:
    assert is_imported(["conf.d/*.toml"], ROOT_PATH, DROP_IN_PATH)
    assert is_imported(["/etc/containerd/conf.d/../conf.d/99*"], ROOT_PATH, DROP_IN_PATH)
    assert not is_imported(["/etc/containerd/*"], ROOT_PATH, DROP_IN_PATH)
    assert not is_imported(["/etc/containerd/conf.d/*.conf"], ROOT_PATH, DROP_IN_PATH)
