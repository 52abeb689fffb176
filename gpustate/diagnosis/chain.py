"""The chain of checks: from GPUs on PCI to a CUDA kernel that ran on every one of them.

Each check depends on those before it, so the first that fails is the cause and the rest are symptoms.
Pure: takes an observation and returns checks, each with its evidence and its remedy.

This module also runs on the nodes themselves: standard library only, Python 3.9.

Sources:
    NVIDIA/gpu-operator, cmd/nvidia-validator: the order driver, toolkit, cuda;
    cuda.h, CUresult: the meaning of the error numbers;
    NVIDIA/nvidia-container-toolkit, internal/oci: "no runtime binary found from candidate list";
    kernel, drivers/pci: reads of a missing device return ones.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpustate.diagnosis import container_checks, health
from gpustate.diagnosis import remedies as remedies
from gpustate.diagnosis.chain_data import PASSTHROUGH, CdiSpec
from gpustate.diagnosis.chain_data import ChainObservation as ChainObservation
from gpustate.diagnosis.chain_data import ContainerResult as ContainerResult
from gpustate.diagnosis.chain_data import CudaResult as CudaResult
from gpustate.diagnosis.chain_data import Expected as Expected
from gpustate.diagnosis.chain_data import Key as Key
from gpustate.diagnosis.chain_data import cuda_devices as cuda_devices
from gpustate.diagnosis.chain_data import key as key
from gpustate.diagnosis.container_checks import some
from gpustate.formats.nvml_report import Gpu, NvmlFacts, error_name
from gpustate.probes.cri_status import BUNDLED, CriStatus

OK = "ok"
FAILED = "failed"
NOT_APPLICABLE = "not applicable"
#: Any handler that runs NVIDIA's runtime.
AUTO = "auto"

LINKS = (
    *("pci", "driver", "libraries", "fabric", "device-nodes", "toolkit", "runtime", "cdi"),
    *("container", "health", "cuda"),
)
#: Containers could get GPUs, and none was started.
NOT_VALIDATED = "containers are not validated"
NO_FABRIC = health.NO_FABRIC

#: nvidia-container-runtime's message if none of the runtimes it may call is installed.
NO_LOW_LEVEL = "no runtime binary found"
#: Evidence of a program that was slow, which says nothing of whether it works.
LATE = "did not end in time"
#: Evidence of a containerd that does not run.
STOPPED = "containerd is not running"
_PATH = ("/usr/bin/", "/usr/sbin/", "/usr/local/bin/", "/bin/")
#: Major number of /dev/nvidia0 and its like, fixed since the first drivers.
NVIDIA_MAJOR = 195


@dataclass(frozen=True)
class Check:
    """One check: its name, outcome, evidence and remedy.

    One that is ok and has a remedy is a note: it works now, and should be fixed all the same.
    """

    name: str
    outcome: str  # ok, failed, not applicable
    evidence: str
    remedy: str = ""

    @property
    def failed(self) -> bool:
        """The check failed."""
        return self.outcome == FAILED


def _ok(name: str, evidence: str) -> Check:
    return Check(name, OK, evidence)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def missing(observed: ChainObservation, expected: Expected) -> tuple[tuple[str, str], ...]:
    """UUID and address of GPUs that are gone, unless their absence is accepted."""
    accepted = expected.gpus is not None and expected.gpus <= len(observed.gpus)
    return () if accepted else observed.missing_gpus


def check_pci(observed: ChainObservation, expected: Expected) -> Check:
    """The GPUs that must be on PCI are there, and no other driver has them."""
    held = [device for device in observed.pci if device.is_gpu and device.driver in PASSTHROUGH]
    aside = f"; {_count(len(held), 'GPU')} bound to vfio for virtual machines" if held else ""
    if observed.ignored:
        names = ", ".join(gpu.address for gpu in observed.ignored)
        aside += f"; display card without the driver: {names}"
    if not observed.gpus:
        return Check("pci", FAILED, f"no NVIDIA GPU on PCI{aside}", remedies.NO_GPU)
    if lost_gpus := missing(observed, expected):
        names = some([f"{uuid} ({address})" for uuid, address in lost_gpus])
        return Check("pci", FAILED, f"{names} {remedies.MISSING_GPU}{aside}", remedies.GPU_COUNT)
    addresses = {gpu.address for gpu in observed.gpus}
    out = sum(
        entry.pci not in addresses for entry in observed.quarantine.active
    )  # pulled, or off the bus
    if (
        expected.gpus is not None
        and not len(observed.gpus) <= expected.gpus <= len(observed.gpus) + out
    ):
        names = ", ".join(gpu.address for gpu in observed.gpus)
        evidence = (
            f"{_count(len(observed.gpus), 'GPU')} on PCI ({names}), {expected.gpus} expected{aside}"
        )
        return Check("pci", FAILED, evidence, remedies.GPU_COUNT)
    foreign = [gpu for gpu in observed.gpus if gpu.driver not in ("", "nvidia")]
    if foreign:
        evidence = ", ".join(f"{gpu.address} is bound to {gpu.driver}" for gpu in foreign)
        return Check("pci", FAILED, evidence, remedies.FOREIGN_DRIVER)
    in_use = {
        gpu.address for gpu in observed.gpus if not observed.quarantine.holds("", gpu.address)
    }
    if lost := [address for address in observed.off_bus if address in in_use]:
        evidence = f"{some(lost)} returns only ones from its PCI configuration space"
        return Check("pci", FAILED, evidence, remedies.LOST)
    if has_switches(observed) and len(observed.gpus) not in (1, 2, 4, 8, 16):
        aside += f"; a board with NVSwitches has 8 GPUs, not {len(observed.gpus)}"
    return _ok("pci", f"{_count(len(observed.gpus), 'GPU')} on PCI, none bound to nouveau{aside}")


def _driver(observed: ChainObservation, expected: Expected) -> Check:
    if not observed.loaded:
        if observed.on_disk:
            evidence = f"nvidia {observed.on_disk} is installed for kernel {observed.kernel}, but not loaded"
            return Check("driver", FAILED, evidence, remedies.NOT_LOADED)
        return Check(
            "driver", FAILED, f"no nvidia module for kernel {observed.kernel}", remedies.NO_MODULE
        )
    versions = {"loaded": observed.loaded}
    if observed.on_disk:
        versions["module file"] = observed.on_disk
    if observed.nvml_library is not None and observed.nvml_library.version:
        versions["libnvidia-ml"] = observed.nvml_library.version
    if observed.cuda_library is not None and observed.cuda_library.version:
        versions["libcuda"] = observed.cuda_library.version
    # Records of packages count where the files that programs load do not say.
    if not {"libnvidia-ml", "libcuda"} & set(versions):
        versions.update(observed.packages)
    in_memory = {version for name, version in versions.items() if name != "module file"}
    if (
        len(versions) > 2
        and in_memory == {observed.loaded}
        and observed.on_disk not in ("", *in_memory)
    ):
        evidence = (
            f"the module file for kernel {observed.kernel} has version {observed.on_disk}, which the next boot loads; "
            f"module and libraries now: {observed.loaded}"
        )
        return Check("driver", OK, evidence, remedies.ONE_MODULE)
    if len(set(versions.values())) > 1:
        evidence = ", ".join(f"{name} {version}" for name, version in versions.items())
        on_disk = {version for name, version in versions.items() if name != "loaded"}
        remedy = remedies.RELOAD if len(on_disk) == 1 else remedies.ONE_SET
        return Check("driver", FAILED, evidence, remedy)
    flavour = "open" if observed.open_module else "proprietary"
    agree = ", ".join(name for name in versions if name != "loaded")
    return _ok(
        "driver",
        f"{observed.loaded} ({flavour}) loaded; same version: {agree or 'nothing else found'}",
    )


def _gpu_name(gpu: Gpu) -> str:
    return f"GPU {gpu.index}" + (f" ({gpu.pci})" if gpu.pci else "")


def _absent(observed: ChainObservation, name: str) -> str:
    """Why a program or a library cannot be used."""
    return dict(observed.odd).get(name, f"{name} is not installed")


def _well(nvml: NvmlFacts) -> int:
    return sum(gpu.error is None for gpu in nvml.gpus)


def _libraries(observed: ChainObservation, expected: Expected) -> Check:
    nvml = observed.nvml
    if observed.driver_root and nvml.error == 12:
        return _in_container("libraries", observed)
    torn = [
        library
        for library in (observed.nvml_library, observed.cuda_library)
        if library and not library.complete
    ]
    if torn:
        evidence = f"{torn[0].target} is truncated or not a library"
        return Check("libraries", FAILED, evidence, remedies.TORN)
    broken = [gpu for gpu in nvml.gpus if gpu.error is not None and not observed.held(gpu)]
    if broken:
        evidence = ", ".join(
            f"{_gpu_name(gpu)}: {error_name(gpu.error or 0)} (NVML {gpu.error})" for gpu in broken
        )
        unanswered = sorted({gpu.address for gpu in observed.gpus} - {gpu.pci for gpu in nvml.gpus})
        more = f"; {nvml.error_text}" if nvml.error_text else ""
        more += f"; no answer: {some(unanswered)}" if unanswered else ""
        remedy = remedies.nvml(broken[0].error or 999).replace("INDEX", str(broken[0].index))
        return Check("libraries", FAILED, evidence + more, remedy)
    if nvml.error is not None:
        evidence = f"NVML {nvml.error}: {nvml.error_text or error_name(nvml.error)}"
        if nvml.error == 12 and observed.nvml_library is None:
            evidence += f"; {_absent(observed, 'libnvidia-ml.so.1')}"
        return Check("libraries", FAILED, evidence, remedies.nvml(nvml.error))
    if observed.cuda_library is None:
        evidence = _absent(observed, "libcuda.so.1")
        return Check("libraries", FAILED, evidence, remedies.NO_LIBCUDA)
    absent = not_in_nvml(observed)
    refused = [
        address for address, (remedy, _) in absent.items() if remedy == remedies.REFUSED_BOARD
    ]
    if refused:
        evidence = f"the driver serves other GPUs of this model and refuses {some(refused)}"
        return Check("libraries", FAILED, evidence, remedies.REFUSED_BOARD)
    if absent:
        evidence = f"NVML sees {len(nvml.gpus)} of {_count(len(observed.gpus), 'GPU')}; not {some(list(absent))}"
        nodes = {gpu.address: f"/dev/nvidia{gpu.minor}" for gpu in observed.module_gpus}
        wrong = wrong_nodes(observed)
        if paths := [path for address in absent if (path := nodes.get(address, "")) in wrong]:
            evidence = f"{evidence}; {some([wrong[path] for path in paths])}"
            return Check("libraries", FAILED, evidence, _create(observed, paths))
        return Check("libraries", FAILED, evidence, remedies.LOST)
    if nvml.confidential_ready is False:
        evidence = "confidential computing is on, and the GPUs accept no work yet"
        return Check("libraries", FAILED, evidence, remedies.CONFIDENTIAL)
    evidence = f"NVML {nvml.nvml_version} answers for {_count(_well(nvml), 'GPU')}; CUDA {nvml.cuda_version}"
    return _ok("libraries", evidence)


def not_in_nvml(observed: ChainObservation) -> dict[str, tuple[str, str]]:
    """Addresses of GPUs on PCI that NVML does not list, and that are not in quarantine: the fix, and why."""
    listed = {gpu.pci for gpu in observed.nvml.gpus}
    models = {gpu.device_id for gpu in observed.gpus if gpu.driver}
    minors = {gpu.address: gpu.minor for gpu in observed.module_gpus}
    nodes = wrong_nodes(observed)
    reasons: dict[str, tuple[str, str]] = {}
    for gpu in sorted(observed.gpus, key=lambda gpu: gpu.address):
        if gpu.address in listed or observed.quarantine.holds("", gpu.address):
            continue
        path = f"/dev/nvidia{minors.get(gpu.address, -1)}"
        if not gpu.driver and gpu.device_id in models:
            why = (
                remedies.REFUSED_BOARD,
                "the driver serves other GPUs of this model and refuses it",
            )
        elif path in nodes:
            why = _create(observed, [path]), nodes[path]
        else:
            why = remedies.LOST, "NVML does not list it"
        reasons[gpu.address] = why
    return reasons


def has_switches(observed: ChainObservation) -> bool:
    """The node itself uses NVSwitches: they are not passed to a VM, and NVLink is not disabled."""
    switches = (device for device in observed.pci if device.class_id.startswith("0680"))
    return not observed.nvlink_off and any(device.driver not in PASSTHROUGH for device in switches)


def _fabric(observed: ChainObservation, expected: Expected) -> Check:
    reporting = [gpu for gpu in observed.nvml.gpus if gpu.fabric_state not in NO_FABRIC]
    wrong: dict[str, list[str]] = {}
    for gpu in reporting:
        status = "" if gpu.fabric_status in ("", "success") else f" with {gpu.fabric_status}"
        if gpu.fabric_state != "completed" or status:
            text = f"{gpu.fabric_state}{status if gpu.fabric_state == 'completed' else ''}"
            wrong.setdefault(text, []).append(f"GPU {gpu.index}")
    if wrong:
        states = "; ".join(f"{some(gpus)}: {text}" for text, gpus in wrong.items())
        evidence = f"the NVLink fabric is not up: {states}"
        return Check("fabric", FAILED, evidence, remedies.cuda(802))
    if reporting:
        manager = "; Fabric Manager runs" if observed.manager else ""
        return _ok("fabric", f"complete on {_count(len(reporting), 'GPU')}{manager}")
    # GPUs that do not report it, as A100: with NVSwitches, no CUDA program starts without Fabric Manager.
    gpus = observed.nvml.gpus
    in_parts = bool(gpus) and all(gpu.mig_current for gpu in gpus)  # these use no NVLink
    elsewhere = in_parts or observed.driver_root  # in the container of the driver
    if not has_switches(observed) or (not observed.manager and elsewhere):
        return Check("fabric", NOT_APPLICABLE, "the GPUs report no NVLink fabric")
    if observed.manager:
        detail = (
            "the node has NVSwitches, and Fabric Manager runs; the GPUs do not report the fabric"
        )
        return _ok("fabric", detail)
    detail = "the node has NVSwitches, and Fabric Manager does not run"
    return Check("fabric", FAILED, detail, remedies.cuda(802))


def _in_container(name: str, observed: ChainObservation) -> Check:
    evidence = f"a container of the GPU Operator has the driver ({observed.driver_root})"
    return Check(name, NOT_APPLICABLE, evidence)


def _expected_nodes(observed: ChainObservation) -> dict[str, tuple[int, int]]:
    """Device nodes of the driver with their numbers."""
    majors = dict(observed.majors)
    major = majors.get("nvidia", majors.get("nvidia-frontend", NVIDIA_MAJOR))
    expected = {
        f"/dev/nvidia{gpu.minor}": (major, gpu.minor)
        for gpu in observed.module_gpus
        if gpu.minor >= 0
    }
    expected["/dev/nvidiactl"] = (major, 255)
    # Without a specification for containers, which names it, the first CUDA program creates it.
    if "nvidia-uvm" in majors and (observed.cdi or "/dev/nvidia-uvm" in dict(observed.nodes)):
        expected["/dev/nvidia-uvm"] = (majors["nvidia-uvm"], 0)
    major = majors.get("nvidia-caps", -1)
    return expected | {path: (major, minor) for path, minor, _ in observed.capabilities}


def wrong_nodes(observed: ChainObservation) -> dict[str, str]:
    """Device nodes that are missing, are no devices or have other numbers, and how that reads."""
    nodes = dict(observed.nodes)
    names = {path: f" ({name})" for path, _, name in observed.capabilities}
    wrong: dict[str, str] = {}
    expected = _expected_nodes(observed)
    for path, numbers in sorted(expected.items(), key=lambda row: ("-caps/" in row[0], row[0])):
        node, suffix = nodes.get(path), names.get(path, "")
        if node is None:
            wrong[path] = f"{path} is missing{suffix}"
        elif not node.character:
            kind = f"a {node.kind}, " if node.kind else ""
            wrong[path] = f"{path} is {kind}not a device{suffix}"
        elif (node.major, node.minor) != numbers:
            actual = f"{node.major}:{node.minor}"
            wrong[path] = f"{path} is {actual} instead of {numbers[0]}:{numbers[1]}{suffix}"
    return wrong


def _create(observed: ChainObservation, wrong: Iterable[str]) -> str:
    nodes = dict(observed.nodes)
    return remedies.device_nodes([path for path in wrong if path not in nodes])


def _device_nodes(observed: ChainObservation, expected: Expected) -> Check:
    nodes = wrong_nodes(observed)
    wrong, remedy, later = list(nodes.values()), _create(observed, nodes), ""
    if "nvidia-uvm" not in dict(observed.majors):
        if observed.cdi:  # its devices exist when a container starts
            wrong.insert(0, "the module nvidia-uvm is not loaded")
            remedy = remedies.UVM_NOT_LOADED
        later = "; the first CUDA program loads nvidia-uvm"
    elif "/dev/nvidia-uvm" not in _expected_nodes(observed):
        later = "; the first CUDA program creates /dev/nvidia-uvm"
    if wrong:
        return Check("device-nodes", FAILED, some(wrong), remedy)
    count = _count(len(_expected_nodes(observed)), "node")
    return _ok("device-nodes", f"{count} in /dev with the right numbers{later}")


def is_nvidias(program: str) -> bool:
    """A handler's program is NVIDIA's runtime."""
    return "nvidia" in program.rpartition("/")[2]


def gpu_handler(programs: Mapping[str, str], default: str, expected: Expected) -> str:
    """The handler by which pods get GPUs: the default one if its program is NVIDIA's; empty if there is none.

    Args:
        programs: program of each handler, empty where only the name is known.
        default: handler of pods that name none.
        expected: names the handler, or ``auto``.
    """
    if expected.handler != AUTO:
        return expected.handler if expected.handler in programs else ""
    names = [name for name, program in programs.items() if is_nvidias(program or name)]
    ranked = (default, "nvidia", *names)
    handler = next((name for name in ranked if name in names), "")
    return handler or ("nvidia" if "nvidia" in programs else "")


def _containerd_handler(observed: ChainObservation, expected: Expected) -> str:
    """The handler in containerd's configuration files; empty if there is none."""
    containerd = observed.containerd
    if containerd is None:
        return ""
    default = containerd.default or (containerd.cri.default if containerd.cri is not None else "")
    return gpu_handler(
        {name: program for name, program, _ in containerd.handlers}, default, expected
    )


