"""Causes that lie with systemd: a service is masked, or was stopped and is started by nobody.

Where something is broken for want of a service, a masked one is the cause by itself: nothing starts it, no
apply either. A service that is masked and missed by nobody is not accused, for somebody wanted it so. An
exporter that is to start at boot and does not run is: a node whose numbers nobody reads looks healthy.

Surprising: a service whose condition is not met is inactive and enabled too, and that is how it is meant.

Sources:
    systemctl(1), mask; systemd.unit(5), conditions; org.freedesktop.systemd1: ConditionResult.
"""

from __future__ import annotations

from collections.abc import Callable

from gpustate.explain import gpus
from gpustate.explain.causes import Cause, View
from gpustate.explain.clues import Unit

#: Exporters of metrics and their engine: unit, name of the cause, state that has the unit started.
EXPORTERS = (
    ("nvidia-dcgm-exporter", "exporter-stopped", "dcgm-exporter"),
    ("nvidia-dcgm", "dcgm-stopped", "dcgm"),
    ("dcgm-exporter", "other-exporter-stopped", ""),
)


def is_masked(unit: Unit) -> bool:
    """Nothing can start it, and it does not run."""
    return unit.masked and unit.active != "active"


def _masked(
    name: str, link: str, missed: Callable[[View], str], then: str, *, explains: bool = True
) -> Cause:
    def look(view: View) -> str:
        why = missed(view) if is_masked(view.clues.unit(name)) else ""
        return f"{name} is masked, so that nothing starts it; {why}" if why else ""

    short = {"nvidia-fabricmanager": "fabric-manager"}.get(name, name)
    return Cause(
        f"{short}-masked", link, look, f"systemctl unmask {name}, {then}", explains=explains
    )


def _switches_miss_it(view: View) -> str:
    if not gpus.needs_manager(view):
        return ""
    return view.broken or "there are NVSwitches, and nothing proves that their fabric is up"


def _containerd_down(view: View) -> str:
    return view.broken if "is not running" in view.broken else ""


def _kubernetes_misses_it(view: View) -> str:
    why = view.clues.not_ready() if view.clues.has("kubelet_folder") else ""
    others = ("k3s", "k3s-agent", "rke2-server", "rke2-agent")
    if not why or any(view.clues.unit(name).active == "active" for name in others):
        return ""
    return f"Kubernetes holds the node for not ready: {why}"


def _slurm_misses_it(view: View) -> str:
    row = view.clues.one("slurm")
    down = any(word in row for word in ("State=DOWN", "NOT_RESPONDING"))
    return "Slurm gets no answer from the node" if down else ""


def _stopped(name: str) -> Callable[[View], str]:
    def look(view: View) -> str:
        unit = view.clues.unit(name)
        to_run = unit.enabled in ("enabled", "enabled-runtime") and not unit.skipped
        if not unit.exists or not to_run or unit.active != "inactive" or is_masked(unit):
            return ""
        return f"{name} is enabled and does not run: it was stopped, or has ended"

    return look


def _start(name: str, state: str) -> str:
    by_hand = f"systemctl start {name}; journalctl -u {name} says why it does not run"
    return f"gpustate apply with the state {state}, or {by_hand}" if state else by_hand


CAUSES = (
    _masked("nvidia-fabricmanager", "fabric", _switches_miss_it,
            "then gpustate apply with the state fabric-manager, which starts it", explains=False),
    _masked("nvlsm", "fabric", _switches_miss_it, "then start it, and nvidia-fabricmanager after it", explains=False),
    _masked("containerd", "runtime", _containerd_down, "then systemctl enable --now containerd"),
    _masked("kubelet", "scheduler", _kubernetes_misses_it, "then systemctl enable --now kubelet", explains=False),
    _masked("slurmd", "scheduler", _slurm_misses_it, "then systemctl enable --now slurmd", explains=False),
    *(Cause(cause, "metrics", _stopped(unit), _start(unit, state), state=state, explains=False)
      for unit, cause, state in EXPORTERS),
)  # fmt: skip
