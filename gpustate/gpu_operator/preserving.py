"""Write a ClusterPolicy for a policy read from a file of the Operator, preserving the original settings.

Settings that no state honours (image registries, tolerations, pod monitors) are in the file for a reason,
and components without a state run all the same. So objects are written as they were read, with the
changes of the command line. Helm values are written as a ClusterPolicy for the states, with every other
key of the values that a ClusterPolicy has too.

Surprising: for keys that the values leave out the chart's own values.yaml applies, so components that they
do not name are enabled or disabled as there.

Sources:
    NVIDIA/gpu-operator v26.7: deployments/gpu-operator/templates/clusterpolicy.yaml.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gpustate.gpu_operator import documents
from gpustate.gpu_operator.blocks import Field, Fields, Support
from gpustate.gpu_operator.check import Checker
from gpustate.gpu_operator.companions import CONFIG_MAP, SECRET
from gpustate.gpu_operator.desired import read_then
from gpustate.gpu_operator.fields import CLUSTER_POLICY
from gpustate.gpu_operator.helm import HELM, NIL_IS_ON
from gpustate.gpu_operator.history import chart_default, chart_defaults
from gpustate.gpu_operator.licensing import CONF
from gpustate.gpu_operator.parts import CHART_LABEL, CHART_NAME, parts
from gpustate.gpu_operator.reading import Reading

_RENAMED = {"driver.upgradePolicy.gpuPodDeletion.": "driver.upgradePolicy.podDeletion."}
#: Values from which the chart creates a ConfigMap.
_OBJECTS = ("devicePlugin.config", "migManager.config", "dcgmExporter.config")
Spec = dict[str, Any]


def companion_objects(reading: Reading) -> Iterator[dict[str, Any]]:
    """The objects that a policy was read with; of a Secret only the licence servers, never a token."""
    for _, one in reading.companions:
        kept = {
            key: entry.text
            for key, entry in one.entries.items()
            if one.kind == CONFIG_MAP or key == CONF
        }
        yield {
            "apiVersion": "v1",
            "kind": one.kind,
            "metadata": {"name": one.name},
            "data" if one.kind == CONFIG_MAP else "stringData": kept,
        }


def parse_objects(text: str) -> list[dict[str, Any]]:
    """Parse the objects of a text."""
    return [documents.plain(item) for item in documents.read(text, "")]


def append_missing(
    found: list[dict[str, Any]], others: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Append those of the others that are not among the objects yet."""
    by_name = {_name(one): dict(one) for one in others}
    here = {_name(one) for one in found}
    return [*found, *(one for name, one in by_name.items() if name not in here)]


def _name(data: Mapping[str, Any]) -> tuple[str, str]:
    head = data.get("metadata")
    name = head.get("name") if isinstance(head, Mapping) else None
    return str(data.get("kind")), str(name)


def with_release(found: list[dict[str, Any]], release: str) -> list[dict[str, Any]]:
    """The objects with the label that sets the release of a policy, as the chart writes it."""
    made: list[dict[str, Any]] = []
    for one in found:
        if one.get("kind") in ("ClusterPolicy", "GPUCluster"):
            head = one.get("metadata") or {}
            labels = {**(head.get("labels") or {}), CHART_LABEL: f"{CHART_NAME}-{release}"}
            one = {**one, "metadata": {**head, "labels": labels}}
        made.append(one)
    return made


