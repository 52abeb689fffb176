"""Causes with systemd services: a service is masked, stopped, or fails because of a drop-in.

If something fails for lack of a service, a masked one is the cause: neither systemd nor an apply can start it. A
masked service that nothing needs is intended. An enabled exporter that does not run is reported although
nothing fails: a node without metrics looks healthy.

systemd reports a service as active if its process hangs, so that is detected.

Surprising: a service whose condition is not met is inactive and enabled too, and that is intended.

Sources:
    systemctl(1), mask; systemd.unit(5), conditions; org.freedesktop.systemd1: ConditionResult.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from gpustate.diagnosis import chain
from gpustate.diagnosis import remedies as remedies
from gpustate.explain import gpus
from gpustate.explain.causes import Cause, View, evidence_with, is_missed, is_serving
from gpustate.explain.clues import Unit
from gpustate.explain.script import SILENT_S
from gpustate.formats import modprobe

#: Exporters of metrics and their engine: unit, name of the cause, state that starts the unit.
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
#: Container runtimes that are services of their own.
_RUNTIMES = ("containerd", "docker", "crio")


def drop_in_fix(name: str) -> str:
    """The fix for a drop-in of a service."""
    return f"fix or remove that foreign drop-in; then: systemctl daemon-reload && systemctl restart {name}"


def is_masked(unit: Unit) -> bool:
    """It is masked and does not run."""
    return unit.masked and unit.active != "active"


def _masked(
    name: str, link: str, needed: Callable[[View], str], next_step: str, *, explains: bool = True
) -> Cause:
    def detect(view: View) -> str:
        why = needed(view) if is_masked(view.clues.unit(name)) else ""
        return f"{name} is masked, so nothing can start it; {why}" if why else ""

    short = {"nvidia-fabricmanager": "fabric-manager"}.get(name, name)
    return Cause(
        f"{short}-masked",
        link,
        detect,
        f"unmask it: systemctl unmask {name}; {next_step}",
        explains=explains,
    )


def _needed_by_switches(view: View) -> str:
    if not gpus.needs_manager(view):
        return ""
    return view.broken or "the node has NVSwitches, and nothing shows that their fabric is up"


def _needed_by_kubernetes(view: View) -> str:
    why = view.clues.not_ready() if view.clues.has("kubelet_folder") else ""
    distributions = ("k3s", "k3s-agent", "rke2-server", "rke2-agent")
    if not why or any(view.clues.unit(name).active == "active" for name in distributions):
        return ""
    return f"Kubernetes reports the node as not ready: {why}"


def _needed_by_slurm(view: View) -> str:
    row = view.clues.first("slurm")
    down = any(word in row for word in ("State=DOWN", "NOT_RESPONDING"))
    return "Slurm gets no answer from the node" if down else ""


def _needed_by_exporter(view: View) -> str:
    if view.clues.has("no_engine"):
        return "the exporter depends on it"
    return (
        "nvidia-dcgm-exporter, which is enabled, depends on it"
        if view.clues.unit("nvidia-dcgm-exporter").missed
        else ""
    )


def _sharing(view: View) -> str:
    """The unit is gpustate's own, so it is intended."""
    unit = view.clues.unit(_MPS)
    if is_masked(unit):
        problem = f"{_MPS} is masked, so nothing can start it"
    else:
        problem = "" if drop_in(view, _MPS) else unit.failure or _stopped(_MPS)(view)
    return f"{problem}; processes cannot share GPUs by MPS" if problem else ""


def _other_pipe_folder(view: View) -> str:
    """A drop-in sets another folder for the daemon's pipes than its unit does."""
    rows = dict(view.clues.fields("mps_pipes", 2))
    folder = rows.pop(f"/etc/systemd/system/{_MPS}.service", "")
    path, actual = next(reversed(rows.items()), ("", folder))
    if actual == folder:
        return ""
    return (
        f"{path} moves the pipes of {_MPS} to {actual}; jobs expect them in {folder} and get no GPU"
    )


def _other_daemon(view: View) -> str:
    unit = view.clues.unit(_MPS)
    rows = gpus.mps_daemons(view)
    runs = unit.active in ("active", "activating", "reloading", "deactivating")
    if not unit.exists or len(rows) <= runs:
        return ""
    if runs:
        return f"{len(rows)} MPS control daemons run, {_MPS} among them: {'; '.join(rows)}"
    return f"{_MPS} does not run, and a foreign MPS control daemon does: {'; '.join(rows)}"


def _stopped(name: str) -> Callable[[View], str]:
    def detect(view: View) -> str:
        if not view.clues.unit(name).missed:
            return ""
        return f"{name} is enabled and does not run: it was stopped or has exited"

    return detect


def _imex_stopped(view: View) -> str:
    """Only on a rack: elsewhere it has nothing to do, and its RPM enables it anyway."""
    return _stopped("nvidia-imex")(view) if gpus.on_rack(view) else ""


def _drop_ins(view: View, name: str) -> list[tuple[str, str]]:
    """Foreign drop-ins that change the command of a service: path and line."""
    return [(path, line) for unit, path, line in view.clues.fields("drop_in", 3) if unit == name]


def _describe(drop_ins: list[tuple[str, str]]) -> str:
    return "; ".join(f"{path} has {line}" for path, line in drop_ins)


