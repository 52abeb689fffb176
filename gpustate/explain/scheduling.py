"""Causes at the checks ``device-plugin``, ``scheduler`` and ``metrics``: a healthy GPU does not reach jobs.

A check applies only if its component is expected: a node without the device plugin, or with a kubelet that
serves no GPUs, is not reported for lacking it.

Sources:
    kubernetes/kubernetes, pkg/kubelet/cm/devicemanager (sockets, checkpoint); k8s-device-plugin#170, #414
    (never registers), #111 (unhealthy for good), #1433 (keys in the wrong place); mig-parted#485, #368;
    NVIDIA/gpu-operator#2509 (upgrades), #304 (cordons), troubleshooting (R570 and mixed MIG);
    dcgm-exporter#330; slurm.conf(5), scontrol(1): node states and reasons.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import product

from gpustate.diagnosis import chain, health
from gpustate.diagnosis import remedies as remedies
from gpustate.errors import GpustateError
from gpustate.explain import services
from gpustate.explain.causes import Cause, View, numbers, some
from gpustate.explain.clues import Unit
from gpustate.formats import deviceplugin, slurm
from gpustate.formats.labels import gfd
from gpustate.probes import listeners
from gpustate.reconcile.placement import PLUGIN_LABEL, device_plugin_obstacle

_GPU = "nvidia.com/gpu"
_CONFIG = "/etc/nvidia-device-plugin/config.yaml"
_FIRST_BAD, _LAST_BAD = (570, 124, 6), (570, 158, 1)
_UPGRADE = "nvidia.com/gpu-driver-upgrade-state"
_NFD = "feature.node.kubernetes.io/"
_REPLICAS = re.compile(r"^[ \t-]*replicas[ \t]*:[ \t]*(\d{1,3})[ \t]*$", re.MULTILINE)


def wants_plugin(view: View) -> bool:
    """NVIDIA's device plugin is expected, by traces on the node or in its Node object; not beside the DRA driver."""
    clues = view.clues
    return not clues.has("slice") and bool(
        clues.all("plugin_pod")
        or [name for name in clues.registered or {} if name.startswith("nvidia.com/")]
        or [name for name in clues.resources() if clues.quantity("capacity", name)]
        or clues.labels().get(PLUGIN_LABEL, "false") != "false"
    )


def check_plugin(view: View) -> chain.Check:
    """Registration of the device plugin with the kubelet."""
    if not view.clues.has("kubelet_folder") or not wants_plugin(view):
        return chain.Check(
            "device-plugin", chain.NOT_APPLICABLE, "no device plugin is expected on this node"
        )
    registered = view.clues.registered
    offers = ", ".join(
        f"{len(ids)} of {name}"
        for name, ids in (registered or {}).items()
        if name.startswith("nvidia.com/")
    )
    return chain.Check(
        "device-plugin", chain.OK, f"registered with the kubelet: {offers or 'its socket'}"
    )


def check_discovery(view: View) -> chain.Check:
    """Node feature discovery's label for the GPUs, by which the GPU Operator selects Nodes."""
    gpus = [key for key in view.clues.labels() if key.startswith(f"{_NFD}pci-") and "10de" in key]
    if not gpus:
        evidence = "no label of node feature discovery for the GPUs can be read from this node"
        return chain.Check("discovery", chain.NOT_APPLICABLE, evidence)
    return chain.Check("discovery", chain.OK, f"node feature discovery sees the GPU: {gpus[0]}")


def check_scheduler(view: View) -> chain.Check:
    """GPUs in Kubernetes and Slurm, as far as they can be queried from the node."""
    parts: list[str] = []
    if view.clues.node is not None:
        parts += [
            f"{view.clues.quantity('allocatable', name)} of {name}" for name in _offered(view)
        ] or ["Kubernetes lists no GPUs"]
    if view.clues.first("slurm"):
        parts.append(f"Slurm state {_slurm(view, 'State')}")
        if "gpu" not in _slurm(view, "Gres"):
            parts.append(
                "Slurm has no GPUs on this node (the state slurm-gres tells what they need)"
            )
    if not parts:
        reason = "no scheduler can be queried from this node"
        return chain.Check("scheduler", chain.NOT_APPLICABLE, reason)
    return chain.Check("scheduler", chain.OK, "; ".join(parts))


