"""Simulate the loaded kernel modules of a node, and the effects of loading each of them.

The list of loaded modules is ``/run/gpustate-lab/modules.json``; ``proc/modules`` and
``sys/module`` beside it are written from it after every change. Use counts are computed: modules
that depend on this one, plus the processes that hold a GPU.

Sources: node-components of the NVIDIA driver as open-gpu-kernel-modules 595 makes them: proc files
(kernel-open/nvidia/nv-procfs.c), parameters and defaults (kernel-open/nvidia/nv-reg.h).
"""

# On the node the imported modules are in this folder.
# mypy: disable-error-code="import-not-found,no-any-return"
from __future__ import annotations

import json
from typing import Any

import gpudirect
import nvlink
from labnode import (
    CAPS_MAJOR,
    IMEX_MAJOR,
    NVIDIA_MAJOR,
    PROC,
    RUN,
    SWITCH_MAJOR,
    SYS,
    UVM_MAJOR,
    at,
    bind,
    bound_to,
    hardware,
    has_fault,
    holders,
    kernel,
    make_node,
    modinfo,
    remove_nodes,
    remove_tree,
    unbind_all,
    write,
)

#: Defaults of the parameters that /proc/driver/nvidia/params lists.
PARAMETERS: dict[str, str] = {
    "ResmanDebugLevel": "4294967295",
    "RmLogonRC": "1",
    "ModifyDeviceFiles": "1",
    "DeviceFileUID": "0",
    "DeviceFileGID": "0",
    "DeviceFileMode": "438",
    "InitializeSystemMemoryAllocations": "1",
    "UsePageAttributeTable": "4294967295",
    "EnableMSI": "1",
    "EnablePCIeGen3": "0",
    "MemoryPoolSize": "0",
    "KMallocHeapMaxSize": "0",
    "VMallocHeapMaxSize": "0",
    "IgnoreMMIOCheck": "0",
    "EnableStreamMemOPs": "0",
    "EnableUserNUMAManagement": "1",
    "NvLinkDisable": "0",
    "RmProfilingAdminOnly": "1",
    "PreserveVideoMemoryAllocations": "0",
    "EnableS0ixPowerManagement": "0",
    "DynamicPowerManagement": "3",
    "EnableGpuFirmware": "18",
    "EnableGpuFirmwareLogs": "2",
    "OpenRmEnableUnsupportedGpus": "1",
    "EnableResizableBar": "0",
    "EnablePCIERelaxedOrderingMode": "0",
    "CreateImexChannel0": "0",
    "ImexChannelCount": "2048",
    "GrdmaPciTopoCheckOverride": "0",
    "CoherentGPUMemoryMode": '""',
    "RegistryDwords": '""',
    "RegistryDwordsPerDevice": '""',
    "RmMsg": '""',
    "GpuBlacklist": '""',
    "TemporaryFilePath": '""',
    "ExcludedGpus": '""',
}
#: Numbering of capabilities, the same as mig_capability of mig.c.
MIG_GPUS, MIG_INSTANCES, MIG_COMPUTE = 32, 15, 8
#: Parameters whose line in /proc/driver/nvidia/params has another name than the option.
RENAMED = {"RestrictProfilingToAdminUsers": "RmProfilingAdminOnly"}
#: Sizes of modules; dependencies of nouveau are left out.
SIZES = {"nvidia": 104165376, "nvidia_uvm": 4087808, "nvidia_modeset": 1859584, "nouveau": 3137536}
NO_SUCH_DEVICE = "No such device"


class LoadError(Exception):
    """The kernel refuses to load a module; the message is that of strerror."""


def loaded() -> dict[str, dict[str, Any]]:
    """Return the loaded modules by name, in the order they were loaded."""
    path = RUN / "modules.json"
    data: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
    return data


def users(name: str) -> list[str]:
    """Return the loaded modules that use this one, the latest first as lsmod shows them."""
    return [other for other, of in reversed(loaded().items()) if name in of["depends"]]


