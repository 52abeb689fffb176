"""Checks of single settings: variables, image tags, configuration names.

Sources:
    NVIDIA/gpu-operator v26.3.3 and v26.7: internal/image/image.go, controllers/object_controls.go,
    deployments/gpu-operator/templates. NVIDIA/nvidia-container-toolkit v1.10 to v1.20: cmd/nvidia-ctk-installer, tools/container.
    NVIDIA/gpu-operator issues 219, 270, 861, 1200; ibm-mas/ansible-devops issue 1651.
    kubernetes-sigs/node-feature-discovery v0.19, worker and master configuration reference.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from gpustate.formats.words import quote
from gpustate.gpu_operator import history
from gpustate.gpu_operator.driver import precompiled_advice
from gpustate.gpu_operator.lint.context import Context
from gpustate.gpu_operator.lint.finding import Finding
from gpustate.gpu_operator.lint.variables import read_by

_RUNTIME_PREFIXES = (
    *("CONTAINERD_", "CRIO_", "DOCKER_", "RUNTIME_", "NVIDIA_", "CDI_", "NRI_", "ACCEPT_"),
)
_DEFAULTS = ("CONTAINERD_SET_AS_DEFAULT", "NVIDIA_RUNTIME_SET_AS_DEFAULT")
_CONTAINERD_FILES = ("CONTAINERD_CONFIG", "RUNTIME_CONFIG")
#: Components whose image is set by three keys, and the prefix of these keys.
_IMAGES = (
    *("driver", "toolkit", "devicePlugin", "gfd", "migManager", "dcgm", "dcgmExporter"),
    *("nodeStatusExporter", "gds", "gdrcopy", "vgpuManager", "vgpuDeviceManager", "vfioManager"),
    *("sandboxDevicePlugin", "kataSandboxDevicePlugin", "ccManager"),
)
_SANDBOX = frozenset(_IMAGES[10:])
#: The release that refuses an image with only some of its parts.
_REFUSED_SINCE = "v26.7.0"
_PARTS = ("repository", "image", "version")
_SYSTEM = re.compile(r"-(ubuntu|rhel|rhcos|rocky|ol|sles|sl-micro|debian|amzn)\d[\w.]*$")
#: The Operator appends the node's system to the tag of these.
_GET_SYSTEM = ("driver", "gds", "gdrcopy", "vgpuManager")
#: Earlier tags of the toolkit end in a system, and have no v before 1.6 (values.yaml of v1.7.0, v25.3.2, v25.10.0).
_TAGGED_ALONE_SINCE = (1, 18, 0)
_WITH_V = r"v\d+\.\d+(\.\d+)?(-.+)?"
#: NVIDIA's tags, without the system that the Operator appends to some of them.
_TAGS: Mapping[str, str] = {
    "driver": r"\d{3,4}(\.\d+){0,2}",
    **dict.fromkeys(("toolkit", "devicePlugin", "gfd", "migManager", "gdrcopy"), _WITH_V),
    **dict.fromkeys(("sandboxDevicePlugin", "kataSandboxDevicePlugin"), _WITH_V),
    **dict.fromkeys(("vgpuDeviceManager", "ccManager"), _WITH_V),
    "gds": r"\d+(\.\d+){1,2}",
    "dcgm": r"\d+\.\d+\.\d+(-\d+)?-[a-z].*",
    "dcgmExporter": r"\d+\.\d+\.\d+-\d+\.\d+\.\d+-[a-z].*",
}
#: Tags such as ``latest`` or ``main`` are not versions.
_VERSION = re.compile(r"v?\d.*")


def variables(context: Context) -> Iterator[Finding]:
    """Variables of the toolkit: misspelt, duplicate or contradictory."""
    env: dict[str, tuple[Any, int]] = {}
    installer = read_by("toolkit", "installer")
    for name, value, line in context.env("toolkit"):
        path = "toolkit.env"
        if name in env:
            yield _at(
                context, path, line, f"toolkit.env sets {name} in line {env[name][1]} as well"
            )
        elif name not in installer:
            near = difflib.get_close_matches(name.upper(), sorted(installer), 1, 0.8)
            if near or name.startswith(_RUNTIME_PREFIXES):
                fix = f"did you mean {near[0]}" if near else None
                text = f"toolkit.env {quote(name)} is not read by the toolkit"
                yield _at(context, path, line, text, fix)
        env[name] = (value, line)
    if all(name in env for name in _DEFAULTS) and len({env[n][0] for n in _DEFAULTS}) > 1:
        line = env[_DEFAULTS[1]][1]
        yield _at(context, "toolkit.env", line, f"{' and '.join(_DEFAULTS)} contradict each other")
    if context.value("cdi.nriPluginEnabled"):
        for name in (*_CONTAINERD_FILES, *_DEFAULTS):
            if name in env:
                text = (
                    f"toolkit.env {name} has no effect with cdi.nriPluginEnabled, which fields the "
                )
                yield _at(context, "toolkit.env", env[name][1], f"{text}runtime's files unchanged")


def _at(context: Context, path: str, line: int, message: str, fix: str | None = None) -> Finding:
    return Finding("variable", path, message, context.file, line, fix, context.title)


def images(context: Context) -> Iterator[Finding]:
    """Repository, image and version must all be set, or none, or the image alone."""
    if context.kind not in ("clusterpolicy", "helm", "gpucluster"):
        return
    for section in _IMAGES:
        if not _matters(context, section):
            continue
        parts = {part: context.value(f"{section}.{part}") for part in _PARTS}
        present = [part for part in _PARTS if context.item_at(f"{section}.{part}") is not None]
        missing = [part for part, value in parts.items() if not value]
        if (
            not present
            or not missing
            or len(missing) == len(_PARTS)
            or missing == ["repository", "version"]
        ):
            continue
        outcome = "which the Operator refuses"
        if context.before(_REFUSED_SINCE):
            name = "{repository}/{image}:{version}".format(
                **{part: value or "" for part, value in parts.items()}
            )
            outcome = f"of which {context.release} makes {quote(name)}, no valid image"
        yield context.find(
            "image",
            f"{section}.{present[0]}",
            f"{section} has {' and '.join(p for p in _PARTS if p not in missing)} and no "
            f"{' and no '.join(missing)}, {outcome}",
            f"set {' and '.join(f'{section}.{part}' for part in missing)} too, or none of "
            f"{', '.join(_PARTS)}",
        )


def _matters(context: Context, section: str) -> bool:
    if context.item_at(section) is None or not context.on(section):
        return False
    if section == "driver" and context.kind == "helm":
        return True
    if section == "driver" and context.value("driver.useNvidiaDriverCRD"):
        return False
    return section not in _SANDBOX or context.on("sandboxWorkloads")


def tags(context: Context) -> Iterator[Finding]:
    """Tags of images that are not published."""
    of_driver = context.kind == "nvidiadriver"
    for section in ("driver",) if of_driver else dict.fromkeys((*_GET_SYSTEM, *_TAGS)):
        prefix = "" if of_driver else f"{section}."
        path = f"{prefix}version"
        version = context.own_value(path)
        if not isinstance(version, str | int) or isinstance(version, bool):
            continue
        if not of_driver and not _matters(context, section):
            continue
        version = str(version)
        if version != version.strip():
            text = f"{path} is {quote(version)}, with blanks around it, and no image has such a tag"
            yield context.find("tag", path, text, f"write {version.strip()}")
            continue
        advice = precompiled_advice(version, prefix) if section == "driver" else ""
        if advice:
            yield context.find(
                "tag",
                path,
                f"{path} is {quote(version)}, and the Operator appends the node's kernel and system to the "
                "branch of a precompiled driver itself",
                advice,
            )
            continue
        system = _SYSTEM.search(version) if section in _GET_SYSTEM else None
        if system is not None:
            yield context.find(
                "tag",
                path,
                f"{path} is {quote(version)}, and the Operator appends the node's system to it: "
                f"{version}{system[0]}",
                f"write {version[: system.start()]}",
            )
        elif section not in _TAGS or not _VERSION.fullmatch(version):
            continue
        elif context.value(f"{prefix}repository") and context.is_nvidia_image(prefix):
            yield from _unpublished(context, section, path, version)


def _unpublished(context: Context, section: str, path: str, version: str) -> Iterator[Finding]:
    """A version that does not match the tags of NVIDIA's image."""
    if re.fullmatch(_TAGS[section], version):
        return
    number_text = version.removeprefix("v")
    number = history.number(number_text)
    old = section == "toolkit" and number is not None and number < _TAGGED_ALONE_SINCE
    forms = () if old else (number_text, f"v{number_text}")
    likely_tag = next((form for form in forms if re.fullmatch(_TAGS[section], form)), "")
    usual = history.chart_defaults(context.release).get(f"{section}.version")
    example = f"the default of {context.release} is {usual}" if usual else "see NVIDIA's catalogue"
    yield context.find(
        "tag",
        path,
        f"{path} is {quote(version)}, and NVIDIA publishes no image with such a tag",
        f"write {likely_tag}" if likely_tag else f"write the complete tag; {example}",
    )


