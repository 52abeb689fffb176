# shellcheck shell=sh
# Enables and starts the units that refresh the CDI specification, as debhelper writes it.
if [ "$1" = configure ] || [ "$1" = abort-upgrade ]; then
    for unit in nvidia-cdi-refresh.path nvidia-cdi-refresh.service; do
        deb-systemd-helper unmask "$unit" >/dev/null || true
        if deb-systemd-helper --quiet was-enabled "$unit"; then
            deb-systemd-helper enable "$unit" >/dev/null || true
        else
            deb-systemd-helper update-state "$unit" >/dev/null || true
        fi
    done
    if [ -d /run/systemd/system ]; then
        systemctl --system daemon-reload >/dev/null || true
        deb-systemd-invoke start nvidia-cdi-refresh.path nvidia-cdi-refresh.service >/dev/null || true
    fi
fi
