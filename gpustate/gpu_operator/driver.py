"""The driver that a document requests: ClusterPolicy's ``driver`` section or an NVIDIADriver.

Sources:
    NVIDIA/gpu-operator v26.7: api/nvidia/v1/clusterpolicy_types.go, DriverSpec.
    NVIDIA/gpu-operator v24.9.2: controllers/object_controls.go, OPEN_KERNEL_MODULES_ENABLED.
    NVIDIA/gpu-driver-container: ubuntu24.04/nvidia-driver, how kernelModuleConfig is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpustate.errors import PolicyError
from gpustate.formats.words import quote
from gpustate.gpu_operator.desired import DesiredState, Source
from gpustate.gpu_operator.documents import Item
from gpustate.gpu_operator.licensing import desired_license
from gpustate.gpu_operator.upgrades import desired_drain, desired_rollout

#: An image tag: the version of the software, and the system the image was built for.
SYSTEM = re.compile(
    r"-(ubuntu|ubi|rhel|rhcos|rocky|ol|centos|sles|sl-micro|debian|fedora|amzn|distroless).*"
)
_VERSION = re.compile(r"\d{3,4}(\.\d{1,4}){1,2}")
_BRANCH = re.compile(r"\d{3,4}")
#: The branch before a kernel's version.
_OF_KERNEL = re.compile(r"\s*(\d{3,4})(?:\.\d+)*-\d+\.\d+\.\d+-")
_PARAMETER = re.compile(r"([A-Za-z_]\w*)=(.*)")
_INTEGER = re.compile(r"0|-?[1-9]\d{0,17}")
#: The release that added ``kernelModuleType``, and the first branch whose driver containers choose
#: the module type by the GPU by default.
_MODULE_TYPE, _AUTO_BRANCH = "v25.3.0", 570
#: Keys of the ConfigMap and their modules.
MODULES = {
    "nvidia.conf": "nvidia",
    "nvidia-uvm.conf": "nvidia-uvm",
    "nvidia-modeset.conf": "nvidia-modeset",
    "nvidia-drm.conf": "nvidia-drm",
    "nvidia-peermem.conf": "nvidia-peermem",
}


def software_version(source: Source, item: Item, path: str) -> str:
    """Return the version in an image tag, without the system.

    Raises:
        PolicyError: a digest, which does not contain a version.
    """
    tag = str(item.value).strip()  # the chart quotes numbers
    if tag.startswith("sha256:"):
        raise PolicyError(
            f"{path} is a digest, which does not contain a version",
            place=source.place(item),
            fix="write the driver version of that image",
        )
    return SYSTEM.sub("", tag).removeprefix("v")


def precompiled_advice(tag: str, prefix: str) -> str:
    """What to write for the tag of a precompiled driver, which names a kernel; empty for other tags.

    Args:
        tag: of the image: ``580-5.15.0-1050-generic-ubuntu22.04``.
        prefix: of the keys: ``driver.``, or empty in an NVIDIADriver.
    """
    match = _OF_KERNEL.match(tag)
    if match is None:
        return ""
    return f'write {prefix}version: "{match[1]}" and {prefix}usePrecompiled: true'


def desired_driver(source: Source, spec: Item, prefix: str) -> DesiredState:
    """Return the driver state of a ``driver`` section (or of an NVIDIADriver's whole spec)."""
    driver = DesiredState("driver")
    version = spec.get("version")
    if version is not None and version.value:
        path = f"{prefix}version"
        text = software_version(source, version, path)
        if _BRANCH.fullmatch(text):
            driver.set("branch", int(text), source.place(version))
        elif _VERSION.fullmatch(text):
            driver.set("version", text, source.place(version))
        else:
            raise PolicyError(
                f"{path} is {quote(version.value)}, wanted a driver version such as 580.95.05 or a "
                "branch such as 580",
                place=source.place(version),
                fix=precompiled_advice(str(version.value), prefix) or None,
            )
    else:
        source.notes.append(
            f"{source.place(spec)}: {prefix}version is not set: the Operator would use its own default; "
            "gpustate keeps an installed driver, and installs the newest that supports the GPUs on a "
            "node without one"
        )
    module_type = spec.get("kernelModuleType")
    if module_type is not None:
        driver.set("module_type", module_type.value, source.place(module_type))
    elif source.before(_MODULE_TYPE):
        _module_type_before(source, spec, driver)
    precompiled = spec.get("usePrecompiled")
    if precompiled is not None:
        driver.set("precompiled", precompiled.value, source.place(precompiled))
    name = spec.get("kernelModuleConfig", "name")
    if name is not None and name.value:
        parameters = _module_parameters(source, name, f"{prefix}kernelModuleConfig.name")
        driver.set("parameters", parameters, source.place(name))
    driver.dependents.extend(_modules_beside(source, spec))
    driver.dependents.extend(desired_license(source, spec, prefix))
    driver.rollout = desired_rollout(source, spec, prefix)
    driver.drain = desired_drain(source, spec, prefix)
    return driver


def _module_type_before(source: Source, spec: Item, driver: DesiredState) -> None:
    """``useOpenKernelModules``, the setting before ``kernelModuleType``."""
    use_open = spec.get("useOpenKernelModules")
    branch = int(
        str(driver.parameters.get("version") or driver.parameters.get("branch") or 0).split(".")[0]
    )
    if use_open is not None and use_open.value:
        driver.set("module_type", "open", source.place(use_open))
    elif 0 < branch < _AUTO_BRANCH:
        driver.set(
            "module_type", "proprietary", source.place(use_open) if use_open is not None else None
        )


def _modules_beside(source: Source, spec: Item) -> Iterator[DesiredState]:
    """GPUDirect modules, built against the driver, each only where the file enables it."""
    rdma = spec.get("rdma", "enabled")
    if rdma is not None and rdma.value:
        yield DesiredState("peermem")
    for section in ("gds", "gdrcopy"):
        if not source.enabled(section, otherwise=False):
            source.note_unused(f"{section}.enabled is not true", f"{section}.")
            continue
        state = DesiredState(section)
        version = source.spec.get(section, "version")
        if version is not None and version.value:
            text = software_version(source, version, f"{section}.version")
            state.set("version", text, source.place(version))
        yield state


def _module_parameters(source: Source, name: Item, path: str) -> dict[str, int | str]:
    """Read the ConfigMap: a file per module, a line ``NAME=VALUE`` per parameter."""
    parameters: dict[str, int | str] = {}
    for key, entry in source.config_map(name, path).entries.items():
        module = MODULES.get(key)
        if module is None:
            raise PolicyError(
                f"the ConfigMap {name.value!r} has the key {quote(key)}, which no module reads",
                place=entry.place() if "\n" not in entry.text else entry.place(0),
                fix=f"wanted {', '.join(MODULES)}",
            )
        for number, line in enumerate(entry.text.split("\n"), 1):
            stripped = line.strip()
            if not stripped or stripped.startswith("#"):
                continue
            match = _PARAMETER.fullmatch(stripped)
            if match is None:
                raise PolicyError(
                    f"{key} has the line {quote(stripped)}, wanted NAME=VALUE",
                    place=entry.place(number),
                )
            value = match[2].strip()
            if len(value) > 1 and value[0] == value[-1] == '"':
                value = value[1:-1]  # the kernel strips such quotes too
            parameter = match[1] if module == "nvidia" else f"{module}.{match[1]}"
            parameters[parameter] = int(value) if _INTEGER.fullmatch(value) else value
    return parameters
