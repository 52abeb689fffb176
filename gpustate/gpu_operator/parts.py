"""A file's documents, each as what it is: an object of the Operator, values of its chart, or something beside.

Values come bare or inside another program's file (:mod:`gpustate.gpu_operator.wrappers`). A ConfigMap that
stands alone and holds values, as Flux takes them, is values too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpustate.errors import PolicyError
from gpustate.gpu_operator import documents, history, shape, umbrella
from gpustate.gpu_operator.beside import Beside
from gpustate.gpu_operator.chart_values import ChartValues
from gpustate.gpu_operator.documents import Item
from gpustate.gpu_operator.wrappers import OTHER_CHART, unwrap

#: Kinds that ask for states.
POLICIES = ("clusterpolicy", "gpucluster", "helm", "nvidiadriver")
_VALUES_KEYS = ("values.yaml", "values.yml", "values")
_CHART_LABEL = "helm.sh/chart"


@dataclass(frozen=True, slots=True)
class Part:
    """One document.

    Args:
        kind: as in :func:`gpustate.gpu_operator.shape.kind`.
        item: the object; of Helm values the values alone.
        held: the wrapper of the values, if they have one.
        release: of the Operator, where the document says it.
    """

    kind: str
    item: Item
    held: ChartValues | None = None
    release: str = ""


def parts(
    text: str, file: str, *, failed: Callable[[PolicyError, Item], None] | None = None
) -> list[Part]:
    """The documents of a file.

    Args:
        text: all of it.
        file: its path.
        failed: called with what only looks like one of the Operator's, instead of an error.

    Raises:
        PolicyError: there are none, or one of them only looks like one of the Operator's.
    """
    found = documents.read(documents.filled_in(text), file)
    if not found:
        raise PolicyError("is empty, wanted a policy", place=file)
    beside = Beside(file, tuple(found))
    made: list[Part] = []
    for item in found:
        try:
            made.append(part(item, beside))
        except PolicyError as error:
            if failed is None or not item.text("kind") or not item.text("apiVersion"):
                raise
            failed(error, item)
    if not any(one.kind in POLICIES for one in made):
        made.extend(_values_in_config_maps(made, beside))
    return made


def part(item: Item, beside: Beside) -> Part:
    """One document.

    Raises:
        PolicyError: it only looks like one of the Operator's, or has to be rendered first.
    """
    held = unwrap(item, beside)
    if isinstance(held, ChartValues):
        return Part("helm", held.values, held, held.release)
    if held is OTHER_CHART:
        return Part("other", item)
    kind = shape.kind(item, beside.file)
    label = item.get("metadata", "labels", _CHART_LABEL) if kind in POLICIES[:2] else None
    text = label.value if label is not None and isinstance(label.value, str) else ""
    return Part(kind, item, None, history.called(text) if text.startswith("gpu-operator-") else "")


def _values_in_config_maps(made: list[Part], beside: Beside) -> list[Part]:
    """Values in a ConfigMap, where the file has no other policy."""
    found: list[Part] = []
    for one in made:
        for key in _VALUES_KEYS if one.kind == "configmap" else ():
            text = one.item.get("data", key)
            if text is None or not isinstance(text.value, str):
                continue
            values = beside.values(text)
            inner = umbrella.inner(values, beside, named_chart=False)
            if inner is not None or umbrella.telling(values):
                name = one.item.text("metadata", "name")
                held = ChartValues(inner or values, f"the ConfigMap {name}")
                found.append(Part("helm", held.values, held))
    return found
