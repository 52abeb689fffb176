"""From a file of the Operator to a ClusterPolicy: nothing is switched off, and no tag is made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from gpustate import policies
from gpustate.cli.main import cli
from gpustate.core.policy import Policy
from gpustate.policies.converting import convert
from gpustate.states.container_toolkit import ContainerToolkitInstalled
from gpustate.states.dcgm import DcgmRunning
from gpustate.states.driver import DriverInstalled
from gpustate.states.gdrcopy import GdrCopyInstalled
from gpustate.states.gds import GpuDirectStorageEnabled

POLICY = """\
apiVersion: nvidia.com/v1
kind: ClusterPolicy
metadata: {name: blue, labels: {team: hpc}}
spec:
  operator: {}
  daemonsets: {tolerations: [{key: gpu, operator: Exists}]}
  driver:
    repository: registry.example.org/mirror
    image: driver
    version: "580.95.05"
    imagePullSecrets: [pull]
  toolkit: {version: v1.17.8-ubuntu20.04, repository: registry.example.org/mirror, image: ctk}
  devicePlugin: {enabled: true, config: {name: plugin, default: shared}}
  migManager: {enabled: true}
  nodeStatusExporter: {enabled: true}
  dcgm: {enabled: true, version: 4.5.1-1-ubuntu22.04}
  dcgmExporter:
    enabled: true
    version: 4.5.1-4.8.0-ubuntu22.04
    serviceMonitor: {enabled: true}
  gfd: {enabled: true}
  gds: {enabled: true, version: v2.26.6}
  gdrcopy: {enabled: true, version: v2.5.1}
