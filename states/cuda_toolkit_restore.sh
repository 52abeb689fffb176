# shellcheck shell=sh
# Restores the target of the link from RECORD. Reads GROUP; calls cuda_query.
[ -e "$RECORD" ] || {
  effect same
  exit 0
}
read -r mode path <"$RECORD" || :
if (cuda_query) >/dev/null 2>&1; then
  case $mode in
    manual)
      if [ -e "$path" ]; then
        update-alternatives --set "$GROUP" "$path"
      else
        update-alternatives --auto "$GROUP"
      fi
      ;;
    *) update-alternatives --auto "$GROUP" ;;
  esac
fi
rm -f "$RECORD"
effect restored
