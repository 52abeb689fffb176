"""Maintainer scripts of packages with a systemd unit, as debhelper writes them."""

from __future__ import annotations

from gpustate import shell


def unit_scripts(unit: str, *, enable: bool, user: bool) -> dict[str, str]:
    """Return debhelper's maintainer scripts for a unit."""
    postinst = ["#!/bin/sh", "set -e", 'if [ "$1" = configure ]; then']
    if user:
        name = unit.removesuffix(".service")
        postinst += [
            f"    getent passwd {name} >/dev/null || useradd --system --no-create-home "
            f"--home-dir /nonexistent --shell /usr/sbin/nologin {name}"
        ]
    if enable:
        postinst += [
            f"    deb-systemd-helper unmask '{unit}' >/dev/null || true",
            f"    if deb-systemd-helper --quiet was-enabled '{unit}'; then",
            f"        deb-systemd-helper enable '{unit}' >/dev/null || true",
            "    else",
            f"        deb-systemd-helper update-state '{unit}' >/dev/null || true",
            "    fi",
        ]
    action = 'if [ -n "$2" ]; then action=restart; else action=start; fi'
    postinst += [
        "    if [ -d /run/systemd/system ]; then",
        "        systemctl --system daemon-reload >/dev/null || true",
    ]
    if enable:
        postinst += [
            f"        {action}",
            f"        deb-systemd-invoke $action '{unit}' >/dev/null || true",
        ]
    else:
        postinst += [
            f"        if [ -n \"$2\" ]; then deb-systemd-invoke try-restart '{unit}' >/dev/null || true; fi"
        ]
    postinst += ["    fi", "fi", "exit 0", ""]
    prerm, postrm = (
        "#!/bin/sh\n" + shell.fill(shell.load(name, "gpustate_lab.sim"), UNIT=unit)
        for name in ("unit_prerm", "unit_postrm")
    )
    return {"postinst": "\n".join(postinst), "prerm": prerm, "postrm": postrm}
