"""A saved plan is applied with the options of waves, drains and schedulers that it was made with."""

from __future__ import annotations

from pathlib import Path

import pytest
from commandline import Cli

STATES = 'states = ["filestates:LightFirst"]\n'
HOST = "ansible_connection: local, gpustate_state_folder"


@pytest.fixture(autouse=True)
def two_nodes(project: Path) -> None:
    """Two nodes that are this machine, with a file each."""
    (project / "gpustate.toml").write_text(STATES)
    nodes = "".join(
        f"    {name}: {{{HOST}: {project}/{name}, gpustate: {{light-first: {{path: {project}/{name}.txt}}}}}}\n"
        for name in ("n1", "n2")
    )
    (project / "hosts.yml").write_text(f"all:\n  hosts:\n{nodes}")
    (project / "policy.yaml").write_text(
        "format: gpustate.policy/1\nstates:\n  light-first: {path: /proc/nowhere, text: one}\n"
    )


def apply(gpustate: Cli, *words: str) -> str:
    done = gpustate("apply", "p.json", "-i", "hosts.yml", "--yes", *words)
    assert done.status == 0, done
    return done.err


def plan(gpustate: Cli, *words: str) -> None:
    done = gpustate("plan", "policy.yaml", "-i", "hosts.yml", "--out", "p.json", *words)
    assert done.status == 0, done


def test_options_of_the_plan_count(gpustate: Cli) -> None:
    plan(gpustate, "--serial", "1", "--max-unavailable", "1", "--set", "drain.timeout_s=0")
    shown = apply(gpustate)
    assert "as planned: --serial 1 --max-unavailable 1\n" in shown
    assert "wave 2 of 2" in shown


def test_options_of_apply_have_precedence(gpustate: Cli) -> None:
    plan(gpustate, "--serial", "1", "--max-unavailable", "1", "--set", "drain.force=true")
    shown = apply(gpustate, "--serial", "100%", "--ignore-scheduler")
    assert "as planned: --max-unavailable 1\n" in shown
    assert "wave 2" not in shown


def test_sections_of_the_plan_s_policy_count(gpustate: Cli) -> None:
    plan(gpustate, "--set", "rollout.canary=1")
    assert "wave 2 of 2" in apply(gpustate)
    plan(gpustate, "--set", "rollout.canary=1", "--set", "light-first.text=two")
    assert "wave 2" not in apply(gpustate, "--set", "rollout.canary=2")


def test_only_sections_are_set_beside_a_plan(gpustate: Cli) -> None:
    plan(gpustate)
    for option in ("--set", "light-first.text=x"), ("--set", "rollout.canary=1,light-first.text=x"):
        done = gpustate("apply", "p.json", "-i", "hosts.yml", "--yes", *option)
        assert done.status == 1
        assert (
            "--set light-first.text=x: a saved plan is applied exactly as it was saved" in done.err
        )
        assert "only rollout.* and drain.* can be set" in done.err


def test_a_plan_without_options_says_nothing(gpustate: Cli) -> None:
    plan(gpustate)
    assert "as planned" not in apply(gpustate)


def test_drains_of_apply_replace_the_plan_s_refusal_to_drain(gpustate: Cli) -> None:
    plan(gpustate, "--ignore-scheduler")
    assert "as planned: --ignore-scheduler\n" in apply(gpustate)
    plan(gpustate, "--ignore-scheduler", "--set", "light-first.text=two")
    assert "as planned" not in apply(gpustate, "--set", "drain.force=true")


def test_a_lock_of_a_run_is_not_released_by_the_way(gpustate: Cli, project: Path) -> None:
    nodes = ("-i", "hosts.yml", "-l", "n1")
    assert gpustate("node", "lock", *nodes, "--reason", "burn-in").status == 0
    info = project / "n1/lock/info"
    as_locked = info.read_text()
    info.write_text(as_locked.replace('"locked: burn-in"', '"apply"'))
    refused = gpustate("node", "unlock", *nodes)
    assert (refused.status, "(apply)" in refused.out) == (8, True), refused
    info.write_text(as_locked)
    assert "unlocked" in gpustate("node", "unlock", *nodes).out
    assert gpustate("node", "lock", *nodes, "--reason", "burn-in").status == 0
    info.write_text(as_locked.replace('"locked: burn-in"', '"apply"'))
    assert "unlocked" in gpustate("node", "unlock", *nodes, "--force").out
