"""The chain of checks: from GPUs on PCI to a CUDA kernel that ran on every one of them.

Each check depends on those before it, so the first that fails is the cause and the rest are symptoms.
Pure: takes an observation and returns checks, each with its evidence and its remedy.

This module also runs on the nodes themselves: standard library only, Python 3.9.

Sources:
    NVIDIA/gpu-operator, cmd/nvidia-validator: the order driver, toolkit, cuda;
    cuda.h, CUresult: the meaning of the error numbers;
    NVIDIA/nvidia-container-toolkit, internal/oci: "no runtime binary found from candidate list".
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpustate.diagnosis import container_checks, health
from gpustate.diagnosis import remedies as remedies
from gpustate.diagnosis.chain_data import PASSTHROUGH
from gpustate.diagnosis.chain_data import ChainObservation as ChainObservation
from gpustate.diagnosis.chain_data import ContainerResult as ContainerResult
from gpustate.diagnosis.chain_data import CudaResult as CudaResult
from gpustate.diagnosis.chain_data import Key as Key
from gpustate.diagnosis.chain_data import Wanted as Wanted
from gpustate.diagnosis.chain_data import cuda_devices as cuda_devices
from gpustate.diagnosis.chain_data import key as key
from gpustate.diagnosis.container_checks import some
from gpustate.formats.nvml_report import Gpu, NvmlFacts, error_name
from gpustate.probes.cri_status import BUNDLED

OK = "ok"
FAILED = "failed"
NOT_APPLICABLE = "not applicable"

LINKS = (
    *("pci", "driver", "libraries", "fabric", "device-nodes", "toolkit", "runtime", "cdi"),
    *("container", "health", "cuda"),
)
#: What NVML says of a GPU without an NVLink fabric.
NO_FABRIC = ("", "not supported", "n/a")

#: nvidia-container-runtime's message if none of the runtimes it may call is installed.
NO_LOW_LEVEL = "no runtime binary found"
#: Major number of /dev/nvidia0 and its like, fixed since the first drivers.
NVIDIA_MAJOR = 195


@dataclass(frozen=True)
class Check:
    """One check: its name, outcome, evidence and remedy."""

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


def _pci(observed: ChainObservation, wanted: Wanted) -> Check:
    held = [one for one in observed.pci if one.is_gpu and one.driver in PASSTHROUGH]
    aside = f"; {_count(len(held), 'GPU')} bound to vfio for virtual machines" if held else ""
    if not observed.gpus:
        return Check("pci", FAILED, f"no NVIDIA GPU on PCI{aside}", remedies.NO_GPU)
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
    versions.update(observed.packages)
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
        return Check("libraries", FAILED, found + more, remedies.nvml(broken[0].error or 999))
    if nvml.error is not None:
        found = f"NVML {nvml.error}: {nvml.error_text or error_name(nvml.error)}"
        dangling = dict(observed.odd).get("libnvidia-ml.so.1") if nvml.error == 12 else None
        found += f"; {dangling}" if dangling else ""
        return Check("libraries", FAILED, found, remedies.nvml(nvml.error))
    if observed.cuda_library is None:
        found = _absent(observed, "libcuda.so.1")
        return Check("libraries", FAILED, found, remedies.NO_LIBCUDA)
    absent = sorted(
        {one.address for one in observed.gpus if not observed.quarantine.holds("", one.address)}
        - {gpu.pci for gpu in nvml.gpus}
    )
    if absent:
        found = (
            f"NVML sees {len(nvml.gpus)} of {_count(len(observed.gpus), 'GPU')}; not {some(absent)}"
        )
        return Check("libraries", FAILED, found, remedies.NOT_IN_NVML)
    found = f"NVML {nvml.nvml_version} answers for {_count(_well(nvml), 'GPU')}; CUDA {nvml.cuda_version}"
    return _ok("libraries", found)


def reported_fabric(observed: ChainObservation) -> Check | None:
    """State of the NVLink fabric by what the GPUs report; ``None`` if they report none."""
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
    manager = "; Fabric Manager runs" if observed.manager else ""
    complete = f"complete on {_count(len(reporting), 'GPU')}{manager}"
    return _ok("fabric", complete) if reporting else None


def has_switches(observed: ChainObservation) -> bool:
    """The node itself uses NVSwitches: they are not passed to a VM."""
    switches = (one for one in observed.pci if one.class_id.startswith("0680"))
    return any(one.driver not in PASSTHROUGH for one in switches)


def managed_fabric(switches: bool, manager: bool | None, observed: ChainObservation) -> Check:
    """The fabric of GPUs that do not report it, as A100: with NVSwitches, no CUDA program starts without Fabric Manager.

    Args:
        switches: the node uses NVSwitches.
        manager: Fabric Manager runs; ``None`` if that is unknown.
        observed: what the GPUs are.
    """
    gpus = observed.nvml.gpus
    in_parts = bool(gpus) and all(gpu.mig_current for gpu in gpus)  # these use no NVLink
    if not switches or manager is None or (not manager and in_parts):
        return Check("fabric", NOT_APPLICABLE, "the GPUs report no NVLink fabric")
    if manager:
        found = (
            "the node has NVSwitches, and Fabric Manager runs; the GPUs do not report the fabric"
        )
        return _ok("fabric", found)
    found = "the node has NVSwitches, and Fabric Manager does not run"
    return Check("fabric", FAILED, found, remedies.cuda(802))


def _fabric(observed: ChainObservation, wanted: Wanted) -> Check:
    check = reported_fabric(observed)
    if check is None:
        check = managed_fabric(has_switches(observed), observed.manager, observed)
    if check.failed and observed.cuda and all(one.ok for one in observed.cuda):
        return _ok("fabric", f"{check.evidence}; CUDA runs all the same")
    return check


def _device_nodes(observed: ChainObservation, wanted: Wanted) -> Check:
    majors = dict(observed.majors)
    nodes = dict(observed.nodes)
    major = majors.get("nvidia", majors.get("nvidia-frontend", NVIDIA_MAJOR))
    expected = {
        f"/dev/nvidia{gpu.minor}": (major, gpu.minor)
        for gpu in observed.module_gpus
        if gpu.minor >= 0
    }
    expected["/dev/nvidiactl"] = (major, 255)
    wrong: list[str] = []
    if "nvidia-uvm" in majors:
        expected["/dev/nvidia-uvm"] = (majors["nvidia-uvm"], 0)
    else:
        wrong.append("the module nvidia-uvm is not loaded")
    names = {path: f" ({name})" for path, _, name in observed.capabilities}
    major = majors.get("nvidia-caps", -1)
    expected |= {path: (major, minor) for path, minor, _ in observed.capabilities}
    for path, numbers in sorted(expected.items(), key=lambda one: ("-caps/" in one[0], one[0])):
        node, whose = nodes.get(path), names.get(path, "")
        if node is None:
            wrong.append(f"{path} is missing{whose}")
        elif not node.character:
            kind = f"a {node.kind}, " if node.kind else ""
            wrong.append(f"{path} is {kind}not a device{whose}")
        elif (node.major, node.minor) != numbers:
            wrong.append(
                f"{path} is {node.major}:{node.minor} instead of {numbers[0]}:{numbers[1]}{whose}"
            )
    if wrong:
        return Check("device-nodes", FAILED, some(wrong), remedies.DEVICE_NODES)
    return _ok("device-nodes", f"{_count(len(expected), 'node')} in /dev with the right numbers")


def containers_apply(observed: ChainObservation, wanted: Wanted) -> bool:
    """Whether the container checks apply: by ``auto``, if anything is set up to give containers GPUs.

    An installed container runtime is no sign of that: many nodes have one for other work.
    """
    if wanted.containers != "auto":
        return wanted.containers == "required"
    handlers = observed.containerd.handlers if observed.containerd is not None else ()
    return bool(
        observed.ctk
        or observed.runtime_binary
        or observed.cdi
        or observed.kubelet
        or any(name == wanted.handler for name, _, _ in handlers)
    )


def served_elsewhere(observed: ChainObservation, wanted: Wanted) -> str:
    """The runtime that serves containers instead of containerd; empty if none is known."""
    if wanted.containers != "auto":
        return ""
    others = [n for n in observed.other_runtimes if n in ("crio", "k3s")]
    if "dockerd" in observed.other_runtimes and not observed.kubelet:
        others.append("docker")
    return others[0] if others else ""


def runs_instead(observed: ChainObservation) -> bool:
    """Whether CRI-O or the containerd of a distribution answers over CRI."""
    crio = observed.crio if "crio" in observed.other_runtimes else None
    return any(one is not None and one.outcome for one in (crio, observed.bundled))


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
    for name, program in (
        ("nvidia-ctk", observed.ctk),
        ("nvidia-container-runtime", observed.runtime_binary),
    ):
        if program is None:
            return Check("toolkit", FAILED, _absent(observed, name), remedies.NO_TOOLKIT)
        if program.status != 0:
            found = f"{program.path} --version ended with {program.status}: {program.first_line}"
            if NO_LOW_LEVEL in program.first_line:
                found = f"the toolkit finds no runc or crun: {found}"
                return Check("toolkit", FAILED, found, remedies.NO_LOW_LEVEL)
            return Check("toolkit", FAILED, found, remedies.TOOLKIT_BROKEN)
    return _ok("toolkit", observed.ctk.first_line if observed.ctk is not None else "")


def _runtime(observed: ChainObservation, wanted: Wanted) -> Check:
    if not containers_apply(observed, wanted):
        return _no_containers("runtime", observed, wanted)
    if not wanted.handler:
        return Check("runtime", NOT_APPLICABLE, "no runtime handler is configured in the validator")
    found = observed.containerd
    if found is None:
        if wanted.containers == "required":
            return Check("runtime", FAILED, "containerd is not installed", remedies.NO_CONTAINERD)
        return _instead(observed, wanted) or Check(
            "runtime", NOT_APPLICABLE, "containerd is not installed"
        )
    if found.dump_status != 0:
        evidence = f"{found.dump} ended with {found.dump_status}: {found.dump_error}"
        return Check("runtime", FAILED, evidence, remedies.CONTAINERD_CONFIG)
    handlers = {name: (binary, there) for name, binary, there in found.handlers}
    other = served_elsewhere(observed, wanted)
    if found.disabled and (other or not observed.kubelet):
        evidence = f"containerd serves no CRI: disabled_plugins lists {found.disabled}"
        return _instead(observed, wanted) or Check("runtime", NOT_APPLICABLE, evidence)
    elsewhere = not found.active and runs_instead(observed)
    if other and (elsewhere or wanted.handler not in handlers):
        evidence = f"{other} serves containers; its runtime is not checked"
        return _instead(observed, wanted) or Check("runtime", NOT_APPLICABLE, evidence)
    if wanted.handler not in handlers and (judged := _bundled(observed, wanted)) is not None:
        return judged
    if not found.active:
        return Check("runtime", FAILED, "containerd is not running", remedies.CONTAINERD_DOWN)
    if found.disabled:
        evidence = f"containerd serves no pods: disabled_plugins lists {found.disabled}"
        return Check("runtime", FAILED, evidence, remedies.CRI_DISABLED)
    if found.cri is not None and (dead := found.cri.dead("containerd")):
        return Check("runtime", FAILED, dead, remedies.CRI_DEAD)
    if wanted.handler not in handlers:
        evidence = f"containerd has no runtime handler {wanted.handler} ({found.dump})"
        return Check("runtime", FAILED, evidence, remedies.NO_HANDLER)
    binary, there = handlers[wanted.handler]
    if not there:
        evidence = f"handler {wanted.handler} names {binary}, which does not exist"
        return Check("runtime", FAILED, evidence, remedies.HANDLER_BINARY)
    if "nvidia" not in binary.rpartition("/")[2]:
        evidence = f"handler {wanted.handler} runs {binary}, not nvidia-container-runtime"
        return Check("runtime", FAILED, evidence, remedies.HANDLER_BINARY)
    if found.cri is None or found.cri.outcome != "ok":
        return _ok("runtime", f"containerd runs; handler {wanted.handler} is {binary}")
    if lacks := found.cri.lacks(wanted.handler):
        evidence = f"the running containerd has not read its configuration files: {lacks}"
        return Check("runtime", FAILED, evidence, remedies.NOT_READ)
    if drivers := found.cri.cgroup_drivers(wanted.handler):
        evidence = f"cgroup drivers disagree: {drivers}"
        return Check("runtime", FAILED, evidence, remedies.CGROUP_DRIVERS)
    return _ok("runtime", f"containerd serves CRI; handler {wanted.handler} is {binary}")


def _instead(observed: ChainObservation, wanted: Wanted) -> Check | None:
    """The check of another runtime that the kubelet uses; ``None`` if there is none, or nothing is known of it."""
    return _crio(observed, wanted) or _bundled(observed, wanted)


def _bundled(observed: ChainObservation, wanted: Wanted) -> Check | None:
    """The containerd of a Kubernetes distribution; ``None`` if none runs, or nothing is known of it."""
    found = observed.bundled
    if found is None or not found.outcome:
        return None
    state = BUNDLED.get(found.socket, "k3s")
    name = f"the containerd of {state}"
    if dead := found.dead(name):
        return Check("runtime", FAILED, dead, remedies.BUNDLED_DEAD.format(state=state))
    if lacks := found.lacks(wanted.handler):
        evidence = f"{name} lacks the runtime handler: {lacks}"
        remedy = remedies.NO_BUNDLED_HANDLER.format(state=state)
        return Check("runtime", FAILED, evidence, remedy)
    if drivers := found.cgroup_drivers(wanted.handler):
        return Check(
            "runtime", FAILED, f"cgroup drivers disagree: {drivers}", remedies.CGROUP_DRIVERS
        )
    return _ok("runtime", f"{name} serves CRI and has the handler {wanted.handler}")


def _crio(observed: ChainObservation, wanted: Wanted) -> Check | None:
    """CRI-O by its own status; ``None`` if it does not run, or nothing is known of it."""
    found = observed.crio
    if found is None or not found.outcome or "crio" not in observed.other_runtimes:
        return None
    if dead := found.dead("CRI-O"):
        return Check("runtime", FAILED, dead, remedies.CRI_DEAD)
    if lacks := found.lacks(wanted.handler):
        evidence = f"the running CRI-O has no runtime handler {wanted.handler}: {lacks}"
        return Check("runtime", FAILED, evidence, remedies.NO_CRIO_HANDLER)
    if not found.handlers:
        return None
    return _ok("runtime", f"CRI-O {found.version} serves CRI and has the handler {wanted.handler}")


def _cdi(observed: ChainObservation, wanted: Wanted) -> Check:
    if not containers_apply(observed, wanted):
        return _no_containers("cdi", observed, wanted)
    if not wanted.cdi:
        return Check("cdi", NOT_APPLICABLE, "disabled by cdi: false")
    if not observed.cdi and (held := _all_held(observed)):
        return Check("cdi", FAILED, held, remedies.ALL_HELD)
    if not observed.cdi:
        return Check("cdi", FAILED, "no CDI specification for nvidia.com/gpu", remedies.CDI)
    for spec in observed.cdi:
        if spec.missing:
            found = f"{spec.path} names missing files: {some(list(spec.missing))}"
            return Check("cdi", FAILED, found, remedies.CDI_STALE)
    have = {device for spec in observed.cdi for device in spec.devices}
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
        found = f"{', '.join(spec.path for spec in observed.cdi)}: no device for {some(lacking)}"
        return Check("cdi", FAILED, found, remedies.CDI_STALE)
    gone = _gone(observed)
    if gone:
        found = f"{', '.join(spec.path for spec in observed.cdi)} names MIG devices that no longer exist: {some(gone)}"
        return Check("cdi", FAILED, found, remedies.CDI_STALE)
    return _ok(
        "cdi",
        f"{', '.join(spec.path for spec in observed.cdi)}: {_count(len(have), 'device')}, every file exists"
        + _only_handler(observed),
    )


def _only_handler(observed: ChainObservation) -> str:
    """That containers get CDI devices from NVIDIA's runtime alone, where containerd is too old to inject them."""
    found = observed.containerd.cri if observed.containerd is not None else None
    match = re.match(r"v?(1\.[0-6])\.", found.version) if found is not None else None
    if match is None:
        return ""
    return f"; containerd {match[1]} does not inject CDI devices itself, NVIDIA's runtime does"


