"""Self-contained kubeconfig files."""

from __future__ import annotations

import base64
from pathlib import Path

import yaml

from gpustate_lab.kubernetes.certificates import Identity


def text(
    *,
    cluster: str,
    server: str,
    authority: Path,
    user: str,
    identity: Identity,
    namespace: str = "",
) -> str:
    """Return a kubeconfig with one cluster, one user and one context.

    Args:
        cluster: name; the context is called ``<user>@<cluster>``.
        server: URL of the API server.
        authority: CA certificate of the server.
        namespace: of the context; ``default`` if omitted.
    """
    context = {"cluster": cluster, "user": user} | ({"namespace": namespace} if namespace else {})
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": cluster,
                "cluster": {"server": server, "certificate-authority-data": _data(authority)},
            }
        ],
        "users": [
            {
                "name": user,
                "user": {
                    "client-certificate-data": _data(identity.certificate),
                    "client-key-data": _data(identity.key),
                },
            }
        ],
        "contexts": [{"name": f"{user}@{cluster}", "context": context}],
        "current-context": f"{user}@{cluster}",
    }
    return yaml.safe_dump(document, sort_keys=False, width=100000)


def _data(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
