"""The driver a document asks for: ClusterPolicy's ``driver`` section or an NVIDIADriver.

Sources:
    NVIDIA/gpu-operator v26.7: api/nvidia/v1/clusterpolicy_types.go, DriverSpec.
    NVIDIA/gpu-operator v24.9.2: controllers/object_controls.go, OPEN_KERNEL_MODULES_ENABLED.
    NVIDIA/gpu-driver-container: ubuntu24.04/nvidia-driver, how kernelModuleConfig is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpustate.errors import PolicyError
from gpustate.formats.words import shown
from gpustate.gpu_operator.asked import Source, Wanted
from gpustate.gpu_operator.documents import Item
from gpustate.gpu_operator.licensing import wanted_license
from gpustate.gpu_operator.upgrades import wanted_pace

#: An image tag is the version of the software and the system the image was made for.
SYSTEM = re.compile(
    r"-(ubuntu|ubi|rhel|rhcos|rocky|ol|centos|sles|sl-micro|debian|fedora|amzn|distroless).*"
)
_VERSION = re.compile(r"\d{3,4}(\.\d{1,4}){1,2}")
_BRANCH = re.compile(r"\d{3,4}")
_PARAMETER = re.compile(r"([A-Za-z_]\w*)=(.*)")
_INTEGER = re.compile(r"0|-?[1-9]\d{0,17}")
#: The release that brought ``kernelModuleType``, and the first branch whose driver containers choose
#: by the GPU when nobody says it.
_MODULE_TYPE, _AUTO_BRANCH = "v25.3.0", 570
#: Keys of the ConfigMap and the modules they are for.
MODULES = {
    "nvidia.conf": "nvidia",
    "nvidia-uvm.conf": "nvidia-uvm",
    "nvidia-modeset.conf": "nvidia-modeset",
    "nvidia-drm.conf": "nvidia-drm",
    "nvidia-peermem.conf": "nvidia-peermem",
}


def software_version(source: Source, item: Item, path: str) -> str:
    """Return the version in an image tag, without the system it was made for.

    Raises:
        PolicyError: a digest, which names an image and not a version.
    """
    tag = str(item.value).strip()  # the chart puts a number in quotes
    if tag.startswith("sha256:"):
        raise PolicyError(
            f"{path} is a digest, which names an image and says no version",
            place=source.place(item),
            fix="write the version it holds",
        )
    return SYSTEM.sub("", tag).removeprefix("v")


def wanted_driver(source: Source, spec: Item, prefix: str) -> Wanted:
    """Return the driver state of a ``driver`` section (or of an NVIDIADriver's whole spec)."""
    driver = Wanted("driver")
    version = spec.get("version")
    if version is not None and version.value:
        path = f"{prefix}version"
        text = software_version(source, version, path)
        if _BRANCH.fullmatch(text):
            driver.give("branch", int(text), source.place(version))
        elif _VERSION.fullmatch(text):
            driver.give("version", text, source.place(version))
        else:
            raise PolicyError(
                f"{path} is {shown(version.value)}, wanted a driver version such as 580.95.05 or a "
                "branch such as 580",
                place=source.place(version),
            )
    else:
        source.notes.append(
            f"{source.place(spec)}: {prefix}version is not given: the Operator would take the one "
            "of its own release; here what is installed stays, and a fresh node gets the newest "
            "that drives its GPUs"
        )
    module_type = spec.get("kernelModuleType")
    if module_type is not None:
        driver.give("module_type", module_type.value, source.place(module_type))
    elif source.before(_MODULE_TYPE):
        _module_type_before(source, spec, driver)
    precompiled = spec.get("usePrecompiled")
    if precompiled is not None:
        driver.give("precompiled", precompiled.value, source.place(precompiled))
    name = spec.get("kernelModuleConfig", "name")
    if name is not None and name.value:
        parameters = _module_parameters(source, name, f"{prefix}kernelModuleConfig.name")
        driver.give("parameters", parameters, source.place(name))
    driver.beside.extend(_modules_beside(source, spec))
    driver.beside.extend(wanted_license(source, spec, prefix))
    driver.pace = wanted_pace(source, spec, prefix)
    return driver


def _module_type_before(source: Source, spec: Item, driver: Wanted) -> None:
    """``useOpenKernelModules``: all that said it before there was ``kernelModuleType``."""
    wanted = spec.get("useOpenKernelModules")
    branch = int(
        str(driver.parameters.get("version") or driver.parameters.get("branch") or 0).split(".")[0]
    )
    if wanted is not None and wanted.value:
        driver.give("module_type", "open", source.place(wanted))
    elif 0 < branch < _AUTO_BRANCH:
        driver.give(
            "module_type", "proprietary", source.place(wanted) if wanted is not None else None
        )


def _modules_beside(source: Source, spec: Item) -> Iterator[Wanted]:
    """GPUDirect: modules that are built for the driver, each only where the file switches it on."""
    rdma = spec.get("rdma", "enabled")
    if rdma is not None and rdma.value:
        yield Wanted("peermem")
    for section in ("gds", "gdrcopy"):
        if not source.enabled(section, otherwise=False):
            source.not_used(f"{section}.enabled is not true", f"{section}.")
            continue
        state = Wanted(section)
        version = source.spec.get(section, "version")
        if version is not None and version.value:
            text = software_version(source, version, f"{section}.version")
            state.give("version", text, source.place(version))
        yield state


def _module_parameters(source: Source, name: Item, path: str) -> dict[str, int | str]:
    """Read the ConfigMap: one file a module, one ``NAME=VALUE`` a line."""
    found: dict[str, int | str] = {}
    for key, entry in source.config_map(name, path).entries.items():
        module = MODULES.get(key)
        if module is None:
            raise PolicyError(
                f"the ConfigMap {name.value!r} has the key {shown(key)}, which no module reads",
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
                    f"{key} has the line {shown(stripped)}, wanted NAME=VALUE",
                    place=entry.place(number),
                )
            value = match[2].strip()
            if len(value) > 1 and value[0] == value[-1] == '"':
                value = value[1:-1]  # the kernel takes such quotes off as well
            parameter = match[1] if module == "nvidia" else f"{module}.{match[1]}"
            found[parameter] = int(value) if _INTEGER.fullmatch(value) else value
    return found
