"""Files of the driver and device nodes that are damaged though its packages are right, and their repair."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from gpustate import shell
from gpustate.core.queries import Answer
from gpustate.probes import device_nodes
from gpustate.probes.driver_files import FILES
from gpustate.states.driver import repairs
from gpustate.states.driver.observed import LiveMigQuery
from gpustate.states.driver.scripts import SPARES

LINK = "libcuda1: /usr/lib/x86_64-linux-gnu/libcuda.so.1 is not a link to libcuda.so.580.178.04"


def test_a_library_that_cannot_be_found_because_its_link_is_gone_costs_no_reinstallation() -> None:
    lost = "libnvidia-ml1: /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1 is not a link to libnvidia-ml.so.580.178.04"
    assert repairs.explain(None, (lost,))
    assert not repairs.explain("570.1", (lost,))
    assert not repairs.explain(None, (LINK,))


def test_rows_of_device_nodes_tell_kind_and_numbers() -> None:
    text = (
        "node=/dev/nvidia0 195:0 1\nnode=/dev/nvidia1 195:1 1\nnode=/dev/nvidia2 195:2 \n"
        "node=/dev/nvidiactl 195:255 1\nnode=/dev/nvidia-uvm 511:0 1\n"
        "found=/dev/nvidia0|character special file|c3|0\nfound=/dev/nvidiactl|character special file|c3|ff\n"
        "found=/dev/nvidia-uvm|regular empty file|0|0\n"
    )
    wrong = LiveMigQuery().parse(Answer(0, text.encode())).device_nodes
    assert wrong == (
        "/dev/nvidia-uvm is a regular empty file, not 511:0",
        "/dev/nvidia1 is missing",
    )


_FUNCTIONS = """
effect() { echo "effect $1"; }; fail() { echo "$*"; exit 1; }
ldconfig() { [ ! -e links ] || : >whole; }
checked() { [ -e whole ] || printf '%s\\n' 'libcuda1:amd64: /a is missing' 'libcuda1:amd64: /b is missing' 'nvidia-smi: /c has mode 0'; }
dpkg-query() { for p; do :; done; echo "$p=580.1-1"; }
apt_ready() { :; }
apt_fetch() { echo "fetch $*"; }
apt_swap() { echo "swap $*"; [ ! -e archive ] || : >whole; }
set -eu
"""


@pytest.mark.parametrize(
    ("there", "status", "said"),
    [
        ("links", 0, "effect linked\n"),
        (
            "archive",
            0,
            "fetch --reinstall libcuda1:amd64=580.1-1 nvidia-smi=580.1-1\n"
            "swap --reinstall libcuda1:amd64=580.1-1 nvidia-smi=580.1-1\neffect reinstalled\n",
        ),
        ("nothing", 1, "did not bring back libcuda1:amd64=580.1-1 nvidia-smi=580.1-1"),
    ],
)
def test_links_come_from_ldconfig_and_files_from_their_packages(
    tmp_path: Path, there: str, status: int, said: str
) -> None:
    (tmp_path / there).touch()
    text = repairs.files((LINK,)).text.removeprefix(repairs.FILES.checked())
    shell = shutil.which("bash") or "sh"  # dash takes no function with a dash in its name
    done = subprocess.run(
        [shell, "-c", _FUNCTIONS + text], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stderr
    assert done.stdout.endswith(said) or (status and said in done.stdout)


SOURCE = "nvidia-kernel-open-dkms: /usr/src/nvidia-580.1/dkms.conf is missing"


@pytest.mark.parametrize(
    ("offered", "must", "status", "said"),
    [
        (True, True, 0, "effect unpacked\n"),
        (False, True, 1, "did not restore it"),
        (False, False, 0, "effect same\n"),
    ],
)
def test_sources_are_unpacked_over_what_is_there(
    tmp_path: Path, offered: bool, must: bool, status: int, said: str
) -> None:
    root, package = tmp_path / "root", tmp_path / "package"
    for top, text in ((root, "mine"), (package, "theirs")):
        (top / "usr/src/nvidia-580.1").mkdir(parents=True)
        (top / "usr/src/nvidia-580.1/nv.c").write_text(text)
    (package / "usr/src/nvidia-580.1/dkms.conf").write_text("theirs")
    (package / "usr/bin").mkdir()
    (package / "usr/bin/x").touch()
    conf = root / "usr/src/nvidia-580.1/dkms.conf"
    functions = f"""
