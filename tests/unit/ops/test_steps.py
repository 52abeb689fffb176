"""Steps as scripts: what is data stays data."""

from __future__ import annotations

import subprocess
from pathlib import Path

from gpustate import ops
from gpustate.formats.unit_log import TELLING, UNIT_SAYS


def test_the_name_of_a_unit_is_never_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    unit = f"a'; touch {mark}; '.service"
    script = ops.RestartUnit(unit, roll_back=("/etc/x",)).script()
    stand_ins = "".join(
        f"{name}() {{ return 1; }}\n"
        for name in ("systemctl", "journalctl", "wait_for", "roll_back")
    )
    done = subprocess.run(["sh"], input=stand_ins + script, text=True, capture_output=True)
    assert done.returncode == 1
    assert f"{unit} did not come up" in done.stdout
    assert not mark.exists()


def test_a_unit_that_does_not_come_up_is_told_with_the_line_that_says_why(tmp_path: Path) -> None:
    journal = r"Starting x\nerror: an older one\nStarting x\nerror: no such file\nx.service: Failed with result\n"
    stand_ins = (
        "systemctl() { return 1; }\nwait_for() { return 1; }\nroll_back() { :; }\n"
        f"timeout() {{ shift 3; \"$@\"; }}\nR={tmp_path}\njournalctl() {{ printf '{journal}'; }}\n"
    )
    for step, told in (
        (ops.RestartUnit("x.service", roll_back=("/etc/x",)), "did not come up"),
        (ops.StartUnit("x.service"), "does not run"),
    ):
        done = subprocess.run(
            ["sh", "-eu"], input=stand_ins + step.script(), text=True, capture_output=True
        )
        assert done.returncode == 1
        assert done.stdout.startswith(f"x.service {told}: error: no such file\n")


def test_what_a_unit_writes_to_a_file_since_its_start_is_what_it_says(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("error: address already in use\n")
    for since, told in (("2001-01-01 00:00:00", log.read_text()), ("2999-01-01 00:00:00", "")):
        stand_ins = (
            'timeout() { shift 3; "$@"; }\njournalctl() { :; }\n'
            f"systemctl() {{ case $1 in cat) echo StandardOutput=append:{log} ;; *) echo '{since}' ;; esac; }}\n"
        )
        script = f"{stand_ins}{UNIT_SAYS}unit_says x.service"
        done = subprocess.run(["sh", "-eu"], input=script, text=True, capture_output=True)
        assert (done.returncode, done.stdout) == (0, told)


def test_the_own_log_of_a_daemon_tells_more_than_systemd(tmp_path: Path) -> None:
    log, config = tmp_path / "imex.log", tmp_path / "config.cfg"
    log.write_text("[INFO] nodes: 10.0.0.1\n[ERROR] no address of this node is listed\n")
    config.write_text(f"LOG_LEVEL=4\nLOG_FILE_NAME={log}\n")
    stand_ins = (
        'timeout() { shift 3; "$@"; }\n'
        "journalctl() { echo 'x.service: Control process exited, code=exited, status=1'; }\n"
        f"systemctl() {{ case \"$*\" in cat*) echo 'ExecStart=/usr/bin/nvidia-imex -c {config}' ;;\n"
        "  *InactiveExit*) echo '2001-01-01 00:00:00' ;; esac; }\n"
    )
    script = f"{stand_ins}{UNIT_SAYS}unit_says x.service | {TELLING}"
    done = subprocess.run(["sh", "-eu"], input=script, text=True, capture_output=True)
    assert (done.returncode, done.stdout) == (0, "[ERROR] no address of this node is listed\n")


def test_a_warning_tells_more_than_what_is_said_for_information() -> None:
    skipped = 'level=info msg="skip loading plugin" error="no btrfs"'
    warning = 'level=warning msg="failed to load plugin io.containerd.grpc.v1.cri"'
    nvml = "gpu/nvml"
    gone = "x.service: Main process exited, code=exited, status=1/FAILURE"
    for lines, told in (
        ((warning, skipped, gone), warning),
        (('{"level":"info","msg":"error"}', "error: gave up", skipped), "error: gave up"),
        ((skipped, gone), skipped),
        (
            (
                f"error: cannot find gpu plugin for {nvml}",
                f"error: cannot create gpu context for {nvml}",
                "error: slurmd initialization failed",
                gone,
            ),
            f"error: cannot find gpu plugin for {nvml}",
        ),
        ((skipped, "Started x.service", gone), gone),
        (("Starting x.service...", warning, skipped, "Started x.service"), warning),
        (("Starting x", "error: an older one", "Started x", "Started x", gone), gone),
    ):
        done = subprocess.run(
            ["sh", "-c", TELLING], input="\n".join(lines), text=True, capture_output=True
        )
        assert done.stdout == f"{told}\n"


def test_a_service_that_is_active_again_is_not_said_to_be_down(tmp_path: Path) -> None:
    stand_ins = f"R={tmp_path}\n" + "".join(
        f"{name}() {{ return 1; }}\n" for name in ("wait_for", "roll_back", "timeout")
    )
    for active, told in (
        ("true", "is active but still unhealthy"),
        ("false", "is still not active"),
    ):
        script = ops.RestartUnit("x.service", roll_back=("/etc/x",)).script()
        systemctl = f"systemctl() {{ [ $1 != is-active ] || {active}; }}\n"
        done = subprocess.run(
            ["sh"], input=stand_ins + systemctl + script, text=True, capture_output=True
        )
        assert done.returncode == 1
        assert told in done.stdout.splitlines()[-1]