def with_registered(observed: ChainObservation, expected: Expected) -> Expected:
    """What to validate, with the handler that gpustate has registered where the validator names none.

    RuntimeClasses name that handler, so another one of NVIDIA's runtime is no replacement.
    """
    used = serving(observed, expected)
    if used == "bundled" and observed.bundled is not None:
        used = BUNDLED.get(observed.bundled.socket, "")
    registered = observed.registered.get(used, "")
    return (
        replace(expected, handler=registered)
        if expected.handler == AUTO and registered
        else expected
    )


def _served_handler(status: CriStatus | None, expected: Expected) -> str:
    """The handler of a running runtime; empty if there is none."""
    if status is None:
        return ""
    return gpu_handler(
        {handler.name: handler.binary for handler in status.handlers}, status.default, expected
    )


def has_handler(observed: ChainObservation, expected: Expected) -> bool:
    """A runtime of this node has a handler that gives containers GPUs."""
    return bool(
        _containerd_handler(observed, expected)
        or _served_handler(observed.bundled, expected)
        or _served_handler(observed.crio, expected)
    )


def containers_apply(observed: ChainObservation, expected: Expected) -> bool:
    """Whether the container checks apply: by ``auto``, if anything is set up to give containers GPUs.

    An installed container runtime is no sign of that: many nodes have one for other work.
    """
    if expected.containers != "auto":
        return expected.containers == "required"
    return bool(
        observed.ctk
        or observed.runtime_binary
        or observed.cdi
        or observed.kubelet
        or has_handler(observed, expected)
    )


