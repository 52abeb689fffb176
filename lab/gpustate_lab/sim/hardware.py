"""The hardware description of a simulated node, with its faults.

``/etc/gpustate-lab/hardware.json`` is the single source: the boot program builds the PCI tree from it, the stub
NVML and CUDA libraries return its values, and the DKMS build reads its fault from it. It is read on every use, so
a rewrite breaks or fixes a running node; faults of the boot (nouveau) need a reboot.

UUIDs and serial numbers are derived from the node name, so a rebuilt node has the same GPUs.

All of it is simulated.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpustate.errors import LabError
from gpustate_lab.sim import mig
from gpustate_lab.sim.models import GpuModel, board_of

FORMAT = "gpustate.lab-hardware/1"
HARDWARE_PATH = "etc/gpustate-lab/hardware.json"
MIG_PATH = "etc/gpustate-lab/mig.json"
INITRAMFS_MODULES_PATH = "etc/initramfs-tools/modules"

#: Supported Xids, for the kernel log and NVML events.
XIDS: dict[int, str] = {
    13: "graphics engine exception (application fault)",
    31: "GPU memory page fault (application fault)",
    43: "GPU stopped processing (reset channel)",
    45: "preemptive cleanup, due to previous errors",
    48: "double bit ECC error",
    74: "NVLink error",
    79: "the GPU has fallen off the bus, but NVML still answers for it",
    92: "many single bit ECC errors",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "GSP RPC timeout",
    120: "GSP error",
    140: "unrecovered ECC error",
}

#: Description of each fault; ``<...>`` is its argument.
FAULTS: dict[str, str] = {
    "nouveau": "nouveau loads and binds at boot unless modprobe.d blacklists it",
    "nouveau-stuck": "as nouveau, and in use by a console: rmmod fails until a reboot without it",
    "nouveau-initramfs": "the initramfs list names nouveau (rebuild the images after writing)",
    "dkms-build": "the DKMS build of nvidia ends with a compiler error, for every kernel",
    "dkms-build:<kernel>": "the same, for one kernel release",
    "no-reset:<index>": "the GPU cannot be reset, as one passed through to a virtual machine",
    "gpu-off-bus:<index>": "the GPU has fallen off the bus: NVML answers 15 for it, CUDA does not list it",
    "cuda-802": "cuInit answers 802, system not ready",
    "confidential-on": "confidential computing is on: GPUs of Hopper and newer",
    "confidential-devtools": "the same in the mode for developers, without protection",
    "confidential-ppcie": "protected PCIe: several GPUs in one confidential VM",
    "confidential-waiting": "the GPUs accept no work: cuInit answers 802 until their ready state is set",
    "fabric-stuck": "the fabric stays in progress though the fabric manager runs",
    "imex-waiting": "the IMEX daemon waits for nodes that had imported memory, and is not ready",
    "remap-pending:<index>": "a row remapping waits for a reset of the GPU",
    "remap-failure:<index>": "a row remapping has failed on the GPU",
    "reset-needed:<index>": "the driver requests a reset of the GPU (gpu_recovery_action)",
    "nvlink-down:<index>": "one NVLink of the GPU is down and recovers again and again",
    "pcie-width:<index>": "the PCIe link of the GPU came up with 8 of 16 lanes",
    "clocks-hot:<index>": "the GPU's clocks are low because it is hot",
    **{
        f"xid-{number}:<index>": f"Xid {number} of the GPU: {text}" for number, text in XIDS.items()
    },
    "rm-init-failed": "the nvidia module fails to initialise any GPU: No such device",
    "library-mismatch": "the driver's libraries and the loaded module have different versions",
    "containerd": "containerd does not start with NVIDIA's runtime in its configuration",
}

# Bus numbers of an HGX H100 board; the cards of a smaller node take the first ones.
_BUSES = (
    0x1B,
    0x43,
    0x52,
    0x61,
    0x9D,
    0xC3,
    0xD1,
    0xDF,
    0x20,
    0x28,
    0x30,
    0x38,
    0xA4,
    0xAC,
    0xB4,
    0xBC,
)
# The bridges that manage the switches of a B200 board, and an ordinary card of the same model.
_BRIDGE_FUNCTIONS = ("0000:05:00.0", "0000:05:00.1", "0000:05:00.2", "0000:05:00.3")
_CARD = "0000:18:00.0"
_CONNECTX7 = {"vendor": 0x15B3, "device_id": "1021", "subsystem_id": "0041", "pci_class": "020700"}
#: All nodes with a tray's GPUs are trays of one rack.
_RACK_CLIQUE = 32766
_SWITCH_BUSES = (0x05, 0x06, 0x07, 0x08, 0x09, 0x0A)
# Minor numbers follow the order in which the module probes, not PCI order: on DGX A100 they differ.
_A100_BOARD_MINORS = (2, 3, 0, 1, 6, 7, 4, 5)
_NAMESPACE = uuid.UUID("8c9e1f0a-6f0c-5d5c-9a53-4a1f6b8a7d11")
_KERNEL = re.compile(r"[0-9][0-9A-Za-z.+~_-]*")


def write(root: Path, node_name: str, gpus: list[GpuModel], faults: set[str]) -> Path:
    """Write the description below ``root`` (a node's file tree) and return the file.

    Raises:
        LabError: a fault is unknown or for a missing GPU, or the tree cannot be written.
    """
    for fault in sorted(faults):
        check_fault(fault, len(gpus))
    path = root / HARDWARE_PATH
    text = json.dumps(describe(node_name, gpus, faults), indent=2) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A reader on a running node must never see half a file.
        fresh = path.with_suffix(".new")
        fresh.write_text(text, encoding="utf-8")
        fresh.chmod(0o644)
        os.replace(fresh, path)
        _write_geometries(root, gpus)
        if "nouveau-initramfs" in faults:
            _name_nouveau(root / INITRAMFS_MODULES_PATH)
    except OSError as error:
        raise LabError(
            f"cannot write the hardware description: {error}", place=str(path)
        ) from error
    return path


def _write_geometries(root: Path, gpus: list[GpuModel]) -> None:
    """Write the MIG geometries into a separate file, which only MIG calls read."""
    path = root / MIG_PATH
    found = mig.geometries(gpus)
    if found or path.exists():
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(found, separators=(",", ":")) + "\n", encoding="utf-8")
        fresh.chmod(0o644)
        os.replace(fresh, path)


def describe(node_name: str, gpus: list[GpuModel], faults: set[str]) -> dict[str, Any]:
    """Return the description as data; the same node name gives the same UUIDs."""
    board = board_of(gpus)
    minors = list(range(len(gpus)))
    if board is not None and board.name == "hgx-a100" and len(gpus) == board.gpus:
        minors = list(_A100_BOARD_MINORS)
    # NVML numbers GPUs in PCI order, so the addresses are handed out in that order.
    buses = sorted(_BUSES[: len(gpus)])
    switches = range(board.nvswitches if board else 0)
    return {
        "format": FORMAT,
        "simulated": True,
        "node": node_name,
        "board": board.name if board else None,
        "gpus": [
            _gpu(node_name, index, gpu, buses[index], minors[index])
            for index, gpu in enumerate(gpus)
        ],
        "nvswitches": [
            {
                "pci_address": f"0000:{_SWITCH_BUSES[index]:02x}:00.0",
                "device_id": board.nvswitch_device_id if board else None,
                "subsystem_id": "0000",
                "pci_class": "068000",
            }
            for index in switches
        ],
        "bridges": _bridges(board.bridges if board else 0),
        "rack": _rack() if board and board.multi_node else None,
        "faults": sorted(faults),
    }


def _bridges(count: int) -> list[dict[str, Any]]:
    if not count:
        return []
    # Its vital product data is all that tells a bridge from a network card.
    bridges = [
        {**_CONNECTX7, "pci_address": address, "vpd": "SMDL=SW_MNG"}
        for address in _BRIDGE_FUNCTIONS[:count]
    ]
    return [*bridges, {**_CONNECTX7, "pci_address": _CARD, "vpd": "SMDL=MFDT"}]


def _rack() -> dict[str, Any]:
    return {"cluster_uuid": str(uuid.uuid5(_NAMESPACE, "rack")), "clique": _RACK_CLIQUE}


def check_fault(fault: str, gpu_count: int) -> None:
    """Raise for a fault that is not in ``FAULTS``, or has an invalid argument."""
    name, colon, argument = fault.partition(":")
    if not colon:
        if fault in FAULTS:
            return
        raise _unknown_fault(fault)
    if f"{name}:<index>" in FAULTS:
        if argument.isascii() and argument.isdigit() and int(argument) < gpu_count:
            return
        raise LabError(
            f"fault {fault!r}: no such GPU (the node has {gpu_count}, numbered from 0)",
            place="faults",
        )
    if f"{name}:<kernel>" in FAULTS and _KERNEL.fullmatch(argument):
        return
    raise _unknown_fault(fault)


def _unknown_fault(fault: str) -> LabError:
    """Return the error for an unknown fault, with the nearest one."""
    near = difflib.get_close_matches(fault, FAULTS, 1)
    hint = f"did you mean {near[0]!r}; " if near else ""
    return LabError(
        f"unknown fault {fault!r}",
        place="faults",
        fix=f"{hint}list all with: gpustate lab fault --list",
    )


def _gpu(node_name: str, index: int, model: GpuModel, bus: int, minor: int) -> dict[str, Any]:
    identity = uuid.uuid5(_NAMESPACE, f"{node_name}/{index}/{model.key}")
    return {
        "index": index,
        "pci_address": f"0000:{bus:02x}:00.0",
        "uuid": f"GPU-{identity}",
        "serial": f"16{identity.int % 10**11:011d}",
        "minor": minor,
        "numa_node": 0 if bus < 0x80 else 1,
        **{key: value for key, value in asdict(model).items() if key != "board"},
    }


def _name_nouveau(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    if "nouveau" not in lines:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([*lines, "nouveau"]) + "\n", encoding="utf-8")
