"""What a policy decides about a cluster's objects.

Sources:
    NVIDIA/gpu-operator v26.7: api/nvidia/v1/clusterpolicy_types.go (fields), deployments/gpu-operator/values.yaml
    (defaults of daemonsets), docs.nvidia.com/datacenter/cloud-native/gpu-operator (the namespace).
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from gpustate.documents import Json, JsonView
from gpustate.errors import PolicyError
from gpustate.formats.words import quote

STRATEGIES = ("RollingUpdate", "OnDelete")
MIG_STRATEGIES = ("", "none", "single", "mixed")
#: Lifted from a validated Node. Cluster autoscaler counts a Node with a taint of this prefix as one that is to come.
STARTUP_TAINT = "startup-taint.cluster-autoscaler.kubernetes.io/gpustate"
_TAINT_KEY = re.compile(
    r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
#: Labels that select pods, which a policy cannot replace.
RESERVED_LABELS = ("app", "app.kubernetes.io/part-of")
PULL_POLICIES = ("Always", "IfNotPresent", "Never")
#: The key of the exporter's counters file in its ConfigMap.
COUNTERS_KEY = "dcgm-metrics.csv"
#: How pydantic reads a class of this module: nothing is converted, and no key is unknown.
_CLOSED: Json = {"extra": "forbid", "strict": True}


def _tolerations() -> tuple[Json, ...]:
    return ({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},)


@dataclass(frozen=True, slots=True)
class Component:
    """One component that runs as the pods of a DaemonSet.

    Args:
        enabled: whether it runs.
        image: complete reference; empty: that of the GPU Operator's release.
        image_pull_policy: Always, IfNotPresent or Never.
        image_pull_secrets: names of Secrets in the namespace.
        resources: ``limits`` and ``requests`` of every container.
        args: arguments of the program.
        env: variables of the main container; they take precedence.
        host_network: pods use the node's network.
    """

    __pydantic_config__: ClassVar = _CLOSED

    enabled: bool = True
    image: str = ""
    image_pull_policy: str = "IfNotPresent"
    image_pull_secrets: tuple[str, ...] = ()
    resources: JsonView = field(default_factory=Json)
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    host_network: bool = False

    def __post_init__(self) -> None:
        if self.image_pull_policy not in PULL_POLICIES:
            _refuse("image_pull_policy", self.image_pull_policy, PULL_POLICIES)


@dataclass(frozen=True, slots=True)
class Counters:
    """The ConfigMap with the exporter's counters file, ``dcgm-metrics.csv``.

    Args:
        name: of the ConfigMap.
        data: its keys; ``None``: the ConfigMap exists already and is not managed.
    """

    __pydantic_config__: ClassVar = _CLOSED

    name: str
    data: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Monitor:
    """ServiceMonitors of prometheus-operator, and with them alert rules and a dashboard.

    Args:
        enabled: whether there are any.
        interval, scrape_timeout: of a scrape, such as ``15s``; empty: Prometheus's own.
        honor_labels: labels of metrics take precedence over those of the scrape; ``None``: unset.
        labels: added, so that a Prometheus selects them.
        relabelings: before the scrape.
    """

    __pydantic_config__: ClassVar = _CLOSED

    enabled: bool = False
    interval: str = ""
    scrape_timeout: str = ""
    honor_labels: bool | None = None
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    relabelings: tuple[Json, ...] = ()


@dataclass(frozen=True, slots=True)
class Exporter(Component):
    """dcgm-exporter as pods.

    Args:
        annotations: added to the pods.
        host_pid: pods see the node's processes.
        engine: address of a host engine that is not one of the pods; empty: the exporter's own.
        counters: its counters file; ``None``: that of the image.
        job_mapping: folder of the nodes with a scheduler's job ids; empty: none.
        pod_labels, pod_uid: metrics have labels and the UID of the pod that uses the GPU.
        pod_label_patterns: regular expressions of the labels to include; none: all.
        service_type, internal_traffic_policy: of the Service; empty: the API server's defaults.
        monitor: of prometheus-operator.
    """

    annotations: Mapping[str, str] = field(default_factory=dict[str, str])
    host_pid: bool = False
    engine: str = ""
    counters: Counters | None = None
    job_mapping: str = ""
    pod_labels: bool = False
    pod_uid: bool = False
    pod_label_patterns: tuple[str, ...] = ()
    service_type: str = ""
    internal_traffic_policy: str = ""
    monitor: Monitor = field(default_factory=Monitor)


@dataclass(frozen=True, slots=True)
class Container:
    """One of several containers of a component.

    Args:
        env: variables; they take precedence.
        resources: ``limits`` and ``requests``.
        healthcheck_port: of the kubelet's probes; 0: none.
    """

    __pydantic_config__: ClassVar = _CLOSED

    env: Mapping[str, str] = field(default_factory=dict[str, str])
    resources: JsonView = field(default_factory=Json)
    healthcheck_port: int = 0


#: Feature gates of the DRA driver that concern compute domains and are on by default: its pkg/featuregates.
DOMAIN_GATES = ("IMEXDaemonsWithDNSNames", "ComputeDomainCliques")


@dataclass(frozen=True, slots=True)
class DraDriver(Component):
    """NVIDIA's driver for dynamic resource allocation.

    Args:
        feature_gates: of all its programs.
        compute_domains: offer domains of nodes that share memory by NVLink. Their kinds have to be in the cluster.
        gpus, compute_domain_plugin: containers of the kubelet plugin.
        controller: of compute domains.
    """

    feature_gates: Mapping[str, bool] = field(default_factory=dict[str, bool])
    compute_domains: bool = True
    gpus: Container = field(default_factory=lambda: Container(healthcheck_port=51516))
    compute_domain_plugin: Container = field(
        default_factory=lambda: Container(healthcheck_port=51515)
    )
    controller: Container = field(default_factory=Container)


@dataclass(frozen=True, slots=True)
class System:
    """The system of a node, which images of driver containers are built for.

    Args:
        name, version: as in ``/etc/os-release``: ``ubuntu`` and ``22.04``.
        kernel: of the nodes, for precompiled drivers.
    """

    __pydantic_config__: ClassVar = _CLOSED

    name: str
    version: str
    kernel: str = ""

    @property
    def tag(self) -> str:
        """As in the tag of an image: ``ubuntu22.04``, ``rhel9``."""
        return f"{self.name}{self.version.partition('.')[0] if self.is_major else self.version}"

    @property
    def is_major(self) -> bool:
        """Its images are for all minor versions."""
        return self.name in ("ol", "rhel", "rocky")


@dataclass(frozen=True, slots=True)
class Files:
    """A ConfigMap whose keys become files of a container.

    Args:
        name: of the ConfigMap.
        data: its keys.
    """

    __pydantic_config__: ClassVar = _CLOSED

    name: str
    data: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class License:
    """The vGPU licence of a driver container.

    Args:
        name: of the Secret or ConfigMap with ``gridd.conf``.
        secret: it is a Secret.
        token: it has a client configuration token too.
    """

    __pydantic_config__: ClassVar = _CLOSED

    name: str
    secret: bool = True
    token: bool = False


def _absent() -> Component:
    return Component(enabled=False)


@dataclass(frozen=True, slots=True)
class DriverContainer(Component):
    """NVIDIA's driver as containers, on the nodes of one ClusterPolicy or NVIDIADriver.

    Args:
        owner: name of the NVIDIADriver; empty: of the ClusterPolicy.
        condition: on the labels of its Nodes, as in ``only``; empty: those of no other NVIDIADriver.
        nodes: labels of its Nodes, for the pods' selector.
        pods: of an NVIDIADriver, in place of those of the other components.
        manager: of the container that removes the loaded driver before.
        module_type: auto, open or proprietary; empty: the image decides.
        precompiled: kernel modules are those of the image, for one kernel each.
        rdma, host_mofed: load ``nvidia-peermem``; with the network driver of the host.
        gds, gdrcopy: their kernel modules, by containers beside.
        startup_probe: fields of the probe that differ from the default.
        secret_env: Secret with variables.
        repositories, certificates: package sources and certificates in the container.
        module_config: parameters of kernel modules, a file each.
        topology: ConfigMap of the vGPU topology daemon.
        license: of a vGPU.
    """

    owner: str = ""
    condition: str = ""
    nodes: Mapping[str, str] = field(default_factory=dict[str, str])
    pods: Pods | None = None
    manager: Component = field(default_factory=Component)
    module_type: str = ""
    precompiled: bool = False
    rdma: bool = False
    host_mofed: bool = False
    gds: Component = field(default_factory=_absent)
    gdrcopy: Component = field(default_factory=_absent)
    startup_probe: Mapping[str, int] = field(default_factory=dict[str, int])
    secret_env: str = ""
    repositories: Files | None = None
    certificates: Files | None = None
    module_config: Files | None = None
    topology: str = ""
    license: License | None = None


@dataclass(frozen=True, slots=True)
class ToolkitContainer(Component):
    """NVIDIA's container toolkit, installed and configured by containers.

    Args:
        runtime: containerd, crio or docker.
        install_dir: folder on the nodes.
        nri: give containers their GPUs by an NRI plugin, and leave the runtime's configuration alone.
    """

    runtime: str = "containerd"
    install_dir: str = "/usr/local/nvidia"
    nri: bool = False


@dataclass(frozen=True, slots=True)
class ValidatorContainer(Component):
    """NVIDIA's validator; the other components wait for it.

    Args:
        checks: variables of its containers: driver, toolkit, cuda, plugin, vfio-pci, vgpu-manager, vgpu-devices.
        machines: Nodes for virtual machines are validated too.
        workload: of Nodes without the label ``nvidia.com/gpu.workload.config``.
    """

    checks: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    machines: bool = False
    workload: str = "container"


@dataclass(frozen=True, slots=True)
class MigManager(Component):
    """NVIDIA's MIG manager, which carries out the label ``nvidia.com/mig.config``.

    Args:
        layouts: ``config.yaml`` of mig-parted; its name decides whether it is the default.
        clients: ``clients.yaml``: services of the host that use GPUs.
    """

    layouts: Files = field(default_factory=lambda: Files("", {}))
    clients: Files = field(default_factory=lambda: Files("", {}))


@dataclass(frozen=True, slots=True)
class HostDriver(Component):
    """A container that replaces the driver of the host: vGPU manager and VFIO manager.

    Args:
        manager: of the container that removes the loaded driver before.
        module_config: parameters of kernel modules, a file each.
    """

    manager: Component = field(default_factory=Component)
    module_config: Files | None = None


@dataclass(frozen=True, slots=True)
class VgpuDeviceManager(Component):
    """NVIDIA's vGPU device manager, which carries out the label ``nvidia.com/vgpu.config``.

    Args:
        config: ConfigMap with ``config.yaml``.
        data: its keys; ``None``: the ConfigMap exists already and is not managed.
        default: of Nodes without the label.
    """

    config: str = ""
    data: Mapping[str, str] | None = None
    default: str = "default"


@dataclass(frozen=True, slots=True)
class PluginConfig:
    """Configurations of the device plugin in a ConfigMap; the label ``nvidia.com/device-plugin.config`` selects one.

    Args:
        name: of the ConfigMap.
        default: its key for nodes without the label; empty: no configuration.
        data: configurations by key; ``None``: the ConfigMap exists already and is not managed.
    """

    __pydantic_config__: ClassVar = _CLOSED

    name: str
    default: str = ""
    data: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Pods:
    """What all pods have in common.

    Args:
        labels, annotations: added to DaemonSets and pods.
        tolerations: of the pods.
        priority_class: of the pods.
        update_strategy: RollingUpdate or OnDelete.
        max_unavailable: of a rolling update: a number, or a percentage.
        security_context: of the pods.
    """

    __pydantic_config__: ClassVar = _CLOSED

    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    annotations: Mapping[str, str] = field(default_factory=dict[str, str])
    tolerations: tuple[Json, ...] = field(default_factory=_tolerations)
    priority_class: str = "system-node-critical"
    update_strategy: str = "RollingUpdate"
    max_unavailable: int | str = 1
    security_context: JsonView = field(default_factory=Json)

    def __post_init__(self) -> None:
        if self.update_strategy not in STRATEGIES:
            _refuse("update_strategy", self.update_strategy, STRATEGIES)
        for label in RESERVED_LABELS:
            if label in self.labels:
                raise PolicyError(f"labels: {label} selects the pods and cannot be set")


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """The objects of a cluster.

    Args:
        namespace: of everything that has one.
        privileged_namespace: label the namespace, so that Pod Security admits privileged pods.
        runtime_class: name and handler of the RuntimeClass, and that of the pods.
        device_plugin, feature_discovery, dcgm, dcgm_exporter, node_status_exporter, dra_driver: the components.
        sandbox_device_plugin, kata_device_plugin, cc_manager: components of Nodes for virtual machines.
        cc_mode: of GPUs whose Node has no label ``nvidia.com/cc.mode``; empty: the program's default.
        config: configurations of the device plugin; ``None``: its defaults.
        device_list_strategy: how the device plugin passes GPUs to the container runtime.
        cdi: whether the runtime injects CDI devices.
        cdi_hook: path of ``nvidia-cdi-hook`` on the nodes.
        gdrcopy, gds: pass the device nodes of GDRCopy and GPUDirect Storage to every container with a GPU.
        mig_strategy: none, single or mixed; empty: that of the configuration.
        mig: parameters of the state ``mig`` on Nodes whose label ``nvidia.com/mig.config`` names a layout;
            ``None``: the label is not carried out.
        mps_root: directory of the MPS daemon on the nodes.
        kubelet_root: directory of the kubelet on the nodes.
        host_root: root of the nodes, as containers see it.
        driver_root: root of the driver containers, on the nodes.
        drivers: the driver as containers; none: it is the host's.
        toolkit, validator, mig_manager: NVIDIA's containers in place of states of the nodes.
        vgpu_manager, vgpu_device_manager, vfio_manager: of Nodes for virtual machines.
        systems: of the nodes, for images of drivers.
        images: of containers without an image of their own, by section of a ClusterPolicy.
        node_feature_discovery: values of its chart, over the chart's own; ``None``: it is in the cluster already.
        install_nfd: include node feature discovery with the values of the Operator's chart, unless the cluster has one of
            others.
        module_rules: label Nodes by the kernel modules of GDRCopy, GPUDirect Storage and peer memory.
        startup_taint: key of the taint that the validator lifts; pods of components tolerate it.
        pods: what all pods of components have in common.
        object_fields: single fields of objects by ``kind/name`` and path, such as
            ``spec.template.spec.containers[nvidia-dcgm-exporter].tty``; they take precedence.
    """

    __pydantic_config__: ClassVar = _CLOSED

    namespace: str = "gpu-operator"
    privileged_namespace: bool = False
    runtime_class: str = "nvidia"
    device_plugin: Component = field(default_factory=Component)
    feature_discovery: Component = field(default_factory=Component)
    dcgm: Component = field(default_factory=lambda: Component(enabled=False))
    dcgm_exporter: Exporter = field(default_factory=lambda: Exporter(enabled=False))
    node_status_exporter: Component = field(default_factory=lambda: Component(enabled=False))
    sandbox_device_plugin: Component = field(default_factory=lambda: Component(enabled=False))
    kata_device_plugin: Component = field(default_factory=lambda: Component(enabled=False))
    cc_manager: Component = field(default_factory=lambda: Component(enabled=False))
    cc_mode: str = ""
    dra_driver: DraDriver = field(default_factory=lambda: DraDriver(enabled=False))
    config: PluginConfig | None = None
    device_list_strategy: str = "cdi-annotations,cdi-cri"
    cdi: bool = True
    cdi_hook: str = "/usr/bin/nvidia-cdi-hook"
    gdrcopy: bool = False
    gds: bool = False
    mig_strategy: str = ""
    mig: JsonView | None = None
    mps_root: str = "/run/nvidia/mps"
    kubelet_root: str = "/var/lib/kubelet"
    host_root: str = "/"
    driver_root: str = "/run/nvidia/driver"
    drivers: tuple[DriverContainer, ...] = ()
    toolkit: ToolkitContainer = field(default_factory=lambda: ToolkitContainer(enabled=False))
    validator: ValidatorContainer = field(default_factory=lambda: ValidatorContainer(enabled=False))
    mig_manager: MigManager = field(default_factory=lambda: MigManager(enabled=False))
    vgpu_manager: HostDriver = field(default_factory=lambda: HostDriver(enabled=False))
    vgpu_device_manager: VgpuDeviceManager = field(
        default_factory=lambda: VgpuDeviceManager(enabled=False)
    )
    vfio_manager: HostDriver = field(default_factory=lambda: HostDriver(enabled=False))
    systems: tuple[System, ...] = ()
    images: Mapping[str, str] = field(default_factory=dict[str, str])
    node_feature_discovery: JsonView | None = None
    install_nfd: bool = False
    module_rules: bool = False
    startup_taint: str = STARTUP_TAINT
    pods: Pods = field(default_factory=Pods)
    object_fields: Mapping[str, JsonView] = field(default_factory=dict[str, JsonView])

    @property
    def needs_systems(self) -> bool:
        """Whether images depend on the systems of nodes, which are not known."""
        return (bool(self.drivers) or self.vgpu_manager.enabled) and not self.systems

    def as_data(self) -> Json:
        """Plain data with the values that are not defaults."""
        data: Json = json.loads(json.dumps(_as_data(self)))
        return data

    def matrix_facts(self) -> dict[str, object]:
        """Facts for the compatibility matrix: what offers the GPUs of the nodes."""
        driver = self.dra_driver
        nri = self.toolkit.nri if self.toolkit.enabled else None
        if not driver.enabled:
            return {"mig_strategy": self.mig_strategy or None, "nri": nri}
        gates = {**dict.fromkeys(DOMAIN_GATES, driver.compute_domains), **driver.feature_gates}
        return {
            "nri": nri,
            **{"dra": True, "dra_gpus": True, "compute_domains": driver.compute_domains},
            "device_plugin_runs": self.device_plugin.enabled,
            "dra_gates": [name for name in gates if gates[name]] or "none",
        }

    def __post_init__(self) -> None:
        if self.mig_strategy not in MIG_STRATEGIES:
            _refuse("mig_strategy", self.mig_strategy, MIG_STRATEGIES[1:])
        if not _NAMESPACE.fullmatch(self.namespace):
            raise PolicyError(
                f"namespace: {quote(self.namespace)} is not the name of a namespace",
                fix="write small letters, digits and hyphens",
            )
        if not _TAINT_KEY.fullmatch(self.startup_taint):
            raise PolicyError(
                f"startup_taint: {quote(self.startup_taint)} is not the key of a taint",
                fix="write NAME or DOMAIN/NAME, without value and effect",
            )


def default_of(field: dataclasses.Field[Any]) -> Any:
    """The value of a field that is not given."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _as_data(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_as_data(element) for element in value]
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    fields = ((field, getattr(value, field.name)) for field in dataclasses.fields(value))
    return {field.name: _as_data(child) for field, child in fields if child != default_of(field)}


def _refuse(name: str, value: str, choices: tuple[str, ...]) -> None:
    raise PolicyError(f"{name} is {quote(value)}, wanted {' or '.join(map(repr, choices))}")
