"""The link ``container``: a container that this node's runtime starts gets its GPUs.

What failed is recognised by the words of the program that failed (containerd, runc, NVIDIA's runtime and
hooks), so each way to fail has a reason and a next step of its own. Pure.

This module also runs on the nodes themselves: standard library only, Python 3.9.

Sources:
    opencontainers/runc, libcontainer ("error mounting", "error running hook", cgroupsPath);
    NVIDIA/nvidia-container-toolkit, internal/modifier and internal/oci; cncf/container-device-interface,
    pkg/cdi ("unresolvable CDI devices", "failed to stat CDI host device");
    containerd, runtime/v2 ("runtime ... binary not installed").
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpustate.diagnosis import remedies as remedies
from gpustate.diagnosis.chain_data import ChainObservation, ContainerResult


@dataclass(frozen=True)
class Kind:
    """One way in which a container does not get its GPUs.

    Args:
        name: ``explain`` calls the cause ``container-`` and this.
        says: what failed, in a few words.
        remedy: the next step.
        state: the state whose apply repairs it; empty when none does.
        pattern: how the runtime's error is recognised; empty where it is not by that.
    """

    name: str
    says: str
    remedy: str
    state: str = ""
    pattern: str = ""


_STALE = "generate the CDI specification again: gpustate apply with the state cdi, or systemctl restart nvidia-cdi-refresh"
_PACKAGES = "install the container toolkit's packages again: gpustate apply with the state container-toolkit"

#: Found before a container is started, or in one that ran.
OBSERVED = (
    Kind("runtime-silent", "the runtime does not answer",
         "systemctl status of it and its journal say why; then start it", "containerd"),
    Kind("cri-dead", "containerd runs without its CRI plugin, so that no pod can start",
         "ctr plugins ls -d id==cri has the error; fix the configuration it names, and restart containerd"),
    Kind("cri-not-ready", "the runtime says of itself that it is not ready",
         "crictl info has its conditions; fix what they name, and restart it"),
    Kind("no-handler", "the runtime has no handler for GPUs", remedies.NO_HANDLER, "containerd"),
    Kind("handler-not-read", "the running containerd does not have the handler that its files have",
         "restart it: gpustate apply with the state containerd, or systemctl restart containerd", "containerd"),
    Kind("cgroup-drivers", "cgroup drivers disagree",
         "set SystemdCgroup of both runtimes, and cgroupDriver of the kubelet, to the same driver"),
    Kind("no-image", "no image for the test can be made of this node's Python",
         "install python3 (the whole, not python3-minimal)"),
    Kind("nothing-injected", "a container runs and is given nothing of the driver",
         "the handler's program must be nvidia-container-runtime, and its config.toml must accept the request; "
         "nvidia-container-runtime.debug names a log file", "container-toolkit"),
    Kind("gpus-missing", "GPUs are missing in the container", _STALE, "cdi"),
    Kind("library-missing", "a library of the driver is missing in the container", _STALE, "cdi"),
    Kind("denied", "the container may not open its device nodes",
         "look for denials in dmesg and journalctl (apparmor, avc), at permissions in the CDI specification, and at the device cgroup"),
    Kind("dev-char", "the container would lose its GPUs at the next systemctl daemon-reload",
         "make the links: gpustate apply with the state dev-char", "dev-char"),
    Kind("cuda", "the CUDA kernel fails in the container, and runs on the node itself",
         "compare the driver's files named here with ldconfig -p on the node; a library that is missing or of another version is at fault"),
)  # fmt: skip

#: Recognised by the runtime's words, in this order.
REPORTED = (
    Kind("disk-full", "there is no room for a container or its image",
         "free room in the runtime's folder (ctr -n k8s.io images ls, docker system df), or enlarge its file system",
         pattern=r"no space left on device|disk quota exceeded"),
    Kind("low-level-missing", "NVIDIA's runtime finds no runc or crun", remedies.NO_LOW_LEVEL,
         pattern=r"no runtime binary found"),
    Kind("shim-missing", "containerd's shim is missing",
         "install the package that brings it again (containerd, containerd.io)",
         pattern=r"binary not installed|containerd-shim-\S*: (?:executable file not found|no such file)"),
    Kind("toolkit-config", "NVIDIA's runtime cannot use its configuration",
         remedies.TOOLKIT_CONFIG, "container-toolkit",
         pattern=r"error loading config|unable to load config|unrecognized runtime mode|invalid runtime mode|invalid mode|failed to .*load.* config"),
    Kind("handler-binary", "the handler's program cannot be started",
         remedies.HANDLER_BINARY, "container-toolkit",
         pattern=r"exec:? \"?\S*nvidia-container-runtime[^ \":]*\"?: |unable to retrieve OCI runtime error.*nvidia-container-runtime"),
    Kind("legacy", "mode legacy needs nvidia-container-cli, which fails",
         "use CDI: gpustate apply with the state container-toolkit and mode auto or cdi, or install libnvidia-container-tools in the toolkit's version",
         "container-toolkit",
         pattern=r"nvidia-container-cli|auto-detected mode as 'legacy'"),
    Kind("not-accepted", "NVIDIA's runtime refuses the container's request for GPUs",
         "the keys accept-nvidia-visible-devices-... of /etc/nvidia-container-runtime/config.toml decide: accept one of the two, or CDI",
         "container-toolkit",
         pattern=r"insufficient privileges"),
    Kind("cdi-unresolved", "the runtime finds no CDI device of that name",
         remedies.CDI, "cdi",
         pattern=r"unresolvable CDI device"),
    Kind("device-missing", "a device node that the CDI specification names does not exist", _STALE, "cdi",
         pattern=r"failed to stat CDI host device|CDI host device|error creating device nodes|gathering device information"),
    Kind("file-missing", "a file that the CDI specification names does not exist", _STALE, "cdi",
         pattern=r"error mounting \"[^\"]+\".*no such file or directory|mount source .*does not exist|"
                 r"(?:mount|stat) `?[^ `]+`?.*: No such file or directory"),
    Kind("hook-missing", "a hook's program does not exist or cannot be run", _PACKAGES, "container-toolkit",
         pattern=r"(?:hook|fork/exec) .*nvidia-c[a-z-]+(?:hook|ctk)?: (?:no such file|permission denied|exec format)|"
                 r"error running .*hook.*(?:no such file or directory|permission denied|not found)"),
    Kind("hook-failed", "a hook fails",
         "its own words are above; nvidia-container-runtime.debug in config.toml names a log file", pattern=r"hook"),
    Kind("cgroup-path", "the runtime and its handler want different cgroup drivers",
         "set SystemdCgroup of both runtimes to the same value", pattern=r"expected cgroupsPath"),
    Kind("apparmor", "AppArmor refuses the container",
         "journalctl -k | grep apparmor names the profile; load or change it", pattern=r"apparmor"),
    Kind("selinux", "SELinux refuses the container",
         "ausearch -m avc names the rule; allow it (setsebool container_use_devices on)", pattern=r"(?i:selinux)|avc: +denied"),
    Kind("seccomp", "the seccomp profile refuses the container",
         "the profile of the runtime's configuration refuses a call; change it", pattern=r"seccomp"),
    Kind("timeout", "the container did not finish in time",
         "look for processes in state D (ps -eo pid,stat,args), and at the load of the node", pattern=r"did not finish within"),
    Kind("refused", "the kernel refuses what the container needs",
         "look for denials in dmesg and journalctl", pattern=r"(?i:permission denied|operation not permitted)"),
    Kind("not-started", "no container starts", "the journal of the runtime says more", pattern=r""),
)  # fmt: skip

KINDS = (*OBSERVED, *REPORTED)
_BY_NAME = {kind.name: kind for kind in KINDS}
_NOISE = re.compile(r'time="[^"]*" level=\w+ msg=')


@dataclass(frozen=True)
class Failure:
    """How one container failed."""

    kind: Kind
    evidence: str


def short(text: str, most: int = 360) -> str:
    """The runtime's words in one line, without times and levels; a long text keeps its end, where the reason is."""
    line = " ".join(_NOISE.sub("", text).split())
    return line if len(line) <= most else f"... {line[-most:]}"


