"""Query the health of one GPU from NVML; :mod:`gpustate.nodeside.nvml_facts` loads this file.

It makes few calls, because every probe runs it; most of the time goes to the 18 NVLinks.

Sources:
    nvml.h: nvmlFieldValue_t, nvmlValueType_t, NVML_NVLINK_MAX_LINKS; nvidia-ml-py, pynvml.py.
"""

from __future__ import annotations

TYPE_CHECKING = False  # see nvml_facts
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

#: Names of field values in the report; several fields of one name are summed.
FIELDS = {
    "recovery_action": ("NVML_FI_DEV_GET_GPU_RECOVERY_ACTION",),
    "remapped_correctable": ("NVML_FI_DEV_REMAPPED_COR",),
    "remapped_uncorrectable": ("NVML_FI_DEV_REMAPPED_UNC",),
    "retired_pages": ("NVML_FI_DEV_RETIRED_SBE", "NVML_FI_DEV_RETIRED_DBE"),
    "retirement_pending": ("NVML_FI_DEV_RETIRED_PENDING",),
    "ecc_uncorrectable": ("NVML_FI_DEV_ECC_DBE_VOL_TOTAL",),
    "nvlink_replays": ("NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",),
    "nvlink_recoveries": ("NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",),
    "nvlink_crc_errors": ("NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",),
}
#: Member of the union that holds a field value, by its type.
MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
CALLS = {
    "pcie_generation": "nvmlDeviceGetCurrPcieLinkGeneration",
    "pcie_generation_most": "nvmlDeviceGetMaxPcieLinkGeneration",
    "pcie_width": "nvmlDeviceGetCurrPcieLinkWidth",
    "pcie_width_most": "nvmlDeviceGetMaxPcieLinkWidth",
}
MOST_LINKS = 18


def _values(nvml: Any, call: Callable[..., Any], handle: Any) -> dict[int, int]:
    """Values of the fields that this GPU supports, by number."""
    names = [name for group in FIELDS.values() for name in group]
    numbers = [getattr(nvml, name, None) for name in names]
    supported = [number for number in numbers if number is not None]
    values: dict[int, int] = {}
    for field in call("nvmlDeviceGetFieldValues", handle, supported) or ():
        if field.nvmlReturn == 0 and field.valueType < len(MEMBERS):
            values[field.fieldId] = int(getattr(field.value, MEMBERS[field.valueType]))
    return values


def _links(call: Callable[..., Any], handle: Any) -> tuple[int, list[int]]:
    """Number of NVLinks, and those that are down."""
    down: list[int] = []
    for link in range(MOST_LINKS):
        active = call("nvmlDeviceGetNvLinkState", handle, link)
        if active is None:
            return link, down
        if not active:
            down.append(link)
    return MOST_LINKS, down


def query(nvml: Any, call: Callable[..., Any], handle: Any) -> dict[str, Any]:
    """Health of one GPU; unsupported values are omitted.

    Args:
        nvml: the module pynvml.
        call: calls a function by name; returns ``None`` if the GPU does not support it.
        handle: the GPU.
    """
    values = _values(nvml, call, handle)
    health: dict[str, Any] = {}
    for key, names in FIELDS.items():
        numbers = [getattr(nvml, name, None) for name in names]
        if all(number in values for number in numbers):
            health[key] = sum(values[number] for number in numbers if number is not None)
    if "retirement_pending" in health:
        health["retirement_pending"] = bool(health["retirement_pending"])
    for key, function in CALLS.items():
        value = call(function, handle)
        if value is not None:
            health[key] = int(value)
    for name in ("Event", "Throttle"):  # older libraries only have the second
        reasons = call("nvmlDeviceGetCurrentClocks" + name + "Reasons", handle)
        if reasons is not None:
            health["clock_reasons"] = int(reasons)
            break
    count, down = _links(call, handle)
    if count:
        health["nvlinks"], health["nvlinks_down"] = count, down
    return health
