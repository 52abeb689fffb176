"""``lint``: mistakes of the field are named, good files are not accused, and nothing is left out."""

from __future__ import annotations

import json
import os
import subprocess
import time
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from gpustate.cli.main import cli
from gpustate.errors import PolicyError, UsageError
from gpustate.gpu_operator import history
from gpustate.gpu_operator.keys import Support, records
from gpustate.gpu_operator.lint import RULES, Finding, Level, Report, document, lint, sarif
from gpustate.gpu_operator.lint.finding import fails

ROOT = Path(__file__).parents[3]
UPSTREAM = ROOT.parent / "shared" / "upstream" / "gpu-operator"
GOLDEN = ROOT / "tests" / "golden" / "clusterpolicy"
MISTAKES: list[dict[str, Any]] = yaml.load(
    (ROOT / "tests" / "data" / "lint" / "mistakes.yaml").read_text("utf-8"), yaml.CSafeLoader
)
HEAD = "apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nmetadata: {name: x}\nspec:\n"
DRIVER = "apiVersion: nvidia.com/v1alpha1\nkind: NVIDIADriver\nmetadata: {name: d}\nspec:\n"
MPS = (
    "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata:\n  a: |\n    version: v1\n"
    "    sharing: {mps: {resources: [{name: gpu, replicas: 2}]}}\n"
)


def found(text: str, **options: Any) -> list[tuple[str, int, str]]:
    report = lint(text, "f.yaml", **options)
    return [(f.rule, f.line, f.path) for f in report.findings if f.level is not Level.NOTE]


def told(finding: Finding) -> str:
    return f"{finding.message}; {finding.fix}"


@pytest.mark.parametrize("case", MISTAKES, ids=lambda case: case["issue"])
def test_a_mistake_that_somebody_made_in_public_is_named_and_nothing_else(
    case: dict[str, Any],
) -> None:
    left = list(lint(case["file"], "f.yaml").findings)
    for rule, line, path, part in case["says"]:
        hit = [f for f in left if (f.rule, f.line, f.path) == (rule, line, path)]
        assert [f for f in hit if part in told(f)], (rule, line, path, part, left)
        left.remove(next(f for f in hit if part in told(f)))
    assert [f for f in left if f.level is not Level.NOTE] == []


def test_there_are_enough_mistakes_from_enough_threads() -> None:
    assert len(MISTAKES) >= 40
    assert len({case["issue"] for case in MISTAKES}) == len(MISTAKES)


GOOD = [
    *(UPSTREAM / name for name in ("values.yaml", "v1_clusterpolicy.yaml")),
    UPSTREAM / "nvidia_v1alpha1_nvidiadriver.yaml",
    UPSTREAM / "nvidia_v1alpha1_gpucluster.yaml",
    ROOT / "docs" / "examples" / "clusterpolicy.yaml",
    GOLDEN / "driver-of-somebody-else.yaml",
]


@pytest.mark.parametrize("file", GOOD, ids=lambda file: file.name)
def test_a_good_file_is_not_accused(file: Path) -> None:
    if not file.is_file():
        pytest.skip("wants ../shared/upstream/gpu-operator beside the repository")
    report = lint(file.read_text("utf-8"), file.name)
    found = [f.path for f in report.findings if f.level is not Level.NOTE]
    assert found == []
    assert report.uses


#: What helped people in public, in our own smallest form of each.
HELPED = {
    "NVIDIA/gpu-operator#374": (
        "toolkit: {env: [{name: CONTAINERD_CONFIG, value: /var/lib/rancher/k3s/agent/etc/containerd/config.toml},"
        " {name: CONTAINERD_SOCKET, value: /run/k3s/containerd/containerd.sock},"
        " {name: CONTAINERD_RUNTIME_CLASS, value: nvidia}, {name: CONTAINERD_SET_AS_DEFAULT, value: 'true'}]}\n"
    ),
    "NVIDIA/nvidia-container-toolkit pull request 1029": (
        "toolkit: {env: [{name: RUNTIME_CONFIG, value: /etc/k0s/containerd.d/nvidia.toml},"
        " {name: RUNTIME_SOCKET, value: /run/k0s/containerd.sock}, {name: NVIDIA_RUNTIME_NAME, value: nvidia},"
        " {name: RUNTIME_EXECUTABLE_PATH, value: /var/lib/k0s/bin/containerd}]}\n"
    ),
    "NVIDIA/gpu-operator#249": (
        "migManager: {enabled: true, env: [{name: WITH_REBOOT, value: 'false'}], config: {name: own}}\n"
    ),
    "NVIDIA/gpu-operator pull request 1273": (
        "mig: {strategy: mixed}\nmigManager:\n  config:\n    create: true\n    name: custom-mig-config\n    data:\n"
        "      config.yaml: |-\n        version: v1\n        mig-configs:\n          all-disabled:\n"
        "          - {devices: all, mig-enabled: false}\n"
    ),
    "NVIDIA/k8s-device-plugin#461": (
        "devicePlugin:\n  config:\n    create: true\n    name: c\n    default: any\n    data:\n      any: |-\n"
        "        version: v1\n        flags:\n          migStrategy: none\n          failOnInitError: true\n"
        "          nvidiaDriverRoot: /\n          plugin: {passDeviceSpecs: false, deviceListStrategy: envvar,"
        " deviceIDStrategy: uuid}\n        sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu,"
        " replicas: 4}]}}\n"
    ),
}


@pytest.mark.parametrize("thread", HELPED)
def test_what_helped_somebody_is_not_accused(thread: str) -> None:
    assert found(HELPED[thread]) == []


