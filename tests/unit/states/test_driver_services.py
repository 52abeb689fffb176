"""Services that a reload of the modules stops: also those that systemd stops along with them, which run again after it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpustate.states.driver import scripts

#: systemctl as far as the fragment uses it; a file below ``run`` is a unit that is active.
SYSTEMCTL = """
systemctl() {
  case $1 in
  is-active) [ -e "run/$3" ] ;;
  start) : >"run/$2"; echo "$2" >>started ;;
  stop) rm "run/$2"; for w in $(required "$2"); do rm -f "run/$w"; done ;;
  show) shift; for w do :; done; required "$w" ;;
  esac
}
required() {
  case $1 in
  nvidia-persistenced.service) printf '%s\\n\\n%s\\n' 'site-exporter.service gpu.target idle.service' nvidia-dcgm.service ;;
  site-exporter.service) echo site-proxy.service ;;
  esac
}
sync() { :; }
set -eu
"""
DAEMON, DCGM = "nvidia-persistenced.service", "nvidia-dcgm.service"
FOREIGN = ["site-exporter.service", "site-proxy.service"]


@pytest.fixture
def node(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    for unit in (DAEMON, DCGM, *FOREIGN, "gpu.target", "other.service"):
        (tmp_path / "run" / unit).touch()
    return tmp_path


def ran(node: Path, command: str) -> list[str]:
    text = scripts.start_services().removesuffix("start_services\n")
    text = text.replace(scripts.STOPPED_PATH, "stopped")
    done = subprocess.run(
        ["sh", "-c", SYSTEMCTL + text + command],
        cwd=node,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def test_units_that_need_a_service_are_named_with_it(node: Path) -> None:
    assert ran(node, "running_services") == [DAEMON, DCGM, *FOREIGN]


def test_what_systemd_stops_along_runs_again_and_nothing_else(node: Path) -> None:
    assert "other.service" in ran(node, "stop_services; ls run")
    assert not (node / "run" / FOREIGN[0]).exists()
    ran(node, "start_services")
    assert (node / "started").read_text().split() == [DAEMON, DCGM, *FOREIGN]
    assert not (node / "stopped").exists()
