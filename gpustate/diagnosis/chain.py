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
from gpustate.diagnosis.chain_data import Key as Key
from gpustate.diagnosis.chain_data import Wanted as Wanted
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


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def missing(observed: ChainObservation, wanted: Wanted) -> tuple[tuple[str, str], ...]:
    """UUID and address of GPUs that are gone, unless their absence is accepted."""
    accepted = wanted.gpus is not None and wanted.gpus <= len(observed.gpus)
    return () if accepted else observed.gone


def check_pci(observed: ChainObservation, wanted: Wanted) -> Check:
    """The GPUs that must be on PCI are there, and no other driver has them."""
    held = [one for one in observed.pci if one.is_gpu and one.driver in PASSTHROUGH]
    aside = f"; {_count(len(held), 'GPU')} bound to vfio for virtual machines" if held else ""
    if observed.ignored:
        names = ", ".join(one.address for one in observed.ignored)
        aside += f"; display card without the driver: {names}"
    if not observed.gpus:
        return Check("pci", FAILED, f"no NVIDIA GPU on PCI{aside}", remedies.NO_GPU)
    if gone := missing(observed, wanted):
        names = some([f"{uuid} ({address})" for uuid, address in gone])
        return Check("pci", FAILED, f"{names} {remedies.GONE}{aside}", remedies.GPU_COUNT)
    there = {one.address for one in observed.gpus}
    out = sum(one.pci not in there for one in observed.quarantine.active)  # pulled, or off the bus
    if (
        wanted.gpus is not None
        and not len(observed.gpus) <= wanted.gpus <= len(observed.gpus) + out
    ):
        names = ", ".join(one.address for one in observed.gpus)
        found = (
            f"{_count(len(observed.gpus), 'GPU')} on PCI ({names}), {wanted.gpus} expected{aside}"
        )
        return Check("pci", FAILED, found, remedies.GPU_COUNT)
    foreign = [one for one in observed.gpus if one.driver not in ("", "nvidia")]
    if foreign:
        found = ", ".join(f"{one.address} is bound to {one.driver}" for one in foreign)
        return Check("pci", FAILED, found, remedies.FOREIGN_DRIVER)
    here = {one.address for one in observed.gpus if not observed.quarantine.holds("", one.address)}
    if lost := [address for address in observed.off_bus if address in here]:
        found = f"{some(lost)} returns only ones from its PCI configuration space"
        return Check("pci", FAILED, found, remedies.LOST)
    if has_switches(observed) and len(observed.gpus) not in (1, 2, 4, 8, 16):
        aside += f"; a board with NVSwitches has 8 GPUs, not {len(observed.gpus)}"
    return _ok("pci", f"{_count(len(observed.gpus), 'GPU')} on PCI, none bound to nouveau{aside}")


def _driver(observed: ChainObservation, wanted: Wanted) -> Check:
    if not observed.loaded:
        if observed.on_disk:
            found = f"nvidia {observed.on_disk} is installed for kernel {observed.kernel}, but not loaded"
            return Check("driver", FAILED, found, remedies.NOT_LOADED)
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
    others = {version for name, version in versions.items() if name != "module file"}
    if len(versions) > 2 and others == {observed.loaded} and observed.on_disk not in ("", *others):
        found = (
            f"the module file for kernel {observed.kernel} has version {observed.on_disk}, which the next boot loads; "
            f"module and libraries now: {observed.loaded}"
        )
        return Check("driver", OK, found, remedies.ONE_MODULE)
    if len(set(versions.values())) > 1:
        found = ", ".join(f"{name} {version}" for name, version in versions.items())
        others = {version for name, version in versions.items() if name != "loaded"}
        remedy = remedies.RELOAD if len(others) == 1 else remedies.ONE_SET
        return Check("driver", FAILED, found, remedy)
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


