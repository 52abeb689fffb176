# shellcheck shell=sh
# Forgets the units that refresh the CDI specification, as debhelper writes it.
if [ "$1" = remove ] && [ -x /usr/bin/deb-systemd-helper ]; then
    deb-systemd-helper mask nvidia-cdi-refresh.path nvidia-cdi-refresh.service >/dev/null || true
fi
if [ "$1" = purge ] && [ -x /usr/bin/deb-systemd-helper ]; then
    deb-systemd-helper purge nvidia-cdi-refresh.path nvidia-cdi-refresh.service >/dev/null || true
    deb-systemd-helper unmask nvidia-cdi-refresh.path nvidia-cdi-refresh.service >/dev/null || true
fi
