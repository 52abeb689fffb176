"""Fragments of sh that observe a node for the checks of the validation, and their parser.

``KEY_SCRIPT`` is cheap and part of every probe; it shows whether the last validation is still valid.
``CHAIN_SCRIPT`` runs other programs and is used only by validate and explain. Both print
lines ``key=field|field...`` and only read.

This module also runs on the nodes themselves: standard library only, Python 3.9.

Sources:
    /proc/driver/nvidia/version: its first line names version and "Open Kernel Module";
    CDI specification 0.6 and later: ``devices[].name``, ``hostPath``, ``deviceNodes[].path``.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace

from gpustate import shell
from gpustate.diagnosis import chain_data as chain
from gpustate.formats import quarantine, xids
from gpustate.formats.nvml_report import NvmlFacts
from gpustate.probes import cri_status
from gpustate.probes.mig_capabilities import CAPS

KEY_SCRIPT = shell.load("chain_key", "gpustate.diagnosis") + quarantine.SCRIPT

#: Defines ``cdi_specs``, ``cdi_lines`` and ``cdi_paths``.
CDI_SPECS = shell.load("cdi_specs", "gpustate.probes")

#: GPUs as PCI, the module and /dev have them.
GPUS_SCRIPT = shell.load("chain_gpus", "gpustate.diagnosis")

#: The same, with the driver's modules, libraries and packages.
DRIVER_SCRIPT = GPUS_SCRIPT + shell.load("chain_driver", "gpustate.diagnosis")

#: ``L`` are the folders to look for libraries in, ``limit`` the seconds one program may take.
CHAIN_SCRIPT = (
    cri_status.FUNCTION
    + DRIVER_SCRIPT
    + CAPS
    + shell.load("chain_runtimes", "gpustate.diagnosis")
    + cri_status.BUNDLED_SAYS
    + cri_status.KUBELET
    + CDI_SPECS
    + shell.load("chain_cdi", "gpustate.diagnosis")
    + xids.SCRIPT
    + ":\n"
)

_VERSION = re.compile(r"\b(\d+\.\d+(?:\.\d+)*)\b")


def loaded_version(line: str) -> str:
    """Version in the first line of /proc/driver/nvidia/version; empty when there is none.

    The word before it differs between the open and the proprietary module.
    """
    match = _VERSION.search(line.partition("Kernel Module")[2])
    return match[1] if match else ""


def _upstream(version: str) -> str:
    """Without Debian's epoch and revision."""
    version = version.partition(":")[2] or version
    return version.rpartition("-")[0] or version


def _number(text: str, base: int = 10) -> int:
    try:
        return int(text, base)
    except ValueError:
        return -1


def pairs(text: str) -> list[tuple[str, str]]:
    """The lines ``key=value`` of a fragment's output, in order; others are left out."""
    rows: list[tuple[str, str]] = []
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals:
            rows.append((key, value))
    return rows


def known_gpus(record: str) -> tuple[tuple[str, str], ...]:
    """UUID and PCI address of the GPUs that a validation record knows; empty if it names none."""
    try:
        rows = json.loads(record)["known_gpus"]
        return tuple((str(uuid), str(address)) for uuid, address in rows)
    except (ValueError, TypeError, KeyError, RecursionError):
        return ()


def _files_digest(rows: list[tuple[str, str]]) -> str:
    """Digest of size, times and inode of the driver's libraries and modules; empty if there are none."""
    files = "\n".join(sorted(value for name, value in rows if name == "driver_file"))
    return hashlib.sha256(files.encode()).hexdigest()[:16] if files else ""


def is_whole(size: int, header: str) -> bool:
    """A library starts like ELF and is as long as its header says.

    The table of sections is the last thing in a file that a linker wrote: offset, size and number of its
    rows stand in the header (elf(5): e_shoff, e_shentsize, e_shnum).
    """
    try:
        head = bytes.fromhex(header)
    except ValueError:
        return True
    if len(head) < 64 or head[:4] != b"\x7fELF":
        return False
    if head[4:6] != b"\x02\x01":  # not of 64 bits, or not little-endian
        return True
    offset, rows = int.from_bytes(head[40:48], "little"), int.from_bytes(head[60:62], "little")
    return size >= offset + rows * int.from_bytes(head[58:60], "little")


class _Lines:
    """The fragment's lines by key, each split at its bars into a fixed number of fields."""

    def __init__(self, text: str) -> None:
        self.pairs = pairs(text)

    def all(self, key: str, fields: int) -> list[list[str]]:
        rows = [value.split("|", fields - 1) for name, value in self.pairs if name == key]
        return [row for row in rows if len(row) == fields]

    def values(self, key: str) -> list[str]:
        return [value for name, value in self.pairs if name == key]

    def first(self, key: str) -> str:
        return next(iter(self.values(key)), "")

    def program(self, key: str) -> chain.Program | None:
        rows = self.all(key, 3)
        return chain.Program(rows[0][0], _number(rows[0][1]), rows[0][2]) if rows else None

    def cdi(self) -> tuple[chain.CdiSpec, ...]:
        specs: list[tuple[str, dict[str, list[str]]]] = []
        for name, value in self.pairs:
            if name == "cdi":
                specs.append((value, {"device": [], "missing": [], "number": []}))
            elif specs and name in specs[-1][1]:
                specs[-1][1][name].append(value)
        return tuple(
            chain.CdiSpec(path, *(tuple(values) for values in rows.values()))
            for path, rows in specs
        )


