"""Start a container with every GPU through each runtime that is configured to give containers GPUs.

The image is built from this node's own Python (:mod:`container_image`), so no registry is needed and it contains
nothing of the driver. containerd and CRI-O start a pod over CRI, as a kubelet lets them; ``docker`` and ``podman`` a container.
Image, pod and container are removed afterwards, and what an interrupted run left is removed before the next one.

Surprising: without its pause image CRI-O has no pod, and a kubelet may end one before it reports. Then the handler's
program creates and starts the container, as a runtime does.

Standard library only, Python 3.9.

Sources:
    docker-run(1); podman-run(1); NVIDIA/nvidia-container-toolkit, internal/config/image.
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpustate.diagnosis import chain
from gpustate.diagnosis.chain_data import ChainObservation, ContainerResult, Expected
from gpustate.formats.device_links import links_needed, program_versions, too_old
from gpustate.nodeside import container_hooks, container_image, container_scope, cri, cri_pod
from gpustate.probes.cri_status import BUNDLED, CriStatus

#: Unique name of the containerd namespace, the containers and the image.
NAME = cri_pod.NAME
IMAGE = f"gpustate.invalid/{NAME}:1"
MARK = "gpustate-container="
ALL = "nvidia.com/gpu=all"
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
CRIO_SOCKET = "/var/run/crio/crio.sock"
TOOLKIT_CONFIG = "/etc/nvidia-container-runtime/config.toml"
#: Limit in seconds for each command of the cleanup.
_CLEAN_S = 20.0


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
        names: what it requests of NVIDIA's runtime; GPUs by UUID where one is lost, for ``all`` fails with it.
    """

    uuids: tuple[str, ...]
    timeout_s: float
    image: bytes
    command: tuple[str, ...]
    low_level: tuple[str, ...] = ()
    token: str = ""
    bundle: str = ""
    names: tuple[str, ...] = ("all",)

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
            remaining_s = max(0.0, ends - time.monotonic())
            try:
                out, err = process.communicate(
                    data, remaining_s if watch is None else min(remaining_s, 0.1)
                )
                break
            except subprocess.TimeoutExpired:
                data = None
                if remaining_s == 0.0:
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


def started(way: str, argv: Sequence[str], test: Test, began: float) -> ContainerResult:
    """Run a container by a command, and read its report.

    Args:
        way: how it requests GPUs, as evidence has it.
        argv: command that runs it.
        test: what it is to show.
        began: monotonic time from which the limit counts, in seconds.
    """

    return observed_by(lambda left_s, watch: run(argv, left_s, watch=watch), way, test, began)


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
            scope = container_scope.observe(
                pid, attempt, reads_names=reads_names, bundle=test.bundle
            )
            scopes.append(scope)
        return pid is not None

    limit_s = max(1.0, test.timeout_s - (time.monotonic() - began))
    try:
        out = execute(limit_s, watch)
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
    failed = [row for row in report["cuda"] if not row["ok"]]
    first: dict[str, Any] = failed[0] if failed else {"error": None}
    return ContainerResult(
        way,
        devices=tuple(sorted(report["devices"])),
        denied=tuple(p for p, code in sorted(report["devices"].items()) if code in (1, 13)),
        files=tuple(report["files"]),
        gpus=tuple(report["nvml"]["uuids"]),
        nvml_error=report["nvml"]["error"],
        cuda_ok=sum(row["ok"] for row in report["cuda"]),
        cuda_error=first["error"],
        cuda_text=f"{first['uuid']}: {first['text']}" if failed else "",
        elapsed_s=elapsed(began),
    )


def unlinked(paths: Iterable[str]) -> tuple[str, ...]:
    """Device nodes of this node without their link below /dev/char."""
    missing: list[str] = []
    for path in paths:
        try:
            number = os.stat(path).st_rdev
        except OSError:
            continue
        if not os.path.exists(f"/dev/char/{os.major(number)}:{os.minor(number)}"):
            missing.append(path)
    return tuple(missing)


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


