"""Run one container in a pod of its own over CRI, as a kubelet does, and remove the pod and the image.

The runtime pulls the image from a registry on the loopback interface that this process serves meanwhile: containerd
and CRI-O need no TLS there, and CRI cannot load an image file. The pod has the node's network, so no CNI plugin is
involved.

Surprising: every two seconds a kubelet ends pods that are not its own, with a second of grace. Between the creation
and the start of a container this blocks CRI-O for a minute. So beside a kubelet a pod is created when that has just ended
another one, and its container has at least a second and a half.

Standard library only, Python 3.9.

Sources:
    kubernetes/cri-api, pkg/apis/runtime/v1/api.proto: numbers of fields; kubelet, HandlePodCleanups;
    opencontainers/distribution-spec (pull); containerd, core/remotes/docker, MatchLocalhost; cri-o/cri-o,
    internal/storage/image.go (127.0.0.0/8 is insecure); kubelet, pkg/kubelet/kuberuntime/logs (format of logs).
"""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import re
import shutil
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpustate.nodeside import cri

NAME = "gpustate-validate"
_LABEL = "gpustate.io/validate"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
#: NamespaceOption: the network of the node, and a process namespace of each container, as kubelets have it.
_NAMESPACES = {1: 2, 2: 1}
#: Of the enumerations ContainerState and PodSandboxState.
_EXITED, _NOT_READY = 2, 1
#: The last two are words of runc and crun.
_KILLED = re.compile("container exited with 137|ContainerStatus:|that has stopped|` is not running")
#: A kubelet looks for pods of others every two seconds.
_KUBELET_S = 5.0


class NoPod(cri.CriError):
    """The runtime has no image or no sandbox for the pod: nothing is known of its handler."""


class Ended(cri.CriError):
    """A kubelet removed the pod before its container had ended.

    Args:
        output: of the container until then.
    """

    def __init__(self, output: str) -> None:
        super().__init__("a kubelet ended it before it reported")
        self.output = output


@dataclass(frozen=True)
class Pod:
    """Where pods run, and how.

    Args:
        socket: of the runtime.
        image: its configuration and its layer.
        systemd: the cgroup driver of pods is systemd.
        kubelet: one runs beside.
        pause: containerd's image of sandboxes; if it is missing, this image gets its name meanwhile.
    """

    socket: str
    image: tuple[bytes, bytes]
    systemd: bool = True
    kubelet: bool = False
    pause: str = ""


@dataclass(frozen=True)
class Container:
    """What the container runs, and how it requests GPUs.

    Args:
        handler: of the pod; empty: the default one.
        argv: command line.
        env: environment.
        annotations: of the container.
        devices: names of CDI devices.
        mounts: paths in it on which /dev/null is mounted.
    """

    handler: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    devices: Sequence[str] = ()
    mounts: Sequence[str] = ()


def run(pod: Pod, container: Container, timeout_s: float, watch: Callable[[], bool]) -> str:
    """Run the container and return its output.

    Args:
        pod: its pod.
        container: what it runs.
        timeout_s: limit for everything.
        watch: called from time to time while it runs, until it returns true.

    Raises:
        cri.CriError: the container could not be created or started, failed, or did not end in time.
        NoPod: there was no pod for it.
        Ended: a kubelet removed the pod.
    """
    deadline = time.monotonic() + timeout_s
    clean(pod.socket)
    folder = Path(tempfile.mkdtemp(prefix=f"{NAME}-", dir="/run"))
    config: dict[int, Any] = {
        1: {1: NAME, 2: str(uuid.uuid4()), 3: NAME},
        3: str(folder),
        4: {1: "127.0.0.1"},  # instead of the node's resolv.conf, which may be missing
        6: [{1: _LABEL, 2: NAME}],
        8: {1: "system.slice" if pod.systemd else [], 2: {1: _NAMESPACES}},
    }
    try:
        try:
            reference = pull(pod.socket, NAME, pod.image, deadline)
            if pod.pause:
                _provide_pause(pod, reference, deadline)
            sandbox = _sandbox(pod, config, container.handler, deadline)
        except cri.CriError as error:
            raise NoPod(str(error)) from None
        try:
            _start(pod.socket, sandbox, config, reference, container, deadline, watch)
            return _log(folder / "output")
        except cri.CriError as error:
            output = _log(folder / "output")
            if pod.kubelet and _KILLED.search(str(error)):  # and perhaps removed it
                raise Ended(output) from None
            tail = " ".join(output.strip().splitlines()[-6:])
            raise cri.CriError(f"{error}: {tail}" if tail else str(error)) from None
    finally:
        clean(pod.socket)
        shutil.rmtree(folder, ignore_errors=True)


