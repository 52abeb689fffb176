"""Credentials of a kubeconfig whose user is a program: ``exec``, as EKS, GKE, AKS and Teleport write it.

lightkube runs such programs only for API versions before ``v1``, and takes only tokens from them.

The program runs without a terminal, for gpustate makes requests from many threads. What it printed is used until it
expires, or until the server refuses it; then the program runs again, once for all threads.

Sources:
    kubernetes/client-go, plugin/pkg/client/auth/exec/exec.go: KUBERNETES_EXEC_INFO, expiry, relative commands;
    pkg/apis/clientauthentication/v1: ExecCredential.
"""

from __future__ import annotations

import base64
import json
import os
import shlex
import signal
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import httpx2
from lightkube import SingleConfig
from lightkube.core.exceptions import ConfigError

from gpustate.documents import Json, JsonView
from gpustate.errors import ClusterError
from gpustate.formats import masking
from gpustate.formats.words import cut

GROUP = "client.authentication.k8s.io/"
VERSIONS = ("v1", "v1beta1", "v1alpha1")
#: Extension of a cluster with settings of the program.
_EXTENSION = "client.authentication.k8s.io/exec"
#: Cluster keys of a kubeconfig that an ExecCredential has under the same name.
_CLUSTER_KEYS = ("server", "tls-server-name", "insecure-skip-tls-verify", "certificate-authority-data", "proxy-url")  # fmt: skip
TIMEOUT_S = 60.0
_MAX_BYTES = 1 << 20
_UNAUTHORIZED = 401


class LoginFailed(ClusterError):
    """The program printed no credentials."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What the program printed.

    Args:
        token: bearer token; empty: there is none.
        certificate, key: client certificate, PEM; empty: there is none.
        expires: when they expire, as printed; empty: unknown.
    """

    token: str
    certificate: str
    key: str
    expires: str

    def expired(self, now_s: float) -> bool:
        """Whether they are no longer valid, by this machine's clock."""
        with suppress(ValueError):
            return bool(self.expires) and _time(self.expires).timestamp() <= now_s
        return False


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