_MOUNTS = "/var/run/nvidia-container-devices/"
_ALL_GPUS = ("all",)
_CAPABILITIES = "NVIDIA_DRIVER_CAPABILITIES=compute,utility"
_ANNOTATION = f"cdi.k8s.io/{NAME}"


def _visible(names: Sequence[str]) -> str:
    """The variable that requests GPUs of NVIDIA's runtime."""
    return f"NVIDIA_VISIBLE_DEVICES={','.join(names)}"


def _environment(how: str, names: Sequence[str] = _ALL_GPUS) -> list[str]:
    """The variables of a container that requests GPUs."""
    return [_CAPABILITIES, *([_visible(names)] if how == "envvar" else [])]


def _mounts(how: str, names: Sequence[str] = _ALL_GPUS) -> list[str]:
    """The mount points by which a container requests GPUs."""
    return [f"{_MOUNTS}{name}" for name in names] if how == "mounts" else []


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
        _environment(how),
        {_ANNOTATION: ALL} if how in ("annotation", "device") else {},
        _mounts(how),
        attempt,
    )
    return container_hooks.named(error, hooks)


# --- pods: containerd, CRI-O ----------------------------------------------------------------------


def in_pods(
    name: str,
    status: CriStatus | None,
    programs: Mapping[str, str],
    default: str,
    observed: ChainObservation,
    expected: Expected,
    test: Test,
) -> list[ContainerResult]:
    """Run a pod for each way to request GPUs from a runtime; only one result if none can start.

    Args:
        name: of the runtime, for the evidence.
        status: of its running process; ``None``: there is none.
        programs: program of each handler.
        default: handler of pods that name none.
        observed: the node.
        expected: the handler, and whether CDI devices are tested.
        test: what a container is to show.
    """
    if status is None:
        active = observed.containerd is not None and observed.containerd.active
        why = f"runs, and its socket is gone ({CONTAINERD_SOCKET})" if active else "does not run"
        return [ContainerResult(name, "cri-dead", f"{name} {why}")]
    version = status.version.removeprefix("v").partition("~")[0]
    runtime = f"{name} {version}".strip()
    if dead := status.dead(name):
        return [ContainerResult(runtime, "cri-dead", dead)]
    handler = chain.gpu_handler(programs, default, expected)
    handler = "" if status.missing_handler(handler) else handler
    named = handler or ("nvidia" if expected.handler in (chain.AUTO, "") else expected.handler)
    way = f"{runtime}, handler {named}"
    if not handler and not chain.needs_no_handler(name, status, observed, expected):
        problem = status.missing_handler(named) or f"no {named}"
        return [ContainerResult(way, "no-handler", problem)] if expected.handler else []
    if drivers := status.cgroup_drivers(handler):
        return [ContainerResult(way, "cgroup-drivers", drivers)]
    usual = status.handler(default)
    driver = status.driver or status.kubelet or (usual.driver if usual is not None else "")
    pod = cri_pod.Pod(
        status.socket,
        test.parts,
        systemd=driver == "systemd",
        kubelet=observed.kubelet or status is observed.bundled,
        pause=pause_image(observed) if status is not observed.crio else "",
    )
    # CRI-O gets no image by another name, so that a node without its pause image has no pod.
    past = (cri_pod.Ended, *((cri_pod.NoPod,) if status is observed.crio else ()))
    requests = [(way, handler, request(programs.get(handler, "")))] if handler else []
    results: list[ContainerResult] = []
    if chain.needs_cdi(observed, expected):
        way = f"{runtime}, CDI device {ALL}"
        if chain.injects_cdi(status):
            requests.append((way, "", "device"))
        elif expected.cdi:
            by_handler = handler and version.startswith("1.")
            requests.append((way, handler, "annotation") if by_handler else (way, "", "device"))
    for way, requested, how in requests:
        binary = programs.get(requested or default, "")
        container = requesting(cri_pod.Container(requested, ()), how, test.names)
        try:
            results.append(in_pod(pod, way, container, binary, how, test, past))
        except past as error:
            if requested:
                without = f"{way} (without a pod: {error})"
                results.append(bundle(without, binary, container, test, pod.systemd))
    return results