#: What upstream itself has wrong in the files of a release, held against that release.
UPSTREAMS_OWN = {
    ("ccManager.env[].name", "newer-key"),  # values of v23.6.0 to v25.10.0, schema from v25.10.1 on
    ("ccManager.env[].value", "newer-key"),
    ("daemonsets.rollingUpdate.maxUnavailable", "ignored-key"),  # sample of a GPUCluster
    ("driver.rollingUpdate", "unknown-key"),  # samples of v22.9.1 to v23.6.2
    ("gfd.podSecurityContext", "unknown-key"),  # values of v1.8.0 to v1.10.1
    # Values of v1.10, which bring the chart 0.10.1.
    ("node-feature-discovery.serviceAccount", "ignored-key"),
    ("operator.deployGFD", "unknown-key"),  # samples of 1.5
    ("operator.defaultGPUMode", "ignored-key"),  # samples of 1.5
}


@pytest.mark.skipif(
    "GPU_OPERATOR_CLONE" not in os.environ, reason="wants GPU_OPERATOR_CLONE to name a clone"
)
def test_samples_and_values_of_all_releases_parse_and_only_known_slips_are_found() -> None:
    clone, files, leaves = os.environ["GPU_OPERATOR_CLONE"], 0, 0
    seen: set[tuple[str, str]] = set()

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", clone, *words], capture_output=True, check=True)
        return done.stdout.decode()

    for tag in history.releases():
        for name in git("ls-tree", "-r", "--name-only", tag).split():
            sample = name.startswith("config/samples/") and "kustomization" not in name
            if not (sample or name == "deployments/gpu-operator/values.yaml"):
                continue
            report = lint(git("show", f"{tag}:{name}"), name, release=tag)
            files, leaves = files + 1, leaves + len(report.uses)
            for finding in report.findings:
                if finding.level is not Level.NOTE:
                    seen.add((finding.path, finding.rule))
    assert files > 100
    assert leaves > 10_000
    assert seen <= UPSTREAMS_OWN


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (HEAD + "  driver: {rdma: {useHostMofed: true}}\n", ("without-effect", 5, "driver.rdma.useHostMofed")),
        (HEAD + "  gds: {enabled: true}\n  driver: {usePrecompiled: true, version: '580'}\n", ("contradiction", 5, "gds.enabled")),
        (HEAD + "  gds: {enabled: true}\n  driver: {kernelModuleType: proprietary}\n", ("contradiction", 6, "driver.kernelModuleType")),
        (HEAD + "  driver: {usePrecompiled: true, version: 580.95.05}\n", ("contradiction", 5, "driver.version")),
        (HEAD + "  driver: {upgradePolicy: {drain: {enable: true}}}\n", ("without-effect", 5, "driver.upgradePolicy.drain.enable")),
        (HEAD + "  driver: {upgradePolicy: {autoUpgrade: true, drain: {force: true}}}\n", ("without-effect", 5, "driver.upgradePolicy.drain.force")),
        (HEAD + "  driver: {enabled: false, rdma: {enabled: true}}\n", ("without-effect", 5, "driver.rdma.enabled")),
        (HEAD + "  sandboxWorkloads: {defaultWorkload: vm-passthrough}\n", ("without-effect", 5, "sandboxWorkloads.defaultWorkload")),
        (HEAD + "  sandboxWorkloads: {mode: kata}\n", ("without-effect", 5, "sandboxWorkloads.mode")),
        (HEAD + "  driver: {licensingConfig: {secretName: a, configMapName: b}}\n", ("without-effect", 5, "driver.licensingConfig.configMapName")),
        (HEAD + "  driver: {useNvidiaDriverCRD: true, version: '580'}\n---\n" + DRIVER + "  version: '580'\n", ("without-effect", 5, "driver.version")),
        (HEAD + "  {}\n---\n" + DRIVER + "  version: '580'\n", ("without-effect", 7, "")),
        (HEAD + "  {}\n---\n" + HEAD + "  {}\n", ("contradiction", 7, "")),
        (HEAD + "  devicePlugin: {config: {default: any}}\n", ("without-effect", 5, "devicePlugin.config.default")),
        (HEAD + "  toolkit: {env: [{name: RUNTIME, value: crio}, {name: RUNTIME, value: docker}]}\n", ("variable", 5, "toolkit.env")),
        (HEAD + "  kataManager: {enabled: true}\n", ("ignored-key", 5, "kataManager.enabled")),
        (HEAD + "  ccManager: {defaultMode: on}\n", ("wrong-type", 5, "ccManager.defaultMode")),
        (HEAD + "  sandboxWorkloads: {defaultWorkload: vm}\n", ("wrong-value", 5, "sandboxWorkloads.defaultWorkload")),
        ("apiVersion: nvidia.com/v1\nkind: ClusterPolicy\ndriver: {}\nspec: {}\n", ("unknown-key", 3, "driver")),
        (DRIVER + "  default: true\n---\n" + DRIVER + "  default: true\n", ("contradiction", 11, "default")),
        (DRIVER + "  usePrecompiled: true\n  gdrcopy: {enabled: true}\n", ("contradiction", 6, "gdrcopy.enabled")),
        (DRIVER.replace("NVIDIADriver", "GPUCluster") + "  {}\n", ("contradiction", 1, "")),
        ("gpuCluster: {deployCR: true}\n", ("contradiction", 1, "gpuCluster.deployCR")),
        ("devicePlugin: {config: {create: true, name: x}}\n", ("contradiction", 1, "devicePlugin.config.create")),
        ("migManager: {config: {create: true, data: {config.yaml: 'version: v1'}}}\n", ("contradiction", 1, "migManager.config.create")),
        ("migManager: {config: {name: x, data: {config.yaml: 'version: v1'}}}\n", ("without-effect", 1, "migManager.config.data")),
        ("driver: {nvidiaDriverCRD: {enabled: true}, licensingConfig: {secretName: s, nlsEnabled: false}}\n", ("without-effect", 1, "driver.licensingConfig.nlsEnabled")),
        ("devicePlugin: {mps: {root: /other}}\n", ("ignored-key", 1, "devicePlugin.mps.root")),
        ("driver: {upgradePolicy: {podDeletion: {force: true}}}\n", ("misnamed-key", 1, "driver.upgradePolicy.podDeletion")),
        ("driver: {useNvidiaDriverCRD: true}\n", ("misnamed-key", 1, "driver.useNvidiaDriverCRD")),
        ("driver: {version: 580.10}\n", ("wrong-type", 1, "driver.version")),
        ("node-feature-discovery: {worker: {enable: false}}\n", ("without-effect", 1, "node-feature-discovery.worker.enable")),
        ("node-feature-discovery: {worker: {config: {core: {labelSources: [pci]}}}}\n", ("without-effect", 1, "node-feature-discovery.worker.config.core.labelSources")),
        ("node-feature-discovery: {master: {denyLabelNs: ['*']}}\n", ("without-effect", 1, "node-feature-discovery.master.denyLabelNs")),
        ("node-feature-discovery: {worker: {toleration: []}}\n", ("unknown-key", 1, "node-feature-discovery.worker.toleration")),
        ("node-feature-discovery: {enableNodeFeatureApi: true}\n", ("ignored-key", 1, "node-feature-discovery.enableNodeFeatureApi")),
        (HEAD + "  toolkit:\n    resources:\n      limits: {cpu: lots}\n", ("wrong-type", 7, "toolkit.resources.limits")),
        ("dcgmExporter: {resources: {requests: {memory: 1.5}}}\n", ("wrong-type", 1, "dcgmExporter.resources.requests")),
        ("node-feature-discovery: {worker: {resources: {limits: {cpu: 2 cores}}}}\n", ("wrong-type", 1, "node-feature-discovery.worker.resources.limits")),
        ("node-feature-discovery: {gc: {replicaCount: two}}\n", ("wrong-type", 1, "node-feature-discovery.gc.replicaCount")),
        (HEAD + "  vgpuManager: {enabled: true}\n", ("without-effect", 5, "vgpuManager.enabled")),
        (HEAD + "  vfioManager: {enabled: true}\n", ("without-effect", 5, "vfioManager.enabled")),
        (HEAD + "  ccManager: {enabled: true}\n", ("without-effect", 5, "ccManager.enabled")),
        ("vgpuManager: {enabled: true}\n", ("without-effect", 1, "vgpuManager.enabled")),
        ("vgpuManager: {enabled: true}\nsandboxWorkloads: {enabled: true}\n", ("image", 1, "vgpuManager.enabled")),
        (HEAD + "  vgpuManager: {enabled: true}\n  sandboxWorkloads: {enabled: true}\n", ("image", 5, "vgpuManager.enabled")),
        (HEAD + "  toolkit: {enabled: false, version: v1.18.0}\n", ("without-effect", 5, "toolkit.version")),
        (HEAD + "  daemonsets: {updateStrategy: OnDelete, rollingUpdate: {maxUnavailable: '1'}}\n", ("without-effect", 5, "daemonsets.rollingUpdate.maxUnavailable")),
        ("global: {imageRegistry: r, imagePullSecrets: [s]}\ndriver: {enabled: true}\n", ("ignored-key", 1, "global.imageRegistry")),
        (HEAD + "  mig: {strategy: mixed}\n  devicePlugin: {config: {name: c, default: a}}\n" + MPS, ("contradiction", 5, "mig.strategy")),
        ("migManager: {gpuClientsConfig: {name: c}}\n" + MPS.replace("a: |", "clients.yaml: |"), ("companion", 9, "migManager.gpuClientsConfig.name")),
    ],
)  # fmt: skip
def test_a_setting_that_does_not_do_what_it_says_is_found(
    text: str, expected: tuple[str, int, str]
) -> None:
    assert expected in found(text)


