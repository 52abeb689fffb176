"""Finds states: the bundled ones, those of installed packages, and the user's own.

Bundled states need no list: every module of ``gpustate.states`` is looked into, so a new state is
one new file. A package brings states through its entry points::

    [project.entry-points."gpustate.states"]
    acme-rdma-limits = "acme_gpu.rdma:RdmaLimits"

and a repository of policies through a ``gpustate.toml`` beside or above them; the folder of that
file goes on the import path::

    states = ["acme_gpu.limits:MemlockLimits"]

Names from outside carry their owner's prefix (``acme-...``), and one name with two owners is an
error: whichever came last would otherwise decide in silence what runs on a node.

A bundled state lives in a module whose name is a part of its own (``driver-repository`` in
``repository``), so that asking for one state imports little; asking for all imports all, a quarter
of a second that a run does without (see :class:`Names`).

Sources:
    Python Packaging User Guide, "Entry points specification".
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from gpustate.core.state import AnyState, State
from gpustate.errors import GraphError, PolicyError
from gpustate.formats.words import quote, suggest

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINTS = "gpustate.states"
PROJECT_FILE = "gpustate.toml"
_BUNDLED = "gpustate.states"
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")

StateClass = type[AnyState]


class Registry:
    """The states of one run; :func:`states` and :func:`get` ask the one of this process.

    Args:
        package: the package that is looked into for bundled states.
    """

    def __init__(self, package: str = _BUNDLED) -> None:
        self.package = package
        self._known: dict[str, StateClass] = {}  # found so far, by asking for one
        self._all: dict[str, StateClass] | None = None
        self._projects: dict[Path, dict[str, StateClass]] = {}

    def states(self) -> dict[str, StateClass]:
        """Return every state by name, sorted.

        Raises:
            GraphError: a name with two owners, a name from outside without a prefix, or a package
                whose state cannot be imported.
        """
        if self._all is None:
            owners: dict[str, tuple[StateClass, str]] = {}
            for cls, owner in (*self._bundled(), *self._installed(), *self._from_projects()):
                registered = owners.get(cls.name)
                if registered is not None and registered[0] is not cls:
                    raise _two_owners(cls.name, registered[1], owner)
                owners[cls.name] = (cls, owner)
            self._all = {name: owners[name][0] for name in sorted(owners)}
        return dict(self._all)

    def find(self, name: str) -> StateClass | None:
        """Return the state called ``name``, ``None`` where there is none."""
        if self._all is None:
            state_class = self._known.get(name) or self._guess(name)
            if state_class is not None:
                self._known[name] = state_class
                return state_class
        return self.states().get(name) or self._guess(name)

    def get(self, name: str) -> StateClass:
        """Return the state called ``name``.

        Raises:
            GraphError: there is none; the nearest names are in the message.
        """
        state_class = self.find(name)
        if state_class is None:
            raise GraphError(f"there is no state {quote(name)}", fix=self.hint(name))
        return state_class

    def hint(self, name: str) -> str:
        """Say which names are near one that does not exist, or all there are."""
        states_by_name = self.states()
        return suggest(name, states_by_name, f"states: {', '.join(states_by_name)}", 3)

    def use_project(self, start: Path) -> Path | None:
        """Take in the nearest ``gpustate.toml`` in ``start`` or above it.

        Returns:
            The file, ``None`` where there is none.

        Raises:
            PolicyError: the file is wrong, or a state it names cannot be imported.
            GraphError: a name without a prefix, or one that is taken.
        """
        start = start.absolute()
        for folder in (start, *start.parents):
            file = folder / PROJECT_FILE
            if file.is_file():
                if file not in self._projects:
                    project_states = _project_states(file)
                    self._check_free(project_states, str(file))
                    self._projects[file] = project_states
                    self._all = None
                return file
        return None

    def _check_free(self, project_states: dict[str, StateClass], owner: str) -> None:
        """Say now, not when one is asked for, that a project takes somebody's name; import little."""
        installed = {point.name: point.value for point in _entry_points()}
        for name, cls in project_states.items():
            self._check_prefix(name, owner)
            same_name = (more[name] for more in self._projects.values() if name in more)
            for holder in (self._guess(name), *same_name):
                if holder is not None and holder is not cls:
                    raise _two_owners(name, f"{holder.__module__}.{holder.__qualname__}", owner)
            if name in installed:
                raise _two_owners(name, f"an installed package ({installed[name]})", owner)

    def _bundled(self) -> Iterator[tuple[StateClass, str]]:
        for module in _modules(self.package):
            for cls in _classes(importlib.import_module(module)):
                yield cls, f"{cls.__module__}.{cls.__qualname__}"

    def _guess(self, name: str) -> StateClass | None:
        """The bundled state ``name``, from modules whose own names are in its name; no others."""
        module_words = name.replace("-", "_")
        for module in _modules(self.package):
            if module.rpartition(".")[2] in module_words:
                loaded = importlib.import_module(module)
                for cls in _classes(loaded):
                    if cls.name == name:
                        return cls
                for family in _families(loaded):
                    if name.startswith(f"{family.family}-") and _NAME.fullmatch(name):
                        return family.member(name)
        return None

    def families(self) -> dict[str, StateClass]:
        """Return the bundled classes that a policy may have many states of, by what their names begin with."""
        family_classes = (
            family_class
            for module in _modules(self.package)
            for family_class in _families(importlib.import_module(module))
        )
        return {cls.family: cls for cls in family_classes}

    def _installed(self) -> Iterator[tuple[StateClass, str]]:
        for point in _entry_points():
            owner = f"package {point.dist.name} {point.dist.version}" if point.dist else "a package"
            try:
                loaded = point.load()
            except Exception as error:
                raise GraphError(
                    f"{owner}: state {point.name!r} ({point.value}) cannot be imported: {_cause(error)}",
                    fix="repair or uninstall the package",
                ) from error
            cls = _checked(loaded, point.value, owner)
            if cls.name != point.name:
                raise GraphError(
                    f"{owner}: entry point {point.name!r} leads to a state called {cls.name!r}",
                    fix="give both one name",
                )
            self._check_prefix(cls.name, owner)
            yield cls, owner

    def _from_projects(self) -> Iterator[tuple[StateClass, str]]:
        for file, project_states in self._projects.items():
            for name, cls in project_states.items():
                self._check_prefix(name, str(file))
                yield cls, str(file)

    def _check_prefix(self, name: str, owner: str) -> None:
        if not _NAME.fullmatch(name) or "-" not in name:
            raise GraphError(
                f"{owner}: state {name!r} carries no prefix of its owner",
                fix="give it one, as in 'acme-limits'",
            )


