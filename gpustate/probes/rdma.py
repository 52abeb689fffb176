"""The network cards for RDMA of a node, and the RDMA stack that drives them.

Sources:
    sysfs: bus/pci (vendor 15b3 is NVIDIA's networking, formerly Mellanox), module/NAME/version.
    NVIDIA/open-gpu-kernel-modules, conftest.sh: where OFED and the kernel put what modules are built against.
    :mod:`gpustate.formats.rdma`.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpustate import shell
from gpustate.core.queries import Answer, Query
from gpustate.formats import keyed, rdma
from gpustate.probes.module_files import KO

# mlx_compat is the one module that OFED has and no kernel does.
_SCRIPT = KO + shell.fill(shell.load("rdma", "gpustate.probes"), SYMBOL=rdma.SYMBOL)

_CORE = ("mlx_compat", "mlx5_core", "ib_core")


@dataclass(frozen=True, slots=True)
class Rdma:
    """What carries RDMA on a node.

    Args:
        nics: PCI addresses of NVIDIA's network cards.
        ofed: version of the OFED that is installed, ``None`` for the kernel's own stack.
        loaded: version and checksum of each loaded core module, as ``mlx5_core 24.10-1.1.4|A0B1``.
        stale: core modules of which another build is loaded than lies on disk.
        symbol: checksum under which the installed OFED, or without one the kernel's own stack, gives what
            nvidia-peermem registers with.
    """

    nics: tuple[str, ...] = ()
    ofed: str | None = None
    loaded: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()
    symbol: str | None = None


@dataclass(frozen=True, slots=True)
class RdmaQuery(Query[Rdma]):
    """Everything :class:`Rdma` holds, in one fragment."""

    def script(self) -> str:
        return _SCRIPT

    def parse(self, answer: Answer) -> Rdma:
        keys = keyed.lists(answer.text)
        loaded, disk = _by_name(keys.get("loaded", [])), _by_name(keys.get("disk", []))
        info = keyed.first(keys, "info")
        on_disk = "mlx_compat" in disk
        version = rdma.ofed_version(info) or disk.get("mlx5_core", "").partition("|")[0] or None
        ofed = (version or "unknown") if on_disk or info else None
        # An OFED that was removed may have left its symbols behind.
        symbols = keys.get("own" if ofed is None else "symbol", [])
        return Rdma(
            nics=tuple(sorted(keys.get("nic", []))),
            ofed=ofed,
            loaded=tuple(f"{name} {loaded[name]}" for name in _CORE if name in loaded),
            stale=tuple(name for name in _CORE if _differs(loaded, disk, name)),
            symbol=rdma.checksum("\n".join(symbols)),
        )

    def placeholder(self) -> Rdma:
        return Rdma()


def _by_name(lines: list[str]) -> dict[str, str]:
    pairs = (line.partition(" ") for line in lines)
    return {name: values.strip() for name, _, values in pairs}


def _differs(loaded: dict[str, str], disk: dict[str, str], name: str) -> bool:
    """Another build is loaded than the one on disk; what is not known does not differ."""
    if name not in disk:
        return False
    if name not in loaded:
        # The cards are driven by the kernel's own modules although OFED is installed.
        return name == "mlx_compat" and "mlx5_core" in loaded
    pairs = zip(loaded[name].split("|"), disk[name].split("|"), strict=False)
    return any(a and b and a != b for a, b in pairs)
