"""What systemd knows of a container's devices, by what ``systemctl show`` prints of its unit."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from gpustate.nodeside import container_scope

GPU, CONTROL, UVM = (195, 0), (195, 255), (510, 0)
ALL = {GPU, CONTROL, UVM}
#: As runc 1.1.15 leaves it on Debian 13.
RUNC = (
    "DevicePolicy=strict\nDeviceAllow=char-pts rwm\nDeviceAllow=char-* m\nDeviceAllow=block-* m\n"
)
NAMED = "".join(f"DeviceAllow=/dev/char/{major}:{minor} rw\n" for major, minor in sorted(ALL))


@pytest.mark.parametrize(
    ("shown", "specified", "reads_names", "unknown"),
    [
        (RUNC + NAMED, ALL, True, set()),
        (RUNC + NAMED, ALL, False, ALL),  # systemd 239 without links
        (RUNC, ALL, True, ALL),  # runc 1.1.5 without links
        (RUNC, set(), True, ALL),  # NVIDIA's hook
        (RUNC + "DeviceAllow=char-* rwm\n", set(), True, set()),
        (RUNC + "DeviceAllow=char-195 rw\n", ALL, True, {UVM}),
        ("DevicePolicy=auto\n", set(), True, set()),  # a privileged container
        # crun on cgroup v2
        ("DevicePolicy=auto\nBPFProgram=device:/run/crun/bpf/x\n", ALL - {UVM}, True, {UVM}),
    ],
)
def test_devices_that_systemd_does_not_know_are_found(
    shown: str,
    specified: set[container_scope.Number],
    reads_names: bool,
    unknown: set[container_scope.Number],
) -> None:
    devices = container_scope.unknown(shown, ALL, specified, reads_names=reads_names)
    assert devices == unknown


def test_a_process_is_observed_once_it_waits_and_goes_on_then() -> None:
    program = (
        "import signal, subprocess, sys\n"
        "sys.stdin.readline()\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})\n"
        "signal.signal(signal.SIGUSR1, lambda number, frame: None)\n"
        "sys.exit(0 if signal.sigtimedwait({signal.SIGUSR1}, 60) else 1)\n"
    )
    argv = [sys.executable, "-c", program, f"--hold={time.monotonic_ns()}"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, text=True) as process:
        time.sleep(0.3)
        assert container_scope.ready(argv) is None
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        deadline = time.monotonic() + 60
        while (pid := container_scope.ready(argv)) is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert pid == process.pid
        container_scope.observe(pid, lambda words: "", reads_names=True)
        assert process.wait(60) == 0