def _libraries(observed: ChainObservation, wanted: Wanted) -> Check:
    nvml = observed.nvml
    if observed.driver_root and nvml.error == 12:
        return _in_container("libraries", observed)
    torn = [one for one in (observed.nvml_library, observed.cuda_library) if one and not one.whole]
    if torn:
        found = f"{torn[0].target} is truncated or not a library"
        return Check("libraries", FAILED, found, remedies.TORN)
    broken = [gpu for gpu in nvml.gpus if gpu.error is not None and not observed.held(gpu)]
    if broken:
        found = ", ".join(
            f"{_gpu_name(gpu)}: {error_name(gpu.error or 0)} (NVML {gpu.error})" for gpu in broken
        )
        silent = sorted({one.address for one in observed.gpus} - {gpu.pci for gpu in nvml.gpus})
        more = f"; {nvml.error_text}" if nvml.error_text else ""
        more += f"; no answer: {some(silent)}" if silent else ""
        remedy = remedies.nvml(broken[0].error or 999).replace("INDEX", str(broken[0].index))
        return Check("libraries", FAILED, found + more, remedy)
    if nvml.error is not None:
        found = f"NVML {nvml.error}: {nvml.error_text or error_name(nvml.error)}"
        dangling = dict(observed.odd).get("libnvidia-ml.so.1") if nvml.error == 12 else None
        found += f"; {dangling}" if dangling else ""
        return Check("libraries", FAILED, found, remedies.nvml(nvml.error))
    if observed.cuda_library is None:
        found = _absent(observed, "libcuda.so.1")
        return Check("libraries", FAILED, found, remedies.NO_LIBCUDA)
    absent = not_in_nvml(observed)
    refused = [
        address for address, (remedy, _) in absent.items() if remedy == remedies.REFUSED_BOARD
    ]
    if refused:
        found = f"the driver serves other GPUs of this model and refuses {some(refused)}"
        return Check("libraries", FAILED, found, remedies.REFUSED_BOARD)
    if absent:
        found = f"NVML sees {len(nvml.gpus)} of {_count(len(observed.gpus), 'GPU')}; not {some(list(absent))}"
        nodes = {one.address: f"/dev/nvidia{one.minor}" for one in observed.module_gpus}
        wrong = wrong_nodes(observed)
        if paths := [path for address in absent if (path := nodes.get(address, "")) in wrong]:
            found = f"{found}; {some([wrong[path] for path in paths])}"
            return Check("libraries", FAILED, found, _create(observed, paths))
        return Check("libraries", FAILED, found, remedies.LOST)
    if nvml.confidential_ready is False:
        found = "confidential computing is on, and the GPUs accept no work yet"
        return Check("libraries", FAILED, found, remedies.CONFIDENTIAL)
    found = f"NVML {nvml.nvml_version} answers for {_count(_well(nvml), 'GPU')}; CUDA {nvml.cuda_version}"
    return _ok("libraries", found)


def not_in_nvml(observed: ChainObservation) -> dict[str, tuple[str, str]]:
    """Addresses of GPUs on PCI that NVML does not list, and that are not in quarantine: the fix, and why."""
    listed = {gpu.pci for gpu in observed.nvml.gpus}
    models = {one.device_id for one in observed.gpus if one.driver}
    minors = {one.address: one.minor for one in observed.module_gpus}
    nodes = wrong_nodes(observed)
    found: dict[str, tuple[str, str]] = {}
    for one in sorted(observed.gpus, key=lambda gpu: gpu.address):
        if one.address in listed or observed.quarantine.holds("", one.address):
            continue
        path = f"/dev/nvidia{minors.get(one.address, -1)}"
        if not one.driver and one.device_id in models:
            why = (
                remedies.REFUSED_BOARD,
                "the driver serves other GPUs of this model and refuses it",
            )
        elif path in nodes:
            why = _create(observed, [path]), nodes[path]
        else:
            why = remedies.LOST, "NVML does not list it"
        found[one.address] = why
    return found


def has_switches(observed: ChainObservation) -> bool:
    """The node itself uses NVSwitches: they are not passed to a VM, and NVLink is not disabled."""
    switches = (one for one in observed.pci if one.class_id.startswith("0680"))
    return not observed.nvlink_off and any(one.driver not in PASSTHROUGH for one in switches)


def _fabric(observed: ChainObservation, wanted: Wanted) -> Check:
    reporting = [gpu for gpu in observed.nvml.gpus if gpu.fabric_state not in NO_FABRIC]
    wrong: dict[str, list[str]] = {}
    for gpu in reporting:
        status = "" if gpu.fabric_status in ("", "success") else f" with {gpu.fabric_status}"
        if gpu.fabric_state != "completed" or status:
            text = f"{gpu.fabric_state}{status if gpu.fabric_state == 'completed' else ''}"
            wrong.setdefault(text, []).append(f"GPU {gpu.index}")
    if wrong:
        found = "; ".join(f"{some(gpus)}: {text}" for text, gpus in wrong.items())
        evidence = f"the NVLink fabric is not up: {found}"
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
        found = (
            "the node has NVSwitches, and Fabric Manager runs; the GPUs do not report the fabric"
        )
        return _ok("fabric", found)
    found = "the node has NVSwitches, and Fabric Manager does not run"
    return Check("fabric", FAILED, found, remedies.cuda(802))