CLUSTER = DRIVER.replace("NVIDIADriver", "GPUCluster").replace("name: d", "name: gpu-cluster")
CONFUSED = [
    (DRIVER + "  enabled: true\n", "enabled", "to enable or disable"),
    (HEAD + "  driver: {kernelModuleConfig: {configMapName: a}}\n", "driver.kernelModuleConfig.configMapName", "did you mean driver.kernelModuleConfig.name"),
    (HEAD + "  driver: {certConfig: {configMapName: a}}\n", "driver.certConfig.configMapName", "did you mean driver.certConfig.name"),
    (DRIVER + "  licensingConfig: {configMapName: a}\n", "licensingConfig.configMapName", "use licensingConfig.secretName"),
    (HEAD + "  driver: {licensingConfig: {name: a}}\n", "driver.licensingConfig.name", "use driver.licensingConfig.secretName"),
    (HEAD + "  devicePlugin: {config: {data: {a: b}}}\n", "devicePlugin.config.data", "a value of the Helm chart"),
    (HEAD + "  migManager: {config: {create: true}}\n", "migManager.config.create", "a value of the Helm chart"),
    (HEAD + "  migManager: {config: {data: {a: b}}}\n", "migManager.config.data", "a value of the Helm chart"),
    (HEAD + "  validator: {plugins: {env: []}}\n", "validator.plugins", "did you mean validator.plugin"),
    (HEAD + "  validator: {plugins: {env: [{name: A, value: b}]}}\n", "validator.plugins", "did you mean validator.plugin"),
    ("driver: {openKernelModules: {enabled: true}}\n", "driver.openKernelModules", 'write kernelModuleType: "open"'),
    ("driver: {kernelModuleParams: a}\n", "driver.kernelModuleParams", "named by kernelModuleConfig.name"),
    (HEAD + "  devicePlugin: {mps: {enabled: true}}\n", "devicePlugin.mps.enabled", "ConfigMap named by devicePlugin.config.name"),
    (HEAD + "  mig: {enabled: true}\n", "mig.enabled", "supported keys: strategy"),
    ("gpuFeatureDiscovery: {enabled: true}\n", "gpuFeatureDiscovery", "did you mean gfd"),
    ("dcgmExporter: {service: {nodePort: 9400}}\n", "dcgmExporter.service.nodePort", "only its type can be chosen"),
    ("dcgmExporter: {service: {sessionAffinity: x}}\n", "dcgmExporter.service.sessionAffinity", "supported keys: internalTrafficPolicy, type"),
    (CLUSTER + "  driver: {enabled: true}\n", "driver", "use an object of kind NVIDIADriver"),
    (CLUSTER + "  draDriver: {enabled: true}\n", "draDriver.enabled", "to enable or disable"),
    (HEAD + "  nfd: {enabled: true}\n", "nfd", "a value of the Helm chart"),
    (HEAD + "  global: {a: b}\n", "global", "a value of the Helm chart"),
    (HEAD + "  platform: {openshift: true}\n", "platform", "a value of the Helm chart"),
    (HEAD + "  node-feature-discovery: {}\n", "node-feature-discovery", "a value of the Helm chart"),
    (HEAD + "  spec: {driver: {enabled: true}}\n", "spec", "one level too deep"),
    (HEAD.replace("spec:", "Spec:") + "  driver: {}\n", "Spec", "did you mean spec"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "path", "fix"), CONFUSED)