def _sandbox(pod: Pod, config: dict[int, Any], handler: str, deadline: float) -> str:
    """Create the pod's sandbox; beside a kubelet when that has just stopped another one, so that it looks again later."""
    request = cri.encode({1: config, 2: handler})
    sandbox = _call(pod.socket, "RunPodSandbox", request, deadline)
    ends = time.monotonic() + _KUBELET_S
    while pod.kubelet and time.monotonic() < ends:
        status = cri.call(pod.socket, "PodSandboxStatus", cri.encode({1: sandbox}), deadline)
        if cri.fields(cri.fields(status)[1][-1]).get(3) == [_NOT_READY]:
            config[1][2] = str(uuid.uuid4())
            return _call(pod.socket, "RunPodSandbox", cri.encode({1: config, 2: handler}), deadline)
        time.sleep(0.02)
    return sandbox


def _provide_pause(pod: Pod, reference: str, deadline: float) -> None:
    """Give this image the name of a missing image of sandboxes, which the runtime would download."""

    def pause_exists() -> bool:
        status = cri.call(pod.socket, "ImageStatus", cri.encode({1: {1: pod.pause}}), deadline)
        return 1 in cri.fields(status)

    if pause_exists():
        return
    client = ["ctr", "--address", pod.socket, "--namespace", "k8s.io"]
    with contextlib.suppress(OSError):
        subprocess.run([*client, "images", "tag", reference, pod.pause], capture_output=True)
        ends = time.monotonic() + 5
        while not pause_exists() and time.monotonic() < ends:  # CRI learns of it by an event
            time.sleep(0.1)


def pull(socket: str, name: str, image: tuple[bytes, bytes], deadline: float) -> str:
    """Let the runtime pull an image from this process; its reference.

    Args:
        socket: of the runtime.
        name: of the image, for :func:`clean`.
        image: its configuration and its layer.
        deadline: monotonic time in seconds.

    Raises:
        cri.CriError: it cannot be pulled.
    """
    with _registry(name, *image) as reference:
        cri.call(socket, "PullImage", cri.encode({1: {1: reference}}), deadline)
    return reference


def _start(
    socket: str,
    sandbox: str,
    pod: Mapping[int, Any],
    reference: str,
    container: Container,
    deadline: float,
    watch: Callable[[], bool],
) -> None:
    """Create and start the container, and wait until it has ended."""
    config = {
        1: {1: NAME},
        2: {1: reference, 18: reference},
        3: list(container.argv),
        6: [{1: key, 2: value} for key, value in container.env.items()],
        7: [{1: path, 2: "/dev/null", 3: 1} for path in container.mounts],
        10: [{1: key, 2: value} for key, value in container.annotations.items()],
        11: "output",
        15: {2: {3: _NAMESPACES}},
        17: [{1: name} for name in container.devices],
    }
    request = cri.encode({1: sandbox, 2: config, 3: pod})
    name = _call(socket, "CreateContainer", request, deadline)
    cri.call(socket, "StartContainer", cri.encode({1: name}), deadline)
    watched = False
    while True:
        watched = watched or watch()
        answer = cri.fields(cri.call(socket, "ContainerStatus", cri.encode({1: name}), deadline))
        status = cri.fields(answer[1][-1])
        if status.get(3, [0])[-1] == _EXITED:
            code = status.get(7, [0])[-1]
            words = cri.text(status, 11) or cri.text(status, 10)
            if code:
                raise cri.CriError(f"the container exited with {code}: {words}")
            return
        time.sleep(0.1)


