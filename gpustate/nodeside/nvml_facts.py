"""Query NVML for this node's GPUs and print one JSON object.

    python3 -I -S nvml_facts.py PATH_OF_PYNVML [TIMEOUT_S [PATH_OF_NVML_HEALTH]]

A GPU that hangs takes its caller along, and a caller stuck in the driver cannot even be killed.
So a child asks, writes a line for each GPU into a pipe, and the parent leaves on time with what
has arrived. Exit code 69: this Python lacks a part of the standard library (Debian's
python3-minimal has no ctypes); the caller then falls back to nvidia-smi.

Only reads. Never loads the kernel module, as long as the caller checks that it is loaded: NVML
would ask nvidia-modprobe to.

Sources:
    nvidia-ml-py, pynvml.py: which function takes and returns what.
"""

from __future__ import annotations

import marshal
import os
import select
import sys
import time

UNUSABLE_PYTHON = 69
_SIGKILL = 9  # to import signal brings enum

try:
    import ctypes
except ImportError:
    sys.exit(UNUSABLE_PYTHON)
TYPE_CHECKING = False  # this runs at every look, and to import typing takes as long as to ask a GPU
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

ARCHITECTURES = {
    2: "kepler",
    3: "maxwell",
    4: "pascal",
    5: "volta",
    6: "turing",
    7: "ampere",
    8: "ada",
    9: "hopper",
    10: "blackwell",
    13: "rubin",
}
#: What the report calls NVML's attributes of a MIG device.
MIG_ATTRIBUTES = {
    "memory_mib": "memorySizeMB",
    "multiprocessors": "multiprocessorCount",
    "gi_slices": "gpuInstanceSliceCount",
    "ci_slices": "computeInstanceSliceCount",
    "copy_engines": "sharedCopyEngineCount",
    "decoders": "sharedDecoderCount",
    "encoders": "sharedEncoderCount",
    "jpeg_engines": "sharedJpegCount",
    "ofa_engines": "sharedOfaCount",
}
#: As nvidia-smi prints them.
COMPUTE_MODES = {0: "Default", 1: "Exclusive_Thread", 2: "Prohibited", 3: "Exclusive_Process"}
FABRIC_STATES = {1: "not started", 2: "in progress", 3: "completed"}
#: Errors of one function that say something of the whole GPU; others only leave one fact out.
GPU_ERRORS = (10, 14, 15, 16, 17, 999)


