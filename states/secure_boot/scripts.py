"""What the steps of ``secure-boot`` run on a node, as sh. Each may be killed anywhere and run again."""

from __future__ import annotations

import shlex

from gpustate import ops
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
        f"d={FOLDER}; umask 077; mkdir -p -m 0700 $d; rm -f $d/new.*\n"
        "cat >$d/new.conf <<EOF\n"
        "[req]\ndistinguished_name = name\nx509_extensions = more\nprompt = no\nstring_mask = utf8only\n"
        "[name]\nCN = gpustate module signing key of $(uname -n | cut -c 1-24)\n"
        "[more]\nbasicConstraints = critical,CA:FALSE\nkeyUsage = digitalSignature\n"
        "extendedKeyUsage = codeSigning\nsubjectKeyIdentifier = hash\n"
        "EOF\n"
        "openssl req -new -x509 -nodes -sha256 -days 36500 -newkey rsa:2048 -config $d/new.conf "
        '-keyout $d/new.priv -outform DER -out $d/new.der >"$R/openssl.log" 2>&1 || { tail -n 5 "$R/openssl.log"; exit 1; }\n'
        "rm -f $d/new.conf; sync $d/new.priv $d/new.der\n"
        f"mv -f $d/new.priv {KEY_PATH}; mv -f $d/new.der {CERTIFICATE_PATH}; sync $d; effect made",
        "create a key pair for signing kernel modules",
        timeout=120,
    )


def queue(certificate: str) -> Run:
    """Ask the firmware to ask at the next boot; the password goes to the controller and nowhere else."""
    return ops.Run(
        f"umask 077; c={shlex.quote(certificate)}; q={PASSWORD_PATH}; mkdir -p {ONCE}; chmod 0700 {ONCE}\n"
        "case $(mokutil --test-key \"$c\" 2>&1) in *'already in the enrollment request'*) ;; *)\n"
        f'  p=$(tr -dc {LETTERS} </dev/urandom | head -c 12); printf "%s" "$p" | openssl passwd -6 -stdin >$q.hash\n'
        '  printf "the one-time password that MOK manager asks for at the console: %s\\n" "$p" >$q; p=\n'
        "  mokutil --import \"$c\" --hash-file $q.hash || { rm -f $q $q.hash; fail 'mokutil does not take the key'; }\n"
        "  rm -f $q.hash;;\nesac\n"
        f"[ ! -e $q ] || mv -f $q {ONCE}/secure-boot\neffect queued",
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
