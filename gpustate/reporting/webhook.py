"""The URLs that the outcome of a run is POSTed to, see :mod:`gpustate.reporting.post`.

URLs of webhooks often contain a token, so they are secrets: only the host appears in messages.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from gpustate.core.inventory import InventoryNode
from gpustate.errors import UsageError
from gpustate.formats.masking import remember

#: Inventory variable with the URL.
VARIABLE = "gpustate_webhook"
_FIX = "give a URL: https://host/path"
#: A shorter last part of a path is a word, not a token.
_TOKEN = 12


def urls(option: str | None, nodes: Iterable[InventoryNode]) -> tuple[str, ...]:
    """The webhooks of a run: that of the environment, else those of its nodes; all are secrets from now on.

    Raises:
        UsageError: one of them is not a URL.
    """
    if option:
        origins = {option: "GPUSTATE_WEBHOOK"}
    else:
        origins = {
            value: f"{VARIABLE} of {node.name}"
            for node in nodes
            if (value := node.text(VARIABLE, "a URL", _FIX))
        }
    for url, name in origins.items():
        _remember(url)
        _check(url, name)
    return tuple(origins)


def _remember(url: str) -> None:
    remember(url)
    try:
        parts = urlsplit(url)
    except ValueError:
        return
    for part in (parts.query, parts.path.rpartition("/")[2]):
        if len(part) >= _TOKEN:
            remember(part)


def _check(url: str, name: str) -> None:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not url.isascii() or not url.isprintable() or " " in url:
        raise UsageError(f"{name}: not a URL", fix=_FIX)
