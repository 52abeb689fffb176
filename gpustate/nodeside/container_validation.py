"""Start a container with every GPU through each runtime that is configured to give containers GPUs.

The image is built from this node's own Python (:mod:`container_image`), so no registry is needed and it contains
nothing of the driver. The CRI socket of containerd is queried for whether it serves pods, its handlers, and its
cgroup driver. The containers themselves are started by ``ctr``, in a containerd
namespace of its own and with the handler's program and options, by ``docker``, or by ``podman``; in CRI-O as a pod over
CRI. Image, snapshot, container and namespace are removed afterwards, and what an interrupted run left is removed
before the next one.

Surprising: a kubelet kills unknown pods within two seconds, and a pod needs the runtime's own pause image. While a
kubelet runs, and without that image, the handler's program creates and starts the container, as CRI-O does.

Standard library only, Python 3.9.

Sources:
    containerd, cmd/ctr (run --runc-binary, --device with a CDI name since 2.0); docs/namespaces.md; docker-run(1); podman-run(1);
    kubernetes, pkg/kubelet/kubelet_pods.go, HandlePodCleanups; NVIDIA/nvidia-container-toolkit, internal/config/image.
"""

from __future__ import annotations

import ctypes
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpustate.diagnosis import chain
from gpustate.diagnosis.chain_data import ChainObservation, ContainerResult, Wanted
from gpustate.formats.device_links import links_needed, program_versions, too_old
from gpustate.nodeside import (
    container_hooks,
    container_image,
    container_scope,
    cri,
    cri_pod,
    cri_rows,
)
from gpustate.probes.cri_status import BUNDLED, CriStatus

#: Unique name of the containerd namespace, the containers and the image.
NAME = cri_pod.NAME
IMAGE = f"gpustate.invalid/{NAME}:1"
MARK = "gpustate-container="
ALL = "nvidia.com/gpu=all"
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
#: Where Kubernetes distributions have containerd's client.
_CTR_FOLDERS = (
    *("/var/lib/rancher/k3s/data/current/bin", "/var/lib/rancher/rke2/bin"),
    *("/var/lib/k0s/bin", "/snap/microk8s/current/bin"),
)
CRIO_SOCKET = "/var/run/crio/crio.sock"
TOOLKIT_CONFIG = "/etc/nvidia-container-runtime/config.toml"
KUBELET_CONFIG = "/var/lib/kubelet/config.yaml"
#: Limit in seconds for each command of the cleanup.
_CLEAN_S = 20.0
_SNAPSHOTTERS = ("overlayfs", "native", "btrfs", "zfs", "fuse-overlayfs")


class CommandError(Exception):
    """A command failed; the text is the end of its output."""


@dataclass(frozen=True)
class Test:
    """The test that every container runs.

    Args:
        uuids: GPUs and MIG devices on which the kernel runs in it.
        timeout_s: how long one may take, with its image.
        image: archive in the format of ``docker save``.
        command: to run in it.
        low_level: with the systemd cgroup driver, prints the version of the low-level runtime; empty otherwise.
        token: identifies the container's process, which waits after its report; empty: it does not wait.
        bundle: folder of the OCI specification; empty: the folder in which the container's monitor runs.
    """

    uuids: tuple[str, ...]
    timeout_s: float
    image: bytes
    command: tuple[str, ...]
    low_level: tuple[str, ...] = ()
    token: str = ""
    bundle: str = ""

    def in_unit(self, *low_level: str) -> Test:
        """This test in a container that is a unit of systemd."""
        token = f"{os.getpid()}-{time.monotonic_ns()}"
        return replace(self, low_level=low_level, token=token)

    @property
    def parts(self) -> tuple[bytes, bytes]:
        """The image's configuration and its layer."""
        return container_image.parts(self.image)

    @property
    def argv(self) -> list[str]:
        """The command line in the container."""
        hold = [f"--hold={self.token}"] if self.token else []
        return [*self.command, *hold, f"{self.timeout_s:g}", *self.uuids]


