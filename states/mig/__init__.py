"""The GPUs of the node are divided into MIG devices as a mig-parted file says, now and after every boot.

The layout is checked to fit before anything is touched, from the profiles that NVML reports, else
from tables. Of all ways there the one is taken that keeps most: devices in use first, then any. What
has to go is named in the plan with who uses it; an instance that something uses which is not a
service known here is a refusal, and nothing is ever killed.

Instances do not survive a reboot, and from Hopper on the mode does not either, so a unit makes
them again at boot, before CDI is refreshed and before containers, the kubelet and the device plugin
start; with the places they have now, written down in a file that sh can read.

Surprising: nvidia-smi says "All done." for a mode that only waits for a reset, so the mode is read
again. On Ampere a change of the mode is a GPU reset; from Hopper on it is none. Where a GPU cannot be
reset, the reboot is in the plan.

Sources:
    MIG User Guide r620: getting started, deployment considerations;
    NVIDIA/mig-parted v0.15: deployments/systemd (order at boot), #3 (keep what is in use), #181
    (nvidia_drm and resets), #368 and #19 (never the kubelet), #485 (a change that is interrupted);
    NVIDIA/DCGM#276: only a restart makes DCGM let go of an instance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from gpustate import Disruption, Node, NodeFacts, Plan, State, Step, diff, ops, shell
from gpustate.core.parameter_types import ServiceName
from gpustate.core.planned import PlannedObservation
from gpustate.errors import PolicyError
from gpustate.formats import kubelet_devices
from gpustate.mig import builtin, saved, tables
from gpustate.mig.config import Config
from gpustate.mig.document import change_lines
from gpustate.mig.plan import NodePlan
from gpustate.probes.gpu_clients import GpuClientsQuery
from gpustate.probes.gpu_facts import GpuFacts
from gpustate.states.mig import firstboot, planning, scripts
from gpustate.states.mig.observed import UNIT, UNIT_LINK, UNIT_PATH, Observed
from gpustate.states.mig.planning import Planned, Planner
from gpustate.states.mig.probing import observe


def _config(config: str, path: str | None, text: str | None) -> Config:
    return builtin.file_of(None if path is None else text, path or "").config(config)


@lru_cache(maxsize=64)
def _planner(config: str, path: str | None, text: str | None, clients: tuple[str, ...]) -> Planner:
    return Planner(_config(config, path, text), clients)


class MigLayoutApplied(State[Observed]):
    """Every GPU has the MIG mode and the MIG devices that a configuration gives it.

    Args:
        config: name of the configuration; one of ``file``, else one that every mig-parted has:
            all-disabled, all-enabled, all-balanced, all-1g.10gb and so on. May be given without its
            name.
        file: a mig-parted file (schema v1), on the machine that gpustate runs on.
        contents: text of the file by its path; filled in when the file is read, not to be given.
        in_use: what to do where something that nobody here may stop uses what has to change:
            ``refuse``; ``reboot``, after which nothing does; ``drain``: pods leave with the drain of
            their node, anything else is refused.
        clients: more services that hold GPUs and may be stopped for a change; started again.

    Disruption:
        ``NONE`` for instances that only come; ``RESTART`` where known services that hold GPUs are
        stopped and started; ``DRAIN`` where an instance in use goes, or the mode of a GPU changes;
        ``RESET`` for a change of the mode on Ampere, ``REBOOT`` where that GPU cannot be reset.

    Raises:
        StepFailed: the driver refuses an instance, or one does not go.
    """

    name: ClassVar[str] = "mig"
    labels: ClassVar[Mapping[str, str]] = {
        "modes": "MIG mode",
        "instances": "MIG devices",
        "stopped": "services stopped by an interrupted change",
        "device_nodes": "missing device nodes",
    }
    needs: ClassVar[tuple[str, ...]] = ("driver",)
    after: ClassVar[tuple[str, ...]] = ("persistenced", "fabric-manager", "container-toolkit")
    before: ClassVar[tuple[str, ...]] = ("cdi",)
    known_after: ClassVar[tuple[str, ...]] = ("driver",)
    essential: ClassVar[bool] = True
    worst: ClassVar[Disruption] = Disruption.RESET
    needs_gpu: ClassVar[bool] = True
    left_to_apply: ClassVar[bool] = True
    stable: ClassVar[tuple[str, ...] | None] = (
        *("modes", "instances", "saved", "program", "unit", "enabled", "stopped"),
    )

    config: str = "all-disabled"
    file: str | None = None
    contents: dict[str, str] = Field(default_factory=dict)
    in_use: Literal["refuse", "reboot", "drain"] = "refuse"
    clients: Annotated[tuple[ServiceName, ...], Field(strict=False)] = ()

    def __init__(self, config: str | None = None, /, **data: Any) -> None:
        values = data if config is None else {"config": config, **data}
        super().__init__(**values)

    @property
    def may_end(self) -> tuple[str, ...] | None:
        return None if self.in_use == "reboot" else self.clients

    @model_validator(mode="before")
    @classmethod
    def _with_contents(cls, data: Any) -> Any:
        """Read the file once, where the policy is; a saved plan carries its text along."""
        path = data.get("file") if isinstance(data, dict) else None
        if not isinstance(path, str) or path in (data.get("contents") or ()):
            return data
        from gpustate.files import TextFiles

        try:
            text = TextFiles("mig-parted file", PolicyError, 4).text(path)
        except PolicyError as error:
            raise _placed(error) from None
        return {**data, "contents": {path: text}}

    @model_validator(mode="after")
    def _clients_allowed(self) -> MigLayoutApplied:
        if "kubelet.service" in self.clients:
            raise PolicyError("clients: the kubelet is never stopped", fix="leave it out")
        try:
            _planner(*self._question())
        except PolicyError as error:
            raise _placed(error) from None
        return self

    def _question(self) -> tuple[str, str | None, str | None, tuple[str, ...]]:
        text = self.contents.get(self.file) if self.file is not None else None
        return self.config, self.file, text, scripts.known_clients(self.clients, resets=False)

    def divides(self, facts: NodeFacts) -> str | None:
        """Address of the first GPU that gets MIG mode; ``None`` where none does. Filters by board match none."""
        config = _config(*self._question()[:3])
        for index, gpu in enumerate(facts.gpus):
            entry = config.entry_for(index, gpu.device_id)
            if gpu.mig_capable and entry is not None and entry.enabled:
                return gpu.address
        return None

    def matrix_facts(self, planned: PlannedObservation) -> dict[str, object]:
        modes = planned.value("modes")
        if not modes or not isinstance(modes, Mapping):
            return {}
        return {"mig": "on" in modes.values(), "mig_mixed": {"on", "off"} <= set(modes.values())}

    # --- looking -------------------------------------------------------------------------

    def probe(self, node: Node) -> Observed:
        facts = node.facts()
        nvml = node.query(GpuFacts())
        observed = observe(node, facts, nvml, scripts.known_clients(self.clients, resets=True))
        if planning.takes_something(self._planned(observed).plan):
            holders = node.query(GpuClientsQuery())
            pods = kubelet_devices.gpus_by_pod(node.read_text(kubelet_devices.CHECKPOINT))
            observed = replace(observed, holders=holders, pods=pods)
        return observed

    def forecast(self, node: Node, preview: str) -> Plan:
        config = _config(*self._question()[:3])
        if any(rule.subsystem for entry in config.entries for rule in entry.filters):
            return Plan()  # only the driver knows the board
        facts = node.facts()
        return Plan(
            refusal=planning.certain_refusal(config, facts.gpus),
            facts={"mig": self.divides(facts) is not None},
        )

    def _planned(self, observed: Observed) -> Planned:
        if observed.image or observed.problem or not observed.gpus:
            return Planned()
        if not self.absent:
            return _planner(*self._question()).of(observed)
        if observed.before is None or not saved.is_whole(observed.before):
            return Planned()
        config = _before(observed.before, tuple(planning.addresses(observed.gpus).items()))
        return Planner(config, self._question()[3]).of(observed)

    def _reboots(self, observed: Observed, plan: NodePlan) -> str:
        """Why only a reboot does it; empty when it is not needed."""
        for gpu in planning.resets(plan):
            if why := (observed.no_reset or {}).get(str(gpu.gpu.index)):
                return f"{gpu.gpu.label()} cannot be reset: {why}"
        if self.in_use == "reboot":
            for holder, part in planning.in_the_way(observed, plan, self._stoppable(plan)):
                return f"{part} is in use by {holder.description}"
        return ""

    def _held_by_pods(self, observed: Observed, plan: NodePlan) -> bool:
        """Pods use what has to change."""
        ways = planning.in_the_way(observed, plan, self._stoppable(plan))
        return any(holder.pod for holder, _ in ways)

    def _stoppable(self, plan: NodePlan) -> tuple[str, ...]:
        return scripts.known_clients(self.clients, resets=bool(planning.resets(plan)))

    # --- deciding ------------------------------------------------------------------------

    def desired(self, observed: Observed) -> Observed:
        observed = observed if self.absent else replace(observed, device_nodes=())
        removed = replace(observed, saved=None, program=None, unit=None, enabled=False, stopped=())
        planned = self._planned(observed)
        if observed.image or observed.problem or planned.refusal is not None:
            return removed if self.absent else replace(observed, stopped=())
        plan = planned.plan
        desired = planning.after(observed, plan)
        if self.absent:
            return replace(removed, modes=desired.modes, instances=desired.instances, before=None)
        on = any(gpu.entry is not None and gpu.entry.enabled for gpu in plan.gpus)
        able = any(gpu.gpu.enabled is not None for gpu in plan.gpus)
        before = observed.before
        if before is None and observed.saved is None and (plan or (on and able)):
            before = _current(observed, plan)
        # A lost GPU has its layout again when it is back.
        lost = [gpu.pci for gpu in observed.lost.values()]
        text = planned.text + saved.lines_of(observed.saved or "", lost)
        if not plan and observed.saved is not None and saved.is_equivalent(observed.saved, text):
            # Another tool has placed the same devices elsewhere; at boot there are none, so nothing moves.
            text = observed.saved
        return replace(
            desired,
            saved=text if on and able else None,
            before=before,
            program=_restore() if on and able else None,
            unit=scripts.unit_text(observed.folder) if on and able else None,
            enabled=on and able,
            stopped=(),
        )

    def refuse(self, observed: Observed) -> str | None:
        if observed.image:
            return None
        if not observed.systemd:
            return (
                "no systemd to reapply the MIG layout at boot; exclude the node from this state "
                "with only="
            )
        if observed.manager and not self.absent:
            return (
                "nvidia-mig-manager.service is enabled here and applies another MIG layout at "
                "every boot; run: "
                "systemctl disable --now nvidia-mig-manager.service, or leave the state out"
            )
        if observed.problem and (not self.absent or observed.before is not None):
            if self.absent:
                return (
                    f"NVML does not answer ({observed.problem}), and without it the original MIG "
                    "layout cannot be restored; apply the state driver first, then remove mig "
                    "before the driver"
                )
            return (
                f"NVML does not answer ({observed.problem}); add the state driver to the policy, "
                "or see nvidia-smi"
            )
        planned = self._planned(observed)
        if planned.refusal is not None:
            return planned.refusal
        if self.in_use != "reboot":
            held = [
                f"{holder.description} has {part} open"
                for holder, part in planning.in_the_way(
                    observed, planned.plan, self._stoppable(planned.plan)
                )
                if self.in_use == "refuse" or not holder.pod
            ]
            if held:
                return f"{'; '.join(dict.fromkeys(held))}; stop that, name its service in clients, or set in_use: reboot"
        return None

    def worst_case(self, observed: Observed, facts: NodeFacts) -> tuple[Disruption, str] | None:
        cost = self.plan(observed).disruption
        if self.in_use == "reboot" or cost is Disruption.REBOOT:
            return (
                Disruption.REBOOT,
                "a GPU is in use, or cannot be reset, when its MIG mode changes",
            )
        if observed.problem:
            models = map(tables.by_device_id().get, (gpu.device_id for gpu in facts.gpus))
            if any(model is None or model.architecture == "ampere" for model in models):
                return self.worst, "the MIG mode of a GPU changes"
            return Disruption.DRAIN, "the MIG mode of a GPU changes"
        if cost:
            return max(cost, Disruption.DRAIN), "the layout still differs then, as it does now"
        words = "the driver's reload has deleted the layout, which is then created again"
        return Disruption.DRAIN, words

    def plan(self, observed: Observed) -> Plan:
        desired = self.desired(observed)
        plan = self._planned(observed).plan
        reboots = self._reboots(observed, plan)
        mode = Disruption.REBOOT if reboots else Disruption.NONE
        parts = mode
        stops = [unit for unit in self._stoppable(plan) if unit in observed.clients] if plan else []
        if not reboots:
            least = Disruption.RESTART if stops else Disruption.NONE
            changed = [gpu.disruption for gpu in plan.gpus if planning.changes_mode(gpu)]
            mode, parts = max(changed, default=least), max(least, _parts_cost(plan))
            if self.in_use == "drain" and self._held_by_pods(observed, plan):
                mode, parts = max(mode, Disruption.DRAIN), max(parts, Disruption.DRAIN)
        notes = [*_whys(plan), *plan.notes]
        if observed.image:
            notes.append("MIG is configured by the machine itself, at its first boot")
        result = diff(
            observed,
            desired,
            costs={"modes": mode, "instances": parts},
            why={
                "modes": reboots,
                "instances": reboots or _counts(plan),
                "saved": "reapplied at every boot",
                "stopped": "an interrupted run left them stopped",
                "device_nodes": "no container can use a MIG device without them",
                "before": "the original layout, which removal restores",
            },
            paths={
                "unit": UNIT_PATH,
                "saved": f"{observed.folder}/layout",
                "program": f"{observed.folder}/restore",
                "before": f"{observed.folder}/before",
            },
            notes=tuple(notes),
        )
        field = "instances" if "instances" in result.fields else "modes"
        changes = tuple(
            replace(change, lines=change_lines(plan)) if change.field == field else change
            for change in result.changes
        )
        return replace(
            result,
            changes=changes,
            warnings=tuple(self._warnings(observed)),
            restarted=tuple(stops),
            spared_pods=planning.spared_pods(observed, plan, self._stoppable(plan)),
        )

    def _warnings(self, observed: Observed) -> Iterator[str]:
        complete = observed.before is not None and saved.is_whole(observed.before)
        if not complete and (observed.saved is not None or observed.before is not None):
            yield (
                f"the original MIG layout is unknown ({observed.folder}/before is missing or "
                "damaged): removal leaves the GPUs unchanged; disable MIG mode with: nvidia-smi "
                "-mig 0"
            )
        for number, gpu in observed.lost.items():
            name = f"GPU {number} ({gpu.pci})" if gpu.pci else f"GPU {number}"
            yield (
                f"{name} does not respond (NVML error {gpu.error}): its MIG layout is left as it is; "
                "find the reason: gpustate explain"
            )
        if not self.absent:
            for path in observed.drop_ins:
                yield (
                    f"{path} overrides {UNIT} at boot; remove it, or the MIG layout may not be "
                    "applied"
                )

    # --- doing ---------------------------------------------------------------------------

    def apply(self, observed: Observed, plan: Plan) -> Iterator[Step]:
        desired, planned, folder = self.desired(observed), self._planned(observed), observed.folder
        divides = bool(plan.fields & {"modes", "instances"})
        if "before" in plan.fields and desired.before is not None:
            yield ops.PutText(f"{folder}/before", desired.before, mode=0o644)
        writes = desired.saved is not None and plan.fields & {"saved", "program"}
        if writes or divides:
            yield ops.PutText(f"{folder}/restore", _restore(), mode=0o755)
            yield ops.PutText(f"{folder}/layout", desired.saved or planned.text, mode=0o644)
        if "unit" in plan.fields and desired.unit is not None:
            yield ops.PutText(UNIT_PATH, desired.unit, mode=0o644)
        if "enabled" in plan.fields and desired.enabled:
            yield ops.EnableUnit(UNIT, now=False)
        if divides:
            yield from self._divide(observed, planned.plan)
        elif "stopped" in plan.fields:
            yield scripts.start_stopped(folder)
        if "device_nodes" in plan.fields and not divides:
            yield scripts.nodes()
        yield from self._leave(observed, desired, plan)

    def first_boot(self, observed: Observed) -> Iterator[Step]:
        """The machine divides its GPUs itself, by layouts that are planned here for every model in the tables."""
        if not self.absent:
            clients = scripts.known_clients(self.clients, resets=True)
            config = _config(*self._question()[:3])
            yield from firstboot.first_boot_steps(config, observed.folder, _restore(), clients)

    def _divide(self, observed: Observed, plan: NodePlan) -> Iterator[Step]:
        addresses = planning.addresses(observed.gpus)
        reboots = self._reboots(observed, plan)
        if not reboots:
            lost = [gpu.pci for gpu in observed.lost.values() if gpu.pci]
            stoppable = self._stoppable(plan)
            yield scripts.divide(observed.folder, plan.gpus, addresses, stoppable, lost)
            yield scripts.nodes()
            return
        step = scripts.wait_for_reboot(plan.gpus, addresses)
        if step is not None:
            yield step
        yield ops.Reboot(reboots)

    def _leave(self, observed: Observed, desired: Observed, plan: Plan) -> Iterator[Step]:
        """Remove what is not needed (any more)."""
        if "enabled" in plan.fields and not desired.enabled:
            # Not stopped: it has long done what it does.
            text = f"systemctl --no-reload disable {UNIT} 2>/dev/null || rm -f {UNIT_LINK}\neffect disabled"
            yield ops.Run(text, f"disable {UNIT}")
        if "unit" in plan.fields and desired.unit is None:
            yield ops.RemoveOwn(UNIT_PATH)
        if self.absent:
            if plan.fields & {"saved", "before", "program", "modes", "instances", "stopped"}:
                yield scripts.forget(observed.folder)
        elif desired.saved is None and plan.fields & {"saved", "program", "modes", "instances"}:
            for name in ("layout", "restore"):
                yield ops.RemoveOwn(f"{observed.folder}/{name}")


def _placed(error: PolicyError) -> PolicyError:
    """With the place in the mig-parted file in its words; its own place is that of the policy."""
    message = f"{error.place}: {error.message}" if error.place else error.message
    return PolicyError(message, fix=error.fix)


def _restore() -> str:
    return shell.program("mig_restore", "gpustate.nodeside")


@lru_cache(maxsize=64)
def _before(text: str, addresses: tuple[tuple[int, str], ...]) -> Config:
    return saved.config(text, dict(addresses), "what was there before")


def _current(observed: Observed, plan: NodePlan) -> str:
    """The layout as it is, of the GPUs that the plan speaks of."""
    addresses = planning.addresses(observed.gpus)
    lines = [
        saved.current_lines(gpu.gpu, addresses[gpu.gpu.index])
        for gpu in plan.gpus
        if gpu.entry is not None and gpu.gpu.enabled is not None
    ]
    return saved.HEAD + "".join(lines)


def _whys(plan: NodePlan) -> list[str]:
    """What a GPU's plan costs, and why; GPUs with one reason are told once."""
    numbers: dict[tuple[str, str], list[str]] = {}
    for gpu in plan.gpus:
        for why in gpu.why:
            numbers.setdefault((gpu.gpu.model_name, why), []).append(str(gpu.gpu.index))
    return [f"GPU {', '.join(n)} ({model}): {why}" for (model, why), n in numbers.items()]


def _parts_cost(plan: NodePlan) -> Disruption:
    """What it costs that instances come and go, their GPU's mode left aside."""
    still = [gpu for gpu in plan.gpus if not planning.changes_mode(gpu)]
    return max((gpu.disruption for gpu in still), default=Disruption.NONE)


def _counts(plan: NodePlan) -> str:
    words = [step.do for gpu in plan.gpus for step in gpu.steps]
    preserved = sum(len(gpu.change.preserved) for gpu in plan.gpus if gpu.steps)
    destroyed, new = words.count("destroy-gpu-instance"), words.count("create-gpu-instance")
    return f"GPU instances kept={preserved} destroyed={destroyed} created={new}" if words else ""


__all__ = ["MigLayoutApplied", "Observed"]