def pause_image(observed: ChainObservation) -> str:
    """The image of pods' sandboxes in containerd's configuration, or of its defaults; empty if neither can be read."""
    dump = observed.containerd.dump if observed.containerd is not None else "containerd config dump"
    for command in (dump, "containerd config default"):
        match = re.search(
            r"(?m)^\s*sandbox(?:_image)?\s*=\s*['\"]([^'\"]+)", attempt(command.split())
        )
        if match:
            return match[1]
    return ""


def in_pod(
    pod: cri_pod.Pod,
    way: str,
    container: cri_pod.Container,
    binary: str,
    how: str,
    test: Test,
    past: tuple[type[cri.CriError], ...],
) -> ContainerResult:
    """Run the test in a pod; what a kubelet ends before its report is run again, twice.

    Args:
        pod: where, and how.
        way: how it requests GPUs, as evidence has it.
        container: without its command line.
        binary: the handler's program.
        how: the request, as :func:`with_hook` has it.
        test: what it is to show.
        past: errors that say nothing of the container, which are raised.
    """
    test = test.in_unit(binary or "runc", "--version") if pod.systemd else test
    container = replace(container, argv=test.argv)

    def execute(left_s: float, watch: Watch) -> str:
        output = ""
        for _ in range(3 if pod.kubelet else 1):
            try:
                output = cri_pod.run(pod, container, left_s, watch)
            except cri_pod.Ended as ended:
                output = ended.output
            except past:
                raise
            except cri.CriError as error:
                raise CommandError(str(error)) from None
            if MARK in output or not pod.kubelet:
                return output
        raise cri_pod.Ended(output)

    result = without_request(observed_by(execute, way, test, time.monotonic()))
    words = completed(result.error, binary)
    return replace(result, error=with_hook(words, "" if how == "device" else binary, how))


# --- docker, podman -------------------------------------------------------------------------------


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


def docker_way(info: dict[str, Any], names: Sequence[str]) -> tuple[str, list[str]] | None:
    """How docker gives containers GPUs of some names; ``None`` if it is not configured for that."""
    for name, runtime in sorted((info.get("Runtimes") or {}).items()):
        path = str((runtime or {}).get("path") or "")
        if path.rpartition("/")[2].startswith("nvidia-container-runtime"):
            options = ["--runtime", name]
            how = request()
            if how == "mounts":
                options += [f"--volume=/dev/null:{path}" for path in _mounts(how, names)]
            elif how == "annotation":
                options += ["--env", _visible((ALL,))]
            else:
                options += ["--env", _visible(names)]
            return f"runtime {name}", options
    if any(
        str(device.get("ID", "")).startswith("nvidia.com/gpu")
        for device in info.get("DiscoveredDevices") or []
    ):
        return f"CDI device {ALL}", ["--device", ALL]
    return None


def docker(info: dict[str, Any], test: Test) -> list[ContainerResult]:
    """Test docker; no result if it is not configured to give containers GPUs."""
    access = docker_way(info, test.names)
    if access is None:
        return []
    way = f"docker {info.get('ServerVersion') or ''}".strip() + f", {access[0]}"
    if info.get("CgroupDriver") == "systemd":
        test = test.in_unit("runc", "--version")
    return [loaded("docker", way, access[1], test)]


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
    containers = attempt([program, "ps", "-aq", "--filter", f"label={NAME}"]).split()
    if containers:
        attempt([program, "rm", "--force", *containers])
    if attempt([program, "images", "-q", IMAGE]).strip():
        attempt([program, "rmi", "--force", IMAGE])


