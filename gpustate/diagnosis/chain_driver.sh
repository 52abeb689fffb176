# shellcheck shell=sh
# Prints PCI, modules, libraries, packages and major numbers. L are the folders of libraries, limit the seconds of a
# program. Sets c, the major number of nvidia-caps, and nl.
# shellcheck disable=SC2034 # read by chain_runtimes.sh
nl='
'
printf 'kernel=%s\n' "$(uname -r)"
for d in "$SYS"/bus/pci/devices/*; do
  v=; read -r v <"$d/vendor" || continue
  [ "$v" = 0x10de ] || continue
  read -r i <"$d/device"; read -r c <"$d/class"; k=
  [ -e "$d/driver" ] && { k=$(cd -P "$d/driver" && pwd); k=${k##*/}; }
  printf 'pci=%s|%s|%s|%s\n' "${d##*/}" "${i#0x}" "${c#0x}" "$k"
done
for d in "$PROC"/driver/nvidia/gpus/*; do
  [ -r "$d/information" ] || continue
  m=; u=
  while IFS=: read -r a x; do
    case $a in "Device Minor"*) m=$(echo $x);; "GPU UUID"*) u=$(echo $x);; esac
  done <"$d/information"
  printf 'gpu=%s|%s|%s\n' "${d##*/}" "$m" "$u"
done
! grep -qs '^NvLinkDisable: 1$' "$PROC/driver/nvidia/params" || echo nvlink_off=1
f=/run/nvidia/validations/driver-ready
if grep -qs IS_HOST_DRIVER=false "$f" || [ -e "${f%/*}/.driver-ctr-ready" ]; then
  m=$(sed -n 's/^NVIDIA_DRIVER_ROOT=//p' "$f"); printf 'driver_root=%s\n' "${m:-/run/nvidia/driver}"
fi
m=$(timeout -k 2 ${limit:-15} modinfo -F version nvidia) && printf 'on_disk=%s\n' "$m"
dangling() { printf 'odd=%s|%s leads to %s, which does not exist\n' "$1" "$2" "$(readlink "$2")"; } # name link
for n in libnvidia-ml.so.1 libcuda.so.1; do
  b=; g=
  for d in $L; do
    [ -f "$d/$n" ] && { printf 'library=%s|%s|%s\n' $n "$d/$n" "$(readlink -f "$d/$n")"; b=1
      printf 'elf=%s|%s|%s\n' $n "$(stat -L -c %s "$d/$n")" "$(od -An -v -tx1 -N64 "$d/$n" | tr -d ' \n')"; break; }
    [ -n "$g" ] || { [ ! -e "$d/$n" ] && [ ! -L "$d/$n" ]; } || g=$d/$n
  done
  # A pipe is not opened: nobody may be at its other end.
  if [ -n "$b" ] || [ -z "$g" ]; then :
  elif [ -e "$g" ]; then stat -L -c "odd=$n|$g is a %F, no library" "$g"
  else dangling $n "$g"; fi
done
if command -v dpkg-query >/dev/null; then
  dpkg-query -W -f 'package=${Package}|${Version}|${db:Status-Abbrev}\n' libcuda1 libnvidia-ml1 \
    'libnvidia-compute*' nvidia-kernel-dkms nvidia-kernel-open-dkms 'nvidia-dkms-*'
elif command -v rpm >/dev/null; then
  rpm -qa --qf 'package=%{NAME}|%{VERSION}|ii \n' 'nvidia-driver-cuda*' kmod-nvidia-open-dkms kmod-nvidia-latest-dkms
fi
c=; while read -r a n; do
  [ "$a $n" = "Block devices:" ] && break
  case $n in nvidia*) printf 'major=%s|%s\n' "$n" "$a";; esac
  [ "$n" != nvidia-caps ] || c=$a
done <"$PROC/devices"