def _call(socket: str, method: str, request: bytes, deadline: float) -> str:
    """The id that a method answers."""
    return cri.text(cri.fields(cri.call(socket, method, request, deadline)), 1)


def clean(socket: str, name: str = NAME) -> None:
    """Remove the pods and images of this name, from whatever port, also those that a killed process left.

    The runtime fails to remove what a kubelet is removing: this is repeated until none is listed, or none can be.
    """
    deadline = time.monotonic() + 20
    with contextlib.suppress(cri.CriError):
        while removals := list(_removals(socket, name, deadline)):
            for method, removed in removals:
                with contextlib.suppress(cri.CriError):
                    cri.call(socket, method, cri.encode({1: removed}), deadline)
            time.sleep(0.1)


def _removals(socket: str, name: str, deadline: float) -> Iterator[tuple[str, Any]]:
    """Methods and what they remove: pods, images, and containers that have ended."""

    def listed(method: str, request: dict[int, Any]) -> list[bytes]:
        return cri.fields(cri.call(socket, method, cri.encode(request), deadline)).get(1, [])

    for raw in listed("ListPodSandbox", {1: {3: [{1: _LABEL, 2: name}]}}):
        pod = cri.text(cri.fields(raw), 1)
        yield from (("StopPodSandbox", pod), ("RemovePodSandbox", pod))
    for image in map(cri.fields, listed("ListImages", {})):
        if not any(f"/{name}:".encode() in tag for tag in image.get(2, ())):
            continue
        key = cri.text(image, 1)
        # CRI-O keeps the image of a container that a kubelet has not removed yet.
        for held in listed("ListContainers", {}):
            if key.encode() in held and cri.fields(held).get(6) == [_EXITED]:
                yield "RemoveContainer", cri.text(cri.fields(held), 1)
        yield "RemoveImage", {1: key}


def _log(path: Path) -> str:
    """A container's output without the time, stream and tag of each line; ``P`` tags a part of a line."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    rows = [(line.split(" ", 3) + [""] * 3)[2:4] for line in lines]
    return "".join(text if tag == "P" else f"{text}\n" for tag, text in rows)


@contextlib.contextmanager
def _registry(image: str, config: bytes, layer: bytes) -> Iterator[str]:
    """Serve an image of one layer on the loopback interface; its reference."""

    def described(kind: str, data: bytes) -> dict[str, object]:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        blobs[digest] = data
        return {"mediaType": kind, "digest": digest, "size": len(data)}

    blobs: dict[str, bytes] = {}
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": described("application/vnd.oci.image.config.v1+json", config),
        "layers": [described("application/vnd.oci.image.layer.v1.tar", layer)],
    }
    digest = str(described(_MANIFEST, json.dumps(manifest).encode())["digest"])

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        #: A client that tries TLS first has to see HTTP in the answer.
        default_request_version = protocol_version

        def do_GET(self) -> None:
            self.wfile.write(self.answer())

        def do_HEAD(self) -> None:
            self.answer()

        def answer(self) -> bytes:
            """Send the head of a response; its body."""
            name = self.path.partition("?")[0].rpartition("/")[2]
            is_manifest = "/manifests/" in self.path
            key = digest if is_manifest and name == "1" else name
            body = blobs.get(key, b"")
            self.send_response(200 if body or not name else 404)
            self.send_header("Content-Length", str(len(body)))
            self.send_header(
                "Content-Type", _MANIFEST if is_manifest else "application/octet-stream"
            )
            self.send_header("Docker-Content-Digest", key)
            self.end_headers()
            return body

        def log_message(self, format: str, *words: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"127.0.0.1:{server.server_port}/{image}:1"
        finally:
            server.shutdown()
