"""Build the stub libraries and programs from the C sources in ``payload/lib``.

Each source is compiled once; driver versions differ only in a tiny object, so eight libraries cost eight links.
They are built on the controller and run on Debian 12 and 13; the sources avoid functions that have a new symbol
version in newer C libraries.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from gpustate.errors import LabError

PAYLOAD = Path(__file__).parent / "payload"

_FLAGS = (
    "-std=gnu11",
    "-O2",
    "-ftree-vectorize",
    "-fPIC",
    "-Wall",
    "-Wextra",
    "-fvisibility=hidden",
)


_NVML = (
    "nvml",
    "nvml_state",
    "nvml_health",
    "nvml_board",
    "nvml_topology",
    "nvml_events",
    "nvml_mig",
    "nvml_mig_device",
    "nvml_unsupported",
)


@dataclass(frozen=True, slots=True)
class Libraries:
    """The files of one driver version."""

    nvml: Path
    cuda: Path
    smi: Path


class Builder:
    """A compiler of the C sources, each at most once, into one directory.

    Raises:
        LabError: there is no C compiler, or it fails.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        #: Number of files that were compiled or linked.
        self.count = 0
        directory.mkdir(parents=True, exist_ok=True)
        if shutil.which("gcc") is None:
            raise LabError(
                "gcc is missing, which builds the simulated GPU libraries",
                fix="apt install gcc libc6-dev",
            )

    def libraries(self, version: str, cuda_version: int) -> Libraries:
        """Build libnvidia-ml, libcuda and nvidia-smi of a version."""
        folder = self._directory / version
        if folder.exists():
            return self._files(folder, version)
        folder.mkdir()
        mark = folder / "version.o"
        self._gcc(
            *_FLAGS,
            f'-DLAB_DRIVER_VERSION="{version}"',
            f"-DLAB_CUDA_VERSION={cuda_version}",
            "-c",
            str(PAYLOAD / "lib" / "version.c"),
            "-o",
            str(mark),
        )
        common = [*self._objects("lab", "mig", "mig_change", "mps"), str(mark)]
        found = self._files(folder, version)
        nvml, cuda, smi = found.nvml, found.cuda, found.smi
        shared = ("-shared", "-s")
        self._gcc(
            *shared,
            "-Wl,-soname,libnvidia-ml.so.1",
            "-o",
            str(nvml),
            *self._objects(*_NVML),
            *common,
        )
        self._gcc(
            *shared,
            "-Wl,-soname,libcuda.so.1",
            "-o",
            str(cuda),
            *self._objects("cuda", "cuda_work", "ptx_read", "ptx_run"),
            *common,
            "-lm",
            "-lpthread",
        )
        self._gcc(
            "-s",
            "-o",
            str(smi),
            *self._objects("smi", "smi_fields", "smi_mig", "smi_mig_list"),
            *common,
            "-ldl",
        )
        return found

    @staticmethod
    def _files(folder: Path, version: str) -> Libraries:
        return Libraries(
            folder / f"libnvidia-ml.so.{version}",
            folder / f"libcuda.so.{version}",
            folder / "nvidia-smi",
        )

    def stub_library(self, soname: str, file_name: str, symbol: str) -> Path:
        """Build a library with one symbol, for packages whose library is never called."""
        source = self._directory / f"{symbol}.c"
        target = self._directory / file_name
        source.write_text(
            f"/* Simulated. */\nint {symbol}(void) {{ return 0; }}\n", encoding="utf-8"
        )
        self._gcc("-shared", "-fPIC", "-s", f"-Wl,-soname,{soname}", "-o", str(target), str(source))
        return target

    def workload(self) -> Path:
        """Build the program that holds a CUDA context."""
        target = self._directory / "gpustate-lab-workload"
        # Not optimised: optimisation turns atoi into strtol, which has a new symbol version in newer C libraries.
        self._gcc("-O0", "-s", str(PAYLOAD / "lib" / "workload.c"), "-o", str(target), "-ldl")
        return target

    def mps_client(self) -> Path:
        """Build the program that sends commands to the MPS daemon."""
        target = self._directory / "nvidia-cuda-mps-control"
        if not target.exists():
            self._gcc("-O1", "-s", str(PAYLOAD / "lib" / "mps_client.c"), "-o", str(target))
        return target

    def module(self, source: Path, target: Path, *includes: Path) -> Path:
        """Build a relocatable kernel module for the packaged kernels."""
        flags = [f"-I{path}" for path in includes]
        self._gcc(
            "-O1", "-fno-asynchronous-unwind-tables", *flags, "-c", str(source), "-o", str(target)
        )
        return target

    def _objects(self, *names: str) -> list[str]:
        return [str(self._object(name)) for name in names]

    def _object(self, name: str) -> Path:
        target = self._directory / f"{name}.o"
        if not target.exists():
            self._gcc(*_FLAGS, "-c", str(PAYLOAD / "lib" / f"{name}.c"), "-o", str(target))
        return target

    def _gcc(self, *arguments: str) -> None:
        run(["gcc", *arguments])
        self.count += 1


def run(command: list[str], *, cwd: Path | None = None, stdin: bytes | None = None) -> bytes:
    """Run a tool on the controller and return its output.

    Raises:
        LabError: it is missing or fails; the message has its last lines.
    """
    try:
        done = subprocess.run(command, cwd=cwd, input=stdin, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise LabError(f"{command[0]} is not installed", fix=f"install {command[0]}") from error
    if done.returncode != 0:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise LabError(
            f"{command[0]} exited with {done.returncode}: {' | '.join(lines[-3:]) or 'no message'}",
            place=" ".join(command)[:200],
        )
    return done.stdout