def serving(observed: ChainObservation, expected: Expected) -> str:
    """The runtime that is judged: the kubelet's own, else the one that is in use; empty if none is.

    One of ``bundled`` (the containerd of a Kubernetes distribution), ``crio``, ``docker``, ``containerd``.
    """
    if observed.bundled is not None and observed.bundled.outcome:
        return "bundled"
    endpoint, containerd = observed.endpoint, observed.containerd
    if "dockerd" in endpoint:
        return "docker"
    if endpoint.endswith("crio.sock"):
        return "crio"
    runtimes: list[str] = [name for name in ("crio", "k3s") if name in observed.other_runtimes]
    if "dockerd" in observed.other_runtimes and not observed.kubelet:
        runtimes.append("docker")
    if expected.containers != "auto":
        runtimes = []
    if containerd is not None and containerd.active:
        handler = not containerd.disabled and (
            "containerd" in observed.registered or _containerd_handler(observed, expected)
        )
        return "containerd" if handler or not runtimes or endpoint else runtimes[0]
    # A disabled one is left alone beside another runtime; docker is none beside a configured containerd.
    beside = {"crio", "k3s"}.intersection(runtimes).difference(observed.down)
    configured = "containerd" in observed.registered
    if containerd is not None and (endpoint or (configured and (containerd.enabled or not beside))):
        return "containerd"
    if runtimes:
        return runtimes[0]
    return (
        "containerd" if containerd is not None and (observed.kubelet or containerd.enabled) else ""
    )


