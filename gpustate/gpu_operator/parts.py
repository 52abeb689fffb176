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
        others: other files that the values come from.
    """

    kind: str
    item: Item
    held: ChartValues | None = None
    release: str = ""
    others: OtherFiles = field(default_factory=lambda: OtherFiles(""))


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
        found = documents.read(documents.filled_in(text), file)
        first = found[0].value if found else {}
        csv = not isinstance(first, dict) or any(key.startswith("DCGM_") for key in first)
    except PolicyError as error:
        raise shape.counters_file(text, file) or error from None
    other = shape.counters_file(text, file) if csv else None
    if other is not None:
        raise other
    # No values: all are at their defaults.
    return classified(found or [Item({}, 1)], OtherFiles(file), failed=failed)


def classified(
    found: Sequence[Item],
    others: OtherFiles,
    *,
    failed: Callable[[PolicyError, Item], None] | None = None,
) -> list[Part]:
    """The same of documents that are read already.

    Args:
        found: the documents.
        others: their file, and the other origins of their values.
        failed: as for :func:`parts`.
    """
    resolver = ReferenceResolver(others.file, tuple(found), others)
    made: list[Part] = []
    for item in found:
        try:
            made.append(part(item, resolver))
        except PolicyError as error:
            error = others.error(error)
            if failed is None or not item.text("kind") or not item.text("apiVersion"):
                raise error from None
            failed(error, item)
    if not any(one.kind in POLICIES for one in made):
        made.extend(_values_in_config_maps(made, resolver))
    return [replace(one, others=others) for one in made]


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


def _values_in_config_maps(made: list[Part], resolver: ReferenceResolver) -> list[Part]:
    """Values in a ConfigMap, if the file has no other policy."""
    found: list[Part] = []
    for one in made:
        for key in _VALUES_KEYS if one.kind == "configmap" else ():
            text = one.item.get("data", key)
            if text is None or not isinstance(text.value, str):
                continue
            values = resolver.values(text)
            inner = umbrella.inner_values(values, resolver, named_chart=False)
            if inner is not None or umbrella.is_specific(values):
                name = one.item.text("metadata", "name")
                held = ChartValues(inner or values, f"the ConfigMap {name}")
                found.append(Part("helm", held.values, held))
    return found