def test_an_unknown_key_gets_the_one_that_was_meant_or_none(text: str, path: str, fix: str) -> None:
    hits = [f for f in lint(text, "f.yaml").findings if f.path == path and f.level is Level.ERROR]
    assert len(hits) == 1
    assert fix in str(hits[0].fix)


def test_a_suggestion_that_the_release_does_not_have_says_so() -> None:
    text = "draDriver: {enabled: true}\n"
    (told_of,) = lint(text, "f.yaml", release="v25.3.0").findings
    assert str(told_of.fix).endswith("added in v26.7.0, and this is v25.3.0")
    assert "since" not in str(lint(text, "f.yaml").findings[0].fix)


def test_a_long_list_of_known_keys_says_how_many_it_leaves_out_and_starts_with_the_nearest() -> (
    None
):
    (hit,) = [f for f in lint(HEAD + "  sandboxes: 1\n", "f").findings if f.path == "sandboxes"]
    assert hit.fix is not None
    listed, _, more = hit.fix.removeprefix("supported keys: ").rpartition(" and ")
    names = listed.split(", ")
    assert len(names) == 12
    assert "sandboxDevicePlugin" in names[:3]
    sections = {path.partition(".")[0] for path in records("clusterpolicy")}
    assert more == f"{len(sections) - 12} more"


def test_a_component_for_machines_beside_its_own_switch_is_a_note() -> None:
    off = HEAD + "  sandboxWorkloads: {enabled: false}\n  vgpuManager: {enabled: true}\n"
    notes = [f for f in lint(off, "f.yaml").findings if f.rule == "idle"]
    assert [(f.path, f.level) for f in notes] == [("vgpuManager.enabled", Level.NOTE)]
    assert found(off) == []
    assert found("vfioManager: {enabled: true}\nccManager: {enabled: true}\n") == []
    assert found("global: {imagePullSecrets: [s]}\ndriver: {enabled: true}\n") == []


def test_a_counter_that_dcgm_does_not_have_is_named_with_the_one_that_was_meant() -> None:
    text = HEAD + (
        "  dcgmExporter: {enabled: true, config: {name: c}}\n---\napiVersion: v1\nkind: ConfigMap\n"
        "metadata: {name: c}\ndata:\n  dcgm-metrics.csv: |\n    DCGM_FI_DEV_GPU_TEMP, gauge, t\n"
        "    DCGM_FI_DEV_SM_CLOCKK, gauge, c\n    DCGM_EXP_XID_ERRORS_COUNT, gauge, x\n"
    )
    (hit,) = [f for f in lint(text, "f.yaml").findings if f.rule == "companion"]
    assert hit.line == 13
    assert "DCGM_FI_DEV_SM_CLOCKK is not a DCGM field" in hit.message
    assert hit.fix == "did you mean DCGM_FI_DEV_SM_CLOCK?"


def test_a_mig_configuration_that_stands_twice_is_a_warning() -> None:
    text = HEAD + (
        "  migManager: {enabled: true, config: {name: m}}\n---\napiVersion: v1\nkind: ConfigMap\n"
        "metadata: {name: m}\ndata:\n  config.yaml: |\n    version: v1\n    mig-configs:\n"
        "      a:\n        - {devices: all, mig-enabled: false}\n"
        "      a:\n        - {devices: all, mig-enabled: false}\n"
    )
    (hit,) = [f for f in lint(text, "f.yaml").findings if f.path == "migManager.config.name"]
    assert (hit.rule, hit.line) == ("without-effect", 16)
    assert "'a' is a duplicate of line 14; the last one is used" in hit.message


def test_a_counters_map_is_read_as_the_exporter_reads_it() -> None:
    text = HEAD + (
        "  dcgmExporter: {enabled: true, config: {name: c}}\n---\napiVersion: v1\nkind: ConfigMap\n"
        'metadata: {name: c}\ndata:\n  dcgm-metrics.csv: |\n    DCGM_FI_DEV_GPU_TEMP, gauge, "a, b"\n'
        '    DCGM_FI_DEV_SM_CLOCK, gauge,"a, b"\n    dcgm_gpu_temp, gauge, x\n    dcgm_nope, gauge, x\n'
    )
    hits = [f for f in lint(text, "f.yaml").findings if f.rule == "companion"]
    assert [hit.line for hit in hits] == [12, 15]
    assert "double quote" in hits[0].message