class Names(Collection[str]):
    """Names of all registered states, for checks of names; imports no more than is asked for."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._registry.find(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._registry.states())

    def __len__(self) -> int:
        return len(self._registry.states())

    def __bool__(self) -> bool:
        return True


def _entry_points() -> Iterable[EntryPoint]:
    from importlib import metadata  # not needed by a policy of bundled states

    return metadata.entry_points(group=ENTRY_POINTS)


def _two_owners(name: str, owner: str, other_owner: str) -> GraphError:
    return GraphError(
        f"state {name!r} has two owners: {owner} and {other_owner}",
        fix="rename or remove one of them",
    )


@cache
def _modules(package: str) -> tuple[str, ...]:
    """Names of the modules in ``package``, none of them imported."""
    paths = importlib.import_module(package).__path__
    names = (info.name for info in pkgutil.iter_modules(paths) if not info.name.startswith("_"))
    return tuple(sorted(f"{package}.{name}" for name in names))


def _classes(module: ModuleType) -> list[StateClass]:
    """The states a module (or a package's own modules) defines, not those it merely imports."""
    return [
        cls
        for _, cls in inspect.getmembers(module, inspect.isclass)
        if issubclass(cls, State)
        and "name" in vars(cls)
        and cls.name
        and (cls.__module__ + ".").startswith(module.__name__ + ".")
    ]


def _families(module: ModuleType) -> list[StateClass]:
    """The classes of a module that stand for many states, each with a name of its own."""
    return [
        cls
        for _, cls in inspect.getmembers(module, inspect.isclass)
        if issubclass(cls, State) and vars(cls).get("family") and cls.__module__ == module.__name__
    ]


def _checked(loaded: object, reference: str, owner: str) -> StateClass:
    if not (inspect.isclass(loaded) and issubclass(loaded, State)):
        raise GraphError(f"{owner}: {reference} is not a subclass of gpustate.State")
    if not loaded.name:
        raise GraphError(f"{owner}: {reference} has no name", fix="set its class attribute 'name'")
    return loaded


def _cause(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _project_states(file: Path) -> dict[str, StateClass]:
    """Import what one ``gpustate.toml`` names."""
    import tomllib  # only where there is such a file

    place = str(file)
    try:
        data = tomllib.loads(file.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PolicyError(f"is not TOML: {error}", place=place) from error
    except OSError as error:
        raise PolicyError(f"cannot be read: {error.strerror}", place=place) from error
    unknown = sorted(set(data) - {"states", "connection"})
    if unknown:
        expected = "it has 'states' and 'connection'"
        raise PolicyError(f"unknown key {unknown[0]!r}, {expected}", place=place)
    references = data.get("states", [])
    if not isinstance(references, list):
        raise PolicyError(
            f"'states' must be a list of 'module:Class', is {references!r}", place=place
        )
    folder = str(file.parent)
    if folder not in sys.path:
        # Last: a folder of policies must not hide what gpustate itself imports later.
        sys.path.append(folder)
    states_by_name: dict[str, StateClass] = {}
    for reference in references:
        cls = _project_state(reference, place)
        if cls.name in states_by_name:
            raise GraphError(f"{place}: state {cls.name!r} is named twice", fix="name it once")
        states_by_name[cls.name] = cls
    return states_by_name


def _project_state(reference: object, place: str) -> StateClass:
    if not isinstance(reference, str) or not _REFERENCE.fullmatch(reference):
        raise PolicyError(f"{reference!r} is not 'module:Class'", place=place)
    module, _, name = reference.partition(":")
    try:
        loaded = importlib.import_module(module)
    except Exception as error:
        raise PolicyError(
            f"state {reference!r} cannot be imported: {_cause(error)}",
            place=place,
            fix=f"modules are looked for in {Path(place).parent} and in the Python environment",
        ) from error
    if not hasattr(loaded, name):
        hint = suggest(name, vars(loaded), "", form="{!r}") or None
        raise PolicyError(f"module {module!r} has no {name!r}", place=place, fix=hint)
    return _checked(getattr(loaded, name), reference, place)


_registry: Registry | None = None


def current() -> Registry:
    """Return the registry of this process; its first use takes in the current directory's states."""
    global _registry
    if _registry is None:
        registry = Registry()
        if (Path.cwd() / PROJECT_FILE).is_file():
            registry.use_project(Path.cwd())
        _registry = registry
    return _registry


def states() -> dict[str, StateClass]:
    """Return every state by name, sorted; see :meth:`Registry.states`."""
    return current().states()


def names() -> Names:
    """Return the names of all states, which are found as far as they are asked for."""
    return Names(current())


def get(name: str) -> StateClass:
    """Return the state called ``name``; see :meth:`Registry.get`."""
    return current().get(name)


def find(name: str) -> StateClass | None:
    """Return the state called ``name``, ``None`` where there is none."""
    return current().find(name)


def hint(name: str) -> str:
    """Say which names are near one that does not exist."""
    return current().hint(name)


def use_project(start: Path) -> Path | None:
    """Take in the ``gpustate.toml`` in ``start`` or above; see :meth:`Registry.use_project`."""
    return current().use_project(start)
