"""One document for the linter's checks: its effective values and their lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gpustate.gpu_operator import history
from gpustate.gpu_operator.check import Setting
from gpustate.gpu_operator.documents import Item, plain
from gpustate.gpu_operator.helm import NIL_IS_ON, is_null
from gpustate.gpu_operator.keys import records
from gpustate.gpu_operator.lint.finding import Finding


@dataclass(frozen=True, slots=True)
class Context:
    """One document.

    Args:
        kind: ``clusterpolicy``, ``nvidiadriver``, ``gpucluster`` or ``helm``.
        file: its path.
        title: its name in findings.
        spec: ``spec`` of the object, or all values.
        settings: the valid settings.
        item: the whole object; of values the same as ``spec``.
        release: of the Operator that it is checked against.
        containers: components that run as NVIDIA's containers.
    """

    kind: str
    file: str
    title: str
    spec: Item
    settings: tuple[Setting, ...]
    item: Item
    release: str
    containers: frozenset[str] = frozenset()

    def before(self, release: str) -> bool:
        """Whether it is checked against an earlier release than this one."""
        return (history.number(self.release) or (0,)) < (history.number(release) or (0,))

    def item_at(self, path: str) -> Item | None:
        """The value that the file sets at a path; ``None`` if it sets none, or ``null``."""
        return self.spec.get(*path.split("."))

    def own_value(self, path: str) -> Any:
        """The same as plain data."""
        item = self.item_at(path)
        return None if item is None else plain(item)

    def value(self, path: str) -> Any:
        """The effective value at a path: the file's, else the default of the chart or the API server.

        In values, ``null`` removes the chart's default, not that of the API server.
        """
        own_value = self.own_value(path)
        if own_value is not None:
            return own_value
        record = records(self.kind, self.release).get(path)
        if record is None:
            return None
        if record.filled_by == "chart" and is_null(self.spec, path):
            return record.field.default
        return record.default

    def on(self, section: str) -> bool:
        """Whether a component is enabled, by the file or by the Operator's default."""
        value = self.value(f"{section}.enabled")
        return f"{section}.enabled" in NIL_IS_ON if value is None else bool(value)

    def is_nvidia_image(self, prefix: str) -> bool:
        """Whether an image is one that NVIDIA publishes, in its registry under its original name.

        Args:
            prefix: of the keys ``repository`` and ``image``: ``driver.``, or empty in an NVIDIADriver.
        """
        repository = self.value(f"{prefix}repository")
        if repository and not str(repository).startswith("nvcr.io/nvidia"):
            return False
        usual = history.chart_defaults(self.release).get(f"{prefix or 'driver.'}image")
        return self.own_value(f"{prefix}image") in (None, "", usual)

    def line(self, path: str) -> int:
        """The line of a key, or of its nearest parent in the file; ``""`` for the object."""
        if not path:
            return self.item.line
        words = path.split(".")
        for count in range(len(words), 0, -1):
            item = self.spec.get(*words[:count])
            if item is not None:
                return item.line
        return self.spec.line

    def find(self, rule: str, path: str, message: str, fix: str | None = None) -> Finding:
        """A finding at a path of this document."""
        return Finding(rule, path, message, self.file, self.line(path), fix, self.title)

    def env(self, section: str) -> Iterator[tuple[str, Any, int]]:
        """Name, value and line of the variables of a component."""
        variables = self.item_at(f"{section}.env")
        if variables is None or not isinstance(variables.value, list):
            return
        for variable in variables.value:
            if isinstance(variable.value, dict) and variable.text("name"):
                value = variable.get("value")
                yield variable.text("name"), None if value is None else value.value, variable.line
