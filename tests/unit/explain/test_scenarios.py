"""Every broken node is given its cause, and its healthy twin is never accused.

The fragments run for real, on trees of files with recorded answers of programs (``nodetrees``): GPUs, driver,
services and the cluster are recorded, sh and the judgement are not.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import brokennodes
import pytest
import shares
from brokennodes import SCENARIOS, VARIANTS, Scenario
from nextsteps import commands, untypeable
from nodetrees import Tree, World

from gpustate import registry
from gpustate.cli import health
from gpustate.core.encode import plain
from gpustate.core.outcome import NodeResult, NodeStatus, Outcome, StateResult
from gpustate.diagnosis import chain
from gpustate.errors import EXIT_VALIDATION
from gpustate.explain import walk
from gpustate.explain.causes import View
from gpustate.explain.walk import LINKS
from gpustate.states.validator import HOLDS, NodeValidated
from gpustate.validation import causes

#: Problems of the collected reports that no look at a node can show, with the reason.
NOT_ON_A_NODE = {
    5: "a restart leaves no trace that it was needless",
    23: "about the order of many nodes",
    24: "about what an upgrade would cost",
    37: "about versions of the Operator, in a cluster",
    39: "about keys of a file: gpustate lint",
    41: "about the controller",
    42: "about the controller",
    43: "about objects of a cluster",
    44: "about documents",
}


#: What a GPU's clients need beside the GPU: a validation names it in a note, for it has tested the GPUs.
BESIDE = tuple(name for name in LINKS if name not in chain.LINKS)


def validation_names(view: View, explained: walk.Diagnosis) -> NodeResult:
    """A node's validation, in which every cause of ``explain`` has to be, and nothing that ``explain`` does not fail."""
    checks = chain.evaluate(view.observed)
    # Without a record there is no test, where a validation has one.
    untested = {check.name for check in explained.checks if check.outcome == chain.NOT_APPLICABLE}
    rows = [
        replace(check, outcome=chain.NOT_APPLICABLE) if check.name in untested else check
        for check in checks
    ]
    broken = chain.first_broken(tuple(rows))
    outcome = Outcome.UNCHANGED if broken is None else Outcome.FAILED
    result = NodeResult("n1", states=[StateResult("validator", outcome, validating=True)])
    result.checks = [plain(row) for row in rows]
    result.status = NodeStatus.OK if broken is None else NodeStatus.FAILED
    if broken is not None:
        assert explained.broken is not None, broken
    causes.add(result, explained)
    first = next((row for row in result.checks if row["outcome"] == chain.FAILED), None)
    if explained.broken is None:
        assert first is None
    elif (
        explained.name == "gpu-healthy-false"
    ):  # a validation replaces the condition of the last one
        assert (first, result.status) == (None, NodeStatus.OK)
        assert result.notes == list(explained.warnings)
    elif explained.broken.name in BESIDE:
        assert (first, result.status) == (None, NodeStatus.OK)
        assert explained.name in result.notes[0]
        assert explained.broken.remedy in result.notes[0]
    else:
        assert first == plain(explained.broken)
        assert result.exit_code == EXIT_VALIDATION
        assert explained.broken.evidence in result.reason
    assert result.notes[len(result.notes) - len(explained.warnings) :] == list(explained.warnings)
    return result


def diagnosis(world: World, folder: Path) -> walk.Diagnosis:
    """What ``explain`` says of a node, on which a validation has to agree."""
    view = Tree(world, folder).view()
    assert not view.cut_short
    explained = walk.diagnose(view)
    validation_names(view, explained)
    return explained


JUDGED = shares.share("verdicts of health and drift", [one.cause for one in SCENARIOS], most=6)