def requesting(
    container: cri_pod.Container, how: str, names: Sequence[str] = _ALL_GPUS
) -> cri_pod.Container:
    """A container that requests GPUs, every one by default, as :func:`request` has it, or as ``device``."""
    if how == "device":
        return replace(container, devices=(ALL,))
    if how == "annotation":
        return replace(container, annotations={_ANNOTATION: ALL})
    env = dict(word.split("=", 1) for word in _environment(how, names))
    return replace(container, env=env, mounts=tuple(_mounts(how, names)))


def crio(observed: ChainObservation, expected: Expected, test: Test) -> list[ContainerResult]:
    """Test CRI-O, which does not report the programs of its handlers."""
    if observed.crio is None:
        return []
    text = attempt(["crio", "config"])
    section = r'(?ms)^\[crio\.runtime\.runtimes\.([^\]]+)\]$(?:(?!^\[).)*?^runtime_path = "([^"]*)"'
    default = re.search(r'(?m)^default_runtime = "([^"]*)"', text)
    programs = dict(re.findall(section, text))
    return in_pods(
        "cri-o", observed.crio, programs, default[1] if default else "", observed, expected, test
    )


def without_request(result: ContainerResult) -> ContainerResult:
    """A result without the file by which the container requests GPUs."""
    files = tuple(path for path in result.files if not path.startswith(_MOUNTS))
    return replace(result, files=files)


def bundle(
    way: str, binary: str, container: cri_pod.Container, test: Test, systemd: bool
) -> ContainerResult:
    """Create and start a container with a handler's program, from a temporary bundle."""
    began = time.monotonic()
    name = f"{NAME}-{os.getpid()}"
    folder = tempfile.mkdtemp(prefix=f"{NAME}-", dir="/run")
    base = [binary, "--root", f"{folder}/state"]
    if systemd:
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
        config["mounts"] += [{**mount, "destination": target} for target in container.mounts]
        config["root"]["readonly"] = False
        if systemd:
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
    for socket in (CONTAINERD_SOCKET, *BUNDLED, CRIO_SOCKET):
        if os.path.exists(socket):
            cri_pod.clean(socket)
    if docker_info():
        clean_loaded("docker")
    if shutil.which("podman") is not None:
        clean_loaded("podman")
    clean_folders()


def validate(
    observed: ChainObservation, expected: Expected, uuids: tuple[str, ...], timeout_s: float
) -> tuple[ContainerResult, ...]:
    """Start a container through every configured runtime; empty if there is none."""
    try:
        image, command = container_image.make(IMAGE)
    except container_image.ImageError as error:
        return (ContainerResult("image", "no-image", str(error)),)
    test = Test(uuids, timeout_s, image, tuple(command))
    if any(gpu.error is not None for gpu in observed.nvml.gpus):
        usable = [g for g in observed.nvml.gpus if g.error is None and not observed.held(g)]
        names = [m.uuid for g in usable for m in g.mig_devices or (g,)]
        test = replace(test, names=tuple(names) or test.names)
    clean_folders()
    results: list[ContainerResult] = []
    info = docker_info()
    expected = chain.with_registered(observed, expected)
    used = chain.serving(observed, expected)
    containerd = observed.containerd
    status = observed.bundled
    if used == "containerd" and containerd is not None:
        status = containerd.cri
        used = "" if containerd.disabled and not observed.kubelet else used
    if used in ("bundled", "containerd"):
        programs = {handler.name: handler.binary for handler in status.handlers} if status else {}
        default = (status.default if status else "") or "runc"
        results += in_pods("containerd", status, programs, default, observed, expected, test)
    results += docker(info, test)
    if expected.handler and (used == "crio" or "crio" in observed.registered):
        results += crio(observed, expected, test)
    if not results and "podman" in observed.other_runtimes:
        results += podman(test)
    return tuple(results)