def _no_containers(name: str, observed: ChainObservation, expected: Expected) -> Check:
    why = (
        "disabled by containers: none"
        if expected.containers == "none"
        else "no container toolkit, no CDI specification and no kubelet"
    )
    return Check(name, NOT_APPLICABLE, why)


def _toolkit(observed: ChainObservation, expected: Expected) -> Check:
    if not containers_apply(observed, expected):
        return _no_containers("toolkit", observed, expected)
    # The GPU Operator keeps the toolkit in a folder of its own.
    aside = [
        program
        for _, program, exists in _handlers(observed)
        if exists and is_nvidias(program) and not program.startswith(_PATH)
    ]
    for name, program in (
        ("nvidia-ctk", observed.ctk),
        ("nvidia-container-runtime", observed.runtime_binary),
    ):
        if program is None and aside:
            return _ok("toolkit", f"a runtime handler runs {aside[0]}")
        if program is None:
            return Check("toolkit", FAILED, _absent(observed, name), remedies.NO_TOOLKIT)
        if program.status != 0:
            timed_out = program.status in (124, 137)
            end = LATE if timed_out else f"ended with {program.status}: {program.first_line}"
            evidence = f"{program.path} --version {end}"
            if NO_LOW_LEVEL in program.first_line:
                evidence = f"the toolkit finds no runc or crun: {evidence}"
            low_level = NO_LOW_LEVEL in program.first_line or "/runc fails: " in program.first_line
            remedy = remedies.NO_LOW_LEVEL if low_level else remedies.TOOLKIT_BROKEN
            return Check("toolkit", FAILED, evidence, remedy)
    return _ok("toolkit", observed.ctk.first_line if observed.ctk is not None else "")


def _handlers(observed: ChainObservation) -> list[tuple[str, str, bool]]:
    """Handlers of all runtimes: name, program, whether that exists."""
    handlers = list(observed.containerd.handlers) if observed.containerd is not None else []
    if observed.bundled is not None:
        handlers += [
            (handler.name, handler.binary, handler.exists) for handler in observed.bundled.handlers
        ]
    return handlers


def judges(units: Sequence[str], runtimes: Collection[str]) -> bool:
    """Whether an ordering cycle fails the check of the runtime: it has one of these, or what writes the CDI specification."""
    return not {f"{name}.service" for name in (*runtimes, "nvidia-cdi-refresh")}.isdisjoint(units)


def ordering_cycle(units: Sequence[str]) -> str:
    """What an ordering cycle does at boot."""
    return f"each boot leaves out one of {', '.join(units)}: systemd breaks their ordering cycle"


