"""Files of the driver that are damaged though its packages are right, and device nodes that are.

A package of the right version says nothing of its files; of the nodes below /dev see ``model/device_nodes.py``.
"""

from __future__ import annotations

import shlex

from gpustate import ops
from gpustate.probes import device_nodes
from gpustate.probes.driver_files import FILES
from gpustate.probes.package_files import absent_of, packages_of


def explain(library: str | None, damaged: tuple[str, ...]) -> bool:
    """NVML's library cannot be found because a file or a link is damaged, not because it is another."""
    return library is None and any("/libnvidia-ml.so." in row for row in damaged)


def files(damaged: tuple[str, ...]) -> ops.Run:
    """Make the links anew; where that is not enough, let apt unpack the packages again at their own versions."""
    return ops.Run(
        f"{FILES.checked()}"
        # ldconfig would wait at a pipe for ever.
        f'for f in {shlex.join(absent_of(damaged))}; do [ -f "$f" ] || [ -d "$f" ] || rm -f "$f"; done\n'
        'ldconfig; s=$(checked); [ -n "$s" ] || { effect linked; exit 0; }\n'
        "set --; for p in $(printf '%s\\n' \"$s\" | sed 's/: .*//' | sort -u); do\n"
        '  set -- "$@" "$(dpkg-query -W -f \'${binary:Package}=${Version}\' "$p")"; done\n'
        'apt_ready && apt_fetch --reinstall "$@" && apt_swap --reinstall "$@" || exit 1\nldconfig\n'
        's=$(checked); [ -z "$s" ] || fail "$s; the repositories did not bring back" "$@" "(apt-cache policy says what they offer)"\n'
        "effect reinstalled",
        f"restore files of {', '.join(packages_of(damaged))}",
        timeout=3600,
    )


def sources(damaged: tuple[str, ...], *, must: bool) -> ops.Run:
    """Unpack the sources that are missing, and nothing else: no script of their packages runs, and the modules stay.

    Without them DKMS fails at removing what it has built, and so do the scripts of the package at anything.

    Args:
        damaged: rows of sources.
        must: that they cannot be had is an error.
    """
    names = shlex.join(packages_of(damaged))
    back = (
        f'rm -rf "$R/sources"; mkdir "$R/sources"; cd "$R/sources"; set --; for p in {names}; do\n'
        '  set -- "$@" "$(dpkg-query -W -f \'${Package}=${Version}\' "$p")"; done\n'
        'apt_wait && apt_patience && apt-get -q -o DPkg::Lock::Timeout="$APT_WAIT_S" download "$@" || exit 1\n'
        'for f in ./*.deb; do dpkg-deb --fsys-tarfile "$f" >sources.tar && '
        "tar -x -C / -f sources.tar --skip-old-files --keep-directory-symlink --wildcards './usr/src/*' || exit 1; done"
    )
    end = (
        'fail "$s; the repositories did not restore it (check: apt-cache policy)"'
        if must
        else 'echo "$s"; effect same; exit 0'
    )
    return ops.Run(
        f"{FILES.checked()}( {back}\n) || :\n"
        'rm -rf "$R/sources"; s=$(checked | grep -F ": /usr/src/") || s=\n'
        f'[ -z "$s" ] || {{ {end}; }}\neffect unpacked',
        f"restore sources of {', '.join(packages_of(damaged))}",
        timeout=1800,
    )


def nodes() -> ops.Run:
    """Make device nodes as the driver would, with the owner and mode that its files in /proc say."""
    return ops.Run(
        device_nodes.make(device_nodes.NODES),
        "create NVIDIA's device nodes",
        timeout=60,
        running=True,
    )


__all__ = ["FILES", "explain", "files", "nodes", "sources"]
