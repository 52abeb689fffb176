"""The settings that components of a cluster have in common, in a ClusterPolicy or in Helm values.

Without an image in the file, that of the Operator's release is used.

Sources:
    NVIDIA/gpu-operator v26.7: internal/image (how the reference is made), deployments/gpu-operator/templates (images of
    the Operator's own repository have the chart's version).
"""

from __future__ import annotations

from typing import Any

from gpustate.documents import Json, JsonView
from gpustate.errors import PolicyError
from gpustate.gpu_operator import history
from gpustate.gpu_operator.desired import Source
from gpustate.gpu_operator.documents import plain
from gpustate.gpu_operator.helm import is_null
from gpustate.gpu_operator.keys import fields, targets
from gpustate.manifests.settings import PULL_POLICIES, Component

IMAGE = ("repository", "image", "version")
#: Without a version, these have that of the chart.
OF_CHART = ("nodeStatusExporter", "validator")
#: Containers beside those of a component, by their sections.
BESIDE = (
    *("driver.manager", "gds", "gdrcopy"),
    *("vgpuManager.driverManager", "vfioManager.driverManager"),
)


def value(source: Source, path: str) -> Any:
    """The value at a path as plain data, or the chart's default; ``None`` without both."""
    item = source.spec.get(*path.split("."))
    if item is not None:
        return plain(item)
    if source.kind != "helm" or is_null(source.spec, path):
        return None
    has_default, default = history.chart_default(path, mapping=True, release=source.release)
    return default if has_default else None


def settings(source: Source, section: str = "") -> Json:
    """The fields of a section of the settings that the table's rows set; what is empty keeps its default.

    Args:
        source: the document.
        section: of :class:`gpustate.manifests.settings.ClusterSettings`, or an object; empty: the settings' own fields.
    """
    paths = targets(source.kind).get(section, {})
    values = {name: value(source, path) for name, path in paths.items()}
    return {
        name: _converted(content, fields(source.kind)[paths[name]].type)
        for name, content in values.items()
        if content not in (None, "", [], {})
    }


def fields_of_objects(source: Source) -> dict[str, Json]:
    """Fields of objects that the table's rows set, by object and path."""
    objects = (name for name in targets(source.kind) if "/" in name)
    return {name: object_fields for name in objects if (object_fields := settings(source, name))}


def _converted(raw: Any, kind: str) -> Any:
    """A value in the type of its field: the chart accepts numbers for texts."""
    if kind in ("string", "quoted"):
        return str(raw)
    if kind == "list[string]":
        return tuple(map(str, raw))
    return {key: str(element) for key, element in raw.items()} if kind == "map[string]" else raw


def texts(source: Source, path: str) -> dict[str, str]:
    """A mapping of texts at a path."""
    mapping: JsonView = value(source, path) or {}
    return {key: str(text) for key, text in mapping.items()}


def variables(source: Source, path: str) -> dict[str, str]:
    """Environment variables of a container; a release that lacks the key drops their names."""
    entries = value(source, path) or ()
    return {str(var["name"]): str(var.get("value") or "") for var in entries if "name" in var}


def component(source: Source, name: str, *, enabled: bool) -> Component:
    """The settings of a section; without ``name`` those of the whole document.

    Raises:
        PolicyError: an image that cannot be completed.
    """
    if not enabled:
        return Component(enabled=False)
    prefix = f"{name}." if name else ""
    policy = str(value(source, f"{prefix}imagePullPolicy") or "")
    secrets = value(source, f"{prefix}imagePullSecrets") or ()
    return Component(
        image=_image(source, name),
        image_pull_policy=policy if policy in PULL_POLICIES else "IfNotPresent",
        image_pull_secrets=tuple(dict.fromkeys(map(str, secrets))),
        resources=value(source, f"{prefix}resources") or {},
        args=tuple(map(str, value(source, f"{prefix}args") or ())),
        env=variables(source, f"{prefix}env"),
        host_network=bool(value(source, f"{prefix}hostNetwork")),
    )


def _image(source: Source, name: str) -> str:
    """The reference that the file sets, completed by the chart's repository, image and version; empty if it sets none.

    Raises:
        PolicyError: parts are missing, and the Operator is asked for strictly, or the chart does not have them.
    """
    prefix = f"{name}." if name else ""
    parts = {part: str(value(source, f"{prefix}{part}") or "") for part in IMAGE}
    if source.kind == "helm" and name in OF_CHART:
        parts["version"] = parts["version"] or source.release
    present = [part for part, text in parts.items() if text]
    if len(present) == len(IMAGE):
        return reference(*parts.values())
    if present in ([], ["image"]):
        return parts["image"]
    section = name or "driver"
    of_chart = {"version": source.release} if section in OF_CHART else {}
    chart = history.chart_defaults(source.release)
    completed = [
        str(parts[part] or chart.get(f"{section}.{part}") or of_chart.get(part, ""))
        for part in IMAGE
    ]
    missing = [part for part in IMAGE if not parts[part]]
    place = source.place((source.spec.get(*name.split(".")) if name else None) or source.spec)
    if source.strict or "/" in parts["image"] or not all(completed):
        raise PolicyError(
            f"{name or 'the driver'} sets {' and '.join(present)} of its image, without "
            f"{', '.join(f'{prefix}{part}' for part in missing)}",
            place=place,
            fix="set repository, image and version, or image alone as the complete reference",
        )
    source.incomplete.setdefault(name or "the NVIDIADriver", place)
    return reference(*completed)


def reference(repository: str, image: str, version: str) -> str:
    """The reference of an image; empty if a part is missing."""
    mark = "@" if version.startswith("sha256:") else ":"
    return f"{repository}/{image}{mark}{version}" if repository and image and version else ""