R={tmp_path}
effect() {{ echo "effect $1"; }}; fail() {{ echo "$*"; exit 1; }}
checked() {{ [ -e {conf} ] || echo '{SOURCE}'; }}
dpkg-query() {{ for p; do :; done; echo "$p=580.1-1"; }}
apt_wait() {{ :; }}; apt_patience() {{ APT_WAIT_S=1; }}
apt-get() {{ [ -n "{"yes" if offered else ""}" ] && : >x.deb; }}
dpkg-deb() {{ tar -c -C {package} ./usr; }}
set -eu
"""
    text = repairs.sources((SOURCE,), must=must).text.removeprefix(repairs.FILES.checked())
    # dash takes no function with a dash in its name
    program = shutil.which("bash") or "sh"
    done = subprocess.run(
        [program, "-c", functions + text.replace("-C / ", f"-C {root} ")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stderr
    assert done.stdout.endswith(said) or (status and said in done.stdout)
    assert conf.exists() == offered
    assert (conf.parent / "nv.c").read_text() == "mine"
    assert not (root / "usr/bin").exists()


def fetched(functions: str) -> subprocess.CompletedProcess[str]:
    """Run the script that downloads packages; shell functions stand for the programs."""
    text = SPARES + shell.load("fetch", "gpustate.states.driver", ALSO="")
    return subprocess.run(
        [shutil.which("bash") or "sh", "-c", functions + text],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("simulated", "said"),
    [
        ("Inst libnvidia-cfg1-580 [580.1-1] (580.2-1 x [amd64])", "effect fetched"),
        ("Inst dkms (3.1 x [all])", "effect fetched"),
        ("Inst bc [1] (2 x [amd64])", "effect fetched"),
        ("Inst dkms [3.0] (3.1 x [all])", "error: this would change dkms which is held"),
        ("Remv dkms [3.0]", "error: this would also remove dkms which is not part of the driver"),
        ("Purg libnvidia-cfg1-580 [580.1-1]", "effect fetched"),
        ("Inst linux-image-amd64 [6.1.1] (6.1.2 x [amd64])", "effect fetched"),
        (
            "Inst linux-image-6.8.0-110-generic (6.8.0-110.110 x [amd64])",
            "error: this would also install kernel 6.8.0-110-generic which is not part of the driver",
        ),
        (
            "Inst linux-image-unsigned-6.8.0-110-nvidia (6.8.0-110.110 x [amd64])",
            "error: this would also install kernel 6.8.0-110-nvidia which is not part of the driver",
        ),
    ],
)
def test_foreign_holds_packages_and_kernels_stay_as_they_are(
    tmp_path: Path, simulated: str, said: str
) -> None:
    functions = f"""
R={tmp_path}
effect() {{ echo "effect $1"; }}; back() {{ exit 1; }}
along() {{ "$@"; }}; apt_ready() {{ :; }}; apt_fetch() {{ :; }}
apt_whole() {{ echo '{simulated}' >"$1"; }}
apt-mark() {{ printf '%s\\n' dkms libnvidia-cfg1-580; }}
dpkg-query() {{ for p; do :; done; echo "$p|amd64|580.1-1|hi "; }}
"""
    done = fetched(functions)
    assert done.stdout.startswith(said), done.stderr


@pytest.mark.parametrize("foreign", ["", "Remv dkms [3.0]"])
def test_what_comes_along_is_simulated_and_looked_at_once(tmp_path: Path, foreign: str) -> None:
    (tmp_path / "along").write_text("nvidia-imex=1 nvidia-imex=1\n")
    functions = f"""
R={tmp_path}
effect() {{ echo "effect $1"; }}; back() {{ exit 1; }}
along() {{ "$@"; }}; apt_ready() {{ :; }}; apt_fetch() {{ :; }}
apt_whole() {{ echo simulated >>"$R/done"; case $* in *imex*) echo '{foreign}' ;; esac >"$1"; }}
apt-mark() {{ echo looked >>"$R/done"; }}
dpkg-query() {{ for p; do :; done; echo "$p|amd64|580.1-1|ii "; }}
set -- nvidia-utils-580=580.1-1
"""
    done = fetched(functions)
    assert done.stdout == "effect fetched\n", done.stderr
    # A foreign package would leave with what comes along: that is left out.
    others = ["simulated"] if foreign else []
    assert (tmp_path / "done").read_text().split() == [*others, "simulated", "looked"]
    assert (tmp_path / "along").exists() == (not foreign)


@pytest.mark.parametrize(
    ("row", "outcome"),
    [
        # apt simulates nothing while it is there.
        ("|{}|iU ", "removed {}\neffect fetched\n"),
        # Its former version was in use.
        ("580.1-1|{}|iU ", "unmet\n"),
        ("|{}|iF ", "unmet\n"),
        ("580.1-1|{}|ii ", "unmet\n"),
    ],
)
def test_a_package_that_was_only_unpacked_is_removed_ahead_where_apt_begins_nothing(
    tmp_path: Path, row: str, outcome: str
) -> None:
    functions = f"""
