"""Requests that lightkube really makes, to an HTTP server of this test; and kubeconfigs that cannot be used."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from fakecluster import node

from gpustate import __version__, inventory
from gpustate.cluster import api as api_module
from gpustate.cluster import pods
from gpustate.cluster.api import Api, RefusedRequest, connect
from gpustate.cluster.kubeconfig import Kubeconfig, kubeconfig_of
from gpustate.cluster.objects import Objects
from gpustate.errors import ClusterError, UsageError


class Server(ThreadingHTTPServer):
    """Answers by path, and keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[str, tuple[int, Any]] = {}
        self.requests: list[tuple[str, str, Any]] = []
        self.agents: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    def _answer(self) -> None:
        owner = cast(Server, self.server)
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        owner.agents.append(self.headers["User-Agent"])
        owner.requests.append((self.command, self.path, body))
        missing = (404, {"kind": "Status", "message": "not found", "code": 404})
        status, data = owner.answers.get(f"{self.command} {self.path.split('?')[0]}", missing)
        text = data if isinstance(data, str) else json.dumps(data)
        self.send_response(status)
        kind = "text/plain" if isinstance(data, str) else "application/json"
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as found:
        thread = threading.Thread(target=found.serve_forever, args=(0.05,))
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def kubeconfig(folder: Path, url: str, **context: str) -> str:
    file = folder / "kubeconfig.yml"
    file.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "c",
                "clusters": [{"name": "k", "cluster": {"server": url}}],
                "users": [{"name": "u", "user": {"token": "secret"}}],
                "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", **context}}],
            }
        )
    )
    return str(file)


@pytest.fixture
def api(server: Server, tmp_path: Path) -> Iterator[Api]:
    found = connect(kubeconfig(tmp_path, server.url, namespace="checks"))
    yield found
    found.close()


def test_nodes_are_plain_data_with_their_ids_and_resources(api: Api, server: Server) -> None:
    sent = node("gpu1")
    strings = ("architecture", "kernelVersion", "kubeProxyVersion", "kubeletVersion", "operatingSystem", "osImage")  # fmt: skip
    sent["status"]["nodeInfo"] |= dict.fromkeys(strings, "x")  # always in an answer
    server.answers["GET /api/v1/nodes"] = (200, {"items": [sent], "metadata": {}})
    (found,) = api.nodes()
    assert found["status"]["nodeInfo"]["bootID"] == "boot-gpu1"
    assert found["status"]["allocatable"][pods.GPU] == "8"


def test_pods_of_a_node_are_those_of_every_namespace(api: Api, server: Server) -> None:
    server.answers["GET /api/v1/pods"] = (200, {"items": [], "metadata": {}})
    assert api.pods_on("gpu1") == []
    assert "fieldSelector=spec.nodeName%3Dgpu1" in server.requests[-1][1]


def test_a_pod_is_created_as_described_in_the_contexts_namespace(api: Api, server: Server) -> None:
    made = pods.manifest(node("gpu1"), "p", image="i:1", command=["x"], resource=pods.GPU)
    path = "/api/v1/namespaces/checks/pods"
    server.answers[f"POST {path}"] = (201, {**made, "metadata": {"name": "p", "uid": "7"}})
    assert api.create_pod(made)["metadata"]["uid"] == "7"
    sent = server.requests[-1][2]
    assert sent["spec"] == made["spec"]
    assert sent["metadata"] == made["metadata"]


def test_a_pod_that_is_gone_is_none_and_may_be_deleted_again(api: Api, server: Server) -> None:
    assert api.pod("p") is None
    api.delete_pod("p")
    path = "/api/v1/namespaces/checks/pods/p?gracePeriodSeconds=1"
    assert server.requests[-1][:2] == ("DELETE", path)
    assert not api.has_runtime_class("nvidia")


def test_logs_and_events_of_a_pod_are_read(api: Api, server: Server) -> None:
    place = "/api/v1/namespaces/checks"
    server.answers[f"GET {place}/pods/p/log"] = (200, "one\ntwo\n")
    server.answers[f"GET {place}/events"] = (200, {"items": [{"type": "Warning", "reason": "R", "message": "m", "involvedObject": {}, "metadata": {}}]})  # fmt: skip
    assert api.log("p") == "one\ntwo\n"
    assert pods.last_warning(api.events("7")) == "R: m"
    server.answers["GET /apis/node.k8s.io/v1/runtimeclasses/nvidia"] = (
        200,
        {"metadata": {"name": "nvidia"}, "handler": "nvidia"},
    )
    assert api.has_runtime_class("nvidia")


