"""The check ``container``: a container that this node's runtime starts gets its GPUs.

A failure is recognised by the message of the program that failed (containerd, runc, NVIDIA's runtime and
hooks), so each kind of failure has its own reason and remedy. Pure.

This module also runs on the nodes themselves: standard library only, Python 3.9.

Sources:
    opencontainers/runc, libcontainer ("error mounting", "error running hook", cgroupsPath); containers/crun (utils.c, linux.c);
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
    """One kind of failure to give a container its GPUs.

    Args:
        name: the cause in ``explain`` is ``container-`` and this name.
        summary: the failure in a few words.
        remedy: the fix; ``UNIT`` is the service of the runtime.
        state: the state that fixes it; empty if none does.
        pattern: matches the runtime's error; empty if something else detects the failure.
    """

    name: str
    summary: str
    remedy: str
    state: str = ""
    pattern: str = ""

    def fix(self, way: str = "containerd") -> str:
        """The fix for the runtime of a way, and a validation after it where it has none: only that shows whether it helped."""
        unit = way.partition(" ")[0].rstrip(",").lower().replace("cri-o", "crio")
        text = self.remedy.replace("UNIT", unit)
        validated = f"{remedies.APPLY};" in f"{text};" or remedies.VALIDATE in text
        return text if validated else f"{text}; then: {remedies.VALIDATE}"


_PACKAGES = remedies.by_apply("reinstall the container toolkit's packages", "container-toolkit")

#: Detected before a container is started, or in one that ran.
OBSERVED = (
    Kind("cri-dead", "no pod can start",
         "fix what its journal reports: journalctl -u UNIT -n 50; then: systemctl restart UNIT", "containerd"),
    Kind("no-handler", "the runtime has no handler for GPUs", remedies.NO_HANDLER, "containerd"),
    Kind("cgroup-drivers", "cgroup drivers disagree",
         remedies.CGROUP_DRIVERS),
    Kind("no-image", "this node's Python cannot be packed into the test image",
         "install python3 (complete, not python3-minimal): apt-get install python3, or dnf install python3"),
    Kind("nothing-injected", "the container runs, and nothing of the driver is injected",
         remedies.by_apply("check that the handler runs nvidia-container-runtime and that its config.toml accepts the "
                           "request (its key debug names a log file), then apply", "container-toolkit"), "container-toolkit"),
    Kind("gpus-missing", "GPUs are missing in the container", remedies.CDI_STALE, "cdi"),
    Kind("library-missing", "a library of the driver is missing in the container", remedies.CDI_STALE, "cdi"),
    Kind("denied", "the container may not open its device nodes",
         f"rewrite the CDI specification, which may limit them: {remedies.REFRESH_CDI}; look for denials: journalctl -k | grep -iE 'apparmor|avc'"),
    Kind("hook-devices", "the container would lose its GPUs at the next systemctl daemon-reload", remedies.MODE_CDI,
         "container-toolkit"),
    Kind("dev-char", "the container would lose its GPUs at the next systemctl daemon-reload",
         remedies.by_apply("create the links", "dev-char"), "dev-char"),
    Kind("cuda", "the CUDA kernel fails in the container, but runs on the node",
         "a library in the container is missing or has another version: compare the files above with: ldconfig -p | grep -E 'cuda|nvidia'"),
)  # fmt: skip

#: Recognised by the runtime's message, in this order.
REPORTED = (
    Kind("disk-full", "the disk is full: no space for a container or its image",
         "enlarge the file system, or remove images that the runtime no longer needs: crictl rmi --prune, or docker system prune",
         pattern=r"no space left on device|disk quota exceeded"),
    Kind("low-level-missing", "NVIDIA's runtime finds no runc or crun", remedies.NO_LOW_LEVEL,
         pattern=r"no runtime binary found"),
    Kind("shim-missing", "containerd's shim is missing",
         "reinstall its package (containerd or containerd.io): apt-get install --reinstall PACKAGE, or dnf reinstall PACKAGE",
         pattern=r"binary not installed|containerd-shim-\S*: (?:executable file not found|no such file)"),
    Kind("toolkit-config", "NVIDIA's runtime cannot read its configuration",
         f"{remedies.MODE_CDI}; or fix what its message names in /etc/nvidia-container-runtime/config.toml", "container-toolkit",
         pattern=r"error loading config|unable to load config|unrecognized runtime mode|invalid runtime mode|invalid mode|failed to .*load.* config"),
    Kind("handler-binary", "the handler's program cannot be started",
         remedies.HANDLER_BINARY, "container-toolkit",
         pattern=r"exec:? \"?\S*nvidia-container-runtime[^ \":]*\"?: |unable to retrieve OCI runtime error.*nvidia-container-runtime"),
    Kind("legacy", "mode legacy needs nvidia-container-cli, which fails",
         remedies.MODE_CDI + "; or install libnvidia-container-tools in the toolkit's version",
         "container-toolkit",
         pattern=r"nvidia-container-cli|auto-detected mode as 'legacy'"),
    Kind("not-accepted", "NVIDIA's runtime refuses the container's request for GPUs",
         remedies.MODE_CDI + "; or set one of the keys accept-nvidia-visible-devices-* in /etc/nvidia-container-runtime/config.toml",
         "container-toolkit",
         pattern=r"insufficient privileges"),
    Kind("cdi-version", "this version of the runtime finds no CDI device of that name",
         "if cdiVersion in /var/run/cdi/nvidia.yaml is 0.7.0, which podman before 5.1 and docker before 26.1 do not read, install a newer one, or add "
         "NVIDIA_CTK_CDI_GENERATE_FEATURE_FLAGS=no-additional-gids-for-device-nodes to /etc/nvidia-container-toolkit/nvidia-cdi-refresh.env and run: "
         f"{remedies.REFRESH_CDI}; otherwise {remedies.CDI}", "cdi",
         pattern=r"(?s)^(?:podman (?:[0-4]|5\.0)\.|docker (?:1?\d|2[0-5]|26\.0)\.).*unresolvable CDI device"),
    Kind("cdi-unresolved", "the runtime finds no CDI device of that name",
         remedies.CDI, "cdi",
         pattern=r"unresolvable CDI device"),
    Kind("device-missing", "a device node that the CDI specification names does not exist", remedies.CDI_STALE, "cdi",
         pattern=r"failed to stat CDI host device|CDI host device|error creating device nodes|gathering device information"),
    Kind("file-missing", "a file that the CDI specification names does not exist", remedies.CDI_STALE, "cdi",
         pattern=r"error mounting \"[^\"]+\".*no such file or directory|mount source .*does not exist|"
                 r"(?:mount|stat|stat'ing file) `?[^ `]+`?.*: No such file or directory"),
    Kind("hook-missing", "a hook's program does not exist or cannot be executed", _PACKAGES, "container-toolkit",
         pattern=r"(?:hook|fork/exec) .*nvidia-c[a-z-]+(?:hook|ctk)?: (?:no such file|permission denied|exec format)|"
                 r"error running .*hook.*(?:no such file or directory|permission denied|not found)"),
    Kind("hook-failed", "a hook fails",
         f"fix what its message names; nvidia-container-runtime.debug in config.toml names a log file; then: {remedies.VALIDATE}", pattern=r"hook"),
    Kind("cgroup-path", "the runtime and its handler use different cgroup drivers",
         "set SystemdCgroup of both runtimes to the same value; then: systemctl restart UNIT", pattern=r"expected cgroupsPath"),
    Kind("apparmor", "AppArmor denies the container",
         "load or change the profile that the denial names: journalctl -k | grep apparmor", pattern=r"(?i:apparmor)"),
    Kind("selinux", "SELinux denies the container",
         "allow what the denial names: ausearch -m avc -ts recent; for devices: setsebool -P container_use_devices on", pattern=r"(?i:selinux)|avc: +denied|attr/keycreate"),
    Kind("seccomp", "the seccomp profile denies the container",
         f"allow the denied call in the seccomp profile that the runtime's configuration names; then: {remedies.VALIDATE}", pattern=r"seccomp"),
    Kind("timeout", "the container did not finish in time",
         "check the node's load and processes in state D: ps -eo pid,stat,args | grep ' D'", pattern=r"did not (?:finish|end) within|does not answer \S+ in time"),
    Kind("refused", "the kernel denies what the container needs",
         "find the denial: journalctl -k -n 100", pattern=r"(?i:permission denied|operation not permitted)"),
    Kind("not-started", "no container starts", "read the runtime's journal: journalctl -u UNIT -n 50", pattern=r""),
)  # fmt: skip

KINDS = (*OBSERVED, *REPORTED)
_BY_NAME = {kind.name: kind for kind in KINDS}
_NOISE = re.compile(r'time="[^"]*" level=\w+ msg=')


@dataclass(frozen=True)
class Failure:
    """Failure of one container: its kind, the evidence and the fix."""

    kind: Kind
    evidence: str
    remedy: str


def short(text: str, most: int = 360) -> str:
    """The runtime's message in one line, without times and levels; a long text keeps its end, where the reason is."""
    line = " ".join(_NOISE.sub("", text).split())
    return line if len(line) <= most else f"... {line[-most:]}"


