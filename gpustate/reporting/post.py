"""POST a document to a webhook. The import of urllib takes a while, and most runs have no webhook."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from gpustate import __version__

TIMEOUT_S = 10.0
#: Waits between attempts, in seconds.
PAUSES_S = (1.0, 4.0)
_TEMPORARY = (408, 425, 429)


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
