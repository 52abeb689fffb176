"""ConfigMaps and Secrets that a policy refers to: from the same file, from a folder next to it, or from a file there.

For ``cp.yaml`` the folder is ``cp.d``. In it, ``*.yaml``, ``*.yml`` and ``*.json`` contain objects in
kubectl's format. A folder ``NAME`` contains the files of the ConfigMap or Secret NAME, as
``kubectl create configmap NAME --from-file=NAME`` reads them. Objects in the file itself take precedence, then those
of the folder; other files beside the policy, and the generators of a kustomization there, come last.

Sources:
    NVIDIA/gpu-operator v26.7: controllers/object_controls.go, internal/state/driver_volumes.go.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpustate.errors import PolicyError
from gpustate.files import TextFiles
from gpustate.formats.words import quote, quote_name
from gpustate.gpu_operator import choice, documents
from gpustate.gpu_operator.choice import Choice
from gpustate.gpu_operator.documents import Item

_FILES = TextFiles("ConfigMap or Secret", PolicyError, limit_mib=5)
_SUFFIXES = (".yaml", ".yml", ".json")
#: More files in a folder than a ConfigMap has keys.
_MOST_FILES = 1000
#: A folder with more files is not that of one application.
_MOST_NEIGHBOURS = 200
KUSTOMIZATIONS = ("kustomization.yaml", "kustomization.yml", "Kustomization")

CONFIG_MAP, SECRET = "ConfigMap", "Secret"
_GENERATORS = {CONFIG_MAP: "configMapGenerator", SECRET: "secretGenerator"}


@dataclass(frozen=True, slots=True)
class Reference:
    """A key that names an object.

    Args:
        path: of the key.
        kind: of the object.
        holds: the kind of its data, for :mod:`gpustate.gpu_operator.contents`.
    """

    path: str
    kind: str
    holds: str


_OF_DRIVER = (
    Reference("certConfig.name", CONFIG_MAP, "certificates"),
    Reference("licensingConfig.secretName", SECRET, "license"),
    Reference("kernelModuleConfig.name", CONFIG_MAP, "modules"),
    Reference("secretEnv", SECRET, "environment"),
)
_OF_EXPORTER = (Reference("dcgmExporter.config.name", CONFIG_MAP, "counters"),)
_OF_POLICY = (
    *(Reference(f"driver.{row.path}", row.kind, row.holds) for row in _OF_DRIVER),
    Reference("driver.repoConfig.configMapName", CONFIG_MAP, "repositories"),
    Reference("driver.licensingConfig.configMapName", CONFIG_MAP, "license"),
    Reference("driver.virtualTopology.config", CONFIG_MAP, "topology"),
    Reference("devicePlugin.config.name", CONFIG_MAP, "plugin"),
    Reference("migManager.config.name", CONFIG_MAP, "mig"),
    Reference("migManager.gpuClientsConfig.name", CONFIG_MAP, "clients"),
    Reference("vgpuDeviceManager.config.name", CONFIG_MAP, "vgpu"),
    Reference("vgpuManager.kernelModuleConfig.name", CONFIG_MAP, "modules"),
    *_OF_EXPORTER,
)
REFERENCES: Mapping[str, tuple[Reference, ...]] = {
    "clusterpolicy": _OF_POLICY,
    "helm": _OF_POLICY,
    "gpucluster": _OF_EXPORTER,
    "nvidiadriver": (
        *_OF_DRIVER,
        Reference("repoConfig.name", CONFIG_MAP, "repositories"),
        Reference("licensingConfig.name", CONFIG_MAP, "license"),
        Reference("virtualTopologyConfig.name", CONFIG_MAP, "topology"),
    ),
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One key of an object: its text, and the line it starts at."""

    text: str
    file: str
    line: int

    def place(self, number: int = 1) -> str:
        """``file:line`` of a line of the text; the first is 1."""
        return f"{self.file}:{self.line + number - 1}"


@dataclass(frozen=True, slots=True)
class Companion:
    """A ConfigMap or a Secret.

    Args:
        kind, name: of the object.
        place: its first line.
        entries: its data by key.
    """

    kind: str
    name: str
    place: str
    entries: Mapping[str, Entry]


