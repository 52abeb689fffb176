"""What a transaction of dnf or zypper brings, read from their own words; what may be taken back of it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpustate.ops import owned_packages

DATA = Path(__file__).parents[2] / "data/rpm"
#: Stand in for the node's library; rpm says what a real one said in the lab.
LIBRARY = """
fail() { echo "$*"; exit 1; }
effect() { :; }
rpm_open() { :; }
rpm_wait() { :; }
rpm_hold() { :; }
rpm_can_hold() { :; }
rpm_fetch() { cp "$LOG" "$R/fetch.log"; }
rpm_go() { cat "$LOG"; }
rpm_swap() { echo swapped; }
rpm_remove() { echo "removed $*"; }
"""


def ran(tmp_path: Path, script: str, log: Path, more: str = "") -> tuple[int, str]:
    folder = tmp_path / "brought"
    text = f"{LIBRARY}{more}\nR={tmp_path}; LOG={log}\nset -e\n{script.replace(owned_packages.FOLDER, str(folder))}"
    done = subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("manager", "log", "driver"),
    [
        ("dnf", "dnf-4.14-downloadonly.txt", "nvidia-driver-cuda 3:580.65.06-1.el9"),
        ("zypper", "zypper-1.14-dry-run.xml", "nvidia-driver-cuda 3:580.65.06-1.el9"),
    ],
)
def test_a_driver_among_what_comes_is_found_before_anything_is_installed(
    tmp_path: Path, manager: str, log: str, driver: str
) -> None:
    script = owned_packages.bring("trial", (("cuda-13-0", ""),), manager=manager).script()
    code, told = ran(tmp_path, script, DATA / log)
    assert code == 1
    assert f"would install or move the driver ({driver}" in told
    assert "swapped" not in told
    assert not (tmp_path / "brought/trial").exists()


def test_modules_of_suse_are_the_drivers_too(tmp_path: Path) -> None:
    script = owned_packages.bring("trial", (("cuda-13-0", ""),), manager="dnf").script()
    _, told = ran(tmp_path, script, DATA / "dnf-4.14-downloadonly.txt")
    assert "nvidia-open-driver-G06-signed-cuda-kmp-default 580.65.06-1)" in told


@pytest.mark.parametrize("wrapped", [False, True])
def test_names_of_what_comes_are_written_down_before_it_comes(
    tmp_path: Path, wrapped: bool
) -> None:
    rows = (DATA / "dnf-4.14-downloadonly.txt").read_text().splitlines()
    rows = [row for row in rows if not row.startswith((" nvidia-driver", " nvidia-open"))]
    if wrapped:
        rows = [
            row.replace(" nvidia-fs-dkms  ", " nvidia-fs-dkms\n") if "nvidia-fs" in row else row
            for row in rows
        ]
    rows.insert(
        rows.index("Transaction Summary"), "Upgrading:\n kernel-headers  x86_64  1-1  r  1 k\n"
    )
    log = tmp_path / "log"
    log.write_text("\n".join(rows))
    script = owned_packages.bring(
        "trial", (("cuda-13-0", "13.0.0-1"),), hold=True, manager="dnf"
    ).script()
    code, told = ran(tmp_path, script, log)
    assert (code, told) == (0, "swapped\n")
    assert (tmp_path / "brought/trial").read_text() == "cuda-13-0\ndkms\nnvidia-fs-dkms\n"


#: rpm -e --test as it is: the needed capability, and who needs it.
NEEDED = r"""
rpm() {
  case "$*" in
    '-e --test'*) case " $* " in *' dkms '*) printf 'error: Failed dependencies:\n\tdkms is needed by (installed) site-0:1-1.x86_64\n' >&2; return 1;; esac ;;
    '-q --whatprovides'*) for c do :; done; echo "$c" ;;
    *) ;;
  esac
}
"""


def test_what_somebody_else_needs_stays_and_is_handed_on(tmp_path: Path) -> None:
    folder = tmp_path / "brought"
    folder.mkdir()
    (folder / "gdrcopy").write_text("dkms\ngdrcopy\ngdrcopy-kmod\n")
    (folder / "gds").write_text("nvidia-fs-dkms\n")
    script = owned_packages.take_back("gdrcopy", ("gdrcopy-kmod",), manager="dnf").script()
    code, told = ran(tmp_path, script, tmp_path, NEEDED)
    assert code == 0, told
    assert "dkms stays: site-0:1-1.x86_64 needs it" in told
    assert "removed gdrcopy gdrcopy-kmod\n" in told
    assert not (folder / "gdrcopy").exists()
    assert (folder / "gds").read_text() == "dkms\nnvidia-fs-dkms\n"


def test_a_root_that_somebody_else_needs_stops_it_all(tmp_path: Path) -> None:
    script = owned_packages.take_back("x", ("dkms",), manager="zypper").script()
    code, told = ran(tmp_path, script, tmp_path, NEEDED)
    assert code == 1
    assert "dkms cannot be removed, site-0:1-1.x86_64 needs it; remove that first" in told
    assert "removed" not in told.replace("be removed", "")
