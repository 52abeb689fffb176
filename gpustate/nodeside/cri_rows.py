"""Print the status of a container runtime from its CRI socket, as rows of ``key=field|field...``.

    python3 cri_rows.py CRI.PY SOCKET SECONDS

Rows: ``cri=ok|NAME|VERSION|CGROUP DRIVER|DEFAULT HANDLER|CDI|FOLDERS``, or ``cri=unserved|WHY`` where the runtime runs
without its CRI service, or ``cri=silent|WHY``; ``cri_false=CONDITION|WHY`` for each condition that does not hold;
``cri_handler=NAME|TYPE|PROGRAM|SYSTEMD|EXISTS`` for each handler of the running process, with its configuration.

Standard library only, Python 3.9.

Sources:
    kubernetes/cri-api, api.proto (StatusResponse); containerd, internal/cri/server/status.go: ``info`` has the
    running configuration; internal/cri/instrument: "server is not initialized yet" while it starts.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

#: Seconds until a runtime that was just started is ready.
_STARTING_S = 5.0


def load_error(ctr: str, socket: str, timeout_s: float) -> str:
    """containerd's error for CRI plugins that it could not load, from ``ctr``; empty without it."""
    try:
        process = subprocess.run(
            [ctr, "--address", socket, "plugins", "ls", "--detailed"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    blocks = re.split(r"\n(?=Type:)", process.stdout.decode("utf-8", "replace"))
    failed = [
        block
        for block in blocks
        if re.search(r"(?m)^ID:\s+(cri|runtime|images)\s*$", block) and "Error:" in block
    ]
    # Plugins that depend on the failed one have errors too, which only name it.
    failed.sort(key=lambda block: "dependency" in block or "skip plugin" in block)
    words = re.search(r"(?s)Message:\s*(.+?)\s*$", failed[0]) if failed else None
    return " ".join(words[1].split()) if words else ""


def rows(cri: Any, socket: str, timeout_s: float = 10.0) -> Iterator[str]:
    """Query the runtime, and yield the rows.

    Args:
        cri: the module :mod:`cri`.
        socket: of the runtime.
        timeout_s: limit for the answer.
    """
    began = time.monotonic()
    while True:
        try:
            status = cri.status(socket, timeout_s)
            break
        except cri.CriError as error:
            if "not initialized yet" in str(error) and time.monotonic() - began < _STARTING_S:
                time.sleep(0.2)
                continue
            if error.unserved:
                ctr = shutil.which("ctr")
                why = load_error(ctr, socket, timeout_s) if ctr else ""
                yield f"cri=unserved|{why or error}"
            else:
                yield f"cri=silent|{error}"
            return
    config = status.info.get("config")
    config = config if isinstance(config, dict) else {}
    section = config.get("containerd")
    section = section if isinstance(section, dict) else {}
    default = section.get("defaultRuntimeName") or ""
    enabled = config.get("enableCDI")
    cdi = str(int(enabled)) if isinstance(enabled, bool) else ""
    folders = " ".join(map(str, config.get("cdiSpecDirs") or ()))
    yield f"cri=ok|{status.name}|{status.version}|{status.cgroup_driver}|{default}|{cdi}|{folders}"
    for name, holds, words in status.conditions:
        if not holds:
            yield f"cri_false={name}|{words}"
    tables = section.get("runtimes")
    tables = tables if isinstance(tables, dict) else {}
    for name in sorted({*status.handlers, *tables}):
        table = tables.get(name)
        table = table if isinstance(table, dict) else {}
        options = table.get("options")
        # The keys are case-insensitive and printed as in the file.
        options = (
            {str(k).lower(): v for k, v in options.items()} if isinstance(options, dict) else {}
        )
        kind = table.get("runtimeType") or table.get("runtime_type") or ""
        systemd = 1 if options.get("systemdcgroup") is True else 0
        binary = options.get("binaryname") or ""
        exists = 1 if not binary or shutil.which(binary) else 0
        yield f"cri_handler={name}|{kind}|{binary}|{systemd}|{exists}"


def main(module: str, socket: str, seconds: str) -> None:
    """Print the rows, one per line."""
    sys.path.insert(0, os.path.dirname(module))
    for row in rows(importlib.import_module("cri"), socket, float(seconds)):
        print(" ".join(row.split()))


if __name__ == "__main__":
    main(*sys.argv[1:4])