#: linux/prctl.h.
_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Let the kernel kill this process with the validation, so that it does not start its container later."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def run(
    argv: Sequence[str],
    timeout_s: float,
    data: bytes | None = None,
    clean: bool = True,
    watch: Callable[[], bool] | None = None,
) -> str:
    """Run a program and return what it printed.

    Args:
        argv: its command line.
        timeout_s: how long it may take, in seconds.
        data: its input.
        clean: a failure is an error.
        watch: called from time to time while it runs, until it returns true.

    Raises:
        CommandError: it is missing, failed, or did not finish in time.
    """
    environment = {key: value for key, value in os.environ.items() if key not in _UNSET}
    environment["LC_ALL"] = "C"
    ends = time.monotonic() + timeout_s
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
    except OSError as error:
        raise CommandError(f"{argv[0]}: {error.strerror or error}") from None
    with process:
        while True:
            left = max(0.0, ends - time.monotonic())
            try:
                out, err = process.communicate(data, left if watch is None else min(left, 0.1))
                break
            except subprocess.TimeoutExpired:
                data = None
                if left == 0.0:
                    process.kill()
                    raise CommandError(
                        f"{argv[0]} did not finish within {timeout_s:.0f} s"
                    ) from None
                if watch is not None and watch():
                    watch = None
    if process.returncode != 0 and clean:
        text = err.decode("utf-8", "replace").strip()
        lines = [line for line in text.splitlines() if "level=warning" not in line]
        words = lines or out.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise CommandError(" ".join(words[-6:]) or f"{argv[0]} exited with {process.returncode}")
    return out.decode("utf-8", "replace")


#: Variables that select another machine's daemon, or another namespace.
_UNSET = ("DOCKER_HOST", "DOCKER_CONTEXT", "CONTAINERD_NAMESPACE", "CONTAINERD_ADDRESS")


def attempt(argv: Sequence[str]) -> str:
    """Like :func:`run`, but return an empty text on failure."""
    try:
        return run(argv, _CLEAN_S)
    except CommandError:
        return ""


def started(
    way: str, argv: Sequence[str], test: Test, began: float, log: Path | None = None
) -> ContainerResult:
    """Run a container by a command, and read its report.

    Args:
        way: how it requests GPUs, as evidence has it.
        argv: command that runs it.
        test: what it is to show.
        began: monotonic time from which the limit counts, in seconds.
        log: file that has the container's output instead of the command's own output.
    """

    def execute(left_s: float, watch: Watch) -> str:
        try:
            out = run(argv, left_s, watch=watch)
        except CommandError as error:
            tail = " ".join(_text(log).strip().splitlines()[-6:]) if log is not None else ""
            raise CommandError(f"{error}: {tail}" if tail else str(error)) from None
        return out if log is None else _text(log)

    return observed_by(execute, way, test, began)


#: Called from time to time while a container runs, until it returns true.
Watch = Callable[[], bool]


def observed_by(
    execute: Callable[[float, Watch], str], way: str, test: Test, began: float
) -> ContainerResult:
    """Run a container by a function, which gets its limit in seconds, and read its report."""
    scopes: list[container_scope.Scope | None] = []
    systemd = program_versions(attempt(["systemctl", "--version"])) if test.token else ()

    def watch() -> bool:
        if not test.token:
            return True
        pid = container_scope.ready(test.argv)
        if pid is not None:
            reads_names = bool(systemd) and not too_old(systemd[0])
            seen = container_scope.observe(
                pid, attempt, reads_names=reads_names, bundle=test.bundle
            )
            scopes.append(seen)
        return pid is not None

    left = max(1.0, test.timeout_s - (time.monotonic() - began))
    try:
        out = execute(left, watch)
    except CommandError as error:
        return ContainerResult(way, error=str(error), elapsed_s=elapsed(began))
    lines = [line for line in out.splitlines() if line.startswith(MARK)]
    try:
        report: dict[str, Any] = json.loads(lines[-1][len(MARK) :])
        result = reported(way, report, began)
    except (IndexError, ValueError, KeyError, TypeError, AttributeError):
        last = out.strip().splitlines()[-1:] or ["nothing"]
        return ContainerResult(
            way, error=f"the container printed no report: {last[0]}", elapsed_s=elapsed(began)
        )
    if not test.token:
        return result
    programs = (*program_versions(attempt(test.low_level)), *systemd)
    if not scopes:
        needed = unlinked(result.devices) if links_needed(programs) else ()
        return replace(result, unlisted=needed, programs=programs if needed else ())
    scope = scopes[0]
    if scope is None:
        return result
    return replace(result, programs=programs, unlisted=scope.unlisted, hooked=scope.hooked)