def configurations(context: Context) -> Iterator[Finding]:
    """ConfigMaps: a default without a name, data without a ConfigMap."""
    for section in ("devicePlugin", "migManager", "dcgmExporter"):
        if context.item_at(f"{section}.config") is None:
            continue
        name, data = (
            context.own_value(f"{section}.config.name"),
            context.own_value(f"{section}.config.data"),
        )
        create = context.own_value(f"{section}.config.create") is True
        if context.kind != "helm":
            create, data = False, None  # keys of the chart, reported as such
        if (
            section == "devicePlugin"
            and context.own_value("devicePlugin.config.default")
            and not name
        ):
            yield context.find(
                "without-effect",
                "devicePlugin.config.default",
                "devicePlugin.config.default has no effect without devicePlugin.config.name",
                "set devicePlugin.config.name to the name of the ConfigMap",
            )
        if create and not name:
            yield context.find(
                "contradiction",
                f"{section}.config.create",
                f"{section}.config.create is true and {section}.config.name is empty",
                f"set {section}.config.name",
            )
        if create and not data:
            yield context.find(
                "contradiction" if section == "devicePlugin" else "without-effect",
                f"{section}.config.create",
                f"{section}.config.create is true and {section}.config.data is empty: no ConfigMap "
                "is created",
                f"set {section}.config.data, or {section}.config.create to false",
            )