MISSPELT = [
    ("validator: {cuda: {env: [%s]}}", "WITH_WORKLOADS", "WITH_WORKLOAD"),
    ("validator: {plugin: {env: [%s]}}", "WITH_WORKLOADS", "WITH_WORKLOAD"),
    ("validator: {driver: {env: [%s]}}", "DISABLE_DEV_CHAR_SYMLINKS", "DISABLE_DEV_CHAR_SYMLINK_CREATION"),
    ("migManager: {env: [%s]}", "WITH_REBOOTS", "WITH_REBOOT"),
    ("devicePlugin: {env: [%s]}", "FAIL_ON_INIT_ERR", "FAIL_ON_INIT_ERROR"),
    ("devicePlugin: {env: [%s]}", "fail_on_init_error", "FAIL_ON_INIT_ERROR"),
    ("driver: {manager: {env: [%s]}}", "NODE_LABEL_FOR_GPU_POD_EVICT", "NODE_LABEL_FOR_GPU_POD_EVICTION"),
    ("dcgmExporter: {env: [%s]}", "DCGM_EXPORTER_COLLECTOR", "DCGM_EXPORTER_COLLECTORS"),
    ("gfd: {env: [%s]}", "GFD_SLEEP_INTERVALL", "GFD_SLEEP_INTERVAL"),
]  # fmt: skip


@pytest.mark.parametrize(("section", "name", "meant"), MISSPELT)
def test_a_misspelt_variable_is_named_with_the_one_that_was_meant(
    section: str, name: str, meant: str
) -> None:
    for head in ("", HEAD + "  "):
        text = head + section % f"{{name: {name}, value: 'true'}}" + "\n"
        hit = [f for f in lint(text, "f.yaml").findings if f.rule == "variable"]
        assert [f.fix for f in hit] == [f"did you mean {meant}"]
        right = text.replace(name, meant)
        assert "variable" not in {f.rule for f in lint(right, "f.yaml").findings}


@pytest.mark.parametrize(
    "name",
    ["HTTPS_PROXY", "no_proxy", "DCGM_EXPORTER_KUBERNETES_ENABLE_POD_LABELS", "TZ", "GODEBUG"],
)
def test_a_variable_that_is_like_none_is_not_accused(name: str) -> None:
    for section in ("dcgmExporter", "devicePlugin", "migManager", "gfd"):
        assert found(f"{section}: {{env: [{{name: {name}, value: '1'}}]}}\n") == []


def test_the_migstrategy_of_a_component_beside_that_of_all_is_told_with_who_wins() -> None:
    text = HEAD + "  mig: {strategy: single}\n  %s: {env: [{name: MIG_STRATEGY, value: %s}]}\n"
    (plugin,) = [f for f in lint(text % ("devicePlugin", "mixed"), "f").findings if f.line == 6]
    assert plugin.rule == "variable"
    assert "the variable takes precedence in the device plugin" in plugin.message
    (gfd,) = [f for f in lint(text % ("gfd", "mixed"), "f").findings if f.line == 6]
    assert "has no effect: mig.strategy takes precedence" in gfd.message
    (before,) = [
        f
        for f in lint(text % ("devicePlugin", "mixed"), "f", release="v25.3.2").findings
        if f.line == 6
    ]
    assert "has no effect: mig.strategy takes precedence in the device plugin" in before.message
    assert found(text % ("devicePlugin", "single")) == []
    assert {rule for rule, _, _ in found(text % ("devicePlugin", "[1]"))} == {"wrong-type"}


def test_a_variable_that_no_state_takes_is_not_called_honoured() -> None:
    for section, support in (
        ("validator: {cuda: ", Support.LATER),
        ("migManager: ", Support.KUBERNETES),
    ):
        close = "}" * section.count("{")
        text = HEAD + f"  {section}{{env: [{{name: SOMETHING_ELSE, value: x}}]}}{close}\n"
        assert {use.support for use in lint(text, "f.yaml").uses} == {support}
    text = HEAD + "  validator: {cuda: {env: [{value: 'true', name: WITH_WORKLOAD}]}}\n"
    assert {use.support for use in lint(text, "f.yaml").uses} == {Support.HONOURED}


def test_a_whole_number_is_a_version_in_values_and_not_in_an_object() -> None:
    assert found("driver: {version: 580}\n") == []
    assert ("wrong-type", 5, "driver.version") in found(HEAD + "  driver: {version: 580}\n")


def test_null_takes_the_default_of_the_chart_away_and_false_does_not() -> None:
    text = "driver: {upgradePolicy: {autoUpgrade: %s, drain: {enable: true}}}\n"
    path = "driver.upgradePolicy.drain.enable"
    assert found(text % "true") == []
    assert found(text % "false") == [("without-effect", 1, path)]
    assert found(text % "null") == [("without-effect", 1, path)]
    assert found("driver: {upgradePolicy: {drain: {enable: true}}}\n") == []


