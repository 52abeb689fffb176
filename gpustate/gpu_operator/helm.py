"""The GPU Operator's Helm values: ClusterPolicy's spec with other names in some places.

Only the differences from ClusterPolicy are here. The chart's defaults are in
:mod:`gpustate.gpu_operator.history`. Default versions change with every release of the chart, and a values file
does not name its release, so no state uses them: they are reported in notes. Values of the subchart are in
:mod:`gpustate.gpu_operator.nfd`.

Sources:
    NVIDIA/gpu-operator v26.7: deployments/gpu-operator/{values.yaml,templates/clusterpolicy.yaml}.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace

from gpustate.errors import PolicyError
from gpustate.gpu_operator import history
from gpustate.gpu_operator.blocks import (
    ENV,
    IMAGE,
    RESOURCES,
    TOLERATIONS,
    Field,
    Fields,
    Support,
    dead,
    honoured,
    in_objects,
    kubernetes,
    under,
)
from gpustate.gpu_operator.desired import Source
from gpustate.gpu_operator.documents import Item
from gpustate.gpu_operator.fields import CLUSTER_POLICY
from gpustate.gpu_operator.gpucluster import DRA_DRIVER
from gpustate.gpu_operator.nfd import NFD

_DEPLOYMENT = "about the Operator's own Deployment"
_CHART = "an object that the chart installs"
_DROPPED = "dropped by the chart's template"

#: Not in a ClusterPolicy, or with another meaning there.
_CHART_ONLY: Fields = {
    **under("operator", IMAGE, RESOURCES, ENV, TOLERATIONS),
    **under(
        "operator",
        {
            "labels": kubernetes("map[string]", _CHART),
            "annotations": kubernetes("map[string]", _DEPLOYMENT),
            "priorityClassName": kubernetes("string", _DEPLOYMENT),
            "nodeSelector": kubernetes("map[string]", _DEPLOYMENT),
            "affinity": kubernetes("any", _DEPLOYMENT),
            "logging.timeEncoding": kubernetes("string", _DEPLOYMENT),
            "logging.level": kubernetes("int-or-string", _DEPLOYMENT),
            "logging.develMode": kubernetes("boolean", _DEPLOYMENT),
            "cleanupCRD": kubernetes("boolean", _CHART),
            "upgradeCRD": kubernetes("boolean", _CHART),
            "defaultGPUMode": dead(
                "string",
                "passed on by the chart, and dropped by the API server",
                until="1.5.1",
            ),
        },
    ),
    "platform.openshift": kubernetes("boolean", _CHART),
    "nfd.enabled": in_objects("boolean", "the objects of node feature discovery, when it is true"),
    "nfd.nodefeaturerules": in_objects("boolean", "the NodeFeatureRule nvidia-kernel-modules"),
    **NFD,
    "clusterPolicy.deployCR": honoured("boolean", "false: no states but those of a GPUCluster"),
    "gpuCluster.deployCR": honoured("boolean", "true: the states of a GPUCluster"),
    **DRA_DRIVER,
    "extraObjects": kubernetes("any", _CHART),
    "global": in_objects("any", "imagePullSecrets of node feature discovery"),
    "nameOverride": kubernetes("string", _CHART),
    "fullnameOverride": kubernetes("string", _CHART),
    "driver.nvidiaDriverCRD.enabled": honoured("boolean", "driver, which the values describe too"),
    "driver.nvidiaDriverCRD.deployDefaultCR": honoured(
        "boolean", "false: the NVIDIADriver next to the values"
    ),
    "driver.nvidiaDriverCRD.driverType": honoured(
        "string",
        "driver, when it is 'gpu'; other values are refused",
        choices=("gpu", "vgpu", "vgpu-host-manager"),
    ),
    "driver.nvidiaDriverCRD.nodeSelector": dead("map[string]", _DROPPED, until="v26.3.3"),
    "dcgmExporter.config.create": honoured("boolean", "the ConfigMap of dcgm-exporter.counters"),
    "dcgmExporter.config.data": honoured("string", "the ConfigMap of dcgm-exporter.counters"),
    **{
        f"{section}.config.{key}": honoured(
            "boolean" if key == "create" else "map[string]", f"the ConfigMap of {parameter}"
        )
        for section, parameter in (
            ("devicePlugin", "device-plugin-config.configs"),
            ("migManager", "mig.file"),
        )
        for key in ("create", "data")
    },
}
#: Fields of a ClusterPolicy that the chart's template does not pass on.
_NOT_PASSED_ON = (
    *("cdi.default", "dcgm.hostPort", "devicePlugin.mps.root", "driver.useOpenKernelModules"),
    *("operator.defaultRuntime", "operator.initContainer.", "psp.enabled", "toolkit.args"),
    *("daemonsets.podSecurityContext.", "vfioManager.driverManager.imagePullSecrets"),
    "vgpuManager.driverManager.imagePullSecrets",
)
#: Quoted by the template, so numbers are accepted too.
_QUOTED = re.compile(
    r"(?!operator)[A-Za-z.]+\.version|(devicePlugin|migManager)\.config\.(name|default)"
    r"|daemonsets\.rollingUpdate\.maxUnavailable"
)
_RENAMED = {"driver.upgradePolicy.podDeletion.": "driver.upgradePolicy.gpuPodDeletion."}


#: Written without quotes by the template, which YAML then parses again: "true" is true, "" is null. Not those
#: that the chart compares with a boolean (cdi.*), or tests before (driver.nvidiaDriverCRD.enabled).
_PARSED_AGAIN = frozenset(
    {
        *(
            f"{section}.{key}"
            for section in (
                *(
                    "ccManager",
                    "dcgm",
                    "dcgmExporter",
                    "devicePlugin",
                    "driver",
                    "gfd",
                    "kataManager",
                ),
                *(
                    "kataSandboxDevicePlugin",
                    "migManager",
                    "nodeStatusExporter",
                    "sandboxDevicePlugin",
                ),
                *("toolkit", "validator", "vfioManager", "vgpuDeviceManager", "vgpuManager"),
                *("gds", "gdrcopy", "psa", "sandboxWorkloads", "driver.rdma"),
            )
            for key in ("enabled", "hostNetwork")
        ),
        *("daemonsets.updateStrategy", "dcgmExporter.enablePodLabels"),
        *("dcgmExporter.enablePodUID", "dcgmExporter.hostPID", "driver.kernelModuleType"),
        *("driver.rdma.useHostMofed", "driver.usePrecompiled", "mig.strategy"),
        *("operator.use_ocp_driver_toolkit", "sandboxWorkloads.defaultWorkload"),
        *("driver.upgradePolicy.autoUpgrade", "driver.upgradePolicy.maxParallelUpgrades"),
        *(
            f"driver.upgradePolicy.{key}"
            for key in (
                *("drain.deleteEmptyDir", "drain.enable", "drain.force", "drain.timeoutSeconds"),
                *("podDeletion.deleteEmptyDir", "podDeletion.force", "podDeletion.timeoutSeconds"),
                "waitForCompletion.timeoutSeconds",
            )
        ),
    }
)


def _as_in_chart(path: str, field: Field) -> Field:
    """A field of ClusterPolicy as the chart's template passes it on."""
    if path.startswith(_NOT_PASSED_ON) and field.support is not Support.DEAD:
        field = replace(
            field, support=Support.DEAD, detail=_DROPPED, until="", objects=False, off=None
        )
    if _QUOTED.fullmatch(path) and field.type == "string":
        field = replace(field, type="quoted")
    return replace(field, parsed_again=True) if path in _PARSED_AGAIN else field


def _renamed(path: str) -> str:
    for old, new in _RENAMED.items():
        path = new + path.removeprefix(old) if path.startswith(old) else path
    return path


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


HELM: Fields = {
    **{
        _renamed(path): _as_in_chart(path, field)
        for path, field in CLUSTER_POLICY.items()
        if path != "driver.useNvidiaDriverCRD"
    },
    **_CHART_ONLY,
}
SECTIONS = frozenset(path.partition(".")[0] for path in HELM)


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
    made = crd.get("deployDefaultCR")
    if made is not None and not made.value:
        return made
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
    others = [text for path, text in unset.items() if not path.endswith(".version")]
    if others:
        yield (
            f"{source.file}: not set, so that the defaults of the chart of {source.release} apply: "
            f"{', '.join(others)}"
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
