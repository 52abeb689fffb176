"""Add the NVIDIA handler to the text of containerd's files, or remove it.

Where it is added:

- containerd 2.0 and later: a small drop-in file of our own, and its import in the root file.
- Earlier releases, version 1 files, and files with a different foreign definition of the handler:
  marked lines in the file that takes precedence for the CRI plugin. A drop-in would have to be a full
  copy there, and would hide the administrator's later changes of the root file.

The drop-in uses the version and table name of the root file on disk, not of the dump: a drop-in newer than
its root makes containerd 1.x and 2.3 refuse to start, and 2.0 to 2.2 lose the root's settings. It is loaded
last, so it takes precedence. Every plan is verified before it is returned: it equals the old file plus our
keys, and removing our lines restores the old bytes.
"""

from __future__ import annotations

import copy
import fnmatch
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpustate.documents import Json, JsonView
from gpustate.errors import ProbeError
from gpustate.formats.containerd import traps
from gpustate.formats.containerd.effective import effective
from gpustate.formats.containerd.marks import DROP_IN, MARK, NEW_FILE, import_pattern, retire, strip
from gpustate.formats.containerd.model import Document, Edit, Files, Handler, read_document, release
from gpustate.formats.containerd.place import Setting, add_import, render_table, set_in_place
from gpustate.formats.containerd.settings import (
    has_settings,
    lookup,
    low_level,
    merge,
    merges_deeply,
    missing_settings,
)
from gpustate.formats.toml_scan import line_break, parse, render_key, render_value


@dataclass(frozen=True, slots=True)
class _Ground:
    """The parsed files without our lines, in containerd's load order."""

    files: Files
    texts: Mapping[str, str | None]
    loaded: tuple[Document, ...]  # the root first, even if it does not exist
    release: tuple[int, int]
    notes: tuple[str, ...]
    retired: str | None  # a foreign file at the drop-in's path that containerd cannot use

    @property
    def deep(self) -> bool:
        return merges_deeply(self.release)

    @property
    def root(self) -> Document:
        return self.loaded[0]


def plan_edit(
    files: Files,
    handler: Handler,
    *,
    containerd_version: str,
    dump_text: str,
    may_import: bool = True,
) -> Edit:
    """Return the files to write so that containerd serves ``handler``, and nothing else changes.

    Args:
        files: the current files, with or without an earlier edit of ours.
        handler: the desired handler.
        containerd_version: of the binary on the node, such as ``1.7.24``.
        dump_text: standard output of the command that :func:`dump_arguments` names.
        may_import: whether a drop-in may be used; otherwise the root file is edited.

    Raises:
        ProbeError: a file is not TOML, or cannot be edited without changing foreign settings.
        RefusedError: this containerd would not apply the files as written.
    """
    ground = _ground(files, handler, release(containerd_version))
    current = effective(dump_text)
    missing = missing_settings(
        merge(ground.loaded, deep=ground.deep), current, handler, ground.release
    )
    notes = [*ground.notes, *missing.notes]
    new: dict[str, str | None] = dict(ground.texts)
    where = ""
    if missing.settings:
        in_place = missing.replaces or not may_import
        edited = None if in_place else _with_drop_in(ground, missing.settings)
        edited = edited or _in_place(ground, missing.settings)
        if ground.retired is not None:
            edited.setdefault(files.drop_in_path, retire(ground.retired))
        new.update(edited)
        traps.refuse_awakened(ground.loaded, _after(ground, edited), current, ground.release)
        where = ", ".join(edited)
        if missing.replaces:
            notes.append(
                f"{handler.name} has a different foreign definition; those lines are kept"
                " as comments"
            )
    elif not any(marked != clean for marked, clean in _pairs(ground)):
        notes.append(f"{handler.name} has a foreign definition with the same effect")
    if files.drop_in_path in files.imported and ground.texts[files.drop_in_path] is not None:
        # A foreign file has replaced our drop-in, and may be loaded by our import alone.
        root_text = new[files.root_path] or _root_text(ground)
        imports = parse(root_text, files.root_path).get("imports", ())
        if not is_imported(imports, files.root_path, files.drop_in_path):
            new[files.root_path] = add_import(root_text, import_pattern(files.drop_in_path))
    _prove_way_back(ground, new, handler)
    changed = {p: t for p, t in new.items() if t != files.texts()[p]}
    names = ", ".join(render_key(s.path) for s in missing.settings)
    why = (
        f"set {names} in {where}"
        if missing.settings
        else "remove settings that are no longer needed"
    )
    return Edit(changed, tuple(notes), why if changed else "")


