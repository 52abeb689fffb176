"""sh that signs kernel modules which DKMS has built, for kernels that load no others.

DKMS signs what it builds only where it finds ``sign-file`` of the kernel, and looks for that in one place of
its distribution; where it finds none it builds without a word. Under Secure Boot such a module does not load.
So what builds a module signs it too, before anything tries to load it, with the key that DKMS is set up with.

Surprising: a signature is appended to what is there, one that nobody knows included; that one has to go first.
And a module is replaced by a rename, so a kill leaves the old file or the new one.

Sources:
    Linux: scripts/sign-file.c, Documentation/admin-guide/module-signing.rst; dell/dkms 3.0 and 3.2: dkms.in
    (``prepare_mok``, ``read_framework_conf``).
"""

from __future__ import annotations

import shlex

from gpustate import shell
from gpustate.ops.steps import Run

#: In a preview: modules that are built then are signed with a key that is enrolled.
ENROLLED = ": the key of built modules is enrolled"
FOLDER = "/var/lib/gpustate/secure-boot"
KEY_PATH, CERTIFICATE_PATH = f"{FOLDER}/MOK.priv", f"{FOLDER}/MOK.der"
#: Where DKMS finds its key unless it is told: certificate to private key. On Ubuntu the first.
DEFAULTS = {
    "/var/lib/shim-signed/mok/MOK.der": "/var/lib/shim-signed/mok/MOK.priv",
    "/var/lib/dkms/mok.pub": "/var/lib/dkms/mok.key",
}
_UBUNTU, _OTHERS = DEFAULTS

_PATHS = {
    "CERTIFICATE": CERTIFICATE_PATH,
    "KEY": KEY_PATH,
    "UBUNTU": _UBUNTU,
    "UBUNTU_KEY": DEFAULTS[_UBUNTU],
    "OTHERS": _OTHERS,
    "OTHERS_KEY": DEFAULTS[_OTHERS],
}


def _functions(name: str) -> str:
    return shell.fill(shell.load(name, "gpustate.ops"), **_PATHS)


_FUNCTIONS = _functions("modsign")
#: sh functions ``sign_built`` and ``sign_nvidia``, for programs that build.
BUILT = _FUNCTIONS + _functions("modsign_built")


def sign(kernel: str, folder: str, certificate: str) -> Run:
    """Sign the NVIDIA modules of a kernel, the one that is looked at last."""
    return Run(
        _FUNCTIONS
        + shell.load(
            "modsign_sign", "gpustate.ops", kernel=kernel, folder=folder, certificate=certificate
        ),
        f"sign the nvidia modules of {kernel}",
        timeout=600,
    )


def sign_built(kernel: str) -> Run:
    """Sign what was built for a kernel where DKMS did not, before anything loads it."""
    return Run(
        f"{BUILT}said=$(sign_nvidia {shlex.quote(kernel)})\n"
        'case $said in *"signed "*) e=signed;; *) e=same;; esac; [ -z "$said" ] || echo "$said"; effect $e',
        f"sign the nvidia modules that were built for {kernel}",
        timeout=600,
    )


__all__ = ["BUILT", "CERTIFICATE_PATH", "DEFAULTS", "FOLDER", "KEY_PATH", "sign", "sign_built"]
