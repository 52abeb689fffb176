"""Whatever the administrator wrote: it is kept, edits repeat to nothing, removal restores it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shares import tries

from gpustate.errors import GpustateError, RefusedError
from gpustate.formats.containerd import (
    DROP_IN_PATH,
    ROOT_PATH,
    Edit,
    Files,
    Handler,
    plan_edit,
    plan_removal,
)

DATA = Path(__file__).parents[1] / "data" / "containerd"
TABLES = {2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
DUMPS = {v: (DATA / f"{v}-config-default.toml").read_text() for v in ("1.6.20", "1.7.24", "2.1.9")}
DUMPS["2.3.4"] = (DATA / "2.3.4-config-default.toml").read_text()

words = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), max_size=12)
#: A comment with our own mark makes a line ours.
foreign_words = words.filter(lambda word: not word.strip().startswith("gpustate"))
comments = st.one_of(st.just(""), foreign_words.map(lambda word: f"# {word}"))
plain = st.one_of(
    st.integers(-9, 99).map(str),
    st.booleans().map(lambda yes: "true" if yes else "false"),
    st.text("abcXYZ/.,:{}[]#= ", max_size=10).map(lambda text: f'"{text}"'),
    st.text("abc/'#[]", max_size=8).map(lambda text: f'"{text}"'),
    st.sampled_from(
        [
            "'literal # no comment'",
            '"""\n[plugins]\n# gpustate keeps: x = 1\nimports = [ # gpustate\n"""',
            "'''\n\"\"\" # END gpustate '''",
            '[\n  "a", # one\n  "b,]"\n]',
            "{ a = 1, b = { c = [1, 2] } }",
            "[]",
            "1979-05-27T07:32:00Z",
        ]
    ),
)
imports = st.sampled_from(
    [
        "[]",
        "[ ]",
        "[ # none\n]",
        '["/etc/containerd/a.d/*.toml"]',
        '["/etc/containerd/a.d/*.toml",]',
        '[ "/a/*.toml" , "/b/*.toml" ]',
        '[\n  "/a/*.toml",\n  "/b/*.toml", # last\n]',
        '[\n\t"/a/*.toml", # one\n\t"/b/*.toml"\n]',
        '[\n  "/a/*.toml", # one, two\n  "/b/*.toml" # last, really\n\n  # a hole\n]',
        '[\n  "/a/*.toml"]',
        '["/a/*.toml", # one\n]',
        '["/etc/containerd/conf.d/*.toml"]',
    ]
)


@st.composite
def roots(draw: st.DrawFn, version: int) -> str:
    """Return the text of a root file in one of many styles."""
    cri = f'plugins."{TABLES[version]}"'
    lines = [draw(comments), f"version = {version}{draw(st.sampled_from(['', '  # on disk']))}"]
    if draw(st.booleans()):
        lines.append(f"imports = {draw(imports)} {draw(comments)}")
    lines += [
        f"top{n} = {value} {draw(comments)}"
        for n, value in enumerate(draw(st.lists(plain, max_size=3)))
    ]
    runtimes = draw(st.sets(st.sampled_from(["runc", "crun", "nvidia"])))
    default = draw(st.sampled_from([None, "runc", "crun", "nvidia"]))
    cdi = draw(
        st.sampled_from([None, "enable_cdi = false", 'enable_cdi = true\ncdi_spec_dirs = ["/x"]'])
    )
    style = draw(st.sampled_from(["headers", "dotted", "inline", "deep-dotted"]))
    options = draw(st.sampled_from(["", "SystemdCgroup = true", 'BinaryName = "/usr/bin/x"']))
    foreign = [
        f'[foreign{n}."a.b"]\n  key = {draw(plain)} {draw(comments)}'
        for n in range(draw(st.integers(0, 2)))
    ]
    body: list[str] = []
    if style == "headers":
        inside = [*([cdi] if cdi else []), 'other = "kept"']
        body.append(f"[{cri}]\n" + "\n".join(inside))
        if default:
            body.append(
                f'  [{cri}.containerd]\n    default_runtime_name = "{default}" {draw(comments)}'
            )
        for name in sorted(runtimes):
            body.append(
                f'    [{cri}.containerd.runtimes.{name}]\n      runtime_type = "io.containerd.runc.v2"\n'
                f"      [{cri}.containerd.runtimes.{name}.options]\n        {options}"
            )
        body = draw(st.permutations(body))
    elif style == "inline":
        inner = ", ".join(f"{n} = {{ options = {{ {options} }} }}" for n in sorted(runtimes))
        named = f', default_runtime_name = "{default}"' if default else ""
        body.append(
            f"[{cri}]\n  containerd = {{ runtimes = {{ {inner} }}{named} }} {draw(comments)}\nz = 1"
        )
    else:
        prefix = cri + "." if style == "deep-dotted" else ""
        dotted = [f'{prefix}containerd.default_runtime_name = "{default}"'] if default else []
        dotted += [
            f'{prefix}containerd.runtimes.{n}.runtime_type = "io.containerd.runc.v2"'
            for n in sorted(runtimes)
        ]
        if prefix:
            lines += dotted
        else:
            body.append(f"[{cri}]\n" + "\n".join([*dotted, 'other = "kept"']))
    parts = [*lines, *draw(st.permutations([*foreign, *body])), draw(comments)]
    text = draw(st.sampled_from(["\n", "\n\n"])).join(parts)
    if draw(st.booleans()):
        text = text.replace("\n", "\r\n")
    return text.rstrip() if draw(st.booleans()) else text