def check_metrics(view: View) -> chain.Check:
    """The metrics exporter, if it is a service of this node."""
    names = [name for name, _, _ in services.EXPORTERS]
    active = [name for name in names if view.clues.unit(name).active == "active"]
    masked = [name for name in names if services.is_masked(view.clues.unit(name))]
    if not active:
        why = (
            f"{masked[0]} is masked" if masked else "no metrics exporter is a service of this node"
        )
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
    reason = _kubelet(view)
    hooks = view.clues.all("mig_hook")
    return f"{reason}; a hook of the MIG manager stops it: {hooks[0]}" if reason and hooks else ""


def _sockets(view: View) -> list[str]:
    names = [path.rpartition("/")[2] for path, _ in view.clues.fields("socket", 2)]
    return [name for name in names if name.startswith("nvidia")]


def _expected(view: View) -> bool:
    return check_plugin(view).outcome == chain.OK


def _kept_off(view: View) -> str:
    if not _expected(view) or _sockets(view) or view.clues.all("plugin_pod"):
        return ""
    if view.clues.node is None or PLUGIN_LABEL not in view.clues.labels():
        return ""
    reason, fix = device_plugin_obstacle(view.clues.node)
    return f"no pod of the device plugin is here: {reason}; {fix}" if reason else ""


def _not_running(view: View) -> str:
    if not _expected(view) or _sockets(view):
        return ""
    log = view.clues.all("plugin_log")
    return "the device plugin has no socket below /var/lib/kubelet/device-plugins" + (
        f"; its log: {log[-1]}" if log else ""
    )


def _not_registered(view: View) -> str:
    registered = view.clues.registered
    if not _expected(view) or registered is None or not _sockets(view):
        return ""
    if any(ids for name, ids in registered.items() if name.startswith("nvidia.com/")):
        return ""
    return f"{_sockets(view)[0]} exists, but the kubelet has no GPUs: the plugin did not register"


def _physical(ids: Iterable[str]) -> set[str]:
    """Devices without the suffix of a replica (GPU-...::3)."""
    return {device.partition("::")[0] for device in ids}


def _offered(view: View) -> list[str]:
    """GPU resources of the Node; without those that lost every device while others have all GPUs.

    After a change of sharing or of the MIG layout, the kubelet keeps the former resource for some minutes.
    """
    registered = view.clues.registered or {}
    devices = _physical(device for ids in registered.values() for device in ids)
    complete = all(
        devices & {gpu.uuid, *(mig.uuid for mig in gpu.mig_devices)}
        for gpu in view.observed.nvml.gpus
    )
    return [name for name in view.clues.resources() if registered.get(name) or not complete]


def _missing(view: View) -> list[str]:
    """UUIDs of whole GPUs that NVML lists and the device plugin does not offer, where it offers some."""
    ids = (view.clues.registered or {}).get(_GPU, ())
    if not ids or not all(device.startswith("GPU-") for device in ids):
        return []
    whole_gpus = {
        gpu.uuid
        for gpu in view.observed.nvml.gpus
        if not gpu.mig_current and gpu.error is None and not view.observed.held(gpu)
    }
    return sorted(whole_gpus - _physical(ids))


def _divided(view: View) -> str:
    """GPUs in MIG mode that the device plugin offers as whole ones; beside a DRA driver the kubelet only remembers one."""
    if not wants_plugin(view):
        return ""
    offered = _physical((view.clues.registered or {}).get(_GPU, ()))
    gpus = [gpu for gpu in view.observed.nvml.gpus if gpu.mig_current and gpu.uuid in offered]
    if not gpus:
        return ""
    names = some([f"GPU {gpu.index}" for gpu in gpus])
    return f"in MIG mode, and offered as whole GPUs by the device plugin: {names}; a pod that gets one does not start"


def _withdrawn(view: View) -> str:
    """The device plugin withdrew GPUs for an Xid, as it should."""
    missing = set(_missing(view))
    indexes = {gpu.index for gpu in view.observed.nvml.gpus if gpu.uuid in missing}
    texts = [
        finding.text
        for finding in health.judge(view.observed.nvml, view.observed.log)
        if finding.gpu in indexes and finding.what == "xid"
    ]
    if not texts or {text.partition(" (")[0] for text in texts} != {f"GPU {i}" for i in indexes}:
        return ""
    return f"the device plugin withdrew what reported an Xid: {some(texts)}"


def _too_few(view: View) -> str:
    missing = _missing(view)
    if not missing:
        return ""
    return f"NVML lists {some(missing)}, but the device plugin did not register it with the kubelet"


