"""Causes that lie with systemd: a service is masked, or was stopped and is started by nobody.

Where something is broken for want of a service, a masked one is the cause by itself: nothing starts it, no
apply either. A service that is masked and missed by nobody is not accused, for somebody wanted it so. An
exporter that is to start at boot and does not run is: a node whose numbers nobody reads looks healthy.

systemd calls a service active whose process somebody has stopped with a signal, or that hangs, so both are looked at.

Surprising: a service whose condition is not met is inactive and enabled too, and that is how it is meant.

Sources:
    systemctl(1), mask; systemd.unit(5), conditions; org.freedesktop.systemd1: ConditionResult.
"""

from __future__ import annotations

from collections.abc import Callable

from gpustate.explain import gpus
from gpustate.explain.causes import Cause, View
from gpustate.explain.clues import Unit
from gpustate.explain.script import SILENT_S
from gpustate.formats import modprobe
from gpustate.ops.daemon_seen import halted

#: Exporters of metrics and their engine: unit, name of the cause, state that has the unit started.
EXPORTERS = (
    ("nvidia-dcgm-exporter", "exporter-stopped", "dcgm-exporter"),
    ("nvidia-dcgm", "dcgm-stopped", "dcgm"),
    ("dcgm-exporter", "other-exporter-stopped", ""),
)
_ANSWER = (
    ("nvidia-dcgm-exporter", "exporter-silent", "dcgm-exporter"),
    ("dcgm-exporter", "other-exporter-silent", ""),
)
_MPS = "gpustate-mps"
#: Services whose process may be stopped while systemd holds them for active: name of the cause, link, units.
_HALTED = (
    ("fabric-manager-halted", "fabric", ("nvidia-fabricmanager", "nvlsm", "nvidia-imex")),
    ("container-runtime-halted", "runtime", ("containerd", "docker", "crio")),
    (
        "scheduler-halted",
        "scheduler",
        ("kubelet", "k3s", "k3s-agent", "rke2-server", "rke2-agent", "slurmd"),
    ),
    ("mps-halted", "cuda", (_MPS,)),
    ("dcgm-halted", "metrics", tuple(unit for unit, _, _ in EXPORTERS)),
)
DROP_IN = "fix that drop-in or remove it, which no apply does; then systemctl daemon-reload, and restart the service"
_CONTINUE = "let that process go on, or restart the service; then ask who stopped it"


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


def _exporter_misses_it(view: View) -> str:
    if view.clues.has("no_engine"):
        return "the exporter asks it"
    return (
        "nvidia-dcgm-exporter, which is enabled, asks it"
        if view.clues.unit("nvidia-dcgm-exporter").missed
        else ""
    )


def _sharing(view: View) -> str:
    """The unit is gpustate's own, so somebody has asked for it."""
    unit = view.clues.unit(_MPS)
    if is_masked(unit):
        found = f"{_MPS} is masked, so that nothing starts it"
    else:
        found = "" if drop_in(view, _MPS) else unit.failure or _stopped(_MPS)(view)
    return f"{found}; processes share no GPU by MPS" if found else ""


def _moved(view: View) -> str:
    """A drop-in has the daemon make its pipes elsewhere than its unit says."""
    rows = dict(view.clues.fields("mps_pipes", 2))
    folder = rows.pop(f"/etc/systemd/system/{_MPS}.service", "")
    path, other = next(reversed(rows.items()), ("", folder))
    if other == folder:
        return ""
    return f"{path} has {_MPS} make its pipes in {other}, and jobs look for them in {folder}: none gets a GPU"


def _other_daemon(view: View) -> str:
    unit = view.clues.unit(_MPS)
    rows = [row for row in view.clues.all("process") if "nvidia-cuda-mps-control" in row]
    runs = unit.active in ("active", "activating", "reloading", "deactivating")
    if not unit.exists or len(rows) <= runs:
        return ""
    if runs:
        return f"{len(rows)} MPS control daemons run, and {_MPS} is one of them: {'; '.join(rows)}"
    return (
        f"{_MPS} does not run, and an MPS control daemon of somebody else does: {'; '.join(rows)}"
    )


def _stopped(name: str) -> Callable[[View], str]:
    def look(view: View) -> str:
        if not view.clues.unit(name).missed:
            return ""
        return f"{name} is enabled and does not run: it was stopped, or has ended"

    return look


def _imex_stopped(view: View) -> str:
    """Elsewhere it has nothing to serve, and an RPM enables it anyway."""
    return _stopped("nvidia-imex")(view) if gpus.on_rack(view) else ""


def _halted(*names: str) -> Callable[[View], str]:
    def look(view: View) -> str:
        for name, pid in view.clues.fields("halted", 2):
            if name in names:
                return halted(name, pid)
        return ""

    return look


def _drop_ins(view: View, name: str) -> list[tuple[str, str]]:
    """Path of each drop-in of somebody else that says what a service runs, and its line."""
    return [(path, line) for one, path, line in view.clues.fields("drop_in", 3) if one == name]


