# shellcheck shell=sh
# Restores the target of the link from RECORD. Reads GROUP; calls cuda_query.
[ -e "$RECORD" ] || { effect same; exit 0; }
read -r m p <"$RECORD" || :
if ( cuda_query ) >/dev/null 2>&1; then
  case $m in
    manual) if [ -e "$p" ]; then update-alternatives --set "$GROUP" "$p"; else update-alternatives --auto "$GROUP"; fi ;;
    *) update-alternatives --auto "$GROUP" ;;
  esac
fi
rm -f "$RECORD"; effect restored