def _text(path: Path) -> str:
    """A file's text; empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def completed(error: str, binary: str) -> str:
    """Add the message of a handler's program that failed before containerd's shim could read it.

    A program that cannot run anything repeats its message with ``--version``.
    """
    if not binary or "unable to retrieve OCI runtime error" not in error:
        return error
    try:
        run([binary, "--version"], _CLEAN_S)
    except CommandError as again:
        return f"{error}; {binary} --version: {again}"
    return error


def elapsed(began: float) -> float:
    """Seconds since a time."""
    return round(time.monotonic() - began, 1)


def reported(way: str, report: dict[str, Any], began: float) -> ContainerResult:
    """Parse the report of :mod:`container_inside`."""
    failed = [one for one in report["cuda"] if not one["ok"]]
    first: dict[str, Any] = failed[0] if failed else {"error": None}
    return ContainerResult(
        way,
        devices=tuple(sorted(report["devices"])),
        denied=tuple(p for p, code in sorted(report["devices"].items()) if code in (1, 13)),
        files=tuple(report["files"]),
        gpus=tuple(report["nvml"]["uuids"]),
        nvml_error=report["nvml"]["error"],
        cuda_ok=sum(one["ok"] for one in report["cuda"]),
        cuda_error=first["error"],
        cuda_text=f"{first['uuid']}: {first['text']}" if failed else "",
        elapsed_s=elapsed(began),
    )


def unlinked(paths: Iterable[str]) -> tuple[str, ...]:
    """Device nodes of this node without their link below /dev/char."""
    found: list[str] = []
    for path in paths:
        try:
            number = os.stat(path).st_rdev
        except OSError:
            continue
        if not os.path.exists(f"/dev/char/{os.major(number)}:{os.minor(number)}"):
            found.append(path)
    return tuple(found)


# --- requests to NVIDIA's runtime -----------------------------------------------------------------


def accepts(text: str, key: str) -> bool:
    """Whether a key of the toolkit's configuration is true, with NVIDIA's defaults."""
    match = re.search(rf"(?m)^\s*{key}\s*=\s*(true|false)", text)
    return match[1] == "true" if match else key.endswith("envvar-when-unprivileged")


def request(binary: str = "") -> str:
    """How a container requests all GPUs from NVIDIA's runtime: ``envvar``, ``mounts`` or ``annotation``.

    Args:
        binary: the handler's program; that of the GPU Operator has a configuration beside it.
    """
    beside = Path(binary).parent / ".config/nvidia-container-runtime/config.toml"
    text = (_text(beside) if binary else "") or _text(Path(TOOLKIT_CONFIG))
    if accepts(text, "accept-nvidia-visible-devices-envvar-when-unprivileged"):
        return "envvar"
    if accepts(text, "accept-nvidia-visible-devices-as-volume-mounts"):
        return "mounts"
    return "annotation"


_MOUNT = "/var/run/nvidia-container-devices/all"
_CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES=compute,utility"
_VISIBLE = "NVIDIA_VISIBLE_DEVICES=all"
_ANNOTATION = f"cdi.k8s.io/{NAME}"


def with_hook(error: str, binary: str, how: str) -> str:
    """Add the program of a failed hook to the runtime's message.

    Args:
        error: the runtime's words.
        binary: program that adds hooks for the request; empty: the toolkit's.
        how: the request, as :func:`request` has it, or ``device`` for a CDI device.
    """
    if not container_hooks.failed(error):
        return error
    hooks = container_hooks.injected(
        binary or container_hooks.NVIDIA_RUNTIME,
        [_CAPABILITIES, *([_VISIBLE] if how == "envvar" else [])],
        {_ANNOTATION: ALL} if how in ("annotation", "device") else {},
        [_MOUNT] if how == "mounts" else [],
        attempt,
    )
    return container_hooks.named(error, hooks)


# --- containerd -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Handler:
    """One runtime handler of the running containerd."""

    kind: str  # io.containerd.runc.v2
    binary: str
    systemd_cgroup: bool


def ctr_program() -> str:
    """containerd's client, in PATH or of a Kubernetes distribution; empty if there is none."""
    return (
        shutil.which("ctr", path=os.pathsep.join((os.environ.get("PATH", ""), *_CTR_FOLDERS))) or ""
    )