def tolerations(context: Context) -> Iterator[Finding]:
    """Tolerations in the chart's ``operator`` apply to the Operator, not to its components."""
    value = context.own_value("operator.tolerations") if context.kind == "helm" else None
    if (
        value
        and not _of_control_plane(value)
        and context.own_value("daemonsets.tolerations") is None
    ):
        yield context.find(
            "not-carried-out",
            "operator.tolerations",
            "operator.tolerations applies to the Operator's own pod only",
            "use daemonsets.tolerations for the components on the nodes",
        )


def _of_control_plane(value: Any) -> bool:
    keys = (
        [toleration.get("key") for toleration in value if isinstance(toleration, dict)]
        if isinstance(value, list)
        else []
    )
    return all(str(key).startswith("node-role.kubernetes.io/") for key in keys)


def labels(context: Context) -> Iterator[Finding]:
    """GPU labels reach a node through node feature discovery, if it is configured for that."""
    nfd = "node-feature-discovery"
    if context.kind != "helm" or not context.value("nfd.enabled") or not context.on("gfd"):
        return
    if context.own_value(f"{nfd}.worker.enable") is False:
        yield _lost(context, f"{nfd}.worker.enable", "is false: nothing publishes the GPU labels")
    path = f"{nfd}.worker.config.core.labelSources"
    sources = context.own_value(path)
    if isinstance(sources, list) and not {"all", "local"} & set(map(str, sources)):
        problem = "lacks local, the source of the GPU labels"
        yield _lost(context, path, problem)
    for path in (f"{nfd}.master.denyLabelNs", f"{nfd}.master.config.denyLabelNs"):
        denied = context.own_value(path)
        if isinstance(denied, list) and {"*", "nvidia.com"} & set(map(str, denied)):
            allowed = context.own_value(path.replace("deny", "extra"))
            if not isinstance(allowed, list) or "nvidia.com" not in allowed:
                yield _lost(context, path, "rejects labels in nvidia.com")


def _lost(context: Context, path: str, problem: str) -> Finding:
    return context.find("without-effect", path, f"{path} {problem}", "gfd.enabled is true")


CHECKS = (variables, images, tags, configurations, tolerations, labels)
