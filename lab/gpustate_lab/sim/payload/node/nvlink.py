"""Simulate the switches of a B200 board and the InfiniBand modules.

Each ConnectX function becomes an InfiniBand device when ``mlx5_ib`` is loaded. ``ib_umad`` creates device
nodes, through which a subnet manager talks to the switches. As on some real boards, the port of the first
bridge accepts no subnet manager.

Sources: bottlerocket-os/bottlerocket-core-kit and siderolabs/extensions issue 893: which files are read,
and that not every function is suitable.
"""

# On the node the imported modules are in this folder.
# mypy: disable-error-code="import-not-found,no-any-return"
from __future__ import annotations

from typing import Any

from labnode import SYS, hardware, make_node, relink, remove_nodes, remove_tree, write

UMAD_MAJOR = 231
SM_DISABLED = 1 << 10
CAPABILITIES = 0xA750E84A
FIRST_GUID = 0xCC40F3030027F62E


def devices() -> list[dict[str, Any]]:
    """Return the ConnectX functions, in the order of their InfiniBand devices."""
    return list(hardware().get("bridges", []))


def is_bridge(device: dict[str, Any]) -> bool:
    return "SW_MNG" in device.get("vpd", "")


def management_guid() -> str | None:
    """Return the GUID, as in sysfs, of the first port through which a subnet manager reaches the switches."""
    for number, device in enumerate(devices()):
        port = SYS / f"class/infiniband/mlx5_{number}/ports/1"
        if not is_bridge(device) or not port.is_dir():
            continue
        if not int((port / "cap_mask").read_text(), 16) & SM_DISABLED:
            return "0x" + "".join((port / "gids/0").read_text().strip().split(":")[4:])
    return None


def _load_ib(_entry: dict[str, Any]) -> None:
    for number, device in enumerate(devices()):
        place = SYS / f"class/infiniband/mlx5_{number}"
        place.mkdir(parents=True, exist_ok=True)
        relink(place / "device", f"/sys/bus/pci/devices/{device['pci_address']}")
        mask = CAPABILITIES | (SM_DISABLED if number == 0 else 0)
        guid = f"{FIRST_GUID + number:016x}"
        groups = ":".join(guid[at : at + 4] for at in range(0, 16, 4))
        write(place / "ports/1/cap_mask", f"0x{mask:08x}\n")
        write(place / "ports/1/gids/0", f"fe80:0000:0000:0000:{groups}\n")


def _unload_ib(_entry: dict[str, Any]) -> None:
    remove_tree(SYS / "class/infiniband")


def _load_umad(_entry: dict[str, Any]) -> None:
    for number in range(len(devices())):
        make_node(f"/dev/infiniband/umad{number}", UMAD_MAJOR, number, 0o600)


def _unload_umad(_entry: dict[str, Any]) -> None:
    remove_nodes("infiniband/umad*")


EFFECTS = {"mlx5_ib": (_load_ib, _unload_ib), "ib_umad": (_load_umad, _unload_umad)}


if __name__ == "__main__":
    print(management_guid() or "")
