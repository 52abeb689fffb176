"""What stands beside a file: objects in it and in its folders, values files, the chart it belongs to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from gpustate.errors import PolicyError
from gpustate.files import TextFiles
from gpustate.formats.words import kind_of
from gpustate.gpu_operator import documents
from gpustate.gpu_operator.companions import (
    CONFIG_MAP,
    SECRET,
    Companion,
    Entry,
    Shelf,
    entry_of,
    padded,
)
from gpustate.gpu_operator.documents import Item

_FILES = TextFiles("values", PolicyError, limit_mib=5)
_SUFFIXES = (".yaml", ".yml")
#: More files than anybody keeps in the folder of one application.
_MOST_FILES = 200
#: Up to so many folders above are values files of Argo CD's ``$values/...`` looked for.
_LEVELS = 6
_KUSTOMIZATIONS = ("kustomization.yaml", "kustomization.yml", "Kustomization")
_GENERATORS = {CONFIG_MAP: "configMapGenerator", SECRET: "secretGenerator"}


@dataclass(slots=True)
class Beside:
    """Finds what a document of a file names.

    Args:
        file: its path.
        items: every document of it.
    """

    file: str
    items: tuple[Item, ...] = ()
    _chart: Item | None = field(default=None, init=False)
    _looked: bool = field(default=False, init=False)

    @property
    def directory(self) -> Path:
        """The folder that the file is in."""
        return Path(self.file).parent

    @property
    def name(self) -> str:
        """The file's name."""
        return Path(self.file).name

    @property
    def folder(self) -> str:
        """The folder for objects that the file names."""
        return str(Shelf(self.file).folder)

    @property
    def chart(self) -> Item | None:
        """The ``Chart.yaml`` in the same folder."""
        if not self._looked:
            self._looked = True
            path = self.directory / "Chart.yaml"
            if self.name.startswith("values") and path.is_file():
                found = _read(path)
                self._chart = found[0] if found and isinstance(found[0].value, dict) else None
        return self._chart

    @property
    def is_patch(self) -> bool:
        """A kustomization in the same folder names the file as a patch."""
        for path in self._kustomizations():
            for item in _read(path):
                for key in ("patches", "patchesJson6902", "patchesStrategicMerge"):
                    found = item.get(key)
                    for one in found.value if found is not None else ():
                        named = one.value if isinstance(one.value, str) else one.text("path")
                        if named.strip() in (self.name, f"./{self.name}"):
                            return True
        return False

    def _kustomizations(self) -> Iterator[Path]:
        if self.name in _KUSTOMIZATIONS or self.file in ("", "-"):
            return
        for name in _KUSTOMIZATIONS:
            path = self.directory / name
            if path.is_file():
                yield path

    def values(self, item: Item) -> Item:
        """Values that stand as text in the file itself."""
        return self.values_of(entry_of(item, self.file))

    def values_of(self, entry: Entry) -> Item:
        """Values that stand as text in an object.

        Raises:
            PolicyError: they are no mapping.
        """
        found = documents.read(padded(entry), entry.file)
        if not found:
            return Item({}, entry.line)
        if not isinstance(found[0].value, dict):
            raise PolicyError(
                f"is {kind_of(found[0].value)}, wanted a mapping of values",
                place=f"{entry.file}:{found[0].line}",
            )
        return found[0]

    def entry(self, kind: str, name: str, key: str) -> Entry | None:
        """One key of a ConfigMap or Secret: in the file, in its folder, or made by a kustomization."""
        found = self._object(kind, name)
        if found is not None:
            return found.entries.get(key)
        for path in self._generated(kind, name, key):
            return Entry(_FILES.text(str(path)), str(path), 1)
        return None

    def file_values(self, name: str) -> Item | None:
        """The values in a file that is beside, or below a folder above; ``None`` where it is not."""
        if "://" in name or "{{" in name or name.startswith("/"):
            return None
        path = PurePosixPath(name)
        parts = path.parts[1:] if path.parts[:1] and path.parts[0].startswith("$") else path.parts
        start = self.directory
        levels = _LEVELS if parts != path.parts else 1
        for _ in range(levels):
            found = start.joinpath(*parts)
            if found.is_file():
                return self.values_of(Entry(_FILES.text(str(found)), str(found), 1))
            start = start / ".."
        return None

    def _object(self, kind: str, name: str) -> Companion | None:
        own = Shelf(self.file, self.items).find(kind, name)
        if own is not None:
            return own
        for path in self._neighbours():
            try:
                found = Shelf(str(path), tuple(_read(path))).find(kind, name)
            except PolicyError:
                continue  # not an Operator file
            if found is not None:
                return found
        return None

    def _neighbours(self) -> Iterator[Path]:
        if not self.directory.is_dir():
            return
        files = sorted(
            path
            for path in self.directory.iterdir()
            if path.suffix in _SUFFIXES and path.is_file() and path.name != self.name
        )
        yield from files[:_MOST_FILES]

    def _generated(self, kind: str, name: str, key: str) -> Iterator[Path]:
        """The file of which a kustomization beside makes the object."""
        for path in self._kustomizations():
            for item in _read(path):
                generators = item.get(_GENERATORS.get(kind, ""))
                for one in generators.value if generators is not None else ():
                    files = one.get("files") if one.text("name") == name else None
                    for file in files.value if files is not None else ():
                        as_key, _, source = str(file.value).rpartition("=")
                        found = self.directory / source
                        if (as_key or Path(source).name) == key and found.is_file():
                            yield found


def _read(path: Path) -> list[Item]:
    return documents.read(_FILES.text(str(path)), str(path))
