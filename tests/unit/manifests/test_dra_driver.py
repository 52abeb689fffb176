"""NVIDIA's DRA driver: the objects of a GPUCluster against what Helm renders from the driver's own chart.

Names, labels and mounts are those of the GPU Operator; every other difference from the chart has its reason here.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from operatordifferences import MISSING, Wanted, compare, unexpected, unused

from gpustate import policies
from gpustate.documents import Json
from gpustate.gpu_operator.objects import images
from gpustate.manifests.build import build
from gpustate.manifests.cluster_part import settings_of
from gpustate.manifests.kinds import COMPUTE_DOMAINS

DATA = Path(__file__).parents[2] / "data" / "dra-driver-chart"
CASES = ("domains-v0.4.1", "domains-v0.5.0", "gpus-v0.4.1", "gpus-v0.5.0")
#: Names of the chart, and those of the Operator; the first that matches.
NAMES = (
    ("dra-driver-nvidia-gpu-role-kubeletplugin", "nvidia-dra-driver-kubeletplugin"),
    ("dra-driver-nvidia-gpu-role-binding-(.*)", r"nvidia-dra-driver-\1"),
    ("dra-driver-nvidia-gpu-role-(.*)", r"nvidia-dra-driver-\1"),
    ("dra-driver-nvidia-gpu-clusterrole-(binding-)?([a-z]+)(-gpu-operator)?", r"nvidia-dra-driver-\2"),
    ("dra-dra-driver-nvidia-gpu-service-account-(.*)", r"nvidia-dra-driver-\1"),
    ("dra-driver-nvidia-gpu-(kubelet-plugin|controller)", r"nvidia-dra-driver-\1"),
    ("compute-domain-daemon-role(-binding)?", "compute-domain-daemon"),
    ("resourceslices-policy-.*", "resourceslices-policy-nvidia-dra-driver"),
)  # fmt: skip

_DAEMONS = "daemonset/nvidia-dra-driver-kubelet-plugin"
_CONTROLLER = "deployment/nvidia-dra-driver-controller"
_POLICY = "validatingadmissionpolicy/*"
_POD = "spec/template/spec"
_LABELS = "labels of Helm, of the Operator and of gpustate"
_SERVER = "the value that the server has where there is none"
_ROOT = "the driver's root is the host's, under the Operator's name"
_NODES = "the Operator's label says which Nodes have the plugin; its tolerations are those of all DaemonSets"
_DEFAULT = "the program's own default"
_WORDS = "gpustate's own words, with the same effect"
_MPS = "of MPS daemons: the server's default, as with the Operator"
_OPERATOR = "as the Operator has it"
_NARROW = "rights for compute domains only with compute domains; to patch Nodes is new in v0.5"
WANTED = (
    Wanted("*", "metadata/labels*", _LABELS),
    Wanted("*", "spec/selector/matchLabels/*", _LABELS),
    Wanted("*", "spec/template/metadata/labels/*", _LABELS),
    Wanted("*", "*/fieldRef/apiVersion", _SERVER, MISSING, "v1"),
    Wanted(_DAEMONS, "spec/updateStrategy/rollingUpdate/maxSurge", _SERVER, MISSING, 0),
    Wanted("*", f"{_POD}/automountServiceAccountToken", _SERVER, MISSING, ours=True),
    Wanted(_CONTROLLER, "*/env/PPROF_PATH/value", _SERVER, "", MISSING),
    Wanted(_POLICY, "spec/matchConstraints/matchPolicy", _SERVER, MISSING, "Equivalent"),
    Wanted(_POLICY, "spec/matchConstraints/resourceRules", "with the server's scope"),
    Wanted(_POLICY, "spec/matchConditions/isRestrictedUser/expression", "the chart's names no account of its own"),
    Wanted(_POLICY, "spec/variables/*", _WORDS),
    Wanted(_POLICY, "spec/validations", _WORDS),
    Wanted(_DAEMONS, f"{_POD}/initContainers", "it only reports a missing driver, which an apply installs before", ours=MISSING),
    Wanted(_DAEMONS, f"{_POD}/containers/*/command", "the program without a shell"),
    Wanted(_DAEMONS, f"{_POD}/containers/*/args", "nothing asks to mask the parameters of the driver", ours=MISSING),
    Wanted(_DAEMONS, "*/env/MASK_NVIDIA_DRIVER_PARAMS", "nothing asks to mask the parameters of the driver", ours=MISSING),
    Wanted(_DAEMONS, "*/env/DRIVER_ROOT_CTR_PATH", _ROOT, MISSING),
    Wanted(_DAEMONS, "*/env/HOST_ROOT", _ROOT, MISSING),
    Wanted(_DAEMONS, "*/env/HOST_ROOT/value", _ROOT, "/host-root", "/host"),
    Wanted(_DAEMONS, "*/env/IMAGE_PULL_SECRETS", "a variable of v0.5", MISSING),
    Wanted(_DAEMONS, "*/volumeMounts//driver-root/*", _ROOT),
    Wanted(_DAEMONS, "*/volumeMounts//driver-root", _ROOT, ours=MISSING),
    Wanted(_DAEMONS, "*/volumeMounts//host", _ROOT, MISSING),
    Wanted(_DAEMONS, f"{_POD}/volumes/driver-root*", _ROOT, ours=MISSING),
    Wanted(_DAEMONS, f"{_POD}/volumes/host-root", _ROOT, MISSING),
    Wanted(_DAEMONS, f"{_POD}/volumes/host-root/hostPath/type", _ROOT),
    Wanted(_DAEMONS, f"{_POD}/volumes/cdi/hostPath/type", "the folder is in memory, and may be missing after a boot", MISSING),
    Wanted(_DAEMONS, f"{_POD}/affinity", _NODES, ours=MISSING),
    Wanted(_DAEMONS, f"{_POD}/nodeSelector", _NODES, MISSING),
    Wanted("*", f"{_POD}/tolerations/*", _NODES, MISSING),
    Wanted(_CONTROLLER, f"{_POD}/affinity/podAntiAffinity", "it has one replica", ours=MISSING),
    Wanted(_DAEMONS, "*/env/IMEX_*", _DEFAULT, ours=MISSING),
    Wanted(_CONTROLLER, "*/env/IMEX_*", _DEFAULT, ours=MISSING),
    Wanted(_DAEMONS, "*/env/SERVICE_ACCOUNT_NAME", _MPS, ours=MISSING),
    Wanted(_DAEMONS, "*/env/IMAGE_PULL_POLICY", _MPS, ours=MISSING),
    Wanted(_DAEMONS, "*/env/GPU_CLIQUE_LABEL_ENABLED*", "a GPUCluster has no GPU feature discovery, which sets it otherwise"),
    Wanted(_CONTROLLER, "*/env/LEADER_ELECTION_LEASE_LOCK_NAME/value", _OPERATOR),
    Wanted(_DAEMONS, "*/env/FEATURE_GATES/value", "without a last comma", "MPSSupport=true,PassthroughSupport=true,"),
    Wanted("*role/nvidia-dra-driver-kubeletplugin", "rules", _NARROW),
    Wanted("*role*/*-mps", "", "rights to create MPS daemons are a role of their own", MISSING),
    *(Wanted(f"*/{name}*", "", _NARROW, ours=MISSING) for name in ("compute-domain-daemon", "nvidia-dra-driver-controller")),
    Wanted("role*/nvidia-dra-driver-kubeletplugin", "", _NARROW, ours=MISSING),
    Wanted(_DAEMONS, "*/volumeMounts//lib/modules", "a mount of v0.5", MISSING),
    Wanted(_DAEMONS, f"{_POD}/volumes/lib-modules", "a mount of v0.5", MISSING),
    Wanted("deviceclass/gpu.nvidia.com", "spec/extendedResourceName", _OPERATOR, "nvidia.com/gpu", MISSING),
)  # fmt: skip


def renamed(name: str) -> str:
    return next((re.sub(a, b, name) for a, b in NAMES if re.fullmatch(a, name)), name)


def of_chart(case: str) -> list[Json]:
    """What Helm renders, with the names of the Operator."""
    items = [
        item for item in yaml.safe_load_all((DATA / f"{case}.yaml").read_text("utf-8")) if item
    ]
    for item in items:
        places = [item["metadata"], item.get("roleRef", {}), *item.get("subjects", ())]
        template = item["spec"].get("template", {}) if "spec" in item else {}
        for place in places:
            if "name" in place:
                place["name"] = renamed(place["name"])
        if "spec" in template:
            for volume in template["spec"].get("volumes", ()):
                volume["hostPath"]["path"] = volume["hostPath"]["path"].rstrip("/") or "/"
            for container in template["spec"]["containers"]:
                for mount in container.get("volumeMounts", ()):
                    mount["mountPath"] = mount["mountPath"].rstrip("/")
            account = template["spec"]["serviceAccountName"]
            template["spec"]["serviceAccountName"] = renamed(account)
        if "policyName" in item.get("spec", {}):
            item["spec"]["policyName"] = renamed(item["spec"]["policyName"])
    return items


def of_policy(case: str, folder: Path) -> list[Json]:
    """The objects of the DRA driver for a GPUCluster that says the same as the values of the chart."""
    name, _, version = case.partition("-")
    file = folder / "gpucluster.yaml"
    text = (DATA / f"{name}.gpucluster.yaml").read_text("utf-8")
    file.write_text(text.replace("$version", version), "utf-8")
    settings = settings_of(policies.load(str(file)))
    items = [
        item
        for item in build(settings, images())
        if item["kind"] not in ("Namespace", "RuntimeClass")
    ]
    assert not [
        item
        for item in items
        if "gpu.nvidia.com" not in (title := str(item))
        and "dra-driver" not in title
        and "compute-domain" not in title
    ]
    return items


@pytest.mark.parametrize("case", CASES)
def test_every_difference_from_the_chart_has_its_reason(case: str, tmp_path: Path) -> None:
    differences = compare(of_chart(case), of_policy(case, tmp_path))
    assert [str(difference) for difference in unexpected(differences, WANTED)] == []


def test_every_reason_is_one_of_a_difference(tmp_path: Path) -> None:
    differences = [
        one for case in CASES for one in compare(of_chart(case), of_policy(case, tmp_path))
    ]
    assert unused(differences, WANTED) == []


def test_a_plugin_with_mps_sees_the_host_where_the_pods_of_mps_daemons_do(tmp_path: Path) -> None:
    (plugin,) = (item for item in of_policy("gpus-v0.5.0", tmp_path) if item["kind"] == "DaemonSet")
    (container,) = plugin["spec"]["template"]["spec"]["containers"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert mounts["/driver-root"] == mounts["/host-root"] == mounts["/host"] == "host-root"


def test_the_kinds_of_compute_domains_are_those_that_the_chart_defines() -> None:
    definitions = list(yaml.safe_load_all((DATA / "definitions.yaml").read_text("utf-8")))
    defined = {
        (
            definition["spec"]["names"]["kind"],
            f"{definition['spec']['group']}/{version['name']}",
            definition["spec"]["names"]["plural"],
            definition["spec"]["scope"] == "Namespaced",
        )
        for definition in definitions
        for version in definition["spec"]["versions"]
        if version["served"]
    }
    assert {
        (kind.name, kind.version, kind.plural, kind.namespaced) for kind in COMPUTE_DOMAINS
    } == defined
