"""Causes at the links ``device-plugin``, ``scheduler`` and ``metrics``: what stands between a good GPU and a job.

A link is looked at only where somebody wants it: a node without the device plugin, or with a kubelet that
nobody told of GPUs, is not accused of lacking it.

Sources:
    kubernetes/kubernetes, pkg/kubelet/cm/devicemanager (sockets, checkpoint); k8s-device-plugin#170, #414
    (never registers), #111 (unhealthy for good), #1433 (keys in the wrong place); mig-parted#485, #368;
    NVIDIA/gpu-operator#2509 (upgrades), #304 (cordons), troubleshooting (R570 and mixed MIG);
    dcgm-exporter#330; slurm.conf(5), scontrol(1): node states and reasons.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from gpustate.diagnosis import chain
from gpustate.errors import GpustateError
from gpustate.explain import services
from gpustate.explain.causes import Cause, View, numbers, some
from gpustate.explain.clues import Unit
from gpustate.formats import deviceplugin
from gpustate.formats.numbers import whole
from gpustate.probes import listeners

_GPU = "nvidia.com/gpu"
_CONFIG = "/etc/nvidia-device-plugin/config.yaml"
_FIRST_BAD, _LAST_BAD = (570, 124, 6), (570, 158, 1)
_UPGRADE = "nvidia.com/gpu-driver-upgrade-state"
_REPLICAS = re.compile(r"^[ \t-]*replicas[ \t]*:[ \t]*(\d{1,3})[ \t]*$", re.MULTILINE)


def wants_plugin(view: View) -> bool:
    """Something on this node or in its Node object asks for NVIDIA's device plugin."""
    clues = view.clues
    return bool(
        clues.all("plugin_pod")
        or [name for name in clues.registered or {} if name.startswith("nvidia.com/")]
        or clues.resources()
        or clues.labels().get("nvidia.com/gpu.deploy.device-plugin") == "true"
    )


def check_plugin(view: View) -> chain.Check:
    """The device plugin, as far as the kubelet knows it."""
    if not view.clues.has("kubelet_folder") or not wants_plugin(view):
        return chain.Check(
            "device-plugin", chain.NOT_APPLICABLE, "no device plugin is asked for here"
        )
    known = view.clues.registered
    found = ", ".join(
        f"{len(ids)} of {name}"
        for name, ids in (known or {}).items()
        if name.startswith("nvidia.com/")
    )
    return chain.Check(
        "device-plugin", chain.OK, f"registered with the kubelet: {found or 'its socket'}"
    )


def check_scheduler(view: View) -> chain.Check:
    """Kubernetes and Slurm, where either can be asked."""
    told: list[str] = []
    if view.clues.node is not None:
        told += [
            f"{view.clues.quantity('allocatable', name)} of {name}"
            for name in view.clues.resources()
        ] or ["Kubernetes lists no GPU of it"]
    if view.clues.one("slurm"):
        told.append(f"Slurm says {_slurm(view, 'State')}")
    if not told:
        return chain.Check("scheduler", chain.NOT_APPLICABLE, "no scheduler can be asked from here")
    return chain.Check("scheduler", chain.OK, "; ".join(told))


def check_metrics(view: View) -> chain.Check:
    """The exporter of metrics, where one is a service of this node."""
    names = [name for name, _, _ in services.EXPORTERS]
    active = [name for name in names if view.clues.unit(name).active == "active"]
    masked = [name for name in names if services.is_masked(view.clues.unit(name))]
    if not active:
        why = f"{masked[0]} is masked" if masked else "no exporter is a service of this node"
        return chain.Check("metrics", chain.NOT_APPLICABLE, why)
    return chain.Check("metrics", chain.OK, f"{', '.join(active)} runs")


# --- kubelet and device plugin -------------------------------------------------------------------


def _kubelet(view: View) -> str:
    unit = view.clues.unit("kubelet")
    if not view.clues.has("kubelet_folder") or unit.enabled in ("", "disabled", "masked"):
        return ""
    if not unit.failed and unit.active in ("", "active", "activating", "reloading"):
        return ""
    if unit.active == "inactive" and not unit.failed:
        return "the kubelet is inactive: it was stopped"
    return f"the kubelet is {unit.active}" + (f": {unit.why}" if unit.why else "")


def _kubelet_by_mig(view: View) -> str:
    found = _kubelet(view)
    hooks = view.clues.all("mig_hook")
    return f"{found}; a hook of the MIG manager stops it: {hooks[0]}" if found and hooks else ""


