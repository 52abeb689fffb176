# shellcheck shell=sh
# Defines sign_built KERNEL MODULES... and sign_nvidia KERNEL: with the key of DKMS, where Secure
# Boot is on and there is one. @UBUNTU@ and @OTHERS@ are paths of certificates, the same in every
# program. Expects modsign.sh.
sign_built() { # kernel, modules: with the key of DKMS, where Secure Boot is on and there is one
  secure_boot=
  for f in "$SYS"/firmware/efi/efivars/SecureBoot-*; do
    [ ! -e "$f" ] || [ "$(od -An -t u1 -j 4 -N 1 "$f" | tr -d ' ')" != 1 ] || secure_boot=1
  done
  [ -n "$secure_boot" ] || return 0
  certificate=$(said_of_dkms mok_certificate)
  [ -n "$certificate" ] || {
    certificate=@OTHERS@
    ! grep -qx 'ID=ubuntu' /etc/os-release || certificate=@UBUNTU@
  }
  key=$(key_of "$certificate")
  tool=$(tool_for "$1")
  shift
  [ -e "$certificate" ] && [ -n "$key" ] || return 0
  [ -n "$tool" ] || {
    echo "nothing here signs modules: install linux-headers of this kernel, or sbsigntool"
    return 0
  }
  sign "$tool" "$certificate" "$key" "$@"
}
sign_nvidia() { # kernel: all modules of the driver, the one that is looked at last
  module=$(grep -m1 -oE '^[^:]*/nvidia(-current[^/:]*|-tesla[^/:]*)?\.ko(\.[a-z0-9]+)?:' \
    "/lib/modules/$1/modules.dep") || return 0
  module=${module%:}
  case $module in /*) ;; *) module=/lib/modules/$1/$module ;; esac
  kernel=$1
  last_module=$module
  set --
  for f in "${module%/*}"/nvidia*.ko*; do [ "$f" = "$last_module" ] || set -- "$@" "$f"; done
  sign_built "$kernel" "$@" "$last_module"
}
