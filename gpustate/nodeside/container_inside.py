"""Report what of the driver is in this container, and run the CUDA proof on devices.

    python3 -I -S -B container_inside.py TIMEOUT_S UUID...

Prints one line ``gpustate-container=`` with a JSON object: device nodes with the error number of opening them,
files that are mounted one by one, the GPUs that NVML lists, and a result of the kernel for each device asked for.

Surprising: a device node without permission in the device cgroup is there all the same; only opening it
says so, with EPERM. Any other error is the driver's.

Standard library only, Python 3.9.

Sources:
    proc_pid_mountinfo(5); NVML API reference (nvmlDeviceGetCount_v2 to nvmlDeviceGetUUID).
"""

from __future__ import annotations

import ctypes
import glob
import json
import os
import re
import stat
import sys
from typing import Any

# In the image there is no installed gpustate: this file's own tree is it.
sys.path.insert(0, os.path.abspath(__file__).rpartition("/gpustate/")[0] or "/")

from gpustate.nodeside import cuda_proof

MARK = "gpustate-container="
#: What runtimes themselves mount over files of a container.
_OWN = ("/etc/", "/proc/", "/sys/", "/dev/", "/run/.containerenv", "/run/secrets", "/.dockerenv")
_OCTAL = re.compile(r"\\([0-7]{3})")


def devices() -> dict[str, int]:
    """Device nodes of NVIDIA's, and the error number of opening each; 0 where it opens."""
    found: dict[str, int] = {}
    for path in sorted((*glob.glob("/dev/nvidia*"), *glob.glob("/dev/nvidia-caps/*"))):
        if not stat.S_ISCHR(os.stat(path).st_mode):
            continue
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
            found[path] = 0
        except OSError as error:
            found[path] = error.errno or -1
    return found


def files() -> list[str]:
    """Regular files and sockets that are mounted one by one: what was injected beside device nodes."""
    found: list[str] = []
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as table:
        for line in table:
            path = _OCTAL.sub(lambda match: chr(int(match[1], 8)), line.split(" ")[4])
            if not path.startswith(_OWN) and not os.path.isdir(path):
                found.append(path)
    return sorted(found)


def nvml() -> dict[str, Any]:
    """UUIDs of the GPUs that NVML lists; its error where it cannot."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        return {"uuids": [], "error": str(error)}
    code = library.nvmlInit_v2()
    if code != 0:
        return {"uuids": [], "error": f"nvmlInit_v2: error {code}"}
    count = ctypes.c_uint()
    code = library.nvmlDeviceGetCount_v2(ctypes.byref(count))
    uuids: list[str] = []
    for index in range(count.value if code == 0 else 0):
        handle, text = ctypes.c_void_p(), ctypes.create_string_buffer(96)
        code = library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
        if code == 0 and library.nvmlDeviceGetUUID(handle, text, len(text)) == 0:
            uuids.append(text.value.decode("ascii", "replace"))
    return {"uuids": uuids, "error": "" if code == 0 else f"NVML lists its GPUs with error {code}"}


def main() -> int:
    """Entry point in the container."""
    results = cuda_proof.prove(sys.argv[2:], float(sys.argv[1])) if sys.argv[2:] else []
    report = {"devices": devices(), "files": files(), "nvml": nvml(), "cuda": results}
    sys.stdout.write(f"\n{MARK}{json.dumps(report)}\n")
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    code = main()
    os._exit(code)  # a child stuck in the driver must not hold the end up