@dataclass(slots=True)
class CompanionStore:
    """The ConfigMaps, Secrets and Nodes in and next to one policy file.

    Args:
        file: the policy's path.
        objects: ConfigMaps and Secrets of the same file.
        used: kind and name of those looked up.
        own_nodes: Nodes of the same file.
        workloads: whether Node labels select the workload; set while reading.
        elsewhere: places of objects that were looked up and are in another namespace.
    """

    file: str
    objects: tuple[Item, ...] = ()
    used: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    own_nodes: tuple[Item, ...] = ()
    workloads: bool = False
    elsewhere: list[str] = field(default_factory=list[str])
    _folder: list[tuple[str, Item]] | None = None

    @property
    def folder(self) -> Path:
        """The folder with the companions of the policy."""
        path = Path(self.file)
        return path.with_suffix(".d") if path.suffix in _SUFFIXES else Path(f"{self.file}.d")

    @property
    def nodes(self) -> tuple[tuple[str, Item], ...]:
        """Every Node of the file and of the folder, with its file."""
        nodes = [(file, item) for file, item in self._objects() if item.text("kind") == "Node"]
        return (*((self.file, item) for item in self.own_nodes), *nodes)

    def choice(self) -> Choice:
        """Which components run as containers, by the file in the folder.

        Raises:
            PolicyError: it is invalid.
        """
        path = self.folder / choice.FILE
        if not path.is_file():
            return Choice()
        items = documents.read(_FILES.text(str(path)), str(path))
        if len(items) != 1:
            raise PolicyError("is not one mapping", place=str(path))
        return choice.read(str(path), items[0])

    def objects_of(self, kind: str) -> tuple[tuple[str, Item], ...]:
        """Every object of a kind in the folder, with its file."""
        return tuple((file, item) for file, item in self._objects() if item.text("kind") == kind)

    def find(self, kind: str, name: str, namespace: str = "") -> Companion | None:
        """Return the object of a kind and name.

        Args:
            kind, name: of the object.
            namespace: that it must be in, if it has one.

        Raises:
            PolicyError: it is invalid.
        """
        self.used.add((kind, name))
        self.elsewhere.clear()
        file_objects = ((self.file, item) for item in self.objects)
        matches = self._named((*file_objects, *self._objects()), kind, name, namespace)
        companion = next(matches, None) or self._of_files(kind, name)
        return companion or self._beside(kind, name, namespace)

    def _named(
        self, objects: Iterable[tuple[str, Item]], kind: str, name: str, namespace: str
    ) -> Iterator[Companion]:
        for file, item in objects:
            if item.text("kind") == kind and item.text("metadata", "name") == name:
                if namespace and item.text("metadata", "namespace") not in ("", namespace):
                    self.elsewhere.append(f"{file}:{item.line}")
                    continue
                yield _of_object(item, file)

    def _beside(self, kind: str, name: str, namespace: str) -> Companion | None:
        """The object in another file of the policy's folder, or generated by its kustomization.

        Raises:
            PolicyError: several files have one, with different contents.
        """
        matches: list[Companion] = []
        for path in self._neighbours():
            try:
                items = documents.read(_FILES.text(str(path)), str(path))
            except PolicyError:
                continue  # not an Operator file
            matches += self._named(((str(path), item) for item in items), kind, name, namespace)
            matches += self._generated(path, items, kind, name)
        texts = [{key: entry.text for key, entry in match.entries.items()} for match in matches]
        if any(text != texts[0] for text in texts[1:]):
            raise PolicyError(
                f"several files have the {kind} {quote(name)}: {', '.join(match.place for match in matches)}",
                place=self.file,
                fix=f"copy one to the folder {self.folder.name}",
            )
        return matches[0] if matches else None

    def _neighbours(self) -> list[Path]:
        folder = Path(self.file).parent
        if not self.file or not folder.is_dir() or folder.name == "fd":
            return []
        names = (*_SUFFIXES, *KUSTOMIZATIONS)
        files = (path for path in folder.iterdir() if path.name.endswith(names) and path.is_file())
        return sorted(path for path in files if path.name != Path(self.file).name)[
            :_MOST_NEIGHBOURS
        ]

    def _generated(
        self, path: Path, items: Sequence[Item], kind: str, name: str
    ) -> Iterator[Companion]:
        """The object that a kustomization generates from files."""
        for item in items if path.name in KUSTOMIZATIONS else ():
            generators = item.get(_GENERATORS.get(kind, ""))
            for generator in generators.value if generators is not None else ():
                files = generator.get("files") if generator.text("name") == name else None
                entries: dict[str, Entry] = {}
                for file in files.value if files is not None else ():
                    key, _, source = str(file.value).rpartition("=")
                    source_path = path.parent / source
                    if source_path.is_file():
                        entries[key or source_path.name] = Entry(
                            _FILES.text(str(source_path)), str(source_path), 1
                        )
                if entries:
                    yield Companion(kind, name, f"{path}:{generator.line}", entries)

    def require(self, kind: str, name: Item, path: str) -> Companion:
        """Return the object of a key that requires it.

        Raises:
            PolicyError: it is missing.
        """
        companion = self.find(kind, name.value)
        if companion is not None:
            return companion
        names = ", ".join(
            sorted(i.text("metadata", "name") for i in self.objects if i.text("kind") == kind)
        )
        raise PolicyError(
            f"{path} names the {kind} {quote(name.value)}, which is not in this file"
            + (f" (it has {names})" if names else ""),
            place=f"{self.file}:{name.line}",
            fix=f"add it after a line '---', to a file beside this one, or to the folder {self.folder.name}",
        )

    def _objects(self) -> list[tuple[str, Item]]:
        """Objects of the YAML files in the folder."""
        if self._folder is None:
            self._folder = []
            for path in self._listed(self.folder):
                if path.suffix in _SUFFIXES and path.is_file() and path.name != choice.FILE:
                    items = documents.read(_FILES.text(str(path)), str(path))
                    self._folder.extend((str(path), item) for item in items)
        return self._folder

    def _of_files(self, kind: str, name: str) -> Companion | None:
        """The object whose keys are the files of a folder."""
        if not name or "/" in name or name.startswith("."):
            return None
        folder = self.folder / name
        files = [path for path in self._listed(folder) if path.is_file()]
        if not files:
            return None
        entries = {path.name: Entry(_FILES.text(str(path)), str(path), 1) for path in files}
        return Companion(kind, name, str(folder), entries)

    def _listed(self, folder: Path) -> list[Path]:
        if not folder.is_dir():
            return []
        try:
            paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
        except OSError as error:
            raise PolicyError(f"cannot be read: {error.strerror}", place=str(folder)) from error
        if len(paths) > _MOST_FILES:
            raise PolicyError(f"contains more than {_MOST_FILES} files", place=str(folder))
        return paths