class Containerd:
    """A containerd of this node, queried over CRI and used with ``ctr``.

    Args:
        observed: the node.
        wanted: the handler, and whether a container by CDI is tested.
        test: what a container is to show.
        socket: where it answers.
    """

    def __init__(self, observed: ChainObservation, wanted: Wanted, test: Test, socket: str) -> None:
        self.observed, self.wanted, self.test = observed, wanted, test
        self.socket = socket
        self.status = cri.Status()
        self.ctr = [ctr_program() or "ctr", "--address", self.socket, "--namespace", NAME]

    @property
    def name(self) -> str:
        """Name with version, for the evidence."""
        version = self.status.version.removeprefix("v").partition("~")[0]
        return f"containerd {version}" if version else "containerd"

    def config(self) -> dict[str, Any]:
        """The CRI plugin's configuration in the running process."""
        config = self.status.info.get("config")
        return config if isinstance(config, dict) else {}

    def handlers(self) -> dict[str, Handler]:
        """Handlers of the running process by name."""
        table = self.config().get("containerd", {}).get("runtimes") or {}
        found: dict[str, Handler] = {}
        for name, one in table.items():
            options = one.get("options") or {}
            found[name] = Handler(
                str(one.get("runtimeType") or one.get("runtime_type") or ""),
                str(options.get("BinaryName") or ""),
                options.get("SystemdCgroup") is True,
            )
        return found

    def results(self) -> list[ContainerResult]:
        """A result for each way to request GPUs; only one if no container can be started, none without ``ctr``."""
        try:
            self.status = cri.status(self.socket, min(self.test.timeout_s, 20.0))
        except cri.CriError as error:
            kind = "cri-dead" if error.unserved else "runtime-silent"
            return [ContainerResult("containerd", kind, str(error) + self.plugin_error(error))]
        way = f"{self.name}, handler {self.handler or self.wanted.handler}"
        if not (self.handler or self.wanted.handler or self.by_cdi()):
            return []
        problem = self.problem()
        if problem is not None:
            return [ContainerResult(way, *problem)]
        if not ctr_program():
            return []
        began = time.monotonic()
        self.clean()
        try:
            run([*self.ctr, "images", "import", "-"], self.test.timeout_s, self.test.image)
            return self.containers(way, began)
        except CommandError as error:
            return [ContainerResult(way, error=str(error), elapsed_s=elapsed(began))]
        finally:
            self.clean()

    def plugin_error(self, error: cri.CriError) -> str:
        """containerd's error for plugins that it could not load."""
        if not error.unserved:
            return ""
        words = cri_rows.load_error("ctr", self.socket, _CLEAN_S)
        return f"; {words}" if words else ""

    def problem(self) -> tuple[str, str] | None:
        """Why no pod with GPUs can start, by the running process: kind and description."""
        for name, holds, words in self.status.conditions:
            if name == "RuntimeReady" and not holds:
                return "cri-not-ready", f"RuntimeReady is false: {words}"
        handlers = self.handlers()
        if not self.handler:
            if self.by_cdi():
                return None
            name = "nvidia" if self.wanted.handler in (chain.AUTO, "") else self.wanted.handler
            in_files = self.observed.containerd is not None and any(
                one == name for one, _, _ in self.observed.containerd.handlers
            )
            has = ", ".join(sorted(handlers)) or "none"
            return (
                "handler-not-read" if in_files else "no-handler",
                f"no {name}; it has {has}",
            )
        return self.cgroup_problem(handlers)

    @property
    def default(self) -> str:
        """The handler of pods that name none."""
        return str(self.config().get("containerd", {}).get("defaultRuntimeName") or "runc")

    @property
    def handler(self) -> str:
        """The handler that gives pods GPUs; empty if there is none."""
        programs = {name: one.binary for name, one in self.handlers().items()}
        return chain.gpu_handler(programs, self.default, self.wanted)

    @property
    def reported(self) -> CriStatus | None:
        """What the observation has of its running process."""
        found = self.observed.containerd
        return self.observed.bundled or (found.cri if found is not None else None)

    def by_cdi(self) -> bool:
        """Pods get GPUs by CDI, without a handler."""
        return chain.needs_no_handler("containerd", self.reported, self.observed, self.wanted)

    def cgroup_problem(self, handlers: dict[str, Handler]) -> tuple[str, str] | None:
        """The pod's sandbox, its containers and the kubelet must have one cgroup driver."""
        default = self.default
        ours = handlers[self.handler]
        other = handlers.get(default, ours)
        drivers = {
            f"handler {self.handler}": driver(ours.systemd_cgroup),
            f"handler {default}": driver(other.systemd_cgroup),
        }
        if not self.status.cgroup_driver:  # with it, a kubelet takes the runtime's word
            kubelet = kubelet_driver()
            if kubelet:
                drivers[f"kubelet ({KUBELET_CONFIG})"] = kubelet
        if len(set(drivers.values())) < 2:
            return None
        return "cgroup-drivers", ", ".join(f"{one}: {name}" for one, name in drivers.items())

    def containers(self, way: str, began: float) -> list[ContainerResult]:
        """Start the containers, one after the other."""
        handlers = self.handlers()
        handler = handlers.get(self.handler)
        found: list[ContainerResult] = []
        if handler is not None:
            found.append(self.start(way, handler, request(handler.binary), began))
        if not chain.needs_cdi(self.observed, self.wanted):
            return found
        began = time.monotonic()
        way = f"{self.name}, CDI device {ALL}"
        if self.version() < (2, 0):
            if handler is not None:
                found.append(self.start(way, handler, "annotation", began))
        elif self.reported is None or chain.injects_cdi(self.reported):
            systemd = any(one.systemd_cgroup for one in handlers.values())
            plain = handlers.get("runc", Handler("io.containerd.runc.v2", "", systemd))
            found.append(self.start(way, plain, "device", began))
        elif self.wanted.cdi:
            found.append(ContainerResult(way, "cdi-off", chain.cdi_off(self.reported)))
        return found

    def version(self) -> tuple[int, int]:
        """Major and minor version; (0, 0) if unknown."""
        match = re.match(r"v?(\d+)\.(\d+)", self.status.version)
        return (int(match[1]), int(match[2])) if match else (0, 0)

    def request_options(self, how: str) -> list[str]:
        """Options by which a container requests every GPU."""
        if how == "device":
            return ["--device", ALL]
        if how == "envvar":
            return ["--env", _CAPABILITIES, "--env", _VISIBLE]
        if how == "mounts":
            mount = f"type=bind,src=/dev/null,dst={_MOUNT},options=bind:ro"
            return ["--env", _CAPABILITIES, "--mount", mount]
        return ["--annotation", f"{_ANNOTATION}={ALL}"]

    def start(self, way: str, handler: Handler, how: str, began: float) -> ContainerResult:
        """Start one container, with a handler's program and options.

        Its shim writes its output to a file: ``ctr`` loses output of a container that ends before ``ctr`` has
        opened its end of the pipe (containerd issue 5741).
        """
        name = f"{NAME}-{os.getpid()}-{time.monotonic_ns()}"
        snapshotter = str(self.config().get("containerd", {}).get("snapshotter") or "")
        options = ["--snapshotter", snapshotter] if snapshotter in _SNAPSHOTTERS else []
        if handler.kind:
            options += ["--runtime", handler.kind]
        if handler.binary:
            options += ["--runc-binary", handler.binary]
        if handler.systemd_cgroup:
            options += ["--runc-systemd-cgroup", "--cgroup", f"system.slice:{NAME}:{name}"]
        try:
            folder = Path(tempfile.mkdtemp(prefix=f"{NAME}-", dir="/run"))
        except OSError as error:
            return ContainerResult(way, error=f"cannot create a directory in /run: {error}")
        log = folder / "output"
        argv = [*self.ctr, "run", "--rm", "--log-uri", f"file://{log}", *options]
        test = self.test
        if handler.systemd_cgroup:
            test = test.in_unit(handler.binary or "runc", "--version")
        argv += [*self.request_options(how), IMAGE, name, *test.argv]
        try:
            result = started(way, argv, test, began, log)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        words = completed(result.error, handler.binary)
        binary = "" if how == "device" else handler.binary
        return without_request(replace(result, error=with_hook(words, binary, how)))

    def clean(self) -> None:
        """Remove the namespace of the test with its content, and the folders of output."""
        clean_folders()
        if NAME not in attempt([*self.ctr[:3], "namespaces", "ls", "-q"]).split():
            return
        for one in attempt([*self.ctr, "containers", "ls", "-q"]).split():
            attempt([*self.ctr, "tasks", "kill", "--all", "--signal", "KILL", one])
            attempt([*self.ctr, "tasks", "rm", "--force", one])
            attempt([*self.ctr, "containers", "rm", one])
        images = attempt([*self.ctr, "images", "ls", "-q"]).split()
        if images:
            attempt([*self.ctr, "images", "rm", "--sync", *images])
        # An import that was killed holds what it has read, without an image.
        for one in attempt([*self.ctr, "leases", "ls", "-q"]).split():
            attempt([*self.ctr, "leases", "rm", "--sync", one])
        content = attempt([*self.ctr, "content", "ls", "-q"]).split()
        if content:
            attempt([*self.ctr, "content", "rm", *content])
        attempt([*self.ctr[:3], "namespaces", "rm", NAME])


