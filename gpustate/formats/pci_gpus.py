"""NVIDIA's functions on PCI: what their device ids tell of a GPU.

Sources:
    kernel sysfs-bus-pci ABI;
    NVIDIA/nvidia-installer: misc.c (device ids without GSP) and detect-self-hosted.h.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpustate.errors import ProbeError
from gpustate.formats import gpu_models

#: First and last PCI device id of each architecture, as far as a decision needs it.
_ARCHITECTURES = (
    (0x0FC0, 0x133F, "kepler"),
    (0x1340, 0x15EF, "maxwell"),
    (0x15F0, 0x15FF, "pascal"),
    (0x1617, 0x17FF, "maxwell"),
    (0x1B00, 0x1D7F, "pascal"),
    (0x1D80, 0x1DFF, "volta"),
    (0x1E00, 0x1FFF, "turing"),
    (0x2080, 0x20FF, "ampere"),
    (0x2180, 0x21FF, "turing"),
    (0x2200, 0x22FF, "ampere"),
    (0x2300, 0x237F, "hopper"),
    (0x2400, 0x25FF, "ampere"),
    (0x2600, 0x28FF, "ada"),
    (0x2900, 0x2FFF, "blackwell"),
    (0x3180, 0x31FF, "blackwell"),
)
ARCHITECTURES = tuple(dict.fromkeys(name for _, _, name in _ARCHITECTURES))
#: Parts that sit with their own CPU on one module; only the open kernel modules drive them.
_SELF_HOSTED = ((0x2340, 0x237F), (0x2940, 0x297F), (0x31C0, 0x31FF), (0x31A1, 0x31A1))
_MIG_CAPABLE = (
    "20b",
    *("20f1", "20f3", "20f5", "20f6"),
    *("2321", "2322", "2324", "2329", "233", "2342", "2348"),
    *("2901", "2941", "2bb", "2c31", "3182", "31c2"),
)


_ID = re.compile("0x[0-9A-Fa-f]{4,6}")


@dataclass(frozen=True, slots=True)
class PciGpu:
    """One NVIDIA function on PCI: a GPU or an NVSwitch."""

    address: str  # in the form of sysfs: 0000:1b:00.0
    device_id: str  # four lower-case hexadecimal digits
    class_id: str  # six hexadecimal digits: 030200 3D controller, 030000 display, 068000 bridge
    driver: str | None  # kernel driver bound to it

    @property
    def is_nvswitch(self) -> bool:
        """An NVSwitch of the first three NVLink-switch generations (later ones are not on PCI)."""
        return self.class_id.startswith("0680")

    @property
    def is_gpu(self) -> bool:
        """A display or 3D controller."""
        return self.class_id.startswith(("0300", "0302"))

    @property
    def architecture(self) -> str | None:
        """NVIDIA's name for the generation in lower case; ``None`` for an id not in the table."""
        number = int(self.device_id, 16)
        for first, last, name in _ARCHITECTURES:
            if first <= number <= last:
                return name
        return None

    @property
    def needs_open_modules(self) -> bool:
        """Only the open kernel modules drive it: self-hosted parts and everything from Blackwell on."""
        number = int(self.device_id, 16)
        self_hosted = any(first <= number <= last for first, last in _SELF_HOSTED)
        return self_hosted or self.architecture == "blackwell"

    @property
    def needs_proprietary_modules(self) -> bool:
        """No GSP, so the open kernel modules cannot drive it: everything before Turing."""
        return self.architecture in ("kepler", "maxwell", "pascal", "volta")

    @property
    def mig_capable(self) -> bool:
        """Can be divided into MIG devices (A100, A30, H100, H200, B200, RTX PRO 6000 families)."""
        return self.is_gpu and self.device_id.startswith(_MIG_CAPABLE)


def read(line: str) -> PciGpu:
    """Read one line of address, device id, class and driver, as sysfs has them; ``-``: no driver.

    Raises:
        ProbeError: the ids are none.
    """
    parts = line.split()
    if len(parts) != 4 or not (_ID.fullmatch(parts[1]) and _ID.fullmatch(parts[2])):
        raise ProbeError(f"sysfs answered {line[:80]!r} for a PCI device")
    address, device, class_id, driver = parts
    return PciGpu(
        address, device[2:].lower(), class_id[2:].lower(), None if driver == "-" else driver
    )


def meant_for(text: str) -> tuple[PciGpu, ...]:
    """The GPUs that an image is said to be for, such as ``8xH100``, as they would show on PCI.

    Raises:
        ValueError: naming the known models.
    """
    counts = gpu_models.parse_count(text) if text else {}
    if counts.pop("", 0):
        raise ValueError(f"{text!r} names no model; write 8xH100 or 4xA100,4xL40S")
    ids = [gpu_models.MODELS[model][0] for model, count in counts.items() for _ in range(count)]
    return tuple(
        PciGpu(f"image:{number}", device_id, "030200", None) for number, device_id in enumerate(ids)
    )
