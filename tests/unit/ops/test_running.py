"""What a failed installation has stopped runs again, or is named; with stand-ins for apt, dpkg and systemctl."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpustate.core.outcome import Outcome, StateResult
from gpustate.engine.verdicts import still_stopped
from gpustate.ops import LIBRARY

#: Units as systemctl knows them: name and file.
UNITS = {
    "nvidia-fabricmanager.service": "/usr/lib/systemd/system/nvidia-fabricmanager.service",
    "nvidia-persistenced.service": "/usr/lib/systemd/system/nvidia-persistenced.service",
    "exporter.service": "/etc/systemd/system/exporter.service",
    "training.service": "/run/systemd/transient/training.service",
    "idle.service": "/usr/lib/systemd/system/idle.service",
}
SYSTEMCTL = r"""#!/bin/sh
w=@FOLDER@/active; echo "$*" >>@FOLDER@/calls
case $1 in
show) while read -r u p; do a=inactive; [ ! -e "$w/$u" ] || a=active
  printf 'Id=%s\nActiveState=%s\nFragmentPath=%s\n\n' "$u" "$a" "$p"; done <@FOLDER@/units ;;
list-dependencies) echo "$4"; case $4 in nvidia-fabricmanager*) echo "● exporter.service"; echo "○ multi-user.target" ;; esac ;;
is-active) [ -e "$w/$3" ] ;;
start) shift; for u; do [ -e @FOLDER@/broken.$u ] || : >"$w/$u"; done ;;
esac
"""
APT = r"""#!/bin/sh
case "$*" in *" -s"*) exit 1 ;; *--purge*) exit 0 ;; esac
echo 'Preparing to unpack .../nvidia-fabricmanager_595_amd64.deb ...'
echo 'Unpacking nvidia-fabricmanager (595-1) over (580-1) ...'
rm -f @FOLDER@/active/nvidia-fabricmanager.service @FOLDER@/active/exporter.service @FOLDER@/active/training.service
echo 'E: Sub-process /usr/bin/dpkg returned an error code (1)'; exit 100
"""
DPKG = r"""#!/bin/sh
case $1 in -L) echo /usr/lib/systemd/system/nvidia-fabricmanager.service ;; esac
"""

#: dnf fails half-way the first time, and puts back what was there the second time.
DNF = r"""#!/bin/sh
if [ -e @FOLDER@/tried ]; then echo 'nvidia-fabricmanager 580-1 x86_64' >@FOLDER@/rpms; exit 0; fi
: >@FOLDER@/tried; echo 'nvidia-fabricmanager 595-1 x86_64' >@FOLDER@/rpms
rm -f @FOLDER@/active/nvidia-fabricmanager.service @FOLDER@/active/exporter.service; exit 1
"""
RPM = r"""#!/bin/sh
case "$*" in
-qa*) cat @FOLDER@/rpms ;;
-ql*) echo /usr/lib/systemd/system/nvidia-fabricmanager.service ;;
*) exit 1 ;;
esac
"""


def swap(folder: Path, *, broken: str = "", manager: str = "apt") -> tuple[str, set[str]]:
    """Fail an installation of a Fabric Manager; what is printed, and what runs afterwards."""
    (folder / "active").mkdir()
    (folder / "run").mkdir()
    for unit in UNITS:
        if unit != "idle.service":
            (folder / "active" / unit).touch()
    (folder / "units").write_text("".join(f"{u} {p}\n" for u, p in UNITS.items()))
    if broken:
        (folder / f"broken.{broken}").touch()
    tools = {
        "systemctl": SYSTEMCTL,
        "apt-get": APT,
        "dpkg": DPKG,
        "dpkg-query": "#!/bin/sh\necho 'nvidia-fabricmanager 580-1 installed'\n",
        "apt-mark": "#!/bin/sh\n",
        "apt-config": "#!/bin/sh\n",
        "sync": "#!/bin/sh\n",
        "dnf": DNF,
        "rpm": RPM,
    }
    (folder / "rpms").write_text("nvidia-fabricmanager 580-1 x86_64\n")
    for name, text in tools.items():
        (folder / name).write_text(text.replace("@FOLDER@", str(folder)))
        (folder / name).chmod(0o755)
    library = LIBRARY.replace("/run/systemd/system", str(folder)).replace(
        "case $rp in /lib/*|/usr/lib/*)", "case $rp in /gone/*)"
    )
    words = "apt_swap nvidia-fabricmanager=595-1"
    if manager == "dnf":
        library = library.replace("command -v dpkg >/dev/null", "false")
        words = "PM=dnf; GO=; AGAIN=; NAMES=nvidia-fabricmanager=595-1; WANT=$NAMES; rpm_swap"
    script = (
        f"{library}\nlock_holder() {{ return 1; }}\nrpm_lock_holder() {{ return 1; }}\n"
        f'PATH={folder}:$PATH; STEP=1; set -e\n{words} || echo "rolled=$ROLLED"'
    )
    done = subprocess.run(
        ["sh", "-c", script],
        env={"R": str(folder / "run"), "G": str(folder), "PATH": "/usr/bin:/bin"},
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout, {path.name for path in (folder / "active").iterdir()}


@pytest.mark.parametrize("manager", ["apt", "dnf"])
def test_what_an_installation_that_went_back_had_stopped_runs_again(
    tmp_path: Path, manager: str
) -> None:
    said, active = swap(tmp_path, manager=manager)
    assert "rolled=1" in said
    assert active - {"training.service"} == {*UNITS} - {"training.service", "idle.service"}
    assert "training.service" not in said
    assert "running again: exporter.service\nrunning again: nvidia-fabricmanager.service\n" in said


def test_what_does_not_start_is_named_in_the_reason(tmp_path: Path) -> None:
    said, active = swap(tmp_path, broken="nvidia-fabricmanager.service")
    assert "nvidia-fabricmanager.service" not in active
    assert still_stopped(said, None) == (
        "; ran before and is stopped now: nvidia-fabricmanager.service; find the reason: systemctl status nvidia-fabricmanager.service"
    )


class Kept:
    """An observation with services that the state has stopped."""

    stopped = ("a.service", "b.service")


@pytest.mark.parametrize(
    ("said", "named"), [("", "a.service, b.service"), ("running again: a.service\n", "b.service")]
)
def test_services_that_a_state_keeps_stopped_are_named(said: str, named: str) -> None:
    assert f"stopped now: {named}; find" in still_stopped(said, Kept())
    assert still_stopped("", StateResult("a", Outcome.FAILED)) == ""