def driver(systemd: bool) -> str:
    """The name of a cgroup driver."""
    return "systemd" if systemd else "cgroupfs"


def kubelet_driver() -> str:
    """The cgroup driver in the kubelet's file; empty if there is no file or no such key."""
    try:
        text = Path(KUBELET_CONFIG).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    match = re.search(r"(?m)^\"?cgroupDriver\"?:\s*\"?(systemd|cgroupfs)", text)
    return match[1] if match else ""


# --- docker, podman, CRI-O ------------------------------------------------------------------------


def docker_info() -> dict[str, Any]:
    """``docker info`` of a running docker; empty if there is none."""
    if shutil.which("docker") is None:
        return {}
    active = attempt(["systemctl", "is-active", "docker"]).strip() == "active"
    if os.path.isdir("/run/systemd/system") and not active:
        return {}  # a query would start it through its socket
    try:
        info = json.loads(attempt(["docker", "info", "--format", "{{json .}}"]) or "{}")
    except ValueError:
        return {}
    return info if isinstance(info, dict) else {}


def docker_way(info: dict[str, Any]) -> tuple[str, list[str]] | None:
    """How docker gives containers GPUs; ``None`` if it is not configured for that."""
    for name, one in sorted((info.get("Runtimes") or {}).items()):
        path = str((one or {}).get("path") or "")
        if path.rpartition("/")[2].startswith("nvidia-container-runtime"):
            options = ["--runtime", name]
            how = request()
            if how == "mounts":
                options += ["--volume", f"/dev/null:{_MOUNT}"]
            elif how == "annotation":
                options += ["--env", f"NVIDIA_VISIBLE_DEVICES={ALL}"]
            else:
                options += ["--env", "NVIDIA_VISIBLE_DEVICES=all"]
            return f"runtime {name}", options
    if any(
        str(one.get("ID", "")).startswith("nvidia.com/gpu")
        for one in info.get("DiscoveredDevices") or []
    ):
        return f"CDI device {ALL}", ["--device", ALL]
    return None