@pytest.mark.parametrize("scenario", [one for one in SCENARIOS if one.cause in JUDGED], ids=str)
def test_health_and_drift_agree_with_explain_on_a_broken_node(
    scenario: Scenario, tmp_path: Path
) -> None:
    node = Tree(scenario.broken(), tmp_path / "node")
    view = node.view()
    health_row, explained = health._health(node), walk.diagnose(view)
    if "gpus" in health_row:
        states = [gpu["state"] for gpu in health_row["gpus"]]
        failed = "failed" in states or bool(health_row["others"]) or "error" in health_row
        # One that does not answer fails another check.
        findings = {one["what"] for gpu in health_row["gpus"] for one in gpu["findings"]}
        checks = {check.name: check.failed for check in chain.evaluate(view.observed)}
        unusable = checks["pci"] or checks["libraries"] or checks["fabric"]
        assert failed == (checks["health"] or "no-answer" in findings or unusable), health_row
    proof = NodeValidated().probe(node).proof
    assert explained.validated == (proof == HOLDS or proof.startswith("failed"))


@pytest.mark.parametrize("scenario", [*SCENARIOS, *VARIANTS], ids=str)
def test_a_broken_node_is_given_its_cause(scenario: Scenario, tmp_path: Path) -> None:
    found = diagnosis(scenario.broken(), tmp_path / "node")
    assert found.broken is not None, f"{scenario.cause} was not seen"
    assert found.name == scenario.cause, found.broken.evidence
    for word in scenario.words:
        assert word in found.broken.evidence
    assert found.cause is not None
    assert found.broken.remedy == (found.cause.remedy or found.broken.remedy)
    assert commands(found.broken.remedy)
    assert untypeable(found.broken.remedy) == []
    assert [bad for warning in found.warnings for bad in untypeable(warning)] == []
    assert not [one for one in found.warnings if found.broken.evidence in one], "said once"
    assert found.broken.name == found.cause.link
    # It stops there: what is based on the broken link is not judged.
    names = [check.name for check in found.checks]
    assert list(found.open) == list(LINKS[LINKS.index(found.cause.link) + 1 :])
    assert names == list(LINKS[: LINKS.index(found.cause.link) + 1])
    assert not [check for check in found.checks[:-1] if check.failed]


def test_a_kubelet_that_somebody_stopped_is_not_explained_by_an_old_line(tmp_path: Path) -> None:
    world = World()
    world.unit("kubelet", "inactive/dead/enabled", "oom_score_adj: permission denied")
    found = diagnosis(world, tmp_path / "node")
    assert found.name == "kubelet-down"
    assert found.broken is not None
    assert found.broken.evidence == "the kubelet is inactive: it was stopped"


@pytest.mark.parametrize("scenario", [s for s in (*SCENARIOS, *VARIANTS) if s.twin], ids=str)
def test_its_healthy_twin_is_not_accused(scenario: Scenario, tmp_path: Path) -> None:
    found = diagnosis(scenario.healthy(), tmp_path / "node")
    assert found.broken is None, f"{found.name}: {found.broken}"
    assert [check.name for check in found.checks] == list(LINKS)


@pytest.mark.parametrize(
    ("labels", "cause"), [({}, ""), ({"mig.config": "all-disabled"}, "mig-manager-stuck")]
)
def test_the_failure_of_a_layout_whose_label_was_removed_is_no_cause(
    labels: dict[str, str], cause: str, tmp_path: Path
) -> None:
    world = World()
    brokennodes.kube_labels(world, {"mig.config.state": "failed", **labels})
    found = diagnosis(world, tmp_path / "node")
    assert (found.name if found.broken else "") == cause


@pytest.mark.parametrize(
    ("strategy", "count", "evidence"),
    [
        ("single", 4, ""),
        ("single", 2, "is 2, but NVML lists 2 GPUs and 4 MIG devices (strategy single)"),
        ("mixed", 2, ""),
        ("mixed", 4, "is 4, but NVML lists 2 GPUs and 4 MIG devices (strategy mixed)"),
    ],
)
def test_count_of_gpus_is_judged_by_the_mig_strategy_of_the_labels(
    strategy: str, count: int, evidence: str, tmp_path: Path
) -> None:
    world = World()
    brokennodes.counted(strategy, count)(world)
    found = diagnosis(world, tmp_path / "node")
    assert found.name == ("labels-stale" if evidence else "")
    assert evidence in (found.broken.evidence if found.broken else "")