def _told(drop_ins: list[tuple[str, str]]) -> str:
    return "; ".join(f"{path} has {line}" for path, line in drop_ins)


def drop_in(view: View, name: str) -> str:
    """A service that fails, or runs nothing, and somebody else's drop-in that says what it runs; empty otherwise."""
    unit = view.clues.unit(name)
    rows = _drop_ins(view, name)
    nothing = any(modprobe.is_nothing(line.partition("=")[2]) for _, line in rows)
    ended = unit.active == "inactive" and unit.enabled == "enabled" and not unit.skipped
    if not rows or not (unit.failed or unit.hangs or (nothing and ended)):
        return ""
    said = f" ({unit.why})" if unit.why else ""
    return (
        f"{name} is {unit.active}{said}; a drop-in that is not gpustate's may be why: {_told(rows)}"
    )


def _manager_drop_in(view: View) -> str:
    return drop_in(view, "nvidia-fabricmanager") if gpus.needs_manager(view) else ""


def _runtime_drop_in(view: View) -> str:
    """One whose journal names a file of its configuration says itself what is wrong."""
    names = ("containerd", "docker", "crio")
    silent = (name for name in names if "/etc/" not in view.clues.unit(name).why)
    return next((one for one in (drop_in(view, name) for name in silent) if one), "")


def _dcgm_drop_in(view: View) -> str:
    found = (drop_in(view, name) for name, _, _ in EXPORTERS)
    return next((one for one in found if one), "")


def _silent(name: str) -> Callable[[View], str]:
    def look(view: View) -> str:
        for one, file in view.clues.fields("no_counters", 2):
            if one == name:
                return f"{name} runs with {file}, which names no field: it has nothing to tell"
        for one, where in view.clues.fields("silent", 2):
            if one == name:
                return f"{name} is active and hangs: http://{where}/metrics takes a request and does not answer in {SILENT_S} s"
        return ""

    return look


def _empty(view: View) -> str:
    for name, where in view.clues.fields("empty", 2):
        return f"{name} is active, and http://{where}/metrics has not one value of a GPU"
    return ""


def _without_engine(view: View) -> str:
    unit = view.clues.unit("nvidia-dcgm")
    why = ": the conditions of nvidia-dcgm are not met" if unit.skipped else ""
    if unit.active == "active":
        files = _told(_drop_ins(view, unit.name))
        why = f": nvidia-dcgm runs, and listens elsewhere{files and f'; {files}'}"
    for name, where in view.clues.fields("no_engine", 2):
        return f"{name} runs and asks the host engine at {where}, and nobody listens there{why}"
    return ""


def _mend(name: str, state: str) -> str:
    by_hand = f"name fields in its counters file if it has none, then systemctl restart {name}"
    return f"gpustate apply with the state {state}, or {by_hand}" if state else by_hand


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
    _masked("nvidia-dcgm", "metrics", _exporter_misses_it, "then gpustate apply with the state dcgm, which starts it", explains=False),
    Cause("mps-other-daemon", "cuda", _other_daemon,
          "stop the other: echo quit | CUDA_MPS_PIPE_DIRECTORY=ITS_FOLDER nvidia-cuda-mps-control; then gpustate apply with the state mps", explains=False),
    Cause("mps-pipes-moved", "cuda", _moved, f"{DROP_IN}; or name that folder with pipe_folder of the state mps", explains=False),
    Cause("mps-down", "cuda", _sharing,
          f"systemctl unmask {_MPS} where it is masked, fix what it names, then gpustate apply with the state mps", state="mps", explains=False),
    Cause("mps-drop-in", "cuda", lambda v: drop_in(v, _MPS), DROP_IN, explains=False),
    Cause("imex-stopped", "fabric", _imex_stopped, _start("nvidia-imex", "imex"), state="imex", explains=False),
    Cause("fabric-manager-drop-in", "fabric", _manager_drop_in, DROP_IN, explains=False),
    Cause("container-runtime-drop-in", "runtime", _runtime_drop_in, DROP_IN, explains=False),
    Cause("dcgm-drop-in", "metrics", _dcgm_drop_in, DROP_IN, explains=False),
    *(Cause(cause, "metrics", _stopped(unit), _start(unit, state), state=state, explains=False)
      for unit, cause, state in EXPORTERS),
    Cause("exporter-without-engine", "metrics", _without_engine,
          "start it: systemctl start nvidia-dcgm; systemctl status nvidia-dcgm says why it does not run; where it listens elsewhere, "
          "fix what says so, or engine of the state dcgm-exporter", explains=False),
    *(Cause(cause, link, _halted(*names), _CONTINUE, explains=False) for cause, link, names in _HALTED),
    *(Cause(cause, "metrics", _silent(unit), _mend(unit, state), state=state, explains=False)
      for unit, cause, state in _ANSWER),
    Cause("exporter-empty", "metrics", _empty,
          "gpustate dcgm check -i INVENTORY --scrape URL says which fields of which GPU are missing; then restart the exporter, and nvidia-dcgm before it",
          explains=False),
)  # fmt: skip