def _sockets(view: View) -> list[str]:
    names = [path.rpartition("/")[2] for path, _ in view.clues.fields("socket", 2)]
    return [name for name in names if name.startswith("nvidia")]


def _asked(view: View) -> bool:
    return check_plugin(view).outcome == chain.OK


def _not_running(view: View) -> str:
    if not _asked(view) or _sockets(view):
        return ""
    said = view.clues.all("plugin_log")
    return "the device plugin has no socket below /var/lib/kubelet/device-plugins" + (
        f"; it said: {said[-1]}" if said else ""
    )


def _not_registered(view: View) -> str:
    known = view.clues.registered
    if not _asked(view) or known is None or not _sockets(view):
        return ""
    if any(ids for name, ids in known.items() if name.startswith("nvidia.com/")):
        return ""
    return f"{_sockets(view)[0]} is there, and the kubelet knows of no GPU: the plugin did not register"


def _physical(ids: tuple[str, ...]) -> set[str]:
    """Devices without the mark of a replica (GPU-...::3)."""
    return {one.partition("::")[0] for one in ids}


def _too_few(view: View) -> str:
    ids = (view.clues.registered or {}).get(_GPU, ())
    whole_gpus = {
        gpu.uuid
        for gpu in view.observed.nvml.gpus
        if not gpu.mig_current and gpu.error is None and not view.observed.held(gpu)
    }
    missing = sorted(whole_gpus - _physical(ids))
    if not ids or not missing or not all(one.startswith("GPU-") for one in ids):
        return ""
    return f"NVML answers for {some(missing)}, and the device plugin did not tell the kubelet of it"


def _sharing(view: View) -> str:
    text = "\n".join(view.clues.all("plugin_config"))
    ids = (view.clues.registered or {}).get(_GPU, ())
    wanted = max((int(one) for one in _REPLICAS.findall(text)), default=1)
    if wanted < 2 or not ids or len(ids) != len(_physical(ids)):
        return ""
    less = f"{len(ids)} of {_GPU} are offered, not {wanted} times as many"
    try:
        config = deviceplugin.read(text, _CONFIG)
    except GpustateError as error:
        return f"{less}: {error}"
    if config.warnings:
        return f"{less}: {config.warnings[0]}"
    if config.sharing.replicas(_GPU) < 2 or config.sharing.renamed:
        return ""
    return f"{_CONFIG} shares each GPU {wanted} times, and the kubelet was told of {len(ids)}"


def _sharing_misread(view: View) -> str:
    found = _sharing(view)
    return found if "not " in found and "times as many" in found else ""


# --- scheduler -----------------------------------------------------------------------------------


def _not_ready(view: View) -> str:
    why = view.clues.not_ready()
    return f"Kubernetes holds the node for not ready: {why}" if why else ""


def _unhealthy(view: View) -> str:
    nvml = view.observed.nvml
    if nvml.error is not None or any(
        g.error is not None or view.observed.held(g) for g in nvml.gpus
    ):
        return ""
    rows = [
        (name, view.clues.quantity("capacity", name), view.clues.quantity("allocatable", name))
        for name in view.clues.resources()
    ]
    short = [f"{have} of {all_} {name}" for name, all_, have in rows if all_ and (have or 0) < all_]
    if not short:
        return ""
    return f"NVML answers for every GPU, and Kubernetes may give out only {some(short)}"


def _no_resource(view: View) -> str:
    if view.clues.node is None or not wants_plugin(view) or not view.gpu_count:
        return ""
    if any(view.clues.quantity("capacity", name) for name in view.clues.resources()):
        return ""
    return f"NVML answers for {view.gpu_count} GPUs, and Kubernetes lists none"


def _mig_manager(view: View) -> str:
    labels = view.clues.labels()
    state = labels.get("nvidia.com/mig.config.state", "")
    paused = sorted(key for key, value in labels.items() if value == "paused-for-mig-change")
    if state == "failed" or (state in ("pending", "rebooting") and paused):
        return (
            f"mig.config.state is {state} (wanted: {labels.get('nvidia.com/mig.config', 'nothing')})"
            + (f"; left paused: {some(paused)}" if paused else "")
        )
    return ""


def _upgrade(view: View) -> str:
    state = view.clues.labels().get(_UPGRADE, "")
    if state in ("", "upgrade-done") or not (view.clues.cordoned or state == "upgrade-failed"):
        return ""
    return f"{_UPGRADE} is {state}" + (", and the node is cordoned" if view.clues.cordoned else "")


