"""Rebooting a node. It is back when it answers with another boot id."""

from __future__ import annotations

import shlex
import time

from gpustate.errors import ConnectionFailed, ProbeError, StepFailed
from gpustate.remote.session import Session

#: Reads ``why``. logind writes it into the journal and to every terminal.
_REBOOT = (
    'logger -t gpustate "$why"\nsync\n'
    '(sleep 0.5; systemctl reboot --message="$why" || systemctl reboot || reboot) >/dev/null 2>&1 &\nexit 0'
)
#: sh that waits until the boot has finished, before the first probe.
BOOTED = "timeout 120 systemctl is-system-running --wait"


def restart(session: Session, boot_id: str, timeout_s: int, why: str) -> None:
    """Reboot a node and wait until it answers with another boot id.

    Args:
        session: connected; connected again when this returns.
        boot_id: before the reboot.
        timeout_s: limit until it answers again.
        why: who reboots it, in which run and for what; for its log and its users.

    Raises:
        StepFailed: it is the machine gpustate itself runs on.
        ConnectionFailed: it did not come back in time.
    """
    if session.node.connection.kind == "local":
        raise StepFailed(
            "gpustate does not reboot the machine it runs on",
            fix="reboot it yourself, then run the same command again",
        )
    if session.node.connection.kind != "ssh":
        raise StepFailed(
            "a container cannot be rebooted from inside",
            fix="restart it, then run the same command again",
        )
    deadline = time.monotonic() + timeout_s
    try:
        session.shell(f"why={shlex.quote(' '.join(why.split()))}\n{_REBOOT}")
    except (ConnectionFailed, ProbeError):
        pass  # it may go down before it answers
    session.wait_closed(60.0)
    session.close()
    last = "it has not answered yet"
    while time.monotonic() < deadline:
        try:
            session.connect()
            answer = session.shell("cat /proc/sys/kernel/random/boot_id", timeout_s=20)
            if answer.text.strip() not in ("", boot_id):
                return
            last = "it answers, but has not rebooted yet"
        except (ConnectionFailed, ProbeError) as error:
            last = error.message
        session.close()
        time.sleep(1.0)
    raise ConnectionFailed(
        f"it did not come back from a reboot within {timeout_s} s ({last})",
        fix="check its console; once it is up, run the same command again",
    )