def test_the_plain_healthy_node_is_not_accused(tmp_path: Path) -> None:
    found = diagnosis(World(), tmp_path / "node")
    assert found.broken is None, f"{found.name}: {found.broken}"
    said = {check.name: check.outcome for check in found.checks}
    assert [name for name in LINKS if said[name] == "not applicable"] == [
        "fabric",
        "container",
        "cuda",
        "rdma",
        "metrics",
    ]


@pytest.mark.parametrize(
    ("states", "cause"),
    [
        (None, "docker-without-runtime"),
        (("docker", "validator"), "docker-without-runtime"),
        (("containerd", "validator"), ""),
    ],
)
def test_a_runtime_that_the_policy_does_not_configure_is_a_warning(
    states: tuple[str, ...] | None, cause: str, tmp_path: Path
) -> None:
    world = World()
    brokennodes.docker(brokennodes.RUNS, runtimes="runc")(world)
    found = walk.diagnose(replace(Tree(world, tmp_path / "node").view(), states=states))
    assert found.name == cause
    words = "docker runs without the runtime nvidia"
    assert any(words in warning for warning in found.warnings) is not bool(cause)


@pytest.mark.parametrize(
    "package", ["libnvidia-compute-470", "libcuda1-340", "nvidia-driver-cuda-libs"]
)
def test_a_record_of_a_package_of_another_version_is_no_fault_of_the_files_in_use(
    package: str, tmp_path: Path
) -> None:
    world = World()
    world.packages[package] = "470.256.02-0ubuntu0.24.04.1"
    found = diagnosis(world, tmp_path / "node")
    assert found.broken is None, f"{found.name}: {found.broken}"


def test_every_cause_has_a_scenario_and_there_are_many() -> None:
    names = [scenario.cause for scenario in SCENARIOS]
    assert len(names) >= 80
    assert set(names) == {cause.name for cause in walk.CAUSES}


def test_every_problem_that_a_node_can_show_has_a_scenario() -> None:
    covered = {number for scenario in SCENARIOS for number in scenario.problem}
    assert covered.isdisjoint(NOT_ON_A_NODE)
    assert covered | set(NOT_ON_A_NODE) == set(range(1, 45))


def test_a_cause_names_a_link_and_a_state_that_exist() -> None:
    for cause in walk.CAUSES:
        assert cause.link in LINKS
        assert cause.remedy or cause.explains  # else it has that of the failed check
        assert "INVENTORY -l NODE" not in cause.remedy, "the verb adds its own inventory"
        assert not cause.state or cause.state in registry.names(), cause.name


@pytest.mark.parametrize(
    ("seconds", "restarts", "words"),
    [(1, 0, ""), (1, 3, "docker failed"), (300, 0, "docker has been starting for 300 s")],
)
def test_a_runtime_that_starts_again_and_again_or_hangs_in_its_start_is_named(
    seconds: int, restarts: int, words: str, tmp_path: Path
) -> None:
    change = brokennodes.both(
        brokennodes.docker(brokennodes.RUNS), brokennodes.starting("docker", seconds, restarts)
    )
    found = diagnosis(Scenario("", (), change, ()).broken(), tmp_path / "node")
    assert (found.name == "container-runtime-failed") == bool(words)
    assert found.broken is None or words in found.broken.evidence


@pytest.mark.parametrize(
    ("state", "cause"),
    [
        ("failed/failed/enabled", "container-runtime-failed"),
        ("inactive/dead/enabled", "runtime-down"),
        ("inactive/dead/disabled", ""),
    ],
)
def test_a_kubernetes_distribution_that_does_not_run_fails_the_runtime(
    state: str, cause: str, tmp_path: Path
) -> None:
    world = World()
    world.unit("k3s-agent", state, 'level=fatal msg="token CA hash does not match"')
    found = diagnosis(world, tmp_path / "node")
    assert found.name == cause
    if found.broken is not None:
        assert found.broken.evidence.startswith("k3s-agent does not run, and it is enabled")
        assert ("token CA hash" in found.broken.evidence) == ("failed" in state)