def not_running(runtime: str) -> str:
    """How the evidence of a runtime that does not run begins."""
    return f"{runtime} does not run"


def _runtime(observed: ChainObservation, expected: Expected) -> Check:
    if not containers_apply(observed, expected):
        return _no_containers("runtime", observed, expected)
    containerd, used = observed.containerd, serving(observed, expected)
    if not expected.handler:
        status = containerd.cri if containerd is not None else observed.bundled
        by_cdi = _by_cdi("containerd", status, observed, expected)
        none = "no runtime handler is configured in the validator"
        return by_cdi or Check("runtime", NOT_APPLICABLE, none)
    for units in observed.cycles:
        if judges(units, {used, *observed.registered}):
            return Check("runtime", FAILED, ordering_cycle(units), remedies.ordering_cycle(units))
    for name in observed.down:
        if name == used or name not in ("docker", "crio"):
            why = "gpustate has configured it" if name in observed.registered else "it is enabled"
            found_down = f"{not_running(name)}, and {why}"
            return Check("runtime", FAILED, found_down, remedies.runtime_down(name))
    if used == "bundled" and observed.bundled is not None:
        state = BUNDLED.get(observed.bundled.socket, "containerd")
        name = "containerd" if state == "containerd" else f"the containerd of {state}"
        return _by_cri(name, state, observed.bundled, observed, expected)
    if used == "crio" and observed.crio is not None and observed.crio.outcome:
        return _by_cri("CRI-O", "crio", observed.crio, observed, expected)
    if containerd is None or used != "containerd":
        if expected.containers == "required" and containerd is None:
            return Check("runtime", FAILED, "containerd is not installed", remedies.NO_CONTAINERD)
        evidence = f"{used} serves containers; its runtime is not checked"
        if not used:
            evidence = f"containerd {'does not run, and nothing uses it' if containerd else 'is not installed'}"
        return Check("runtime", NOT_APPLICABLE, evidence)
    running = (
        containerd.cri
        if containerd.cri is not None and not containerd.cri.dead("containerd")
        else None
    )
    served = _served_handler(running, expected)
    if containerd.dump_status != 0:
        evidence = f"{containerd.dump} ended with {containerd.dump_status}: {containerd.dump_error}"
        if served or _by_cdi("containerd", running, observed, expected):
            evidence += f"; the running process has {served or 'CDI'} until its next restart"
            return Check("runtime", OK, evidence, remedies.CONTAINERD_CONFIG)
        return Check("runtime", FAILED, evidence, remedies.CONTAINERD_CONFIG)
    if not containerd.active:
        return Check("runtime", FAILED, STOPPED, remedies.CONTAINERD_DOWN)
    if containerd.disabled and not observed.kubelet:
        evidence = f"containerd serves no CRI: disabled_plugins lists {containerd.disabled}"
        return Check("runtime", NOT_APPLICABLE, evidence)
    if containerd.disabled:
        evidence = f"containerd serves no pods: disabled_plugins lists {containerd.disabled}"
        return Check("runtime", FAILED, evidence, remedies.CRI_DISABLED)
    if containerd.cri is not None and (dead := containerd.cri.dead("containerd")):
        return Check("runtime", FAILED, dead, remedies.CRI_DEAD)
    handler = _containerd_handler(observed, expected)
    if not handler:
        if by_cdi := _by_cdi("containerd", containerd.cri, observed, expected):
            return by_cdi
        if served:
            evidence = f"containerd's configuration lacks the handler {served}, which the running process has until its next restart"
            return Check("runtime", OK, evidence, remedies.NO_HANDLER)
        evidence = f"containerd has no runtime handler {_lacking(expected)} ({containerd.dump})"
        if names := ", ".join(name for name, _, _ in containerd.handlers):
            evidence += f"; it has {names}"
        return Check("runtime", FAILED, evidence, remedies.NO_HANDLER)
    binary, exists = {name: (program, exists) for name, program, exists in containerd.handlers}[
        handler
    ]
    if not exists:
        evidence = f"handler {handler} names {binary}, which does not exist"
        return Check("runtime", FAILED, evidence, remedies.HANDLER_BINARY)
    if not is_nvidias(binary):
        evidence = f"handler {handler} runs {binary}, not nvidia-container-runtime"
        return Check("runtime", FAILED, evidence, remedies.HANDLER_BINARY)
    if containerd.cri is None or containerd.cri.outcome != "ok":
        return _ok("runtime", f"containerd runs; handler {handler} is {binary}")
    if unread := containerd.cri.missing_handler(handler):
        evidence = f"the running containerd has not read its configuration files: {unread}"
        return Check("runtime", FAILED, evidence, remedies.NOT_READ)
    row = containerd.cri.handler(handler)
    if row is not None and not row.kind:
        evidence = f"handler {handler} has no runtime_type"
        return Check("runtime", FAILED, evidence, remedies.NO_TYPE)
    if drivers := containerd.cri.cgroup_drivers(handler):
        return _cgroup_drivers(drivers, "containerd")
    return _ok("runtime", f"containerd serves CRI; handler {handler} is {binary}")


def _lacking(expected: Expected) -> str:
    """The handler that is missing, and what that does."""
    if expected.handler == AUTO:
        return "for GPUs"
    return f"{expected.handler}, so pods with runtimeClassName {expected.handler} fail"


def _cgroup_drivers(drivers: str, unit: str) -> Check:
    remedy = remedies.CGROUP_DRIVERS.replace("UNIT", unit)
    return Check("runtime", FAILED, f"cgroup drivers disagree: {drivers}", remedy)