def _sharing(view: View) -> str:
    text = "\n".join(view.clues.all("plugin_config"))
    ids = (view.clues.registered or {}).get(_GPU, ())
    replicas = max((int(number) for number in _REPLICAS.findall(text)), default=1)
    if replicas < 2 or not ids or len(ids) != len(_physical(ids)):
        return ""
    less = f"{len(ids)} of {_GPU} are offered instead of {replicas} times as many"
    try:
        config = deviceplugin.read(text, _CONFIG)
    except GpustateError as error:
        return f"{less}: {error}"
    if config.warnings:
        return f"{less}: {config.warnings[0]}"
    if config.sharing.replicas(_GPU) < 2 or config.sharing.renamed:
        return ""
    return f"{_CONFIG} shares each GPU {replicas} times, but the kubelet has {len(ids)}"


def _sharing_misread(view: View) -> str:
    evidence = _sharing(view)
    return evidence if "instead of" in evidence and "times as many" in evidence else ""


# --- scheduler -----------------------------------------------------------------------------------


def _not_ready(view: View) -> str:
    why = view.clues.not_ready()
    return f"Kubernetes reports the node as not ready: {why}" if why else ""


def _condition(view: View) -> str:
    reason = view.clues.unhealthy()
    return f"the Node's condition GPUHealthy is False: {reason}" if reason else ""


def _unhealthy(view: View) -> str:
    nvml = view.observed.nvml
    lost = any(gpu.error is not None or view.observed.held(gpu) for gpu in nvml.gpus)
    if nvml.error is not None or lost or not wants_plugin(view):
        return ""
    rows = [
        (name, view.clues.quantity("capacity", name), view.clues.quantity("allocatable", name))
        for name in _offered(view)
    ]
    short = [f"{have} of {all_} {name}" for name, all_, have in rows if all_ and (have or 0) < all_]
    if not short:
        return ""
    return f"NVML lists every GPU, but Kubernetes can allocate only {some(short)}"


def _no_resource(view: View) -> str:
    if view.clues.node is None or not wants_plugin(view) or not view.gpu_count:
        return ""
    if any(view.clues.quantity("capacity", name) for name in view.clues.resources()):
        return ""
    return f"NVML lists {view.gpu_count} GPUs, but Kubernetes lists none"


def _mig_manager(view: View) -> str:
    labels = view.clues.labels()
    state = labels.get("nvidia.com/mig.config.state", "")
    paused = sorted(key for key, value in labels.items() if value == "paused-for-mig-change")
    config = labels.get("nvidia.com/mig.config", "")
    # Without a layout, a failure is that of a label which has been removed since.
    if (state == "failed" and (config or paused)) or (state in ("pending", "rebooting") and paused):
        return (
            f"mig.config.state is {state} (mig.config{f': {config}' if config else ' is absent'})"
            + (f"; still paused: {some(paused)}" if paused else "")
        )
    return ""


def _upgrade(view: View) -> str:
    state = view.clues.labels().get(_UPGRADE, "")
    if state in ("", "upgrade-done") or not (view.clues.cordoned or state == "upgrade-failed"):
        return ""
    return f"{_UPGRADE} is {state}" + (", and the node is cordoned" if view.clues.cordoned else "")


def _undiscovered(view: View) -> str:
    labelled = any(key.startswith(_NFD) for key in view.clues.labels())
    discovered = check_discovery(view).outcome == chain.OK
    if discovered or not labelled or wants_plugin(view) or not view.gpu_count:
        return ""
    return f"node feature discovery labels the Node, but not its GPUs: no {_NFD}pci-10de.present"


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
    return f"driver {view.observed.loaded} with MIG strategy mixed, and whole GPUs beside MIG devices: pods cannot be scheduled"


def _labels_stale(view: View) -> str:
    rows = view.clues.fields("label", 2)
    strategies = {value for key, value in rows if key == "mig.strategy"}
    return _miscounted(view, [value for key, value in rows if key == "gpu.count"], strategies)


def _labels_stale_in_kubernetes(view: View) -> str:
    labels = view.clues.labels()
    strategies = {labels.get("nvidia.com/mig.strategy", "none")}
    return _miscounted(view, [labels.get("nvidia.com/gpu.count", "")], strategies)


