"""DCGM's fields: ids by name, and the GPU features that a field requires.

A field may have several names: DCGM renamed many, and the old names stay valid. Each release of dcgm-exporter
has its own set of names and does not start with any other. The exporter's own counters (``DCGM_EXP_...``)
have no id.

Sources:
    NVIDIA/DCGM 4.6.0 tree: dcgmlib/dcgm_fields.h; NVIDIA/dcgm-exporter (d5e5f51):
    go.mod of its releases with NVIDIA/go-dcgm, pkg/dcgm at those commits (names each knows); that of 4.8.3 is in
    its release notes (docs.nvidia.com/datacenter/dcgm, retrieved 2026-11-28): v1.4601.1;
    internal/pkg/counters/exporter_counters.go, etc/dcp-metrics-included.csv (profiling: data-centre
    GPUs of Volta or newer); nvml.h: nvmlDeviceGetTotalEccErrors (ECC mode enabled),
    nvmlDeviceGetRemappedRows (Ampere or newer), nvmlDeviceGetUtilizationRates and
    nvmlDeviceGetEncoderUtilization (not on MIG-enabled GPUs), nvmlDeviceGetGpuFabricInfo (Hopper
    or newer).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from gpustate.formats import dpkg

PREFIX = "DCGM_FI_"
#: The newest release of dcgm-exporter in the data; names that it lacks have the next one as ``since``.
NEWEST_RELEASE = "4.8.3"
#: The exporter's own counters; a line appears only once there is something to count.
EXPORTERS_OWN = (
    "DCGM_EXP_CLOCK_EVENTS_COUNT",
    "DCGM_EXP_GPU_HEALTH_STATUS",
    "DCGM_EXP_P2P_STATUS",
    "DCGM_EXP_XID_ERRORS_COUNT",
)
#: The exporter skips profiling fields that the GPUs do not support, with a warning in its log.
_PROFILING = range(1001, 1100)

PROFILING = "profiling"
ECC = "ecc"
ROW_REMAP = "row-remap"
PAGE_RETIREMENT = "page-retirement"
NVLINK = "nvlink"
NVLINK_TO_4 = "nvlink-to-4"
FABRIC = "fabric"
WHOLE_GPU = "whole-gpu"

_NEEDS: tuple[tuple[str, re.Pattern[str]], ...] = (
    (ECC, re.compile(r"DEV_ECC_(SBE|DBE)_\w+")),
    (ROW_REMAP, re.compile(r"DEV_(ROW_REMAP_\w+|(UN)?CORRECTABLE_REMAPPED_ROWS)")),
    (PAGE_RETIREMENT, re.compile(r"DEV_(PAGE_)?RETIRED_\w+")),
    (NVLINK_TO_4, re.compile(r"DEV_NVLINK_(CRC_FLIT|CRC_DATA|REPLAY|RECOVERY)_ERROR_\w+")),
    (NVLINK, re.compile(r"DEV_NVLINK_\w+")),
    (FABRIC, re.compile(r"DEV_FABRIC_\w+")),
    (WHOLE_GPU, re.compile(r"DEV_(GPU|MEM_COPY|ENC|DEC)_UTIL")),
)


@dataclass(frozen=True, slots=True)
class Field:
    """A field of DCGM, or one of the exporter's own counters.

    Args:
        name: as requested.
        id: DCGM's number; ``None`` for the exporter's own.
        feature: the GPU feature it requires; empty if none.
        since: first release of dcgm-exporter with the name; empty for 4.0.1 or older.
    """

    name: str
    id: int | None
    feature: str = ""
    since: str = ""


@cache
def _table() -> Mapping[str, tuple[int, str]]:
    """Id of every field by each of its names, and the first exporter with that name."""
    text = (resources.files("gpustate.formats.dcgm") / "fields.csv").read_text("utf-8")
    fields_by_name: dict[str, tuple[int, str]] = {}
    for line in text.splitlines():
        number, *names = line.split(",")
        if not line.startswith("#"):
            for name, _, since in (name_text.partition("@") for name_text in names):
                # dcgm-exporter 1.x has names without the prefix.
                fields_by_name[name if name.islower() else PREFIX + name] = (int(number), since)
    return fields_by_name


@cache
def ids() -> Mapping[str, int]:
    """Id of every field of DCGM by each of its names."""
    return {name: number for name, (number, _) in _table().items()}


def find(name: str) -> Field | None:
    """Return the field of a name, ``None`` if there is none."""
    if name in EXPORTERS_OWN:
        return Field(name, None)
    number, since = _table().get(name, (None, ""))
    return None if number is None else Field(name, number, _feature(number), since)


def is_known(field: Field, exporter: str) -> bool:
    """Whether a release of dcgm-exporter has the name of a field."""
    return not field.since or bool(dpkg.version_key(exporter) >= dpkg.version_key(field.since))


def known_as(field: Field, exporter: str) -> str:
    """Return the field's name in a release of dcgm-exporter; empty if there is none."""
    for name, (number, since) in _table().items():
        candidate = Field(name, number, since=since)
        if number == field.id and name.startswith(PREFIX) and is_known(candidate, exporter):
            return name
    return ""


@cache
def _names() -> Mapping[int, tuple[str, ...]]:
    by_id: dict[int, tuple[str, ...]] = {}
    for name, number in ids().items():
        by_id[number] = (*by_id.get(number, ()), name.removeprefix(PREFIX))
    return by_id


def like(name: str) -> str:
    """Return a similar name; empty if there is none."""
    if len(name) > 100:  # longer than any, and slow to compare
        return ""
    near = difflib.get_close_matches(name, [*ids(), *EXPORTERS_OWN], 1, 0.8)
    return near[0] if near else ""


def _feature(number: int) -> str:
    if number in _PROFILING:
        return PROFILING
    for feature, pattern in _NEEDS:  # a field has the same need under each of its names
        if any(pattern.fullmatch(name) for name in _names()[number]):
            return feature
    return ""
