"""POST the outcome of a run to a URL. A failure is a note; it never changes the exit code.

URLs of webhooks often contain a token, so they are secrets: only the host appears in messages.
"""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import urlsplit

from gpustate import __version__
from gpustate.core.inventory import InventoryNode
from gpustate.errors import UsageError
from gpustate.formats.masking import remember

#: Inventory variable with the URL.
VARIABLE = "gpustate_webhook"
TIMEOUT_S = 10.0
#: Waits between attempts, in seconds.
PAUSES_S = (1.0, 4.0)
_FIX = "give a URL: https://host/path"
#: A shorter last part of a path is a word, not a token.
_TOKEN = 12
_TEMPORARY = (408, 425, 429)


def urls(option: str | None, nodes: Iterable[InventoryNode]) -> tuple[str, ...]:
    """The webhooks of a run: that of the command line, else those of its nodes; all are secrets from now on.

    Raises:
        UsageError: one of them is not a URL.
    """
    if option:
        found = {option: "--webhook"}
    else:
        found = {
            value: f"{VARIABLE} of {node.name}"
            for node in nodes
            if (value := node.text(VARIABLE, "a URL", _FIX))
        }
    for url, name in found.items():
        _remember(url)
        _check(url, name)
    return tuple(found)


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


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected POST would become a GET of another host."""

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> None:
        return None


def send(url: str, body: bytes, sleep: Callable[[float], None] = time.sleep) -> str:
    """POST a JSON document; return why that failed, empty if it succeeded."""
    reason = ""
    for pause in (*PAUSES_S, None):
        reason, temporary = _try(url, body)
        if not reason or not temporary or pause is None:
            break
        sleep(pause)
    return f"webhook of {urlsplit(url).hostname}: {reason}" if reason else ""


def _try(url: str, body: bytes) -> tuple[str, bool]:
    """Why an attempt failed, and whether another one may succeed."""
    headers = {"Content-Type": "application/json", "User-Agent": f"gpustate/{__version__}"}
    request = urllib.request.Request(url, body, headers, method="POST")
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=TIMEOUT_S):
            return "", False
    except urllib.error.HTTPError as error:
        error.close()
        return f"HTTP status {error.code}", error.code >= 500 or error.code in _TEMPORARY
    except urllib.error.URLError as error:
        return _words(error.reason), True
    except (OSError, http.client.HTTPException, ValueError) as error:
        return _words(error), True


def _words(error: object) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return next(iter(str(error).splitlines()), type(error).__name__) or type(error).__name__