def _cordoned(view: View) -> str:
    return (
        f"the node is cordoned ({some(view.clues.taints()) or 'no taint'})"
        if view.clues.cordoned
        else ""
    )


def _known_bad(view: View) -> str:
    loaded = numbers(view.observed.loaded)
    mig = [gpu.mig_current for gpu in view.observed.nvml.gpus if gpu.mig_current is not None]
    mixed = any(name.startswith("nvidia.com/mig-") for name in view.clues.resources())
    if not (_FIRST_BAD <= loaded <= _LAST_BAD) or not mixed or len(set(mig)) < 2:
        return ""
    return f"driver {view.observed.loaded} with MIG strategy mixed and whole GPUs beside MIG devices: pods cannot be placed"


def _labels_stale(view: View) -> str:
    return _miscounted(
        view, [value for key, value in view.clues.fields("label", 2) if key == "gpu.count"]
    )


def _labels_stale_in_kubernetes(view: View) -> str:
    return _miscounted(view, [view.clues.labels().get("nvidia.com/gpu.count", "")])


def _miscounted(view: View, said: list[str]) -> str:
    gpus = view.observed.nvml.gpus
    count = len(gpus)
    # gpustate's own labels leave those in quarantine out, NVIDIA's do not.
    right = {count, sum(not view.observed.held(gpu) for gpu in gpus)}
    wrong = [value for value in said if value and whole(value) not in right]
    if not wrong or not count:
        return ""
    return f"the label nvidia.com/gpu.count says {wrong[0]}, and NVML sees {count} GPUs"


def _labels_missing(view: View) -> str:
    labels = view.clues.labels()
    wanted = labels.get("nvidia.com/gpu.deploy.gpu-feature-discovery") == "true"
    if not wanted or "nvidia.com/gpu.product" in labels or not view.gpu_count:
        return ""
    return "GPU feature discovery is asked for, and the node has no label nvidia.com/gpu.product"


def _slurm(view: View, key: str) -> str:
    row = view.clues.one("slurm")
    found = re.search(rf"(?:^| ){key}=(.*?)(?= [A-Za-z]+=|$)", row)
    return found[1].strip() if found else ""


def _slurm_gres(view: View) -> str:
    reason = _slurm(view, "Reason")
    return f"Slurm says {_slurm(view, 'State')}: {reason}" if "gres/gpu" in reason else ""


def _slurm_away(view: View) -> str:
    state = _slurm(view, "State")
    if not any(word in state for word in ("DRAIN", "DOWN", "FAIL", "INVAL", "NOT_RESPONDING")):
        return ""
    return f"Slurm says {state}: {_slurm(view, 'Reason') or 'no reason given'}"


def _slurmd(view: View) -> str:
    unit = view.clues.unit("slurmd")
    return f"slurmd failed: {unit.why or 'see journalctl -u slurmd'}" if unit.failed else ""


# --- metrics -------------------------------------------------------------------------------------


def _metrics(view: View) -> list[Unit]:
    return [view.clues.unit(name) for name, _, _ in services.EXPORTERS]


def _host_engines(view: View) -> str:
    rows = [row for row in view.clues.all("process") if "nv-hostengine" in row]
    failed = next((unit for unit in _metrics(view) if unit.failed), None)
    taken = failed is not None and "in use" in failed.why.lower() and not _taken(view)
    if len(rows) < 2 and not (rows and taken):
        return ""
    more = f"; {failed.failure}" if failed else ""
    return f"{len(rows)} DCGM host engines run: {some(rows)}{more}"


def _taken(view: View) -> str:
    for name, port, row in view.clues.fields("taken", 3):
        by = listeners.who(row)
        return f"{view.clues.unit(name).failure}; port {port}, on which it is to answer, is taken by {by}"
    return ""


def _exporter(view: View) -> str:
    return next((unit.failure for unit in _metrics(view) if unit.failed), "")


def _own(
    name: str, link: str, look: Callable[[View], str], remedy: str, *threads: str, state: str = ""
) -> Cause:
    return Cause(name, link, look, remedy, threads, state, explains=False)


