# shellcheck shell=sh
# Prints a line for each kernel: version|image|modules found|1 where gpustate's file is in the
# image. Reads no variable.
cache=/var/lib/gpustate/cache/initramfs
set --
for kernel_image in /boot/vmlinuz-* /boot/vmlinux-* /boot/*/*/linux; do
  [ -e "$kernel_image" ] || continue
  version=${kernel_image##*/}
  version=${version#vmlinu[zx]-}
  # A rescue kernel is chosen by a person at the console and holds everything on purpose.
  case $version in
    *rescue* | *.old | *.bak | *.dpkg-* | *.rpm* | *.gz) continue ;;
    linux) set -- "$@" "${kernel_image%linux}initrd" ;;
    *)
      set -- "$@" "/boot/initrd.img-$version" "/boot/initramfs-$version.img" "/boot/initrd-$version"
      ;;
  esac
done
[ $# = 0 ] || stat -Lc '%n|%i.%s.%Y.%Z' "$@" 2>/dev/null | while IFS='|' read -r image stamp; do
  case $image in
    */initrd)
      version=${image%/initrd}
      version=${version##*/}
      ;;
    *)
      version=${image##*/}
      version=${version#initrd.img-}
      version=${version#initramfs-}
      version=${version#initrd-}
      version=${version%.img}
      ;;
  esac
  known_stamp=
  row=
  [ -r "$cache/$version" ] && {
    read -r known_stamp
    read -r row
  } <"$cache/$version"
  if [ "$known_stamp" != "$image.$stamp" ] || [ -z "$row" ]; then
    if command -v lsinitramfs >/dev/null; then
      lister=lsinitramfs
    elif command -v lsinitrd >/dev/null; then
      lister=lsinitrd
    else
      printf '%s|%s|no-tool|\n' "$version" "$image"
      continue
    fi
    modules=
    ours=
    keep=1
    if listing=$(timeout -k 2 120 $lister "$image" 2>/dev/null) && case $listing in
      *modules*) ;;
      *init*) ;;
      *) false ;;
    esac then
      modules=$(printf '%s\n' "$listing" |
        sed -nE 's,.*/(nouveau|nova[-_]core|nova[-_]drm|nova)\.ko(\.[a-z0-9]+)?$,\1,p' | sort -u |
        tr '\n' ' ')
      case $listing in *modprobe.d/gpustate-nouveau.conf*) ours=1 ;; esac
    else
      modules=unreadable keep=
    fi
    row="${modules% }|$ours"
    # A node that was never applied to is left without a trace.
    [ -n "$keep" ] && [ -d /var/lib/gpustate ] &&
      (
        umask 077
        mkdir -p "$cache" && printf '%s\n%s\n' "$image.$stamp" "$row" >"$cache/.$version.$$" &&
          mv -f "$cache/.$version.$$" "$cache/$version"
      ) 2>/dev/null
  fi
  printf '%s|%s|%s\n' "$version" "$image" "$row"
done
