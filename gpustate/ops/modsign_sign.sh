# shellcheck shell=sh
# Signs the NVIDIA modules of the kernel k in the folder d with the certificate c, the one that is looked at last.
# Expects library.sh and modsign.sh.
# shellcheck disable=SC2154 # c, d and k: set by the loader
s=$(tool_for "$k")
[ -n "$s" ] || fail "neither sign-file of the kernel nor kmodsign is here; install linux-headers-$k or sbsigntool"
set --; last=; for f in "$d"/nvidia*.ko*; do
  case ${f##*/} in nvidia.ko*|nvidia-current.ko*) last=$f;; *) set -- "$@" "$f";; esac
done
sign "$s" "$c" "$(key_of "$c")" "$@" ${last:+"$last"}
sync "$d"; effect signed