def after(files: Files, edit: Edit) -> Files:
    texts = {**files.texts(), **edit.files}
    drop_in = texts[DROP_IN_PATH]
    return Files(texts[ROOT_PATH], {DROP_IN_PATH: drop_in} if drop_in else {})


def foreign_part(text: str, version: int, name: str, built_in: bool) -> dict[str, Any]:
    """Return what a root file means without the keys a handler may set."""
    data = tomllib.loads(text)
    cri = data.get("plugins", {}).get(TABLES[version], {})
    data["imports"] = [entry for entry in data.get("imports", []) if "99-nvidia" not in entry]
    containerd = cri.get("containerd", {})
    containerd.pop("default_runtime_name", None)
    for runtime in (name, "runc") if built_in else (name,):
        containerd.get("runtimes", {}).pop(runtime, None)
    for key in ("enable_cdi", "cdi_spec_dirs"):
        cri.pop(key, None)
    return without_empty(data)


def without_empty(value: dict[str, Any]) -> dict[str, Any]:
    inner = {k: without_empty(v) if isinstance(v, dict) else v for k, v in value.items()}
    return {k: v for k, v in inner.items() if v not in ({}, [])}


handlers = st.builds(
    Handler, default=st.booleans(), enable_cdi=st.sampled_from([None, True, False])
)


@settings(deadline=None, max_examples=tries(300, 100), suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), st.sampled_from(sorted(DUMPS)), handlers)
def test_foreign_keys_stay_repeating_changes_nothing_and_removal_is_the_inverse(
    data: st.DataObject, containerd: str, handler: Handler
) -> None:
    version = 2 if containerd.startswith("1.") else data.draw(st.sampled_from([2, 3]))
    text = data.draw(roots(version))
    tomllib.loads(text)
    files = Files(text)
    theirs = tomllib.loads(text).get("plugins", {}).get(TABLES[version], {}).get("containerd", {})
    named = set(theirs.get("runtimes", ()))
    versions: dict[str, Any] = {"containerd_version": containerd, "dump_text": DUMPS[containerd]}
    if theirs.get("default_runtime_name") == "crun" not in named and not handler.default:
        # containerd does not serve Kubernetes with a default that is not there.
        with pytest.raises(RefusedError, match="crun, which no file defines"):
            plan_edit(files, handler, **versions)
        return
    edit = plan_edit(files, handler, **versions)
    changed = after(files, edit)

    root = changed.root_text or ""
    # containerd 1.x forgets its built-in runc when a runtime is named; ours is then written with it.
    built_in = containerd.startswith("1.") and "runc" not in named
    before, now = (foreign_part(t, version, handler.name, built_in) for t in (text, root))
    assert now == before
    again = plan_edit(changed, handler, **versions)
    assert again.files == {}
    try:
        removal = plan_removal(changed, handler)
    except RefusedError:
        # Their default runtime, our table: taking ours away would leave the name dangling.
        assert '"nvidia"' in text
        return
    assert after(changed, removal) == files


@settings(deadline=None, max_examples=tries(200, 66))
@given(st.text("[]{}=\"'#\n\r,. \\abv1", max_size=40))
def test_no_text_ends_in_anything_but_an_error_of_ours(text: str) -> None:
    dump = DUMPS["2.1.9"]
    seen: list[str] = []
    try:
        plan_edit(Files(text), Handler(), containerd_version="2.1.9", dump_text=dump)
    except GpustateError as error:
        seen.append(str(error))
    try:
        plan_removal(Files(text), Handler())
    except GpustateError as error:
        seen.append(str(error))
    assert not any("\n" in line for line in seen)
