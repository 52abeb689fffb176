#!/usr/lib/gpustate-lab/python -SB
"""Simulated dcgm-exporter: a counters file goes in, Prometheus' text format comes out, from the stub NVML.

Its counters file is read as Go reads CSV, by gpustate's own reader of that, which is held against Go's
answers. As the real one it does not start with a field that its release does not know or without the host
engine that it is given to use, leaves out what a GPU does not have, has no line for a GPU that is lost, and writes each line
once for every job that the mapping folder names. What the stub NVML does not have (clocks, energy,
profiling) is made up. A GPU that is divided with MIG is told of by its instances, those that were there when
the exporter started.

Sources:
    NVIDIA/dcgm-exporter (d5e5f51): internal/pkg/rendermetrics/render_metrics.go,
    internal/pkg/transformation/hpc.go, internal/pkg/deviceinfo (entities are read once); flags of its README.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import http.server
import importlib
import os
import re
import socket
import sys
from pathlib import Path
from typing import Any, NoReturn

sys.path.insert(0, "/usr/share/gpustate-lab-dcgm")
go_csv: Any = importlib.import_module("go_csv")

FIELDS = Path("/usr/share/gpustate-lab-dcgm/fields.csv")
OWN = {
    "DCGM_EXP_CLOCK_EVENTS_COUNT",
    "DCGM_EXP_XID_ERRORS_COUNT",
    "DCGM_EXP_GPU_HEALTH_STATUS",
    "DCGM_EXP_P2P_STATUS",
}
TYPES = ("gauge", "counter", "label", "histogram", "summary")


class Nvml:
    """The stub library: plain numbers, ``None`` for what it does not have."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libnvidia-ml.so.1")
        self.library.nvmlInit_v2()

    def count(self) -> int:
        found = ctypes.c_uint()
        return 0 if self.library.nvmlDeviceGetCount_v2(ctypes.byref(found)) else found.value

    def handle(self, index: int) -> ctypes.c_void_p | None:
        found = ctypes.c_void_p()
        code = self.library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(found))
        return None if code else found

    def text(self, function: str, handle: ctypes.c_void_p) -> str:
        buffer = ctypes.create_string_buffer(96)
        getattr(self.library, function)(handle, buffer, 96)
        return buffer.value.decode()

    def numbers(
        self, function: str, handle: ctypes.c_void_p, *before: int, count: int = 1
    ) -> list[int]:
        found = [ctypes.c_ulonglong() for _ in range(count)]
        code = getattr(self.library, function)(handle, *before, *map(ctypes.byref, found))
        return [] if code else [one.value for one in found]


class Gpu:
    def __init__(self, nvml: Nvml, index: int, handle: ctypes.c_void_p) -> None:
        self.nvml, self.index, self.handle = nvml, index, handle

    def labels(self) -> dict[str, str]:
        minor = self.nvml.numbers("nvmlDeviceGetMinorNumber", self.handle)
        info = ctypes.create_string_buffer(256)
        self.nvml.library.nvmlDeviceGetPciInfo_v3(self.handle, info)
        # The last field of the structure is the address with eight digits of domain.
        address = re.search(rb"[0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d", info.raw)
        return {
            "gpu": str(self.index),
            "UUID": self.nvml.text("nvmlDeviceGetUUID", self.handle),
            "pci_bus_id": address[0].decode() if address else "",
            "device": f"nvidia{minor[0] if minor else self.index}",
            "modelName": self.nvml.text("nvmlDeviceGetName", self.handle),
            "hostname": socket.gethostname(),
        }

    def instances(self) -> list[dict[str, str]]:
        """Labels of the instances with a MIG device; empty where the GPU is not divided."""
        ask, library = self.nvml.numbers, self.nvml.library
        found: dict[str, dict[str, str]] = {}
        for index in range((ask("nvmlDeviceGetMaxMigDeviceCount", self.handle) or [0])[0]):
            device = ctypes.c_void_p()
            if library.nvmlDeviceGetMigDeviceHandleByIndex(
                self.handle, index, ctypes.byref(device)
            ):
                continue
            number = str(ask("nvmlDeviceGetGpuInstanceId", device)[0])
            profile = self.nvml.text("nvmlDeviceGetName", device).rpartition(" MIG ")[2]
            found[number] = {"GPU_I_PROFILE": profile, "GPU_I_ID": number}
        return [*found.values()]

    def value(self, name: str) -> float | None:
        """The number of a field; ``None``: this GPU has none."""
        ask = self.nvml.numbers
        if name == "DCGM_FI_DEV_GPU_TEMP":
            return _first(ask("nvmlDeviceGetTemperature", self.handle, 0))
        if name == "DCGM_FI_DEV_POWER_USAGE":
            return (_first(ask("nvmlDeviceGetPowerUsage", self.handle)) or 0) / 1000
        if "REMAP" in name:
            rows = ask("nvmlDeviceGetRemappedRows", self.handle, count=4)
            place = ("DEV_CORRECTABLE", "DEV_UNCORRECTABLE", "PENDING", "FAILURE")
            return next((rows[n] for n, word in enumerate(place) if rows and word in name), None)
        if name in ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"):
            return _first(ask("nvmlDeviceGetTotalEccErrors", self.handle, int("DBE" in name), 0))
        if name == "DCGM_FI_DEV_FABRIC_MANAGER_STATUS":
            return self.fabric()
        if "RETIRED" in name:
            return None  # GPUs of Ampere and newer remap rows
        made_up = {
            "DCGM_FI_DEV_SM_CLOCK": 345,
            "DCGM_FI_DEV_MEM_CLOCK": 2619,
            "DCGM_FI_DEV_MEMORY_TEMP": 40,
        }
        return made_up.get(name, 0)

    def fabric(self) -> int | None:
        info = ctypes.create_string_buffer(64)
        if self.nvml.library.nvmlDeviceGetGpuFabricInfo(self.handle, info):
            return 0
        return info.raw[24]