def test_a_refused_request_has_the_servers_words(api: Api, server: Server) -> None:
    words = 'pods is forbidden: User "u" cannot create resource "pods"'
    server.answers["POST /api/v1/namespaces/checks/pods"] = (403, {"kind": "Status", "message": words, "code": 403})  # fmt: skip
    with pytest.raises(RefusedRequest, match='create pod: pods is forbidden: User "u"') as caught:
        api.create_pod({"metadata": {"name": "p"}})
    assert caught.value.status == 403


def test_a_proxys_page_instead_of_an_answer_is_an_error_in_one_line(
    api: Api, server: Server
) -> None:
    server.answers["GET /api/v1/nodes"] = (502, "<html>\nBad Gateway</html>")
    with pytest.raises(ClusterError) as caught:
        api.nodes()
    assert "\n" not in str(caught.value)


def test_a_server_that_does_not_answer_is_named(tmp_path: Path) -> None:
    with Server() as closed:
        url = closed.url
    with pytest.raises(ClusterError) as caught:
        connect(kubeconfig(tmp_path, url)).nodes()
    assert str(caught.value) == (
        f"API server {url} is unreachable: Connection refused; "
        "check the address in the kubeconfig, and that this machine reaches it"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot read the kubeconfig"),
        ("", "not a kubeconfig: it is empty"),
        ("[1]", "not a kubeconfig: it is a list"),
        ("a: b: c", "not a kubeconfig"),
        ("clusters: []", "missing key 'contexts'"),
        ("a: [\n", "line 2 is not YAML: expected the node content"),
        ("\x00", "not a kubeconfig"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_refused(
    tmp_path: Path, text: str | None, words: str
) -> None:
    file = tmp_path / "kubeconfig"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UsageError, match=words) as caught:
        connect(str(file))
    assert "gpustate_kubeconfig" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_context_is_one_of_the_kubeconfig_s(tmp_path: Path) -> None:
    path = Path(kubeconfig(tmp_path, "https://127.0.0.1:1"))
    data = json.loads(path.read_text())
    data["clusters"].append({"name": "other", "cluster": {"server": "https://127.0.0.1:2"}})
    data["contexts"].append({"name": "east", "context": {"cluster": "other", "user": "u"}})
    path.write_text(json.dumps(data))
    assert connect(str(path)).server == "https://127.0.0.1:1"
    assert connect(str(path), "east").server == "https://127.0.0.1:2"
    for current, words in (
        ("x", "its current context 'x' does not exist"),
        ("", "it has no current context"),
    ):
        path.write_text(json.dumps(data | {"current-context": current}))
        with pytest.raises(UsageError, match=f"{words}; contexts: c, east; .*use-context NAME"):
            connect(str(path))
    path.write_text(json.dumps(data))
    with pytest.raises(UsageError, match="no context 'west', only c, east") as caught:
        connect(str(path), "west")
    assert "gpustate_kube_context" in str(caught.value)


def test_groups_of_an_inventory_have_clusters_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "inventory.yml"
    file.write_text(
        "all:\n"
        "  vars: {gpustate_kubeconfig: both}\n"
        "  children:\n"
        "    east: {hosts: {gpu1: {}}, vars: {gpustate_kube_context: east}}\n"
        "    west:\n"
        "      hosts: {gpu2: {}}\n"
        "      vars: {gpustate_kubeconfig: other, gpustate_kube_context: west}\n"
    )
    found = {one.name: one for one in inventory.load(str(file)).nodes}
    assert kubeconfig_of(found["gpu1"], "") == Kubeconfig("both", "east")
    assert kubeconfig_of(found["gpu2"], "") == Kubeconfig("other", "west")
    assert kubeconfig_of(found["gpu2"], "given") == Kubeconfig("given", "west")


def test_a_certificate_that_is_missing_is_an_error_of_the_kubeconfig(tmp_path: Path) -> None:
    path = Path(kubeconfig(tmp_path, "https://127.0.0.1:1"))
    data = json.loads(path.read_text())
    data["clusters"][0]["cluster"]["certificate-authority"] = "missing.pem"
    path.write_text(json.dumps(data))
    with pytest.raises(UsageError, match="kubeconfig"):
        connect(str(path))


def certified() -> tuple[str, str]:
    """A certificate and its key, as a kubeconfig has them."""
    key = Ed25519PrivateKey.generate()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "u")])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(1))
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    both = made.sign(key, None).public_bytes(Encoding.PEM), private
    return b64encode(both[0]).decode(), b64encode(both[1]).decode()