def mig_text(text: str, file: str) -> str:
    """The mig-parted file in a ConfigMap, with the line numbers of the file; empty if there is no object.

    Raises:
        PolicyError: the text is not YAML, or its objects contain none or several.
    """
    return _embedded(
        text, file, "mig-parted file", "config.yaml", lambda _, value: "mig-configs:" in value
    )


def counters_text(text: str, file: str) -> str:
    """The counters file in a ConfigMap, as :func:`mig_text`."""
    key = "dcgm-metrics.csv"
    return _embedded(
        text, file, "counters file", key, lambda name, value: name == key or "DCGM_FI_" in value
    )


def _embedded(
    text: str, file: str, noun: str, usual: str, belongs: Callable[[str, str], bool]
) -> str:
    entries: list[Entry] = []
    other_objects: list[Item] = []
    for item in documents.read(text, file):
        data = item.get("data") if item.text("kind") == CONFIG_MAP else None
        data_items = data.value if data is not None and isinstance(data.value, dict) else {}
        texts = [
            value
            for key, value in data_items.items()
            if isinstance(value.value, str) and belongs(key, value.value)
        ]
        entries.extend(entry_of(value, file) for value in texts)
        if not texts and item.text("kind") and item.text("apiVersion"):
            other_objects.append(item)
    if len(entries) > 1:
        raise PolicyError(
            f"contains several {noun}s",
            place=entries[1].place(0),
            fix="pass a file with one of them",
        )
    if other_objects and not entries:
        first = other_objects[0]
        name = first.text("metadata", "name")
        raise PolicyError(
            f"the {quote_name(first.text('kind'))} {quote(name)} contains no {noun}",
            place=f"{file}:{first.line}",
            fix=f"wanted a {noun}, or a ConfigMap with one, usually at the key {usual}",
        )
    return pad(entries[0]) if entries else ""


