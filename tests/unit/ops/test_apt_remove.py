"""What a purge leaves of services: nothing, not even that one had failed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from gpustate import ops
from gpustate.ops.packages import PACKAGES

#: ``gone.service`` went with its package, ``stays.service`` is still there.
STUBS = """
apt_ready() { :; }
no_links_left() { "$@"; }
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


#: dpkg wrote the list of a package anew when it removed it; gpustate came to the node in between.
LISTS = """
G=/var/lib/gpustate
stat() {
  case $3 in
  "$G") echo 1000 ;;
  */old.list) echo 900 ;;
  */x-1.list|*/lib1:i386.list|*/foreign.list|*/x.list) echo 1100 ;;
  *) return 1 ;;
  esac
}
dpkg-query() {
  printf '%s\\n' 'x|amd64|1|ii ' 'x-1|amd64|1|rc ' 'old|amd64|1|rc ' 'lib1|i386|1|pc ' 'foreign|amd64|1|rc '
}
"""


def test_what_is_left_of_replaced_packages_is_purged_with_the_others() -> None:
    step = ops.AptRemove(("x", "y"), r"^(x|old|lib)[^|]*\|")
    script = f"set -e\n{STUBS}{LISTS}\n{step.script()}"
    shell = shutil.which("bash") or "sh"  # dash takes no function with a dash in its name
    done = subprocess.run([shell, "-c", script], capture_output=True, text=True, check=True)
    first = done.stdout.splitlines()[0]
    assert first == "apt purge --allow-change-held-packages x y x-1 lib1:i386"


def test_a_root_without_systemd_is_purged_all_the_same() -> None:
    assert (
        said(STUBS + "systemctl() { return 127; }\ndpkg() { return 1; }\n")[-1] == "effect removed"
    )


def test_links_to_units_that_went_go_with_them_and_others_stay(tmp_path: Path) -> None:
    wants = tmp_path / "system/multi-user.target.wants"
    wants.mkdir(parents=True)
    unit, stays = tmp_path / "a b.service", tmp_path / "stays.service"
    for one in (unit, stays):
        one.touch()
    (wants / "a b.service").symlink_to(unit)
    (wants / "stays.service").symlink_to(stays)
    (tmp_path / "system/alias.service").symlink_to(unit)
    (tmp_path / "system/long-gone.service").symlink_to("/nowhere/long-gone.service")
    (tmp_path / "system/masked.service").symlink_to("/dev/null")
    start = PACKAGES.index("no_links_left()")
    function = PACKAGES[start : PACKAGES.index("\n}\n", start) + 3]
    script = f"{function}purge() {{ rm '{unit}'; return 3; }}\nno_links_left purge"
    done = subprocess.run(
        ["sh", "-e", "-c", script.replace("/etc/systemd/system", str(tmp_path / "system"))],
        capture_output=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, b"", b"")
    left = {one.name for one in tmp_path.rglob("*.service")}
    assert left == {"stays.service", "long-gone.service", "masked.service"}


def test_packages_that_are_gone_are_left_out() -> None:
    stubs = STUBS + '\ndpkg() { case "$*" in "-s y") return 1 ;; esac; }\n'
    assert said(stubs)[0] == "apt purge --allow-change-held-packages x"
    assert said(stubs + "dpkg() { return 1; }\n") == ["effect removed"]


def test_packages_that_apt_does_not_know_any_more_keep_no_hold_from_ending() -> None:
    stubs = """
apt_wait() { :; }
apt_mark() { case $1 in showhold) printf '%s\\n' a lib:i386 other ;; *) echo "apt-mark $*" ;; esac; }
"""
    for held, ran in ((("a", "gone", "lib:i386"), ["apt-mark unhold a lib:i386"]), (("gone",), [])):
        script = ops.AptHold(held, hold=False).script().replace("apt-mark", "apt_mark")
        done = subprocess.run(
            ["sh", "-ec", stubs + script], capture_output=True, text=True, check=True
        )
        assert done.stdout.splitlines() == ran