def _all_held(observed: ChainObservation) -> str:
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
        return Check("container", FAILED, failure.evidence, failure.kind.remedy)
    if not observed.containers:
        return Check(
            "container", NOT_APPLICABLE, "no runtime is configured to give containers GPUs"
        )
    return _ok("container", container_checks.summary(observed))


def _health(observed: ChainObservation, wanted: Wanted) -> Check:
    if observed.quarantine.problem:
        return Check("health", FAILED, observed.quarantine.problem, remedies.QUARANTINE_FILE)
    # The parts of the evidence are separated by semicolons, which a reason may have.
    held_out, ended = observed.quarantine.active, observed.quarantine.expired
    out = [f"in quarantine: {one.text.replace(';', ',')}" for one in held_out]
    out += [f"the quarantine has ended: {one.text.replace(';', ',')}" for one in ended]
    if not any(gpu.error is None for gpu in observed.nvml.gpus):
        return Check("health", NOT_APPLICABLE, "; ".join(["no GPU answers", *out]))
    if all_held := _all_held(observed):
        return Check("health", FAILED, all_held, remedies.ALL_HELD)
    held = {gpu.index for gpu in observed.nvml.gpus if observed.held(gpu)}
    found = [
        one
        for one in health.judge(observed.nvml, observed.log)
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
    notes = [f"{one.text} ({one.remedy})" for one in found[:4]]
    return _ok("health", "; ".join([f"{_count(well, 'GPU')} healthy", *notes, *out]))


def _cuda(observed: ChainObservation, wanted: Wanted) -> Check:
    if not wanted.cuda:
        return Check("cuda", NOT_APPLICABLE, "disabled by cuda: false")
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
    failed = [one for one in tested if not one.ok]
    if failed:
        first = failed[0]
        number = "" if first.error is None else f" (CUDA {first.error})"
        found = f"{first.uuid}: {first.text}{number}; {len(tested) - len(failed)} of {len(tested)} devices ok"
        return Check("cuda", FAILED, found, remedies.cuda(first.error))
    untested = sorted(set(cuda_devices(observed)) - {one.uuid for one in observed.cuda})
    if untested:
        return Check(
            "cuda", FAILED, f"the kernel did not run on {some(untested)}", remedies.EARLIER
        )
    slowest = max(one.elapsed_s for one in observed.cuda)
    return _ok(
        "cuda",
        f"kernel ran on {_count(len(observed.cuda), 'device')}, results correct; slowest {slowest:.1f} s",
    )


def evaluate(observed: ChainObservation, wanted: Wanted | None = None) -> tuple[Check, ...]:
    """Return every check, in order; later ones are evaluated even if an earlier one failed."""
    wanted = wanted or observed.wanted
    links = (
        *(_pci, _driver, _libraries, _fabric, _device_nodes, _toolkit, _runtime, _cdi),
        *(_container, _health, _cuda),
    )
    return tuple(link(observed, wanted) for link in links)


def first_broken(checks: tuple[Check, ...]) -> Check | None:
    """The first check that failed, which is the cause; ``None`` if none did."""
    return next((check for check in checks if check.failed), None)
