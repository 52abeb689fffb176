"""The simulated CUDA toolkits: a compiler that prints its version, and the alternatives.

Like NVIDIA's, the package ``cuda-X-Y`` also installs a driver.

Sources:
    NVIDIA CUDA installation guide for Linux, "Meta Packages"; package lists of CUDA 12.9:
    cuda-toolkit-12-9 needs cuda-nvcc-12-9 and cuda-toolkit-12-9-config-common, which makes the
    alternatives cuda (/usr/local/cuda) and cuda-12, with the priority 129.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpustate import shell
from gpustate_lab.sim.deb import Package, Program

#: Toolkit to the version of its compiler and that of its package.
TOOLKITS: Mapping[str, tuple[str, str]] = {
    "12.4": ("12.4.131", "12.4.1-1"),
    "12.9": ("12.9.86", "12.9.1-1"),
    "13.0": ("13.0.88", "13.0.2-1"),
}
_NVCC = """#!/bin/sh
# Simulated nvcc.
case ${1-} in
--version | -V)
    echo 'nvcc: NVIDIA (R) Cuda compiler driver'
    echo 'Cuda compilation tools, release @RELEASE@, V@VERSION@' ;;
*) echo 'nvcc fatal   : No input files specified; use option --help for more information' >&2; exit 1 ;;
esac
"""
_POSTINST = """#!/bin/sh
set -e
[ "$1" = configure ] || exit 0
update-alternatives --install /usr/local/cuda cuda /usr/local/cuda-@RELEASE@ @PRIORITY@
update-alternatives --install /usr/local/cuda-@MAJOR@ cuda-@MAJOR@ /usr/local/cuda-@RELEASE@ @PRIORITY@
"""
_PRERM = """#!/bin/sh
set -e
[ "$1" = remove ] || exit 0
update-alternatives --remove cuda /usr/local/cuda-@RELEASE@
update-alternatives --remove cuda-@MAJOR@ /usr/local/cuda-@RELEASE@
"""


def packages() -> list[Package]:
    """Return the packages of every toolkit."""
    found: list[Package] = []
    for release, (compiler, version) in TOOLKITS.items():
        found += _toolkit(release, compiler, version)
    return found


def _toolkit(release: str, compiler: str, version: str) -> list[Package]:
    dashed, priority = release.replace(".", "-"), release.replace(".", "")
    words = {
        "RELEASE": release,
        "VERSION": compiler,
        "MAJOR": release.partition(".")[0],
        "PRIORITY": priority,
    }

    def filled(text: str) -> str:
        return shell.fill(text, **words)

    common, nvcc = f"cuda-toolkit-{dashed}-config-common", f"cuda-nvcc-{dashed}"
    return [
        Package(
            name=common,
            version=f"{compiler}-1",
            summary=f"CUDA {release}, settings",
            files={f"usr/local/cuda-{release}/version.json": f'{{"cuda": "{release}"}}\n'},
            scripts={"postinst": filled(_POSTINST), "prerm": filled(_PRERM)},
        ),
        Package(
            name=nvcc,
            version=f"{compiler}-1",
            summary=f"CUDA {release}, compiler",
            files={f"usr/local/cuda-{release}/bin/nvcc": Program(filled(_NVCC))},
            depends=(common,),
        ),
        Package(
            name=f"cuda-toolkit-{dashed}",
            version=version,
            summary=f"CUDA {release}, toolkit",
            depends=(f"{nvcc} (>= {compiler})", f"{common} (>= {compiler})"),
        ),
        Package(
            name=f"cuda-{dashed}",
            version=version,
            summary=f"CUDA {release}, with a driver",
            depends=(f"cuda-toolkit-{dashed} (>= {version})", "nvidia-open"),
        ),
    ]