def _containerd(lines: _Lines) -> chain.Containerd | None:
    rows = lines.all("containerd", 4)
    if not rows:
        return None
    path, active, status, error = rows[0]
    handlers = tuple(
        (name, binary, exists == "1") for name, binary, exists in lines.all("handler", 3)
    )
    return chain.Containerd(
        *(path, active == "1", _number(status), error, handlers),
        config=lines.first("containerd_config"),
        default=lines.first("containerd_default"),
        enabled="containerd_enabled" in dict(lines.pairs),
        disabled=_disabled(lines.first("containerd_disabled")),
        cri=_cri(lines),
    )


def _disabled(names: str) -> str:
    """The entry of containerd's ``disabled_plugins`` that switches CRI off."""
    entries = re.findall(
        r"""["'](cri|io\.containerd\.grpc\.v1\.cri|io\.containerd\.cri\.v1\.runtime)["']""", names
    )
    return str(entries[0]) if entries else ""


def _cri(lines: _Lines, prefix: str = "") -> cri_status.CriStatus | None:
    keys: dict[str, list[str]] = {"kubelet_cgroup": lines.values("kubelet_cgroup")}
    for key in ("cri_socket", "cri", "cri_false", "cri_handler"):
        keys[key] = lines.values(prefix + key)
    return cri_status.read(keys)


def _with_addresses(nvml: NvmlFacts, modules: tuple[chain.ModuleGpu, ...]) -> NvmlFacts:
    """GPUs that NVML can no longer describe have the addresses of the module's list that no other has."""
    named = {gpu.pci for gpu in nvml.gpus}
    addresses = sorted(gpu.address for gpu in modules if gpu.address not in named)
    unnamed = [gpu.index for gpu in nvml.gpus if not gpu.pci and not gpu.uuid]
    by_index = {
        index: addresses[at] for at, index in enumerate(unnamed) if len(addresses) == len(unnamed)
    }
    gpus = tuple(replace(gpu, pci=by_index.get(gpu.index, gpu.pci)) for gpu in nvml.gpus)
    return replace(nvml, gpus=gpus)


def parse(
    text: str, nvml: NvmlFacts, cuda: tuple[chain.CudaResult, ...] | None = None
) -> chain.ChainObservation:
    """Parse the output of ``KEY_SCRIPT`` followed by that of ``CHAIN_SCRIPT``."""
    lines = _Lines(text)
    torn = {name for name, size, head in lines.all("elf", 3) if not is_whole(_number(size), head)}
    libraries = {
        name: chain.Library(path, target, name not in torn)
        for name, path, target in lines.all("library", 3)
    }
    modules = tuple(
        chain.ModuleGpu(address, _number(minor), uuid)
        for address, minor, uuid in lines.all("gpu", 3)
    )
    nvml = _with_addresses(nvml, modules)
    return chain.ChainObservation(
        boot_id=lines.first("boot_id"),
        kernel=lines.first("kernel"),
        pci=tuple(chain.PciSeen(*row) for row in lines.all("pci", 4)),
        loaded=loaded_version(lines.first("version")),
        open_module="Open Kernel Module" in lines.first("version"),
        module_gpus=modules,
        on_disk=lines.first("on_disk"),
        nvml_library=libraries.get("libnvidia-ml.so.1"),
        cuda_library=libraries.get("libcuda.so.1"),
        packages=tuple(
            (name, _upstream(version))
            for name, version, status in lines.all("package", 3)
            if status[1:2] == "i"
        ),
        off_bus=tuple(lines.values("off_bus")),
        majors=tuple((name, _number(major)) for name, major in lines.all("major", 2)),
        nodes=tuple(
            (
                path,
                chain.DeviceNode(
                    kind == "character special file", _number(major, 16), _number(minor, 16), kind
                ),
            )
            for path, kind, major, minor in lines.all("node", 4)
        ),
        capabilities=tuple(
            (row[0], _number(row[1].rpartition(":")[2]), row[4])
            for row in (value.split(" ") for value in lines.values("cap"))
            if len(row) == 5
        ),
        driver_root=lines.first("driver_root"),
        odd=tuple((name, content) for name, content in lines.all("odd", 2)),
        nvml=nvml,
        ctk=lines.program("ctk"),
        runtime_binary=lines.program("runtime_binary"),
        containerd=_containerd(lines),
        crio=_cri(lines, "crio_"),
        bundled=_cri(lines, "bundled_"),
        other_runtimes=tuple(lines.values("other")),
        down=tuple(lines.values("down")),
        cycles=tuple(tuple(units.split()) for units in lines.values("cycle")),
        registered=dict(lines.all("served", 2)),
        kubelet=lines.first("kubelet") == "1",
        endpoint=lines.first("kubelet_endpoint"),
        cdi_kept=lines.first("cdi_kept") == "1",
        mode=lines.first("runtime_mode"),
        cdi=lines.cdi(),
        cuda=cuda,
        runtime_digest=lines.first("runtime_digest"),
        files_digest=_files_digest(lines.pairs),
        manager=lines.first("manager") == "1",
        nvlink_off=lines.first("nvlink_off") == "1",
        log=xids.parse(
            lines.values("xid"), {gpu.uuid: gpu.pci.rpartition(".")[0] for gpu in nvml.gpus}
        ),
        quarantine=quarantine.read(lines.first("quarantine"), max(0, _number(lines.first("now")))),
    )
