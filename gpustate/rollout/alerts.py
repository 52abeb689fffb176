"""Firing alerts of nodes, from Alertmanager or Prometheus, as checks of the soak time.

Alertmanager knows which alerts are silenced, so it is asked first; a server without its API is Prometheus, or what
has the same API. The import of urllib takes a while, and most runs read no alerts.

Sources:
    prometheus/alertmanager, api/v2/openapi.yaml: GET /alerts;
    prometheus/prometheus, docs/querying/api.md: GET /api/v1/alerts, ``activeAt`` is when the condition became true.
"""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from gpustate import __version__
from gpustate.core.inventory import InventoryNode
from gpustate.errors import GpustateError, UsageError
from gpustate.formats.masking import remember
from gpustate.formats.words import cut
from gpustate.rollout.strategy import ALERTS

#: Environment variable with the value of the header Authorization.
AUTHORIZATION = "GPUSTATE_ALERTS_AUTHORIZATION"
#: Labels whose value is a node's name or address, with or without a port.
LABELS = ("instance", "node", "nodename", "hostname", "Hostname", "host", "kubernetes_node", "exported_node", "exported_instance")  # fmt: skip
SEVERITY = "critical"
TIMEOUT_S = 10.0
#: Waits between attempts, in seconds.
PAUSES_S = (1.0, 4.0)
_FIX = "give the URL of Alertmanager or Prometheus: https://host/path"
_MAX_BYTES = 64 << 20
_SAME_CLOCK_S = 2.0
_ALERTMANAGER = "/api/v2/alerts?active=true&silenced=false&inhibited=false"
_PROMETHEUS = "/api/v1/alerts"
_NOT_FOUND = 404
_DENIED = (401, 403)


class AlertsUnavailable(GpustateError):
    """No alerts can be read."""


@dataclass(frozen=True, slots=True)
class Alert:
    """A firing alert.

    Args:
        name: of its rule.
        labels: all of them.
        age_s: seconds since its condition became true, by the server's clock.
        summary: annotation; empty: there is none.
    """

    name: str
    labels: Mapping[str, str]
    age_s: float
    summary: str = ""

    @property
    def critical(self) -> bool:
        """Its severity is critical."""
        return self.labels.get("severity") == SEVERITY

    def is_of(self, node: InventoryNode) -> bool:
        """One of its labels is the node's name or address."""
        hosts = [self.labels[label] for label in LABELS if label in self.labels]
        names = (node.name, node.connection.host or node.name)
        return any(_same(_host_of(one), name) for one in hosts for name in names)

    def __str__(self) -> str:
        return f"alert {self.name}" + (f": {self.summary}" if self.summary else "")


def _host_of(text: str) -> str:
    """A host without its port."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text


def _same(first: str, second: str) -> bool:
    """Both name one host; a name without a domain is that of any domain."""
    first, second = first.lower(), second.lower()
    short, long = sorted((first, second), key=len)
    return first == second or ("." not in short and bool(short) and long.startswith(f"{short}."))


def url_of(node: InventoryNode, option: str) -> str:
    """Where alerts of a node are read; empty: nowhere.

    Raises:
        UsageError: it is not a URL, or has a password.
    """
    url = option or node.text(ALERTS, "a URL", _FIX)
    if url:
        _check(url, "--soak-alerts" if option else f"{ALERTS} of {node.name}")
    return url.rstrip("/")


def _check(url: str, name: str) -> None:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise UsageError(f"{name}: not a URL", fix=_FIX) from None
    plain = url.isascii() and url.isprintable() and " " not in url
    if not usable or not plain or parts.query or parts.fragment:
        raise UsageError(f"{name}: not a URL", fix=_FIX)
    if parts.username or parts.password:
        remember(parts.password)
        raise UsageError(
            f"{name}: the URL contains credentials",
            fix=f"set {AUTHORIZATION}='Basic ...' or 'Bearer ...' instead",
        )


def firing(url: str, sleep: Callable[[float], None] = time.sleep) -> list[Alert]:
    """All firing alerts that are neither silenced nor inhibited.

    Raises:
        AlertsUnavailable: the server does not answer, or with something else.
    """
    reason = ""
    for pause in (*PAUSES_S, 0.0):
        try:
            data, now = _get(url + _ALERTMANAGER, missing_ok=True)
            if data is not None:
                return [_of_alertmanager(one, now) for one in data]
            data, now = _get(url + _PROMETHEUS)
            return [_of_prometheus(one, now) for one in data["data"]["alerts"] if one["state"] == "firing"]  # fmt: skip
        except (KeyError, TypeError, ValueError, AttributeError):
            raise AlertsUnavailable(f"alerts of {_host(url)}: neither Alertmanager nor Prometheus answers", fix=_FIX) from None  # fmt: skip
        except _Temporary as error:
            reason = str(error)
            sleep(pause)
    raise AlertsUnavailable(f"alerts of {_host(url)}: {reason}", fix="check the URL and its server")


class _Temporary(Exception):
    """Another attempt may succeed."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would take the credentials to another host."""

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> None:
        return None