def classify(error: str) -> Kind:
    """The kind of failure that a runtime's error describes; the runtime and its version may stand before it."""
    return next(kind for kind in REPORTED if re.search(kind.pattern, error))


def some(items: list[str], most: int = 4) -> str:
    """The first items, and the number of the others; runs on nodes, where there is no :mod:`gpustate.formats.words`."""
    omitted = len(items) - most
    return ", ".join(items) if omitted <= 1 else f"{', '.join(items[:most])} and {omitted} more"


def injected(result: ContainerResult) -> str:
    """Numbers of device nodes and files that were injected into the container."""
    libraries = sum(".so" in path for path in result.files)
    return f"{len(result.devices)} device nodes and {len(result.files)} files, {libraries} of them libraries"


def named(result: ContainerResult) -> str:
    """Names of device nodes and libraries that were injected into the container."""
    nodes = [path.removeprefix("/dev/") for path in result.devices]
    names = sorted(path.rpartition("/")[2] for path in result.files if ".so" in path)
    return f"{some(nodes) or 'no device node'}; {some(names) or 'no library'}"


def _ran(result: ContainerResult, expected: tuple[str, ...]) -> tuple[str, str] | None:
    """Kind and description of a failure in a container that ran; ``None`` if there is none."""
    if not result.devices and not result.files:
        return "nothing-injected", result.nvml_error
    if result.denied:
        return "denied", f"{some(list(result.denied))} (Operation not permitted)"
    missing = [uuid for uuid in expected if uuid not in result.gpus]
    if result.nvml_error and not result.gpus:
        return "library-missing", result.nvml_error
    if missing:
        return (
            "gpus-missing",
            f"{len(expected) - len(missing)} of {len(expected)}; not {some(missing)}",
        )
    if result.cuda_text:
        lost = "cannot be loaded" in result.cuda_text
        number = "" if result.cuda_error is None else f" (CUDA {result.cuda_error})"
        return "library-missing" if lost else "cuda", f"{result.cuda_text}{number}"
    programs = " and ".join(result.programs)
    if result.hooked:
        return (
            "hook-devices",
            f"NVIDIA's hook added {some(list(result.hooked), 2)} (mode legacy), unknown to {programs}, "
            "as they are not in the OCI specification",
        )
    if result.unlisted:
        return (
            "dev-char",
            f"{programs} need a link in /dev/char for {some(list(result.unlisted), 2)}",
        )
    return None


