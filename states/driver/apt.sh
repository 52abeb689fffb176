# shellcheck shell=sh
# Prints installed packages of the driver, =missing and what they want that is not there, =offers and what apt offers of them, of
# other names and of kernel headers; then =relations and what offers depend on: NAME|VERSION|DRIVER|OTHERS, the driver that Ubuntu's
# signed modules are built for with the packages they want in their own version; or NAME|VERSION||SUCCESSOR of an ended branch.
# Reads SYS, KERNEL_RELEASE, APT_KEY; FORMAT and MEMBERS (how dpkg-query prints a package, pattern of the driver's), BRANCHES, and
# PIN, the file with the driver's own pin: it prefers a version wherever that comes from, so other pins are asked without it;
# calls kept and unmet, and names_of ID and names_of_kernel KERNEL SECURE-BOOT, which add to n.
n=; [ -r /etc/os-release ] && . /etc/os-release; names_of "${ID-}"
relations_of() { apt-cache show "$@" 2>/dev/null | awk '/^Package: /{p=$2} /^Version: /{v=$2}
  p ~ /^nvidia-utils-/ && /^Depends: nvidia-utils-[0-9]+(-server)?$/ {print p "|" v "||" $2}
  /^Depends: / && match($0, /nvidia-kernel-common-[^ ]* \(>= [0-9.]+/) {d=substr($0, RSTART, RLENGTH); sub(/.* /, "", d); o=""
    n=split(substr($0, 10), a, /, */); for (i=1; i<=n; i++) if (a[i] ~ /^linux-/ && index(a[i], "(= " v ")")) {sub(/ .*/, "", a[i]); o=o " " a[i]}
    print p "|" v "|" d "|" substr(o, 2)}'; }
policy_of() { po_d=; [ -e "$PIN" ] && [ "${APT_CONFIG-}" != "${T-}/conf" ] && po_d=$(mktemp -d) || { apt-cache policy "$@"; return; }
  for f in "${PIN%/*}"/*; do [ "$f" = "$PIN" ] || ln -s "$f" "$po_d/"; done
  po_s=0; apt-cache -o Dir::Etc::preferencesparts="$po_d" policy "$@" || po_s=$?; rm -rf "$po_d"; return $po_s; }
members() { m=$(dpkg-query -W -f "$FORMAT" 2>/dev/null) && printf '%s\n' "$m" | { grep -E "^dpkg\||$MEMBERS" || :; }
  # Without a pattern dpkg leaves out packages that are held and not installed.
  dpkg-query -W -f "$FORMAT" '*nvidia*' 'libcuda*' 'cuda-drivers*' 2>/dev/null | grep -v container | grep '||hn' || :; }
m=$(kept driver-rows "$APT_KEY" members); u=$(kept driver-unmet "$APT_KEY" unmet)
s=; for i in "$SYS"/firmware/efi/efivars/SecureBoot-*; do [ -e "$i" ] && s=$(od -An -t u1 -j 4 -N 1 "$i" | tr -d " "); done
case $m in *linux-modules-nvidia-*) s=1;; esac
r=; [ -n "${GPUSTATE_IMAGE-}" ] && for i in /lib/modules/*/modules.order; do i=${i%/*}; r="$r /boot/vmlinuz-${i##*/}"; done
[ -n "${GPUSTATE_IMAGE-}" ] || r="/boot/vmlinuz-${KERNEL_RELEASE-$(uname -r)}"
for i in /boot/vmlinuz-* $r; do k=${i#/boot/vmlinuz-}; case $k in *\**) continue;; esac
  [ -e "/lib/modules/$k/build/Makefile" ] || n="$n linux-headers-$k"
  names_of_kernel "$k" "$s"; done
printf "%s\n=missing\n%s\n=offers\n" "$m" "$u"
# A package with the branch in its name may have another name in the next branch. f: a foreign architecture, as :i386.
a=; for p in $m; do case $p in dpkg\|*) a=${p#*|}; a=${a%%|*};; esac; done
for p in $m; do case $p in dpkg\|*) continue;; *\|*\|*\|*) f=${p#*|}; f=${f%%|*}; p=${p%%|*};; *) continue;; esac
  case $f in "${a:-$f}"|all) f=;; *) f=:$f;; esac; n="$n $p$f"
  case $p in *-[0-9][0-9][0-9]) p=${p%-*}; n="$n $p$f";; esac; for b in $BRANCHES; do
    case $p in nvidia-fabricmanager|nvidia-imex|libnvidia-nscq|libnvsdm) n="$n $p-$b";; *) [ -z "$f" ] || n="$n $p-$b$f";; esac; done; done
# kept sets n and s.
l=; for p in $n; do case $p in linux-modules-nvidia-*|nvidia-utils-[0-9]*) l="$l $p";; esac; done
kept driver-offers "$APT_KEY without $PIN $n" policy_of $n 2>/dev/null || :
[ -z "$l" ] || { echo '=relations'; kept driver-relations "$APT_KEY $l" relations_of $l; }
