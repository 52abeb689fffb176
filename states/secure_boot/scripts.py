"""What the steps of ``secure-boot`` run on a node, as sh. Each may be killed anywhere and run again."""

from __future__ import annotations

from gpustate import ops, shell
from gpustate.ops.modsign import CERTIFICATE_PATH, FOLDER, KEY_PATH
from gpustate.ops.steps import Run
from gpustate.states.secure_boot.observed import PASSWORD_PATH

#: Read by the controller, and gone then; see :mod:`gpustate.engine.ledger`.
ONCE = "/run/gpustate/once"
#: On every keyboard where the firmware looks for them, whatever is printed on it.
LETTERS = "bcdefghijklnoprstuvx"

CONF_TEXT = (
    "# Written by gpustate; changes are overwritten.\n"
    f"mok_signing_key={KEY_PATH}\nmok_certificate={CERTIFICATE_PATH}\n"
)


def make_key() -> Run:
    """A key pair of the node's own; the private half never leaves it."""
    return ops.Run(
        shell.load(
            "make_key",
            "gpustate.states.secure_boot",
            FOLDER=FOLDER,
            KEY=KEY_PATH,
            CERTIFICATE=CERTIFICATE_PATH,
        ),
        "create a key pair for signing kernel modules",
        timeout=120,
    )


def queue(certificate: str) -> Run:
    """Ask the firmware to ask at the next boot; the password goes to the controller and nowhere else."""
    return ops.Run(
        shell.load(
            "queue",
            "gpustate.states.secure_boot",
            CERTIFICATE=certificate,
            PASSWORD=PASSWORD_PATH,
            ONCE=ONCE,
            LETTERS=LETTERS,
        ),
        "queue the enrolment of the key",
        timeout=60,
    )


def revoke() -> Run:
    """Take back what was queued."""
    return ops.Run(
        f"mokutil --revoke-import\nrm -f {PASSWORD_PATH} {PASSWORD_PATH}.hash {ONCE}/secure-boot; effect revoked",
        "cancel the queued enrolment",
        timeout=60,
    )


def destroy() -> Run:
    """No module can be signed with it any more."""
    return ops.Run(
        f"[ ! -e {KEY_PATH} ] || shred -u {KEY_PATH} 2>/dev/null || rm -f {KEY_PATH}\n"
        f"rm -rf {FOLDER}\neffect destroyed",
        "destroy the key pair",
    )