def deciding_runtime(
    files: Files, handler: Handler, *, containerd_version: str, dump_text: str
) -> str:
    """Return the runtime whose cgroup driver the handler must use; itself if there is no other.

    Arguments and errors as of :func:`plan_edit`.
    """
    ground = _ground(files, handler, release(containerd_version))
    files_say = merge(ground.loaded, deep=ground.deep)
    return low_level(files_say, effective(dump_text), handler) or handler.name


def plan_removal(
    files: Files,
    handler: Handler,
    *,
    originals: Mapping[str, str | None] | None = None,
    containerd_version: str = "",
) -> Edit:
    """Return the files to write to remove all our settings; foreign edits since then stay.

    Args:
        files: the current files.
        handler: the handler that was added.
        originals: original text by path, if known. It decides whether an import like ours and an empty
            file existed before.
        containerd_version: of the binary on the node; empty if there is none.

    Raises:
        RefusedError: the default runtime would be undefined, and containerd could not start pods.
    """
    known_originals = originals or {}
    pattern = import_pattern(files.drop_in_path)
    new: dict[str, str | None] = {}
    notes: list[str] = []
    for path, text in files.texts().items():
        new[path] = text
        if text is None:
            continue
        had_import = pattern in (known_originals.get(path) or "")
        stripped = strip(text, path, pattern=pattern, name=handler.name, keep_import=had_import)
        notes += stripped.notes
        new[path] = stripped.text
        if path in known_originals and stripped.text != known_originals[path]:
            if known_originals[path] is None and not (stripped.text or "").strip():
                new[path] = None
            elif stripped.text != text:
                notes.append(f"{path}: foreign edits are preserved")
    containerd = release(containerd_version) if containerd_version else None
    remaining = [
        read_document(path, text, containerd=containerd)
        for path, text in new.items()
        if text is not None and (path == files.root_path or path in files.imported)
    ]
    changed = {p: t for p, t in new.items() if t != files.texts()[p]}
    traps.refuse_dangling_default(remaining, handler, containerd if changed else None)
    return Edit(changed, tuple(notes), f"remove handler {handler.name}" if changed else "")


def is_imported(imports: Sequence[str], root_path: str, path: str) -> bool:
    """Whether ``imports`` of the file ``root_path`` match ``path``, as containerd resolves them."""
    parts = path.split("/")
    for entry in imports:
        full = posixpath.normpath(posixpath.join(posixpath.dirname(root_path), entry)).split("/")
        if len(full) == len(parts) and all(map(fnmatch.fnmatchcase, parts, full)):
            return True
    return False