def docker(info: dict[str, Any], test: Test) -> list[ContainerResult]:
    """Test docker; no result if it is not configured to give containers GPUs."""
    found = docker_way(info)
    if found is None:
        return []
    way = f"docker {info.get('ServerVersion') or ''}".strip() + f", {found[0]}"
    if info.get("CgroupDriver") == "systemd":
        test = test.in_unit("runc", "--version")
    return [loaded("docker", way, found[1], test)]


def podman(test: Test) -> list[ContainerResult]:
    """Test podman, which only needs the CDI specification."""
    version = attempt(["podman", "--version"]).strip().rpartition(" ")[2]
    way = f"podman {version}, CDI device {ALL}"
    test = test.in_unit("podman", "info", "--format", "{{.Host.OCIRuntime.Version}}")
    return [loaded("podman", way, ["--device", ALL], test)] if version else []


def loaded(program: str, way: str, options: list[str], test: Test) -> ContainerResult:
    """Load the image into docker or podman, run a container of it, and remove both."""
    began = time.monotonic()
    clean_loaded(program)
    name = f"{NAME}-{os.getpid()}"
    try:
        run([program, "load", "--quiet"], test.timeout_s, test.image)
        # podman sets sysctls in a network namespace of its own, which a nested node may not.
        network = "host" if program == "podman" else "none"
        argv = [program, "run", "--rm", "--network", network, "--name", name]
        if program == "podman":  # as NVIDIA's guide has it, for SELinux
            argv.append("--security-opt=label=disable")
        argv += ["--label", NAME, *options, IMAGE, *test.argv]
        result = started(way, argv, test, began)
        how = "device" if "--device" in options else request()
        result = replace(result, error=with_hook(result.error, "", how))
    except CommandError as error:
        result = ContainerResult(way, error=str(error), elapsed_s=elapsed(began))
    finally:
        clean_loaded(program)
    return without_request(result)


def clean_loaded(program: str) -> None:
    """Remove the containers and the image of a test from docker or podman."""
    left = attempt([program, "ps", "-aq", "--filter", f"label={NAME}"]).split()
    if left:
        attempt([program, "rm", "--force", *left])
    if attempt([program, "images", "-q", IMAGE]).strip():
        attempt([program, "rmi", "--force", IMAGE])