def _by_cri(
    name: str, state: str, status: CriStatus, observed: ChainObservation, expected: Expected
) -> Check:
    """The check of a runtime by what its running process reports.

    Args:
        name: the runtime, for the evidence.
        state: the state that configures it.
        status: its report.
        observed: the node.
        expected: the handler.
    """
    crio = state == "crio"
    if dead := status.dead(name):
        remedy = remedies.CRI_DEAD if crio else remedies.BUNDLED_DEAD.format(state=state)
        return Check("runtime", FAILED, dead, remedy)
    handler = _served_handler(status, expected)
    if not handler and status.handlers:
        if by_cdi := _by_cdi(name, status, observed, expected):
            return by_cdi
        names = ", ".join(row.name for row in status.handlers)
        if crio:
            evidence = (
                f"the running CRI-O has no runtime handler {_lacking(expected)}; it has {names}"
            )
            return Check("runtime", FAILED, evidence, remedies.NO_CRIO_HANDLER)
        evidence = f"{name} lacks the runtime handler {_lacking(expected)}; it has {names}"
        remedy = remedies.NO_BUNDLED_HANDLER.format(state=state)
        return Check("runtime", FAILED, evidence, remedy)
    row = status.handler(handler)
    if row is not None and not row.exists:
        evidence = f"handler {handler} names {row.binary}, which does not exist"
        return Check("runtime", FAILED, evidence, remedies.HANDLER_BINARY)
    if drivers := status.cgroup_drivers(handler):
        return _cgroup_drivers(drivers, state)
    has = f" and has the handler {handler}" if handler else "; it does not list its handlers"
    version = f" {status.version}" if crio and status.version else ""
    return _ok("runtime", f"{name}{version} serves CRI{has}")


def _by_cdi(
    name: str, status: CriStatus | None, observed: ChainObservation, expected: Expected
) -> Check | None:
    """A runtime without a handler that gives containers GPUs by CDI; ``None`` if it does not, or the handler is wanted."""
    if not needs_no_handler(name.lower(), status, observed, expected):
        return None
    return _ok("runtime", f"{name} serves CRI; containers get GPUs by CDI, without a handler")


def needs_no_handler(
    name: str, status: CriStatus | None, observed: ChainObservation, expected: Expected
) -> bool:
    """A runtime, whose report is ``status``, gives containers GPUs by CDI, and neither policy nor gpustate gave it a handler."""
    if expected.handler not in (AUTO, "") or name in observed.registered:
        return False
    specs = observed.cdi and expected.cdi is not False
    return bool(specs) and status is not None and injects_cdi(status)


def needs_cdi(observed: ChainObservation, expected: Expected) -> bool:
    """Containers of this node need a CDI specification, or the policy or a service of the node wants one."""
    if expected.cdi is not None or observed.cdi or observed.cdi_kept or observed.mode == "cdi":
        return expected.cdi is not False
    docker = "dockerd" in observed.other_runtimes
    return not (docker or (expected.handler and has_handler(observed, expected)))


def injects_cdi(status: CriStatus) -> bool:
    """A running runtime gives pods the CDI devices of this node."""
    reads_folder = not status.cdi_folders or {"/etc/cdi", "/var/run/cdi", "/run/cdi"} & set(
        status.cdi_folders
    )
    version = re.match(r"v?(\d+)\.", status.version)
    by_version = status.name == "cri-o" or (version is not None and int(version[1]) >= 2)
    return bool(reads_folder) and (by_version if status.cdi is None else status.cdi)


def specifications(specs: tuple[CdiSpec, ...]) -> tuple[tuple[CdiSpec, ...], tuple[CdiSpec, ...]]:
    """Specifications that runtimes use, and those of which a later folder defines every device."""
    shadowed: list[CdiSpec] = []
    for number, spec in enumerate(specs):
        folder = spec.path.rpartition("/")[0]
        later = (
            candidate
            for candidate in specs[number + 1 :]
            if not candidate.path.startswith(f"{folder}/")
        )
        if spec.devices and set(spec.devices) <= {
            name for candidate in later for name in candidate.devices
        }:
            shadowed.append(spec)
    return tuple(spec for spec in specs if spec not in shadowed), tuple(shadowed)


def _without_cdi(observed: ChainObservation, expected: Expected) -> str:
    """That containers get GPUs from the handler of a runtime that reads no CDI specification; empty if some need one."""
    used = serving(observed, expected)
    status = observed.containerd.cri if observed.containerd and used == "containerd" else None
    status = observed.bundled if used == "bundled" else status
    handler = _served_handler(status, expected)
    if status is None or not handler or injects_cdi(status):
        return ""
    if expected.cdi or observed.mode == "cdi":  # NVIDIA's runtime reads it
        return ""
    return f"{status.name} {status.version} does not read it: containers get their GPUs from the handler {handler}"


def _cdi(observed: ChainObservation, expected: Expected) -> Check:
    check = _specification(observed, expected)
    paths = [spec.path for spec in observed.cdi if spec.path in check.evidence]
    generated = [path for path in paths if path == remedies.CDI_KEPT]
    manual = [path for path in paths if path not in generated]
    to_remove = check.remedy == remedies.CDI_TWICE
    for path in (manual if generated else [])[:1] if to_remove else (generated or manual)[:1]:
        check = replace(check, remedy=check.remedy.replace("FILE", path))
    unread = _without_cdi(observed, expected)
    if not check.failed or not unread or all_held(observed):
        return check
    return Check("cdi", OK, f"{check.evidence}; {unread}", check.remedy)


