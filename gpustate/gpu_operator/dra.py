"""The settings of the DRA driver in a GPUCluster or in Helm values, and the values of its own chart.

gpustate installs the DRA driver with a GPUCluster alone. Beside a ClusterPolicy it is installed by its own chart, whose
values may come as a further values file: what each of its keys is with a GPUCluster is noted.

Sources:
    kubernetes-sigs/dra-driver-nvidia-gpu: deployments/helm (values.yaml).
    NVIDIA/gpu-operator v26.7: internal/state/dra_driver.go (defaults of ports and gates), manifests/state-dra-driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpustate.documents import JsonView
from gpustate.gpu_operator.components import component, settings, value, variables
from gpustate.gpu_operator.desired import Source
from gpustate.manifests.settings import Container, DraDriver

#: Values of its own chart, with the Operator's value for a GPUCluster; empty: there is none.
_OF_CHART = {
    "nvidiaDriverRoot": "",
    "gpuResourcesEnabledOverride": "",
    "resources.gpus.enabled": "",
    "resources.computeDomains.enabled": "draDriver.computeDomains.enabled",
    "featureGates": "draDriver.featureGates",
    "image.repository": "draDriver.repository and draDriver.image",
    "image.tag": "draDriver.version",
    "image.pullPolicy": "draDriver.imagePullPolicy",
    "imagePullSecrets": "draDriver.imagePullSecrets",
    "controller": "draDriver.computeDomains.controller",
    "kubeletPlugin": "draDriver.gpus.kubeletPlugin and draDriver.computeDomains.kubeletPlugin",
    "logVerbosity": "",
    "webhook": "",
}
_TELLING = ("nvidiaDriverRoot", "gpuResourcesEnabledOverride", "kubeletPlugin")
_PORTS = {"gpus": 51516, "computeDomains": 51515}


def driver(source: Source) -> DraDriver:
    """The DRA driver.

    Raises:
        PolicyError: an image that is set in part only.
    """
    shared = component(source, "draDriver", enabled=True)
    return DraDriver(
        image=shared.image,
        image_pull_policy=shared.image_pull_policy,
        image_pull_secrets=shared.image_pull_secrets,
        gpus=_plugin(source, "gpus"),
        compute_domain_plugin=_plugin(source, "computeDomains"),
        controller=_container(source, "draDriver.computeDomains.controller"),
        **settings(source, "dra_driver"),
    )


def of_own_chart(values: JsonView) -> bool:
    """Whether values are those of the DRA driver's chart."""
    return any(key in values for key in _TELLING)


def notes_on_own_chart(values: JsonView, place: str) -> Iterator[str]:
    """A note on each value of the DRA driver's chart."""
    yield (
        f"{place}: warning: values of the DRA driver's own chart: its pods are left to that chart (helm install); drivers, "
        "toolkit and CDI of its nodes are carried out; gpustate installs it with gpuCluster.deployCR"
    )
    for key, section in values.items():
        below = [f"{key}.{name}" for name in section] if isinstance(section, Mapping) else []
        paths = (
            [key]
            if key in _OF_CHART
            else [path for path in _OF_CHART if path.startswith(f"{key}.")]
        )
        for path in paths or below or [key]:
            instead = _OF_CHART.get(path, "")
            yield f"{place}: not carried out: {path}" + (
                f": with a GPUCluster {instead}" if instead else ""
            )


def _plugin(source: Source, name: str) -> Container:
    path = f"draDriver.{name}.kubeletPlugin"
    enabled = value(source, f"{path}.healthcheck.enabled") is not False
    port = int(value(source, f"{path}.healthcheck.port") or _PORTS[name]) if enabled else 0
    return _container(source, path, port)


def _container(source: Source, path: str, port: int = 0) -> Container:
    return Container(
        env=variables(source, f"{path}.env"),
        resources=value(source, f"{path}.resources") or {},
        healthcheck_port=port,
    )
