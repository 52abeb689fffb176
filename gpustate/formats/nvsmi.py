"""Parse nvidia-smi's output, for nodes whose Python cannot query NVML directly.

nvidia-smi does not report everything: it has no architecture and no minor number, and an old one refuses a query
with an unknown column (exit code 2). So there are two lists of columns, and the second has only columns of every
driver since 470.

Sources:
    nvidia-smi(1) and ``nvidia-smi --help-query-gpu`` of 580.65.06; exit codes as in its man page:
    they are NVML's numbers.
"""

from __future__ import annotations

import csv
import re
from dataclasses import replace

from gpustate import shell
from gpustate.formats.numbers import parse_uint
from gpustate.formats.nvml_report import (
    Gpu,
    MigDevice,
    MigInstance,
    NvmlFacts,
    error_name,
    sysfs_address,
)

OLD_COLUMNS = (
    *("index", "uuid", "pci.bus_id", "name", "serial", "memory.total", "driver_version"),
    *("persistence_mode", "mig.mode.current", "mig.mode.pending", "ecc.mode.current"),
)
COLUMNS = (
    *OLD_COLUMNS,
    *("compute_cap", "remapped_rows.pending", "remapped_rows.failure", "fabric.state"),
    "fabric.status",
)
#: Prints the exit code on a separate line, the table, then versions and MIG devices.
SCRIPT = shell.fill(
    shell.load("nvsmi", "gpustate.formats"),
    COLUMNS=",".join(COLUMNS),
    OLD_COLUMNS=",".join(OLD_COLUMNS),
)

# 610 says "KMD version" and "CUDA UMD version" for DRIVER and CUDA, and keeps the old key with a
# sentence as its value.
_VERSION_LINE = re.compile(
    r"^(NVML|DRIVER|KMD|CUDA)(?: UMD)? version\s*:\s*(\d[\d.]*)", re.IGNORECASE
)
_MIG_LINE = re.compile(r"^\s+(MIG \S+)\s+Device\s+\d+:\s+\(UUID: (MIG-[^)]+)\)")
#: Rows of ``mig -lgi`` and ``mig -lci``.
_INSTANCE_ROW = re.compile(r"\| +(\d+) +MIG (\S+) +\d+ +(\d+) +(\d+):\d+ +\|")
_COMPUTE_ROW = re.compile(r"\| +(\d+) +(\d+) +MIG (\S+) +\d+ +(\d+) +(\d+):(\d+) +\|")
_GPU_LINE = re.compile(r"^GPU (\d+): .*\(UUID: (GPU-[^)]+)\)")
# "... for GPU0000:CB:00.0: Unknown Error", "... for GPU1: 0000:34:00.0: Unknown Error"
_LOST = re.compile(
    r"Unable to determine the device handle for GPU ?(\d+(?=: ))?(?:: )?([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:\S+(?=:))?"
)


def explain_exit(code: int) -> str:
    """The meaning of nvidia-smi's exit code: NVML's numbers, and those of the shell around it."""
    if code == 124:
        return "timeout"
    if code == 255:
        return "nvidia-smi and NVML are incompatible"
    return error_name(code)


def _flag(text: str, yes: str = "enabled") -> bool | None:
    word = text.strip().lower()
    return (
        None if not word or "n/a" in word or "not supported" in word else word in (yes, "yes", "1")
    )


def _word(text: str) -> str:
    return "" if "n/a" in text.lower() or "not supported" in text.lower() else text.strip()


