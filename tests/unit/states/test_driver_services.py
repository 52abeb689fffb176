"""Services that a reload of the modules stops: also those that systemd stops along with them, which run again after it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpustate.core.queries import Answer
from gpustate.formats.gpu_services import VALIDATION
from gpustate.ops import EnableUnit
from gpustate.states.driver import scripts
from gpustate.states.driver.observed import LEFT_PATH, LiveMigQuery

#: systemctl as far as the fragment uses it; a file below ``run`` is a unit that is active.
SYSTEMCTL = """
systemctl() {
  case $1 in
  is-active) [ -e "run/$3" ] ;;
  is-enabled) [ ! -e "disabled/$3" ] ;;
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
module_loaded() { [ ! -e unloaded ]; }
set -eu
"""
DAEMON, DCGM = "nvidia-persistenced.service", "nvidia-dcgm.service"
DISCOVERY = "gpu-feature-discovery.service"
FOREIGN = ["site-exporter.service", "site-proxy.service"]


@pytest.fixture
def node(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    (tmp_path / "disabled").mkdir()
    for unit in (DAEMON, DCGM, *FOREIGN, "gpu.target", "other.service"):
        (tmp_path / "run" / unit).touch()
    return tmp_path


def ran(node: Path, command: str) -> list[str]:
    text = scripts.start_services().removesuffix("start_services\n")
    text = text.replace(scripts.STOPPED_PATH, "stopped").replace(scripts.LEFT_PATH, "left")
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


def test_feature_discovery_as_a_service_does_not_load_a_driver_that_leaves(node: Path) -> None:
    (node / "run" / DISCOVERY).touch()
    assert DISCOVERY not in ran(node, "stop_services; ls run")
    ran(node, "leave_services")
    assert DISCOVERY in (node / "left").read_text().split()


def test_what_systemd_stops_along_runs_again_and_nothing_else(node: Path) -> None:
    assert "other.service" in ran(node, "stop_services; ls run")
    assert not (node / "run" / FOREIGN[0]).exists()
    ran(node, "start_services")
    assert (node / "started").read_text().split() == [DAEMON, DCGM, *FOREIGN]
    assert not (node / "stopped").exists()


def test_the_own_validation_at_boot_is_stopped_and_not_started_again(node: Path) -> None:
    (node / "run" / VALIDATION).touch()
    assert VALIDATION not in ran(node, "stop_services; ls run")
    ran(node, "start_services")
    assert VALIDATION not in (node / "started").read_text().split()


def test_the_next_installation_starts_what_a_removal_has_stopped_if_it_is_still_enabled(
    node: Path,
) -> None:
    ran(node, "stop_services; leave_services")
    assert (node / "left").read_text().split() == [DCGM, *FOREIGN]
    assert not (node / "stopped").exists()
    ran(node, "stop_services; leave_services")  # killed, and run again: nothing runs
    assert (node / "left").read_text().split() == [DCGM, *FOREIGN]
    (node / "disabled" / DCGM).touch()
    ran(node, "start_left")
    assert (node / "started").read_text().split() == FOREIGN
    assert not (node / "left").exists()


def test_without_a_loaded_driver_no_service_is_started(node: Path) -> None:
    ran(node, "stop_services")
    (node / "unloaded").touch()
    ran(node, "start_services")
    assert not (node / "started").exists()
    assert (node / "left").read_text().split() == [DCGM, *FOREIGN]


def test_what_a_removal_has_stopped_is_read_with_what_is_not_enabled(node: Path) -> None:
    (node / "left").write_text(f"{DCGM}\n{FOREIGN[0]}\n")
    (node / "disabled" / DCGM).touch()
    live = LiveMigQuery()
    text = live.script().replace(LEFT_PATH, "left")
    done = subprocess.run(
        ["sh", "-c", f"PROC=proc SYS=sys\n{SYSTEMCTL}set +e\n{text}"],
        cwd=node,
        capture_output=True,
        check=True,
    )
    found = live.parse(Answer(0, done.stdout)).left_stopped
    assert found == (f"{DCGM} (not enabled)", FOREIGN[0])


def test_what_systemd_has_lost_of_a_service_ends_and_nothing_else(node: Path) -> None:
    (node / "run" / DCGM).unlink()
    lost, job, served = (subprocess.Popen(["sleep", "60"]) for _ in range(3))
    rows = {lost.pid: DCGM, job.pid: "train.service", served.pid: DAEMON}
    lines = "\n".join(
        f"[ ! -d /proc/{pid} ] || [ \"$(sed -n 's/^State:.//p' /proc/{pid}/status | cut -c 1)\" = Z ] || echo '{pid}|sleep|{unit}'"
        for pid, unit in rows.items()
    )
    text = scripts._UNLOAD.replace(scripts.STOPPED_PATH, "stopped").replace(
        scripts.LEFT_PATH, "left"
    )
    try:
        subprocess.run(
            [
                "sh",
                "-c",
                f"{SYSTEMCTL}{text}\nholders() {{ {lines}\n:\n}}\nsleep() {{ :; }}\nend_leftovers",
            ],
            cwd=node,
            check=True,
        )
        assert (lost.wait(10), job.poll(), served.poll()) == (-15, None, None)
    finally:
        for process in (lost, job, served):
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    ("known", "active", "reloads"), [("b", "", True), ("a", "", False), ("b", "yes", False)]
)
def test_systemd_reloads_before_a_unit_starts_whose_alias_it_has_as_another_unit(
    tmp_path: Path, known: str, active: str, reloads: bool
) -> None:
    unit = tmp_path / "a.service"
    unit.write_text("[Install]\nAlias=b.service\n")
    stub = f"""
effect() {{ :; }}
systemctl() {{
  case "$*" in
  *is-active*) [ -n '{active}' ] ;;
  *FragmentPath*) echo {unit} ;;
  *Id*) echo {known}.service ;;
  *) echo "$*" >>{tmp_path}/calls ;;
  esac
}}
set -e
"""
    subprocess.run(["sh", "-c", stub + EnableUnit("a.service").script()], check=True)
    calls = (tmp_path / "calls").read_text().splitlines()
    wanted = ["--no-reload enable a.service", *["daemon-reload"] * reloads, "start a.service"]
    assert calls == wanted
