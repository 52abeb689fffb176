"""Build what a first lab waits for longest and needs no library: the root of Debian, and NVIDIA's container toolkit.

    PYTHONPATH=lab:. python3 -m gpustate_lab.early

``make demo`` runs it with the system's python3 beside pip. What fails here, ``gpustate lab up`` builds again and explains.
"""

from __future__ import annotations

import signal
import sys
from concurrent.futures import ThreadPoolExecutor

from gpustate.errors import LabError
from gpustate_lab import images, programs
from gpustate_lab.command import end_running
from gpustate_lab.sim.toolkit_packages import module_of
from gpustate_lab.spec import DEFAULT_IMAGE, TOOLKITS


def _say(line: str) -> None:
    print(line, flush=True)


def main() -> int:
    """Entry point."""
    # A shell starts what runs in the background with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with ThreadPoolExecutor() as pool:
        tasks = (
            pool.submit(images.provide_base, images.recipe_of(DEFAULT_IMAGE), _say),
            pool.submit(programs.provide, module_of(TOOLKITS[0]), _say),
        )
        try:
            for task in tasks:
                task.result()
        except (LabError, KeyboardInterrupt):
            end_running()
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