def use_count(name: str) -> int:
    count = len(users(name)) + int(loaded()[name].get("held", 0))
    if name == "nvidia":
        # The subnet manager has nothing open of the driver's.
        count += sum(kind != "nvlsm" for _, kind in holders())
    if name == "nvidia_uvm":
        count += sum(kind == "cuda" for _, kind in holders())
    return count


def insert(path: str, options: list[str]) -> None:
    """Load one module file.

    Raises:
        LoadError: the kernel would refuse it.
    """
    info = modinfo(path)
    if not info.get("vermagic"):
        raise LoadError("Exec format error")
    name = info["name"][0].replace("-", "_")
    modules = loaded()
    if name in modules:
        raise LoadError("File exists")
    if info["vermagic"][0].split()[0] != kernel():
        raise LoadError("Exec format error")
    depends = [one.replace("-", "_") for one in info.get("depends", [""])[0].split(",") if one]
    missing = [one for one in depends if one not in modules]
    if missing:
        raise LoadError("Unknown symbol in module, or unknown parameter (see dmesg)")
    entry: dict[str, Any] = {
        "path": path,
        "size": SIZES.get(name, 65536),
        "depends": depends,
        "version": info.get("version", [None])[0],
        "license": info.get("license", [""])[0],
        "srcversion": info.get("srcversion", [None])[0],
        "options": options,
    }
    try:
        EFFECTS.get(name, (_nothing, _nothing))[0](entry)
    except gpudirect.RefusedError as refused:
        raise LoadError(str(refused)) from refused
    modules[name] = entry
    write(RUN / "modules.json", json.dumps(modules))
    refresh()


def remove(name: str) -> None:
    """Unload one module that nothing uses."""
    modules = loaded()
    entry = modules.pop(name)
    EFFECTS.get(name, (_nothing, _nothing))[1](entry)
    write(RUN / "modules.json", json.dumps(modules))
    refresh()


def refresh() -> None:
    """Update proc/modules, proc/devices and sys/module."""
    modules = loaded()
    lines = []
    for number, (name, entry) in enumerate(reversed(modules.items())):
        by = users(name)
        taint = "(OE)" if "GPL" in entry["license"] else "(POE)"
        using = "".join(f"{one}," for one in by) or "-"
        address = 0xFFFFFFFFC0000000 + number * 0x100000
        lines.append(
            f"{name} {entry['size']} {use_count(name)} {using} Live {address:#018x}"
            + (f" {taint}" if name.startswith("nvidia") else "")
        )
    write(PROC / "modules", "".join(f"{line}\n" for line in lines))
    _write_sys(modules)
    _write_devices(modules)


def _write_sys(modules: dict[str, dict[str, Any]]) -> None:
    root = SYS / "module"
    root.mkdir(parents=True, exist_ok=True)
    for gone in root.iterdir():
        if gone.name not in modules:
            remove_tree(gone)
    for name, entry in modules.items():
        directory = root / name
        write(directory / "refcnt", f"{use_count(name)}\n")
        write(directory / "initstate", "live\n")
        for field in ("version", "srcversion"):
            if entry[field]:
                write(directory / field, f"{entry[field]}\n")
        remove_tree(directory / "holders")
        (directory / "holders").mkdir()
        for other in users(name):
            (directory / "holders" / other).symlink_to(f"../../{other}")


def _write_devices(modules: dict[str, dict[str, Any]]) -> None:
    real = RUN / "real-devices"  # boot.py covers the kernel's file with this one
    text = real.read_text() if real.exists() else "Character devices:\n\nBlock devices:\n"
    lines = []
    if "nvidia" in modules:
        lines += [f"{NVIDIA_MAJOR:3d} nvidia", f"{NVIDIA_MAJOR:3d} nvidiactl"]
        lines += [f"{IMEX_MAJOR} nvidia-caps-imex-channels", f"{CAPS_MAJOR} nvidia-caps"]
        if hardware()["nvswitches"]:
            lines.append(f"{SWITCH_MAJOR} nvidia-nvswitch")
    if "nvidia_uvm" in modules:
        lines.append(f"{UVM_MAJOR} nvidia-uvm")
    lines += gpudirect.devices(modules)
    characters, blank, blocks = text.partition("\n\n")
    write(PROC / "devices", "\n".join([characters, *lines]) + blank + blocks)


