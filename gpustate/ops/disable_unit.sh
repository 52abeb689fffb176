# shellcheck shell=sh
# Stops the unit @UNIT@ and keeps it from starting at boot.
# Without systemd at work (an image), units cannot be shown, but their enablement can be queried.
enablement=$(systemctl is-enabled @UNIT@ 2>/dev/null || :)
case $enablement in masked*)
  for f in /etc/systemd/system/*.wants/@UNIT@ /etc/systemd/system/*.requires/@UNIT@; do
    # systemctl disables no unit that is masked, and the link would lead to nothing once it is gone.
    [ ! -L "$f" ] || rm -f "$f"
  done
  systemctl stop @UNIT@ 2>/dev/null || :
  ;;
esac
if systemctl cat @UNIT@ >/dev/null 2>&1 && [ -n "$enablement" ] &&
  [ "$enablement" != not-found ]; then
  systemctl --no-reload disable --now @UNIT@
fi
systemctl reset-failed @UNIT@ 2>/dev/null || :
effect disabled
