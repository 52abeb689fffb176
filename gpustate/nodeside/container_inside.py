"""Report the driver's files and devices in this container, and run the CUDA kernel on devices.

    python3 -I -S -B container_inside.py [--hold=TOKEN] TIMEOUT_S (all | UUID...)

Prints one line ``gpustate-container=`` with a JSON object: device nodes with the error number of opening them,
files that are mounted one by one, the GPUs and MIG devices that NVML lists, and a result of the kernel for each
requested device: with ``all``, every MIG device that NVML lists, or every GPU if there is none.
The kernel runs last, and adds its results to the line by printing it again: a kubelet may end this container before.
With ``--hold`` it then waits for SIGUSR1, at most 10 s, so that the node can read what systemd knows of this container.

Surprising: a device node that the device cgroup denies exists anyway; only opening it fails, with EPERM. Any
other error comes from the driver.

Standard library only, Python 3.9.

Sources:
    proc_pid_mountinfo(5); NVML API reference (nvmlDeviceGetCount_v2 to nvmlDeviceGetUUID,
    nvmlDeviceGetMaxMigDeviceCount, nvmlDeviceGetMigDeviceHandleByIndex).
"""

from __future__ import annotations

import ctypes
import glob
import json
import os
import re
import signal
import stat
import sys
from typing import Any

# In the image there is no installed gpustate: this file's own tree is it.
sys.path.insert(0, os.path.abspath(__file__).rpartition("/gpustate/")[0] or "/")

from gpustate.nodeside import cuda_validation

MARK = "gpustate-container="
_HOLD_S = 10
#: Files that runtimes themselves mount.
_BASE = ("/etc/", "/proc/", "/sys/", "/dev/", "/run/.containerenv", "/run/secrets", "/.dockerenv")
_OCTAL = re.compile(r"\\([0-7]{3})")


def devices() -> dict[str, int]:
    """NVIDIA's device nodes, and the error number of opening each; 0 if it opens."""
    errors: dict[str, int] = {}
    for path in sorted((*glob.glob("/dev/nvidia*"), *glob.glob("/dev/nvidia-caps/*"))):
        if not stat.S_ISCHR(os.stat(path).st_mode):
            continue
        try:
            # Programs only read nodes of MIG capabilities, which belong to root and have the mode 0444.
            mode = os.O_RDONLY if "/nvidia-caps/" in path else os.O_RDWR
            os.close(os.open(path, mode | os.O_CLOEXEC | os.O_NONBLOCK))
            errors[path] = 0
        except OSError as error:
            errors[path] = error.errno or -1
    return errors


def files() -> list[str]:
    """Regular files and sockets that are mounted one by one: those that were injected."""
    paths: list[str] = []
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as table:
        for line in table:
            path = _OCTAL.sub(lambda match: chr(int(match[1], 8)), line.split(" ")[4])
            if not path.startswith(_BASE) and not os.path.isdir(path):
                paths.append(path)
    return sorted(paths)


def nvml() -> dict[str, Any]:
    """UUIDs of the GPUs and MIG devices that NVML lists, or its error."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        return {"uuids": [], "mig": [], "error": str(error)}
    code = library.nvmlInit_v2()
    if code != 0:
        return {"uuids": [], "mig": [], "error": f"nvmlInit_v2: error {code}"}
    count = ctypes.c_uint()
    code = library.nvmlDeviceGetCount_v2(ctypes.byref(count))
    uuids: list[str] = []
    mig: list[str] = []
    for index in range(count.value if code == 0 else 0):
        handle = ctypes.c_void_p()
        code = library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
        if code == 0:
            uuids += _uuid(library, handle)
            mig += _mig_devices(library, handle)
    problem = "" if code == 0 else f"NVML cannot list all GPUs: error {code}"
    return {"uuids": uuids, "mig": mig, "error": problem}


def _uuid(library: ctypes.CDLL, handle: ctypes.c_void_p) -> list[str]:
    text = ctypes.create_string_buffer(96)
    good = library.nvmlDeviceGetUUID(handle, text, len(text)) == 0
    return [text.value.decode("ascii", "replace")] if good else []


def _mig_devices(library: ctypes.CDLL, gpu: ctypes.c_void_p) -> list[str]:
    """UUIDs of a GPU's MIG devices; none if the GPU or the driver does not support MIG."""
    most = ctypes.c_uint()
    try:
        code = library.nvmlDeviceGetMaxMigDeviceCount(gpu, ctypes.byref(most))
    except AttributeError:  # a driver before 450
        return []
    uuids: list[str] = []
    for number in range(most.value if code == 0 else 0):
        handle = ctypes.c_void_p()
        by_index = library.nvmlDeviceGetMigDeviceHandleByIndex
        if by_index(gpu, number, ctypes.byref(handle)) == 0:
            uuids += _uuid(library, handle)
    return uuids


def show(report: dict[str, Any]) -> None:
    """Print the report."""
    sys.stdout.write(f"\n{MARK}{json.dumps(report)}\n")
    sys.stdout.flush()


def main() -> int:
    """Entry point in the container."""
    listed = nvml()
    words = sys.argv[1:]
    held = words[0].startswith("--hold=")
    timeout_s, *uuids = words[held:]
    if uuids == ["all"]:
        uuids = listed["mig"] or listed["uuids"]
    report = {"devices": devices(), "files": files(), "nvml": listed, "cuda": []}
    if held:
        # The handler shows the node that this program waits for its signal: see container_scope.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        signal.signal(signal.SIGUSR1, lambda number, frame: None)
    show(report)
    if uuids:
        show({**report, "cuda": cuda_validation.validate(uuids, float(timeout_s))})
    if held:
        signal.sigtimedwait({signal.SIGUSR1}, _HOLD_S)
    return 0


if __name__ == "__main__":
    code = main()
    os._exit(code)  # a child stuck in the driver must not delay the exit
