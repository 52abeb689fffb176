#!/usr/lib/gpustate-lab/python -SB
"""Simulate firmware and kernel of a node before services start.

It builds the PCI tree and the proc and sys roots from the hardware description, then loads the modules
that udev would load: nouveau with its fault (also from the initramfs, with the initramfs' own
blacklist), and nvidia if it is installed for the running kernel.
"""

# On the node the imported modules are in this folder.
# mypy: disable-error-code="import-not-found,no-any-return"
from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

import modules
from labnode import PCI, PREFIX, PROC, RUN, SYS, at, hardware, kernel, make_pipe, relink, write

NVIDIA = 0x10DE
VFIO_UNIT = "/etc/systemd/system/sysinit.target.wants/gpustate-vfio.service"
VFIO_PROGRAM = "/usr/local/sbin/gpustate-vfio"
GRUB_MENU = "/boot/grub/grub.cfg"
#: The rule that links device nodes below /dev/char, and what it runs.
LINK_RULES = [f"{folder}/udev/rules.d/71-nvidia-dev-char.rules" for folder in ("/etc", "/usr/lib")]
LINK = ("nvidia-ctk", "system", "create-dev-char-symlinks", "--create-all")
#: The rule that makes device nodes and loads nvidia-uvm; Ubuntu's packages have it under the second name.
UDEV_RULES = [f"/usr/lib/udev/rules.d/{number}-nvidia.rules" for number in (60, 71)]
#: Other PCI devices: a host bridge, so that not every device is a GPU.
BRIDGE = {"pci_address": "0000:00:00.0", "vendor": 0x8086, "device_id": "29c0", "subsystem_id": "1100", "pci_class": "060000"}  # fmt: skip


def main() -> int:
    if (RUN / "modules.json").exists():
        print("the hardware of this boot is there already")
        return 0
    data = hardware()
    for directory in ("holders", "state"):
        (RUN / directory).mkdir(parents=True, exist_ok=True)
    (RUN / "holders").chmod(0o1777)
    open_cgroups()
    cover(at("/sys/bus/pci"))
    cover(at("/proc/driver"))
    for device in [
        BRIDGE,
        *data["gpus"],
        *data["nvswitches"],
        *data.get("bridges", []),
        *data.get("nics", []),
    ]:
        add_device(device)
    for name in ("drivers", "slots"):
        (PCI / name).mkdir(exist_ok=True)
    # Processes of other namespaces are in containers; see lab.c.
    write(RUN / "pid-namespace", os.readlink("/proc/self/ns/pid") + "\n")
    if at("/proc/devices").exists():
        write(RUN / "real-devices", at("/proc/devices").read_text())
    mirror(at("/proc"), PROC, own={"modules", "devices", "cmdline"})
    mirror(at("/sys"), SYS, own={"module", "class", "kernel"})
    mirror(at("/sys/kernel"), SYS / "kernel", own={"iommu_groups"})
    start_kernel()
    mirror(at("/sys/class"), SYS / "class", own={"infiniband"})
    write(RUN / "modules.json", "{}")
    modules.refresh()
    # NVIDIA's programs read the major numbers here. The file is written in place from now on.
    if not PREFIX:
        subprocess.run(["mount", "--bind", str(PROC / "devices"), "/proc/devices"], check=True)
    bind_to_vfio()
    load_as_udev(data)
    load_as_modules_load()
    return 0


def start_kernel() -> None:
    """Write the kernel command line of GRUB's menu, and the IOMMU groups that it enables."""
    menu, real = at(GRUB_MENU), at("/proc/cmdline")
    entry = re.search(r"^\s*linux\s+\S+\s*(.*)$", menu.read_text(), re.M) if menu.exists() else None
    line = entry[1] if entry else real.read_text().strip() if real.exists() else ""
    write(PROC / "cmdline", line + "\n")
    groups = SYS / "kernel/iommu_groups"
    groups.mkdir(parents=True, exist_ok=True)
    if not {"intel_iommu=on", "amd_iommu=on"} & set(line.split()):
        return
    for number, device in enumerate(sorted((PCI / "devices").iterdir())):
        (groups / f"{number}/devices").mkdir(parents=True)
        relink(groups / f"{number}/devices/{device.name}", str(device))
        relink(device / "iommu_group", f"../../../../kernel/iommu_groups/{number}")


def bind_to_vfio() -> None:
    """Run a unit that is ordered before udev loads drivers; systemd starts it once more later."""
    make_pipe(PCI / "drivers_probe")
    if PREFIX:
        return
    here = os.path.dirname(os.path.realpath(__file__))
    subprocess.Popen(
        [sys.executable, "-SB", os.path.join(here, "pcidaemon.py")], start_new_session=True
    )
    if at(VFIO_UNIT).is_symlink():
        subprocess.run(["sh", VFIO_PROGRAM], check=False)


def cover(place: Path) -> None:
    """Cover a directory of the kernel with an empty file system; below a test root, empty it."""
    if PREFIX:
        place.mkdir(parents=True, exist_ok=True)
        return
    command = ["mount", "-t", "tmpfs", "-o", "mode=755,size=4m", "gpustate-lab", str(place)]
    subprocess.run(command, check=True)


def open_cgroups() -> None:
    """Make all cgroup v1 controllers writable for container runtimes; systemd-nspawn mounts them read-only."""
    if PREFIX:
        return
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, options, *_ = line.split()
        if kind == "cgroup" and "ro" in options.split(","):
            subprocess.run(["mount", "-o", "remount,rw,bind", place], check=True)


