"""Exporters of metrics as pods: the DCGM host engine, dcgm-exporter, the node status exporter.

With ``enabled: true`` in the file, DCGM and its exporter are services of the nodes (:mod:`gpustate.gpu_operator.metrics`),
and never pods as well: two host engines disturb each other. Without ``enabled``, the Operator's default applies, and
they are pods.

Sources:
    NVIDIA/gpu-operator v26.7: controllers/object_controls.go (TransformDCGM, TransformDCGMExporter,
    TransformNodeStatusExporter), api/nvidia/v1/clusterpolicy_types.go (which are on by default).
"""

from __future__ import annotations

from gpustate.formats.words import quote
from gpustate.gpu_operator.components import component, settings, value
from gpustate.gpu_operator.desired import Source
from gpustate.gpu_operator.documents import Item
from gpustate.gpu_operator.helm import is_null
from gpustate.gpu_operator.operands import missing_key_error, missing_reference, require_config_map
from gpustate.manifests.settings import COUNTERS_KEY, Component, Counters, Exporter, Monitor

#: Default folder of the exporter's job mapping.
JOBS = "/var/lib/dcgm-exporter/job-mapping"
#: Where the host engine of the state ``dcgm`` listens.
_HOST_ENGINE = "localhost:5555"
_COUNTERS = "dcgmExporter.config.name"


NODE_STATUS = "nodeStatusExporter"


def on_hosts(source: Source, name: str) -> bool:
    """Whether an exporter is a service of the nodes."""
    if name == NODE_STATUS or source.in_containers("driver"):
        return False  # a service of the node does not find a driver container
    return source.enabled(name, otherwise=False)


def in_pods(source: Source, name: str) -> bool:
    """Whether an exporter runs as pods."""
    if name == NODE_STATUS:
        return source.enabled(name, otherwise=False)
    if source.spec.get(name, "enabled") is not None:
        return source.in_containers("driver") and source.enabled(name, otherwise=False)
    if name == "dcgmExporter":
        return True
    if on_hosts(source, "dcgmExporter"):
        return False  # a host engine as pods serves exporters as pods
    by_default = source.kind != "helm" or bool(source.chart_default("dcgm.enabled"))
    return by_default or is_null(source.spec, "dcgm.enabled")


def engine(source: Source) -> Component:
    """The DCGM host engine."""
    return component(source, "dcgm", enabled=in_pods(source, "dcgm"))


def node_status(source: Source) -> Component:
    """The node status exporter."""
    return component(source, NODE_STATUS, enabled=in_pods(source, NODE_STATUS))


def exporter(source: Source) -> Exporter:
    """dcgm-exporter."""
    if not in_pods(source, "dcgmExporter"):
        return Exporter(enabled=False, monitor=_monitor(source))
    shared = component(source, "dcgmExporter", enabled=True)
    jobs = ""
    if source.enabled("dcgmExporter.hpcJobMapping", otherwise=False):
        jobs = str(value(source, "dcgmExporter.hpcJobMapping.directory") or JOBS)
    return Exporter(
        image=shared.image,
        image_pull_policy=shared.image_pull_policy,
        image_pull_secrets=shared.image_pull_secrets,
        resources=shared.resources,
        args=shared.args,
        env=shared.env,
        host_network=shared.host_network,
        engine=_HOST_ENGINE if on_hosts(source, "dcgm") else "",
        counters=_counters(source),
        job_mapping=jobs,
        monitor=_monitor(source),
        **settings(source, "dcgm_exporter"),
    )


def _counters(source: Source) -> Counters | None:
    name = source.spec.get(*_COUNTERS.split("."))
    if name is None or not name.value:
        return None
    if missing_reference(source, _COUNTERS) is not None:
        return Counters(str(name.value))
    return Counters(str(name.value), counters_of(source, name))


def counters_of(source: Source, name: Item) -> dict[str, str]:
    """The data of the ConfigMap with the counters file; its only key may have another name.

    Raises:
        PolicyError: it is missing, or lacks the key that the Operator reads, which is asked for strictly.
    """
    config_map = require_config_map(source, name, _COUNTERS)
    data = {key: entry.text for key, entry in config_map.entries.items()}
    if COUNTERS_KEY in data:
        return data
    if len(data) != 1 or source.strict:
        raise missing_key_error(config_map, COUNTERS_KEY)
    source.notes.append(
        f"{config_map.place}: warning: {next(iter(data))} of the ConfigMap {quote(config_map.name)} is read as {COUNTERS_KEY}, "
        "the only key that the Operator reads; rename it"
    )
    return {COUNTERS_KEY: next(iter(data.values()))}


def _monitor(source: Source) -> Monitor:
    relabelings = value(source, "dcgmExporter.serviceMonitor.relabelings") or ()
    return Monitor(relabelings=tuple(relabelings), **settings(source, "dcgm_exporter.monitor"))
