"""How long tests on nodes wait."""

from __future__ import annotations

import os

#: How many times longer than on an idle machine.
PATIENCE = float(os.environ.get("GPUSTATE_TEST_PATIENCE") or 1)
