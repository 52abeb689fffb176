"""What a purge leaves of services: nothing, not even that one had failed."""

from __future__ import annotations

import subprocess

from gpustate import ops

#: ``gone.service`` went with its package, ``stays.service`` is still there.
STUBS = """
apt_ready() { :; }
apt() { echo "apt $*"; }
effect() { echo "effect $*"; }
dpkg() { printf '%s\\n' /. /lib/systemd/system/gone.service /usr/lib/systemd/system/stays.service \\
  /usr/lib/systemd/system/many@.service /usr/share/doc/x; }
systemctl() { case $1$2 in catstays*) return 0 ;; cat*) return 1 ;; *) echo "systemctl $*" ;; esac; }
"""


def said(stubs: str) -> list[str]:
    script = f"set -e\n{stubs}\n"
    done = subprocess.run(
        ["sh", "-c", script + ops.AptRemove(("x", "y")).script()],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return done.stdout.splitlines()


def test_a_service_whose_package_is_gone_is_no_longer_listed_as_failed() -> None:
    assert said(STUBS) == [
        "apt purge --allow-change-held-packages x y",
        "systemctl reset-failed gone.service",
        "effect removed",
    ]


def test_a_root_without_systemd_is_purged_all_the_same() -> None:
    assert (
        said(STUBS + "systemctl() { return 127; }\ndpkg() { return 1; }\n")[-1] == "effect removed"
    )
