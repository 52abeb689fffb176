"""Next steps name the user's policy, inventory and node, and what the policy lacks."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from commandline import Cli

from gpustate.cli import explain, next_steps
from gpustate.diagnosis import remedies
from gpustate.diagnosis.chain import FAILED, ChainObservation, Check
from gpustate.engine import records
from gpustate.explain import walk
from gpustate.explain.causes import View
from gpustate.explain.clues import Clues
from gpustate.explain.walk import Diagnosis
from gpustate.schedulers.base import Hold
from gpustate.schedulers.kubernetes.members import HOLD

LINKS = remedies.by_apply("create the links", "dev-char")
ON = "-i 'my nodes.yml' -l gpu7"


@pytest.mark.parametrize(
    ("policy", "text", "states", "command"),
    [
        ("site.yml", "states:\n  driver:\n", ["driver"],
         f"create the links: add `dev-char:` to the states of site.yml, then: gpustate apply site.yml {ON}"),
        ("site.yml", "preset: plain-node\n", ["driver"],
         f"create the links: add `dev-char:` to the states of site.yml, then: gpustate apply site.yml {ON}"),
        ("site.yml", "states:\n  dev-char:\n", ["dev-char"], f"create the links (state dev-char): gpustate apply site.yml {ON}"),
        ("site.py", "", ["driver"], f"create the links: add the state dev-char to site.py, then: gpustate apply site.py {ON}"),
        ("clusterpolicy.yaml", "kind: ClusterPolicy\n", ["driver"], f"create the links: gpustate apply dev-char {ON}"),
        ("", "", None, f"create the links (state dev-char): gpustate apply POLICY {ON}"),
    ],
)  # fmt: skip
def test_a_state_that_the_policy_lacks_is_a_line_to_add(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    policy: str,
    text: str,
    states: list[str] | None,
    command: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    if policy:
        Path(policy).write_text(text)
    target = next_steps.Target("my nodes.yml", policy, states)
    assert target.complete(LINKS, "gpu7") == command
    rows = [{"state": name} for name in states or ()]
    rows.append({"state": "validator", "reason": LINKS})
    result = {"nodes": [{"name": "gpu7", "states": rows}]}
    next_steps.Target("my nodes.yml", policy).complete_result(result)
    if policy:
        assert rows[-1]["reason"] == command


def test_commands_name_the_node_and_its_inventory() -> None:
    target = next_steps.Target("my nodes.yml", "site.yml", ["cdi"])
    fix = "apply (state cdi): gpustate apply POLICY -l NODE; or: gpustate node quarantine -l NODE --end"
    assert target.complete(fix, "gpu7") == (
        f"apply (state cdi): gpustate apply site.yml {ON}; or: gpustate node quarantine {ON} --end"
    )


def test_a_parameter_is_set_on_a_state_where_the_policy_has_other_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("clusterpolicy.yaml").write_text("kind: ClusterPolicy\n")
    Path("site.yml").write_text("states:\n  container-toolkit:\n")
    setting = f"{ON} --set container-toolkit.mode=cdi"
    for policy, name in (("clusterpolicy.yaml", "container-toolkit"), ("site.yml", "site.yml")):
        target = next_steps.Target("my nodes.yml", policy, ["container-toolkit"])
        completed = target.complete(remedies.MODE_CDI, "gpu7")
        assert (
            completed == f"{remedies.MODE_CDI.partition(': ')[0]}: gpustate apply {name} {setting}"
        )


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policy.yaml").write_text("states:\n  nouveau:\n")
    (tmp_path / "hosts").write_text("gpu1\ngpu2\n")
    return tmp_path


def run(name: str, source: str = "policy.yaml", *, ended: bool, nodes: dict[str, str]) -> None:
    options = {"inventory": "hosts"}
    path = records.begin(
        name, "apply", source, options, person="root@here", born="1", created="now"
    )
    outcome = records.RunOutcome(nodes=nodes) if nodes else None
    records.end(path, interrupted=not ended, outcome=outcome)


def test_an_interrupted_run_is_resumed_on_the_nodes_it_did_not_finish(site: Path) -> None:
    run("1-a", ended=False, nodes={"gpu1": "ok", "gpu2": "interrupted"})
    record = next_steps.last_change({"inventory": str(site / "hosts")})
    assert next_steps.interrupted(record, "gpu1") == ""
    assert "continue it: gpustate rollout resume 1-a" in next_steps.interrupted(record, "gpu2")
    assert next_steps.interrupted(record, "gpu3") == ""
    step = next_steps.continuation(next_steps.interrupted(record, "gpu2"))
    assert step == "continue it: gpustate rollout resume 1-a"
    target = next_steps.of_record(record, {"inventory": "hosts"})
    assert (target.policy, target.states) == ("policy.yaml", ["nouveau"])
    run("2-b", ended=True, nodes={"gpu2": "ok"})
    record = next_steps.last_change({"inventory": "hosts"})
    assert record == records.load("2-b")
    assert next_steps.interrupted(record, "gpu2") == ""
    assert next_steps.last_change({"inventory": "hosts"}, "1-a") == records.load("1-a")
    (site / "plan.json").write_text("{}")
    for run_id, source in (("3-c", "nouveau"), ("4-d", "plan.json")):
        run(run_id, source, ended=True, nodes={"gpu2": "ok"})
        record = next_steps.last_change({"inventory": "hosts"})
        assert record == records.load(run_id)
        assert next_steps.of_record(record, {"inventory": "hosts"}).policy == "policy.yaml"


def test_names_of_a_few_nodes_do_not_drown_in_many() -> None:
    names = [*(f"a{n}" for n in range(1, 301)), "gpu1", "gpu2"]
    assert explain.ranges(names) == ["gpu[1-2]", "a[1-300]"]


@pytest.mark.parametrize("nodes", [("near", "here"), ("*e*",), ("all",)])
def test_of_several_nodes_only_what_failed_is_shown(
    gpustate: Cli, project: Path, nodes: tuple[str, ...]
) -> None:
    local = f"ansible_connection: local\n      gpustate_state_folder: {project}/state\n"
    hosts = "".join(f"    {name}:\n      {local}" for name in ("near", "here"))
    (project / "inventory.yml").write_text(f"all:\n  hosts:\n{hosts}")
    several = gpustate("explain", *nodes, "-i", "inventory.yml").out.splitlines()
    assert [line.split()[0] for line in several if line[0] != " "] == ["near", "here"]
    assert not [line for line in several if line.startswith(("  =", "  - pci"))]


def test_a_run_that_was_killed_is_resumed_and_one_at_work_is_not(site: Path) -> None:
    run("1-a", ended=False, nodes={})
    record = next_steps.last_change({"inventory": "hosts"})
    assert "gpustate rollout resume 1-a" in next_steps.interrupted(record, "gpu1")
    from gpustate.engine import fleet

    alive = records.load("1-a")
    alive["pid"], alive["born"] = os.getppid(), fleet.born(os.getppid())
    assert next_steps.interrupted(alive, "gpu1") == ""


@pytest.mark.parametrize(
    "command",
    [
        "kubectl describe node {}",
        "kubectl label node {} --overwrite LABEL=true",
        "kubectl get pods -A -o wide --field-selector spec.nodeName={}",
        "scontrol update nodename={} state=resume",
    ],
)
def test_commands_of_schedulers_name_the_node(command: str) -> None:
    target = next_steps.Target("hosts.yml")
    assert target.complete(f"next: {command.format('NODE')}", "gpu7") == (
        f"next: {command.format('gpu7')}"
    )
    assert target.complete("GPU0 NODE SYS", "gpu7") == "GPU0 NODE SYS"


@pytest.mark.parametrize(
    ("broken", "replaced"), [("device-plugin", True), ("scheduler", True), ("driver", False)]
)
def test_a_node_that_a_run_holds_has_the_next_step_of_status(
    gpustate: Cli, project: Path, monkeypatch: pytest.MonkeyPatch, broken: str, replaced: bool
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(project / "state"))
    hold = {"run": "r9", "person": "p", "text": "driver: no module", "phase": "failed"}
    record = {"annotations": {HOLD: json.dumps({**hold, "since": "10:00"})}}
    node = {"metadata": {"name": "n", **record}}
    view = View(ChainObservation(), Clues(node=node))
    found = Diagnosis((Check(broken, FAILED, "no socket", "fix failed checks before this one"),))
    monkeypatch.setattr(walk, "query", lambda on: view)
    monkeypatch.setattr(walk, "diagnose", lambda view: found)
    (project / "inventory.yml").write_text(
        f"all:\n  hosts:\n    here: {{ansible_connection: local, gpustate_state_folder: {project}}}\n"
    )
    data = json.loads(gpustate("explain", "here", "-i", "inventory.yml", "-o", "json").out)
    (row,) = data["nodes"]
    step = (
        "fix the node, then run the command of run r9 again; the node is released when it ends well"
    )
    said = "run r9 holds the node out of service since 10:00: driver: no module"
    assert row["unfinished"] == f"{said}; {step}"
    remedy = row["checks"][0]["remedy"]
    assert remedy == (step if replaced else "fix failed checks before this one")


def test_a_node_whose_wait_was_stopped_is_continued() -> None:
    stopped = Hold("r9", "p", "interrupted while its pods were restarted", "validating", "10:00")
    step = "gpustate rollout resume r9 on its machine, or its command again here"
    assert next_steps.held(stopped) == f"continue run r9: {step}"
    assert next_steps.held(replace(stopped, text="t")) == f"if run r9 is dead: {step}"
