"""The support of every value of node feature discovery (NFD), a dependency of the Operator's chart.

Its objects are applied if the file itself has ``nfd.enabled: true`` (:mod:`gpustate.manifests.nfd`). Three of its values
decide whether labels, including those of the state ``gpu-labels``, reach a node: its worker has to run and to read
feature files (the source ``local``), and its master has to allow ``nvidia.com``.

Sources:
    kubernetes-sigs/node-feature-discovery v0.9.0 to v0.19.0: deployment/helm/node-feature-discovery
    (values.yaml, values.schema.json). NVIDIA/gpu-operator 1.3.0 to v26.7.0: Chart.yaml (which of them).
"""

from __future__ import annotations

from collections.abc import Iterable

from gpustate.gpu_operator.blocks import (
    Field,
    Fields,
    Support,
    in_objects,
    no_meaning,
    under,
    with_support,
)

_POD = "the objects of node feature discovery"
_READ = "the configuration of node feature discovery, which has to read the labels of gpu-labels"
_DRAWN = "removed from the chart of node feature discovery"
#: Values of the pods of all four programs.
_ALL: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("any", ("affinity", "extraEnvs", "initContainers", "tolerations")),
    ("any", ("podSecurityContext", "securityContext")),
    ("map[quantity]", ("resources.limits", "resources.requests")),
    ("any", ("networkPolicy.egress", "networkPolicy.ingress")),
    ("list[string]", ("extraArgs",)),
    ("map[string]", ("annotations", "labels", "nodeSelector", "serviceAccount.annotations")),
    ("boolean", ("enable", "hostNetwork", "hostUsers", "rbac.create", "networkPolicy.enabled")),
    ("boolean", ("serviceAccount.create",)),
    ("string", ("dnsPolicy", "serviceAccount.name")),
    ("integer", ("port", "revisionHistoryLimit")),
)
_PROBE = ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "failureThreshold")


def _some(kind: str, names: Iterable[str], detail: str = _POD) -> dict[str, Field]:
    return {name: in_objects(kind, detail) for name in names}


def _pods(*probes: str) -> dict[str, Field]:
    """Values of all four kinds of pods."""
    made: dict[str, Field] = {}
    for kind, names in _ALL:
        made.update(_some(kind, names))
    for probe in ("livenessProbe", "readinessProbe", *probes):
        made.update(_some("integer", (f"{probe}.{key}" for key in _PROBE)))
    made.update(_some("integer", ("readinessProbe.successThreshold",)))
    return made


_BUDGET: Fields = {
    **_some("boolean", ("podDisruptionBudget.enable",)),
    **_some("int-or-string", ("podDisruptionBudget.minAvailable",)),
    **_some("int-or-string", ("podDisruptionBudget.maxUnavailable",)),
    **_some("string", ("podDisruptionBudget.unhealthyPodEvictionPolicy",)),
}
_MASTER: Fields = {
    **_pods("startupProbe"),
    **_BUDGET,
    **_some("boolean", ("enableTaints",)),
    **_some("integer", ("replicaCount", "nfdApiParallelism")),
    **_some("string", ("instance", "resyncPeriod")),
    **_some("map[string]", ("deploymentAnnotations",)),
    **_some("any", ("config",), _READ),
    **_some("list[string]", ("denyLabelNs", "extraLabelNs"), _READ),
}
_WORKER: Fields = {
    **_pods(),
    **_some("list[string]", ("ownerRefs",)),
    **_some("boolean", ("mountUsrSrc",)),
    **_some("string", ("priorityClassName",)),
    **_some("map[string]", ("daemonsetAnnotations",)),
    **_some("int-or-string", ("updateStrategy.rollingUpdate.maxUnavailable",)),
    **_some("any", ("config",), _READ),
    **_some("boolean", ("enable",), _READ),
}
_TOPOLOGY: Fields = {
    **_pods(),
    **_some("any", ("config",)),
    **_some("boolean", ("createCRDs", "podSetFingerprint")),
    **_some("string", ("kubeletConfigPath", "kubeletPodResourcesSockPath", "kubeletStateDir")),
    **_some("string", ("updateInterval", "watchNamespace")),
    **_some("map[string]", ("daemonsetAnnotations",)),
}
_GC: Fields = {
    **_pods(),
    **_BUDGET,
    **_some("integer", ("replicaCount",)),
    **_some("string", ("interval",)),
    **_some("map[string]", ("deploymentAnnotations",)),
}
#: Values of earlier charts, and the last release of the Operator that included one of those.
_FORMER: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("v1.7.0", "any", ("config", "worker.options")),
    ("v1.9.1", "any", ("rbac", "serviceAccount")),
    ("v1.9.1", "string", ("worker.configmapName",)),
    ("v22.9.2", "boolean", ("nodeFeatureRule.createCRD",)),
    ("v23.6.2", "any", ("topologyGC",)),
    ("v24.9.2", "boolean", ("master.crdController", "tls.enable", "tls.certManager")),
    ("v24.9.2", "any", ("tls.certManagerCertificate", "master.service")),
    ("v24.9.2", "list[string]", ("master.resourceLabels",)),
    ("v25.3.4", "boolean", ("enableNodeFeatureApi", "master.featureRulesController")),
    ("v25.3.4", "any", ("master.featureApi",)),
    (
        "v25.3.4",
        "integer",
        (
            *("gc.metricsPort", "master.healthPort", "master.metricsPort"),
            *("topologyUpdater.healthPort", "topologyUpdater.metricsPort"),
            *("worker.healthPort", "worker.metricsPort", "master.startupProbe.grpc.port"),
            *(
                f"{pods}.{probe}.grpc.port"
                for pods in ("master", "topologyUpdater", "worker")
                for probe in ("livenessProbe", "readinessProbe")
            ),
        ),
    ),
)


def _table() -> dict[str, Field]:
    made: dict[str, Field] = {
        **_some("string", ("image.repository", "image.pullPolicy", "image.tag")),
        **_some("any", ("imagePullSecrets", "global")),
        **_some("string", ("nameOverride", "fullnameOverride")),
        "namespaceOverride": no_meaning("string", "the namespace is that of --namespace"),
        **_some("string", ("priorityClassName", "prometheus.scrapeInterval")),
        **_some("map[boolean]", ("featureGates",)),
        **_some("map[string]", ("prometheus.labels",)),
        **_some("boolean", ("prometheus.enable",)),
        "checksumValuesOnly": no_meaning("boolean", "pods always follow the configuration alone"),
        "postDeleteCleanup": no_meaning("boolean", "a hook of Helm"),
        **under("master", _MASTER),
        **under("worker", _WORKER),
        **under("topologyUpdater", _TOPOLOGY),
        **under("gc", _GC),
    }
    for until, kind, names in _FORMER:
        made.update(with_support(Support.DEAD, _DRAWN, _some(kind, names), until))
    return made


#: By path from the top of the Operator's values.
NFD: Fields = under("node-feature-discovery", _table())
