# shellcheck shell=sh
# Prints a line for each kernel: version|image|modules found|1 where gpustate's file is in the image. Reads no variable.
c=/var/lib/gpustate/cache/initramfs
set --
for k in /boot/vmlinuz-* /boot/vmlinux-* /boot/*/*/linux; do
  [ -e "$k" ] || continue
  v=${k##*/}; v=${v#vmlinu[zx]-}
  # A rescue kernel is chosen by a person at the console and holds everything on purpose.
  case $v in
    *rescue*|*.old|*.bak|*.dpkg-*|*.rpm*|*.gz) continue ;;
    linux) set -- "$@" "${k%linux}initrd" ;;
    *) set -- "$@" "/boot/initrd.img-$v" "/boot/initramfs-$v.img" "/boot/initrd-$v" ;;
  esac
done
[ $# = 0 ] || stat -Lc '%n|%i.%s.%Y.%Z' "$@" 2>/dev/null | while IFS='|' read -r i s; do
  case $i in
    */initrd) v=${i%/initrd}; v=${v##*/} ;;
    *) v=${i##*/}; v=${v#initrd.img-}; v=${v#initramfs-}; v=${v#initrd-}; v=${v%.img} ;;
  esac
  t=; r=; [ -r "$c/$v" ] && { read -r t; read -r r; } <"$c/$v"
  if [ "$t" != "$i.$s" ] || [ -z "$r" ]; then
    if command -v lsinitramfs >/dev/null; then l=lsinitramfs
    elif command -v lsinitrd >/dev/null; then l=lsinitrd
    else printf '%s|%s|no-tool|\n' "$v" "$i"; continue; fi
    n=; m=; keep=1
    if o=$(timeout -k 2 120 $l "$i" 2>/dev/null) && case $o in *modules*) ;; *init*) ;; *) false ;; esac; then
      n=$(printf '%s\n' "$o" | sed -nE 's,.*/(nouveau|nova[-_]core|nova[-_]drm|nova)\.ko(\.[a-z0-9]+)?$,\1,p' | sort -u | tr '\n' ' ')
      case $o in *modprobe.d/gpustate-nouveau.conf*) m=1 ;; esac
    else n=unreadable keep=; fi
    r="${n% }|$m"
    # A node that was never applied to is left without a trace.
    [ -n "$keep" ] && [ -d /var/lib/gpustate ] &&
      (umask 077; mkdir -p "$c" && printf '%s\n%s\n' "$i.$s" "$r" >"$c/.$v.$$" && mv -f "$c/.$v.$$" "$c/$v") 2>/dev/null
  fi
  printf '%s|%s|%s\n' "$v" "$i" "$r"
done