@pytest.mark.parametrize(
    ("version", "kind", "said"),
    [
        ("nvidia.com/v1", "NvidiaDriver", "wanted NVIDIADriver of nvidia.com/v1alpha1"),
        ("nvidia.com/v1alpha1", "ClusterPolicy", "is unsupported, wanted nvidia.com/v1"),
        ("nvidia.com/v1", "GPUOperator", "did you mean ClusterPolicy of nvidia.com/v1"),
        ("nvidia.com/v1alpha1", "GPUDriver", "did you mean NVIDIADriver of nvidia.com/v1alpha1"),
        ("nvidia.com/v1", "TimeSlicingConfig", "the ConfigMap named by devicePlugin.config.name"),
        ("nvidia.com/v1", "MIGConfig", "the ConfigMap named by migManager.config.name"),
        ("nvidia.com/v1", "DCGMExporter", "dcgmExporter of a ClusterPolicy"),
        ("nvidia.com/v1alpha1", "GpuCluster", "wanted GPUCluster of nvidia.com/v1alpha1"),
        ("nvidia.com/v1", "DriverUpgradePolicy", "driver.upgradePolicy of a ClusterPolicy"),
        ("kyverno.io/v1", "ClusterPolicy", "is Kyverno's"),
        ("mellanox.com/v1alpha1", "NicClusterPolicy", "the Network Operator's"),
        ("amd.com/v1alpha1", "DeviceConfig", "the AMD GPU Operator's"),
    ],
)
def test_a_look_alike_is_named_with_what_was_meant(version: str, kind: str, said: str) -> None:
    report = lint(f"apiVersion: {version}\nkind: {kind}\nspec: {{}}\n", "f.yaml")
    (finding,) = report.findings
    assert (finding.rule, finding.line, finding.level) == ("kind", 1, Level.ERROR)
    assert said in told(finding)


def test_a_look_alike_hides_nothing_beside_it() -> None:
    text = HEAD + "  driver: {versoin: '580'}\n---\napiVersion: nvidia.com/v1\nkind: GPUOperator\n"
    assert {rule for rule, _, _ in found(text)} == {"unknown-key", "kind"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [\n", "f.yaml:2: is not YAML"),
        ("driver: {}\ndriver: {}\n", "f.yaml:2: the key 'driver' is a duplicate of line 1"),
        ("driver: !!python/object:os.system {}\n", "f.yaml:1: the tag"),
        ("- 1\n", "f.yaml:1: is a list, not a policy"),
        ("\u00e4: 1\n", "f.yaml:1: is not a policy: it begins with"),
        ("apiVersion: v1\nkind: Pod\n", "f.yaml: contains no policy, only Pod"),
        ("kind: ClusterPolicy\nspec: {}\n", "is unsupported, wanted nvidia.com/v1"),
    ],
)
def test_a_file_that_is_none_is_one_error(text: str, said: str) -> None:
    with pytest.raises(PolicyError) as caught:
        lint(text, "f.yaml")
    assert str(caught.value).startswith(said) or said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_labels_of_gpus_may_pass_where_nvidias_are_let_through() -> None:
    text = "node-feature-discovery: {master: {denyLabelNs: ['*'], extraLabelNs: [nvidia.com]}}\n"
    assert found(text) == []
    assert found("nfd: {enabled: false}\nnode-feature-discovery: {worker: {enable: false}}\n") == []


def test_an_earlier_chart_of_node_feature_discovery_had_keys_of_its_own() -> None:
    text = "node-feature-discovery: {enableNodeFeatureApi: true, tls: {enable: true}}\n"
    assert found(text, release="v24.6.0") == []
    assert [path for _, _, path in found(text, release="v25.3.0")] == [
        "node-feature-discovery.tls.enable"
    ]


def test_a_release_decides_what_is_known() -> None:
    text = "toolkit: {securityContext: {privileged: true}}\ncdi: {nriPluginEnabled: false}\n"
    assert found(text) == [("unknown-key", 1, "toolkit.securityContext")]
    assert ("newer-key", 2, "cdi.nriPluginEnabled") in found(text, release="v24.9.0")
    assert found("psp: {enabled: true}\n", release="22.9") == []
    with pytest.raises(UsageError, match=r"no GPU Operator release 'v99'"):
        lint(text, "f.yaml", release="v99")


def test_every_rule_is_found_by_some_test_of_this_file() -> None:
    source = Path(__file__).read_text() + (ROOT / "tests/data/lint/mistakes.yaml").read_text()
    assert {rule for rule in RULES if rule not in source} == set()


def test_a_rendered_string_and_an_overlap_of_selectors_are_warnings() -> None:
    assert found("driver: {enabled: 'true'}\n") == [("rendered", 1, "driver.enabled")]
    two = DRIVER + "  nodeSelector: {a: b}\n---\n" + DRIVER + "  nodeSelector: {c: d}\n"
    assert found(two) == [("overlap", 11, "nodeSelector")]


def test_what_the_reader_ignores_in_a_wrapper_is_a_warning() -> None:
    fleet = "helm:\n  chart: gpu-operator\n  values: {gfd: {enabled: true}}\n"
    assert found(fleet + "targetCustomizations: []\n") == [("wrapper", 4, "")]


def test_what_the_reader_would_refuse_is_told_too() -> None:
    text = HEAD + (
        "  sandboxWorkloads: {enabled: true, defaultWorkload: vm-vgpu}\n"
        "  vgpuManager: {enabled: true, repository: r.example, image: vgpu-manager, version: '580'}\n"
    )
    assert ("refused", 5, "") in found(text)


def test_notes_say_what_is_missing_and_are_no_failure() -> None:
    report = lint(HEAD + "  gfd: {enabled: true}\n  driver: {secretEnv: s}\n", "f.yaml")
    assert {f.rule for f in report.findings} == {"incomplete", "not-carried-out", "not-found"}
    assert not fails([report], strict=True)
    warned = lint(HEAD + "  kataManager: {enabled: true}\n", "f.yaml")
    assert (fails([warned], strict=True), fails([warned], strict=False)) == (True, False)


def test_values_in_a_helmrelease_are_read_where_they_stand() -> None:
    text = (
        "apiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\nmetadata: {name: gpu}\n"
        "spec:\n  values:\n    driver: {versoin: 1}\n"
    )
    report = lint(text, "f.yaml")
    assert [(f.rule, f.line) for f in report.findings] == [("wrapped", 5), ("unknown-key", 6)]