def _specification(observed: ChainObservation, expected: Expected) -> Check:
    if not containers_apply(observed, expected):
        return _no_containers("cdi", observed, expected)
    if expected.cdi is False:
        return Check("cdi", NOT_APPLICABLE, "disabled by cdi: false")
    specs, shadowed = specifications(observed.cdi)
    if not specs and (held := all_held(observed)):
        return Check("cdi", FAILED, held, remedies.ALL_HELD)
    if not specs:
        absent = "no CDI specification for nvidia.com/gpu"
        if not needs_cdi(observed, expected):
            return Check("cdi", NOT_APPLICABLE, f"{absent}; NVIDIA's runtime needs none")
        return Check("cdi", FAILED, absent, remedies.CDI)
    status = observed.bundled or (observed.containerd.cri if observed.containerd else None)
    if expected.cdi and status is not None and status.cdi is not None and not injects_cdi(status):
        return Check("cdi", FAILED, cdi_off(status), remedies.CDI_OFF)
    for spec in specs:
        if spec.missing:
            detail = f"{spec.path} names missing files: {some(list(spec.missing))}"
            return Check("cdi", FAILED, detail, remedies.CDI_STALE)
    if twice := _named_twice(observed.cdi):
        return Check("cdi", FAILED, twice, remedies.CDI_TWICE)
    nodes = {path: f"{node.major}:{node.minor}" for path, node in observed.nodes if node.character}
    for spec in specs:
        for path, _, numbers in (row.rpartition("|") for row in spec.numbers):
            if numbers != nodes.get(path, numbers):
                detail = f"{spec.path} has the numbers {numbers} for {path}, which is {nodes[path]}"
                return Check("cdi", FAILED, detail, remedies.CDI_STALE)
    names = ", ".join(spec.path for spec in specs)
    have = {device for spec in specs for device in spec.devices}
    lacking: list[str] = []
    for gpu in observed.nvml.gpus:
        if observed.held(gpu):
            continue
        if gpu.mig_current:
            lacking += [
                f"{gpu.index}:{number}"
                for number, mig in enumerate(gpu.mig_devices)
                if not have & {f"{gpu.index}:{number}", mig.uuid}
            ]
        elif gpu.uuid and not have & {str(gpu.index), gpu.uuid}:
            lacking.append(str(gpu.index))
    if lacking:
        return Check("cdi", FAILED, f"{names}: no device for {some(lacking)}", remedies.CDI_STALE)
    lost = _lost_mig_devices(observed)
    if lost:
        evidence = f"{names} names MIG devices that no longer exist: {some(lost)}"
        return Check("cdi", FAILED, evidence, remedies.CDI_STALE)
    unused = "".join(
        f"; not used, as a later folder has its devices: {spec.path}" for spec in shadowed
    )
    return _ok(
        "cdi",
        f"{names}: {_count(len(have), 'device')}, every file exists{_only_handler(observed)}{unused}",
    )


def _named_twice(specs: tuple[CdiSpec, ...]) -> str:
    """Evidence if two specifications of one folder name one device; a later folder does not help then."""
    owners: dict[tuple[str, str], list[str]] = {}
    for spec in specs:
        for name in set(spec.devices):
            owners.setdefault((spec.path.rpartition("/")[0], name), []).append(spec.path)
    twice = sorted((paths, name) for (_, name), paths in owners.items() if len(paths) > 1)
    if not twice:
        return ""
    paths, name = twice[0]
    return f"{some(paths)} both define nvidia.com/gpu={name}, so runtimes reject both"


def cdi_off(status: CriStatus) -> str:
    """Why pods get no CDI devices, from the running configuration."""
    if status.cdi is False:
        return f"{status.name} injects no CDI devices: enable_cdi = false"
    return f"{status.name} reads CDI specifications in {', '.join(status.cdi_folders)} only"


def _only_handler(observed: ChainObservation) -> str:
    """That containers get CDI devices from NVIDIA's runtime alone, where containerd is too old to inject them."""
    cri = observed.containerd.cri if observed.containerd is not None else None
    match = re.match(r"v?(1\.[0-6])\.", cri.version) if cri is not None else None
    if match is None:
        return ""
    return f"; containerd {match[1]} does not inject CDI devices itself, NVIDIA's runtime does"


def all_held(observed: ChainObservation) -> str:
    """Evidence if every GPU is in quarantine; empty if one is usable."""
    gpus = observed.nvml.gpus
    if not gpus or not all(observed.held(gpu) for gpu in gpus):
        return ""
    return (
        f"every GPU is in quarantine: {some([entry.text for entry in observed.quarantine.active])}"
    )


def _lost_mig_devices(observed: ChainObservation) -> list[str]:
    """MIG devices that a specification names and their GPU no longer has."""
    lost: list[str] = []
    if not any(gpu.mig_devices for gpu in observed.nvml.gpus):
        return lost  # another check fails then: there is no device at all
    for gpu in observed.nvml.gpus:
        names = {
            name
            for spec in observed.cdi
            for name in spec.devices
            if name.startswith(f"{gpu.index}:")
        }
        if gpu.error is None and not observed.held(gpu) and len(names) > len(gpu.mig_devices):
            lost += sorted(names)[len(gpu.mig_devices) :]
    return lost


def _container(observed: ChainObservation, expected: Expected) -> Check:
    if not containers_apply(observed, expected):
        return _no_containers("container", observed, expected)
    if observed.containers is None:
        evidence = "no container was started: an earlier check failed"
        return Check("container", FAILED, evidence, remedies.EARLIER)
    failure = container_checks.first_failure(observed)
    if failure is not None:
        return Check("container", FAILED, failure.evidence, failure.remedy)
    if not observed.containers:
        if not expected.handler:
            none = "no runtime handler is configured in the validator"
            return Check("container", NOT_APPLICABLE, none)
        why = "no container could be started"
        if not (has_handler(observed, expected) or observed.cdi):
            why = "no runtime is configured to give containers GPUs"
        evidence = f"{NOT_VALIDATED}: {why}"
        if expected.containers == "required":
            return Check("container", FAILED, evidence, remedies.NO_HANDLER)
        return Check("container", NOT_APPLICABLE, evidence)
    return _ok("container", container_checks.summary(observed))


def _health(observed: ChainObservation, expected: Expected) -> Check:
    if observed.quarantine.problem:
        return Check("health", FAILED, observed.quarantine.problem, remedies.QUARANTINE_FILE)
    if not any(gpu.error is None for gpu in observed.nvml.gpus):
        evidence = "; ".join(["no GPU answers", *_quarantined(observed)])
        return Check("health", NOT_APPLICABLE, evidence)
    if held := all_held(observed):
        return Check("health", FAILED, held, remedies.ALL_HELD)
    return _findings(observed, recovered(observed))


def _quarantined(observed: ChainObservation) -> list[str]:
    # The parts of the evidence are separated by semicolons, which a reason may have.
    held, ended = observed.quarantine.active, observed.quarantine.expired
    return [f"in quarantine: {entry.text.replace(';', ',')}" for entry in held] + [
        f"the quarantine has ended: {entry.text.replace(';', ',')}" for entry in ended
    ]