class _GpuError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _cuda_version(number: int) -> str:
    return str(number // 1000) + "." + str(number % 1000 // 10)


class _Asker:
    """One NVML session. ``tell`` gets every finding as soon as it is there."""

    def __init__(
        self, nvml: Any, emit: Callable[[dict[str, Any]], None], health: Any = None
    ) -> None:
        self.nvml = nvml
        self.emit = emit
        self.health = health  # the module beside this one; None: it is not there
        self.profiles: dict[Any, list[dict[str, Any]]] = {}  # of each model asked so far

    def try_(self, function: str, *arguments: object) -> Any:
        """Call NVML; ``None`` if this GPU or this library does not support it."""
        call = getattr(self.nvml, function, None)
        if call is None:
            return None
        try:
            return call(*arguments)
        except self.nvml.NVMLError as error:
            if error.value in GPU_ERRORS and arguments:
                raise _GpuError(error.value) from None
            return None

    def fabric(self, handle: Any) -> dict[str, Any]:
        nvml = self.nvml
        for function, struct in (
            ("nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v2_t"),
            ("nvmlDeviceGetGpuFabricInfo", "c_nvmlGpuFabricInfo_t"),
        ):
            make = getattr(nvml, struct, None)
            if make is None:
                continue
            info = make()
            if self.try_(function, handle, ctypes.byref(info)) is None:
                continue
            state = FABRIC_STATES.get(int(info.state), "")
            fabric: dict[str, Any] = {"fabric_state": state}
            if state != "completed":
                return fabric
            good = info.status == 0
            fabric["fabric_status"] = (
                "success" if good else _text(nvml.nvmlErrorString(info.status))
            )
            # The binding has it as char in one version of the struct: that would end at a zero.
            where = ctypes.addressof(info) + type(info).clusterUuid.offset
            cluster = ctypes.string_at(where, 16)
            if any(cluster):
                text = cluster.hex()
                cut = (text[:8], text[8:12], text[12:16], text[16:20], text[20:])
                fabric["fabric_cluster"] = "-".join(cut)
                fabric["fabric_clique"] = int(info.cliqueId)
            return fabric
        return {}

    def mig_attributes(self, mig: Any) -> dict[str, Any]:
        for function in ("nvmlDeviceGetAttributes", "nvmlDeviceGetAttributes_v2"):
            attributes = self.try_(function, mig)
            if attributes is not None:
                return {key: int(getattr(attributes, name)) for key, name in MIG_ATTRIBUTES.items()}
        return {}

    def mig_devices(self, handle: Any) -> list[dict[str, Any]]:
        devices = []
        for number in range(self.try_("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
            try:
                mig = self.nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
            except self.nvml.NVMLError:
                continue  # slots of instances that do not exist
            devices.append(
                {
                    "uuid": _text(self.try_("nvmlDeviceGetUUID", mig) or ""),
                    "gpu_instance": self.try_("nvmlDeviceGetGpuInstanceId", mig),
                    "compute_instance": self.try_("nvmlDeviceGetComputeInstanceId", mig),
                    "name": _text(self.try_("nvmlDeviceGetName", mig) or ""),
                    **self.mig_attributes(mig),
                }
            )
        return devices

    def listed(self, function: str, owner: Any, number: int, kind: Any, most: int) -> list[Any]:
        """Values that a function writes into an array."""
        array, count = (kind * most)(), ctypes.c_uint(most)
        answer = self.try_(function, owner, number, array, ctypes.byref(count))
        return [] if answer is None else list(array[: count.value])

    def mig_profiles(self, handle: Any) -> list[dict[str, Any]]:
        nvml, profiles = self.nvml, []
        for number in range(getattr(nvml, "NVML_GPU_INSTANCE_PROFILE_COUNT", 18)):
            info = self.try_("nvmlDeviceGetGpuInstanceProfileInfo", handle, number)
            if info is None or not info.name:
                continue
            places = self.listed(
                "nvmlDeviceGetGpuInstancePossiblePlacements",
                handle,
                info.id,
                nvml.c_nvmlGpuInstancePlacement_t,
                64,
            )
            if places:
                profiles.append(
                    {
                        "name": _text(info.name).replace("MIG ", ""),
                        "nvml_id": number,
                        "smi_id": info.id,
                        "slices": info.sliceCount,
                        "size": places[0].size,
                        "most": info.instanceCount,
                        "starts": [place.start for place in places],
                        "media": [
                            *(info.decoderCount, info.encoderCount),
                            *(info.jpegCount, info.ofaCount),
                        ],
                    }
                )
        return profiles

    def mig_compute(self, instance: Any, profile: dict[str, Any]) -> list[list[int]]:
        """Compute instances of one GPU instance; the first to be asked of a profile tells its sizes."""
        nvml, instances, kinds = self.nvml, [], []
        for number in range(getattr(nvml, "NVML_COMPUTE_INSTANCE_PROFILE_COUNT", 9)):
            if "compute" in profile and number not in [kind[1] for kind in profile["compute"]]:
                continue
            query = "nvmlGpuInstanceGetComputeInstanceProfileInfo"
            kind = self.try_(query, instance, number, 0, 1)
            if kind is None:
                continue
            query = "nvmlGpuInstanceGetComputeInstancePossiblePlacements"
            place = nvml.c_nvmlComputeInstancePlacement_t
            if "compute" not in profile:
                places = self.listed(query, instance, number, place, 64)
                kinds.append([kind.sliceCount, number, *(slot.start for slot in places)])
            query = "nvmlGpuInstanceGetComputeInstances"
            for part in self.listed(query, instance, number, nvml.c_nvmlComputeInstance_t, 64):
                info = self.try_("nvmlComputeInstanceGetInfo", part)
                if info is not None:
                    instances.append([info.id, kind.sliceCount, info.placement.start])
        profile.setdefault("compute", kinds)
        return sorted(instances)

    def mig_layout(self, handle: Any, gpu: dict[str, Any], model: Any) -> None:
        """Instances with their placements, and once for each model the possible profiles."""
        model = (model, gpu["mig_current"])
        if model not in self.profiles:
            self.profiles[model] = gpu["mig_profiles"] = self.mig_profiles(handle)
        instances: list[dict[str, Any]] = []
        for profile in self.profiles[model] if gpu["mig_current"] else ():
            kind = self.nvml.c_nvmlGpuInstance_t
            for instance in self.listed(
                "nvmlDeviceGetGpuInstances", handle, profile["smi_id"], kind, 64
            ):
                info = self.try_("nvmlGpuInstanceGetInfo", instance)
                if info is not None:
                    place = {
                        "id": info.id,
                        "profile": profile["name"],
                        "start": info.placement.start,
                    }
                    instances.append({**place, "compute": self.mig_compute(instance, profile)})
        gpu["mig_instances"] = sorted(instances, key=lambda instance: int(instance["start"]))

    def describe(self, handle: Any, gpu: dict[str, Any]) -> None:
        """Fill in a GPU, identity first, so that it is known even if a later call fails."""
        pci = self.try_("nvmlDeviceGetPciInfo", handle)
        if pci is not None:
            gpu["pci"] = _text(pci.busId)
            gpu["device_id"] = format(pci.pciDeviceId >> 16, "04x")
            gpu["subsystem_id"] = format(pci.pciSubSystemId, "08x")
        for key, function in (
            ("uuid", "nvmlDeviceGetUUID"),
            ("minor", "nvmlDeviceGetMinorNumber"),
            ("name", "nvmlDeviceGetName"),
            ("serial", "nvmlDeviceGetSerial"),
        ):
            value = self.try_(function, handle)
            if value is not None:
                gpu[key] = value if key == "minor" else _text(value)
        memory = self.try_("nvmlDeviceGetMemoryInfo", handle)
        if memory is not None:
            gpu["memory_mib"] = memory.total >> 20
        gpu["architecture"] = ARCHITECTURES.get(
            self.try_("nvmlDeviceGetArchitecture", handle) or 0, ""
        )
        capability = self.try_("nvmlDeviceGetCudaComputeCapability", handle)
        if capability is not None:
            gpu["compute_capability"] = ".".join(str(number) for number in capability)
        persistence = self.try_("nvmlDeviceGetPersistenceMode", handle)
        gpu["persistence_mode"] = None if persistence is None else bool(persistence)
        mode = self.try_("nvmlDeviceGetComputeMode", handle)
        gpu["compute_mode"] = "" if mode is None else COMPUTE_MODES.get(int(mode), "")
        mig = self.try_("nvmlDeviceGetMigMode", handle)
        if mig is not None:
            gpu["mig_current"], gpu["mig_pending"] = bool(mig[0]), bool(mig[1])
            if gpu["mig_current"]:
                gpu["mig_devices"] = self.mig_devices(handle)
            self.mig_layout(handle, gpu, None if pci is None else pci.pciDeviceId)
        ecc = self.try_("nvmlDeviceGetEccMode", handle)
        gpu["ecc"] = None if ecc is None else bool(ecc[0])
        rows = self.try_("nvmlDeviceGetRemappedRows", handle)
        if rows is not None:
            gpu["remap_pending"], gpu["remap_failed"] = bool(rows[2]), bool(rows[3])
        gpu.update(self.fabric(handle))
        if self.health is not None:
            gpu["health"] = self.health.query(self.nvml, self.try_, handle)

    def confidential(self) -> dict[str, Any]:
        """The mode of confidential computing; NVML before 550 does not report protected PCIe."""
        state = getattr(self.nvml, "c_nvmlSystemConfComputeSettings_v1_t", lambda: None)()
        # The binding returns the error of this function, and raises those of others.
        query = "nvmlSystemGetConfComputeSettings"
        if state is None or self.try_(query, ctypes.byref(state)) != 0:
            state = self.try_("nvmlSystemGetConfComputeState")
        if state is None:
            return {}
        mode = "off"
        if getattr(state, "multiGpuMode", 0) == 1:
            mode = "ppcie"
        elif state.ccFeature:
            mode = "devtools" if state.devToolsMode else "on"
        ready = None if mode == "off" else self.try_("nvmlSystemGetConfComputeGpusReadyState")
        return {"confidential": mode, "confidential_ready": None if ready is None else bool(ready)}

    def run(self) -> None:
        cuda = self.try_("nvmlSystemGetCudaDriverVersion")
        self.emit(
            {
                "driver_version": _text(self.try_("nvmlSystemGetDriverVersion") or ""),
                "nvml_version": _text(self.try_("nvmlSystemGetNVMLVersion") or ""),
                "cuda_version": "" if not cuda else _cuda_version(cuda),
                **self.confidential(),
            }
        )
        for index in range(self.nvml.nvmlDeviceGetCount()):
            gpu: dict[str, Any] = {"index": index}
            self.emit({"asking": index})
            try:
                handle = self.nvml.nvmlDeviceGetHandleByIndex(index)
                self.describe(handle, gpu)
            except self.nvml.NVMLError as error:
                gpu["error"] = error.value
            except _GpuError as broken:
                gpu["error"] = broken.code
            self.emit({"gpu": gpu})


def query(pynvml_path: str, emit: Callable[[dict[str, Any]], None], health_path: str = "") -> None:
    """Query NVML in this process; ``health_path``: nvml_health.py, beside this file if not given."""
    for path in (health_path or __file__, pynvml_path):
        sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    import importlib

    _spare_imports()
    pynvml: Any = importlib.import_module("pynvml")
    if getattr(sys.modules["string"], "capwords", None) is _capwords:
        del sys.modules["string"]
    try:
        health: Any = importlib.import_module("nvml_health")
    except ImportError:
        health = None

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        emit({"error": error.value, "error_text": str(error)})
        return
    try:
        _Asker(pynvml, emit, health).run()
    except pynvml.NVMLError as error:
        emit({"error": error.value, "error_text": str(error)})
    # No nvmlShutdown: the process ends here, and a wedged GPU may hang in it.


def _capwords(text: str, between: str) -> str:
    return between.join(word.capitalize() for word in text.split(between))


def _spare_imports() -> None:
    """Defer the imports of ``ctypes.util``, whose function pynvml never calls, and of ``string``.

    They bring subprocess, shutil, three compressors and re with them, which takes a fourth of the time of a query.
    Of ``string`` it calls ``capwords`` alone, with a separator.
    """

    def find_library(name: str) -> str | None:
        import importlib

        sys.modules.pop("ctypes.util", None)
        return importlib.import_module("ctypes.util").find_library(name)  # type: ignore[no-any-return]

    placeholder = type(sys)("ctypes.util")
    placeholder.find_library = find_library  # type: ignore[attr-defined]
    sys.modules.setdefault("ctypes.util", placeholder)
    placeholder = type(sys)("string")
    placeholder.capwords = _capwords  # type: ignore[attr-defined]
    sys.modules.setdefault("string", placeholder)


def as_json(value: Any) -> str:
    """JSON of plain data. The module json imports re and enum, which takes as long as starting Python."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, dict):
        return (
            "{" + ", ".join([as_json(str(k)) + ": " + as_json(v) for k, v in value.items()]) + "}"
        )
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join([as_json(element) for element in value]) + "]"
    plain = [c if " " <= c <= "~" and c not in '"\\' else _escaped(c) for c in str(value)]
    return '"' + "".join(plain) + '"'


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(["\\u" + units[n : n + 2].hex() for n in range(0, len(units), 2)])


def _child(pynvml_path: str, pipe: int, health_path: str) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)  # or a stuck child would keep the caller's output open

    def emit(finding: dict[str, Any]) -> None:
        data = marshal.dumps(finding)
        os.write(pipe, len(data).to_bytes(4, "big") + data)

    try:
        query(pynvml_path, emit, health_path)
        emit({"done": True})
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent says it in one line
        emit({"error": 999, "error_text": type(error).__name__ + ": " + str(error)})
    os._exit(0)


def _damaged(pynvml_path: str) -> str:
    """Remove a binding that no longer has the content its folder is named for; it is sent again.

    Looked at after a failure only: hashing it would cost every probe more than all the rest.
    """
    import hashlib

    folder = os.path.basename(os.path.dirname(os.path.abspath(pynvml_path)))
    try:
        with open(pynvml_path, "rb") as file:
            digest = hashlib.sha256(file.read()).hexdigest()
        if len(folder) != 16 or digest.startswith(folder):
            return ""
        os.unlink(pynvml_path)
    except OSError:
        return ""
    return f"{pynvml_path} was damaged and is removed; run the command again"


def _collect(pipe: int, deadline: float) -> tuple[list[dict[str, Any]], str]:
    """Read findings until the child is ``done``, has ``ended`` without output, or is ``late``."""
    buffer = b""
    findings: list[dict[str, Any]] = []
    while True:
        remaining_s = deadline - time.monotonic()
        if remaining_s <= 0 or not select.select([pipe], [], [], remaining_s)[0]:
            return findings, "late"
        data = os.read(pipe, 65536)
        if not data:
            return findings, "ended"
        buffer += data
        while len(buffer) >= 4:
            end = 4 + int.from_bytes(buffer[:4], "big")
            if len(buffer) < end:
                break
            findings.append(marshal.loads(buffer[4:end]))
            buffer = buffer[end:]
        if findings and "done" in findings[-1]:
            return findings, "done"


def collect(pynvml_path: str, timeout_s: float = 20.0, health_path: str = "") -> dict[str, Any]:
    """Query NVML in a child process, for at most ``timeout_s`` seconds; never raises for a bad GPU."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _child(pynvml_path, writing, health_path)
    os.close(writing)
    findings, end = _collect(reading, time.monotonic() + timeout_s)
    os.close(reading)
    os.kill(pid, _SIGKILL)
    os.waitpid(pid, os.WNOHANG)  # never wait: a process stuck in the driver does not die
    report: dict[str, Any] = {"source": "nvml", "error": None, "error_text": "", "gpus": []}
    asking: int | None = None
    for finding in findings:
        if "gpu" in finding:
            report["gpus"].append(finding["gpu"])
            asking = None
        elif "asking" in finding:
            asking = finding["asking"]
        elif "done" not in finding:
            report.update(finding)
    if end != "done":
        report["error"] = 10 if end == "late" else 999
        text = f"NVML did not answer within {timeout_s:g} s" if end == "late" else "NVML crashed"
        if asking is not None:
            text += f" in a query of GPU {asking}"
            report["gpus"].append({"index": asking, "error": report["error"]})
        report["error_text"] = text
    if report["error"] == 999:
        report["error_text"] = _damaged(pynvml_path) or report["error_text"]
    return report


def main() -> None:
    timeout_s = float(sys.argv[2]) if len(sys.argv) > 2 else 20.0
    health_path = sys.argv[3] if len(sys.argv) > 3 else ""
    sys.stdout.write(as_json(collect(sys.argv[1], timeout_s, health_path)) + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
