"""NVIDIA's containers in place of states: the choice, what it leaves out, what it refuses, and the objects."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from gpustate import Policy, policies
from gpustate.documents import Json
from gpustate.errors import PolicyError
from gpustate.gpu_operator.lint import lint
from gpustate.gpu_operator.objects import images
from gpustate.manifests.build import build, node_labels
from gpustate.manifests.cluster_part import settings_of

HEAD = "apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nmetadata: {name: x}\nspec:\n"
DRIVER = """\
---
apiVersion: nvidia.com/v1alpha1
kind: NVIDIADriver
metadata: {{name: {0}}}
spec: {{driverType: gpu, repository: r.example.com, image: driver, version: 580.95.05{1}}}
"""
ALL = "containers: all\nsystems: [ubuntu22.04]\n"
Read = Callable[..., Policy]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def load(spec: str = "", choice: str = ALL, head: str = HEAD, **files: str) -> Policy:
        file = tmp_path / "cp.yaml"
        file.write_text(head + (spec or "  daemonsets: {}\n"))
        (tmp_path / "cp.d").mkdir(exist_ok=True)
        for name, text in {"gpustate": choice, **files}.items():
            (tmp_path / "cp.d" / f"{name}.yaml").write_text(text)
        return policies.load(str(file))

    return load


def objects(policy: Policy) -> dict[str, Json]:
    assert policy.cluster is not None
    made = build(settings_of(policy), images())
    return {f"{one['kind']}/{one['metadata']['name']}": one for one in made}


def sets(policy: Policy) -> set[str]:
    return {name.partition("/")[2] for name in objects(policy) if name.startswith("DaemonSet/")}


def names(policy: Policy) -> list[str]:
    return [one.name for one in policy.states]


def test_without_the_file_nothing_is_a_container(tmp_path: Path) -> None:
    file = tmp_path / "cp.yaml"
    file.write_text(HEAD + "  driver: {secretEnv: proxies, imagePullSecrets: [a]}\n")
    policy = policies.load(str(file))
    assert "driver" in names(policy)
    assert not [name for name in sets(policy) if "driver" in name or "toolkit" in name]
    text = "\n".join(policy.notes)
    assert "not carried out: driver.secretEnv" in text
    assert "about Kubernetes objects, not nodes: driver.imagePullSecrets" in text


def test_all_leaves_only_the_checks_before_the_states(read: Read) -> None:
    policy = read("  driver: {secretEnv: proxies}\n  dcgm: {enabled: true}\n")
    assert names(policy) == ["preflight"]
    assert {
        *("nvidia-driver-daemonset", "nvidia-container-toolkit-daemonset", "nvidia-mig-manager"),
        *("nvidia-operator-validator", "nvidia-dcgm", "nvidia-dcgm-exporter"),
    } <= sets(policy)
    assert policy.cluster is not None
    assert settings_of(policy).mig is None, "the MIG manager carries out the label"
    assert not [note for note in policy.notes if "not carried out" in note]
    labels = node_labels(settings_of(policy))
    assert labels["nvidia.com/gpu.deploy.driver"] == "true"
    assert "nvidia.com/gpu.deploy.mig-manager" not in labels, "only Nodes with MIG have it"


def test_a_part_leaves_the_other_states(read: Read) -> None:
    policy = read(choice="containers: [toolkit, validator]\n")
    assert "driver" in names(policy)
    assert not {"container-toolkit", "containerd", "cdi", "validator"} & set(names(policy))
    assert "nvidia-driver-daemonset" not in sets(policy)


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ("containers: [driver]\n", "gpustate.yaml:1: driver as containers needs toolkit and vali"),
        ("containers: [drivers]\n", "containers has 'drivers'"),
        ("containers: driver\n", "containers is not a list"),
        ("container: [driver]\n", "unknown key 'container'"),
        ("containers: all\nsystems: [ubuntu]\n", "gpustate.yaml:2: systems has 'ubuntu'"),
        ("- driver\n", "is not a mapping"),
    ],
)
def test_a_wrong_choice_is_refused_with_its_line(read: Read, choice: str, words: str) -> None:
    with pytest.raises(PolicyError, match=r"gpustate\.yaml") as caught:
        read(choice=choice)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "choice", "words"),
    [
        ("", "containers: all\n", "that of the nodes is not known"),
        ("", "containers: all\nsystems: [ubuntu22.04, rhel9.4]\n", "ubuntu22.04, rhel9"),
        ("  driver: {usePrecompiled: true}\n", ALL, "precompiled drivers are for one kernel"),
        (
            "  driver: {usePrecompiled: true}\n  gds: {enabled: true}\n",
            "containers: all\nsystems: [ubuntu22.04/5.15.0-1-generic]\n",
            "gds is built from the driver's sources",
        ),
        (
            "  driver: {certConfig: {name: certs}}\n",
            "containers: all\nsystems: [arch1]\n",
            "for arch",
        ),
        ("  toolkit: {env: [{name: RUNTIME, value: runc}]}\n", ALL, "has no runtime 'runc'"),
    ],
)
def test_what_has_no_objects_is_refused(read: Read, spec: str, choice: str, words: str) -> None:
    certificates = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: certs}\ndata: {a.crt: x}\n"
    policy = read(spec, choice, certificates=certificates)
    with pytest.raises(PolicyError) as caught:
        objects(policy)
    assert words in str(caught.value)


def test_systems_come_from_nodes_next_to_the_policy(read: Read) -> None:
    feature = "feature.node.kubernetes.io/"
    node = {
        "kind": "Node",
        "metadata": {
            "name": "gpu1",
            "labels": {
                f"{feature}pci-10de.present": "true",
                f"{feature}system-os_release.ID": "rhel",
                f"{feature}system-os_release.VERSION_ID": "9.4",
            },
        },
    }
    policy = read(choice="containers: all\n", nodes=yaml.safe_dump(node))
    driver = objects(policy)["DaemonSet/nvidia-driver-daemonset"]["spec"]["template"]["spec"]
    assert driver["containers"][0]["image"].endswith("-rhel9")
    mounts = {one["mountPath"] for one in driver["containers"][0]["volumeMounts"]}
    assert "/run/secrets/rhsm" in mounts, "packages come by the node's subscription"


def test_precompiled_drivers_have_a_daemon_set_for_each_kernel(read: Read) -> None:
    choice = (
        "containers: all\nsystems: [ubuntu22.04/5.15.0-1-generic, ubuntu22.04/5.15.0-2-generic]\n"
    )
    found = objects(
        read('  driver: {usePrecompiled: true, version: "580", repository: r, image: d}\n', choice)
    )
    names = [name for name in found if name.startswith("DaemonSet/nvidia-driver-daemonset-")]
    assert len(names) == 2
    spec = found[names[0]]["spec"]["template"]["spec"]
    kernel = spec["nodeSelector"]["feature.node.kubernetes.io/kernel-version.full"]
    assert spec["containers"][0]["image"] == f"r/d:580-{kernel}-ubuntu22.04"


def test_each_nvidia_driver_has_its_nodes(read: Read) -> None:
    crd = "  driver: {useNvidiaDriverCRD: true}\n"
    both = DRIVER.format("gold", ", nodeSelector: {pool: gold}") + DRIVER.format("rest", "")
    policy = read(crd + both, "containers: all\nsystems: [ubuntu22.04, rhel9.4]\n")
    found = [
        one for name, one in objects(policy).items() if name.startswith("DaemonSet/nvidia-gpu")
    ]
    assert len(found) == 4
    selectors = [one["spec"]["template"]["spec"]["nodeSelector"] for one in found]
    owners = [one["nvidia.com/gpu-operator.driver.owner"] for one in selectors]
    assert sorted(owners) == ["gold", "gold", "rest", "rest"]
    assert [one.get("pool") for one in selectors].count("gold") == 2
    assert policy.cluster is not None
    assert [one.condition for one in settings_of(policy).drivers] == ["label('pool', 'gold')", ""]


def test_an_nvidia_driver_without_an_image_is_refused(read: Read) -> None:
    crd = "  driver: {useNvidiaDriverCRD: true}\n"
    bare = "---\napiVersion: nvidia.com/v1alpha1\nkind: NVIDIADriver\nmetadata: {name: a}\nspec: {driverType: gpu}\n"
    with pytest.raises(PolicyError, match="does not set its image"):
        read(crd + bare)


def test_an_nvidia_driver_alone_is_refused(read: Read) -> None:
    with pytest.raises(PolicyError, match="alone has no objects of a cluster"):
        read(DRIVER.format("a", ""), head="")


def test_a_gpu_cluster_has_only_a_driver(read: Read) -> None:
    head = (
        "apiVersion: nvidia.com/v1alpha1\nkind: GPUCluster\nmetadata: {name: gpu-cluster}\nspec:\n"
    )
    spec = "  hostPaths: {driverInstallDir: /var/lib/nvidia}\n" + DRIVER.format("a", "")
    policy = read(spec, "containers: [driver]\nsystems: [ubuntu24.04]\n", head)
    assert names(policy) == ["preflight", "validator"]
    plugin = objects(policy)["DaemonSet/nvidia-dra-driver-kubelet-plugin"]["spec"]["template"][
        "spec"
    ]
    (check,) = plugin["initContainers"]
    assert {"name": "DRIVER_INSTALL_DIR", "value": "/var/lib/nvidia"} in check["env"]
    paths = {one["name"]: one["hostPath"]["path"] for one in plugin["volumes"]}
    assert paths["driver-install-dir"] == "/var/lib/nvidia"


def test_the_chart_s_nvidia_driver_is_of_its_values(read: Read) -> None:
    values = "driver: {version: 580.95.05, nvidiaDriverCRD: {enabled: true}}\ndaemonsets: {labels: {a: b}}\n"
    policy = read(values, head="")
    (name,) = (one for one in sets(policy) if one.startswith("nvidia-gpu-driver-ubuntu22.04-"))
    found = objects(policy)[f"DaemonSet/{name}"]["spec"]["template"]
    assert found["metadata"]["labels"]["a"] == "b"
    assert found["spec"]["nodeSelector"]["nvidia.com/gpu-operator.driver.owner"] == "default"


def test_machines_have_containers_instead_of_the_state_vfio(read: Read) -> None:
    spec = (
        "  sandboxWorkloads: {enabled: true, defaultWorkload: vm-vgpu}\n"
        "  vgpuManager: {enabled: true, repository: r, image: i, version: v}\n"
        "  vgpuDeviceManager: {enabled: true}\n  vfioManager: {enabled: true}\n"
    )
    policy = read(spec)
    assert names(policy) == ["preflight"]
    assert {
        *("nvidia-vgpu-manager-daemonset", "nvidia-vgpu-device-manager", "nvidia-vfio-manager"),
        "nvidia-sandbox-validator",
    } <= sets(policy)
    assert any("create the ConfigMap default-vgpu-devices-config" in note for note in policy.notes)


def test_pods_of_a_driver_are_replaced_when_they_are_deleted_and_its_limits_hold(
    read: Read,
) -> None:
    upgrades = "{autoUpgrade: true, maxParallelUpgrades: 2, drain: {enable: true, force: true}}"
    policy = read(f"  driver: {{upgradePolicy: {upgrades}}}\n")
    found = objects(policy)["DaemonSet/nvidia-driver-daemonset"]["spec"]
    assert found["updateStrategy"] == {"type": "OnDelete"}
    assert policy.rollout is not None
    assert policy.rollout.serial == ("2",)
    assert policy.drain is not None
    assert policy.drain.node.force
    assert not any(
        "only with --cluster-objects" in n and "upgradePolicy" in n for n in policy.notes
    )


def test_the_digest_changes_with_the_installation_alone(read: Read) -> None:
    def digest(spec: str) -> str:
        pod = objects(read(spec))["DaemonSet/nvidia-driver-daemonset"]["spec"]["template"]["spec"]
        env = {one["name"]: one.get("value") for one in pod["containers"][0]["env"]}
        assert env["DRIVER_CONFIG_DIGEST"]
        return str(env["DRIVER_CONFIG_DIGEST"])

    first = digest("  driver: {repository: r, image: d, version: 580.95.05}\n")
    same = (
        "  driver: {repository: r, image: d, version: 580.95.05, resources: {limits: {cpu: 1}}}\n"
    )
    assert digest(same) == first
    assert digest("  driver: {repository: r, image: d, version: 580.95.06}\n") != first


def test_lint_knows_the_choice(tmp_path: Path) -> None:
    text = HEAD + "  driver: {secretEnv: s}\n"
    file = str(tmp_path / "cp.yaml")
    assert {one.support.value for one in lint(text, file).uses} == {"later"}
    (tmp_path / "cp.d").mkdir()
    (tmp_path / "cp.d" / "gpustate.yaml").write_text(ALL)
    assert {one.support.value for one in lint(text, file).uses} == {"honoured"}