"""
PLUGIN = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: plugin}
data:
  shared: |
    version: v1
    sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}
"""
VALUES = """\
driver: {version: 580.95.05, repository: registry.example.org/mirror, imagePullSecrets: [pull]}
dcgm: {enabled: null}
dcgmExporter: {enabled: true, version: 4.5.1-4.8.0-ubuntu22.04, serviceMonitor: {enabled: true}}
gdrcopy: {enabled: true, version: v2.4.1-2}
devicePlugin:
  config:
    create: true
    name: plugin
    default: shared
    data:
      shared: "version: v1\\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}"
daemonsets: {tolerations: [{key: gpu, operator: Exists}]}
validator: {repository: registry.example.org/mirror}
nfd: {enabled: false}
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, ["convert", *words, "--to", "clusterpolicy"])


def documents(text: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(text))


def test_a_clusterpolicy_comes_back_as_it_was_but_for_what_the_command_line_changes() -> None:
    Path("cp.yaml").write_text(f"{POLICY}---\n{PLUGIN}")
    done = run("cp.yaml", "--strict", "--set", "driver.version=580.105.08")
    assert (done.exit_code, done.stderr) == (0, "")
    wanted = documents(f"{POLICY}---\n{PLUGIN}")
    wanted[0]["spec"]["driver"]["version"] = "580.105.08"
    assert documents(done.stdout) == wanted


@pytest.mark.parametrize("to", ["yaml", "python"])
def test_a_policy_has_no_keys_that_the_device_plugin_ignores(to: str) -> None:
    ignored = PLUGIN.replace("version: v1\n    sharing", "version: v1\n    rename: x\n    sharing")
    Path("cp.yaml").write_text(f"{POLICY}---\n{ignored}")
    done = CliRunner().invoke(cli, ["convert", "cp.yaml", "--to", to])
    assert done.exit_code == 0, done.stderr
    assert "replicas" in done.stdout
    assert not [line for line in done.stdout.splitlines() if "rename: x" in line]


def test_what_stands_beside_a_file_comes_into_it_but_no_token() -> None:
    licensed = POLICY.replace("    image: driver\n", "    image: driver\n    LICENSE\n")
    licensed = licensed.replace("LICENSE", "licensingConfig: {secretName: grid, nlsEnabled: true}")
    Path("cp.yaml").write_text(licensed)
    Path("cp.d/grid").mkdir(parents=True)
    Path("cp.d/plugin.yaml").write_text(PLUGIN)
    Path("cp.d/grid/gridd.conf").write_text("FeatureType=1\n")
    Path("cp.d/grid/client_configuration_token.tok").write_text("SECRET")
    done = run("cp.yaml")
    assert done.exit_code == 0
    policy, *others = documents(done.stdout)
    assert policy == documents(licensed)[0]
    assert {one["metadata"]["name"] for one in others} == {"plugin", "grid"}
    assert "SECRET" not in done.output
    assert "token_file" in done.stderr


def test_helm_values_keep_their_tags_and_switch_nothing_off() -> None:
    Path("values.yaml").write_text(VALUES)
    done = run("values.yaml")
    policy, plugin = documents(done.stdout)
    spec = policy["spec"]
    assert spec["driver"]["repository"] == "registry.example.org/mirror"
    assert spec["driver"]["imagePullSecrets"] == ["pull"]
    assert spec["dcgmExporter"]["version"] == "4.5.1-4.8.0-ubuntu22.04"
    assert spec["dcgmExporter"]["serviceMonitor"] == {"enabled": True}
    assert spec["gdrcopy"]["version"] == "v2.4.1-2"
    assert spec["dcgm"] == {}  # null is the Operator's own default, which is on
    assert spec["migManager"] == {}  # not said: the Operator has it on
    assert spec["devicePlugin"]["enabled"] is True
    assert spec["daemonsets"]["tolerations"] == [{"key": "gpu", "operator": "Exists"}]
    assert (plugin["metadata"]["name"], list(plugin["data"])) == ("plugin", ["shared"])
    assert [line.split(": ")[2] for line in done.stderr.splitlines()] == [
        "validator.repository",
        "nfd.enabled",
    ]
    Path("again.yaml").write_text(done.stdout)
    assert policies.load("again.yaml").states == policies.load("values.yaml").states


def test_a_tag_is_written_only_where_it_is_known_for_certain() -> None:
    policy = Policy(
        DriverInstalled(version="580.95.05"),
        ContainerToolkitInstalled(version="1.17.8"),
        DcgmRunning(version="4.5.1"),
        GpuDirectStorageEnabled(version="2.26.6"),
        GdrCopyInstalled(version="2.5.1"),
    )
    done = convert(policy, "clusterpolicy")
    spec = documents(done.text)[0]["spec"]
    tags = {name: one["version"] for name, one in spec.items() if "version" in one}
    assert tags == {"driver": "580.95.05", "gdrcopy": "v2.5.1"}
    assert all("repository" not in spec[name] for name in ("toolkit", "dcgm", "gds"))
    for name, version in (("dcgm", "4.5.1"), ("gds", "2.26.6"), ("container-toolkit", "1.17.8")):
        assert any(line.startswith(f'{name}.version: "{version}" is') for line in done.lost)
    known = convert(Policy(DcgmRunning(version="4.6.0")), "clusterpolicy")
    assert documents(known.text)[0]["spec"]["dcgm"]["version"] == "4.6.0-1-ubuntu24.04"


def test_values_that_make_no_clusterpolicy_name_what_is_not_in_the_objects() -> None:
    Path("dra.yaml").write_text(
        "clusterPolicy: {deployCR: false}\ngpuCluster: {deployCR: true}\ndriver: {enabled: false}\n"
        "daemonsets: {tolerations: [{key: gpu, operator: Exists}]}\n"
    )
    done = run("dra.yaml")
    assert [one["kind"] for one in documents(done.stdout)] == ["GPUCluster"]
    assert "daemonsets" in done.stderr


def test_an_empty_section_of_the_values_is_nothing_to_lose() -> None:
    Path("values.yaml").write_text("driver: {}\noperator: {}\ntoolkit:\n")
    done = run("values.yaml", "--strict")
    assert (done.exit_code, done.stderr) == (0, "")
    spec = documents(done.stdout)[0]["spec"]
    for section in ("devicePlugin", "migManager", "dcgmExporter", "gfd"):
        assert spec[section].get("enabled", True), section  # the Operator's own default is on
    assert spec["dcgm"]["enabled"] is False  # the chart's


OLD = "driver: {useOpenKernelModules: true, repository: registry.example.org/m, version: '550.90.07'}\n"


@pytest.mark.parametrize("wrapped", [False, True])
def test_values_of_an_earlier_release_keep_as_much_as_those_of_the_newest(wrapped: bool) -> None:
    values = OLD + "toolkit: {version: v1.16.1-ubuntu20.04}\n"
    if wrapped:
        source = {"chart": "gpu-operator", "targetRevision": "v24.6.2", "helm": {"values": values}}
        application = {
            "apiVersion": "argoproj.io/v1alpha1",
            "kind": "Application",
            "metadata": {"name": "gpu"},
            "spec": {"source": source},
        }
        Path("old.yaml").write_text(yaml.safe_dump(application))
        done = run("old.yaml")
    else:
        Path("old.yaml").write_text(values)
        done = run("old.yaml", "--release", "v24.6.2")
    assert done.stderr == ""
    spec = documents(done.stdout)[0]["spec"]
    assert spec["driver"]["repository"] == "registry.example.org/m"
    assert spec["driver"]["useOpenKernelModules"] is True
    assert spec["toolkit"]["version"] == "v1.16.1-ubuntu20.04"
    assert spec["cdi"]["enabled"] is False  # the default of that release's chart
    for section in ("devicePlugin", "migManager", "dcgmExporter"):
        assert spec[section].get("enabled", True), section


def test_an_object_for_an_earlier_release_stays_as_it_is_and_names_the_release() -> None:
    Path("cp.yaml").write_text(
        "apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nmetadata: {name: x}\nspec:\n"
        f"  {OLD}  devicePlugin: {{}}\n".replace("version:", "image: driver, version:")
    )
    done = run("cp.yaml", "--release", "v24.6.2")
    assert done.stderr == ""
    (policy,) = documents(done.stdout)
    assert policy["spec"]["driver"]["repository"] == "registry.example.org/m"
    assert policy["spec"]["devicePlugin"] == {}
    Path("again.yaml").write_text(done.stdout)
    assert policies.load("again.yaml").states == policies.load("cp.yaml", release="v24.6.2").states
