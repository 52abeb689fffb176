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

from gpustate.ops.steps import Run

FOLDER = "/var/lib/gpustate/secure-boot"
KEY_PATH, CERTIFICATE_PATH = f"{FOLDER}/MOK.priv", f"{FOLDER}/MOK.der"
#: Where DKMS finds its key unless it is told: certificate to private key. On Ubuntu the first.
DEFAULTS = {
    "/var/lib/shim-signed/mok/MOK.der": "/var/lib/shim-signed/mok/MOK.priv",
    "/var/lib/dkms/mok.pub": "/var/lib/dkms/mok.key",
}
_UBUNTU, _OTHERS = DEFAULTS

# A signature is behind the module: itself, twelve bytes of which the last four are its length, a line.
_FUNCTIONS = (
    r"""
unsign() { # module
  while tail -c 28 "$1" | grep -qax '~Module signature appended~'; do
    set -- "$1" $(tail -c 32 "$1" | head -c 4 | od -An -t u1)
    truncate -s "-$((($2 << 24) + ($3 << 16) + ($4 << 8) + $5 + 40))" "$1"
  done
}
said_of_dkms() { # setting: the last one counts
  v=; for f in /etc/dkms/framework.conf /etc/dkms/framework.conf.d/*.conf; do
    [ -r "$f" ] || continue; w=$(sed -n "s/^$1=\"\{0,1\}\([^\"]*\)\"\{0,1\}\$/\1/p" "$f" | tail -n 1); v=${w:-$v}
  done; printf %s "$v"
}
"""
    "key_of() { # certificate: its private key\n"
    f"  case $1 in {CERTIFICATE_PATH}) echo {KEY_PATH}; return;; esac\n"
    '  p=$(said_of_dkms mok_signing_key); [ -z "$p" ] || { echo "$p"; return; }\n'
    "  case $1 in " + " ".join(f"{c}) echo {k};;" for c, k in DEFAULTS.items()) + " esac\n"
    "}\n"
    "tool_for() { # kernel: what signs its modules\n"
    '  for f in "/lib/modules/$1/build/scripts/sign-file" "/usr/src/linux-headers-$1/scripts/sign-file" '
    '"/usr/lib/linux-kbuild-${1%.*}/scripts/sign-file" /usr/lib/linux-kbuild-*/scripts/sign-file /usr/bin/kmodsign; do\n'
    '    [ ! -x "$f" ] || { echo "$f"; return; }\n'
    "  done\n"
    "}\n"
    r"""
plain() { tr -d ':\n' | tr A-F a-f | sed 's/^0*//'; }
sign() ( # tool, certificate, key, modules: each that this certificate has not signed
  s=$1; c=$2; p=$3; shift 3
  n=$(openssl x509 -inform DER -in "$c" -noout -serial 2>/dev/null | cut -d = -f 2 | plain)
  for m do
    [ -z "$n" ] || [ "$(modinfo -F sig_key "$m" 2>/dev/null | plain)" != "$n" ] || continue
    t=${m%/*}/.gpustate-signing; rm -f "$t"; cp -a "$m" "$t"
    case $m in *.xz) xz -dc "$m" >"$t";; *.zst) zstd -dqc "$m" >"$t";; *.gz) gzip -dc "$m" >"$t";; esac
    unsign "$t"; "$s" sha256 "$p" "$c" "$t"
    case $m in *.xz) xz --check=crc32 -f "$t"; mv "$t.xz" "$t";; *.zst) zstd -qf --rm "$t" -o "$t.zst"; mv "$t.zst" "$t";;
      *.gz) gzip -f "$t"; mv "$t.gz" "$t";; esac
    sync "$t"; mv -f "$t" "$m"; echo "signed $m"
  done
)
"""
)

#: sh functions ``sign_built`` and ``sign_nvidia``, for programs that build.
BUILT = (
    _FUNCTIONS + r"""
sign_built() { # kernel, modules: with the key of DKMS, where Secure Boot is on and there is one
  on=; for f in "$SYS"/firmware/efi/efivars/SecureBoot-*; do
    [ ! -e "$f" ] || [ "$(od -An -t u1 -j 4 -N 1 "$f" | tr -d ' ')" != 1 ] || on=1
  done
  [ -n "$on" ] || return 0
"""
    f"  c=$(said_of_dkms mok_certificate); [ -n \"$c\" ] || {{ c={_OTHERS}; ! grep -qx 'ID=ubuntu' /etc/os-release || c={_UBUNTU}; }}\n"
    r"""  p=$(key_of "$c"); s=$(tool_for "$1"); shift
  [ -e "$c" ] && [ -n "$p" ] || return 0
  [ -n "$s" ] || { echo "nothing here signs modules: install linux-headers of this kernel, or sbsigntool"; return 0; }
  sign "$s" "$c" "$p" "$@"
}
sign_nvidia() { # kernel: all modules of the driver, the one that is looked at last
  p=$(grep -m1 -oE '^[^:]*/nvidia(-current[^/:]*|-tesla[^/:]*)?\.ko(\.[a-z0-9]+)?:' "/lib/modules/$1/modules.dep") || return 0
  p=${p%:}; case $p in /*) ;; *) p=/lib/modules/$1/$p;; esac
  k=$1; l=$p; set --; for f in "${p%/*}"/nvidia*.ko*; do [ "$f" = "$l" ] || set -- "$@" "$f"; done
  sign_built "$k" "$@" "$l"
}
"""
)


def sign(kernel: str, folder: str, certificate: str) -> Run:
    """Sign the NVIDIA modules of a kernel, the one that is looked at last."""
    return Run(
        _FUNCTIONS
        + f"k={shlex.quote(kernel)}; d={shlex.quote(folder)}; c={shlex.quote(certificate)}\n"
        's=$(tool_for "$k")\n'
        '[ -n "$s" ] || fail "neither sign-file of the kernel nor kmodsign is here; install linux-headers-$k or sbsigntool"\n'
        'set --; last=; for f in "$d"/nvidia*.ko*; do\n'
        '  case ${f##*/} in nvidia.ko*|nvidia-current.ko*) last=$f;; *) set -- "$@" "$f";; esac\n'
        "done\n"
        'sign "$s" "$c" "$(key_of "$c")" "$@" ${last:+"$last"}\nsync "$d"; effect signed',
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
