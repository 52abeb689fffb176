"""The GPU Operator's Helm values: ClusterPolicy's spec with other names in some places.

Default versions change with every release of the chart, and a values file does not name its release, so no state uses
them: they are reported in notes.

Sources:
    NVIDIA/gpu-operator v26.7: deployments/gpu-operator/{values.yaml,templates/clusterpolicy.yaml}.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from gpustate.errors import PolicyError
from gpustate.gpu_operator import history
from gpustate.gpu_operator.desired import Source
from gpustate.gpu_operator.documents import Item

#: Defaults of the chart that concern a node and that a ClusterPolicy does not have.
_ABOUT_NODES = (
    *("driver.version", "toolkit.version", "driver.upgradePolicy.autoUpgrade", "mig.strategy"),
    *("dcgm.enabled", "driver.licensingConfig.nlsEnabled"),
)
#: On if the object does not set them; everything else is off by default.
NIL_IS_ON = (
    *("driver.enabled", "toolkit.enabled", "devicePlugin.enabled", "dcgm.enabled"),
    *("dcgmExporter.enabled", "gfd.enabled", "migManager.enabled", "cdi.enabled"),
)
_SWITCHES = (*NIL_IS_ON, "gds.enabled", "gdrcopy.enabled", "sandboxWorkloads.enabled")


def deploys_dra(source: Source) -> bool:
    """Whether the values deploy a GPUCluster."""
    return source.enabled("gpuCluster", otherwise=False, switch="deployCR")


def check_chart(source: Source) -> Item | None:
    """Refuse combinations that the chart refuses.

    Returns:
        The key that fields the driver to an NVIDIADriver not created by the chart.

    Raises:
        PolicyError: with the line of the value.
    """
    spec = source.spec
    crd = spec.get("driver", "nvidiaDriverCRD")
    enabled = crd.get("enabled") if crd is not None else None
    policy = spec.get("clusterPolicy", "deployCR")
    if deploys_dra(source):
        dra = spec.get("gpuCluster", "deployCR") or spec
        if policy is None or policy.value is not False:
            raise PolicyError(
                "gpuCluster.deployCR and clusterPolicy.deployCR are mutually exclusive, and both are true",
                place=source.place(dra),
                fix="set clusterPolicy.deployCR to false",
            )
        if source.enabled("driver", otherwise=True) and (enabled is None or not enabled.value):
            raise PolicyError(
                "gpuCluster.deployCR requires driver.nvidiaDriverCRD.enabled, or driver.enabled false",
                place=source.place(dra),
            )
    elif policy is not None and policy.value is False:
        raise PolicyError(
            "clusterPolicy.deployCR is false and gpuCluster.deployCR is not true: nothing is deployed",
            place=source.place(policy),
        )
    if crd is None or enabled is None or not enabled.value:
        return None
    if not source.enabled("driver", otherwise=True):
        return None
    deploy_default = crd.get("deployDefaultCR")
    if deploy_default is not None and not deploy_default.value:
        return deploy_default
    driver_type = crd.get("driverType")
    if driver_type is not None and driver_type.value != "gpu":
        raise PolicyError(
            f"driver.nvidiaDriverCRD.driverType is {driver_type.value!r}, wanted 'gpu'",
            place=source.place(driver_type),
        )
    return None


def chart_selector(source: Source) -> Item | None:
    """The node selector of the chart's NVIDIADriver; later charts do not pass it on."""
    crd = source.spec.get("driver", "nvidiaDriverCRD")
    if crd is None or not source.before("v26.7.0"):
        return None
    enabled = crd.get("enabled")
    return crd.get("nodeSelector") if enabled is not None and enabled.value else None


def chart_notes(source: Source) -> Iterator[str]:
    """Yield notes on the chart's defaults that concern a node."""
    spec, defaults = source.spec, history.chart_defaults(source.release)
    unset = {
        path: f"{path} {shown_value(defaults[path])}"
        for path in _ABOUT_NODES
        if path in defaults and spec.get(*path.split(".")) is None and not is_null(spec, path)
    }
    versions = [text for path, text in unset.items() if path.endswith(".version")]
    settings = [text for path, text in unset.items() if not path.endswith(".version")]
    if settings:
        yield (
            f"{source.file}: not set, so that the defaults of the chart of {source.release} apply: "
            f"{', '.join(settings)}"
        )
    if versions:
        yield (
            f"{source.file}: not set, and the default versions of the chart of {source.release} are not used: "
            f"{', '.join(versions)}"
        )
    for path in _SWITCHES:
        if is_null(spec, path):
            yield (
                f"{source.file}: {path} is null: the chart renders no value, and the Operator's default "
                f"is {'on' if path in NIL_IS_ON else 'off'}"
            )


def shown_value(value: object) -> str:
    """A default in YAML."""
    return json.dumps(value) if not isinstance(value, str) or not value else value


def is_null(spec: Item, path: str) -> bool:
    """Whether the key is ``null``, which removes the chart's default."""
    *above, key = path.split(".")
    section = spec.get(*above) if above else spec
    value = (
        section.value.get(key) if section is not None and isinstance(section.value, dict) else None
    )
    return isinstance(value, Item) and value.value is None