def _ground(files: Files, handler: Handler, containerd: tuple[int, int]) -> _Ground:
    pattern = import_pattern(files.drop_in_path)
    texts: dict[str, str | None] = {}
    notes: list[str] = []
    for path, text in files.texts().items():
        texts[path] = text
        if text is not None:
            stripped = strip(text, path, pattern=pattern, name=handler.name)
            texts[path] = stripped.text
            notes += stripped.notes
    root = read_document(files.root_path, texts[files.root_path] or "", containerd=containerd)
    if _is_blank(root):
        version = 2 if containerd < (2, 0) else 3
        root = read_document(root.path, root.text, unversioned=version, containerd=containerd)
    traps.refuse_unseen_version(root, containerd)
    # A file without a version is read as version 1, but by containerd 1.x with the root's version.
    unversioned = root.version if containerd < (2, 0) else 1
    imported = [
        read_document(path, text, unversioned=unversioned, containerd=containerd)
        for path, text in texts.items()
        if text is not None and path in files.imported
    ]
    trapped = [d for d in imported if d.path == files.drop_in_path and d.version > root.version]
    loaded = (root, *(d for d in imported if d not in trapped))
    notes += traps.version_notes(imported, trapped, root.version)
    return _Ground(
        files, texts, loaded, containerd, tuple(notes), trapped[0].text if trapped else None
    )


def _is_blank(root: Document) -> bool:
    """Whether there is no file, or nothing in it depends on the version."""
    return not root.data


def _pairs(ground: _Ground) -> list[tuple[str | None, str | None]]:
    return [(text, ground.texts[path]) for path, text in ground.files.texts().items()]


def _with_drop_in(ground: _Ground, settings: Sequence[Setting]) -> dict[str, str | None] | None:
    """Return root and drop-in; ``None`` if a drop-in is not possible."""
    files, root = ground.files, ground.root
    path = files.drop_in_path
    if not ground.deep or root.version < 2 or ground.texts[path] != ground.retired:
        return None
    lines = [DROP_IN, f"version = {root.version}"]
    keys: dict[tuple[str, ...], list[str]] = {}
    for setting in settings:
        full = (*root.cri_path, *setting.path)
        if isinstance(setting.value, Mapping):
            continue
        keys.setdefault(full[:-1], []).append(
            f"  {render_key(full[-1:])} = {render_value(setting.value)}"
        )
    for table, inside in keys.items():
        lines += ["", f"[{render_key(table)}]", *inside]
    for setting in settings:
        if isinstance(setting.value, Mapping):
            lines += ["", *render_table((*root.cri_path, *setting.path), setting.value)]
    text = "\n".join(lines) + "\n"
    if ground.retired is not None:
        text += retire(ground.retired).partition("\n")[2]
    drop_in = read_document(path, text, containerd=ground.release)
    root_text = _root_text(ground)
    imported = is_imported(root.data.get("imports", ()), root.path, path)
    if not imported:
        root_text = add_import(root_text, import_pattern(path))
    order = _load_order(ground.loaded, drop_in, by_glob=imported)
    if not has_settings(merge(order, deep=True), settings):
        return None
    expected = {"version": root.version, **root.data}
    imports = parse(root_text, root.path).get("imports", [])
    _prove_meaning(root.path, root_text, {**expected, "imports": imports})
    texts: dict[str, str | None] = {path: text}
    if root_text != ground.texts[root.path]:
        texts = {root.path: root_text, **texts}
    return texts


def _load_order(loaded: Sequence[Document], drop_in: Document, *, by_glob: bool) -> list[Document]:
    """Insert the drop-in in containerd's load order: by name within its directory, or last."""
    directory = posixpath.dirname(drop_in.path)
    later = [
        at
        for at, document in enumerate(loaded)
        if by_glob
        and posixpath.dirname(document.path) == directory
        and document.path > drop_in.path
    ]
    at = later[0] if later else len(loaded)
    return [*loaded[:at], drop_in, *loaded[at:]]