R={tmp_path}
effect() {{ echo "effect $1"; }}; back() {{ exit 1; }}
along() {{ "$@"; }}; apt_ready() {{ :; }}; apt_fetch() {{ :; }}; apt-mark() {{ :; }}
apt_whole() {{ echo unmet >"$1"; [ -e "$R/gone" ]; }}
dpkg() {{ : >"$R/gone"; shift; echo "removed $*"; }}
dpkg-query() {{ echo '{row.format("nvidia-driver-580-open|amd64|580.2-1")}'; }}
set -- nvidia-utils-580=580.1-1 nvidia-driver-580-open-
"""
    outcome = outcome.format("nvidia-driver-580-open")
    done = fetched(functions)
    assert done.stdout == outcome, done.stderr
    assert (done.returncode == 0) == ("effect" in outcome)


def capability(proc: Path, name: str, minor: int, mode: int, *, modify: int = 1) -> None:
    """A file of /proc that tells of a capability."""
    file = proc / "driver/nvidia/capabilities" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: {modify}\n"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="making device nodes needs root")
def test_the_step_makes_what_the_fragment_finds_wrong(tmp_path: Path) -> None:
    proc, dev = tmp_path / "proc", tmp_path / "dev"
    dev.mkdir()
    for minor in range(3):
        folder = proc / f"driver/nvidia/gpus/0000:0{minor}:00.0"
        folder.mkdir(parents=True)
        uuid = "GPU-????????-????" if minor == 1 else "GPU-aa-bb"
        (folder / "information").write_text(f"GPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n")
    (proc / "driver/nvidia/version").write_text("x\n")
    (proc / "driver/nvidia/params").write_text("DeviceFileUID: 0\nDeviceFileMode: 432\n")
    devices = "Character devices:\n195 nvidia\n235 nvidia-uvm\n236 nvidia-caps\n237 nvidia-caps-imex-channels\n\nBlock devices:\n  8 nvidia\n"
    (proc / "devices").write_text(devices)
    for name, minor, mode in (("mig/config", 1, 256), ("mig/monitor", 2, 292)):
        capability(proc, name, minor, mode)
    for name, minor in (("gi1/access", 12), ("gi1/ci0/access", 13), ("gi2/access", 21)):
        capability(proc, f"gpu0/mig/{name}", minor, 292)
    capability(proc, "gpu1/mig/gi1/access", 147, 292, modify=0)
    (dev / "nvidia-caps").mkdir()
    os.mknod(dev / "nvidia-caps/nvidia-cap2", stat.S_IFCHR | 0o444, os.makedev(511, 2))
    os.mknod(dev / "nvidia-caps/nvidia-cap12", stat.S_IFCHR | 0o444, os.makedev(236, 12))
    (dev / "nvidia-uvm").write_text("no device")
    (dev / "nvidia2").symlink_to("nowhere")

    def sh(text: str) -> str:
        script = f"effect() {{ :; }}\nPROC={proc}\nset -eu\n{text.replace('/dev/nvidia', f'{dev}/nvidia')}"
        return subprocess.run(
            ["sh", "-c", script], check=True, capture_output=True, text=True
        ).stdout

    def wrong() -> tuple[str, ...]:
        found = LiveMigQuery().parse(Answer(0, sh(device_nodes.NODES).encode())).device_nodes
        return tuple(row.removeprefix(f"{dev}/") for row in found)

    assert wrong() == (
        "nvidia-caps/nvidia-cap13 is missing (gpu0/mig/gi1/ci0)",
        "nvidia-caps/nvidia-cap2 is 511:2, not 236:2 (mig/monitor)",
        "nvidia-caps/nvidia-cap21 is missing (gpu0/mig/gi2)",
        "nvidia-uvm is a regular file, not 235:0",
        "nvidia0 is missing",
        "nvidia2 is missing",
        "nvidiactl is missing",
    )
    sh(repairs.nodes().text)
    assert wrong() == ()
    made = os.stat(dev / "nvidia2")
    assert (os.major(made.st_rdev), os.minor(made.st_rdev), made.st_mode & 0o777) == (195, 2, 0o660)
    made = os.stat(dev / "nvidia-caps/nvidia-cap13")
    assert (os.major(made.st_rdev), os.minor(made.st_rdev), made.st_mode & 0o777) == (
        236,
        13,
        0o444,
    )
    assert not (dev / "nvidia-caps/nvidia-cap1").exists()
    assert not (dev / "nvidia-caps/nvidia-cap147").exists()
    assert not list(dev.rglob(".gpustate*"))


@pytest.mark.parametrize(
    ("package", "path"),
    [
        *((f"nvidia-utils{b}", "/usr/bin/nvidia-smi") for b in ("", "-580", "-580-server")),
        *((f"nvidia-compute-utils{b}", "/usr/bin/nvidia-cuda-mps-server") for b in ("", "-580")),
        *((f"nvidia-firmware{b}", "/usr/lib/firmware/nvidia/595.71.05/gsp_ga10x.bin") for b in ("", "-580")),
        *((f"nvidia-kernel-source{b}-open", "/usr/src/nvidia-595.71.05/dkms.conf") for b in ("", "-580")),
    ],
)  # fmt: skip
def test_files_are_looked_after_under_names_with_and_without_branch(
    package: str, path: str
) -> None:
    assert FILES.watches(package, path)