def requesting(container: cri_pod.Container, how: str) -> cri_pod.Container:
    """A container that requests every GPU, as :func:`request` has it, or as ``device``."""
    if how == "device":
        return replace(container, devices=(ALL,))
    if how == "annotation":
        return replace(container, annotations={_ANNOTATION: ALL})
    words = [_CAPABILITIES, *([_VISIBLE] if how == "envvar" else [])]
    env = dict(word.split("=", 1) for word in words)
    return replace(container, env=env, mounts=(_MOUNT,) if how == "mounts" else ())


def crio(wanted: Wanted, test: Test, *, kubelet: bool) -> list[ContainerResult]:
    """Query CRI-O, and run a pod for each way to request GPUs; while a kubelet runs, only the handler's program."""
    names = glob.glob("/proc/[0-9]*/comm") if kubelet else []
    kubelet = any(_text(Path(name)) == "kubelet\n" for name in names)
    way = f"cri-o, handler {wanted.handler}"
    clean_folders()
    if not os.path.exists(CRIO_SOCKET):
        return []
    try:
        status = cri.status(CRIO_SOCKET, min(test.timeout_s, 20.0))
    except cri.CriError as error:
        return [ContainerResult(way, "runtime-silent", str(error))]
    text = attempt(["crio", "config"])
    section = r'(?ms)^\[crio\.runtime\.runtimes\.([^\]]+)\]$(?:(?!^\[).)*?^runtime_path = "([^"]*)"'
    programs = dict(re.findall(section, text))
    default = re.search(r'(?m)^default_runtime = "([^"]*)"', text)
    name = chain.gpu_handler(programs, default[1] if default else "", wanted)
    way = f"cri-o {status.version}, handler {name or wanted.handler}"
    served = not status.handlers or name in status.handlers
    by_cdi = wanted.handler == chain.AUTO and wanted.cdi
    if not (name and served) and not by_cdi:
        named = "nvidia" if wanted.handler == chain.AUTO else wanted.handler
        return [ContainerResult(way, "no-handler", f"no {named} in crio config or its status")]
    plain = cri_pod.Container("", (), systemd=status.cgroup_driver == "systemd")
    binary = programs.get(name, "runc")
    how = request(binary)
    container = requesting(replace(plain, handler=name), how)
    if kubelet:
        return [bundle(way, binary, container, test)] if name else []
    low_level = (binary, "--version")
    found: list[ContainerResult] = []
    try:
        if name:
            result = in_pod(CRIO_SOCKET, way, container, test, low_level)
            found = [replace(result, error=with_hook(result.error, binary, how))]
        if wanted.cdi:
            way = f"cri-o {status.version}, CDI device {ALL}"
            result = in_pod(CRIO_SOCKET, way, requesting(plain, "device"), test, low_level)
            found.append(replace(result, error=with_hook(result.error, "", "device")))
    except cri_pod.NoPod as error:
        without = f"{way} (without a pod: {error})"
        return [bundle(without, binary, container, test)] if name else []
    return found


def in_pod(
    socket: str, way: str, container: cri_pod.Container, test: Test, low_level: tuple[str, ...]
) -> ContainerResult:
    """Run the test as a pod over CRI.

    Args:
        socket: of the runtime.
        way: how it requests GPUs, as evidence has it.
        container: without its command line.
        test: what it is to show.
        low_level: prints the version of the low-level runtime.

    Raises:
        cri_pod.NoPod: nothing is known of the container.
    """
    test = test.in_unit(*low_level) if container.systemd else test
    container = replace(container, argv=test.argv)

    def execute(left_s: float, watch: Watch) -> str:
        try:
            return cri_pod.run(socket, test.parts, container, left_s, watch)
        except cri_pod.NoPod:
            raise
        except cri.CriError as error:
            raise CommandError(str(error)) from None

    return without_request(observed_by(execute, way, test, time.monotonic()))


def without_request(result: ContainerResult) -> ContainerResult:
    """A result without the file by which the container requests GPUs."""
    files = tuple(path for path in result.files if not path.startswith(_MOUNT))
    return replace(result, files=files)


