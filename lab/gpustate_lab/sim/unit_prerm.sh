# shellcheck shell=sh
# Stops the unit @UNIT@ of a package that is removed, as debhelper writes it.
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    deb-systemd-invoke stop '@UNIT@' >/dev/null || true
fi