def classify(error: str) -> Kind:
    """The kind that a runtime's error is of."""
    return next(kind for kind in REPORTED if re.search(kind.pattern, error))


def _some(items: list[str], most: int = 4) -> str:
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more


def injected(result: ContainerResult) -> str:
    """What the container was given."""
    libraries = sum(".so" in path for path in result.files)
    return f"{len(result.devices)} device nodes and {len(result.files)} files, {libraries} of them libraries"


def named(result: ContainerResult) -> str:
    """What the container was given, by name."""
    nodes = [path.removeprefix("/dev/") for path in result.devices]
    names = sorted(path.rpartition("/")[2] for path in result.files if ".so" in path)
    return f"{_some(nodes, 16) or 'no device node'}; {_some(names, 8) or 'no library'}"


def _ran(result: ContainerResult, expected: tuple[str, ...]) -> tuple[str, str] | None:
    """Kind and words of what is wrong with a container that ran; ``None`` when nothing is."""
    if not result.devices and not result.files:
        return "nothing-injected", result.nvml_error
    if result.denied:
        return "denied", f"{_some(list(result.denied))} (Operation not permitted)"
    missing = [uuid for uuid in expected if uuid not in result.gpus]
    if result.nvml_error and not result.gpus:
        return "library-missing", result.nvml_error
    if missing:
        return (
            "gpus-missing",
            f"{len(expected) - len(missing)} of {len(expected)}; not {_some(missing)}",
        )
    if result.cuda_text:
        lost = "cannot be loaded" in result.cuda_text
        number = "" if result.cuda_error is None else f" (CUDA {result.cuda_error})"
        return "library-missing" if lost else "cuda", f"{result.cuda_text}{number}"
    if result.unlinked:
        return "dev-char", f"no link below /dev/char for {_some(list(result.unlinked))}"
    return None


def failure(result: ContainerResult, expected: tuple[str, ...]) -> Failure | None:
    """How a container failed; ``None`` when it has every GPU expected in it, and the kernel ran on them."""
    if result.kind:
        kind, words = _BY_NAME[result.kind], result.error
    elif result.error:
        kind, words = classify(result.error), short(result.error)
    else:
        found = _ran(result, expected)
        if found is None:
            return None
        kind, words = _BY_NAME[found[0]], f"{found[1]}; injected: {named(result)}"
    return Failure(kind, f"{result.way}: {kind.says}: {words}")


def expected_gpus(observed: ChainObservation) -> tuple[str, ...]:
    """UUIDs of the GPUs that a container with all of them must list: those that answer and are not excluded."""
    return tuple(
        gpu.uuid
        for gpu in observed.nvml.gpus
        if gpu.uuid and gpu.error is None and not observed.held(gpu)
    )


def first_failure(observed: ChainObservation) -> Failure | None:
    """How the first container that failed did so; ``None`` when none did, or none was started."""
    found = (failure(one, expected_gpus(observed)) for one in observed.containers or ())
    return next((one for one in found if one is not None), None)


def summary(observed: ChainObservation) -> str:
    """Evidence of a link that holds."""
    rows = [
        f"{one.way}: {len(one.gpus)} GPUs, {injected(one)}"
        + (f", kernel ran on {one.cuda_ok}" if one.cuda_ok else "")
        for one in observed.containers or ()
    ]
    return "; ".join(rows)