def _host(url: str) -> str:
    return urlsplit(url).netloc


def _get(url: str, *, missing_ok: bool = False) -> tuple[Any, float]:
    """The JSON at a URL, ``None`` if there is nothing, and the server's time."""
    headers = {"Accept": "application/json", "User-Agent": f"gpustate/{__version__}"}
    authorization = os.environ.get(AUTHORIZATION)
    if authorization:
        remember(authorization.rpartition(" ")[2])
        headers["Authorization"] = authorization
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=TIMEOUT_S) as response:
            text = response.read(_MAX_BYTES)
            date = response.headers.get("Date", "")
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == _NOT_FOUND and missing_ok:
            return None, 0.0
        if error.code in _DENIED:
            raise AlertsUnavailable(
                f"alerts of {_host(url)}: HTTP status {error.code}", fix=f"set {AUTHORIZATION}='Bearer ...'"
            ) from None  # fmt: skip
        raise _Temporary(f"HTTP status {error.code}") from None
    except urllib.error.URLError as error:
        raise _Temporary(_words(error.reason)) from None
    except (OSError, http.client.HTTPException) as error:
        raise _Temporary(_words(error)) from None
    return json.loads(text), _now(date)


def _now(date: str) -> float:
    """The server's time; its header has whole seconds, so two clocks that agree are read here."""
    here = time.time()
    there = parsedate_to_datetime(date).timestamp() if date else here
    return here if abs(here - there) < _SAME_CLOCK_S else there


def _words(error: object) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return next(iter(str(error).splitlines()), type(error).__name__) or type(error).__name__


def _of_alertmanager(data: Mapping[str, Any], now: float) -> Alert:
    return _alert(data, data["startsAt"], now)


def _of_prometheus(data: Mapping[str, Any], now: float) -> Alert:
    return _alert(data, data["activeAt"], now)


def _alert(data: Mapping[str, Any], since: str, now: float) -> Alert:
    labels = {str(key): str(value) for key, value in data["labels"].items()}
    summary = cut(" ".join(str((data.get("annotations") or {}).get("summary") or "").split()), 120)
    age_s = now - datetime.fromisoformat(since).timestamp()
    return Alert(labels.get("alertname", ""), labels, age_s, summary)


def failing(
    alerts: Sequence[Alert], node: InventoryNode, began_s: float, ended_s: float, *, last: bool
) -> str:
    """The alerts that fail a node; empty: none.

    An alert that was there before the node's change is not of that change. One that began during the change, as
    the node was away, has time until the end of the soak time to resolve.

    Args:
        alerts: all that fire.
        node: in question.
        began_s, ended_s: seconds since its change began and ended.
        last: the soak time is over.
    """
    within_s = began_s if last else ended_s
    found = [one for one in alerts if one.critical and one.age_s <= within_s and one.is_of(node)]
    return "; ".join(dict.fromkeys(map(str, found)))
