# shellcheck shell=sh
# Signs the NVIDIA modules of the kernel in the folder with the certificate, the one that is
# looked at last. Expects library.sh and modsign.sh.
# shellcheck disable=SC2154 # kernel, folder and certificate: set by the loader
tool=$(tool_for "$kernel")
[ -n "$tool" ] ||
  fail "neither sign-file of the kernel nor kmodsign is here;" \
    "install linux-headers-$kernel or sbsigntool"
set --
last_module=
for f in "$folder"/nvidia*.ko*; do
  case ${f##*/} in nvidia.ko* | nvidia-current.ko*) last_module=$f ;; *) set -- "$@" "$f" ;; esac
done
sign "$tool" "$certificate" "$(key_of "$certificate")" "$@" ${last_module:+"$last_module"}
sync "$folder"
effect signed
