"""A client for the lab's own requests to its API server: JSON over HTTPS with a client certificate.

Each thread keeps a connection, since thousands of virtual nodes are created.
"""

from __future__ import annotations

import http.client
import json
import ssl
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gpustate.errors import LabError
from gpustate_lab.kubernetes.certificates import Identity


class Refused(LabError):
    """The API server returned an error.

    Args:
        status: the HTTP status.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Client:
    """One user's access to one API server.

    Args:
        server: URL.
        authority: CA certificate of the server.
        identity: the user.
        timeout_s: of a request.
    """

    server: str
    authority: Path
    identity: Identity
    timeout_s: float = 30.0
    _local: threading.local = field(default_factory=threading.local, repr=False, compare=False)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def get(self, path: str) -> Any:
        return self.request("GET", path)

    def create(self, path: str, item: dict[str, Any]) -> bool:
        """Create an object; return False if it exists already."""
        try:
            self.request("POST", path, item)
        except Refused as error:
            if error.status == 409:
                return False
            raise
        return True

    def request(self, method: str, path: str, body: Any = None, kind: str = "json") -> Any:
        """Return the response, parsed if it is JSON.

        Args:
            kind: of the body: ``json``, or ``merge-patch+json`` for a patch.

        Raises:
            Refused: the server returned an error.
            LabError: the server is unreachable.
        """
        headers = {"Accept": "application/json", "Content-Type": f"application/{kind}"}
        data = None if body is None else json.dumps(body)
        try:
            # The server may have closed a kept connection: retry once on a new one.
            status, content, answer = self._exchange(method, path, data, headers)
        except (http.client.HTTPException, ConnectionError):
            self.close()
            try:
                status, content, answer = self._exchange(method, path, data, headers)
            except (OSError, http.client.HTTPException) as error:
                self.close()
                raise self._unreachable(error) from error
        except OSError as error:
            self.close()
            raise self._unreachable(error) from error
        result = json.loads(answer) if content.startswith("application/json") else answer.decode()
        if status >= 400:
            message = result.get("message", "") if isinstance(result, dict) else str(result)
            raise Refused(status, f"{method} {path}: {status} {message.strip()}")
        return result

    def close(self) -> None:
        """Close this thread's connection."""
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            self._local.connection = None

    def _exchange(
        self, method: str, path: str, data: str | None, headers: dict[str, str]
    ) -> tuple[int, str, bytes]:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = self._connect()
        connection.request(method, path, data, headers)
        response = connection.getresponse()
        return response.status, response.getheader("Content-Type", ""), response.read()

    def _connect(self) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cafile=str(self.authority))
        context.load_cert_chain(self.identity.certificate, self.identity.key)
        parts = urlsplit(self.server)
        return http.client.HTTPSConnection(
            parts.hostname or "", parts.port or 443, timeout=self.timeout_s, context=context
        )

    def _unreachable(self, error: Exception) -> LabError:
        return LabError(f"API server {self.server} is unreachable: {error}")
