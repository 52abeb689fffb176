"""What the steps of ``secure-boot`` run on a node, as sh. Each may be killed anywhere and run again."""

from __future__ import annotations

import shlex

from gpustate import ops
from gpustate.ops.steps import Run
from gpustate.states.secure_boot.observed import (
    CERTIFICATE_PATH,
    CONF_PATH,
    FOLDER,
    KEY_PATH,
    PASSWORD_PATH,
)

#: Read by the controller, and gone then; see :mod:`gpustate.run.ledger`.
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
        "make a key pair for signing kernel modules",
        timeout=120,
    )


# A signature is behind the module: itself, twelve bytes of which the last four are its length, a line.
_UNSIGN = r"""
unsign() { # module
  while tail -c 28 "$1" | grep -qax '~Module signature appended~'; do
    set -- "$1" $(tail -c 32 "$1" | head -c 4 | od -An -t u1)
    truncate -s "-$((($2 << 24) + ($3 << 16) + ($4 << 8) + $5 + 40))" "$1"
  done
}
"""


def sign(kernel: str, folder: str, certificate: str) -> Run:
    """Sign the NVIDIA modules of a kernel, the one that is looked at last."""
    key = KEY_PATH
    return ops.Run(
        _UNSIGN
        + f"k={shlex.quote(kernel)}; d={shlex.quote(folder)}; c={shlex.quote(certificate)}\n"
        f"p={key}; case $c in /var/lib/shim-signed/mok/MOK.der) p=/var/lib/shim-signed/mok/MOK.priv;; "
        "/var/lib/dkms/mok.pub) p=/var/lib/dkms/mok.key;; esac\n"
        f'[ "$c" = {CERTIFICATE_PATH} ] || for f in /etc/dkms/framework.conf /etc/dkms/framework.conf.d/*.conf; do\n'
        '  [ -f "$f" ] || continue; v=$(sed -n \'s/^mok_signing_key="\\{0,1\\}\\([^"]*\\)"\\{0,1\\}$/\\1/p\' "$f" | tail -n 1); p=${v:-$p}\n'
        "done\n"
        's=; for f in "/lib/modules/$k/build/scripts/sign-file" "/usr/src/linux-headers-$k/scripts/sign-file" '
        '"/usr/lib/linux-kbuild-${k%.*}/scripts/sign-file" /usr/lib/linux-kbuild-*/scripts/sign-file /usr/bin/kmodsign; do\n'
        '  [ -x "$f" ] && s=$f && break\ndone\n'
        '[ -n "$s" ] || fail "neither sign-file of the kernel nor kmodsign is here; install linux-headers-$k or sbsigntool"\n'
        "one() { # module\n"
        '  t=$d/.gpustate-signing; rm -f "$t"; cp -a "$1" "$t"\n'
        '  case $1 in *.xz) xz -dc "$1" >"$t";; *.zst) zstd -dqc "$1" >"$t";; *.gz) gzip -dc "$1" >"$t";; esac\n'
        '  unsign "$t"; "$s" sha256 "$p" "$c" "$t"\n'
        '  case $1 in *.xz) xz --check=crc32 -f "$t"; mv "$t.xz" "$t";; *.zst) zstd -qf --rm "$t" -o "$t.zst"; mv "$t.zst" "$t";; '
        '*.gz) gzip -f "$t"; mv "$t.gz" "$t";; esac\n'
        '  sync "$t"; mv -f "$t" "$1"\n'
        "}\n"
        'last=; for f in "$d"/nvidia*.ko*; do\n'
        '  case ${f##*/} in nvidia.ko*|nvidia-current.ko*) last="$last $f";; *) one "$f";; esac\ndone\n'
        'for f in $last; do one "$f"; done\nsync "$d"; effect signed',
        f"sign the nvidia modules of {kernel}",
        timeout=600,
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
        "take back the enrolment that was queued",
        timeout=60,
    )


def destroy() -> Run:
    """No module can be signed with it any more."""
    return ops.Run(
        f"[ ! -e {KEY_PATH} ] || shred -u {KEY_PATH} 2>/dev/null || rm -f {KEY_PATH}\n"
        f"rm -rf {FOLDER}; d={CONF_PATH.rpartition('/')[0]}\n"
        'for d in $d ${d%/*}; do dpkg -S "$d" >/dev/null 2>&1 || rmdir "$d" 2>/dev/null || :; done\neffect destroyed',
        "destroy the key pair",
    )
