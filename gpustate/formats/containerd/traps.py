"""Cases in which a release of containerd does not apply its files as written, and an edit would do harm.

Sources:
    containerd 2.0 to 2.2, ``LoadConfig``: a version 1 file is marked as migrated before the CRI plugin
    migrates its table, which is then ignored. 2.3.0 does it in steps.
    containerd 2, plugins/cri/images/plugin.go, ``migrateConfig``: returns before it has migrated
    ``snapshotter`` of a version 2 file that names no runtimes.
    containerd 1.7, ``ValidateV2``: refuses to start with a version above 2; 1.6 does not look at it.
    containerd 2.0 to 2.2, ``ValidateVersion``: the same with a version above 3.
    containerd 2.3, ``LoadConfig``: "drop-in config version 3 higher than root config version 2".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gpustate.documents import JsonView
from gpustate.errors import RefusedError
from gpustate.formats.containerd.effective import Effective
from gpustate.formats.containerd.model import Document, Handler
from gpustate.formats.containerd.settings import DEFAULT, RUNTIMES, lookup, merge

_RUNTIME = "io.containerd.cri.v1.runtime"
_IMAGES = ("plugins", "io.containerd.cri.v1.images")
_SLEEPING = ("snapshotter", "disable_snapshot_annotations", "discard_unpacked_layers")


def version_notes(
    imported: Iterable[Document], trapped: Sequence[Document], root_version: int
) -> list[str]:
    """Return a line for each imported file that is newer than the root."""
    return [
        f"{d.path} has version {d.version}, the root file {root_version}: containerd refuses such a"
        " file or loses the root's settings; "
        + ("its lines are kept as comments" if d in trapped else "convert it to the root's version")
        for d in imported
        if d.version > root_version
    ]


def refuse_unseen_version(root: Document, release: tuple[int, int]) -> None:
    """Raise if containerd ignores settings in a root file of that version."""
    if root.version > 2 and release < (2, 0):
        raise RefusedError(
            f"containerd {release[0]}.{release[1]} ignores the plugins of a version {root.version} file and"
            " runs with its defaults",
            place=root.path,
            fix="convert it to version 2, or upgrade containerd to 2",
        )
    if root.version == 1 and (2, 0) <= release < (2, 3) and _ignored(root):
        subject = "a version 1 file" if "version" in root.data else "a file without version"
        raise RefusedError(
            f"{subject}, whose CRI settings containerd {release[0]}.{release[1]} ignores",
            place=root.path,
            fix=_rewrite(root),
        )


def _ignored(root: Document) -> list[str]:
    """Names of the CRI plugin's table in a version 1 file that containerd ignores."""
    plugins = root.data.get("plugins")
    names = plugins if isinstance(plugins, Mapping) else {}
    return [name for name in names if name in ("cri", "io.containerd.grpc.v1.cri")]


def _rewrite(root: Document) -> str:
    if _ignored(root) == ["io.containerd.grpc.v1.cri"]:
        return "write version = 2 at its top (its tables are those of version 2)"
    return "convert it to version 2 or 3 first (with containerd 1.7: containerd config dump)"


def refuse_awakened(
    before: Sequence[Document],
    after: Sequence[Document],
    current: Effective,
    release: tuple[int, int],
) -> None:
    """Raise if adding a runtime would enable image settings that containerd 2 ignores so far."""
    if release < (2, 0) or any(d.name == _RUNTIME for d in after):
        return
    for path, old, new in _migrated_together(before, after, release):
        if lookup(old, RUNTIMES) is not None or lookup(new, RUNTIMES) is None:
            continue
        for key in _SLEEPING:
            file_value = lookup(old, ("containerd", key))
            holds = lookup(current.data, (*_IMAGES, key))
            if file_value is not None and file_value != holds:
                raise RefusedError(
                    f"{key} is {file_value!r} here, but containerd {release[0]}.{release[1]} ignores it"
                    f" and uses {holds!r} as long as no runtime is defined; adding one would change that",
                    place=path,
                    fix=f"remove {key}, or convert the file to version 3",
                )


def refuse_dangling_default(
    remaining: Sequence[Document], handler: Handler, release: tuple[int, int] | None
) -> None:
    """Raise if the files would have a default runtime that no file defines."""
    defined = any(d.get(*RUNTIMES, handler.name) is not None for d in remaining)
    for document in remaining:
        if document.get(*DEFAULT) == handler.name and not defined:
            raise RefusedError(
                f"default_runtime_name is {handler.name} in a foreign line; without the handler"
                " containerd would not serve Kubernetes",
                place=document.path,
                fix="set another default runtime first",
            )
    if release is not None:
        _refuse_unknown_version(remaining, release)
        _refuse_missing_default(remaining, release)


def _refuse_unknown_version(remaining: Sequence[Document], release: tuple[int, int]) -> None:
    newest = 2 if release == (1, 7) else 3
    for document in remaining:
        if (1, 7) <= release < (2, 3) and document.version > newest:
            raise RefusedError(
                f"removal restores a version {document.version} file, with which"
                f" containerd {release[0]}.{release[1]} does not start",
                place=document.path,
                fix="remove it, or convert it to the root's version, first",
            )


def _refuse_missing_default(remaining: Sequence[Document], release: tuple[int, int]) -> None:
    """Raise if the default runtime is undefined: runc on containerd 1.x, or one that never existed."""
    merged = merge(remaining, deep=release >= (2, 0))
    named = set(lookup(merged, RUNTIMES) or ())
    default = lookup(merged, DEFAULT) or "runc"
    if default not in (named if named and release < (2, 0) else {*named, "runc"}):
        raise RefusedError(
            f"after removal the default runtime is {default}, which these files do not define:"
            " containerd's CRI plugin would not load",
            place=remaining[0].path,
            fix=f"define {default}, or set default_runtime_name to an existing runtime, first",
        )


def _migrated_together(
    before: Sequence[Document], after: Sequence[Document], release: tuple[int, int]
) -> list[tuple[str, JsonView, JsonView]]:
    """Return path, old and new table of each migration: all files together, since 2.3 each file."""
    if before[0].version != 2:
        return []
    if release < (2, 3):
        return [(before[0].path, merge(before, deep=True), merge(after, deep=True))]
    new = {document.path: document for document in after}
    return [(d.path, d.get() or {}, new[d.path].get() or {}) for d in before if d.version == 2]