def _in_container(name: str, observed: ChainObservation) -> Check:
    found = f"a container of the GPU Operator has the driver ({observed.driver_root})"
    return Check(name, NOT_APPLICABLE, found)


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
        node, whose = nodes.get(path), names.get(path, "")
        if node is None:
            wrong[path] = f"{path} is missing{whose}"
        elif not node.character:
            kind = f"a {node.kind}, " if node.kind else ""
            wrong[path] = f"{path} is {kind}not a device{whose}"
        elif (node.major, node.minor) != numbers:
            here = f"{node.major}:{node.minor}"
            wrong[path] = f"{path} is {here} instead of {numbers[0]}:{numbers[1]}{whose}"
    return wrong


def _create(observed: ChainObservation, wrong: Iterable[str]) -> str:
    there = dict(observed.nodes)
    return remedies.device_nodes([path for path in wrong if path not in there])


def _device_nodes(observed: ChainObservation, wanted: Wanted) -> Check:
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


def gpu_handler(programs: Mapping[str, str], default: str, wanted: Wanted) -> str:
    """The handler by which pods get GPUs: the default one if its program is NVIDIA's; empty if there is none.

    Args:
        programs: program of each handler, empty where only the name is known.
        default: handler of pods that name none.
        wanted: names the handler, or ``auto``.
    """
    if wanted.handler != AUTO:
        return wanted.handler if wanted.handler in programs else ""
    names = [name for name, program in programs.items() if is_nvidias(program or name)]
    ranked = (default, "nvidia", *names)
    found = next((name for name in ranked if name in names), "")
    return found or ("nvidia" if "nvidia" in programs else "")


def _containerd_handler(observed: ChainObservation, wanted: Wanted) -> str:
    """The handler in containerd's configuration files; empty if there is none."""
    found = observed.containerd
    if found is None:
        return ""
    default = found.default or (found.cri.default if found.cri is not None else "")
    return gpu_handler({name: program for name, program, _ in found.handlers}, default, wanted)


def with_registered(observed: ChainObservation, wanted: Wanted) -> Wanted:
    """What to validate, with the handler that gpustate has registered where the validator names none.

    RuntimeClasses name that handler, so another one of NVIDIA's runtime is no replacement.
    """
    used = serving(observed, wanted)
    if used == "bundled" and observed.bundled is not None:
        used = BUNDLED.get(observed.bundled.socket, "")
    registered = observed.registered.get(used, "")
    return replace(wanted, handler=registered) if wanted.handler == AUTO and registered else wanted


def _served_handler(found: CriStatus | None, wanted: Wanted) -> str:
    """The handler of a running runtime; empty if there is none."""
    if found is None:
        return ""
    return gpu_handler({one.name: one.binary for one in found.handlers}, found.default, wanted)


def has_handler(observed: ChainObservation, wanted: Wanted) -> bool:
    """A runtime of this node has a handler that gives containers GPUs."""
    return bool(
        _containerd_handler(observed, wanted)
        or _served_handler(observed.bundled, wanted)
        or _served_handler(observed.crio, wanted)
    )


def containers_apply(observed: ChainObservation, wanted: Wanted) -> bool:
    """Whether the container checks apply: by ``auto``, if anything is set up to give containers GPUs.

    An installed container runtime is no sign of that: many nodes have one for other work.
    """
    if wanted.containers != "auto":
        return wanted.containers == "required"
    return bool(
        observed.ctk
        or observed.runtime_binary
        or observed.cdi
        or observed.kubelet
        or has_handler(observed, wanted)
    )


def serving(observed: ChainObservation, wanted: Wanted) -> str:
    """The runtime that is judged: the kubelet's own, else the one that is in use; empty if none is.

    One of ``bundled`` (the containerd of a Kubernetes distribution), ``crio``, ``docker``, ``containerd``.
    """
    if observed.bundled is not None and observed.bundled.outcome:
        return "bundled"
    endpoint, found = observed.endpoint, observed.containerd
    if "dockerd" in endpoint:
        return "docker"
    if endpoint.endswith("crio.sock"):
        return "crio"
    others: list[str] = [name for name in ("crio", "k3s") if name in observed.other_runtimes]
    if "dockerd" in observed.other_runtimes and not observed.kubelet:
        others.append("docker")
    if wanted.containers != "auto":
        others = []
    if found is not None and found.active:
        handler = not found.disabled and (
            "containerd" in observed.registered or _containerd_handler(observed, wanted)
        )
        return "containerd" if handler or not others or endpoint else others[0]
    # A disabled one is left alone beside another runtime; docker is none beside a configured containerd.
    beside = {"crio", "k3s"}.intersection(others).difference(observed.down)
    configured = "containerd" in observed.registered
    if found is not None and (endpoint or (configured and (found.enabled or not beside))):
        return "containerd"
    if others:
        return others[0]
    return "containerd" if found is not None and (observed.kubelet or found.enabled) else ""


