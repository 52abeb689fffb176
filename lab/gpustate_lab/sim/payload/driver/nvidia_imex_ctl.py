#!/usr/lib/gpustate-lab/python -SB
"""Simulated nvidia-imex-ctl: -q prints the status of this node's daemon."""

# On the node the imported modules are in this folder.
# mypy: disable-error-code="import-not-found,no-any-return"
from __future__ import annotations

import sys

sys.path.insert(0, "/usr/lib/gpustate-lab")

from labnode import has_fault, holders


def main() -> int:
    if "-q" not in sys.argv:
        print("usage: nvidia-imex-ctl -q", file=sys.stderr)
        return 2
    if "imex" not in {kind for _, kind in holders()}:
        print("Unable to connect to IMEX Command Service")
        return 1
    print("WAITING_FOR_RECOVERY" if has_fault("imex-waiting") else "READY")
    return 0


if __name__ == "__main__":
    sys.exit(main())
