"""Steps about systemd units.

Sources:
    systemctl(1): without systemd at work units can be enabled and disabled, and nothing else.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import ClassVar

from gpustate import shell
from gpustate.core.step import Step
from gpustate.formats.unit_log import TELLING, UNIT_SAYS

_q, _words = shlex.quote, shlex.join


def journal_command(unit: str) -> str:
    """What shows why a unit does not run."""
    return f"systemctl status --no-pager {_q(unit)}; journalctl --no-pager -n 50 -u {_q(unit)}"


def _says(unit: str, problem: str) -> str:
    """Print what is wrong with a unit, with the line of it that tells why; then the end of what it said."""
    text = shell.load("unit_failed", "gpustate.ops")
    return UNIT_SAYS + shell.fill(
        text, TELLING=TELLING, UNIT=_q(unit), WHAT=_q(f"{unit} {problem}")
    )


@dataclass(frozen=True, slots=True)
class DaemonReload(Step):
    """Let systemd read its unit files again. Mind running GPU containers: see the containerd state."""

    @property
    def label(self) -> str:
        return "systemctl daemon-reload"

    @property
    def in_image(self) -> Step | None:
        return None

    @property
    def command(self) -> str:
        return "systemctl daemon-reload"

    @property
    def inspect(self) -> str:
        return "systemctl --no-pager --failed; journalctl --no-pager -n 30 -t systemd"

    def script(self) -> str:
        return "systemd_reload"


@dataclass(frozen=True, slots=True)
class _UnitStep(Step):
    """Starts a unit."""

    unit: str

    @property
    def starts(self) -> tuple[str, ...]:
        return (self.unit,)

    @property
    def inspect(self) -> str:
        return journal_command(self.unit)


@dataclass(frozen=True, slots=True)
class EnableUnit(_UnitStep):
    """Enable a unit for boot, and with ``now`` start it, too. Makes no daemon-reload."""

    now: bool = True

    @property
    def label(self) -> str:
        return f"enable {'and start ' if self.now else ''}{self.unit}"

    @property
    def in_image(self) -> Step | None:
        return EnableUnit(self.unit, now=False)

    @property
    def at_first_boot(self) -> Step | None:
        return StartUnit(self.unit) if self.now else None

    @property
    def command(self) -> str:
        return f"systemctl enable {'--now ' if self.now else ''}{_q(self.unit)}"

    def script(self) -> str:
        start = f"systemctl start {_q(self.unit)}\n" if self.now else ""
        enable = shell.load("enable_unit", "gpustate.ops", UNIT=self.unit)
        return f"{enable}{start}effect enabled"


@dataclass(frozen=True, slots=True)
class StartUnit(_UnitStep):
    """See to it that a unit runs; one that does already is left alone.

    Args:
        unit: the unit.
        healthy: sh fragment that succeeds once it works; ``is-active`` when empty.
        wait_s: how long it may take to be healthy.
    """

    for_running: ClassVar[bool] = True

    healthy: str = ""
    wait_s: int = 30

    @property
    def label(self) -> str:
        return f"start {self.unit}"

    @property
    def timeout_s(self) -> int:
        return self.wait_s + 120

    @property
    def command(self) -> str:
        return f"systemctl start {_q(self.unit)}"

    def script(self) -> str:
        unit = _q(self.unit)
        check = self.healthy or f"systemctl is-active --quiet {unit}"
        return (
            "healthy() { " + check + "\n}\n"
            f"systemctl reset-failed {unit} 2>/dev/null || :\n"
            f"if systemctl start {unit} && wait_for {self.wait_s} healthy; then effect started; exit 0; fi\n"
            f"{_says(self.unit, 'does not run')}exit 1"
        )


@dataclass(frozen=True, slots=True)
class DisableUnit(Step):
    """Stop a unit and keep it from starting at boot; nothing to do when it does not exist."""

    unit: str

    @property
    def label(self) -> str:
        return f"stop and disable {self.unit}"

    @property
    def command(self) -> str:
        return f"systemctl disable --now {_q(self.unit)}"

    @property
    def inspect(self) -> str:
        return f"systemctl status --no-pager {_q(self.unit)}"

    def script(self) -> str:
        return shell.fill(shell.load("disable_unit", "gpustate.ops"), UNIT=_q(self.unit))


@dataclass(frozen=True, slots=True)
class RestartUnit(_UnitStep):
    """Restart a service through systemd, and put files back when it does not come up again.

    Args:
        unit: the service.
        healthy: sh fragment that succeeds once the service works; ``is-active`` when empty.
        roll_back: files that are put back as they were before this run when it does not; the
            service is then restarted once more and the step fails.
        wait_s: how long it may take to be healthy.
        verb: ``reload`` where the service rereads its files without a restart.
    """

    for_running: ClassVar[bool] = True

    healthy: str = ""
    roll_back: tuple[str, ...] = ()
    wait_s: int = 30
    verb: str = "restart"

    @property
    def label(self) -> str:
        return f"{self.verb} {self.unit}"

    @property
    def at_first_boot(self) -> Step | None:
        # The boot has started it with what it is to read.
        return StartUnit(self.unit, self.healthy, self.wait_s)

    @property
    def timeout_s(self) -> int:
        return 2 * self.wait_s + 240

    @property
    def command(self) -> str:
        return f"systemctl {self.verb} {_q(self.unit)}"

    def script(self) -> str:
        unit = _q(self.unit)
        check = self.healthy or f"systemctl is-active --quiet {unit}"
        lines = [
            "healthy() { " + check + "\n}",
            # Three restarts within seconds may exhaust the start limit of the unit.
            f"systemctl reset-failed {unit} 2>/dev/null || :",
            f"if systemctl {self.verb} {unit} && wait_for {self.wait_s} healthy; then effect {self.verb}ed; exit 0; fi",
            _says(self.unit, "did not come up"),
        ]
        if self.roll_back:
            lines += [
                f"BACK=1; roll_back {_words(self.roll_back)}",
                f"systemctl reset-failed {unit} 2>/dev/null || :",
                f"systemctl {self.verb} {unit} && wait_for {self.wait_s} healthy "
                f"&& echo {_q(f'rolled back; {self.unit} runs with its previous configuration')} "
                f"|| {{ systemctl is-active --quiet {unit} && echo "
                f"{_q(f'rolled back; {self.unit} is active but still unhealthy')}; }} "
                f"|| echo {_q(f'rolled back; {self.unit} is still not active')}",
            ]
        return "\n".join([*lines, "exit 1"])