# --- what loading and unloading does -------------------------------------------------------------


def _nothing(_entry: dict[str, Any]) -> None:
    return


def _usable_gpus(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the GPUs that the module supports; Blackwell has no proprietary module."""
    is_open = "GPL" in entry["license"]
    return [
        gpu
        for gpu in hardware()["gpus"]
        if (is_open or gpu["architecture"] != "blackwell")
        and bound_to(gpu["pci_address"]) in (None, "nvidia")
    ]


def _load_nvidia(entry: dict[str, Any]) -> None:
    gpus = _usable_gpus(entry)
    if not gpus or has_fault("rm-init-failed"):
        raise LoadError(NO_SUCH_DEVICE)
    driver = at("/proc/driver")
    is_open = "GPL" in entry["license"]
    kind = "Open Kernel Module for x86_64" if is_open else "x86_64 Kernel Module"
    build = f"Release Build  ({'dvs-builder@U22-I3-AE18-09-6'})" if is_open else ""
    write(
        driver / "nvidia/version",
        f"NVRM version: NVIDIA UNIX {kind}  {entry['version']}  {build or 'Sun Jul 20 2025'}\n"
        "GCC version:  gcc (Debian)\n",
    )
    parameters = _parameters(entry["options"])
    write(driver / "nvidia/params", "".join(f"{k}: {v}\n" for k, v in parameters.items()))
    write(driver / "nvidia/registry", 'Binary: ""\n')
    write(driver / "nvidia/capabilities/mig/config", _capability(1))
    write(driver / "nvidia/capabilities/mig/monitor", _capability(2))
    write(driver / "nvidia-caps/mig-minors", _mig_minors())
    (driver / "nvidia/warnings").mkdir(parents=True, exist_ok=True)
    if hardware()["nvswitches"]:
        for switch in hardware()["nvswitches"]:
            bind(switch["pci_address"], "nvidia-nvswitch")
            write(driver / "nvidia-nvswitch/devices" / switch["pci_address"], "")
    for gpu in gpus:
        bind(gpu["pci_address"], "nvidia")
        # An Ampere board keeps its MIG mode; the driver shows it from the start.
        board = at("/var/lib/gpustate-lab/inforom") / f"mig-{gpu['pci_address']}"
        if board.exists() and board.read_text().startswith("1"):
            (driver / f"nvidia/capabilities/gpu{gpu['minor']}/mig").mkdir(
                parents=True, exist_ok=True
            )
        information = _information(gpu, entry["version"])
        write(driver / "nvidia/gpus" / gpu["pci_address"] / "information", information)
    _make_nodes(gpus, parameters)


def _make_nodes(gpus: list[dict[str, Any]], parameters: dict[str, str]) -> None:
    if parameters["ModifyDeviceFiles"] == "0":
        return
    mode = int(parameters["DeviceFileMode"])
    make_node("/dev/nvidiactl", NVIDIA_MAJOR, 255, mode)
    for gpu in gpus:
        make_node(f"/dev/nvidia{gpu['minor']}", NVIDIA_MAJOR, gpu["minor"], mode)
    for minor, access in ((1, 0o400), (2, 0o444)):
        make_node(f"/dev/nvidia-caps/nvidia-cap{minor}", CAPS_MAJOR, minor, access)
    if parameters["CreateImexChannel0"] == "1":
        make_node("/dev/nvidia-caps-imex-channels/channel0", IMEX_MAJOR, 0, mode)
    switches = hardware()["nvswitches"]
    for number in range(len(switches)):
        make_node(f"/dev/nvidia-nvswitch{number}", SWITCH_MAJOR, number, mode)
    if switches:
        make_node("/dev/nvidia-nvswitchctl", SWITCH_MAJOR, 255, mode)


def _mig_minors() -> str:
    """Return the minor number of every possible capability, whether or not its instance exists."""
    paths = ["config", "monitor"]
    for gpu in range(MIG_GPUS):
        for instance in range(MIG_INSTANCES):
            paths.append(f"gpu{gpu}/gi{instance}/access")
            paths += [f"gpu{gpu}/gi{instance}/ci{one}/access" for one in range(MIG_COMPUTE)]
    return "".join(f"{path} {number}\n" for number, path in enumerate(paths, 1))


def _capability(minor: int) -> str:
    return f"DeviceFileMinor: {minor}\nDeviceFileMode: 256\nDeviceFileModify: 1\n"


def _information(gpu: dict[str, Any], version: str) -> str:
    return (
        f"Model: \t\t {gpu['name']}\n"
        f"IRQ:   \t\t {64 + gpu['index']}\n"
        f"GPU UUID: \t {gpu['uuid']}\n"
        "Video BIOS: \t 96.00.99.00.01\n"
        "Bus Type: \t PCIe\n"
        "DMA Size: \t 52 bits\n"
        "DMA Mask: \t 0xfffffffffffff\n"
        f"Bus Location: \t {gpu['pci_address']}\n"
        f"Device Minor: \t {gpu['minor']}\n"
        f"GPU Firmware: \t {version}\n"
        "GPU Excluded:\t No\n"
    )


def _parameters(options: list[str]) -> dict[str, str]:
    parameters = dict(PARAMETERS)
    for option in options:
        name, _, value = option.partition("=")
        name = RENAMED.get(name.removeprefix("NVreg_"), name.removeprefix("NVreg_"))
        if name not in parameters:
            continue  # the kernel only logs an unknown parameter
        if parameters[name].startswith('"'):
            parameters[name] = '"' + value.strip('"') + '"'
        elif value[:1].isdigit():
            digits = value.lower()
            octal = digits.startswith("0") and digits.isdigit() and len(digits) > 1
            base = 16 if digits.startswith("0x") else 8 if octal else 10
            parameters[name] = str(int(digits, base))
    return parameters


def _unload_nvidia(_entry: dict[str, Any]) -> None:
    for driver in ("nvidia", "nvidia-nvswitch", "nvidia-caps"):
        unbind_all(driver)
        remove_tree(at("/proc/driver") / driver)
    # The kernel keeps the device nodes, but opening them fails with "no such device". They are removed here,
    # since they could not be distinguished from working ones otherwise.
    remove_nodes("nvidia[0-9]*", "nvidiactl", "nvidia-nvswitch*", "nvidia-caps*")
    # Modes that are kept by the driver, not by the board, return to their defaults.
    for pattern in ("persistence-*", "mig-*"):
        for path in (RUN / "state").glob(pattern):
            path.unlink()


def _load_uvm(_entry: dict[str, Any]) -> None:
    make_node("/dev/nvidia-uvm", UVM_MAJOR, 0)
    make_node("/dev/nvidia-uvm-tools", UVM_MAJOR, 1)


def _unload_uvm(_entry: dict[str, Any]) -> None:
    remove_nodes("nvidia-uvm", "nvidia-uvm-tools")


def _load_modeset(_entry: dict[str, Any]) -> None:
    make_node("/dev/nvidia-modeset", NVIDIA_MAJOR, 254)


def _unload_modeset(_entry: dict[str, Any]) -> None:
    remove_nodes("nvidia-modeset")


def _load_nouveau(entry: dict[str, Any]) -> None:
    for gpu in hardware()["gpus"]:
        if bound_to(gpu["pci_address"]) is None:
            bind(gpu["pci_address"], "nouveau")
    entry["held"] = int(has_fault("nouveau-stuck"))


def _unload_nouveau(_entry: dict[str, Any]) -> None:
    unbind_all("nouveau")


EFFECTS = {
    "nvidia": (_load_nvidia, _unload_nvidia),
    "nvidia_uvm": (_load_uvm, _unload_uvm),
    "nvidia_modeset": (_load_modeset, _unload_modeset),
    "nouveau": (_load_nouveau, _unload_nouveau),
    **nvlink.EFFECTS,
    **gpudirect.EFFECTS,
}