def drop_in(view: View, name: str) -> str:
    """A service that fails or has no command, and a foreign drop-in that changes its command; empty otherwise."""
    unit = view.clues.unit(name)
    rows = _drop_ins(view, name)
    nothing = any(modprobe.is_nothing(line.partition("=")[2]) for _, line in rows)
    ended = unit.active == "inactive" and unit.enabled == "enabled" and not unit.skipped
    if not rows or not (unit.failed or unit.hangs or (nothing and ended)):
        return ""
    reason = f" ({unit.why})" if unit.why else ""
    return (
        f"{name} is {unit.active}{reason}; a foreign drop-in may be the reason: {_describe(rows)}"
    )


def _runtime_drop_in(view: View, name: str) -> str:
    """A runtime whose journal names a configuration file has another cause."""
    fails = is_serving(view, name) or is_missed(view, name)
    return drop_in(view, name) if fails and "/etc/" not in view.clues.unit(name).why else ""


def _without_metrics(name: str) -> Callable[[View], str]:
    def detect(view: View) -> str:
        for unit, file in view.clues.fields("no_counters", 2):
            if unit == name:
                return f"{name} runs with {file}, which names no field: it exports no metrics"
        for unit, where in view.clues.fields("silent", 2):
            if unit == name:
                return f"{name} is active and hangs: http://{where}/metrics accepts a request and does not answer within {SILENT_S} s"
        return ""

    return detect


def _empty(view: View, unit: str) -> str:
    for name, where in view.clues.fields("empty", 2):
        if name == unit:
            return f"{name} is active, and http://{where}/metrics has no value of any GPU"
    return ""


def _without_engine(view: View) -> str:
    unit = view.clues.unit("nvidia-dcgm")
    why = ": the conditions of nvidia-dcgm are not met" if unit.skipped else ""
    if unit.active == "active":
        files = _describe(_drop_ins(view, unit.name))
        why = f": nvidia-dcgm runs and listens elsewhere{files and f'; {files}'}"
    for name, where in view.clues.fields("no_engine", 2):
        return f"{name} runs, but no host engine listens at {where}{why}"
    return ""


def _restart(name: str, state: str) -> str:
    by_hand = (
        f"add fields to its counters file if it has none, then restart it: systemctl restart {name}"
    )
    return f"{by_hand}; or apply (state {state}): {remedies.APPLY}" if state else by_hand


def _start(name: str, state: str) -> str:
    by_hand = f"start it: systemctl start {name}; if it exits again, find the reason: journalctl -u {name} -n 50"
    return f"{by_hand}; or apply (state {state}): {remedies.APPLY}" if state else by_hand


CAUSES = (
    _masked("nvidia-fabricmanager", "fabric", _needed_by_switches,
            remedies.by_apply("start it", "fabric-manager"), explains=False),
    _masked("nvlsm", "fabric", _needed_by_switches,
            "start it: systemctl start nvlsm && systemctl restart nvidia-fabricmanager", explains=False),
    _masked("containerd", "runtime", evidence_with(chain.STOPPED), "start it: systemctl enable --now containerd"),
    _masked("kubelet", "scheduler", _needed_by_kubernetes, "start it: systemctl enable --now kubelet", explains=False),
    _masked("slurmd", "scheduler", _needed_by_slurm, "start it: systemctl enable --now slurmd", explains=False),
    _masked("nvidia-dcgm", "metrics", _needed_by_exporter, remedies.by_apply("start it", "dcgm"),
            explains=False),
    Cause("mps-other-daemon", "cuda", _other_daemon,
          "stop the foreign one: echo quit | CUDA_MPS_PIPE_DIRECTORY=ITS_FOLDER nvidia-cuda-mps-control; "
          + remedies.by_apply("then apply", "mps"), explains=False),
    Cause("mps-pipes-moved", "cuda", _other_pipe_folder, f"{drop_in_fix(_MPS)}; or set that folder as pipe_folder of the state mps", explains=False),
    Cause("mps-down", "cuda", _sharing,
          remedies.by_apply(f"unmask it if it is masked (systemctl unmask {_MPS}), fix what the message names, then apply", "mps"),
          state="mps", explains=False),
    Cause("mps-drop-in", "cuda", lambda v: drop_in(v, _MPS), drop_in_fix(_MPS), explains=False),
    Cause("imex-stopped", "fabric", _imex_stopped, _start("nvidia-imex", "imex"), state="imex", explains=False),
    Cause("fabric-manager-drop-in", "fabric", lambda v: drop_in(v, "nvidia-fabricmanager") if gpus.needs_manager(v) else "",
          drop_in_fix("nvidia-fabricmanager"), explains=False),
    *(Cause("container-runtime-drop-in", "runtime", partial(_runtime_drop_in, name=name), drop_in_fix(name), explains=False)
      for name in _RUNTIMES),
    *(Cause("dcgm-drop-in", "metrics", partial(drop_in, name=name), drop_in_fix(name), explains=False)
      for name, _, _ in EXPORTERS),
    *(Cause(cause, "metrics", _stopped(unit), _start(unit, state), state=state, explains=False)
      for unit, cause, state in EXPORTERS),
    Cause("exporter-without-engine", "metrics", _without_engine,
          "start the engine: systemctl start nvidia-dcgm; if it listens at another address, set that address as engine "
          "of the state dcgm-exporter", explains=False),
    *(Cause(cause, "metrics", _without_metrics(unit), _restart(unit, state), state=state, explains=False)
      for unit, cause, state in _ANSWER),
    *(Cause("exporter-empty", "metrics", partial(_empty, unit=unit),
            f"restart engine and exporter: systemctl restart nvidia-dcgm {unit}; list the missing fields: "
            "gpustate node dcgm check -i INVENTORY --scrape URL", explains=False)
      for unit, _, _ in _ANSWER),
)  # fmt: skip
