"""Running promtool, Prometheus' own checker of rules and queries."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

needed = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not there (Debian package prometheus)"
)


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *words], capture_output=True, text=True, check=False)


def check_queries(queries: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Let promtool parse queries, as recording rules."""
    rules = [{"record": f"q:{n}", "expr": q} for n, q in enumerate(queries.values())]
    path = folder / "queries.yaml"
    path.write_text(json.dumps({"groups": [{"name": "queries", "rules": rules}]}), "utf-8")
    return run("check", "rules", path)


def unit_test(
    rules: Path | None, tests: list[dict[str, Any]], folder: Path, every: str = "1m"
) -> subprocess.CompletedProcess[str]:
    """Run unit tests of rules, evaluated as often as told, or of queries alone."""
    path = folder / "tests.yaml"
    files = [str(rules)] if rules else []
    path.write_text(
        json.dumps({"rule_files": files, "evaluation_interval": every, "tests": tests}), "utf-8"
    )
    return run("test", "rules", path)