def _miscounted(view: View, values: list[str], strategies: set[str]) -> str:
    """The first count that no program writes which labels these GPUs with one of the MIG strategies."""
    nvml = view.observed.nvml
    # gpustate's labels do not count quarantined GPUs, NVIDIA's do.
    available = tuple(gpu for gpu in nvml.gpus if not view.observed.held(gpu))
    right: set[str] = set()
    for strategy, gpus in product(strategies or {"none"}, (nvml.gpus, available)):
        options = gfd.Options(mig_strategy=strategy)
        computed = gfd.compute(gfd.LabelInput(replace(nvml, gpus=gpus)), options)
        if computed.problem is not None:
            return ""
        right.add(computed.values.get("nvidia.com/gpu.count", "0"))
        # With several models, GPU feature discovery describes any of them.
        models = Counter(gpu.name for gpu in gpus)
        right |= {str(count) for count in models.values() if len(models) > 1}
    wrong = [value for value in values if value and value not in right]
    if not wrong or not nvml.gpus:
        return ""
    devices = sum(len(gpu.mig_devices) for gpu in nvml.gpus)
    divided = (
        f" and {devices} MIG devices (strategy {', '.join(sorted(strategies))})"
        if devices and strategies
        else ""
    )
    return f"the label nvidia.com/gpu.count is {wrong[0]}, but NVML lists {len(nvml.gpus)} GPUs{divided}"


def _slices_stale(view: View) -> str:
    """What NVIDIA's DRA driver offers and the node has not, or the other way round."""
    nvml, offered = view.observed.nvml, view.clues.fields("slice", 3)
    if not offered or not nvml.gpus:
        return ""
    devices = {device.uuid for gpu in nvml.gpus for device in gpu.mig_devices}
    present = {gpu.uuid: "divided" if gpu.mig_current else "gpu" for gpu in nvml.gpus}
    present |= dict.fromkeys(devices, "mig")
    for kind, uuid, name in offered:
        if kind in ("gpu", "mig") and uuid and present.get(uuid) != kind:
            state = "divided by MIG" if uuid in present else "not in NVML's list"
            return f"ResourceSlices offer {name} ({uuid}), which is {state}"
    # A driver that divides GPUs itself, for the claims, offers parts without UUIDs.
    missing = devices - {uuid for _, uuid, _ in offered}
    if missing and all(uuid for _, uuid, _ in offered):
        return f"no ResourceSlice offers MIG device {min(missing)}"
    return ""


def _labels_missing(view: View) -> str:
    labels = view.clues.labels()
    deployed = labels.get("nvidia.com/gpu.deploy.gpu-feature-discovery") == "true"
    if not deployed or "nvidia.com/gpu.product" in labels or not view.gpu_count:
        return ""
    return "GPU feature discovery is deployed, but the node has no label nvidia.com/gpu.product"


def _slurm(view: View, key: str) -> str:
    row = view.clues.first("slurm")
    match = re.search(rf"(?:^| ){key}=(.*?)(?= [A-Za-z]+=|$)", row)
    return match[1].strip() if match else ""


def _slurm_gres(view: View) -> str:
    reason = _slurm(view, "Reason")
    return f"Slurm state {_slurm(view, 'State')}: {reason}" if "gres/gpu" in reason else ""


def _slurm_types(view: View) -> str:
    """Types of which slurmd finds no GPU; it ignores these GPUs."""
    gres, types = _slurm(view, "Gres"), sorted(view.clues.all("gres_type"))
    configured = slurm.gpu_types(gres)
    if not (configured and types) or configured & set(types):
        return ""
    return f"slurm.conf has Gres={gres}, gres.conf has Type={', '.join(types)}"


def _slurm_away(view: View) -> str:
    state = _slurm(view, "State")
    if not any(word in state for word in ("DRAIN", "DOWN", "FAIL", "INVAL", "NOT_RESPONDING")):
        return ""
    return f"Slurm state {state}: {_slurm(view, 'Reason') or 'no reason given'}"


def _slurm_autodetect(view: View) -> str:
    return evidence if "gpu/nvml" in (evidence := _slurmd(view)) else ""


def _slurmd(view: View) -> str:
    unit = view.clues.unit("slurmd")
    return f"slurmd failed: {unit.why or 'see journalctl -u slurmd'}" if unit.failed else ""


# --- metrics -------------------------------------------------------------------------------------


def _metrics(view: View) -> list[Unit]:
    return [view.clues.unit(name) for name, _, _ in services.EXPORTERS]


def _host_engines(view: View) -> str:
    rows = [row for row in view.clues.all("process") if "nv-hostengine" in row]
    failed = next((unit for unit in _metrics(view) if unit.failed), None)
    port_taken = failed is not None and "in use" in failed.why.lower() and not _port_taken(view)
    if len(rows) < 2 and not (rows and port_taken):
        return ""
    more = f"; {failed.failure}" if failed else ""
    return f"{len(rows)} DCGM host engines run: {some(rows)}{more}"


