"""Steps for kernel modules that DKMS builds beside the NVIDIA driver.

A module of this kind is built against one driver and one RDMA stack. When either changes it has to be
rebuilt, and the kernel is who says so: it refuses the old one. So loading tries, builds anew where
the kernel refuses, tries again, and then says what the kernel said. Under Secure Boot each build is signed
(:mod:`gpustate.ops.modsign`).

Sources:
    dkms(8). NVIDIA/gds-nvidia-fs, src/dkms.conf; NVIDIA/gdrcopy, packages/dkms.conf.
"""

from __future__ import annotations

import shlex

from gpustate import shell
from gpustate.formats import dkms
from gpustate.ops import modsign
from gpustate.ops.steps import Run, RunLive

_q = shlex.quote

#: Defines ``unlinked FOLDER KERNEL``: by this link DKMS takes a module for installed, although its build is gone.
UNLINKED = 'unlinked() { for dl in "$1/kernel-$2-"*; do [ ! -L "$dl" ] || [ -e "$dl" ] || rm -f "$dl"; done; }\n'

_CHANGED = shell.load("kmod_changed_sources", "gpustate.ops")
#: The first word the compiler said, where the journal and a person look for it.
COMPLAIN = _CHANGED + shell.fill(shell.load("kmod_complain", "gpustate.ops"), CAUSE=dkms.CAUSE_ERE)
#: The same of every build that a package's script started, should the packages not come.
APT_FAILED = (
    COMPLAIN + ': >"$R/dkms.start"\n'
    'apt_failed() { for log in $(find /var/lib/dkms -path "*/build/make.log" -newer "$R/dkms.start"); do complain "$log"; done; }\n'
)

# DKMS builds over a module that is there only when told to forget it; killed in between, there is
# none on disk, which the next probe sees.
_BUILD = (
    modsign.BUILT
    + UNLINKED
    + _CHANGED
    + shell.fill(shell.load("kmod_build", "gpustate.ops"), CAUSE=dkms.CAUSE_ERE)
)

# A build that was killed leaves its folder: DKMS then neither takes the module for built nor builds
# over it, or misses a module in it, and the package whose script builds it cannot be configured any more. Without
# its source DKMS knows nothing of a build, and may say nothing of others; then what lies there decides. Beside the
# versions DKMS keeps modules that were there before it, and nobody can make those again.
_CLEAR = UNLINKED + shell.load("kmod_clear", "gpustate.ops")


def clear(names: tuple[str, ...]) -> str:
    """sh that removes what a killed build of these DKMS packages left; nothing where there is no DKMS."""
    words = " ".join(map(shlex.quote, names))
    return (
        f"if command -v dkms >/dev/null; then ({_CLEAR}clear_dkms {words} ); fi\n" if names else ""
    )


def rebuild(source: str, version: str, kernel: str, module: str) -> Run:
    """Build a module anew for one kernel.

    Args:
        source: shell pattern of the name DKMS has for the source: ``nvidia*``.
        version: of the source.
        kernel: release.
        module: one that has to be there afterwards.
    """
    words = f"{source} {_q(version)} {_q(kernel)} {_q(module)}"
    # The pattern must reach the function unexpanded.
    words = f"'{source}'" + words[len(source) :]
    return Run(
        f"{_BUILD}rebuild_module {words}\neffect built",
        f"build {module} for {kernel}",
        timeout=3600,
    )


def load(source: str, version: str, module: str) -> Run:
    """Load a module; where the kernel refuses the build that is there, rebuild it and try again."""
    text = shell.fill(
        shell.load("kmod_load", "gpustate.ops"),
        SOURCE=source,
        VERSION=_q(version),
        MODULE=_q(module),
        UNDER=_q(module.replace("-", "_")),
    )
    return RunLive(f"{_BUILD}{text}", f"load {module}", timeout=3600)


def unload(module: str, title: str) -> Run:
    """Unload a module that its users may still hold, and say how to end that.

    Args:
        module: name.
        title: who uses it, for the message.
    """
    under = _q(module.replace("-", "_"))
    return RunLive(
        f"if module_loaded {under}; then modprobe -r {under} || rmmod {under} || "
        f'fail "{module} is in use by {title}; stop it and apply again"; effect unloaded; else '
        "effect same; fi",
        f"unload {module}",
        timeout=60,
    )
