# shellcheck shell=sh
# Prints what apt, or gpustate, has against the transaction whose words are the arguments; nothing
# if it has nothing, or cannot be asked. Rows of =installs are what it would install. Nothing is
# changed. Expects T of the preview; calls spares. PIN and PIN_TEXT are the pin that it is tried
# with.
printf '%s' "$PIN_TEXT" >"$T/apt/preferences.d/${PIN##*/}"
timeout 60 apt-get install -s --allow-downgrades --allow-change-held-packages "$@" >"$T/said" 2>&1
case $? in
  0)
    spares "$T/said"
    sed -n 's/^Inst \([^ ]*\) .*(\([^ ]*\) .*/=installs \1 \2/p' "$T/said"
    ;;
  124) ;;
  *) tail -n 25 "$T/said" ;;
esac
:
