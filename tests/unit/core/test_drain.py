"""How workloads leave, as policies set it, and as options replace it."""

from __future__ import annotations

from typing import Any

import pytest

from gpustate.core.drain import DrainOverrides, DrainPolicy, EvictionRules, drain_policy
from gpustate.errors import PolicyError, UsageError

SET: dict[str, Any] = {
    "wait_selector": "app=train",
    "wait_timeout_s": 3600,
    "gpu_pods": {"force": True},
    "node": {"delete_empty_dir": True, "timeout_s": 0, "pod_selector": "tier in (a, b)"},
    "node_after_gpu_pods": True,
    "grace_period_s": 0,
}


def test_plain_data_is_read_and_written_again() -> None:
    made = drain_policy(SET, {})
    assert made == DrainPolicy(
        "app=train",
        3600.0,
        EvictionRules(force=True),
        EvictionRules(False, True, 0.0, "tier in (a, b)"),
        True,
        0,
    )
    assert made is not None
    assert made.as_data() == SET
    assert DrainPolicy().as_data() == {}
    assert drain_policy(None, {}) is None


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"wait_selectr": ""}, "drain.wait_selectr: unknown key; did you mean 'wait_selector'"),
        ({"node": {"zzz": 1}}, "drain.node.zzz: unknown key; supported keys: force"),
        ({"node": []}, "drain.node: is a list, wanted a mapping"),
        ([], "drain: is a list, wanted a mapping"),
        ({"wait_timeout_s": -1}, "drain.wait_timeout_s: is '-1', wanted seconds"),
        ({"wait_timeout_s": True}, "drain.wait_timeout_s: is 'True', wanted seconds"),
        ({"grace_period_s": 1.5}, "drain.grace_period_s: is '1.5', wanted whole seconds"),
        ({"gpu_pods": {"force": "yes"}}, "drain.gpu_pods.force: is 'yes', wanted true or false"),
        ({"wait_selector": 1}, "drain.wait_selector: is '1', wanted a label selector"),
        ({"wait_selector": "a=b=c"}, "drain.wait_selector: 'a=b=c' is not a label selector"),
        ({"node": {"pod_selector": "("}}, "drain.node.pod_selector: '(' is not a label selector"),
    ],
)
def test_what_cannot_be_is_refused_with_its_key_and_place(data: Any, words: str) -> None:
    with pytest.raises(PolicyError) as caught:
        drain_policy(data, {("drain",): "p.yml:7"})
    assert str(caught.value).startswith(f"p.yml:7: {words}")


def test_options_replace_values_of_gpu_pods_and_of_the_node_and_leave_the_others() -> None:
    made = drain_policy(SET, {})
    assert made is not None
    assert DrainOverrides().on(made) == made
    changed = DrainOverrides(force=False, timeout_s=60.0, wait_selector="").on(made)
    assert changed.gpu_pods == EvictionRules(timeout_s=60.0)
    assert changed.node == EvictionRules(False, True, 60.0, "tier in (a, b)")
    assert (changed.wait_selector, changed.wait_timeout_s) == ("", 3600.0)
    assert (changed.node_after_gpu_pods, changed.grace_period_s) == (True, 0)
    with pytest.raises(UsageError, match="is not a label selector"):
        DrainOverrides(pod_selector="=").on(made)


def test_it_is_described_in_one_sentence() -> None:
    made = drain_policy(SET, {})
    assert made is not None
    assert made.describe() == (
        "wait for pods with app=train (at most 3600 s) before any is evicted; evict pods with GPUs, "
        "those without a controller too; drain whole nodes with tier in (a, b), those with emptyDir "
        "volumes too, without a time limit; drain the whole node if its pods with GPUs do not leave; "
        "pods have 0 s to terminate"
    )
    assert DrainPolicy().describe() == ""
