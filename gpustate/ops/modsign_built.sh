# shellcheck shell=sh
# Defines sign_built KERNEL MODULES... and sign_nvidia KERNEL: with the key of DKMS, where Secure Boot is on and there
# is one. @UBUNTU@ and @OTHERS@ are paths of certificates, the same in every program. Expects modsign.sh.
sign_built() { # kernel, modules: with the key of DKMS, where Secure Boot is on and there is one
  on=; for f in "$SYS"/firmware/efi/efivars/SecureBoot-*; do
    [ ! -e "$f" ] || [ "$(od -An -t u1 -j 4 -N 1 "$f" | tr -d ' ')" != 1 ] || on=1
  done
  [ -n "$on" ] || return 0
  c=$(said_of_dkms mok_certificate); [ -n "$c" ] || { c=@OTHERS@; ! grep -qx 'ID=ubuntu' /etc/os-release || c=@UBUNTU@; }
  p=$(key_of "$c"); s=$(tool_for "$1"); shift
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
