#!/usr/lib/gpustate-lab/python -SB
"""Simulated dmesg: the driver's lines in the kernel log for the faults of this node.

A container sees the kernel log of its host, which has no lines of simulated GPUs.

Sources:
    NVIDIA/open-gpu-kernel-modules, leptonai/gpud components/accelerator/nvidia/xid: form of the lines.
"""

# On the node the imported modules are in this folder.
# mypy: disable-error-code="import-not-found,no-any-return"
from __future__ import annotations

import sys

sys.path.insert(0, "/usr/lib/gpustate-lab")

import modules
from labnode import hardware

TEXTS = {
    13: "pid=4711, name=train, Graphics SM Warp Exception on (GPC 0, TPC 0, SM 0): Out Of Range Address",
    31: "pid=4711, name=train, channel 0x00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted",
    43: "pid=4711, name=train, channel 0x00000008",
    45: "pid=4711, name=train, channel 0x00000008",
    48: "pid='<unknown>', name=<unknown>, DBE (double bit error) ECC Error",
    63: "pid='<unknown>', name=<unknown>, Row Remapper: New row marked for remapping, reset gpu to activate.",
    64: "pid='<unknown>', name=<unknown>, Row Remapper: failed to remap row",
    74: "pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 3",
    79: "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    92: "pid='<unknown>', name=<unknown>, High single-bit ECC error rate",
    94: "pid='<unknown>', name=<unknown>, Contained: SM (0x1). RST: No, D-RST: No",
    95: "pid='<unknown>', name=<unknown>, Uncontained: Unknown, RST: Yes, D-RST: No",
    119: "pid=812, name=nvidia-persiste, Timeout after 6s of waiting for RPC response from GPU0 GSP!",
    120: "pid=812, name=nvidia-persiste, GSP task exception: load access page fault",
    140: "pid='<unknown>', name=<unknown>, An uncorrectable ECC error detected (possible GPU hang)",
}
OF_FAULT = {"remap-pending": 63, "remap-failure": 64, "gpu-off-bus": 79}


def main() -> int:
    node = hardware()
    loaded = modules.loaded().get("nvidia")
    if loaded is None:
        return 0
    version = loaded["version"]
    print(f"[   12.000000] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  {version}")
    at = 100.0
    for fault in node["faults"]:
        name, _, argument = fault.partition(":")
        number = OF_FAULT.get(name) or (int(name[4:]) if name.startswith("xid-") else 0)
        if number and argument.isdigit():
            address = node["gpus"][int(argument)]["pci_address"].rpartition(".")[0]
            print(f"[{at:12.6f}] NVRM: Xid (PCI:{address}): {number}, {TEXTS[number]}")
            at += 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