def _no_containers(name: str, observed: ChainObservation, wanted: Wanted) -> Check:
    why = (
        "disabled by containers: none"
        if wanted.containers == "none"
        else "no container toolkit, no CDI specification and no kubelet"
    )
    return Check(name, NOT_APPLICABLE, why)


def _toolkit(observed: ChainObservation, wanted: Wanted) -> Check:
    if not containers_apply(observed, wanted):
        return _no_containers("toolkit", observed, wanted)
    # The GPU Operator keeps the toolkit in a folder of its own.
    aside = [
        program
        for _, program, there in _handlers(observed)
        if there and is_nvidias(program) and not program.startswith(_PATH)
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
            found = f"{program.path} --version ended with {program.status}: {program.first_line}"
            if NO_LOW_LEVEL in program.first_line:
                found = f"the toolkit finds no runc or crun: {found}"
                return Check("toolkit", FAILED, found, remedies.NO_LOW_LEVEL)
            return Check("toolkit", FAILED, found, remedies.TOOLKIT_BROKEN)
    return _ok("toolkit", observed.ctk.first_line if observed.ctk is not None else "")


def _handlers(observed: ChainObservation) -> list[tuple[str, str, bool]]:
    """Handlers of all runtimes: name, program, whether that exists."""
    found = list(observed.containerd.handlers) if observed.containerd is not None else []
    if observed.bundled is not None:
        found += [(one.name, one.binary, one.exists) for one in observed.bundled.handlers]
    return found


def judges(units: Sequence[str], runtimes: Collection[str]) -> bool:
    """Whether an ordering cycle fails the check of the runtime: it has one of these, or what writes the CDI specification."""
    return not {f"{name}.service" for name in (*runtimes, "nvidia-cdi-refresh")}.isdisjoint(units)


def ordering_cycle(units: Sequence[str]) -> str:
    """What an ordering cycle does at boot."""
    return f"each boot leaves out one of {', '.join(units)}: systemd breaks their ordering cycle"


def not_running(runtime: str) -> str:
    """How the evidence of a runtime that does not run begins."""
    return f"{runtime} does not run"


def _runtime(observed: ChainObservation, wanted: Wanted) -> Check:
    if not containers_apply(observed, wanted):
        return _no_containers("runtime", observed, wanted)
    found, used = observed.containerd, serving(observed, wanted)
    if not wanted.handler:
        status = found.cri if found is not None else observed.bundled
        by_cdi = _by_cdi("containerd", status, observed, wanted)
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
        return _by_cri(name, state, observed.bundled, observed, wanted)
    if used == "crio" and observed.crio is not None and observed.crio.outcome:
        return _by_cri("CRI-O", "crio", observed.crio, observed, wanted)
    if found is None or used != "containerd":
        if wanted.containers == "required" and found is None:
            return Check("runtime", FAILED, "containerd is not installed", remedies.NO_CONTAINERD)
        evidence = f"{used} serves containers; its runtime is not checked"
        if not used:
            evidence = (
                f"containerd {'does not run, and nothing uses it' if found else 'is not installed'}"
            )
        return Check("runtime", NOT_APPLICABLE, evidence)
    running = found.cri if found.cri is not None and not found.cri.dead("containerd") else None
    served = _served_handler(running, wanted)
    if found.dump_status != 0:
        evidence = f"{found.dump} ended with {found.dump_status}: {found.dump_error}"
        if served or _by_cdi("containerd", running, observed, wanted):
            evidence += f"; the running process has {served or 'CDI'} until its next restart"
            return Check("runtime", OK, evidence, remedies.CONTAINERD_CONFIG)
        return Check("runtime", FAILED, evidence, remedies.CONTAINERD_CONFIG)
    if not found.active:
        return Check("runtime", FAILED, STOPPED, remedies.CONTAINERD_DOWN)
    if found.disabled and not observed.kubelet:
        evidence = f"containerd serves no CRI: disabled_plugins lists {found.disabled}"
        return Check("runtime", NOT_APPLICABLE, evidence)
    if found.disabled:
        evidence = f"containerd serves no pods: disabled_plugins lists {found.disabled}"
        return Check("runtime", FAILED, evidence, remedies.CRI_DISABLED)
    if found.cri is not None and (dead := found.cri.dead("containerd")):
        return Check("runtime", FAILED, dead, remedies.CRI_DEAD)
    handler = _containerd_handler(observed, wanted)
    if not handler:
        if by_cdi := _by_cdi("containerd", found.cri, observed, wanted):
            return by_cdi
        if served:
            evidence = f"containerd's configuration lacks the handler {served}, which the running process has until its next restart"
            return Check("runtime", OK, evidence, remedies.NO_HANDLER)
        evidence = f"containerd has no runtime handler {_lacking(wanted)} ({found.dump})"
        if names := ", ".join(name for name, _, _ in found.handlers):
            evidence += f"; it has {names}"
        return Check("runtime", FAILED, evidence, remedies.NO_HANDLER)
    binary, there = {name: (program, there) for name, program, there in found.handlers}[handler]
    if not there:
        evidence = f"handler {handler} names {binary}, which does not exist"
        return Check("runtime", FAILED, evidence, remedies.HANDLER_BINARY)
    if not is_nvidias(binary):
        evidence = f"handler {handler} runs {binary}, not nvidia-container-runtime"
        return Check("runtime", FAILED, evidence, remedies.HANDLER_BINARY)
    if found.cri is None or found.cri.outcome != "ok":
        return _ok("runtime", f"containerd runs; handler {handler} is {binary}")
    if lacks := found.cri.missing_handler(handler):
        evidence = f"the running containerd has not read its configuration files: {lacks}"
        return Check("runtime", FAILED, evidence, remedies.NOT_READ)
    one = found.cri.handler(handler)
    if one is not None and not one.kind:
        evidence = f"handler {handler} has no runtime_type"
        return Check("runtime", FAILED, evidence, remedies.NO_TYPE)
    if drivers := found.cri.cgroup_drivers(handler):
        return _cgroup_drivers(drivers, "containerd")
    return _ok("runtime", f"containerd serves CRI; handler {handler} is {binary}")


def _lacking(wanted: Wanted) -> str:
    """The handler that is missing, and what that does."""
    if wanted.handler == AUTO:
        return "for GPUs"
    return f"{wanted.handler}, so pods with runtimeClassName {wanted.handler} fail"


def _cgroup_drivers(drivers: str, unit: str) -> Check:
    remedy = remedies.CGROUP_DRIVERS.replace("UNIT", unit)
    return Check("runtime", FAILED, f"cgroup drivers disagree: {drivers}", remedy)


def _by_cri(
    name: str, state: str, found: CriStatus, observed: ChainObservation, wanted: Wanted
) -> Check:
    """The check of a runtime by what its running process reports.

    Args:
        name: the runtime, for the evidence.
        state: the state that configures it.
        found: its report.
        observed: the node.
        wanted: the handler.
    """
    crio = state == "crio"
    if dead := found.dead(name):
        remedy = remedies.CRI_DEAD if crio else remedies.BUNDLED_DEAD.format(state=state)
        return Check("runtime", FAILED, dead, remedy)
    handler = _served_handler(found, wanted)
    if not handler and found.handlers:
        if by_cdi := _by_cdi(name, found, observed, wanted):
            return by_cdi
        names = ", ".join(one.name for one in found.handlers)
        if crio:
            evidence = (
                f"the running CRI-O has no runtime handler {_lacking(wanted)}; it has {names}"
            )
            return Check("runtime", FAILED, evidence, remedies.NO_CRIO_HANDLER)
        evidence = f"{name} lacks the runtime handler {_lacking(wanted)}; it has {names}"
        remedy = remedies.NO_BUNDLED_HANDLER.format(state=state)
        return Check("runtime", FAILED, evidence, remedy)
    one = found.handler(handler)
    if one is not None and not one.exists:
        evidence = f"handler {handler} names {one.binary}, which does not exist"
        return Check("runtime", FAILED, evidence, remedies.HANDLER_BINARY)
    if drivers := found.cgroup_drivers(handler):
        return _cgroup_drivers(drivers, state)
    has = f" and has the handler {handler}" if handler else "; it does not list its handlers"
    version = f" {found.version}" if crio and found.version else ""
    return _ok("runtime", f"{name}{version} serves CRI{has}")


def _by_cdi(
    name: str, found: CriStatus | None, observed: ChainObservation, wanted: Wanted
) -> Check | None:
    """A runtime without a handler that gives containers GPUs by CDI; ``None`` if it does not, or the handler is wanted."""
    if not needs_no_handler(name.lower(), found, observed, wanted):
        return None
    return _ok("runtime", f"{name} serves CRI; containers get GPUs by CDI, without a handler")


def needs_no_handler(
    name: str, found: CriStatus | None, observed: ChainObservation, wanted: Wanted
) -> bool:
    """A runtime, whose report is ``found``, gives containers GPUs by CDI, and neither policy nor gpustate gave it a handler."""
    if wanted.handler not in (AUTO, "") or name in observed.registered:
        return False
    specs = observed.cdi and wanted.cdi is not False
    return bool(specs) and found is not None and injects_cdi(found)


def needs_cdi(observed: ChainObservation, wanted: Wanted) -> bool:
    """Containers of this node need a CDI specification, or the policy or a service of the node wants one."""
    if wanted.cdi is not None or observed.cdi or observed.cdi_kept or observed.mode == "cdi":
        return wanted.cdi is not False
    docker = "dockerd" in observed.other_runtimes
    return not (docker or (wanted.handler and has_handler(observed, wanted)))


def injects_cdi(found: CriStatus) -> bool:
    """A running runtime gives pods the CDI devices of this node."""
    known = not found.cdi_folders or {"/etc/cdi", "/var/run/cdi", "/run/cdi"} & set(
        found.cdi_folders
    )
    version = re.match(r"v?(\d+)\.", found.version)
    by_version = found.name == "cri-o" or (version is not None and int(version[1]) >= 2)
    return bool(known) and (by_version if found.cdi is None else found.cdi)


def specifications(
    specs: tuple[CdiSpec, ...],
) -> tuple[tuple[CdiSpec, ...], tuple[CdiSpec, ...]]:
    """Specifications that runtimes use, and those of which a later folder defines every device."""
    shadowed: list[CdiSpec] = []
    for number, spec in enumerate(specs):
        folder = spec.path.rpartition("/")[0]
        later = (one for one in specs[number + 1 :] if not one.path.startswith(f"{folder}/"))
        if spec.devices and set(spec.devices) <= {name for one in later for name in one.devices}:
            shadowed.append(spec)
    return tuple(spec for spec in specs if spec not in shadowed), tuple(shadowed)


def _without_cdi(observed: ChainObservation, wanted: Wanted) -> str:
    """That containers get GPUs from the handler of a runtime that reads no CDI specification; empty if some need one."""
    used = serving(observed, wanted)
    found = observed.containerd.cri if observed.containerd and used == "containerd" else None
    found = observed.bundled if used == "bundled" else found
    handler = _served_handler(found, wanted)
    if found is None or not handler or injects_cdi(found):
        return ""
    if wanted.cdi or observed.mode == "cdi":  # NVIDIA's runtime reads it
        return ""
    return f"{found.name} {found.version} does not read it: containers get their GPUs from the handler {handler}"


def _cdi(observed: ChainObservation, wanted: Wanted) -> Check:
    check = _specification(observed, wanted)
    paths = [spec.path for spec in observed.cdi if spec.path in check.evidence]
    kept = [path for path in paths if path == remedies.CDI_KEPT]
    others = [path for path in paths if path not in kept]
    to_remove = check.remedy == remedies.CDI_TWICE
    for path in (others if kept else [])[:1] if to_remove else (kept or others)[:1]:
        check = replace(check, remedy=check.remedy.replace("FILE", path))
    unread = _without_cdi(observed, wanted)
    if not check.failed or not unread or all_held(observed):
        return check
    return Check("cdi", OK, f"{check.evidence}; {unread}", check.remedy)


def _specification(observed: ChainObservation, wanted: Wanted) -> Check:
    if not containers_apply(observed, wanted):
        return _no_containers("cdi", observed, wanted)
    if wanted.cdi is False:
        return Check("cdi", NOT_APPLICABLE, "disabled by cdi: false")
    specs, shadowed = specifications(observed.cdi)
    if not specs and (held := all_held(observed)):
        return Check("cdi", FAILED, held, remedies.ALL_HELD)
    if not specs:
        absent = "no CDI specification for nvidia.com/gpu"
        if not needs_cdi(observed, wanted):
            return Check("cdi", NOT_APPLICABLE, f"{absent}; NVIDIA's runtime needs none")
        return Check("cdi", FAILED, absent, remedies.CDI)
    status = observed.bundled or (observed.containerd.cri if observed.containerd else None)
    if wanted.cdi and status is not None and status.cdi is not None and not injects_cdi(status):
        return Check("cdi", FAILED, cdi_off(status), remedies.CDI_OFF)
    for spec in specs:
        if spec.missing:
            found = f"{spec.path} names missing files: {some(list(spec.missing))}"
            return Check("cdi", FAILED, found, remedies.CDI_STALE)
    if twice := _named_twice(observed.cdi):
        return Check("cdi", FAILED, twice, remedies.CDI_TWICE)
    nodes = {path: f"{node.major}:{node.minor}" for path, node in observed.nodes if node.character}
    for spec in specs:
        for path, _, numbers in (row.rpartition("|") for row in spec.numbers):
            if numbers != nodes.get(path, numbers):
                found = f"{spec.path} has the numbers {numbers} for {path}, which is {nodes[path]}"
                return Check("cdi", FAILED, found, remedies.CDI_STALE)
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
    gone = _gone(observed)
    if gone:
        evidence = f"{names} names MIG devices that no longer exist: {some(gone)}"
        return Check("cdi", FAILED, evidence, remedies.CDI_STALE)
    unused = "".join(
        f"; not used, as a later folder has its devices: {one.path}" for one in shadowed
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


def cdi_off(found: CriStatus) -> str:
    """Why pods get no CDI devices, from the running configuration."""
    if found.cdi is False:
        return f"{found.name} injects no CDI devices: enable_cdi = false"
    return f"{found.name} reads CDI specifications in {', '.join(found.cdi_folders)} only"


def _only_handler(observed: ChainObservation) -> str:
    """That containers get CDI devices from NVIDIA's runtime alone, where containerd is too old to inject them."""
    found = observed.containerd.cri if observed.containerd is not None else None
    match = re.match(r"v?(1\.[0-6])\.", found.version) if found is not None else None
    if match is None:
        return ""
    return f"; containerd {match[1]} does not inject CDI devices itself, NVIDIA's runtime does"


def all_held(observed: ChainObservation) -> str:
    """Evidence if every GPU is in quarantine; empty if one is usable."""
    gpus = observed.nvml.gpus
    if not gpus or not all(observed.held(gpu) for gpu in gpus):
        return ""
    return f"every GPU is in quarantine: {some([one.text for one in observed.quarantine.active])}"


def _gone(observed: ChainObservation) -> list[str]:
    """MIG devices that a specification names and their GPU no longer has."""
    found: list[str] = []
    if not any(gpu.mig_devices for gpu in observed.nvml.gpus):
        return found  # another check fails then: there is no device at all
    for gpu in observed.nvml.gpus:
        names = {
            name
            for spec in observed.cdi
            for name in spec.devices
            if name.startswith(f"{gpu.index}:")
        }
        if gpu.error is None and not observed.held(gpu) and len(names) > len(gpu.mig_devices):
            found += sorted(names)[len(gpu.mig_devices) :]
    return found


def _container(observed: ChainObservation, wanted: Wanted) -> Check:
    if not containers_apply(observed, wanted):
        return _no_containers("container", observed, wanted)
    if observed.containers is None:
        found = "no container was started: an earlier check failed"
        return Check("container", FAILED, found, remedies.EARLIER)
    failure = container_checks.first_failure(observed)
    if failure is not None:
        return Check("container", FAILED, failure.evidence, failure.remedy)
    if not observed.containers:
        if not wanted.handler:
            none = "no runtime handler is configured in the validator"
            return Check("container", NOT_APPLICABLE, none)
        why = "no container could be started"
        if not (has_handler(observed, wanted) or observed.cdi):
            why = "no runtime is configured to give containers GPUs"
        found = f"{NOT_VALIDATED}: {why}"
        if wanted.containers == "required":
            return Check("container", FAILED, found, remedies.NO_HANDLER)
        return Check("container", NOT_APPLICABLE, found)
    return _ok("container", container_checks.summary(observed))


def _health(observed: ChainObservation, wanted: Wanted) -> Check:
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
    return [f"in quarantine: {one.text.replace(';', ',')}" for one in held] + [
        f"the quarantine has ended: {one.text.replace(';', ',')}" for one in ended
    ]


def recovered(observed: ChainObservation) -> set[str]:
    """UUIDs of GPUs on which a kernel ran after everything that the log has: now, or at a validation that saw the same."""
    ran = {one.uuid for one in observed.cuda or () if one.ok}
    if observed.recorded is None:
        return ran
    check = _findings(observed, ran)
    return ran if (check.name, check.evidence) in observed.recorded else set()


def _findings(observed: ChainObservation, ran: set[str]) -> Check:
    """Health of the GPUs that are not in quarantine, on some of which the kernel ran after what the log has of them."""
    out = _quarantined(observed)
    held = {gpu.index for gpu in observed.nvml.gpus if observed.held(gpu)}
    found = [
        one
        for one in health.judge(observed.nvml, observed.log, ran)
        if one.what != "no-answer"  # the check libraries reports it
        and one.gpu not in held
        and not observed.quarantine.holds("", one.pci)
    ]
    bad = health.failed(tuple(found))
    if bad:
        evidence = "; ".join([*(one.text for one in bad[:4]), *out])
        return Check("health", FAILED, evidence, bad[0].remedy)
    well = _well(observed.nvml) - sum(
        gpu.error is None and gpu.index in held for gpu in observed.nvml.gpus
    )
    notes = [one.text for one in found[:4]]
    evidence = "; ".join([f"{_count(well, 'GPU')} healthy", *notes, *out])
    return Check("health", OK, evidence, "; ".join(dict.fromkeys(one.remedy for one in found[:4])))


def cuda_failures(observed: ChainObservation) -> list[CudaResult]:
    """Results of the kernel on devices that fail the check: not of those in quarantine, or in use."""
    return [
        one
        for one in observed.cuda or ()
        if not one.ok and not one.users and not observed.quarantine.holds(one.uuid, "")
    ]


def _cuda(observed: ChainObservation, wanted: Wanted) -> Check:
    if not wanted.cuda:
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
    tested = [one for one in observed.cuda if not observed.quarantine.holds(one.uuid, "")]
    failed = cuda_failures(observed)
    passed = [one for one in tested if one.ok]
    if failed:
        first = failed[0]
        number = "" if first.error is None else f" (CUDA {first.error})"
        found = f"{first.uuid}: {first.text}{number}; {len(passed)} of {len(tested)} devices ok"
        remedy = remedies.cuda(first.error, first.text)
        for gpu in observed.nvml.gpus:
            if first.uuid in (gpu.uuid, *(mig.uuid for mig in gpu.mig_devices)):
                remedy = remedy.replace("INDEX", str(gpu.index))
        return Check("cuda", FAILED, found, remedy)
    untested = sorted(set(cuda_devices(observed)) - {one.uuid for one in observed.cuda})
    if untested:
        return Check(
            "cuda", FAILED, f"the kernel did not run on {some(untested)}", remedies.EARLIER
        )
    used = [
        f"{one.uuid} is in use by PID {some(list(one.users), 2)}: not tested"
        for one in tested
        if one.users
    ]
    if not passed:
        return Check("cuda", NOT_APPLICABLE, "; ".join(used) or "every device is in quarantine")
    slowest = max(one.elapsed_s for one in passed)
    found = (
        f"kernel ran on {_count(len(passed), 'device')}, results correct; slowest {slowest:.1f} s"
    )
    return _ok("cuda", "; ".join([found, *used]))


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

    A recorded test stands for what its own validation observed: what has failed since is no note. Nor is an ordering
    cycle, for no test knows the next boot, or a runtime that does not run, for it started none of the containers.
    """
    notes = tested(checks)
    untested = tuple(map(ordering_cycle, observed.cycles)) + tuple(map(not_running, observed.down))
    found: list[Check] = []
    for check in checks:
        if check.failed and check.name in notes and not check.evidence.startswith(untested):
            note = replace(check, outcome=OK, evidence=f"{check.evidence}; {notes[check.name]}")
            known = observed.recorded
            if known is None or (note.name, note.evidence) in known:
                found.append(note)
                continue
        found.append(check)
    return tuple(found)


def judge(observed: ChainObservation, wanted: Wanted | None = None) -> tuple[Check, ...]:
    """Return every check, in order, each by its own observation."""
    wanted = with_registered(observed, wanted or observed.wanted)
    links = (
        *(check_pci, _driver, _libraries, _fabric, _device_nodes, _toolkit, _runtime, _cdi),
        *(_container, _health, _cuda),
    )
    return tuple(link(observed, wanted) for link in links)


def evaluate(observed: ChainObservation, wanted: Wanted | None = None) -> tuple[Check, ...]:
    """Return every check, in order; a passed end-to-end test turns failures of what it tests into notes."""
    return with_notes(judge(observed, wanted), observed)


def first_broken(checks: tuple[Check, ...]) -> Check | None:
    """The first check that failed, which is the cause; ``None`` if none did."""
    return next((check for check in checks if check.failed), None)