def pad(entry: Entry) -> str:
    """The text after as many empty lines as keep the line numbers of the file."""
    return "\n" * (entry.line - 1) + entry.text


def check_companions(store: CompanionStore, spec: Item, kind: str) -> None:
    """Read every object that a spec names.

    Raises:
        PolicyError: one of them is invalid.
    """
    for reference in REFERENCES.get(kind, ()):
        item = spec.get(*reference.path.split("."))
        name = "" if item is None else object_name(item.value, kind)
        if name and not (kind == "helm" and inline_of(spec, reference, name, store.file)):
            store.find(reference.kind, name)


def object_name(value: object, kind: str) -> str:
    """The name of an object; empty if the value is not a name. The chart quotes numbers."""
    number = isinstance(value, int) and not isinstance(value, bool)
    return str(value) if isinstance(value, str) or (number and kind == "helm") else ""


def inline_of(values: Item, reference: Reference, name: str, file: str) -> Companion | None:
    """The ConfigMap that the chart creates from the values, if any."""
    section, _, key = reference.path.partition(".")
    create, data = values.get(section, "config", "create"), values.get(section, "config", "data")
    if key != "config.name" or create is None or create.value is not True or data is None:
        return None
    return inline(data, name, file, key="dcgm-metrics.csv" if section == "dcgmExporter" else None)


def inline(item: Item, name: str, file: str, *, key: str | None = None) -> Companion | None:
    """A ConfigMap that the chart creates from ``config.data``; ``key``: its only key."""
    if key is not None:
        if not isinstance(item.value, str):
            return None
        return Companion(CONFIG_MAP, name, f"{file}:{item.line}", {key: entry_of(item, file)})
    if not isinstance(item.value, dict):
        return None
    if not all(isinstance(value.value, str) for value in item.value.values()):
        return None  # reported as a value of the wrong type
    entries = {at: entry_of(value, file) for at, value in item.value.items()}
    return Companion(CONFIG_MAP, name, f"{file}:{item.line}", entries)


def _of_object(item: Item, file: str) -> Companion:
    kind, name, place = item.text("kind"), item.text("metadata", "name"), f"{file}:{item.line}"
    entries: dict[str, Entry] = {}
    for section in ("data", "stringData"):
        data = item.get(section)
        if data is None:
            continue
        if not isinstance(data.value, dict):
            raise PolicyError(
                f"{section} of the {kind} {quote(name)} is not a mapping", place=place
            )
        for key, value in data.value.items():
            if not isinstance(value.value, str):
                raise PolicyError(
                    f"{key} of the {kind} {quote(name)} is not text", place=f"{file}:{value.line}"
                )
            encoded = kind == SECRET and section == "data"
            entries[key] = _decoded(value, file, key) if encoded else entry_of(value, file)
    if not entries and item.get("binaryData") is None:
        raise PolicyError(f"the {kind} {quote(name)} contains no data", place=place)
    return Companion(kind, name, place, entries)


def entry_of(value: Item, file: str) -> Entry:
    """The text of a value; a block scalar begins on the line after its key."""
    return Entry(value.value, file, value.line + (1 if "\n" in value.value else 0))


def _decoded(value: Item, file: str, key: str) -> Entry:
    try:
        text = base64.b64decode("".join(value.value.split()), validate=True).decode(
            "utf-8", "replace"
        )
    except (binascii.Error, ValueError) as error:
        raise PolicyError(
            f"{key} of a Secret is not base64",
            place=f"{file}:{value.line}",
            fix="encode it, or move it to stringData",
        ) from error
    return Entry(text, file, value.line)
