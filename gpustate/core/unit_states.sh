# shellcheck shell=sh
# Prints @ASKED@ with the names, then a block Key=value for each of the units @NAMES@, words:
# @BLOCKS@ is sh that prints them where systemd runs. Behind @MARK@ it says what the disk says of
# them: @FILES@. An image has files of units and links that enable them, and nothing that runs.
echo @ASKED@ @NAMES@
if [ -n "${GPUSTATE_IMAGE-}" ]; then
  # shellcheck disable=SC2043 # @NAMES@ are several words
  for unit in @NAMES@; do
    enablement=$(systemctl is-enabled "$unit")
    load_state=loaded
    [ -n "$enablement" ] && [ "$enablement" != not-found ] || {
      enablement=
      load_state=not-found
    }
    printf 'Id=%s\nLoadState=%s\nActiveState=inactive\nUnitFileState=%s\n\n' \
      "$unit" $load_state "$enablement"
  done
else
  @BLOCKS@
  echo @MARK@
  printf '%s\n' "@FILES@"
fi || :
