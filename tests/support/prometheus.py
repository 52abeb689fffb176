"""A real Prometheus on the loopback interface, with the alert rule ``GpuBad`` and metrics that a test sets."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest

needed = pytest.mark.skipif(
    shutil.which("prometheus") is None,
    reason="prometheus is not installed (Debian package prometheus)",
)
RULES = {
    "groups": [
        {
            "name": "gpus",
            "rules": [
                {
                    "alert": "GpuBad",
                    "expr": "gpu_bad == 1",
                    "labels": {"severity": "critical"},
                    "annotations": {"summary": "GPU of {{ $labels.node }} is bad"},
                },
                {
                    "alert": "GpuWarm",
                    "expr": "gpu_bad == 2",
                    "labels": {"severity": "warning"},
                },
                {
                    "alert": "GpuSlow",
                    "expr": "gpu_bad == 3",
                    "for": "1h",
                    "labels": {"severity": "critical"},
                },
            ],
        }
    ]
}


@dataclass
class Prometheus:
    """One server.

    Args:
        url: of it.
        bad: value of the metric ``gpu_bad`` by node; what is not there is 0.
    """

    url: str = ""
    bad: dict[str, int] = field(default_factory=dict)

    def wait_for(self, *names: str) -> None:
        """Wait until these alerts and no others fire or are pending."""
        alerts: list[dict[str, Any]] = []
        for _ in range(200):
            with urllib.request.urlopen(f"{self.url}/api/v1/alerts", timeout=5) as response:
                alerts = json.load(response)["data"]["alerts"]
            if sorted(one["labels"]["alertname"] for one in alerts) == sorted(names):
                return
            time.sleep(0.1)
        raise AssertionError(alerts)


class _Metrics(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        bad = cast(Any, self.server).prometheus.bad
        text = "".join(f'gpu_bad{{node="{name}"}} {value}\n' for name, value in dict(bad).items())
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def running(folder: Path) -> Iterator[Prometheus]:
    """Start one that scrapes and evaluates several times a second."""
    found = Prometheus()
    metrics = ThreadingHTTPServer(("127.0.0.1", 0), _Metrics)
    cast(Any, metrics).prometheus = found
    threading.Thread(target=metrics.serve_forever, args=(0.05,), daemon=True).start()
    with socket.create_server(("127.0.0.1", 0)) as one:
        port: int = one.getsockname()[1]
    found.url = f"http://127.0.0.1:{port}"
    (folder / "rules.yml").write_text(json.dumps(RULES))
    config = {
        "global": {
            "scrape_interval": "200ms",
            "scrape_timeout": "200ms",
            "evaluation_interval": "200ms",
        },
        "rule_files": [str(folder / "rules.yml")],
        "scrape_configs": [
            {
                "job_name": "gpus",
                "static_configs": [{"targets": [f"127.0.0.1:{metrics.server_port}"]}],
            }
        ],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    words = [
        "prometheus",
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        _wait_ready(found.url, process, folder / "log")
        yield found
    finally:
        process.kill()
        process.wait()
        metrics.shutdown()
        metrics.server_close()


def _wait_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(600):
        assert process.poll() is None, log.read_text()
        try:
            urllib.request.urlopen(f"{url}/-/ready", timeout=5).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError(log.read_text())
