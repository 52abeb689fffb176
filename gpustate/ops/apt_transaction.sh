# shellcheck shell=sh
# Prints what apt, or gpustate, has against the transaction whose words are the arguments; nothing
# if it has nothing, or cannot be asked. Rows of =installs are what it would install, of =size what
# it says of their sizes, of =room the free KiB for files and archives; =offers are all versions of
# what it would install, with their repositories. =pins and =policy are foreign pins and all
# versions, without gpustate's pins, of what it would install, or with them of what it cannot
# install. Nothing is changed. Expects T of the preview; calls spares and pins_of. PIN and PIN_TEXT
# are the pin that it is tried with.
printf '%s' "$PIN_TEXT" >"$T/apt/preferences.d/${PIN##*/}"
timeout 60 apt-get install -s --allow-downgrades --allow-change-held-packages "$@" >"$T/said" 2>&1
case $? in
  0)
    spares "$T/said"
    sed -n 's/^Inst \([^ ]*\) .*(\([^ ]*\) .*/=installs \1 \2/p' "$T/said"
    timeout 60 apt-get install -yq --print-uris --allow-downgrades --allow-change-held-packages \
      -o Dir::Cache::archives=/var/cache/apt/archives "$@" 2>/dev/null |
      sed -nE 's/^(Need to get|After this operation)/=size &/p'
    df -k --output=avail,target /usr /var/cache/apt/archives 2>/dev/null | sed '1d;s/^/=room /'
    rm "$T/apt/preferences.d"/gpustate-*
    # shellcheck disable=SC2046 # names
    set -- $(sed -n 's/^Inst \([^ ]*\) .*/\1/p' "$T/said")
    echo '=offers'
    [ $# = 0 ] || apt-cache madison "$@" 2>/dev/null
    pins_of "$@"
    ;;
  124) ;;
  *)
    tail -n 25 "$T/said"
    # shellcheck disable=SC2046 # names
    pins_of $(sed -nE 's/.*Depends:? ([a-z0-9][^ ,]*).*/\1/p' "$T/said" | sort -u)
    ;;
esac
:
