#!/bin/sh
# Written by gpustate (state nouveau); changes are undone by the next apply.
# Takes the kernel's own drivers for NVIDIA GPUs out of the initramfs.
[ "$1" != prereqs ] || exit 0
for d in "$DESTDIR/lib/modules" "$DESTDIR/usr/lib/modules"; do
  [ -d "$d" ] || continue
  find "$d/" -name 'nouveau.ko*' -delete
  find "$d/" -name 'nova[-_]core.ko*' -delete
  find "$d/" -name 'nova[-_]drm.ko*' -delete
  find "$d/" -name 'nova.ko*' -delete
done
if [ -f "$DESTDIR/conf/modules" ]; then
  sed -i -E '/^[[:space:]]*(nouveau|nova([-_](core|drm))?)([[:space:]]|$)/d' "$DESTDIR/conf/modules"
fi
exit 0