KNOWN = sorted({part for path in records("helm") for part in path.replace("[]", "").split(".")})
KEYS = st.sampled_from(KNOWN) | st.text("abXY.-_\u00e9\U0001f600", min_size=1, max_size=6)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
TREES = st.recursive(
    SCALARS,
    lambda of: st.lists(of, max_size=3) | st.dictionaries(KEYS, of, max_size=4),
    max_leaves=12,
)


def scalars(value: Any, path: str = "") -> list[str]:
    if isinstance(value, dict) and value:
        return [p for k, v in value.items() for p in scalars(v, f"{path}.{k}" if path else k)]
    if isinstance(value, list) and value and all(isinstance(v, dict) for v in value):
        return [p for v in value for p in scalars(v, f"{path}[]")]
    return [] if value is None else [path]


@given(st.dictionaries(KEYS, TREES, max_size=5), st.sampled_from(["clusterpolicy", "helm"]))
def test_no_leaf_is_passed_over_in_silence(spec: dict[str, Any], kind: str) -> None:
    data: Any = spec
    if kind == "clusterpolicy":
        data = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "spec": spec}
    try:
        report = lint(yaml.safe_dump(data, allow_unicode=True), "f.yaml")
    except PolicyError:  # anything else would be a traceback
        return
    if any(finding.rule == "wrapped" for finding in report.findings):
        return  # of an umbrella chart's values only those below one key are looked at
    shown = {use.path for use in report.uses}
    named = {finding.path for finding in report.findings if finding.path}
    for path in scalars(spec):
        words = path.split(".")
        above = {".".join(words[:n]).removesuffix("[]") for n in range(1, len(words) + 1)}
        known = path in shown or above & shown or above & named
        empty = any(p.startswith((f"{path}.", f"{path}[]")) for p in records(kind))
        assert known or path.removesuffix("[]") in named or empty or not spec, path


def reports() -> list[Report]:
    return [lint(case["file"], f"a b/{n}.yaml") for n, case in enumerate(MISTAKES)]


def test_the_json_document_fits_its_published_schema() -> None:
    text = resources.files("gpustate.gpu_operator.lint").joinpath("schema", "lint.json")
    schema = json.loads(text.read_text("utf-8"))
    data: Any = document.as_data(reports(), strict=True, failed=True)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(data, schema, cls=jsonschema.Draft202012Validator)
    assert data["format"] == schema["properties"]["format"]["const"] == "gpustate.lint/1"
    assert list(data) == schema["required"]
    item = schema["properties"]["files"]["items"]["properties"]
    assert item["leaves"]["items"]["properties"]["class"]["enum"] == [
        support.value for support in Support
    ]
    total = data["summary"]
    assert total["errors"] == sum(
        f["level"] == "error" for file in data["files"] for f in file["findings"]
    )


def test_sarif_names_rule_level_file_and_line_of_every_finding() -> None:
    # Held against sarif-schema-2.1.0.json of OASIS by hand; here the parts that code hosts read.
    data = sarif.as_sarif(reports(), "1.2.3")
    assert data["version"] == "2.1.0"
    (run,) = data["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == list(RULES)
    assert len(run["results"]) == sum(len(one.findings) for one in reports())
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("error", "warning", "note")
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"].startswith("a%20b/")
        assert place["region"]["startLine"] >= 1
        assert result["message"]["text"]


def test_the_manual_has_every_rule_with_its_level() -> None:
    manual = (ROOT / "docs" / "lint.md").read_text("utf-8")
    for rule in RULES.values():
        assert f"| `{rule.id}` | {rule.level.value} |" in manual, rule.id


def test_thousands_of_unknown_keys_are_all_told_and_in_reasonable_time() -> None:
    keys = "".join(f"  k{number}: 1\n" for number in range(20_000))
    began = time.process_time()
    told = [one for one in lint(HEAD + keys, "f.yaml").findings if one.rule == "unknown-key"]
    assert len(told) == 20_000
    assert time.process_time() - began < 20


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tolerations: [{operator: Exists}]\n", "did you mean daemonsets.tolerations"),
        ("imagePullSecrets: [x]\nenabled: true\n", "did you mean driver.imagePullSecrets"),
        ("nodeSelector: {a: b}\n", "unknown key 'nodeSelector'"),
        ("toleration: []\n", "unknown key 'toleration'"),
        (
            "driver.enabled: false\n",
            "a dot is part of the key's name; write driver: {enabled: ...}",
        ),
    ],
)
def test_a_key_of_another_level_alone_in_a_file_is_told_as_one(text: str, said: str) -> None:
    first = lint(text, "values.yaml").findings[0]
    assert (first.rule, first.level, first.line) == ("unknown-key", "error", 1)
    assert said in f"{first.message} {first.fix}"


@pytest.mark.parametrize(
    "text", ["version: 3\nservices: {}\n", "name: x\nversion: '1'\n", "foo: 1\ntolerations: []\n"]
)
def test_a_file_of_another_program_is_none_of_the_operator_s(text: str) -> None:
    with pytest.raises(PolicyError, match="is not a policy: it begins with"):
        lint(text, "values.yaml")


# --- nothing that the Operator runs is accused -----------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "driver: {enabled: false}\ngds: {enabled: true}\ngdrcopy: {enabled: true}\n",
        "driver: {enabled: false, kernelModuleType: proprietary}\ngds: {enabled: true}\n",
        "driver: {kernelModuleType: proprietary}\ngds: {enabled: true, version: 2.16.1}\n",
        "driver: {usePrecompiled: true, version: 550.90.07, repository: example.com/gpu}\n",
        "driver: {usePrecompiled: true, version: 550.90.07, image: driver-of-ours}\n",
        "driver: {version: v580.95.05-ours, repository: example.com/gpu}\n",
        "dcgm: {enabled: true, version: latest}\ntoolkit: {version: v1.17.8-ubuntu20.04}\n",
        "dcgmExporter: {version: 4.6.0-4.8.3-distroless}\ngds: {enabled: true, version: 2.29.4}\n",
        "driver: {version: '580', usePrecompiled: true}\n",
        "driver: {version: 'sha256:" + "0" * 64 + "'}\n",
    ],
)
def test_what_does_something_is_not_accused(text: str) -> None:
    wrong = ("without-effect", "contradiction", "tag", "variable", "image")
    assert [one for one in found(text) if one[0] in wrong] == []


