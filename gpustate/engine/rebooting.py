"""Rebooting a node: a barrier in its walk. Back is who answers with another boot id."""

from __future__ import annotations

import time

from gpustate.errors import ConnectionFailed, ProbeError, StepFailed
from gpustate.remote.session import Session

_REBOOT = "sync; (sleep 0.5; systemctl reboot || reboot) >/dev/null 2>&1 &\nexit 0"
#: sh that waits until what is started at boot has been started, before the first look.
BOOTED = "timeout 120 systemctl is-system-running --wait"


def restart(session: Session, boot_id: str, timeout_s: int) -> None:
    """Reboot a node and wait until it answers with another boot id.

    Args:
        session: connected; connected again when this returns.
        boot_id: the present one.
        timeout_s: how long it may take to come back.

    Raises:
        StepFailed: it is the machine gpustate itself runs on.
        ConnectionFailed: it did not come back in time.
    """
    if session.node.connection.kind == "local":
        raise StepFailed(
            "this is the machine gpustate runs on; it will not reboot itself",
            fix="reboot it and run again",
        )
    if session.node.connection.kind != "ssh":
        raise StepFailed("a container does not reboot itself", fix="restart it and run again")
    deadline = time.monotonic() + timeout_s
    try:
        session.shell(_REBOOT)
    except (ConnectionFailed, ProbeError):
        pass  # it may be gone before it answers
    session.wait_closed(60.0)
    session.close()
    last = "it has not answered yet"
    while time.monotonic() < deadline:
        try:
            session.connect()
            now = session.shell("cat /proc/sys/kernel/random/boot_id", timeout_s=20)
            if now.text.strip() not in ("", boot_id):
                return
            last = "it answers, and has not rebooted yet"
        except (ConnectionFailed, ProbeError) as error:
            last = error.message
        session.close()
        time.sleep(1.0)
    raise ConnectionFailed(
        f"it did not come back from a reboot within {timeout_s} s ({last})",
        fix="look at its console",
    )
