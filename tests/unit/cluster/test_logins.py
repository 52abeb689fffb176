"""Kubeconfigs whose user is a program, as managed clusters have them: real programs, and servers that check what they print."""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from apigate import Gate
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from stubcluster import TOKEN, StubCluster

from gpustate.cluster import api as api_module
from gpustate.cluster import logins
from gpustate.cluster.api import Api, connect
from gpustate.documents import Json
from gpustate.errors import ClusterError, UsageError
from gpustate.formats import masking

V1 = "client.authentication.k8s.io/v1"
#: Prints the file ``answer`` of its folder, and records how it was run.
PROGRAM = """#!/bin/sh
cd "$(dirname "$0")"
echo "$*" >>runs
printf '%s' "$KUBERNETES_EXEC_INFO" >info
echo "PROFILE=$PROFILE tty=$(test -t 0 && echo yes || echo no)" >seen
test ! -e slow || sleep 1000
test ! -e fails || { echo 'warning: old' >&2; echo 'SSO session expired, run: aws sso login' >&2; exit 255; }
cat answer
"""


class Site:
    """A cluster, and a kubeconfig with a program of its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cluster = StubCluster({"n0": ("b", "m", "u")})
        self.gate = Gate(self.cluster.answer)
        self.program = folder / "login"
        self.program.write_text(PROGRAM)
        self.program.chmod(0o755)
        self.settings: Json = {
            "apiVersion": V1,
            "command": "./login",
            "args": ["eks", "get-token"],
            "env": [{"name": "PROFILE", "value": "gpu"}],
            "interactiveMode": "IfAvailable",
        }
        self.opened: list[Api] = []
        self.of_cluster: Json = {}
        self.of_user: Json = {}
        self.prints(token=TOKEN)

    def prints(self, version: str = V1, **status: str) -> None:
        answer = {"kind": "ExecCredential", "apiVersion": version, "status": status}
        (self.folder / "answer").write_text(json.dumps(answer))

    def connect(self) -> Api:
        file = self.folder / "kubeconfig"
        cluster = {"server": self.gate.url} | self.of_cluster
        content = {
            "current-context": "c",
            "clusters": [{"name": "k", "cluster": cluster}],
            "users": [{"name": "u", "user": {"exec": self.settings, **self.of_user}}],
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        }
        file.write_text(json.dumps(content))
        self.opened.append(connect(str(file)))
        return self.opened[-1]

    @property
    def runs(self) -> list[str]:
        file = self.folder / "runs"
        return file.read_text().splitlines() if file.exists() else []


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    made.gate.open()
    yield made
    for api in made.opened:
        api.close()
    made.gate.close()


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_a_program_logs_in_once_with_what_the_kubeconfig_gives_it(
    site: Site, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    site.settings["apiVersion"] = f"client.authentication.k8s.io/{version}"
    site.prints(f"client.authentication.k8s.io/{version}", token=TOKEN)
    api = site.connect()
    assert site.runs == [], "not before the first request"
    assert [one["metadata"]["name"] for one in api.nodes()] == ["n0"]
    api.nodes()
    assert site.runs == ["eks get-token"]
    assert (site.folder / "seen").read_text() == "PROFILE=gpu tty=no\n"
    info = json.loads((site.folder / "info").read_text())
    assert info == {"kind": "ExecCredential", "apiVersion": site.settings["apiVersion"], "spec": {"interactive": False}}  # fmt: skip
    assert TOKEN not in masking.mask(f"Bearer {TOKEN}")


def test_a_program_gets_the_cluster_if_it_wants_it(site: Site) -> None:
    site.settings["provideClusterInfo"] = True
    site.of_cluster = {
        "insecure-skip-tls-verify": True,
        "extensions": [
            {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "gpu"}}
        ],
    }
    site.connect().nodes()
    spec = json.loads((site.folder / "info").read_text())["spec"]
    assert spec["cluster"] == {
        "server": site.gate.url,
        "insecure-skip-tls-verify": True,
        "config": {"audience": "gpu"},
    }


def test_a_token_that_the_server_refuses_is_renewed_once_for_all_threads(site: Site) -> None:
    api = site.connect()
    api.nodes()
    site.cluster.token = "the next one"
    site.prints(token="the next one")
    with ThreadPoolExecutor(8) as pool:
        assert {len(found) for found in pool.map(lambda _: api.nodes(), range(8))} == {1}
    assert len(site.runs) == 2


def test_a_token_is_renewed_when_it_expires(site: Site) -> None:
    soon = datetime.now(UTC) + timedelta(seconds=1.5)
    site.prints(token=TOKEN, expirationTimestamp=soon.strftime("%Y-%m-%dT%H:%M:%S.%fZ"))
    api = site.connect()
    api.nodes()
    api.nodes()
    assert len(site.runs) == 1
    time.sleep(1.6)
    site.prints(token=TOKEN)
    api.nodes()
    assert len(site.runs) == 2


def test_an_expired_token_of_the_program_is_named(site: Site) -> None:
    site.prints(token="old", expirationTimestamp="2026-01-02T03:04:05Z")
    with pytest.raises(ClusterError, match="list nodes: Unauthorized") as caught:
        site.connect().nodes()
    assert caught.value.fix is not None
    assert caught.value.fix.startswith(
        "login of the kubeconfig returned credentials that the server refuses, which expired at 2026-01-02T03:04:05Z"
    )
    assert (
        f"kubectl get nodes --kubeconfig {site.folder}/kubeconfig --context c" in caught.value.fix
    )
    assert len(site.runs) == 2


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("", "printed no ExecCredential"),
        ("[]", "printed no ExecCredential"),
        ("Please visit https://login.example", "printed no ExecCredential"),
        ('{"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1beta1"}',
         f"printed ExecCredential client.authentication.k8s.io/v1beta1 instead of ExecCredential {V1}"),
        (json.dumps({"kind": "ExecCredential", "apiVersion": V1, "status": {}}), "without token"),
        (json.dumps({"kind": "ExecCredential", "apiVersion": V1, "status": {"token": 7}}), "not text"),
        (json.dumps({"kind": "ExecCredential", "apiVersion": V1, "status": {"clientCertificateData": "x"}}), "without token"),
        (json.dumps({"kind": "ExecCredential", "apiVersion": V1, "status": {"clientCertificateData": "x", "clientKeyData": "y"}}),
         "printed an unusable client certificate"),
    ],
)  # fmt: skip
def test_output_without_credentials_is_one_error(site: Site, answer: str, words: str) -> None:
    (site.folder / "answer").write_text(answer)
    with pytest.raises(ClusterError, match=words) as caught:
        site.connect().nodes()
    assert "\n" not in str(caught.value)
    assert len(site.runs) == 1


def test_a_program_that_fails_is_quoted(site: Site) -> None:
    (site.folder / "fails").touch()
    with pytest.raises(ClusterError) as caught:
        site.connect().nodes()
    assert str(caught.value).startswith(
        f"login, which the kubeconfig {site.folder}/kubeconfig logs in with, failed with exit code 255: "
        "SSO session expired, run: aws sso login"
    )


def test_a_program_that_fails_for_a_moment_is_run_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_module, "_RETRY_S", 0.1)
    api = site.connect()
    api.nodes()
    site.cluster.token = "the next one"
    site.prints(token="the next one")
    (site.folder / "fails").touch()
    threading.Timer(0.5, (site.folder / "fails").unlink).start()
    assert len(api.nodes()) == 1


def test_a_program_that_hangs_is_ended_with_what_it_started(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logins, "TIMEOUT_S", 0.5)
    (site.folder / "slow").touch()
    began = time.monotonic()
    with pytest.raises(ClusterError, match=r"timed out after 0\.5 s"):
        site.connect().nodes()
    assert time.monotonic() - began < 10


def test_a_program_that_is_missing_is_named_with_the_hint_of_the_kubeconfig(site: Site) -> None:
    site.settings |= {"command": "no-such-login", "installHint": "Install it from example.net"}
    with pytest.raises(ClusterError, match="cannot run no-such-login") as caught:
        site.connect().nodes()
    assert caught.value.fix == "Install it from example.net"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"command": ""}, "has no command"),
        ({"apiVersion": "client.authentication.k8s.io/v2"}, "unsupported apiVersion"),
        ({"interactiveMode": "Always"}, "needs a terminal"),
    ],
)
def test_settings_that_cannot_be_used_are_an_error_of_the_kubeconfig(
    site: Site, change: Json, words: str
) -> None:
    site.settings |= change
    with pytest.raises(UsageError, match=words):
        site.connect()


# --- certificates -------------------------------------------------------------------------------


class Authority:
    """Issues certificates."""

    def __init__(self) -> None:
        self.key = generate_private_key(SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
        self.text, _ = self.issue("authority", key=self.key, ca=True)

    def issue(self, name: str, key: Any = None, *, ca: bool = False) -> tuple[str, str]:
        key = key or generate_private_key(SECP256R1())
        now = datetime.now(UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
            .sign(self.key, SHA256())
        )
        words = (Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return made.public_bytes(Encoding.PEM).decode(), key.private_bytes(*words).decode()


class Answers(BaseHTTPRequestHandler):
    """Who asks, by certificate and headers; refuses the name ``old``."""

    protocol_version = "HTTP/1.1"
    seen: ClassVar[list[tuple[str, str | None, list[str] | None]]] = []

    def do_GET(self) -> None:
        subject = self.connection.getpeercert()["subject"]  # type: ignore[attr-defined]
        name = subject[0][0][1]
        user, groups = (
            self.headers.get("Impersonate-User"),
            self.headers.get_all("Impersonate-Group"),
        )
        self.seen.append((name, user, groups))
        refused = {"kind": "Status", "message": "Unauthorized", "code": 401}
        text = json.dumps(refused if name == "old" else {"items": [], "metadata": {}}).encode()
        self.send_response(401 if name == "old" else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def test_certificates_of_a_program_are_used_and_replaced(site: Site) -> None:
    authority = Authority()
    for name, text in zip(("cert", "key"), authority.issue("api.example"), strict=True):
        (site.folder / name).write_text(text)
    (site.folder / "ca").write_text(authority.text)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(site.folder / "ca"))
    context.load_cert_chain(site.folder / "cert", site.folder / "key")
    context.verify_mode = ssl.CERT_REQUIRED
    seen = Answers.seen
    seen.clear()
    server = HTTPServer(("127.0.0.1", 0), Answers)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        site.of_cluster = {
            "server": f"https://127.0.0.1:{server.server_port}",
            "certificate-authority": "ca",
            "tls-server-name": "api.example",
        }
        site.of_user = {"as": "ops", "as-groups": ["gpu", "night"]}
        certificate, key = authority.issue("old")
        site.prints(clientCertificateData=certificate, clientKeyData=key)
        api = site.connect()
        with pytest.raises(ClusterError, match="Unauthorized"):
            api.nodes()
        certificate, key = authority.issue("new")
        site.prints(clientCertificateData=certificate, clientKeyData=key)
        assert api.nodes() == []
        assert seen == [(name, "ops", ["gpu", "night"]) for name in ("old", "old", "old", "new")]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_proxy_of_the_kubeconfig_is_used(site: Site) -> None:
    asked: list[str] = []

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(b'{"items": [], "metadata": {}}')

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Proxy)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        site.of_cluster = {
            "server": "http://api.invalid",
            "proxy-url": f"http://127.0.0.1:{server.server_port}",
        }
        assert site.connect().nodes() == []
        site.of_user = {"token": "t", "exec": None}
        assert site.connect().nodes() == []
        assert asked == ["http://api.invalid/api/v1/nodes"] * 2
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    site.of_user = {}
    site.of_cluster["proxy-url"] = "socks5://127.0.0.1:1"
    with pytest.raises(UsageError, match="unsupported proxy-url socks5"):
        site.connect()
