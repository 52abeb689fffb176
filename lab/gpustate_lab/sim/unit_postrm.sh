# shellcheck shell=sh
# Forgets the unit @UNIT@ of a package that is removed, as debhelper writes it.
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl --system daemon-reload >/dev/null || true
fi
if [ "$1" = purge ] && [ -x /usr/bin/deb-systemd-helper ]; then
    deb-systemd-helper purge '@UNIT@' >/dev/null || true
fi
