"""Classify a file's documents: objects of the Operator, values of its chart, and others.

Values come bare or inside another program's file (:mod:`gpustate.gpu_operator.wrappers`). A ConfigMap with
values, as used by Flux, counts as values if the file has no other policy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from gpustate.errors import PolicyError
from gpustate.gpu_operator import documents, history, shape, umbrella
from gpustate.gpu_operator.documents import Item
from gpustate.gpu_operator.other_files import OtherFiles
from gpustate.gpu_operator.references import ReferenceResolver
from gpustate.gpu_operator.umbrella import ChartValues
from gpustate.gpu_operator.wrappers import OTHER_CHART, unwrap

#: Kinds that result in states.
POLICIES = ("clusterpolicy", "gpucluster", "helm", "nvidiadriver")
_VALUES_KEYS = ("values.yaml", "values.yml", "values")
#: Of the objects that the chart renders: its name and version.
CHART_LABEL, CHART_NAME = "helm.sh/chart", "gpu-operator"


@dataclass(frozen=True, slots=True)
class Part:
    """One document.

    Args:
        kind: as in :func:`gpustate.gpu_operator.shape.kind`.
        item: the object; of Helm values the values alone.
        held: the wrapper of the values, if any.
        release: of the Operator, if the document sets it.
        origins: other files that the values come from.
    """

    kind: str
    item: Item
    held: ChartValues | None = None
    release: str = ""
    origins: OtherFiles = field(default_factory=lambda: OtherFiles(""))


def parts(
    text: str, file: str, *, failed: Callable[[PolicyError, Item], None] | None = None
) -> list[Part]:
    """The documents of a file.

    Args:
        text: all of it.
        file: its path.
        failed: called for a document that only resembles one of the Operator's, instead of raising.

    Raises:
        PolicyError: one of them only resembles one of the Operator's.
    """
    try:
        items = documents.read(documents.filled_in(text), file)
        first = items[0].value if items else {}
        csv = not isinstance(first, dict) or any(key.startswith("DCGM_") for key in first)
    except PolicyError as error:
        raise shape.counters_file(text, file) or error from None
    counters_error = shape.counters_file(text, file) if csv else None
    if counters_error is not None:
        raise counters_error
    # No values: all are at their defaults.
    return classified(items or [Item({}, 1)], OtherFiles(file), failed=failed)


def classified(
    items: Sequence[Item],
    origins: OtherFiles,
    *,
    failed: Callable[[PolicyError, Item], None] | None = None,
) -> list[Part]:
    """The same of documents that are read already.

    Args:
        items: the documents.
        origins: their file, and the other origins of their values.
        failed: as for :func:`parts`.
    """
    resolver = ReferenceResolver(origins.file, tuple(items), origins)
    parts_of_file: list[Part] = []
    for item in items:
        try:
            parts_of_file.append(part(item, resolver))
        except PolicyError as error:
            error = origins.error(error)
            if failed is None or not item.text("kind") or not item.text("apiVersion"):
                raise error from None
            failed(error, item)
    if not any(part_of_file.kind in POLICIES for part_of_file in parts_of_file):
        parts_of_file.extend(_values_in_config_maps(parts_of_file, resolver))
    return [replace(part_of_file, origins=origins) for part_of_file in parts_of_file]


def part(item: Item, resolver: ReferenceResolver) -> Part:
    """One document.

    Raises:
        PolicyError: it only resembles one of the Operator's, or has to be rendered first.
    """
    held = unwrap(item, resolver)
    if isinstance(held, ChartValues):
        return Part("helm", held.values, held, held.release)
    if held is OTHER_CHART:
        return Part("other", item)
    kind = shape.kind(item, resolver.file)
    label = item.get("metadata", "labels", CHART_LABEL) if kind in POLICIES[:2] else None
    text = label.value if label is not None and isinstance(label.value, str) else ""
    return Part(
        kind,
        item,
        None,
        history.release_of_chart(text) if text.startswith(f"{CHART_NAME}-") else "",
    )


def _values_in_config_maps(parts_of_file: list[Part], resolver: ReferenceResolver) -> list[Part]:
    """Values in a ConfigMap, if the file has no other policy."""
    value_parts: list[Part] = []
    for part_of_file in parts_of_file:
        for key in _VALUES_KEYS if part_of_file.kind == "configmap" else ():
            text = part_of_file.item.get("data", key)
            if text is None or not isinstance(text.value, str):
                continue
            values = resolver.values(text)
            inner = umbrella.inner_values(values, resolver, named_chart=False)
            if inner is not None or umbrella.is_specific(values):
                name = part_of_file.item.text("metadata", "name")
                held = ChartValues(inner or values, f"the ConfigMap {name}")
                value_parts.append(Part("helm", held.values, held))
    return value_parts
