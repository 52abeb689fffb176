"""Register the NVIDIA runtime handler with CRI-O, as text to text: one drop-in file of our own.

CRI-O reads its main file, then every file below its drop-in folder sorted by name, whatever the suffix. Later
files take precedence key by key, but the table of one runtime replaces an earlier one as a whole. So the drop-in
copies only the options of the runtime that the handler wraps: without its ``monitor_path`` and
``runtime_root``, the handler's containers would run under another monitor, or not at all.

Surprising: until 1.19.0, NVIDIA's own tool wrote to /etc/crio/conf.d, which CRI-O does not read.

Sources:
    cri-o/cri-o, pkg/config/config.go: ``UpdateFromPath``, ``UpdateFromDropInFile``; crio.conf.d(5).
    NVIDIA/nvidia-container-toolkit, pkg/config/engine/crio; #1829.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpustate.documents import Json, JsonView
from gpustate.errors import ProbeError, RefusedError
from gpustate.formats.containerd.marks import DROP_IN
from gpustate.formats.containerd.model import Edit, Handler
from gpustate.formats.containerd.place import render_table
from gpustate.formats.containerd.settings import lookup
from gpustate.formats.toml_scan import parse, render_value

MAIN_PATH = "/etc/crio/crio.conf"
FOLDER = "/etc/crio/crio.conf.d"
#: Sorted after 99-nvidia.toml, which NVIDIA's tool writes.
DROP_IN_NAME = "99-zz-gpustate.toml"
#: The drop-in of NVIDIA's tool before 1.19.1; CRI-O does not read it.
UNREAD_FOLDER = "/etc/crio/conf.d"

_RUNTIMES = ("crio", "runtime", "runtimes")
_DEFAULT = ("crio", "runtime", "default_runtime")
#: Runtimes that NVIDIA's runtime can wrap, in order of preference after the default one.
_LOW_LEVEL = ("crun", "runc")


@dataclass(frozen=True, slots=True)
class Files:
    """CRI-O's files on one node.

    Args:
        texts: text by path of all files it reads, in its order.
        drop_in_path: gpustate's own file.
        main_path: the file that is read first.
        created: gpustate created that file: other content in it is damage.
    """

    texts: Mapping[str, str] = field(default_factory=dict[str, str])
    drop_in_path: str = posixpath.join(FOLDER, DROP_IN_NAME)
    main_path: str = MAIN_PATH
    created: bool = False

    @property
    def managed(self) -> bool:
        """Whether the drop-in exists and is gpustate's."""
        text = self.texts.get(self.drop_in_path)
        return text is not None and (self.created or text.startswith(DROP_IN))

    @property
    def damaged(self) -> bool:
        """Whether the drop-in is gpustate's and CRI-O cannot read it."""
        try:
            return self.managed and not parse(self.texts[self.drop_in_path], self.drop_in_path)
        except ProbeError:
            return True

    @property
    def own_runtimes(self) -> set[str]:
        """The runtimes of a drop-in that is gpustate's: the handler, and what somebody has renamed it to."""
        if not self.managed or self.damaged:
            return set()
        runtimes = lookup(parse(self.texts[self.drop_in_path], self.drop_in_path), _RUNTIMES)
        names = runtimes if isinstance(runtimes, Mapping) else ()
        return {name for name in names if re.fullmatch(r"[\w-]+", name)}

    def foreign(self) -> dict[str, str]:
        """The files without ours."""
        return {path: text for path, text in self.texts.items() if path != self.drop_in_path}


def in_order(paths: list[str], main_path: str) -> list[str]:
    """Sort files in CRI-O's order: the main one, then by name within each folder."""
    drop_ins = sorted((p for p in paths if p != main_path), key=lambda p: p.split("/"))
    return [path for path in paths if path == main_path] + drop_ins


def merge(texts: Mapping[str, str]) -> Json:
    """Merge files in this order.

    Raises:
        ProbeError: one of them is not TOML; CRI-O would not start.
    """
    merged: Json = {}
    for path, text in texts.items():
        merged = _merge((), merged, parse(text, path))
    return merged


def plan_edit(files: Files, handler: Handler) -> Edit:
    """Return the drop-in to write so that CRI-O serves ``handler``, and nothing else changes.

    Raises:
        ProbeError: a file is not TOML.
        RefusedError: a file that is read after ours overrides it.
    """
    _refuse_foreign(files)
    foreign = files.foreign()
    foreign_config = merge(foreign)
    notes: list[str] = []
    model = _low_level(foreign_config, handler)
    options = dict(lookup(foreign_config, (*_RUNTIMES, model)) or {}) if model else {}
    if model is None:
        notes.append("its files define no runtime: there are no options to copy")
    desired = {**options, "runtime_path": handler.binary, "runtime_type": "oci"}
    desired.pop("inherit_default_runtime", None)
    lines: list[str] = []
    defined = lookup(foreign_config, (*_RUNTIMES, handler.name))
    if defined is not None and _equal(defined, desired):
        notes.append(f"{handler.name} has a foreign definition with the same effect")
    else:
        lines += ["", *render_table((*_RUNTIMES, handler.name), desired)]
        if defined is not None:
            notes.append(f"{handler.name} has a different foreign definition")
    default = lookup(foreign_config, _DEFAULT)
    if handler.default and default != handler.name:
        lines[:0] = ["", "[crio.runtime]", f"  default_runtime = {render_value(handler.name)}"]
    elif not handler.default and default == handler.name:
        notes.append(
            f"{handler.name} is the default runtime by a foreign setting, which is preserved"
        )
    if not lines:
        return _changed(files, None, notes, "remove settings that are no longer needed")
    text = "\n".join([DROP_IN, *lines]) + "\n"
    _refuse_later(files, foreign, text, handler)
    change = f"set {'.'.join((*_RUNTIMES, handler.name))}"
    return _changed(files, text, notes, change)