def failure(result: ContainerResult, expected: tuple[str, ...]) -> Failure | None:
    """Failure of a container; ``None`` if it has every expected GPU, and the kernel ran on them."""
    if result.kind:
        kind, words = _BY_NAME[result.kind], result.error
    elif result.error:
        kind, words = classify(f"{result.way}: {result.error}"), short(result.error)
    else:
        problem = _ran(result, expected)
        if problem is None:
            return None
        kind, words = _BY_NAME[problem[0]], problem[1]
        if kind.name not in ("hook-devices", "dev-char"):
            words += f"; injected: {named(result)}"
    return Failure(kind, f"{result.way}: {kind.summary}: {words}", kind.fix(result.way))


def expected_gpus(observed: ChainObservation) -> tuple[str, ...]:
    """UUIDs that a container with all GPUs must list: GPUs that answer and are not in quarantine."""
    return tuple(
        gpu.uuid
        for gpu in observed.nvml.gpus
        if gpu.uuid
        and gpu.error is None
        and not observed.held(gpu)
        # nvidia-ctk leaves out a GPU in MIG mode without MIG devices.
        and not (gpu.mig_current and not gpu.mig_devices)
    )


def first_failure(observed: ChainObservation) -> Failure | None:
    """Failure of the first container that failed; ``None`` if none did, or none was started."""
    failures = (
        failure(container, expected_gpus(observed)) for container in observed.containers or ()
    )
    return next((failed for failed in failures if failed is not None), None)


def summary(observed: ChainObservation) -> str:
    """Evidence if no container failed."""
    rows = [
        f"{container.way}: {len(container.gpus)} GPUs, {injected(container)}"
        + (f", kernel ran on {container.cuda_ok}" if container.cuda_ok else "")
        + (f", known to {' and '.join(container.programs)}" if container.programs else "")
        for container in observed.containers or ()
    ]
    return "; ".join(rows)
