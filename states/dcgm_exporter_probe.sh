# shellcheck shell=sh
# Prints program=1, unit=1, the rows of process_words, and the digest DIGEST=... in the environment
# of the process. Reads PROGRAM (path), UNIT and DIGEST (name of a variable).
[ -x "$PROGRAM" ] && echo program=1
for f in "/usr/lib/systemd/system/$UNIT" "/lib/systemd/system/$UNIT"; do
  [ -e "$f" ] && {
    echo unit=1
    break
  }
done
[ -z "${GPUSTATE_IMAGE-}" ] || exit 0
m=
process_words
case $m in
  '' | 0) ;;
  *)
    digest=$(grep -az "^$DIGEST=" "/proc/$m/environ")
    [ -z "$digest" ] || printf '%s\n' "$digest"
    ;;
esac