@pytest.mark.parametrize("bad", ["AAAA", "c2VjcmV0", "no base64"])
@pytest.mark.parametrize("field", ["client-certificate-data", "client-key-data"])
def test_a_bad_certificate_in_the_kubeconfig_is_named(tmp_path: Path, field: str, bad: str) -> None:
    certificate, key = certified()
    good = {"client-certificate-data": certificate, "client-key-data": key}
    path = Path(kubeconfig(tmp_path, "https://127.0.0.1:1"))
    data = json.loads(path.read_text())
    data["users"][0]["user"] = {**good, field: bad}
    path.write_text(json.dumps(data))
    with pytest.raises(UsageError, match=f"{field} is not a .* in base64; correct it"):
        connect(str(path))
    data["users"][0]["user"] = {**good, "client-key-data": certified()[1]}
    path.write_text(json.dumps(data))
    with pytest.raises(UsageError, match="the certificates of the kubeconfig cannot be used"):
        connect(str(path))


def test_a_bad_authority_in_the_kubeconfig_is_named(tmp_path: Path) -> None:
    path = Path(kubeconfig(tmp_path, "https://127.0.0.1:1"))
    data = json.loads(path.read_text())
    data["clusters"][0]["cluster"]["certificate-authority-data"] = "AAAA"
    path.write_text(json.dumps(data))
    with pytest.raises(UsageError, match="certificate-authority-data is not a certificate"):
        connect(str(path))


def test_requests_name_gpustate_as_the_user_agent(api: Api, server: Server) -> None:
    server.answers["GET /api/v1/pods"] = (200, {"items": [], "metadata": {}})
    api.pods()
    assert server.agents == [f"gpustate/{__version__}"]


FIRST_ANSWERS = """
import subprocess
import sys
import threading
from lightkube.core import decoders
from gpustate.cluster import api

wait = threading.Barrier(4)
def decode():
    wait.wait()
    for kind in (api.Node, api.Pod, api.RuntimeClass, api.Event):
        assert decoders.decode_list(b'{"items": [], "metadata": {"continue": "x"}}', kind)[0] == "x"
    assert decoders.decode_status(b'{"code": 404}').code == 404
threads = [threading.Thread(target=decode) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


def test_first_answers_of_a_kind_may_arrive_in_several_threads() -> None:
    done = subprocess.run([sys.executable, "-c", FIRST_ANSWERS], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_in_a_pod_its_service_account_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="in-cluster: gpustate does not run in a pod"):
        connect("in-cluster")
    key = Ed25519PrivateKey.generate()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ca")])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(1))
    content = {
        "token": b"secret",
        "namespace": b"checks",
        "ca.crt": made.sign(key, None).public_bytes(Encoding.PEM),
    }
    for file, data in content.items():
        (tmp_path / file).write_bytes(data)
    monkeypatch.setattr(api_module, "SERVICE_ACCOUNT", str(tmp_path))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    found = connect("in-cluster")
    assert found.server == "https://[::1]:1"
    with pytest.raises(ClusterError, match="is unreachable"):
        found.nodes()
    found.close()


def test_the_content_of_a_namespace_is_that_of_every_kind_in_discovery(
    api: Api, server: Server
) -> None:
    def served(*names: str) -> tuple[int, Any]:
        rows = [
            {"name": one, "kind": one[:-1].title(), "namespaced": True, "verbs": ["get", "list"]}
            for one in names
        ]
        rows += [{"name": "nodes", "kind": "Node", "namespaced": False, "verbs": ["list"]}]
        rows += [{"name": "reviews", "kind": "Review", "namespaced": True, "verbs": ["create"]}]
        return 200, {"resources": rows}

    def group(name: str, *versions: str) -> dict[str, Any]:
        rows = [{"groupVersion": f"{name}/{one}"} for one in versions]
        return {"name": name, "versions": rows, "preferredVersion": rows[-1]}

    groups = [
        group("example.com", "v1alpha1", "v1"),
        group("metrics.k8s.io", "v1beta1"),
        group("gone.example.com", "v1"),
    ]
    forbidden = (403, {"kind": "Status", "message": "forbidden", "code": 403})
    theirs = (200, {"items": [{"metadata": {"name": "theirs", "namespace": "x"}}]})
    server.answers |= {
        "GET /apis": (200, {"groups": groups}),
        "GET /api/v1": served("events", "endpoints", "secrets"),
        "GET /apis/example.com/v1": served("widgets", "gadgets", "empties"),
        "GET /apis/example.com/v1alpha1": served("widgets"),
        "GET /api/v1/namespaces/x/secrets": forbidden,
        "GET /apis/example.com/v1/namespaces/x/widgets": theirs,
        "GET /apis/example.com/v1/namespaces/x/empties": (200, {"items": None}),
        "GET /apis/example.com/v1/namespaces/x/gadgets": (404, {"message": "gone"}),
    }
    found, unread = Objects(api).content("x")
    assert [(one["apiVersion"], one["kind"], one["metadata"]["name"]) for one in found] == [
        ("example.com/v1", "Widget", "theirs")
    ]
    assert unread == ["gone.example.com/v1", "secrets"]