def test_gdrcopy_without_a_driver_did_nothing_before_the_device_plugin_was_told() -> None:
    text = "driver: {enabled: false}\ngdrcopy: {enabled: true}\n"
    assert found(text, release="v25.3.4") == [("without-effect", 2, "gdrcopy.enabled")]
    text += "devicePlugin: {enabled: false}\n"
    assert found(text) == [("without-effect", 2, "gdrcopy.enabled")]


#: From cmd/nvidia-ctk-installer and tools/container of NVIDIA's toolkit, v1.16 to v1.20.
_TOOLKIT_READS = (
    *("CONTAINERD_RUNTIME_CONFIG_OVERRIDE", "CRIO_HOOKS_DIR", "CRIO_HOOK_FILENAME"),
    *("CRIO_RUNTIME_CLASS", "CRIO_SET_AS_DEFAULT", "CONTAINERD_RESTART_MODE", "DEV_ROOT_CTR_PATH"),
    *("ENABLE_CDI", "HOST_ROOT_MOUNT", "NO_DAEMON", "NRI_NAMESPACE", "NVIDIA_DEV_ROOT"),
    *("NVIDIA_CONTAINER_RUNTIME_HOOK_SKIP_MODE_DETECTION", "RUNTIME_CONFIG_OVERRIDE"),
    *("NVIDIA_CONTAINER_TOOLKIT_OPT_IN_FEATURES", "PID_FILE", "TOOLKIT_DEBUG"),
    *("TOOLKIT_PACKAGE_TYPE", "TOOLKIT_SOURCE_ROOT", "TOOLKIT_ROOT"),
)


@pytest.mark.parametrize("name", _TOOLKIT_READS)
def test_a_variable_that_the_toolkit_reads_is_known(name: str) -> None:
    text = f"toolkit: {{env: [{{name: {name}, value: x}}]}}\n"
    assert [one for one in found(text) if one[0] == "variable"] == []


@pytest.mark.parametrize(
    ("text", "path", "fix"),
    [
        ("driver: {version: v580.95.05}\n", "driver.version", "write 580.95.05"),
        ("gdrcopy: {enabled: true, version: 2.5.1}\n", "gdrcopy.version", "write v2.5.1"),
        ("gds: {enabled: true, version: v2.26.6}\n", "gds.version", "write 2.26.6"),
        ("dcgm: {enabled: true, version: v4}\n", "dcgm.version", "write the complete tag"),
        ("dcgm: {enabled: true, version: 4.5.2}\n", "dcgm.version", "write the complete tag"),
        ("dcgmExporter: {version: 4.5.2}\n", "dcgmExporter.version", "write the complete tag"),
        ("devicePlugin: {version: 0.18.0}\n", "devicePlugin.version", "write v0.18.0"),
    ],
)
def test_a_tag_that_nobody_publishes_is_named(text: str, path: str, fix: str) -> None:
    hit = [one for one in lint(text, "f.yaml").findings if one.rule == "tag"]
    assert [(one.path, str(one.fix)[: len(fix)]) for one in hit] == [(path, fix)]


def test_a_number_is_shown_as_it_was_written() -> None:
    finding = lint("driver: {version: 580.10}\n", "f.yaml").findings[0]
    assert finding.message == "driver.version is a number ('580.10'), wanted a string"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("driver: {version: ' 580.95.05'}\n", "driver.version"),
        ("toolkit: {version: 'v1.18.0 '}\n", "toolkit.version"),
        (DRIVER + "  repository: r.example\n  image: d\n  version: ' 580'\n", "version"),
    ],
)
def test_blanks_around_a_tag_are_a_warning(text: str, path: str) -> None:
    assert [(rule, where) for rule, _, where in found(text)] == [("tag", path)]


def test_lint_reports_the_other_files_when_one_is_unreadable(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("driver: {versoin: 1}\n")
    (tmp_path / "bad.yaml").write_text("a: [\n")
    files = [str(tmp_path / name) for name in ("bad.yaml", "missing.yaml", "a.yaml")]
    done = CliRunner().invoke(cli, ["lint", *files])
    assert done.exit_code == 1
    assert "a.yaml:1: error: unknown key 'driver.versoin'" in done.output
    assert "bad.yaml:2: is not YAML" in done.output
    assert "missing.yaml" in str(done.exception)


@pytest.mark.parametrize(
    "version",
    ["580-5.15.0-generic-ubuntu22.04", "580-5.15.0-1050-generic", "580-5.14.0-503.el9.x86_64"],
)
def test_the_tag_of_a_precompiled_driver_is_answered_with_what_is_accepted(version: str) -> None:
    for text, prefix in (
        (f"driver: {{version: {version}}}\n", "driver."),
        (DRIVER + f"  repository: r.example\n  image: d\n  version: {version}\n", ""),
    ):
        advice = f'write {prefix}version: "580" and {prefix}usePrecompiled: true'
        findings = [one for one in lint(text, "f.yaml").findings if one.rule in ("tag", "refused")]
        assert {one.fix for one in findings} == {advice}
        assert len(findings) == 2
    assert found("driver: {version: '580', usePrecompiled: true}\n") == []