def _in_place(ground: _Ground, settings: Sequence[Setting]) -> dict[str, str | None]:
    """Return the files with marked lines in them."""
    by_path: dict[str, list[Setting]] = {}
    documents = {document.path: document for document in ground.loaded}
    for setting in settings:
        owner, *earlier = _owners(ground, setting)
        by_path.setdefault(owner.path, []).append(setting)
        for setter in earlier:
            by_path.setdefault(setter.path, []).append(Setting(setting.path, None))
    texts: dict[str, str | None] = {}
    after: list[Document] = []
    for path, document in documents.items():
        local = [Setting((*document.cri_path, *s.path), s.value) for s in by_path.get(path, ())]
        if local:
            base = _root_text(ground) if document is ground.root else document.text
            text = set_in_place(base, _for_table(local, document))
            _prove_meaning(path, text, _expected(document, local))
            texts[path] = text
            document = read_document(
                path, text, unversioned=document.version, containerd=ground.release
            )
        after.append(document)
    if not has_settings(merge(after, deep=ground.deep), settings):
        raise ProbeError(
            f"{', '.join(render_key(s.path) for s in settings)} is defined in several files",
            place=ground.root.path,
            fix="keep it in only one of " + ", ".join(documents),
        )
    return texts


def _after(ground: _Ground, new_texts: Mapping[str, str | None]) -> list[Document]:
    """Return the loaded files as they will be, the drop-in last."""
    after = [
        read_document(
            d.path,
            new_texts.get(d.path) or d.text,
            unversioned=d.version,
            containerd=ground.release,
        )
        for d in ground.loaded
    ]
    path = ground.files.drop_in_path
    text = new_texts.get(path)
    return (
        after
        if text is None or path in (d.path for d in after)
        else [
            *after,
            read_document(path, text, unversioned=ground.root.version, containerd=ground.release),
        ]
    )


def _owners(ground: _Ground, setting: Setting) -> list[Document]:
    """Return the file that takes precedence for ``setting``, then others that must not set it."""
    if not ground.deep:
        return [[d for d in ground.loaded if d is ground.root or d.get() is not None][-1]]
    setters = [d for d in ground.loaded if d.get(*setting.path) is not None]
    if not setters:
        return [ground.root]
    earlier = setters[:-1] if isinstance(setting.value, Mapping) else []
    return [setters[-1], *earlier]


def _root_text(ground: _Ground) -> str:
    """Return the root's text, with a version if the file is missing or does not set one."""
    text = ground.texts[ground.root.path]
    line = f"version = {ground.root.version} {MARK}"
    if text is None:
        return f"{NEW_FILE}\n{line}\n"
    return line + line_break(text) + text if _is_blank(ground.root) else text


def _for_table(settings: Sequence[Setting], document: Document) -> list[Setting]:
    """The table of version 1 is also read by a shim that calls the binary ``Runtime``."""
    changed: list[Setting] = []
    for setting in settings:
        options = lookup(setting.value, ("options",)) if document.name == "cri" else None
        if isinstance(options, Mapping) and (binary := options.get("BinaryName")):
            value = {**setting.value, "options": {**options, "Runtime": binary}}
            setting = Setting(setting.path, value)
        changed.append(setting)
    return changed


def _expected(document: Document, settings: Sequence[Setting]) -> Json:
    expected = copy.deepcopy(dict(document.data))
    if _is_blank(document):
        expected["version"] = document.version
    for setting in _for_table(settings, document):
        table = expected
        for part in setting.path[:-1]:
            table = table.setdefault(part, {})
        table.pop(setting.path[-1], None)
        if setting.value is not None:
            table[setting.path[-1]] = setting.value
    return expected


def _prove_meaning(path: str, text: str, expected: JsonView) -> None:
    try:
        same = parse(text, path) == expected
    except ProbeError:
        same = False
    if not same:
        raise ProbeError(
            "the handler cannot be added without changing other settings",
            place=path,
            fix="write the tables around runtimes as [headers], not inline",
        )


def _prove_way_back(ground: _Ground, new: Mapping[str, str | None], handler: Handler) -> None:
    pattern = import_pattern(ground.files.drop_in_path)
    for path, text in new.items():
        if text is None or text == ground.texts[path]:
            continue
        if strip(text, path, pattern=pattern, name=handler.name).text != ground.texts[path]:
            raise ProbeError(
                f"this edit could not be undone: a foreign line has gpustate's mark ({MARK!r})",
                place=path,
                fix="remove that line",
            )
