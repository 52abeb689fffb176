"""What the lab's cluster is made of, without a cluster."""

from __future__ import annotations

import base64
import json
import tarfile
from ipaddress import IPv4Network
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.x509.oid import NameOID

from gpustate.errors import LabError
from gpustate.gpu_operator.objects import images
from gpustate.manifests import ClusterObjects
from gpustate.manifests.build import build
from gpustate_lab import network
from gpustate_lab.kubernetes import containers, controlplane, machine, objects, virtual
from gpustate_lab.kubernetes.certificates import Authority
from gpustate_lab.kubernetes.client import Client
from gpustate_lab.kubernetes.layout import USERS, Layout
from gpustate_lab.network import Network
from gpustate_lab.spec import CGROUP_DRIVERS, NodeSpec


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path, "try", Network("00000000", IPv4Network("10.217.5.0/24")))


def read(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def content(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    assert file is not None
    return file.read()


def test_a_certificate_names_user_groups_and_hosts_and_is_signed_by_the_authority(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    identity = authority.issue("one", "ann", groups=("a", "b"), hosts=("10.0.0.1", "name"))
    certificate = read(identity.certificate)
    certificate.verify_directly_issued_by(read(authority.certificate))
    subject = certificate.subject
    assert [one.value for one in subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == ["ann"]
    groups = subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    assert [one.value for one in groups] == ["a", "b"]
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(one.value) for one in names] == ["10.0.0.1", "name"]
    assert identity.key.stat().st_mode & 0o777 == 0o600


def test_an_identity_is_signed_once(tmp_path: Path) -> None:
    first = Authority(tmp_path).issue("one", "ann").certificate.read_bytes()
    assert Authority(tmp_path).issue("one", "ann").certificate.read_bytes() == first


def test_a_kubeconfig_holds_everything_its_user_needs(layout: Layout) -> None:
    layout.write_users()
    for user, (_, namespace) in USERS.items():
        document = yaml.safe_load(layout.user_file(user).read_text())
        assert document["clusters"][0]["cluster"]["server"] == f"https://{layout.address}:443"
        data = base64.b64decode(document["users"][0]["user"]["client-certificate-data"])
        common = x509.load_pem_x509_certificate(data).subject
        assert common.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value == user
        assert document["contexts"][0]["context"].get("namespace", "") == namespace
        assert layout.user_file(user).stat().st_mode & 0o777 == 0o600


def test_pods_services_and_nodes_of_all_labs_have_addresses_of_their_own() -> None:
    labs = [Network("", IPv4Network(f"10.217.{third}.0/24")) for third in range(256)]
    clusters = [lab.cluster for lab in labs]
    assert len(set(clusters)) == 256
    assert all(cluster.subnet_of(network.CLUSTERS) for cluster in clusters)
    lab = labs[7]
    pods = [lab.pods(number) for number in range(1, 201)]
    assert all(one.subnet_of(lab.cluster) and not one.overlaps(lab.services) for one in pods)
    assert len(set(pods)) == 200
    assert str(lab.api_address) == "100.65.255.1"
    assert lab.services.subnet_of(lab.cluster)


def test_a_lab_with_a_cluster_goes_round_addresses_of_its_pods_that_are_taken() -> None:
    taken = [IPv4Network("100.64.0.9/32"), IPv4Network("10.217.1.0/24")]
    assert str(network.choose_subnet(taken)) == "10.217.0.0/24"
    assert str(network.choose_subnet(taken, cluster=True)) == "10.217.2.0/24"


def test_an_image_archive_has_its_tags_its_files_and_the_digest_of_its_layer(
    tmp_path: Path,
) -> None:
    # Only `--list` is asked of it.
    busybox = tmp_path / "busybox"
    busybox.write_text("#!/bin/sh\necho busybox; echo sh; echo ls\n")
    busybox.chmod(0o755)
    containers.make_images(tmp_path / "images", busybox)
    with tarfile.open(tmp_path / "images/busybox.tar") as archive:
        (manifest,) = json.loads(content(archive, "manifest.json"))
        assert manifest["RepoTags"] == ["docker.io/library/busybox:lab"]
        with tarfile.open(fileobj=archive.extractfile("layer.tar")) as layer:
            assert layer.getmember("bin/sh").linkname == "busybox"
            assert layer.getmember("bin/busybox").mode == 0o755
    with tarfile.open(tmp_path / "images/pause.tar") as archive:
        (manifest,) = json.loads(content(archive, "manifest.json"))
        assert "registry.k8s.io/pause:3.8" in manifest["RepoTags"]


def test_images_of_pods_have_the_names_that_the_policy_asks_for(tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in (*containers._PLUGIN, *containers._NFD, "busybox", "library"):
        (programs / name).write_text(name)
    library = [programs / "library" for _ in containers.C_LIBRARY]
    containers.make_pod_images(tmp_path, programs, programs / "busybox", library)
    found: dict[str, dict[str, str]] = {}
    for name in ("k8s-device-plugin", "node-feature-discovery"):
        with tarfile.open(tmp_path / f"{name}.tar") as archive:
            (manifest,) = json.loads(content(archive, "manifest.json"))
            found[manifest["RepoTags"][0]] = json.loads(content(archive, manifest["Config"]))[
                "config"
            ]
    settings = ClusterObjects(node_feature_discovery={})
    wanted = {
        container["image"]
        for item in build(settings, images())
        if item["kind"] in ("DaemonSet", "Deployment")
        for container in item["spec"]["template"]["spec"]["containers"]
    }
    assert set(found) == wanted
    plugin, features = found.values()
    assert "NVIDIA_VISIBLE_DEVICES=all" in plugin["Env"]
    assert features["User"] == "65534:65534"


@pytest.mark.parametrize("driver", CGROUP_DRIVERS)
def test_a_kubelet_that_may_not_lower_its_oom_score_keeps_the_one_it_has(
    driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "may_lower_oom_score", lambda: False)
    own = int(Path("/proc/self/oom_score_adj").read_text())
    assert machine.kubelet_configuration(driver)["oomScoreAdj"] == own
    monkeypatch.setattr(machine, "may_lower_oom_score", lambda: True)
    assert "oomScoreAdj" not in machine.kubelet_configuration(driver)


def test_a_node_s_files_carry_its_own_credentials(layout: Layout, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "usr/bin").mkdir(parents=True)
    machine.fill(root, layout, NodeSpec("gpu3", 3, "ubuntu2404", "none", kubernetes=True))
    config = yaml.safe_load((root / "etc/kubernetes/kubelet.conf").read_text())
    data = base64.b64decode(config["users"][0]["user"]["client-certificate-data"])
    subject = x509.load_pem_x509_certificate(data).subject.rfc4514_string()
    assert subject == "CN=system:node:gpu3,O=system:nodes"
    unit = (root / "etc/systemd/system/kubelet.service").read_text()
    assert "--node-ip=10.217.5.13" in unit
    cni = json.loads((root / "etc/cni/net.d/10-gpustate-lab.conflist").read_text())
    assert cni["plugins"][0]["ipam"]["ranges"] == [[{"subnet": str(layout.network.pods(3))}]]
    kubelet = yaml.safe_load((root / "var/lib/kubelet/config.yaml").read_text())
    assert kubelet["cgroupDriver"] == "systemd"
    mode = (root / "etc/kubernetes/kubelet.conf").stat().st_mode
    assert mode & 0o777 == 0o600


def test_an_api_server_that_does_not_answer_is_a_clear_error(layout: Layout) -> None:
    identity = layout.authority.issue("lab", "lab")
    client = Client("https://127.0.0.1:1", layout.authority.certificate, identity, timeout_s=2)
    with pytest.raises(LabError, match=r"API server https://127\.0\.0\.1:1 is unreachable"):
        client.get("/readyz")


def test_a_program_of_the_lab_stays_when_the_cache_has_another_one(tmp_path: Path) -> None:
    source = tmp_path / "cache" / "program"
    source.parent.mkdir()
    source.write_text("old")
    controlplane.link_program(source, tmp_path / "programs")
    source.unlink()
    source.write_text("new")
    assert (tmp_path / "programs/program").read_text() == "old"
    controlplane.link_program(source, tmp_path / "programs")
    assert (tmp_path / "programs/program").read_text() == "new"


def test_a_virtual_node_has_gpus_and_keeps_off_what_does_not_tolerate_it() -> None:
    node = virtual.manifest(7)
    assert node["metadata"]["name"] == "virtual7"
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "8"
    assert node["spec"]["taints"] == [virtual.TAINT]
    assert not virtual.is_ready(node)


def test_every_object_the_cluster_starts_with_has_a_name_and_a_path() -> None:
    paths = [path for path, _ in objects._items()]
    assert all(path.startswith(("/api/v1/", "/apis/")) for path in paths)
    names = [(path, item["metadata"]["name"]) for path, item in objects._items()]
    assert len(set(names)) == len(names)