def bundle(way: str, binary: str, container: cri_pod.Container, test: Test) -> ContainerResult:
    """Create and start a container with a handler's program, from a temporary bundle."""
    began = time.monotonic()
    name = f"{NAME}-{os.getpid()}"
    folder = tempfile.mkdtemp(prefix=f"{NAME}-", dir="/run")
    base = [binary, "--root", f"{folder}/state"]
    if container.systemd:
        base.append("--systemd-cgroup")
        test = replace(test.in_unit(binary, "--version"), bundle=folder)
    log = Path(folder, "output")

    def execute(left_s: float, watch: Watch) -> str:
        ends = time.monotonic() + left_s
        # The container has the command's output as its own.
        create = ["sh", "-c", 'exec "$@" >"$0" 2>&1', str(log)]
        try:
            run([*create, *base, "create", "--bundle", folder, name], left_s)
            run([*base, "start", name], left_s)
        except CommandError as error:
            raise CommandError(_text(log).strip() or str(error)) from None
        watched = False
        while '"status": "stopped"' not in attempt([*base, "state", name]):
            watched = watched or watch()
            if time.monotonic() > ends:
                raise CommandError(f"the container did not end within {left_s:.0f} s")
            time.sleep(0.1)
        return _text(log)

    try:
        container_image.unpack(test.image, f"{folder}/rootfs")
        run([binary, "spec", "--bundle", folder], _CLEAN_S)
        path = Path(folder, "config.json")
        config = json.loads(path.read_text(encoding="utf-8"))
        config["process"].update(terminal=False, args=test.argv)
        config["process"]["env"] += [f"{key}={value}" for key, value in container.env.items()]
        config["annotations"] = dict(container.annotations)
        mount = {"source": "/dev/null", "type": "bind", "options": ["bind", "ro"]}
        config["mounts"] += [{**mount, "destination": one} for one in container.mounts]
        config["root"]["readonly"] = False
        if container.systemd:
            config["linux"]["cgroupsPath"] = f"system.slice:{NAME}:{name}"
        path.write_text(json.dumps(config), encoding="utf-8")
        result = observed_by(execute, way, test, began)
        words = container_hooks.named(result.error, container_hooks.read(folder))
        return without_request(replace(result, error=words))
    except CommandError as error:
        return ContainerResult(way, error=str(error), elapsed_s=elapsed(began))
    except (OSError, ValueError, KeyError, TypeError) as error:
        return ContainerResult(
            way, error=f"no bundle in {folder}: {error}", elapsed_s=elapsed(began)
        )
    finally:
        attempt([*base, "delete", "--force", name])
        shutil.rmtree(folder, ignore_errors=True)


def clean_folders() -> None:
    """Remove bundles and output of a killed validation."""
    for folder in glob.glob(f"/run/{NAME}-*"):
        shutil.rmtree(folder, ignore_errors=True)


def clean() -> None:
    """Remove leftovers of a killed validation from every runtime."""
    test = Test((), _CLEAN_S, b"", ())
    for socket in (CONTAINERD_SOCKET, *BUNDLED):
        if os.path.exists(socket):
            Containerd(ChainObservation(), Wanted(), test, socket).clean()
    if docker_info():
        clean_loaded("docker")
    if shutil.which("podman") is not None:
        clean_loaded("podman")
    if os.path.exists(CRIO_SOCKET):
        cri_pod.clean(CRIO_SOCKET)
    clean_folders()


def validate(
    observed: ChainObservation, wanted: Wanted, uuids: tuple[str, ...], timeout_s: float
) -> tuple[ContainerResult, ...]:
    """Start a container through every configured runtime; empty if there is none."""
    try:
        image, command = container_image.make(IMAGE)
    except container_image.ImageError as error:
        return (ContainerResult("image", "no-image", str(error)),)
    test = Test(uuids, timeout_s, image, tuple(command))
    found: list[ContainerResult] = []
    info = docker_info()
    used = chain.serving(observed, wanted)
    socket = containerd_socket(observed, used)
    if socket:
        found += Containerd(observed, wanted, test, socket).results()
    found += docker(info, test)
    if wanted.handler and (used == "crio" or "crio" in observed.registered):
        by_cdi = chain.needs_cdi(observed, wanted)
        found += crio(replace(wanted, cdi=by_cdi), test, kubelet=observed.kubelet)
    if not found and "podman" in observed.other_runtimes:
        found += podman(test)
    return tuple(found)


def containerd_socket(observed: ChainObservation, used: str) -> str:
    """Where the containerd that serves containers answers; empty if another runtime does, or none."""
    if used == "bundled" and observed.bundled is not None:
        return observed.bundled.socket
    found = observed.containerd
    if used != "containerd" or found is None or (found.disabled and not observed.kubelet):
        return ""
    return observed.endpoint or (found.cri.socket if found.cri is not None else CONTAINERD_SOCKET)