def recovered(observed: ChainObservation) -> set[str]:
    """UUIDs of GPUs on which a kernel ran after everything that the log has: now, or at a validation that saw the same."""
    ran = {result.uuid for result in observed.cuda or () if result.ok}
    if observed.recorded is None:
        return ran
    check = _findings(observed, ran)
    return ran if (check.name, check.evidence) in observed.recorded else set()


def _findings(observed: ChainObservation, ran: set[str]) -> Check:
    """Health of the GPUs that are not in quarantine, on some of which the kernel ran after what the log has of them."""
    out = _quarantined(observed)
    held = {gpu.index for gpu in observed.nvml.gpus if observed.held(gpu)}
    findings = [
        finding
        for finding in health.judge(observed.nvml, observed.log, ran)
        if finding.what != "no-answer"  # the check libraries reports it
        and finding.gpu not in held
        and not observed.quarantine.holds("", finding.pci)
    ]
    bad = health.failed(tuple(findings))
    if bad:
        evidence = "; ".join([*(finding.text for finding in bad[:4]), *out])
        return Check("health", FAILED, evidence, bad[0].remedy)
    well = _well(observed.nvml) - sum(
        gpu.error is None and gpu.index in held for gpu in observed.nvml.gpus
    )
    notes = [finding.text for finding in findings[:4]]
    evidence = "; ".join([f"{_count(well, 'GPU')} healthy", *notes, *out])
    return Check(
        "health", OK, evidence, "; ".join(dict.fromkeys(finding.remedy for finding in findings[:4]))
    )


def cuda_failures(observed: ChainObservation) -> list[CudaResult]:
    """Results of the kernel on devices that fail the check: not of those in quarantine, or in use."""
    return [
        result
        for result in observed.cuda or ()
        if not result.ok and not result.users and not observed.quarantine.holds(result.uuid, "")
    ]


def _cuda(observed: ChainObservation, expected: Expected) -> Check:
    if not expected.cuda:
        return Check("cuda", NOT_APPLICABLE, "disabled by cuda: false")
    if observed.driver_root and observed.nvml.error == 12:
        return _in_container("cuda", observed)
    if observed.cuda is None:
        return Check(
            "cuda",
            FAILED,
            "the CUDA kernel has not run since the node last changed",
            remedies.EARLIER,
        )
    if not observed.cuda:
        return Check("cuda", FAILED, "no device to run the CUDA kernel on", remedies.NO_DEVICE)
    tested = [result for result in observed.cuda if not observed.quarantine.holds(result.uuid, "")]
    failed = cuda_failures(observed)
    passed = [result for result in tested if result.ok]
    if failed:
        first = failed[0]
        number = "" if first.error is None else f" (CUDA {first.error})"
        evidence = f"{first.uuid}: {first.text}{number}; {len(passed)} of {len(tested)} devices ok"
        remedy = remedies.cuda(first.error, first.text)
        for gpu in observed.nvml.gpus:
            if first.uuid in (gpu.uuid, *(mig.uuid for mig in gpu.mig_devices)):
                remedy = remedy.replace("INDEX", str(gpu.index))
        return Check("cuda", FAILED, evidence, remedy)
    untested = sorted(set(cuda_devices(observed)) - {result.uuid for result in observed.cuda})
    if untested:
        return Check(
            "cuda", FAILED, f"the kernel did not run on {some(untested)}", remedies.EARLIER
        )
    used = [
        f"{result.uuid} is in use by PID {some(list(result.users), 2)}: not tested"
        for result in tested
        if result.users
    ]
    if not passed:
        return Check("cuda", NOT_APPLICABLE, "; ".join(used) or "every device is in quarantine")
    slowest = max(result.elapsed_s for result in passed)
    evidence = (
        f"kernel ran on {_count(len(passed), 'device')}, results correct; slowest {slowest:.1f} s"
    )
    return _ok("cuda", "; ".join([evidence, *used]))


#: End-to-end tests, the checks that they stand for, and what a passed one says.
_TESTS = (
    ("cuda", ("driver", "libraries", "fabric", "device-nodes"), "CUDA runs all the same"),
    ("container", ("toolkit", "runtime", "cdi"), "containers get their GPUs all the same"),
)


def tested(checks: Iterable[Check]) -> dict[str, str]:
    """Checks that a passed end-to-end test stands for, each with what that says."""
    passed = {check.name for check in checks if check.outcome == OK}
    return {name: words for test, names, words in _TESTS if test in passed for name in names}


def with_notes(checks: tuple[Check, ...], observed: ChainObservation) -> tuple[Check, ...]:
    """Turn failed checks into notes where the test that they stand for has passed.

    A recorded test stands for what its own validation observed: what has failed since is no note, unless it was only slow.
    Nor is an ordering cycle, for no test knows the next boot, or a runtime that does not run, for it started none of the
    containers.
    """
    notes = tested(checks)
    untested = tuple(map(ordering_cycle, observed.cycles)) + tuple(map(not_running, observed.down))
    results: list[Check] = []
    for check in checks:
        if check.failed and check.name in notes and not check.evidence.startswith(untested):
            note = replace(check, outcome=OK, evidence=f"{check.evidence}; {notes[check.name]}")
            recorded = observed.recorded
            late = check.evidence.endswith(LATE)
            if recorded is None or late or (note.name, note.evidence) in recorded:
                results.append(note)
                continue
        results.append(check)
    return tuple(results)


def judge(observed: ChainObservation, expected: Expected | None = None) -> tuple[Check, ...]:
    """Return every check, in order, each by its own observation."""
    expected = with_registered(observed, expected or observed.expected)
    links = (
        *(check_pci, _driver, _libraries, _fabric, _device_nodes, _toolkit, _runtime, _cdi),
        *(_container, _health, _cuda),
    )
    return tuple(link(observed, expected) for link in links)


def evaluate(observed: ChainObservation, expected: Expected | None = None) -> tuple[Check, ...]:
    """Return every check, in order; a passed end-to-end test turns failures of what it tests into notes."""
    return with_notes(judge(observed, expected), observed)


def first_broken(checks: tuple[Check, ...]) -> Check | None:
    """The first check that failed, which is the cause; ``None`` if none did."""
    return next((check for check in checks if check.failed), None)
