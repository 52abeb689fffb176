"""Options of a drain replace the policy's values only where they are given, and a retry repeats them."""

from __future__ import annotations

from typing import Any

import click
import pytest
from click.testing import CliRunner

from gpustate.cli import common
from gpustate.cli.apply import apply
from gpustate.cli.context import context
from gpustate.cli.rollback import rollback
from gpustate.cli.rollout import strategy_of, wave_sizes
from gpustate.cli.schedulers import scheduler_options, schedulers_of
from gpustate.cli.upgrade import upgrade
from gpustate.core.drain import DrainOverrides, DrainPolicy
from gpustate.core.inventory import Inventory, InventoryNode
from gpustate.plan.context import retry

POLICY = DrainPolicy(wait_selector="app=job", wait_timeout_s=60.0, node_after_gpu_pods=True)


def parsed(*words: str) -> dict[str, Any]:
    seen: dict[str, Any] = {}

    @click.command()
    @common.set_option
    @scheduler_options
    def verb(**options: Any) -> None:
        seen.update(options)

    result = CliRunner().invoke(verb, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return seen


def test_without_options_the_policy_counts() -> None:
    assert schedulers_of(parsed()).overrides == DrainOverrides()
    assert schedulers_of({}).overrides.on(POLICY) == POLICY


@pytest.mark.parametrize(
    ("words", "overrides"),
    [
        (("--set", "drain.timeout_s=0"), DrainOverrides(timeout_s=0.0)),
        (("--set", "drain.force=true", "--set", "drain.delete_empty_dir=false"), DrainOverrides(True, False)),
        (("--set", "drain.force=false", "--set", "drain.grace_period_s=0"), DrainOverrides(False, grace_period_s=0)),
        (("--set", "drain.pod_selector=a=b"), DrainOverrides(pod_selector="a=b")),
        (("--set", "drain.wait_selector=", "--set", "drain.wait_timeout_s=9"), DrainOverrides(wait_selector="", wait_timeout_s=9.0)),
    ],
)  # fmt: skip
def test_an_option_is_an_override_and_stands_in_the_retry(
    words: tuple[str, ...], overrides: DrainOverrides
) -> None:
    options = parsed(*words)
    assert schedulers_of(options).overrides == overrides
    retry = context("apply", "p.yml", options)["retry"]
    assert parsed(*retry[3:]) == options


@pytest.mark.parametrize("words", [(), ("--set", "rollout.rollback_on_failure=false")])
def test_the_retry_of_an_upgrade_is_one_that_upgrade_takes(words: tuple[str, ...]) -> None:
    given = ("p.yml", "-i", "hosts", "--driver", "580", "--serial", "1", *words)
    options = upgrade.make_context("upgrade", [*given]).params
    retry = context("upgrade", "p.yml", {**options, "lock": "none"})["retry"]
    assert upgrade.make_context("upgrade", retry[2:]).params == options


#: Where a result goes, and how it is shown: nothing that a retry has to repeat.
SHOWN = {"output", "diff", "reports", "events", "webhook", "limit", "out"}


@pytest.mark.parametrize("verb", [apply, rollback, upgrade])
def test_a_retry_repeats_every_option_that_affects_the_run(verb: click.Command) -> None:
    from gpustate.cli import context as module

    kept = {*module._VALUES, *module._SWITCHES}
    options = {one.name for one in verb.params if isinstance(one, click.Option)}
    assert options - kept - SHOWN - {"listed", "dry_run"} == set()


def test_a_rollback_without_a_run_is_retried_without_one() -> None:
    made = context("rollback", "", {"inventory": "hosts"})
    assert made["retry"] == ["gpustate", "rollback", "-i", "hosts"]


def test_a_retry_names_no_canary_that_is_not_among_its_nodes() -> None:
    options = {"inventory": "hosts", "set_typed": ("rollout.canary=gpu1",)}
    made = context("apply", "p.yml", options)
    command = retry({"context": made}, ["gpu7", "gpu8"])
    words = "--set rollout.canary=gpu1 --set rollout.canary=null"
    assert command == f"gpustate apply p.yml -i hosts {words} -l 'gpu[7-8]'"
    assert strategy_of({"set_typed": tuple(words.split("--set ")[1:])}).canary == ""


def test_a_soak_time_makes_waves_of_any_change() -> None:
    nodes = tuple(InventoryNode(name) for name in ("gpu1", "gpu2"))
    strategy = strategy_of({"set_typed": ("rollout.soak=30m",)})
    assert wave_sizes(strategy, Inventory("test", nodes)) == (1, 1)
    # A retry of one node repeats the option.
    assert wave_sizes(strategy, Inventory("test", nodes[:1])) == ()