@pytest.mark.parametrize(
    ("remembered", "on_disk", "cause"),
    [("disabled", True, "exporter-stopped"), ("enabled", False, "")],
)
def test_what_starts_at_boot_is_read_from_the_disk_and_not_from_what_systemd_remembers(
    remembered: str, on_disk: bool, cause: str, tmp_path: Path
) -> None:
    state = f"inactive/dead/{remembered}"
    change = brokennodes.at_boot("nvidia-dcgm-exporter", state, on_disk=on_disk)
    assert diagnosis(Scenario("", (), change, ()).broken(), tmp_path / "node").name == cause


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("/usr/bin/containerd", ""),
        ("/usr/bin/containerd --config /etc/containerd/config.toml", ""),
        ("/usr/local/bin/wrapped -c count", ""),
        ("/usr/bin/containerd -l debug --config /x/other.toml", "--config /x/other.toml config"),
        ("/usr/bin/containerd --config=/x/other.toml", "no runtime handler for GPUs"),
        ("/usr/bin/containerd -c /x/other.toml", "no runtime handler for GPUs"),
    ],
)
def test_containerd_is_judged_by_the_file_that_its_service_names(
    command: str, words: str, tmp_path: Path
) -> None:
    tree = Tree(World(containerd_command=command), tmp_path / "node")
    tree.program(
        "containerd",
        'case "$*" in "--config /x/other.toml config dump") echo "version = 3" ;;\n'
        '"config dump") cat @TREE@/answers/containerd.out ;; *) exit 1 ;; esac\n',
    )
    # The folder that the default imports is there, and not what is amiss.
    tree.put(brokennodes.DROP_IN, brokennodes.DROP_IN_TEXT)
    found = walk.diagnose(tree.view())
    assert found.name == ("containerd-handler-missing" if words else "")
    assert found.broken is None or words in found.broken.evidence


@pytest.mark.parametrize(
    "state", ["inactive/dead/masked", "inactive/dead/enabled", "failed/failed/enabled"]
)
@pytest.mark.parametrize(
    ("states", "fails"), [(None, True), (("containerd", "docker"), True), (("containerd",), False)]
)
def test_a_dead_runtime_beside_one_that_works_fails_only_where_the_policy_configures_it(
    states: tuple[str, ...] | None, fails: bool, state: str, tmp_path: Path
) -> None:
    change = brokennodes.both(
        brokennodes.docker(state), brokennodes.drop_in("docker", "/usr/sbin/dockerd -D")
    )
    view = Tree(Scenario("", (), change, ()).broken(), tmp_path / "node").view()
    found = walk.diagnose(replace(view, states=states))
    validation_names(view, found)
    assert (found.broken is not None) is fails
    words = "docker failed" if "failed" in state else "docker does not run"
    assert any(words in warning for warning in found.warnings) is not fails
    if found.broken is not None:
        assert found.broken.remedy
        assert "docker" in found.broken.evidence


def test_a_socket_whose_service_is_not_installed_is_said_to_be_that(tmp_path: Path) -> None:
    change = brokennodes.both(
        brokennodes.specification(brokennodes.SOCKET),
        lambda world: world.units.pop("nvidia-persistenced", None),
    )
    found = diagnosis(Scenario("", (), change, ()).broken(), tmp_path / "node")
    assert found.name == "cdi-names-missing-files"
    assert found.broken is not None
    assert "nvidia-persistenced, which creates it, is not installed" in found.broken.evidence


@pytest.mark.parametrize(("change", "fault"), brokennodes.DOWN)
def test_a_runtime_that_does_not_run_is_a_fault_where_it_is_used(
    change: brokennodes.Change, fault: bool, tmp_path: Path
) -> None:
    found = diagnosis(Scenario("", (), change, ()).broken(), tmp_path / "node")
    assert found.name == ("runtime-down" if fault else ""), found.broken