def plan_removal(files: Files, handler: Handler) -> Edit:
    """Return the removal of the drop-in; foreign edits elsewhere stay.

    Raises:
        RefusedError: a foreign file sets the handler as default, and CRI-O would not start.
    """
    if not files.managed:
        return Edit({})
    texts = files.foreign()
    config = merge(texts)
    if lookup(config, _DEFAULT) == handler.name and not lookup(config, (*_RUNTIMES, handler.name)):
        owner = [path for path, text in texts.items() if lookup(parse(text, path), _DEFAULT)][-1]
        raise RefusedError(
            f"default_runtime is {handler.name} in a foreign file; without the handler CRI-O "
            "would not start",
            place=owner,
            fix="set another default runtime first",
        )
    return _changed(files, None, [], f"remove handler {handler.name}")


def handler_problems(config: JsonView, handler: Handler) -> tuple[str, ...]:
    """Return why ``handler`` is not served, one line each; empty if it is.

    Args:
        config: CRI-O's effective configuration.
        handler: the desired handler.
    """
    table = lookup(config, (*_RUNTIMES, handler.name))
    if not isinstance(table, Mapping):
        return (f"runtime {handler.name} is not defined",)
    problems: list[str] = []
    if table.get("runtime_path") != handler.binary:
        problems.append(
            f"runtimes.{handler.name} runs {table.get('runtime_path')!r}, not {handler.binary}"
        )
    default = lookup(config, _DEFAULT)
    if handler.default and default != handler.name:
        problems.append(f"the default runtime is {default!r}, not {handler.name}")
    return tuple(problems)


def _refuse_foreign(files: Files) -> None:
    if files.drop_in_path in files.texts and not files.managed:
        raise RefusedError(
            "this file is foreign", place=files.drop_in_path, fix="choose another drop_in_name"
        )


def _changed(files: Files, text: str | None, notes: list[str], why: str) -> Edit:
    old = files.texts.get(files.drop_in_path)
    if text == old or (old and text and old.startswith(DROP_IN) and _same(old, text)):
        return Edit({}, tuple(notes))
    return Edit({files.drop_in_path: text}, tuple(notes), why)


def _same(old_text: str, new_text: str) -> bool:
    """Whether two texts are equivalent: a changed comment needs no restart."""
    try:
        return parse(old_text, "") == parse(new_text, "")
    except ProbeError:
        return False


def _low_level(config: JsonView, handler: Handler) -> str | None:
    """The runtime whose options are copied: the default, else crun, else runc."""
    tables = lookup(config, _RUNTIMES) or {}
    for name in (lookup(config, _DEFAULT), *_LOW_LEVEL):
        table = tables.get(name) if isinstance(name, str) else None
        if not isinstance(table, Mapping) or str(name).startswith("nvidia") or name == handler.name:
            continue
        if table.get("runtime_type", "oci") in ("", "oci"):
            return str(name)
    return None


def _equal(foreign: object, desired: JsonView) -> bool:
    if not isinstance(foreign, Mapping):
        return False
    foreign_table, desired_table = (
        {k: v for k, v in t.items() if v not in ("", [], False)} for t in (foreign, desired)
    )
    for table in (foreign_table, desired_table):
        table.setdefault("runtime_type", "oci")
    return foreign_table == desired_table


def _refuse_later(files: Files, foreign: Mapping[str, str], text: str, handler: Handler) -> None:
    """Raise if a file that CRI-O reads after ours overrides it."""
    order = in_order([*foreign, files.drop_in_path], files.main_path)
    merged = merge({p: text if p == files.drop_in_path else foreign[p] for p in order})
    problems = handler_problems(merged, handler)
    later = order[order.index(files.drop_in_path) + 1 :]
    if problems and later:
        raise RefusedError(
            f"{problems[0]}: this file overrides {files.drop_in_path}",
            place=later[-1],
            fix="remove that setting from it, or rename it so that it sorts before",
        )


def _merge(path: tuple[str, ...], to: JsonView, new: JsonView) -> Json:
    merged = dict(to)
    for key, value in new.items():
        old = merged.get(key)
        # The table of one runtime, or of one workload, is replaced as a whole.
        if isinstance(old, Mapping) and isinstance(value, Mapping) and len(path) < 3:
            merged[key] = _merge((*path, key), old, value)
        else:
            merged[key] = value
    return merged