def merge_values(
    made: list[dict[str, Any]], text: str, release: str = ""
) -> tuple[list[dict[str, Any]], list[str]] | None:
    """Add the settings of Helm values to the ClusterPolicy written for them.

    Args:
        made: its objects.
        text: of the values.
        release: of the Operator that the values are for; by default the newest.

    Returns:
        The objects, and the keys of the values that are missing in them, each with the reason. ``None``
        if no ClusterPolicy is written, or if an NVIDIADriver next to the values sets the driver.
    """
    spec = next((one["spec"] for one in made if one["kind"] == "ClusterPolicy"), None)
    values = _values(text)
    if spec is None or values is None:
        return None
    said = dict(_fields(values))
    for path, value in chart_defaults(release).items():
        switch = path.endswith(".enabled") and _at(spec, path) is not None
        image = path.endswith((".repository", ".image")) and said.get(_version_beside(path))
        if path not in said and switch and value and path in NIL_IS_ON:
            # Left to the Operator, which enables it: written out it would be a state of the node.
            said[path] = True if _at(spec, path) else None
        elif path not in said and (switch or image):
            said[path] = value
    missing: list[str] = []
    for path, value in said.items():
        why = _not_carried(path, value, said, release)
        if not why:
            _carry(spec, path, value)
        elif chart_default(path, release=release) != (
            True,
            value,
        ):  # the chart's default needs no note
            missing.append(f"{path}: {why}")
    named = set(_texts(spec))  # values written for the states may have another name here
    own = (CONFIG_MAP, SECRET)
    return [one for one in made if one["kind"] not in own or _name(one)[1] in named], missing


def _texts(data: Any) -> Iterator[str]:
    if isinstance(data, dict | list):
        for one in data.values() if isinstance(data, dict) else data:
            yield from _texts(one)
    elif isinstance(data, str):
        yield data


def _version_beside(path: str) -> str:
    return f"{path.rpartition('.')[0]}.version"


def _not_carried(path: str, value: object, said: Mapping[str, Any], release: str) -> str:
    """Why a key of the values cannot be in a ClusterPolicy; empty if it can."""
    if path.startswith(tuple(f"{one}." for one in _OBJECTS)) and value is not None:
        return ""
    there, passed_on = _field(_renamed(path), CLUSTER_POLICY), _field(path, HELM)
    if there is None:
        return "a ClusterPolicy has no such key"
    if passed_on is None:
        return "the chart has no such key"
    if passed_on.support is Support.DEAD and not read_then(path, passed_on.until, release):
        return f"it has no effect: {passed_on.detail}"
    if path.endswith((".repository", ".image")) and not said.get(_version_beside(path)):
        return "the Operator requires a version with it, and the chart's own may differ"
    return ""


def _carry(spec: Spec, path: str, value: Any) -> None:
    field = _field(_renamed(path), CLUSTER_POLICY)
    if field is None:
        return  # the data of a ConfigMap, which is written as an object
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None:
        _put(spec, _renamed(path), str(value) if number and field.type == "string" else value)
    elif path.endswith(".enabled") and _at(spec, path) is not None:
        _put(spec, path, None)  # left to the Operator, as in the values


def _renamed(path: str) -> str:
    for old, new in _RENAMED.items():
        path = new + path.removeprefix(old) if path.startswith(old) else path
    return path


def _values(text: str) -> dict[str, Any] | None:
    found: dict[str, Any] | None = None
    for one in parts(text, ""):
        if one.kind == "nvidiadriver":
            return None
        if one.kind == "helm":
            found = documents.plain(Checker("", HELM, "helm").as_rendered(one.item))
    return found


def _fields(data: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Every value by its path; a mapping that is one field of the table is one value."""
    for key, value in data.items():
        path = f"{above}{key}"
        known = _field(path, HELM)
        whole = known is not None and known.type.startswith(("map", "any"))
        if isinstance(value, Mapping) and value and not whole:
            yield from _fields(value, f"{path}.")
        elif known is not None or value not in ({}, None):  # an empty section sets nothing
            yield path, value


def _field(path: str, fields: Fields) -> Field | None:
    """The field of a path, of a list the first field of its elements."""
    return fields.get(path) or next(
        (field for key, field in fields.items() if key.startswith(f"{path}[]")), None
    )


def _at(spec: Spec, path: str) -> Any:
    found: Any = spec
    for key in path.split("."):
        found = found.get(key) if isinstance(found, dict) else None
    return found


def _put(spec: Spec, path: str, value: Any) -> None:
    *above, last = path.split(".")
    for key in above:
        spec = spec.setdefault(key, {})
    old = spec.get(last)
    if last == "env" and isinstance(old, list) and isinstance(value, list):
        ours = {one["name"] for one in value}
        value = [*(one for one in old if one["name"] not in ours), *value]
    if value is None:
        del spec[last]
    else:
        spec[last] = value
