"""The pod of the validation over CRI: messages, its registry and its log. Real runtimes run it in tests/node."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from gpustate.nodeside import container_image, cri, cri_pod


def test_a_message_is_what_its_reader_reads() -> None:
    raw = cri.encode(
        {1: {1: "x" * 200, 2: 300}, 6: [{1: "a", 2: "b"}, {1: "c"}], 11: "log", 12: []}
    )
    message = cri.fields(raw)
    assert cri.text(message, 11) == "log"
    assert 12 not in message
    inner = cri.fields(message[1][0])
    assert (cri.text(inner, 1), inner[2]) == ("x" * 200, [300])
    assert [cri.text(cri.fields(one), 1) for one in message[6]] == ["a", "c"]


def test_the_registry_serves_the_image_that_was_built() -> None:
    archive, _ = container_image.make("x:1")
    config, layer = container_image.parts(archive)
    assert json.loads(config)["rootfs"]["diff_ids"] == [
        f"sha256:{hashlib.sha256(layer).hexdigest()}"
    ]
    with cri_pod._registry("name", config, layer) as reference:
        address, _, tag = reference.rpartition(":")
        url = f"http://{address.replace('/', '/v2/')}"
        with urllib.request.urlopen(f"{url}/manifests/{tag}") as answer:
            text, digest = answer.read(), answer.headers["Docker-Content-Digest"]
        assert digest == f"sha256:{hashlib.sha256(text).hexdigest()}"
        manifest = json.loads(text)
        for part, data in ((manifest["config"], config), (manifest["layers"][0], layer)):
            head = urllib.request.Request(f"{url}/blobs/{part['digest']}", method="HEAD")
            with urllib.request.urlopen(head) as answer:
                assert int(answer.headers["Content-Length"]) == part["size"] == len(data)
            with urllib.request.urlopen(f"{url}/blobs/{part['digest']}") as answer:
                assert answer.read() == data
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{url}/blobs/sha256:0")
        host, _, port = address.partition("/")[0].partition(":")
        with socket.create_connection((host, int(port))) as tls:
            tls.sendall(b"\x16\x03\x01\x00\n" * 2)
            assert tls.recv(5) == b"HTTP/"
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url)


def test_a_log_is_read_without_its_marks(tmp_path: Path) -> None:
    path = tmp_path / "output"
    assert cri_pod._log(path) == ""
    now = "2026-11-28T10:00:00.000000000+00:00"
    path.write_text(
        f"{now} stdout P long \n{now} stdout F line\n{now} stderr F\n{now} stdout F a  b\n"
    )
    assert cri_pod._log(path) == "long line\n\na  b\n"


def test_a_kubelet_that_removes_the_same_leaves_no_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """CRI-O answers the slower of two with an error, and keeps the image of a container."""
    listed: dict[str, dict[str, dict[int, object]]] = {
        "PodSandbox": {"pod": {1: "pod"}},
        "Container": {"container": {1: "container", 4: {1: "image"}, 6: 2}},
        "Image": {
            "image": {1: "image", 2: [f"127.0.0.1:40000/{cri_pod.NAME}:1"]},
            "foreign": {1: "foreign", 2: ["docker.io/library/busybox:1"]},
        },
    }
    raced = {"PodSandbox", "Container"}

    def call(socket: str, method: str, message: bytes, deadline: float) -> bytes:
        match = re.fullmatch("(List|Stop|Remove)(PodSandbox|Container|Image)s?", method)
        assert match
        verb, kind = match.groups()
        if verb == "List":
            return cri.encode({1: list(listed[kind].values())})
        if verb == "Remove":
            inner = cri.fields(message)[1][0]
            key = inner.decode() if kind != "Image" else cri.text(cri.fields(inner), 1)
            if kind == "Image" and listed["Container"]:
                raise cri.CriError("RemoveImage: image is in use by a container")
            del listed[kind][key]
            if kind in raced:
                raced.remove(kind)
                raise cri.CriError(f"{method}: failed to delete {key} from index")
        return b""

    monkeypatch.setattr(cri, "call", call)
    cri_pod.clean("/run/crio/crio.sock")
    assert {kind: list(things) for kind, things in listed.items()} == {
        "PodSandbox": [],
        "Container": [],
        "Image": ["foreign"],
    }


@pytest.mark.parametrize("kubelet", [True, False])
@pytest.mark.parametrize(
    "words", ["cannot start a container that has stopped", "container `15926` is not running"]
)
def test_a_container_that_a_kubelet_stopped_before_its_start_has_not_failed(
    words: str, kubelet: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(socket: str, method: str, message: bytes, deadline: float) -> bytes:
        if method == "StartContainer":
            raise cri.CriError(
                "StartContainer: failed to start container 15926: `/usr/bin/nvidia-container-runtime start 15926` "
                f'failed: "{words}"\n: exit status 1'
            )
        # Ended by the kubelet, so that the test's own pod is created at once.
        return cri.encode({1: {1: "pod", 3: 1}} if method == "PodSandboxStatus" else {1: "pod"})

    def folder(prefix: str, dir: str) -> str:
        return str(tmp_path)

    monkeypatch.setattr(cri, "call", call)
    monkeypatch.setattr(cri_pod, "clean", lambda socket: None)
    monkeypatch.setattr(cri_pod, "pull", lambda socket, name, image, deadline: "image")
    monkeypatch.setattr(tempfile, "mkdtemp", folder)
    pod = cri_pod.Pod("/run/crio/crio.sock", (b"", b""), kubelet=kubelet)
    with pytest.raises(cri.CriError) as caught:
        cri_pod.run(pod, cri_pod.Container("nvidia", ["true"]), 10, lambda: True)
    assert isinstance(caught.value, cri_pod.Ended) is kubelet
