# shellcheck shell=sh
# Prints modules, libraries and packages. L are the folders of libraries, limit the seconds of a
# program. Sets nl. Expects chain_gpus.sh.
# shellcheck disable=SC2034 # read by chain_runtimes.sh
nl='
'
printf 'kernel=%s\n' "$(uname -r)"
! grep -qs '^NvLinkDisable: 1$' "$PROC/driver/nvidia/params" || echo nvlink_off=1
f=/run/nvidia/validations/driver-ready
if grep -qs IS_HOST_DRIVER=false "$f" || [ -e "${f%/*}/.driver-ctr-ready" ]; then
  minor=$(sed -n 's/^NVIDIA_DRIVER_ROOT=//p' "$f")
  printf 'driver_root=%s\n' "${minor:-/run/nvidia/driver}"
fi
minor=$(timeout -k 2 ${limit:-15} modinfo -F version nvidia) && printf 'on_disk=%s\n' "$minor"
dangling() { # name link
  printf 'odd=%s|%s leads to %s, which does not exist\n' "$1" "$2" "$(readlink "$2")"
}
for name in libnvidia-ml.so.1 libcuda.so.1; do
  regular=
  odd_path=
  for d in $L; do
    [ -f "$d/$name" ] && {
      printf 'library=%s|%s|%s\n' $name "$d/$name" "$(readlink -f "$d/$name")"
      regular=1
      printf 'elf=%s|%s|%s\n' $name "$(stat -L -c %s "$d/$name")" \
        "$(od -An -v -tx1 -N64 "$d/$name" |
          tr -d ' \n')"
      break
    }
    [ -n "$odd_path" ] || { [ ! -e "$d/$name" ] && [ ! -L "$d/$name" ]; } || odd_path=$d/$name
  done
  # A pipe is not opened: nobody may be at its other end.
  if [ -n "$regular" ] || [ -z "$odd_path" ]; then
    :
  elif [ -e "$odd_path" ]; then
    stat -L -c "odd=$name|$odd_path is a %F, no library" "$odd_path"
  else
    dangling $name "$odd_path"
  fi
done
if command -v dpkg-query >/dev/null; then
  dpkg-query -W -f 'package=${Package}|${Version}|${db:Status-Abbrev}\n' libcuda1 libnvidia-ml1 \
    'libnvidia-compute*' nvidia-kernel-dkms nvidia-kernel-open-dkms 'nvidia-dkms-*'
elif command -v rpm >/dev/null; then
  rpm -qa --qf 'package=%{NAME}|%{VERSION}|ii \n' 'nvidia-driver-cuda*' kmod-nvidia-open-dkms \
    kmod-nvidia-latest-dkms
fi