def _first(numbers: list[int]) -> int | None:
    # The stub writes 32 bits into a place for 64 of zeroes, or 64.
    return numbers[0] if numbers else None


def read(path: str, release: str = "@VERSION@") -> list[tuple[str, str, str]]:
    known = known_fields(release)
    found: dict[int | str, tuple[str, str, str]] = {}
    wide = 0
    for record in go_csv.records(Path(path).read_bytes().decode("utf-8", "replace")):
        row = [column.strip(" ") for column in record.columns]
        wide = wide or len(row)
        problem = record.problem or ("wrong number of fields" if len(row) != wide else "")
        if problem:
            refuse(f"Could not read metrics file '{path}'; err: line {record.line}: {problem}")
        if len(row) != 3:
            refuse(f"malformed CSV record; failed to parse line {record.line}, expected 3 fields")
        name, kind, text = row
        if name not in known and name not in OWN:
            refuse(f"could not find DCGM field; err: unknown ExporterCounter field '{name}'")
        if name in known and kind not in TYPES:
            refuse(f"could not find Prometheus metric type '{kind}'")
        # The values of a field are given to the first line that asks for its id.
        found.setdefault(known.get(name, name), (name, kind, text))
    return [*found.values()]


@functools.cache
def known_fields(release: str) -> dict[str, int]:
    """Id of each field by the names that a release of the exporter knows."""
    known: dict[str, int] = {}
    for line in FIELDS.read_text().splitlines():
        if line.startswith("#"):
            continue
        number, *names = line.split(",")
        for name, _, since in (one.partition("@") for one in names):
            if not since or parts(release) >= parts(since):
                known[name if name.islower() else f"DCGM_FI_{name}"] = int(number)
    return known


def parts(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def refuse(why: str) -> NoReturn:
    print(f'level=ERROR msg="Failed to get counters" error="{why}"', flush=True)
    raise SystemExit(1)


def jobs(folder: str | None, gpu: int) -> list[str]:
    path = Path(folder, str(gpu)) if folder else None
    return path.read_text().split() if path and path.is_file() else []


Divided = dict[int, list[dict[str, str]]]


def gpus_of(nvml: Nvml) -> list[Gpu]:
    handles = [(index, nvml.handle(index)) for index in range(nvml.count())]
    return [Gpu(nvml, index, handle) for index, handle in handles if handle is not None]


def page(
    nvml: Nvml, counters: list[tuple[str, str, str]], folder: str | None, divided: Divided
) -> str:
    gpus = gpus_of(nvml)
    driver = ctypes.create_string_buffer(96)
    nvml.library.nvmlSystemGetDriverVersion(driver, 96)
    labels = {one.index: one.labels() for one in gpus}
    for name, kind, _ in counters:
        if kind == "label" and name == "DCGM_FI_DRIVER_VERSION":
            for one in labels.values():
                one[name] = driver.value.decode()
    lines: list[str] = []
    for name, kind, told in counters:
        if kind == "label" or name in OWN:
            continue
        lines += [f"# HELP {name} {told}", f"# TYPE {name} {kind}"]
        for gpu in gpus:
            value = gpu.value(name)
            if value is None:
                continue
            for part in divided.get(gpu.index) or [{}]:
                for job in jobs(folder, gpu.index) or [""]:
                    texts = {**labels[gpu.index], **part, **({"hpc_job": job} if job else {})}
                    inside = ",".join(f'{key}="{text}"' for key, text in texts.items())
                    lines.append(f"{name}{{{inside}}} {value:g}")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="dcgm-exporter")
    parser.add_argument("-f", "--collectors", default="/etc/dcgm-exporter/default-counters.csv")
    parser.add_argument("-a", "--address", default=":9400")
    parser.add_argument("-c", "--collect-interval", type=int, default=30000)
    parser.add_argument("-r", "--remote-hostengine-info")
    parser.add_argument("--hpc-job-mapping-dir")
    parser.add_argument("-v", "--version", action="version", version="@VERSION@ (simulated)")
    options = parser.parse_args()
    counters = read(options.collectors)
    if options.remote_hostengine_info:
        host, _, port = options.remote_hostengine_info.rpartition(":")
        try:
            socket.create_connection((host, int(port)), 5).close()
        except OSError as error:
            print(
                f'level=ERROR msg="Error connecting to nv-hostengine" error="{error}"', flush=True
            )
            return 1
    nvml = Nvml()
    divided = {one.index: one.instances() for one in gpus_of(nvml)}

    class Answering(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path == "/metrics"
            body = (
                page(nvml, counters, options.hpc_job_mapping_dir, divided)
                if found
                else "not found\n"
            )
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    host, _, port = options.address.rpartition(":")
    http.server.ThreadingHTTPServer((host, int(port)), Answering).serve_forever()
    return 0


if __name__ == "__main__":
    sys.stdout.flush()
    os.environ.setdefault("LC_ALL", "C")
    sys.exit(main())
