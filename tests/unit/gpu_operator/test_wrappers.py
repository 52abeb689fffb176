"""Helm values inside other programs' files: read where they stand, or refused with the command that renders them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpustate import gpu_operator
from gpustate.errors import PolicyError
from gpustate.gpu_operator import Reading
from gpustate.gpu_operator.lint import lint
from gpustate.policies import operator
from gpustate.policies.changes import Changes

BARE = "driver: {version: 550.90.07}\ntoolkit: {enabled: false}\n"
INSIDE = "    driver: {version: 550.90.07}\n    toolkit: {enabled: false}\n"
FLUX = (
    "apiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\nmetadata: {name: gpu, namespace: g}\nspec:\n"
    "  chart: {spec: {chart: %s, version: %s}}\n"
)
CONFIG_MAP = (
    "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s}\ndata:\n  values.yaml: |\n%s"
)


def states(reading: Reading) -> dict[str, dict[str, Any]]:
    return {one.state: dict(one.parameters) for one in reading.states}


def read(text: str, file: str = "f.yaml") -> Reading:
    return gpu_operator.read(text, file)


def outcome(text: str) -> str:
    """The refusal; empty where there is none."""
    try:
        read(text)
    except PolicyError as error:
        return str(error)
    return ""


WRAPPED = {
    "flux": FLUX % ("gpu-operator", "v24.6.1") + "  values:\n" + INSIDE,
    "flux, a path": FLUX % ("./charts/gpu-operator", "v24.6.1") + "  values:\n" + INSIDE,
    "argo, a text": (
        "apiVersion: argoproj.io/v1alpha1\nkind: Application\nmetadata: {name: a}\nspec:\n  source:\n"
        "   chart: gpu-operator\n   targetRevision: 24.6.1\n   helm:\n    values: |\n"
        + INSIDE.replace("    ", "      ")
    ),
    "argo, an object": (
        "apiVersion: argoproj.io/v1alpha1\nkind: Application\nmetadata: {name: a}\nspec:\n  sources:\n"
        "  - {repoURL: x, path: y}\n  - chart: gpu-operator\n    targetRevision: 24.6.*\n    helm:\n"
        "      valuesObject: {driver: {version: 550.1.1}, toolkit: {enabled: true}}\n"
        "      parameters: [{name: driver.version, value: 550.90.07}, {name: toolkit.enabled, value: 'false'}]\n"
    ),
    "k3s": (
        "apiVersion: helm.cattle.io/v1\nkind: HelmChart\nmetadata: {name: g}\nspec:\n  chart: gpu-operator\n"
        "  version: v24.6.1\n  valuesContent: |-\n" + INSIDE
    ),
    "fleet": (
        "defaultNamespace: g\nhelm:\n  chart: gpu-operator\n  version: 24.6.1\n  values:\n" + INSIDE
    ),
    "helmfile": (
        "releases:\n- {name: other, chart: x/y}\n- name: g\n  chart: nvidia/gpu-operator\n  version: v24.6.1\n"
        "  values:\n  - driver: {version: 550.90.07}\n  set: [{name: toolkit.enabled, value: false}]\n"
    ),
    "cluster api": (
        "apiVersion: addons.cluster.x-k8s.io/v1alpha1\nkind: HelmChartProxy\nmetadata: {name: g}\nspec:\n"
        "  chartName: gpu-operator\n  version: 24.6.1\n  valuesTemplate: |\n" + INSIDE
    ),
    "kustomize": (
        "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nhelmCharts:\n- name: gpu-operator\n"
        "  version: v24.6.1\n  valuesInline:\n" + INSIDE
    ),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_values_are_read_for_the_release_that_their_wrapper_says(name: str) -> None:
    reading = read(WRAPPED[name])
    assert reading.release.startswith("v24.6")
    assert states(reading) == states(gpu_operator.read(BARE, "v.yaml", release=reading.release))
    assert states(reading)["driver"] == {"version": "550.90.07", "module_type": "proprietary"}
    assert lint(WRAPPED[name], "f.yaml").release == reading.release


@pytest.mark.parametrize(
    "text",
    [
        "global: {imageRegistry: x}\ngpu-operator:\n    enabled: true\n" + INSIDE,
        "gpuOperator:\n" + INSIDE,
        "global: {a: b}\nother: {c: 1}\nnvidia-gpu-operator:\n" + INSIDE,
        CONFIG_MAP[4:] % ("values", INSIDE),
    ],
)
def test_values_of_an_umbrella_chart_and_of_a_config_map_are_read(text: str) -> None:
    assert states(read(text)) == states(read(BARE))


def test_a_chart_beside_says_the_alias_and_the_release(tmp_path: Path) -> None:
    (tmp_path / "Chart.yaml").write_text(
        "name: stack\nversion: 1.0.0\ndependencies:\n"
        "- {name: gpu-operator, alias: gpus, version: v23.9.1, repository: x}\n"
    )
    file = tmp_path / "values.yaml"
    reading = read("gpus:\n" + INSIDE, str(file))
    assert (reading.release, states(reading)["driver"]["version"]) == ("v23.9.1", "550.90.07")


def test_values_of_another_chart_of_that_name_are_no_policy(tmp_path: Path) -> None:
    chart, file = tmp_path / "Chart.yaml", str(tmp_path / "values.yaml")
    chart.write_text("name: gpu-operator\nversion: 0.1.0\nappVersion: 25.10.1\n")
    with pytest.raises(PolicyError, match="of another chart named gpu-operator"):
        read("clusterPolicy: {driver: {enabled: true}}\n", file)
    dependency = "dependencies:\n- {name: node-feature-discovery, version: 0.18.2, repository: x}\n"
    chart.write_text(f"{chart.read_text()}{dependency}")
    assert read("driver: {enabled: true}\n", file).release == "v25.10.1"


@pytest.mark.parametrize("name", ["AMD's", "none"])
def test_a_wrapper_of_another_chart_is_no_policy(name: str) -> None:
    text = FLUX % ("gpu-operator-charts" if name == "AMD's" else "podinfo", "v1.3.0")
    with pytest.raises(PolicyError, match="contains no policy, only HelmRelease"):
        read(text + "  values: {kmm: {enabled: true}, driver: {enabled: true}}\n")


def test_values_from_objects_are_laid_under_the_release_s_own() -> None:
    text = (
        FLUX % ("gpu-operator", "v24.6.1")
        + "  valuesFrom:\n  - {kind: ConfigMap, name: base}\n"
        + "  - {kind: ConfigMap, name: more, optional: true}\n"
        + "  values: {driver: {version: 550.90.07}}\n"
        + CONFIG_MAP
        % (
            "base",
            "    driver: {version: '535', kernelModuleType: open}\n    toolkit: {enabled: false}\n",
        )
    )
    reading = read(text)
    # Before v25.3 there was no kernelModuleType, and the API server dropped it.
    assert states(reading)["driver"] == {"version": "550.90.07", "module_type": "proprietary"}
    assert "container-toolkit" not in states(reading)
    assert any("'more', which was not found; it is optional" in note for note in reading.notes)
    assert any("driver.kernelModuleType was added in v25.3.0" in note for note in reading.notes)
    assert not any("not read" in note for note in reading.notes)


def test_an_object_that_values_come_from_and_that_is_not_beside_is_asked_for(
    tmp_path: Path,
) -> None:
    text = FLUX % ("gpu-operator", "v24.6.1") + "  valuesFrom: [{kind: ConfigMap, name: base}]\n"
    file = tmp_path / "release.yaml"
    with pytest.raises(PolicyError, match="valuesFrom names the ConfigMap 'base'") as caught:
        read(text, str(file))
    assert f"kubectl get configmap base -n g -o yaml > {tmp_path}/release.d/base.yaml" in str(
        caught.value
    )
    (tmp_path / "base.yaml").write_text((CONFIG_MAP % ("base", INSIDE))[4:])
    assert states(read(text, str(file))) == states(read(WRAPPED["flux"]))
    (tmp_path / "base.yaml").unlink()
    (tmp_path / "values.yaml").write_text(BARE)
    (tmp_path / "kustomization.yaml").write_text(
        "configMapGenerator:\n- {name: base, files: [values.yaml]}\nresources: [release.yaml]\n"
    )
    assert states(read(text, str(file))) == states(read(WRAPPED["flux"]))


def test_values_files_beside_are_merged_and_others_asked_for(tmp_path: Path) -> None:
    folder = tmp_path / "apps" / "gpu"
    folder.mkdir(parents=True)
    text = WRAPPED["argo, a text"].replace(
        "    values: |\n", "    valueFiles: [$v/apps/gpu/over.yaml]\n    values: |\n"
    )
    with pytest.raises(
        PolicyError, match=r"render it first: argocd app manifests a > rendered\.yaml"
    ):
        read(text, str(folder / "app.yaml"))
    (folder / "over.yaml").write_text("gfd: {enabled: false}\n")
    assert "gpu-labels" not in states(read(text, str(folder / "app.yaml")))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [a.yaml]\n"
            "patches: [{path: b.yaml}]\n",
            "render it first: kubectl kustomize --enable-helm . > rendered.yaml",
        ),
        (
            "driver:\n  {{- if .x }}\n  enabled: true\n",
            "is a template, not YAML; render it first: helm template",
        ),
        (
            "driver: {version: '{{ version }}'}\n",
            "a placeholder of another program; render it first: helm",
        ),
        ("driver: {version: '${version}'}\n", "render it first: flux envsubst"),
        (
            "a-gpu-operator:\n" + INSIDE + "b-gpu-operator:\n" + INSIDE,
            "contains values of the chart at 'a-gpu-op",
        ),
    ],
)
def test_what_has_to_be_rendered_first_is_refused_with_the_command(text: str, said: str) -> None:
    with pytest.raises(PolicyError) as caught:
        read(text)
    assert said in str(caught.value)


def test_a_patch_of_a_kustomization_is_refused_with_the_command(tmp_path: Path) -> None:
    (tmp_path / "kustomization.yaml").write_text("resources: [x]\npatches:\n- path: patch.yaml\n")
    text = "apiVersion: nvidia.com/v1\nkind: ClusterPolicy\nmetadata: {name: p}\nspec: {gfd: {}}\n"
    with pytest.raises(PolicyError, match=f"kubectl kustomize {tmp_path} > rendered.yaml"):
        read(text, str(tmp_path / "patch.yaml"))
    assert read(text, str(tmp_path / "policy.yaml")).states


def test_a_default_of_flux_stands_in_its_place() -> None:
    reading = read("driver:\n  enabled: ${on:=true}\n  version: ${version:=580.95.05}\n")
    assert states(reading)["driver"] == {"version": "580.95.05"}


def test_changes_of_the_command_line_reach_wrapped_values() -> None:
    for text in WRAPPED.values():
        policy = operator.read(
            text, "f.yaml", changes=Changes(set_typed=("driver.version=550.54.15",))
        )
        assert "550.54.15" in str(policy.states)
        assert any("read as for v24.6" in note for note in policy.notes) or policy.release


def test_values_of_another_chart_are_refused_and_not_taken_for_defaults() -> None:
    text = "config: {}\nmigStrategy: none\nfailOnInitError: true\ngfd: {enabled: true}\n"
    with pytest.raises(PolicyError, match=r"which has no key 'config' and only 1 of its 4 keys"):
        read(text)
    assert read("x-common: &c {a: b}\ndriver: {enabled: false}\n").states  # holds an anchor


def test_a_config_map_alone_is_linted_and_is_no_policy() -> None:
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\ndata:\n  config.yaml: |\n    version: v1\n    mig-configs:\n      a: {}\n"
    (finding,) = lint(text, "cm.yaml").findings
    assert (finding.rule, finding.line) == ("companion", 8)
    with pytest.raises(
        PolicyError, match="contains no policy, only objects that a policy refers to"
    ):
        read(text)


@pytest.mark.parametrize(
    "text",
    [
        "releases:\n- {chart: nvidia/gpu-operator, values: %s, set: %s}\n",
        "helmCharts:\n- {name: gpu-operator, additionalValuesFiles: %s, valuesFile: %s}\n",
        "helm: {chart: gpu-operator, valuesFiles: %s, values: %s}\n",
        FLUX % ("gpu-operator", "v24.6.1") + "  valuesFrom: %s\n  values: %s\n",
        "apiVersion: argoproj.io/v1alpha1\nkind: Application\nspec:\n  source: {chart: gpu-operator,"
        " helm: {valueFiles: %s, parameters: %s}}\n",
        "apiVersion: helm.cattle.io/v1\nkind: HelmChart\nspec: {chart: gpu-operator, set: %s, version: %s}\n",
    ],
    ids=("helmfile", "kustomize", "fleet", "flux", "argo", "k3s"),
)
@pytest.mark.parametrize("wrong", ["text", "{a: b}", "[1, text]", "[[a]]", "null"])
def test_a_part_of_the_wrong_kind_is_refused_in_one_line_or_left_out(text: str, wrong: str) -> None:
    for pair in ((wrong, "{}"), ("{}", wrong), (wrong, wrong)):
        assert "\n" not in outcome(text % pair)


FROM_FILES = {
    "helmfile.yaml": "releases:\n- name: g\n  chart: nvidia/gpu-operator\n  values: [own.yaml]\n",
    "fleet.yaml": "helm:\n  chart: gpu-operator\n  valuesFiles: [own.yaml]\n",
    "app.yaml": (
        "apiVersion: argoproj.io/v1alpha1\nkind: Application\nmetadata: {name: a}\nspec:\n  sources:\n"
        "  - chart: gpu-operator\n    targetRevision: v26.7.0\n    helm: {valueFiles: [$v/own.yaml]}\n"
    ),
    "kustomization.yaml": "helmCharts:\n- name: gpu-operator\n  valuesFile: own.yaml\n",
    "flux.yaml": (FLUX % ("gpu-operator", "v26.7.0"))
    + "  valuesFrom: [{kind: ConfigMap, name: own}]\n",
}
OTHER = "# mine\ndriver:\n  version: 580.95.05\n%s"


def _place(folder: Path, name: str, more: str) -> tuple[str, str, int]:
    """The wrapper beside the values that it takes, their file, and the lines above them in it."""
    file = folder / name
    file.write_text(FROM_FILES[name])
    if name != "flux.yaml":
        (folder / "own.yaml").write_text(OTHER % more)
        return str(file), str(folder / "own.yaml"), 0
    own = (OTHER % more).replace("\n", "\n    ")
    (folder / "map.yaml").write_text((CONFIG_MAP % ("own", f"    {own}\n")).removeprefix("---\n"))
    return str(file), str(folder / "map.yaml"), 5


@pytest.mark.parametrize("name", FROM_FILES)
def test_a_value_of_another_file_has_its_place_there(tmp_path: Path, name: str) -> None:
    file, other, above = _place(tmp_path, name, "  verison: 1\n")
    text = Path(file).read_text()
    wrong = [one for one in lint(text, file).findings if one.rule == "unknown-key"]
    assert [(one.file, one.line) for one in wrong] == [(other, above + 4)]
    uses = {(use.path, use.file, use.line) for use in lint(text, file).uses}
    assert ("driver.version", other, above + 3) in uses
    policy = operator.read(text, file)
    assert policy.places["states", "driver", "version"] == f"{other}:{above + 3}"
    assert any(
        note.startswith(f"{other}:{above + 4}: warning: unknown key") for note in policy.notes
    )
    with pytest.raises(PolicyError) as caught:
        operator.read(text, file, strict=True)
    assert caught.value.place == f"{other}:{above + 4}"


def test_a_change_on_the_command_line_leaves_places_in_another_file(tmp_path: Path) -> None:
    file, other, _ = _place(
        tmp_path, "fleet.yaml", "  verison: 1\ndcgm: {hostPort: 1, enabled: 5}\n"
    )
    text = Path(file).read_text()
    with pytest.raises(PolicyError) as caught:
        operator.read(text, file)
    assert caught.value.place == f"{other}:5"
    policy = operator.read(text, file, changes=Changes(set_typed=("dcgm.enabled=false",)))
    assert policy.places["states", "driver", "version"] == f"{other}:3"
    assert [path for path in policy.last if path[1] == "driver"] == []
    notes = " ".join(policy.notes)
    assert f"{other}:4: warning: unknown key" in notes
    assert "10000" not in notes


def test_flux_reads_values_from_its_own_namespace_alone(tmp_path: Path) -> None:
    file = str(tmp_path / "flux.yaml")
    release = FLUX % ("gpu-operator", "v26.7.0")
    values = "    driver: {version: %s}\n"

    def text(optional: str, *namespaces: str) -> str:
        maps = [
            (CONFIG_MAP % ("own", values % f"580.95.0{number}")).replace(
                "{name: own}", f"{{name: own{f', namespace: {one}' if one else ''}}}"
            )
            for number, one in enumerate(namespaces, 1)
        ]
        named = f"  valuesFrom: [{{kind: ConfigMap, name: own{optional}}}]\n"
        return release + named + "  values: {toolkit: {enabled: false}}\n" + "".join(maps)

    with pytest.raises(PolicyError, match="not found in namespace 'g', the only one") as caught:
        read(text("", "other"), file)
    assert "another namespace at " in caught.value.message
    assert f"{file}:9" in caught.value.message
    assert "-n g -o yaml" in str(caught.value.fix)
    optional = read(text(", optional: true", "other"), file)
    assert "version" not in states(optional)["driver"]
    assert any("warning: valuesFrom names" in note for note in optional.notes)
    assert states(read(text("", "other", "g"), file))["driver"]["version"] == "580.95.02"
    assert states(read(text("", ""), file))["driver"]["version"] == "580.95.01"


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        (
            WRAPPED["fleet"] + "targetCustomizations:\n- {name: a, helm: {}}\n",
            8,
            "targetCustomizations are ignored",
        ),
        (
            FLUX % ("gpu-operator", "v99.1.0") + "  values:\n" + INSIDE,
            5,
            "not one supported release",
        ),
        (FLUX % ("gpu-operator", "'>=24.6'") + "  values:\n" + INSIDE, 5, "'>=24.6' is not one"),
        (
            FLUX % ("gpu-operator", "v26.7.0")
            + "  valuesFrom: [{kind: Secret, name: s, optional: true}]\n  values:\n"
            + INSIDE,
            6,
            "it is optional",
        ),
    ],
)
def test_lint_warns_of_what_the_reader_ignores_in_the_wrapper(
    text: str, line: int, said: str
) -> None:
    report = lint(text, "f.yaml")
    warned = [(one.line, one.message) for one in report.findings if one.level == "warning"]
    assert [number for number, _ in warned] == [line]
    assert said in warned[0][1]


@pytest.mark.parametrize(
    ("setting", "fix"),
    [
        ("migManager: {enabled: '${MIG}'}", "flux envsubst --strict"),
        ("driver: {kernelModuleType: '${TYPE}'}", "flux envsubst --strict"),
        ("driver: {imagePullSecrets: '${SECRETS}'}", "flux envsubst --strict"),
        ("driver: {upgradePolicy: {maxParallelUpgrades: '{{ n }}'}}", "helm template"),
        ("driver: {version: '${VERSION}'}", "flux envsubst --strict"),
    ],
)
def test_a_placeholder_in_place_of_any_type_is_named_as_such(setting: str, fix: str) -> None:
    text = f"{FLUX % ('gpu-operator', 'v26.7.0')}  values:\n    {setting}\n"
    with pytest.raises(PolicyError, match="a placeholder of another program") as caught:
        read(text)
    assert fix in str(caught.value.fix)
    (wrong,) = [one for one in lint(text, "f.yaml").findings if one.level == "error"]
    assert "a placeholder of another program" in wrong.message
    assert fix in str(wrong.fix)


def test_a_range_of_a_dependency_is_a_warning(tmp_path: Path) -> None:
    chart = "name: all\ndependencies:\n- {name: gpu-operator, version: '%s'}\n"
    (tmp_path / "Chart.yaml").write_text(chart % ">=24.6")
    file = str(tmp_path / "values.yaml")
    text = f"gpu-operator:\n{INSIDE}"
    said = f"{tmp_path}/Chart.yaml:3: warning: chart version '>=24.6' is not one supported release"
    assert any(note.startswith(said) for note in read(text, file).notes)
    (warned,) = [one for one in lint(text, file).findings if one.rule == "wrapper"]
    assert (warned.file, warned.line) == (f"{tmp_path}/Chart.yaml", 3)
    (tmp_path / "Chart.yaml").write_text(chart % "24.6.x")
    assert not [note for note in read(text, file).notes if "one supported release" in note]
