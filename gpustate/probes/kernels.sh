# shellcheck shell=sh
# Prints a row for each kernel, the lines of modinfo of its nvidia module, and those of GRUB that
# match @LINES@. @NAMES@ are shell patterns. Expects dkms_half, dkms_whole and ko.
run=
[ -n "${GPUSTATE_IMAGE-}" ] || run="${KERNEL_RELEASE-$(uname -r)}"
print_kernel() {
  kernel=$1
  image=$2
  running=
  [ "$kernel" = "$run" ] && running=1
  modules=
  [ -d "/lib/modules/$kernel" ] && modules=1
  headers=
  [ -e "/lib/modules/$kernel/build/Makefile" ] && headers=1
  printf 'kernel|%s|%s|%s|%s|%s\n' "$kernel" "$image" "$running" "$modules" "$headers"
  [ ! -e "/lib/modules/$kernel/modules.dep" ] ||
    grep -qsE '(^|/)video\.ko' "/lib/modules/$kernel/modules.dep" \
      "/lib/modules/$kernel/modules.builtin" ||
    echo 'lacks: video'
  ko "$kernel" @NAMES@ && ! half "$kernel" "$module_file" && whole "$kernel" "$module_file" ||
    return 0
  # shellcheck disable=SC2154 # module_folder, module_base and module_suffix: set by whole
  module_file=$module_folder/$module_base$module_suffix
  printf 'module: %s\n' "$module_file"
  about "$module_file" '%s\n'
  return 0
}
seen=
for image in /boot/vmlinuz-* /boot/vmlinux-*; do
  kernel=${image#/boot/vmlinu[zx]-}
  case $kernel in *\** | *rescue* | *.old | *.bak | *.dpkg-* | *.rpm* | *.gz) continue ;; esac
  case " $seen " in *" $kernel "*) continue ;; esac
  [ -e "$image" ] || continue
  seen="$seen $kernel"
  print_kernel "$kernel" "$image"
done
if [ -n "${GPUSTATE_IMAGE-}" ]; then
  echo 'no kernel runs'
  for image in /lib/modules/*/modules.order; do
    [ -e "$image" ] || continue
    kernel=${image%/*}
    kernel=${kernel##*/}
    case " $seen " in
      *" $kernel "*) ;;
      *) print_kernel "$kernel" "/lib/modules/$kernel/vmlinuz" ;;
    esac
  done
else
  case " $seen " in *" $run "*) ;; *) print_kernel "$run" '' ;; esac
fi
echo 'grub='
set -- /boot/grub/grub.cfg /boot/grub2/grub.cfg /boot/grub/grubenv /boot/grub2/grubenv
for f; do
  shift
  [ -r "$f" ] && set -- "$@" "$f"
done
[ $# = 0 ] || grep -hE '@LINES@' "$@"
