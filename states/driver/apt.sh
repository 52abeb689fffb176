# shellcheck shell=sh
# Prints installed packages of the driver, =missing and what they want that is not there, =pins and
# FILE|NAME|VERSION|PRIORITY of foreign files of pins, =offers and what apt offers of the packages,
# of other names and of kernel headers; then =relations and what offers depend on:
# NAME|VERSION|DRIVER|OTHERS, the driver that Ubuntu's signed modules are built for with the
# packages they want in their own version; or NAME|VERSION||SUCCESSOR of an ended branch. Reads
# SYS, KERNEL_RELEASE, APT_KEY; FORMAT and MEMBERS (how dpkg-query prints a package, pattern of the
# driver's), BRANCHES, and PIN, the file with the driver's own pin: it prefers a version wherever
# that comes from, so other pins are asked without it; calls kept, unmet and foreign_pins, and
# names_of ID and names_of_kernel KERNEL SECURE-BOOT, which add to names.
names=
[ -r /etc/os-release ] && . /etc/os-release
names_of "${ID-}"
relations_of() {
  apt-cache show "$@" 2>/dev/null | awk '/^Package: / { name = $2 } /^Version: / { version = $2 }
    name ~ /^nvidia-utils-/ && /^Depends: nvidia-utils-[0-9]+(-server)?$/ {
      print name "|" version "||" $2
    }
    /^Depends: / && match($0, /nvidia-kernel-common-[^ ]* \(>= [0-9.]+/) {
      driver = substr($0, RSTART, RLENGTH); sub(/.* /, "", driver); others = ""
      n = split(substr($0, 10), word, /, */)
      for (i = 1; i <= n; i++)
        if (word[i] ~ /^linux-/ && index(word[i], "(= " version ")")) {
          sub(/ .*/, "", word[i]); others = others " " word[i]
        }
      print name "|" version "|" driver "|" substr(others, 2)
    }'
}
policy_of() {
  policy_pins=
  [ -e "$PIN" ] && [ "${APT_CONFIG-}" != "${T-}/conf" ] && policy_pins=$(mktemp -d) || {
    apt-cache policy "$@"
    return
  }
  for f in "${PIN%/*}"/*; do [ "$f" = "$PIN" ] || ln -s "$f" "$policy_pins/"; done
  policy_status=0
  apt-cache -o Dir::Etc::preferencesparts="$policy_pins" policy "$@" || policy_status=$?
  rm -rf "$policy_pins"
  return $policy_status
}
members() {
  member_rows=$(dpkg-query -W -f "$FORMAT" 2>/dev/null) &&
    printf '%s\n' "$member_rows" | { grep -E "^dpkg\||$MEMBERS" || :; }
  # Without a pattern dpkg leaves out packages that are held and not installed.
  dpkg-query -W -f "$FORMAT" '*nvidia*' 'libcuda*' 'cuda-drivers*' 2>/dev/null | grep -v container |
    grep '||hn' || :
}
member_rows=$(kept driver-rows "$APT_KEY" members)
unmet_rows=$(kept driver-unmet "$APT_KEY" unmet)
secure_boot=
for f in "$SYS"/firmware/efi/efivars/SecureBoot-*; do
  [ -e "$f" ] && secure_boot=$(od -An -t u1 -j 4 -N 1 "$f" | tr -d " ")
done
case $member_rows in *linux-modules-nvidia-*) secure_boot=1 ;; esac
running=
[ -n "${GPUSTATE_IMAGE-}" ] && for image in /lib/modules/*/modules.order; do
  image=${image%/*}
  running="$running /boot/vmlinuz-${image##*/}"
done
[ -n "${GPUSTATE_IMAGE-}" ] || running="/boot/vmlinuz-${KERNEL_RELEASE-$(uname -r)}"
for image in /boot/vmlinuz-* $running; do
  kernel=${image#/boot/vmlinuz-}
  case $kernel in *\**) continue ;; esac
  [ -e "/lib/modules/$kernel/build/Makefile" ] || names="$names linux-headers-$kernel"
  names_of_kernel "$kernel" "$secure_boot"
done
# A package with the branch in its name may have another name in the next branch.
# foreign_arch: as :i386.
own_arch=
for package in $member_rows; do
  case $package in dpkg\|*)
    own_arch=${package#*|}
    own_arch=${own_arch%%|*}
    ;;
  esac
done
for package in $member_rows; do
  case $package in
    dpkg\|*) continue ;;
    *\|*\|*\|*)
      foreign_arch=${package#*|}
      foreign_arch=${foreign_arch%%|*}
      package=${package%%|*}
      ;;
    *) continue ;;
  esac
  case $foreign_arch in
    "${own_arch:-$foreign_arch}" | all) foreign_arch= ;;
    *) foreign_arch=:$foreign_arch ;;
  esac
  names="$names $package$foreign_arch"
  case $package in *-[0-9][0-9][0-9])
    package=${package%-*}
    names="$names $package$foreign_arch"
    ;;
  esac
  for branch in $BRANCHES; do
    case $package in
      nvidia-fabricmanager | nvidia-imex | libnvidia-nscq | libnvsdm)
        names="$names $package-$branch"
        ;;
      *) [ -z "$foreign_arch" ] || names="$names $package-$branch$foreign_arch" ;;
    esac
  done
done
related=
for package in $names; do
  case $package in linux-modules-nvidia-* | nvidia-utils-[0-9]*) related="$related $package" ;; esac
done
printf "%s\n=missing\n%s\n=pins\n" "$member_rows" "$unmet_rows"
kept driver-pins "$APT_KEY $names" foreign_pins $names 2>/dev/null || :
echo '=offers'
kept driver-offers "$APT_KEY without $PIN $names" policy_of $names 2>/dev/null || :
[ -z "$related" ] || {
  echo '=relations'
  kept driver-relations "$APT_KEY $related" relations_of $related
}