class ProgramLogin(httpx2.Auth):
    """Log in with a program.

    Args:
        settings: ``users[].user.exec`` of the kubeconfig.
        cluster: ``clusters[].cluster`` of the kubeconfig.
        config: the context, and where the kubeconfig is.
        context: for TLS; a client certificate is added to it.

    Raises:
        ConfigError: the settings cannot be used.
    """

    def __init__(
        self, settings: JsonView, cluster: Json, config: SingleConfig, context: ssl.SSLContext
    ) -> None:
        command, version = settings.get("command"), settings.get("apiVersion")
        if not isinstance(command, str) or not command:
            raise ConfigError("users[].user.exec has no command")
        if version not in [GROUP + suffix for suffix in VERSIONS]:
            raise ConfigError(f"unsupported apiVersion {version!r} of users[].user.exec; supported: {GROUP}v1")  # fmt: skip
        if settings.get("interactiveMode") == "Always":
            raise ConfigError(
                f"its login program {command} needs a terminal (interactiveMode: Always); "
                "use a kubeconfig with a token, or of a service account"
            )
        self._version = str(version)
        self._words = [_program(command, config), *map(str, settings.get("args") or [])]
        self._context = context
        self._hint = str(settings.get("installHint") or "").strip()
        self._kubeconfig, self._name = str(config.fname), config.context_name
        self._environment = {
            str(variable["name"]): str(variable["value"]) for variable in settings.get("env") or []
        }
        spec: Json = {"interactive": False}
        if settings.get("provideClusterInfo"):
            spec["cluster"] = _cluster_info(cluster, config)
        info = {"kind": "ExecCredential", "apiVersion": version, "spec": spec}
        self._environment["KUBERNETES_EXEC_INFO"] = json.dumps(info)
        self._lock = threading.Lock()
        self._credentials: Credentials | None = None

    @property
    def name(self) -> str:
        """The program."""
        return Path(self._words[0]).name

    @property
    def remedy(self) -> str:
        """What to do when the server refuses what the program printed."""
        credentials = self._credentials
        until = (
            f", which expired at {credentials.expires}"
            if credentials and credentials.expired(time.time())
            else ""
        )
        return f"{self.name} of the kubeconfig returned credentials that the server refuses{until}: {self._log_in}"

    @property
    def _log_in(self) -> str:
        options = ("--kubeconfig", self._kubeconfig, "--context", self._name)
        return f"log in with its provider's tool until this works: kubectl get nodes {shlex.join(options)}"

    def sync_auth_flow(
        self, request: httpx2.Request
    ) -> Generator[httpx2.Request, httpx2.Response, None]:
        """Add the token; run the program again if the server refuses it."""
        used = self._current(None)
        _authorize(request, used)
        response = yield request
        if response.status_code == _UNAUTHORIZED:
            _authorize(request, self._current(used))
            yield request

    def _current(self, refused: Credentials | None) -> Credentials:
        """Credentials that are still valid, and not the refused ones."""
        with self._lock:
            credentials = self._credentials
            if credentials is None or credentials is refused or credentials.expired(time.time()):
                credentials = self._credentials = self._read(self._run())
                if credentials.certificate:
                    self._load(credentials)
            return credentials

    def _run(self) -> bytes:
        """Output of the program."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            try:
                process = subprocess.Popen(
                    self._words,
                    env={**os.environ, **self._environment},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                )
            except OSError as error:
                raise LoginFailed(
                    f"cannot run {self._words[0]}, which the kubeconfig {self._kubeconfig} logs in with: {error.strerror}",
                    fix=self._hint or "install it, or add its folder to PATH",
                ) from error
            try:
                code = process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                with suppress(ProcessLookupError):  # also what it started
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            out.seek(0)
            err.seek(0)
            if code == 0:
                return out.read(_MAX_BYTES)
            ending = f"timed out after {TIMEOUT_S:g} s" if code is None else f"failed with exit code {code}"  # fmt: skip
            lines = [row for row in err.read(_MAX_BYTES).decode("utf-8", "replace").splitlines() if row.strip()]  # fmt: skip
            words = f": {cut(lines[-1].strip(), 200)}" if lines else ""
            raise self._failed(f"{ending}{words}")

    def _failed(self, words: str) -> LoginFailed:
        return LoginFailed(
            f"{self.name}, which the kubeconfig {self._kubeconfig} logs in with, {words}",
            fix=self._log_in,
        )

    def _read(self, output: bytes) -> Credentials:
        """The credentials in its output."""
        try:
            data = json.loads(output)
            kind, version, status = data["kind"], data["apiVersion"], data.get("status") or {}
            answer = [status.get(key) or "" for key in ("token", "clientCertificateData", "clientKeyData", "expirationTimestamp")]  # fmt: skip
        except (ValueError, TypeError, KeyError, AttributeError):
            raise self._failed("printed no ExecCredential") from None
        if kind != "ExecCredential" or version != self._version:
            raise self._failed(f"printed {kind} {version} instead of ExecCredential {self._version}")  # fmt: skip
        if not all(isinstance(value, str) for value in answer):
            raise self._failed("printed an ExecCredential with values that are not text")
        token, certificate, key, expires = answer
        if not token and not (certificate and key):
            raise self._failed("printed an ExecCredential without token, or certificate and key")
        for secret in filter(None, (token, key)):
            masking.remember(secret)
        return Credentials(token, certificate, key, expires)

    def _load(self, credentials: Credentials) -> None:
        """Use a client certificate for connections from now on."""
        with tempfile.NamedTemporaryFile("w") as file:  # readable by its owner only
            file.write(f"{credentials.certificate}\n{credentials.key}\n")
            file.flush()
            try:
                self._context.load_cert_chain(file.name)
            except (ssl.SSLError, OSError) as error:
                reason = getattr(error, "reason", None) or error
                raise self._failed(f"printed an unusable client certificate: {reason}") from None


def _authorize(request: httpx2.Request, credentials: Credentials) -> None:
    if credentials.token:
        request.headers["Authorization"] = f"Bearer {credentials.token}"
    if credentials.certificate:  # a connection that is kept would keep the certificate of before
        request.headers["Connection"] = "close"


def _program(command: str, config: SingleConfig) -> str:
    """A relative path is one from the folder of the kubeconfig; a name is found on PATH."""
    return str(config.abs_file(command)) if "/" in command else command


def _cluster_info(cluster: Json, config: SingleConfig) -> Json:
    """A cluster as an ExecCredential describes it."""
    info = {key: cluster[key] for key in _CLUSTER_KEYS if cluster.get(key)}
    file = cluster.get("certificate-authority")
    if file and "certificate-authority-data" not in info:
        info["certificate-authority-data"] = base64.b64encode(
            Path(config.abs_file(file)).read_bytes()
        ).decode()
    for extension in cluster.get("extensions") or []:
        if extension.get("name") == _EXTENSION:
            info["config"] = extension.get("extension")
    return info
