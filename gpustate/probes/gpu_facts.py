"""The GPUs of a node as NVML sees them, as one ask.

Asked through nvidia-ml-py, run by the node's own python3, or through nvidia-smi where there is no
complete one. A node without a loaded driver is not asked at all: NVML would try to load the module,
and a probe only reads. Then the answer is NVML's number for what is missing, found with two
builtins of the shell.

Sources:
    nvidia-ml-py, ``_LoadNvmlLibrary``: it opens exactly ``libnvidia-ml.so.1``;
    nvml.h: 9 driver not loaded, 12 library not found.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpustate import shell
from gpustate.core.queries import Answer, Query, ShippedFile
from gpustate.errors import ProbeError
from gpustate.formats import nvml_report, nvsmi
from gpustate.formats.numbers import parse_uint
from gpustate.formats.nvml_report import Gpu, MigDevice, NvmlFacts
from gpustate.formats.words import printable

PYNVML = ShippedFile("pynvml.py", "pynvml")
NVML_FACTS = ShippedFile("nvml_facts.py", "gpustate.nodeside", "nvml_facts.py")
NVML_HEALTH = ShippedFile("nvml_health.py", "gpustate.nodeside", "nvml_health.py")

#: Where distributions and NVIDIA's installer put libraries; sh, one word each.
LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu /usr/lib/aarch64-linux-gnu /usr/lib64 /lib64 /usr/lib "
    "/usr/lib/x86_64-linux-gnu/nvidia/current /usr/lib/aarch64-linux-gnu/nvidia/current /usr/local/nvidia/lib64"
)

# What is imported is compiled once, what is run each time.
_IMPORT = "import os, sys; sys.path.insert(0, os.path.dirname(sys.argv.pop(1))); import nvml_facts; nvml_facts.main()"

_SCRIPT = shell.load("gpu_facts", "gpustate.probes")


@dataclass(frozen=True, slots=True)
class GpuFacts(Query[NvmlFacts]):
    """Everything of :class:`NvmlFacts`.

    Args:
        timeout_s: how long NVML may take, and 5 s for each GPU without persistence mode; a GPU that hangs is then named
            in the answer.
    """

    timeout_s: int = 20

    @property
    def ships(self) -> tuple[ShippedFile, ...]:
        """The binding, the program that uses it and its second half."""
        return (PYNVML, NVML_FACTS, NVML_HEALTH)

    def script(self) -> str:
        return shell.fill(
            _SCRIPT,
            FOLDERS=LIBRARY_FOLDERS,
            IMPORT=_IMPORT,
            FACTS=NVML_FACTS.path,
            PYNVML=PYNVML.path,
            HEALTH=NVML_HEALTH.path,
            TIMEOUT=str(self.timeout_s),
            SMI=nvsmi.SCRIPT,
        )

    def parse(self, answer: Answer) -> NvmlFacts:
        return parse(answer.text)

    def placeholder(self) -> NvmlFacts:
        return NvmlFacts(error=nvml_report.LIBRARY_NOT_FOUND)


def parse(text: str) -> NvmlFacts:
    """Read what the fragment printed; raise ``ProbeError`` when it makes no sense."""
    head: dict[str, str] = {}
    remainder = text
    while remainder and not remainder.startswith("smi-status="):
        line, _, remainder = remainder.partition("\n")
        key, equals, value = line.partition("=")
        if equals:
            head[key] = value
    if "loaded" not in head:
        raise ProbeError(f"the question about GPUs was answered with {text[:80]!r}")
    if "nvml" in head:
        try:
            facts = nvml_report.parse(head["nvml"])
        except ValueError as error:
            raise ProbeError(printable(str(error))) from None
    elif remainder:
        facts = nvsmi.parse(remainder)
    else:
        code = parse_uint(head.get("error", "")) or 999
        facts = NvmlFacts(error=code, error_text=nvml_report.error_name(code))
    return replace(facts, driver_loaded=bool(head["loaded"]), library=head.get("library", ""))


__all__ = ["NVML_FACTS", "PYNVML", "Gpu", "GpuFacts", "MigDevice", "NvmlFacts", "parse"]