def mirror(real: Path, ours: Path, own: set[str]) -> None:
    """Link all entries of a kernel file system, except simulated ones and process directories."""
    ours.mkdir(parents=True, exist_ok=True)
    for entry in real.iterdir() if real.is_dir() else ():
        if entry.name not in own and not entry.name.isdigit():
            relink(ours / entry.name, str(entry))


def add_device(device: dict[str, Any]) -> None:
    """Create the sysfs files of a PCI device."""
    directory = PCI / "devices" / device["pci_address"]
    vendor = device.get("vendor", NVIDIA)
    identifier, subsystem = int(device["device_id"], 16), int(device["subsystem_id"], 16)
    kind = int(device["pci_class"], 16)
    alias = (
        f"pci:v{vendor:08X}d{identifier:08X}sv{vendor:08X}sd{subsystem:08X}"
        f"bc{kind >> 16:02X}sc{kind >> 8 & 255:02X}i{kind & 255:02X}"
    )
    files = {
        "vendor": f"0x{vendor:04x}",
        "device": f"0x{identifier:04x}",
        "subsystem_vendor": f"0x{vendor:04x}",
        "subsystem_device": f"0x{subsystem:04x}",
        "class": f"0x{kind:06x}",
        "revision": "0xa1",
        "numa_node": str(device.get("numa_node", 0)),
        "local_cpulist": "0-1",
        "irq": "16",
        "enable": "1",
        "modalias": alias,
        "driver_override": "(null)",
        "uevent": f"PCI_CLASS={kind:X}\nPCI_ID={vendor:04X}:{identifier:04X}\n"
        f"PCI_SLOT_NAME={device['pci_address']}\nMODALIAS={alias}",
        "current_link_width": "16",
        "max_link_width": "16",
        "resource": resources(device),
    }
    for name, text in files.items():
        write(directory / name, text + "\n")
    write(directory / "reset", "")
    if "vpd" in device:
        write(directory / "vpd", f"\x82\x13\0ConnectX-7\0{device['vpd']}\0".encode("latin-1"))
    write(directory / "config", config_space(vendor, identifier, subsystem, kind))


def resources(device: dict[str, Any]) -> str:
    bar_bytes = int(device.get("bar1_mib", 16)) << 20
    first = f"0x00000000a0000000 0x00000000a0ffffff 0x{0x40200:016x}"
    second = f"0x{1 << 44:016x} 0x{(1 << 44) + bar_bytes - 1:016x} 0x{0x14220C:016x}"
    return "\n".join([first, second, *["0x0000000000000000 " * 2 + "0x0000000000000000"] * 5])


def config_space(vendor: int, device: int, subsystem: int, kind: int) -> bytes:
    """Return the first 256 bytes of the config space, with the header that lspci reads."""
    space = bytearray(256)
    space[0:2] = vendor.to_bytes(2, "little")
    space[2:4] = device.to_bytes(2, "little")
    space[4:8] = (0x00100006).to_bytes(4, "little")
    space[8] = 0xA1
    space[9:12] = kind.to_bytes(3, "little")
    space[0x2C:0x2E] = vendor.to_bytes(2, "little")
    space[0x2E:0x30] = subsystem.to_bytes(2, "little")
    return bytes(space)


# --- loading, as the initramfs and udev do it ----------------------------------------------------


def load_as_udev(data: dict[str, Any]) -> None:
    if data.get("bridges"):
        modprobe("-b", "-q", "mlx5_ib")
    if not data["gpus"]:
        return
    faults = set(data["faults"])
    if "nouveau-initramfs" in faults and initramfs_loads_nouveau():
        modprobe("nouveau")
    if faults & {"nouveau", "nouveau-stuck"}:
        modprobe("-b", "nouveau")
    if (
        modprobe("-b", "-q", "nvidia") == 0
        and any(at(path).exists() for path in UDEV_RULES)
        and "nvidia" in modules.loaded()
    ):
        for name in ("nvidia-uvm", "nvidia-modeset"):
            modprobe("-b", "-q", name)
    if "nvidia" in modules.loaded() and any(at(path).exists() for path in LINK_RULES):
        subprocess.run([*LINK], check=False)


def load_as_modules_load() -> None:
    """Load the modules of modules-load.d; systemd does not do so in a container."""
    for folder in ("/usr/lib/modules-load.d", "/etc/modules-load.d"):
        for path in sorted(at(folder).glob("gpustate-*.conf")):
            for line in path.read_text().splitlines():
                if line.strip() and not line.startswith(("#", ";")):
                    modprobe("-b", line.strip())


def modprobe(*arguments: str) -> int:
    """Run the node's modprobe, with its output in the journal."""
    program = os.path.join(os.path.dirname(os.path.realpath(__file__)), "kmodtool.py")
    return subprocess.run(
        [sys.executable, "-SB", program, "modprobe", *arguments], check=False
    ).returncode


def initramfs_loads_nouveau() -> bool:
    """Whether the running kernel's initramfs contains nouveau without a blacklist line."""
    image = at(f"/boot/initrd.img-{kernel()}")
    if not image.exists():
        return False
    with tempfile.TemporaryDirectory(dir=RUN) as directory:
        done = subprocess.run(
            ["unmkinitramfs", str(image), directory], capture_output=True, check=False
        )
        if done.returncode != 0:
            return False
        tree = Path(directory)
        main_part = tree / "main" if (tree / "main").is_dir() else tree
        if not list(main_part.rglob("nouveau.ko*")):
            return False
        stop = re.compile(
            r"^\s*(blacklist\s+nouveau\b|install\s+nouveau\s+\S*/(false|true)\b)", re.MULTILINE
        )
        texts = [
            path.read_text() for path in main_part.rglob("modprobe.d/*.conf") if path.is_file()
        ]
        return not any(stop.search(text) for text in texts)


if __name__ == "__main__":
    sys.exit(main())
