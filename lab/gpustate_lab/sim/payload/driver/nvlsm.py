#!/usr/lib/gpustate-lab/python -SB
"""Simulated nvlsm: runs as a daemon if ib_umad is loaded and its port manages switches."""

# On the node the imported modules are in this folder.
# mypy: disable-error-code="import-not-found,no-any-return"
from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, "/usr/lib/gpustate-lab")

import modules
import nvlink
from daemon import detach
from labnode import hold


def option(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv[:-1] else ""


def main() -> int:
    if "ib_umad" not in modules.loaded():
        print("osm_vendor_bind: no umad device can be opened", file=sys.stderr)
        return 1
    if not option("-g") or option("-g") != nvlink.management_guid():
        print(f"no port with GUID {option('-g')!r} manages switches", file=sys.stderr)
        return 1
    pid_file = Path(option("--pid_file") or "/run/nvlsm.pid")
    return detach(pid_file, lambda: hold("nvlsm", ["subnet"]), lambda: None)


if __name__ == "__main__":
    sys.exit(main())
