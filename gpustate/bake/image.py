"""Plan and apply the states of a policy in the root of an image, the first-boot program last."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from gpustate.bake import first_boot
from gpustate.core.inventory import InventoryNode
from gpustate.core.outcome import NodeResult, Outcome
from gpustate.core.policy import Policy, resolve
from gpustate.engine import fleet, gate
from gpustate.engine.events import Event, Listener, ignore
from gpustate.engine.fleet import FleetResult
from gpustate.engine.walk import Options, Walk
from gpustate.package_sets.checks import node_checks
from gpustate.remote.chroot import ImageSession


@dataclass(frozen=True, slots=True)
class Image:
    """An image to bake.

    Args:
        root: its root directory.
        node: name, groups and variables of the machines to come, which decide parameters.
        gpus: GPUs of the machines to come, as ``8xH100``; empty if unknown.
    """

    root: str
    node: InventoryNode
    gpus: str = ""


def bake(
    image: Image,
    policy: Policy,
    state_names: Collection[str],
    *,
    apply: bool,
    listen: Listener = ignore,
    stop: Callable[[], bool] = lambda: False,
) -> FleetResult:
    """Bake a policy into an image, or show the pending changes.

    Raises:
        GpustateError: policy, graph or overrides are invalid; nothing was changed.
    """
    started = time.monotonic()
    names = [state.name for state in fleet.ordered(policy.states, state_names)]
    resolved = resolve(policy, image.node, state_names)
    gate.refuse_unknown_rules(policy, image.node, resolved.allow)
    by_name = {state.name: state for state in resolved.states}
    states = [by_name[name] for name in names]
    last = first_boot.first_boot_of(states, image.node)
    options = Options(
        run=fleet.new_run_id(),
        apply=apply,
        holder=fleet.controller(),
        all_or_nothing=True,
        checks=node_checks(policy),
    )
    session = ImageSession(image.node, image.root, image.gpus)
    node = Walk(session, resolved, [*states, last], options, stop, listen).run()
    listen(Event(node.name, "finished", node.status.value))
    result = FleetResult(options.run, applied=apply, interrupted=stop())
    result.nodes = [node]
    result.duration_s = time.monotonic() - started
    return result


def left_to_apply(policy: Policy, node: NodeResult) -> list[str]:
    """Return states that neither the image nor its first boot can apply; ``gpustate apply`` must."""
    applied = {result.state for result in node.states if result.outcome is Outcome.NOT_APPLICABLE}
    applied.update(line.partition(": ")[0] for line in first_boot_work(node))
    states = (state for state in policy.states if state.left_to_apply and not state.absent)
    return [state.name for state in states if state.name not in applied]


def first_boot_work(node: NodeResult) -> list[str]:
    """Return the steps left for the first boot, as ``state: step``, in order."""
    observed = node.observed.get(first_boot.FirstBoot.name)
    work = observed.get("wanted_work", []) if isinstance(observed, dict) else []
    return [str(line) for line in work]