def _parse_row(columns: dict[str, str], number: int) -> Gpu:
    index, memory = columns["index"].strip(), columns["memory.total"].strip()
    return Gpu(
        index=number if parse_uint(index) is None else parse_uint(index) or 0,
        uuid=_word(columns["uuid"]),
        pci=sysfs_address(columns["pci.bus_id"]),
        name=_word(columns["name"]),
        serial=_word(columns["serial"]),
        memory_mib=parse_uint(memory),
        persistence_mode=_flag(columns["persistence_mode"]),
        mig_current=_flag(columns["mig.mode.current"]),
        mig_pending=_flag(columns["mig.mode.pending"]),
        ecc=_flag(columns["ecc.mode.current"]),
        compute_capability=_word(columns.get("compute_cap", "")),
        remap_pending=_flag(columns.get("remapped_rows.pending", "")),
        remap_failed=_flag(columns.get("remapped_rows.failure", "")),
        fabric_state=_word(columns.get("fabric.state", "")).lower(),
        fabric_status=_word(columns.get("fabric.status", "")).lower(),
    )


def _mig_devices(lines: list[str]) -> dict[str, list[MigDevice]]:
    devices: dict[str, list[MigDevice]] = {}
    gpu = ""
    for line in lines:
        if match := _GPU_LINE.match(line):
            gpu = match[2]
        elif match := _MIG_LINE.match(line):
            devices.setdefault(gpu, []).append(MigDevice(uuid=match[2], name=match[1]))
    return devices


def _mig_instances(lines: list[str]) -> dict[int, list[MigInstance]]:
    """GPU instances by the GPU's number, with their compute instances."""
    rows = [match for line in lines if (match := _INSTANCE_ROW.match(line))]
    parts = [match for line in lines if (match := _COMPUTE_ROW.match(line))]
    instances: dict[int, list[MigInstance]] = {}
    for row in rows:
        inside = sorted(
            (int(part[4]), int(part[6]), int(part[5]))
            for part in parts
            if (part[1], part[2]) == (row[1], row[3])
        )
        instance = MigInstance(int(row[3]), row[2], int(row[4]), tuple(inside))
        instances.setdefault(int(row[1]), []).append(instance)
    return instances


def _parse_table(table: str) -> tuple[list[Gpu], str]:
    """GPUs of the table, those that are lost too, and the driver's version."""
    gpus: list[Gpu] = []
    driver = ""
    for row in csv.reader(table.splitlines(), skipinitialspace=True):
        names = COLUMNS if len(row) == len(COLUMNS) else OLD_COLUMNS
        if len(row) == len(names):
            columns = {name: row[place] for place, name in enumerate(names)}
            driver = driver or columns["driver_version"].strip()
            gpus.append(_parse_row(columns, len(gpus)))
        elif match := _LOST.search(",".join(row)):
            printed_index = parse_uint(match[1] or "")
            index = len(gpus) if printed_index is None else printed_index
            gpus.append(Gpu(index, pci=sysfs_address(match[2] or ""), error=15))
    return gpus, driver


def parse(text: str) -> NvmlFacts:
    """Parse the output of :data:`SCRIPT`; never raises, invalid output becomes an error of the report."""
    head, _, output = text.partition("\n")
    status = head.removeprefix("smi-status=")
    exit_code = parse_uint(status)
    code = 999 if exit_code is None else exit_code
    table, _, more = output.partition("\nsmi-more\n")
    gpus, driver = _parse_table(table)
    lost = any(gpu.error for gpu in gpus)
    if code != 0 and not lost:
        return NvmlFacts(
            source="nvidia-smi",
            error=10 if code == 124 else code,
            error_text=f"nvidia-smi exited with {code} ({explain_exit(code)}): {table.strip()[-300:]}",
        )
    lines = more.splitlines()
    versions = {
        match[1].upper(): match[2] for line in lines if (match := _VERSION_LINE.match(line))
    }
    migs, parts = _mig_devices(lines), _mig_instances(lines)
    return NvmlFacts(
        source="nvidia-smi",
        driver_version=driver or versions.get("KMD") or versions.get("DRIVER", ""),
        nvml_version=versions.get("NVML", ""),
        cuda_version=versions.get("CUDA", ""),
        gpus=tuple(
            replace(
                gpu,
                mig_devices=tuple(migs.get(gpu.uuid, ())),
                mig_instances=tuple(sorted(parts.get(gpu.index, ()), key=lambda i: i.start)),
            )
            for gpu in gpus
        ),
    )
