# shellcheck shell=sh
# Defines spares LOG: of apt's simulation of a transaction, says what it must not do to packages
# that are not part of the driver, and fails. Reads FORMAT and MEMBERS (how dpkg-query prints a
# package, pattern of the driver's).
foreign() { # Remv, or Inst for what is held and there: packages that are not part of the driver
  while read -r action name version _; do
    case $1$action$version in
      RemvRemv* | RemvPurg*) ;;
      InstInst"["*) printf '%s\n' "$held" | grep -qxF -e "$name" || continue ;;
      *) continue ;;
    esac
    dpkg-query -W -f "$FORMAT" "$name" | grep -qE "$MEMBERS" || echo "$name"
  done
}
spares() {
  gone=$(foreign Remv <"$1")
  [ -z "$gone" ] || {
    echo "error: this would also remove" $gone \
      "which is not part of the driver; remove it yourself first or choose another package set"
    return 1
  }
  held=$(apt-mark showhold)
  moved=$(foreign Inst <"$1")
  [ -z "$moved" ] || {
    echo "error: this would change" $moved \
      "which is held (apt-mark showhold) and not part of the driver; release the hold yourself" \
      "first or choose another version"
    return 1
  }
  kernels=$(
    sed -n 's/^Inst linux-image-\(unsigned-\)*\([^ ]*\) (.*/\2/p' "$1" | while read -r kernel; do
      [ -e "/boot/vmlinuz-$kernel" ] || [ -e "/lib/modules/$kernel" ] || echo "$kernel"
    done
  )
  [ -z "$kernels" ] || {
    echo "error: this would also install kernel" $kernels \
      "which is not part of the driver; install it with the state kernel first," \
      "or set precompiled: false"
    return 1
  }
}