def _port_taken(view: View, exporter: str = "") -> str:
    for name, port, row in view.clues.fields("taken", 3):
        if exporter not in ("", name):
            continue
        by = listeners.describe_listener(row)
        return f"{view.clues.unit(name).failure}; its port {port} is taken by {by}"
    return ""


def _exporter(view: View, unit: str) -> str:
    return view.clues.unit(unit).failure if view.clues.unit(unit).failed else ""


def _finding(
    name: str, link: str, detect: Callable[[View], str], remedy: str, *threads: str, state: str = ""
) -> Cause:
    return Cause(name, link, detect, remedy, threads, state, explains=False)


_PLUGIN, _SCHEDULER = "device-plugin", "scheduler"
CAUSES = (
    _finding("gpus-not-discovered", "discovery", _undiscovered,
         "restart the pod of NFD's worker on this node and read its log: kubectl delete pod -n NAMESPACE POD; its source pci must have the class 03"),
    _finding("kubelet-stopped-by-mig-manager", _PLUGIN, _kubelet_by_mig,
         "remove the kubelet from the MIG manager's hooks, which must stop only clients of the GPUs; then: systemctl start kubelet",
         "NVIDIA/mig-parted#368"),
    _finding("kubelet-down", _PLUGIN, _kubelet, "fix what the message names; then: systemctl start kubelet"),
    _finding("device-plugin-kept-off", _PLUGIN, _kept_off, "end what the message names, or tolerate it: kubectl describe node NODE",
         "NVIDIA/gpu-operator#316", "NVIDIA/k8s-device-plugin#1934"),
    _finding("device-plugin-not-running", _PLUGIN, _not_running,
         "fix failed checks before this one, then check the plugin's pod: kubectl get pods -A -o wide --field-selector spec.nodeName=NODE",
         "NVIDIA/k8s-device-plugin#414", "NVIDIA/k8s-device-plugin#58"),
    _finding("device-plugin-not-registered", _PLUGIN, _not_registered,
         "restart the kubelet (systemctl restart kubelet), then the plugin's pod: kubectl delete pod -n NAMESPACE POD", "NVIDIA/k8s-device-plugin#170", "kubernetes/kubernetes#116125"),
    _finding("sharing-in-the-wrong-place", _PLUGIN, _sharing_misread,
         "move the keys to the place that the message names: the plugin ignores unknown keys silently; then restart its pod: kubectl delete pod -n NAMESPACE POD",
         "NVIDIA/k8s-device-plugin#1433", "NVIDIA/k8s-device-plugin#364", state="device-plugin-config"),
    _finding("sharing-not-applied", _PLUGIN, _sharing, "restart the plugin's pod, which reads its file only at the start: kubectl delete pod -n NAMESPACE POD",
         "NVIDIA/gpu-operator#1144"),
    _finding("mig-offered-whole", _PLUGIN, _divided, remedies.MIG_STRATEGY),
    _finding("device-plugin-withdrew-gpus", _PLUGIN, _withdrawn,
         "follow the Xid's action: gpustate health -l NODE; restart the plugin's pod only when the GPU is well again, for the plugin offers all GPUs after a restart",
         "NVIDIA/k8s-device-plugin#111"),
    _finding("device-plugin-lacks-gpus", _PLUGIN, _too_few, "restart the plugin's pod, which detects GPUs only at the start: kubectl delete pod -n NAMESPACE POD",
         "NVIDIA/k8s-device-plugin#82"),
    _finding("mig-manager-stuck", _SCHEDULER, _mig_manager,
         "set the paused labels to true and nvidia.com/mig.config again: kubectl label node NODE --overwrite LABEL=true; show the difference: gpustate node mig plan CONFIG NAME -l NODE",
         "NVIDIA/mig-parted#485", "NVIDIA/gpu-operator#2833"),
    _finding("operator-upgrade-stuck", _SCHEDULER, _upgrade,
         "fix failed checks before this one and retry the Operator's upgrade: kubectl label node NODE --overwrite nvidia.com/gpu-driver-upgrade-state=upgrade-required",
         "NVIDIA/gpu-operator#2509", "NVIDIA/gpu-operator#2166"),
    _finding("node-not-ready", _SCHEDULER, _not_ready, "fix what the kubelet reports: kubectl describe node NODE; journalctl -u kubelet -n 50"),
    _finding("driver-known-bad-with-mixed-mig", _SCHEDULER, _known_bad,
         f"install 570.86.15 or a newer branch, for example: {remedies.APPLY} --set driver.branch=580",
         "NVIDIA/gpu-operator#1361"),
    _finding("gpus-kept-unhealthy", _SCHEDULER, _unhealthy,
         "reset the GPU, then restart the plugin's pod, which offers the GPU again only after a restart: kubectl delete pod -n NAMESPACE POD",
         "NVIDIA/k8s-device-plugin#111", "NVIDIA/k8s-device-plugin#189"),
    _finding("no-gpu-resource", _SCHEDULER, _no_resource, "restart the plugin's pod (kubectl delete pod -n NAMESPACE POD) and read its log: kubectl logs -n NAMESPACE POD",
         "NVIDIA/k8s-device-plugin#170"),
    _finding("gpu-healthy-false", _SCHEDULER, _condition,
         "fix what the condition names; then: gpustate validate POLICY -i INVENTORY --kubeconfig FILE"),
    _finding("resource-slices-stale", _SCHEDULER, _slices_stale,
         "restart the pod of NVIDIA's DRA driver on this node, which publishes its devices: kubectl delete pod -n NAMESPACE POD",
         "dra-driver-nvidia-gpu: cmd/gpu-kubelet-plugin/nvlib.go"),
    _finding("labels-stale", _SCHEDULER, _labels_stale,
         f"{remedies.by_apply('rewrite them', 'gpu-labels')}; or restart the pod of GPU feature discovery",
         "NVIDIA/k8s-device-plugin#733", state="gpu-labels"),
    _finding("node-labels-stale", _SCHEDULER, _labels_stale_in_kubernetes,
         "restart the pods of GPU feature discovery and of NFD's worker on this node, which publish the labels: kubectl delete pod -n NAMESPACE POD", "NVIDIA/k8s-device-plugin#733"),
    _finding("labels-missing", _SCHEDULER, _labels_missing, "restart the pod of GPU feature discovery on this node: kubectl delete pod -n NAMESPACE POD",
         "NVIDIA/gpu-feature-discovery#75"),
    _finding("cordoned", _SCHEDULER, _cordoned, "find out who cordoned it and why; if it can be used again: kubectl uncordon NODE",
         "NVIDIA/gpu-operator#304", "NVIDIA/gpu-operator#2820"),
    # What Slurm has against a node is old while its slurmd is down.
    _finding("slurm-without-nvml", _SCHEDULER, _slurm_autodetect,
         "this Slurm has no plugin for NVML: remove AutoDetect=nvml from gres.conf, or install the plugin; then: systemctl restart slurmd",
         "SlinkyProject/containers#14"),
    _finding("slurmd-down", _SCHEDULER, _slurmd, "fix what the message names; then: systemctl start slurmd"),
    _finding("slurm-type-differs", _SCHEDULER, _slurm_types,
         "write the type of gres.conf into the node's Gres= in slurm.conf, on all nodes; then: scontrol reconfigure; scontrol update nodename=NODE state=resume",
         "SlinkyProject/slurm-operator#57"),
    _finding("slurm-misses-gpus", _SCHEDULER, _slurm_gres, f"{remedies.by_apply('rewrite gres.conf', 'slurm-gres')}; then: scontrol update nodename=NODE state=resume"),
    _finding("slurm-drained", _SCHEDULER, _slurm_away, "fix what the reason names; then: scontrol update nodename=NODE state=resume"),
    _finding("two-dcgm-host-engines", "metrics", _host_engines, "stop all but one: systemctl disable --now nvidia-dcgm; an exporter with an embedded engine needs no other",
         "NVIDIA/dcgm-exporter#330", "NVIDIA/dcgm-exporter#148"),
    *(_finding("exporter-port-taken", "metrics", partial(_port_taken, exporter=unit),
           f"stop that program and restart the exporter: systemctl restart {unit}; or set another port with listen of the state dcgm-exporter")
      for unit, _, _ in services.EXPORTERS),
    *(_finding("exporter-failed", "metrics", partial(_exporter, unit=unit),
           f"fix what the message names and restart the exporter: systemctl restart {unit}; list what the GPUs can report: gpustate node dcgm check -i INVENTORY",
           "NVIDIA/dcgm-exporter#126")
      for unit, _, _ in services.EXPORTERS),
)  # fmt: skip
