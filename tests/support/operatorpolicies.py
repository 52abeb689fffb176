"""ClusterPolicies that differ from the Operator's own sample in one thing each, as what is merged into its ``spec``."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

from gpustate.documents import Json

_DIGEST = "sha256:" + "0123456789abcdef" * 4
_CONFIGS: Json = {
    "time-slicing": {
        "version": "v1",
        "sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}},
    },
    "mps": {
        "version": "v1",
        "sharing": {"mps": {"resources": [{"name": "nvidia.com/gpu", "replicas": 2}]}},
    },
}
_TOLERATIONS = [
    {"key": "dedicated", "operator": "Equal", "value": "gpu", "effect": "NoExecute"},
    {"operator": "Exists"},
]
_RESOURCES = {"limits": {"memory": "200Mi"}, "requests": {"cpu": "50m", "memory": "100Mi"}}

#: What is merged into the sample's ``spec``, by a name.
VARIANTS: Mapping[str, Json] = {
    "sample": {},
    "CDI on": {"cdi": {"enabled": True}},
    "CDI by default": {"cdi": {"enabled": True, "default": True}},
    "CDI off": {"cdi": {"enabled": False}},
    "CDI on without the toolkit": {"cdi": {"enabled": True}, "toolkit": {"enabled": False}},
    "MIG none": {"mig": {"strategy": "none"}},
    "MIG mixed": {"mig": {"strategy": "mixed"}},
    "time-slicing for all": {
        "devicePlugin": {"config": {"name": "plugin", "default": "time-slicing"}}
    },
    "time-slicing by label": {"devicePlugin": {"config": {"name": "plugin", "default": ""}}},
    "MPS for all": {"devicePlugin": {"config": {"name": "plugin", "default": "mps"}}},
    "MPS below another root": {
        "devicePlugin": {
            "config": {"name": "plugin", "default": "mps"},
            "mps": {"root": "/var/lib/nvidia/mps"},
        }
    },
    "tolerations": {"daemonsets": {"tolerations": _TOLERATIONS}},
    "labels and annotations": {
        "daemonsets": {
            "labels": {"team": "ml", "app": "mine"},
            "annotations": {"example.com/owner": "ml"},
        }
    },
    "priority class": {"daemonsets": {"priorityClassName": "gpu-critical"}},
    "updates on delete": {"daemonsets": {"updateStrategy": "OnDelete"}},
    "rolling updates": {
        "daemonsets": {
            "updateStrategy": "RollingUpdate",
            "rollingUpdate": {"maxUnavailable": "25%"},
        }
    },
    "rolling updates by number": {
        "daemonsets": {"updateStrategy": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "3"}}
    },
    "environment": {
        "devicePlugin": {
            "env": [
                {"name": "DP_DISABLE_HEALTHCHECKS", "value": "xids"},
                {"name": "FAIL_ON_INIT_ERROR", "value": "false"},
            ]
        },
        "gfd": {"env": [{"name": "GFD_SLEEP_INTERVAL", "value": "10s"}]},
    },
    "resources": {"devicePlugin": {"resources": _RESOURCES}, "gfd": {"resources": _RESOURCES}},
    "resources with configurations": {
        "devicePlugin": {
            "resources": _RESOURCES,
            "config": {"name": "plugin", "default": "time-slicing"},
        }
    },
    "arguments": {"devicePlugin": {"args": ["--device-id-strategy=index"]}},
    "arguments of GFD": {"gfd": {"args": ["--sleep-interval=5s"]}},
    "digests": {"devicePlugin": {"version": _DIGEST}, "gfd": {"version": _DIGEST}},
    "a mirror": {
        "devicePlugin": {"repository": "registry.example.com/nvidia"},
        "gfd": {"repository": "registry.example.com/nvidia"},
    },
    "complete references": {
        "devicePlugin": {
            "repository": "",
            "image": "registry.example.com/nvidia/plugin:v1",
            "version": "",
        }
    },
    "pull policy and secrets": {
        "devicePlugin": {"imagePullPolicy": "Always", "imagePullSecrets": ["mirror"]},
        "gfd": {"imagePullPolicy": "Never", "imagePullSecrets": ["mirror", "another"]},
    },
    "pod security": {"psa": {"enabled": True}},
    "another runtime class": {"operator": {"runtimeClass": "nvidia-gpus"}},
    "no device plugin": {"devicePlugin": {"enabled": False}},
    "no GFD": {"gfd": {"enabled": False}},
    "host driver": {"driver": {"enabled": False}},
    "host driver and toolkit": {"driver": {"enabled": False}, "toolkit": {"enabled": False}},
    "GPUDirect Storage": {"gds": {"enabled": True}, "driver": {"useOpenKernelModules": True}},
    "GDRCopy": {"gdrcopy": {"enabled": True}},
    "no monitoring": {"dcgm": {"enabled": False}, "dcgmExporter": {"enabled": False}},
    "monitoring without a host engine": {"dcgm": {"enabled": False}},
    "monitoring by pods": {"dcgm": {"enabled": None}, "dcgmExporter": {"enabled": None}},
    "monitoring by pods without a host engine": {
        "dcgm": {"enabled": False},
        "dcgmExporter": {
            "enabled": None,
            "env": [{"name": "DCGM_EXPORTER_INTERVAL", "value": "5000"}],
        },
    },
    "node status exporter": {"nodeStatusExporter": {"enabled": True}},
    "no MIG manager": {"migManager": {"enabled": False}},
    "everything at once": {
        "cdi": {"enabled": True},
        "mig": {"strategy": "single"},
        "psa": {"enabled": True},
        "daemonsets": {
            "labels": {"team": "ml"},
            "tolerations": _TOLERATIONS,
            "updateStrategy": "OnDelete",
        },
        "devicePlugin": {
            "config": {"name": "plugin", "default": "mps"},
            "env": [{"name": "DP_DISABLE_HEALTHCHECKS", "value": "all"}],
            "resources": _RESOURCES,
        },
    },
    # Of later releases.
    "host network": {"hostNetwork": True, "devicePlugin": {"hostNetwork": True}},
    "pod security context": {
        "daemonsets": {"podSecurityContext": {"seccompProfile": {"type": "RuntimeDefault"}}}
    },
    "NRI plugin": {"cdi": {"enabled": True, "nriPluginEnabled": True}},
}
#: Variants of fields that earlier releases lack.
LATER: Mapping[str, str] = dict.fromkeys(
    ("host network", "pod security context", "NRI plugin"), "v26.3.0"
)

_ENV = [{"name": "A", "value": "b"}, {"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]
_MANAGER = {
    "repository": "mirror.example.com/nvidia",
    "image": "k8s-driver-manager",
    "version": "v9",
    "imagePullPolicy": "Always",
    "imagePullSecrets": ["manager"],
    "env": [{"name": "ENABLE_AUTO_DRAIN", "value": "true"}, {"name": "C", "value": "d"}],
}
_PULLED = {"imagePullPolicy": "Always", "imagePullSecrets": ["mirror"]}
#: The same where the components run as containers. ConfigMaps and Secrets that they name are in ``BESIDE``.
IN_CONTAINERS: Mapping[str, Json] = {
    "sample": {},
    "CDI on": {"cdi": {"enabled": True}},
    "CDI off": {"cdi": {"enabled": False}},
    "no MIG manager": {"migManager": {"enabled": False}},
    "no device plugin": {"devicePlugin": {"enabled": False}},
    "host driver": {"driver": {"enabled": False}},
    "host driver and toolkit": {"driver": {"enabled": False}, "toolkit": {"enabled": False}},
    "driver": {
        "driver": {
            **_PULLED,
            "resources": _RESOURCES,
            "args": ["init", "--verbose"],
            "env": _ENV,
            "startupProbe": {"initialDelaySeconds": 5, "failureThreshold": 9},
            "manager": _MANAGER,
            "secretEnv": "proxies",
        }
    },
    "driver by digest": {"driver": {"version": _DIGEST}},
    "modules": {
        "driver": {
            "rdma": {"enabled": True, "useHostMofed": True},
            "resources": _RESOURCES,
            "kernelModuleConfig": {"name": "modules"},
            "repoConfig": {"configMapName": "repositories"},
            "certConfig": {"name": "certificates"},
        },
        "gds": {"enabled": True, "env": _ENV, **_PULLED},
        "gdrcopy": {"enabled": True, "env": _ENV},
    },
    "peer memory": {"driver": {"rdma": {"enabled": True}}},
    "licence by Secret": {
        "driver": {
            "licensingConfig": {"secretName": "license", "nlsEnabled": True},
            "virtualTopology": {"config": "topology"},
        }
    },
    "licence by ConfigMap": {"driver": {"licensingConfig": {"configMapName": "license"}}},
    "precompiled": {"driver": {"usePrecompiled": True, "version": "580"}},
    "toolkit": {
        "toolkit": {
            **_PULLED,
            "resources": _RESOURCES,
            "installDir": "/opt/nvidia",
            "env": [
                {"name": "CONTAINERD_CONFIG", "value": "/etc/k3s/config.toml"},
                {"name": "CONTAINERD_SOCKET", "value": "/run/k3s/containerd.sock"},
                {"name": "CONTAINERD_SET_AS_DEFAULT", "value": "true"},
            ],
        }
    },
    "validator": {
        "validator": {
            **_PULLED,
            "env": _ENV,
            "args": ["echo"],
            "resources": _RESOURCES,
            "driver": {"env": _ENV},
            "toolkit": {"env": _ENV},
            "cuda": {"env": [{"name": "WITH_WORKLOAD", "value": "false"}]},
            "plugin": {"env": [{"name": "WITH_WORKLOAD", "value": "true"}]},
        }
    },
    "MIG manager": {
        "migManager": {
            **_PULLED,
            "env": _ENV,
            "args": ["--verbose"],
            "resources": _RESOURCES,
            "config": {"name": "layouts"},
            "gpuClientsConfig": {"name": "clients"},
        }
    },
    "machines": {
        "sandboxWorkloads": {"enabled": True},
        "vgpuManager": {
            **_PULLED,
            "enabled": True,
            "repository": "registry.example.com",
            "image": "vgpu-manager",
            "version": "580.95.02",
            "env": _ENV,
            "args": ["init", "--verbose"],
            "resources": _RESOURCES,
            "driverManager": _MANAGER,
        },
        "vgpuDeviceManager": {
            **_PULLED,
            "enabled": True,
            "env": _ENV,
            "args": ["--verbose"],
            "resources": _RESOURCES,
            "config": {"name": "vgpus", "default": "A10-24Q"},
        },
        "vfioManager": {
            **_PULLED,
            "enabled": True,
            "env": _ENV,
            "args": ["bind"],
            "resources": _RESOURCES,
            "driverManager": _MANAGER,
        },
        "sandboxDevicePlugin": {"enabled": True},
        "validator": {
            "env": _ENV,
            "vfioPCI": {"env": _ENV},
            "vgpuManager": {"env": _ENV},
            "vgpuDevices": {"env": _ENV},
        },
    },
    # Of later releases.
    "host paths": {"hostPaths": {"rootFS": "/host", "driverInstallDir": "/var/lib/nvidia"}},
    "NRI plugin": {"cdi": {"enabled": True, "nriPluginEnabled": True}},
    "vGPU modules": {
        "sandboxWorkloads": {"enabled": True},
        "vgpuManager": {
            "enabled": True,
            "repository": "registry.example.com",
            "image": "vgpu-manager",
            "version": "580.95.02",
            "kernelModuleConfig": {"name": "modules"},
        },
    },
    "kata": {
        "sandboxWorkloads": {"enabled": True, "mode": "kata"},
        "ccManager": {"enabled": True, "defaultMode": "on"},
        "kataSandboxDevicePlugin": {"enabled": True},
        "vfioManager": {"enabled": True},
        "vgpuManager": {"enabled": False},
        "vgpuDeviceManager": {"enabled": False},
    },
    "host network of all": {
        section: {"hostNetwork": True}
        for section in ("driver", "toolkit", "validator", "migManager")
    },
}
#: Of these variants, those of fields that earlier releases lack.
LATER_IN_CONTAINERS: Mapping[str, str] = dict.fromkeys(
    ("modules", "host paths", "NRI plugin", "vGPU modules", "kata", "host network of all"),
    "v26.3.0",
)
#: Their driver never becomes ready on a virtual node.
NEVER_READY = ("precompiled",)
#: NVIDIADrivers, as their ``spec`` over an image of NVIDIA's registry.
DRIVERS: Mapping[str, Json] = {
    "bare": {},
    "whole": {
        **_PULLED,
        # Of a variable that the manager has already, the Operator makes a second one.
        "manager": {**_MANAGER, "env": [{"name": "C", "value": "d"}]},
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"key": "gold", "operator": "Exists"}],
        "labels": {"team": "ml", "app": "ignored"},
        "annotations": {"example.com/owner": "ml"},
        "priorityClassName": "gold",
        "podSecurityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "resources": _RESOURCES,
        "args": ["--verbose"],
        "env": [{"name": "A", "value": "b"}],
        "startupProbe": {
            **dict.fromkeys(("initialDelaySeconds", "timeoutSeconds", "periodSeconds"), 7),
            **dict.fromkeys(("successThreshold", "failureThreshold"), 1),
        },
        "rdma": {"enabled": True, "useHostMofed": True},
        "gds": {
            "enabled": True,
            "repository": "nvcr.io/nvidia/cloud-native",
            "image": "nvidia-fs",
            "version": "2.29.4",
            "env": [{"name": "C", "value": "d"}],
        },
        "gdrcopy": {
            "enabled": True,
            "repository": "nvcr.io/nvidia/cloud-native",
            "image": "gdrdrv",
            "version": "v2.6",
        },
        "kernelModuleType": "open",
        "kernelModuleConfig": {"name": "modules"},
        "repoConfig": {"name": "repositories"},
        "certConfig": {"name": "certificates"},
        "licensingConfig": {"secretName": "license", "nlsEnabled": True},
        "virtualTopologyConfig": {"name": "topology"},
        "secretEnv": "proxies",
        "hostNetwork": True,
    },
    "precompiled": {"usePrecompiled": True, "version": "580"},
}


def nvidia_driver(name: str) -> Json:
    """One of :data:`DRIVERS`."""
    image = {"repository": "nvcr.io/nvidia", "image": "driver", "version": "580.95.05"}
    manager = {"repository": "nvcr.io/nvidia", "image": "k8s-driver-manager", "version": "v0.12.0"}
    return {
        "apiVersion": "nvidia.com/v1alpha1",
        "kind": "NVIDIADriver",
        "metadata": {"name": "gold"},
        "spec": {"driverType": "gpu", **image, "manager": manager, **DRIVERS[name]},
    }


#: ConfigMaps that variants name, with their data.
BESIDE: Mapping[str, Mapping[str, str]] = {
    "modules": {"nvidia.conf": "NVreg_EnableMSI=1\n", "nvidia-uvm.conf": "uvm_debug=0\n"},
    "repositories": {"custom.list": "deb http://mirror.example.com jammy main\n"},
    "certificates": {"mirror.crt": "certificate\n"},
    "license": {"gridd.conf": "FeatureType=1\n", "client_configuration_token.tok": "token\n"},
    "topology": {"nvidia-topologyd.conf": "a\n"},
    "layouts": {
        "config.yaml": "version: v1\nmig-configs:\n  all-disabled:\n    - {devices: all, mig-enabled: false}\n"
    },
    "clients": {"clients.yaml": "version: v1\nsystemd-services: [nvsm.service]\n"},
    "vgpus": {
        "config.yaml": "version: v1\nvgpu-configs:\n  A10-24Q: [{devices: all, vgpu-devices: {A10-24Q: 1}}]\n"
    },
}
#: Secrets that variants name.
SECRETS = ("license", "proxies")


def policy(sample: Json, name: str) -> Json:
    """The sample with a variant merged into its ``spec``."""
    return _varied(sample, VARIANTS[name])


def policy_in_containers(sample: Json, name: str) -> Json:
    """The same of the variants whose components run as containers."""
    return _varied(sample, IN_CONTAINERS[name])


def config_maps() -> list[Json]:
    """The ConfigMaps of :data:`BESIDE`."""
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": "gpu-operator"},
            "data": dict(data),
        }
        for name, data in BESIDE.items()
    ]


def _varied(sample: Json, variant: Json) -> Json:
    found = copy.deepcopy(sample)
    _merge(found["spec"], variant)
    return found


def config_map(document: Json) -> Json | None:
    """The ConfigMap that a policy refers to, if it does."""
    name = ((document["spec"].get("devicePlugin") or {}).get("config") or {}).get("name")
    if not name:
        return None
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "gpu-operator"},
        "data": {key: _as_text(value) for key, value in _CONFIGS.items()},
    }


def _as_text(value: Any) -> str:
    return json.dumps(value, indent=1) + "\n"


def _merge(base: Json, more: Json) -> None:
    for key, value in more.items():
        if value is None:
            base.pop(key, None)
        elif isinstance(value, dict) and isinstance(base.get(key), dict):
            _merge(base[key], value)
        else:
            base[key] = copy.deepcopy(value)