_PLUGIN, _SCHEDULER = "device-plugin", "scheduler"
CAUSES = (
    _own("kubelet-stopped-by-mig-manager", _PLUGIN, _kubelet_by_mig,
         "start the kubelet, and take it out of the MIG manager's hooks: the GPU's clients are all that must stop",
         "NVIDIA/mig-parted#368"),
    _own("kubelet-down", _PLUGIN, _kubelet, "start it, once what it names is fixed: systemctl start kubelet"),
    _own("device-plugin-not-running", _PLUGIN, _not_running,
         "look at the plugin's pod on this node (kubectl describe pod); it starts once the links before hold",
         "NVIDIA/k8s-device-plugin#414", "NVIDIA/k8s-device-plugin#58"),
    _own("device-plugin-not-registered", _PLUGIN, _not_registered,
         "restart the plugin's pod, after the kubelet: kubectl delete pod", "NVIDIA/k8s-device-plugin#170", "kubernetes/kubernetes#116125"),
    _own("sharing-in-the-wrong-place", _PLUGIN, _sharing_misread,
         "fix the file: the plugin leaves out keys it does not know without a word",
         "NVIDIA/k8s-device-plugin#1433", "NVIDIA/k8s-device-plugin#364", state="device-plugin-config"),
    _own("sharing-not-applied", _PLUGIN, _sharing, "restart the plugin's pod: it reads its file at its start",
         "NVIDIA/gpu-operator#1144"),
    _own("device-plugin-lacks-gpus", _PLUGIN, _too_few, "restart the plugin's pod: it looks for GPUs at its start",
         "NVIDIA/k8s-device-plugin#82"),
    _own("mig-manager-stuck", _SCHEDULER, _mig_manager,
         "put the paused labels back to true and set nvidia.com/mig.config again; gpustate mig plan shows what differs",
         "NVIDIA/mig-parted#485", "NVIDIA/gpu-operator#2833"),
    _own("operator-upgrade-stuck", _SCHEDULER, _upgrade,
         "fix what the links before name, or end the Operator's upgrade; gpustate leaves such a node alone",
         "NVIDIA/gpu-operator#2509", "NVIDIA/gpu-operator#2166"),
    _own("node-not-ready", _SCHEDULER, _not_ready, "fix what the kubelet names"),
    _own("driver-known-bad-with-mixed-mig", _SCHEDULER, _known_bad,
         "take 570.86.15 or a newer branch: name it (version or branch) in the state driver",
         "NVIDIA/gpu-operator#1361"),
    _own("gpus-kept-unhealthy", _SCHEDULER, _unhealthy,
         "restart the plugin's pod once the GPU was reset: it never takes a GPU back by itself",
         "NVIDIA/k8s-device-plugin#111", "NVIDIA/k8s-device-plugin#189"),
    _own("no-gpu-resource", _SCHEDULER, _no_resource, "restart the plugin's pod, then look at its log",
         "NVIDIA/k8s-device-plugin#170"),
    _own("labels-stale", _SCHEDULER, _labels_stale,
         "write them anew: gpustate apply with the state gpu-labels, or restart GPU feature discovery",
         "NVIDIA/k8s-device-plugin#733", state="gpu-labels"),
    _own("node-labels-stale", _SCHEDULER, _labels_stale_in_kubernetes,
         "restart GPU feature discovery and NFD's worker on this node: they tell Kubernetes the labels", "NVIDIA/k8s-device-plugin#733"),
    _own("labels-missing", _SCHEDULER, _labels_missing, "restart GPU feature discovery on this node",
         "NVIDIA/gpu-feature-discovery#75"),
    _own("cordoned", _SCHEDULER, _cordoned, "ask who cordoned it; kubectl uncordon when nothing speaks against it",
         "NVIDIA/gpu-operator#304", "NVIDIA/gpu-operator#2820"),
    _own("slurm-misses-gpus", _SCHEDULER, _slurm_gres, "write gres.conf anew: gpustate apply with the state slurm-gres, then scontrol update nodename=NODE state=resume"),
    _own("slurmd-down", _SCHEDULER, _slurmd, "fix what it names and start it: systemctl status slurmd"),
    _own("slurm-drained", _SCHEDULER, _slurm_away, "fix what the reason names; then scontrol update nodename=NODE state=resume"),
    _own("two-dcgm-host-engines", "metrics", _host_engines, "leave one: an exporter of its own needs no nv-hostengine beside it",
         "NVIDIA/dcgm-exporter#330", "NVIDIA/dcgm-exporter#148"),
    _own("exporter-port-taken", "metrics", _taken,
         "stop that, then systemctl restart the exporter; or give it another port: listen of the state dcgm-exporter"),
    _own("exporter-failed", "metrics", _exporter, "fix what it names; gpustate dcgm check shows what the GPUs can report",
         "NVIDIA/dcgm-exporter#126"),
)  # fmt: skip
