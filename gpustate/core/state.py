"""The contract of a state: one idempotent concern of a node.

A subclass is a frozen, closed pydantic model: its annotated fields are its parameters. Each method
says whether a subclass MUST, SHOULD or MAY define it. The engine calls them in this order, and
can be understood without reading it::

    probe(node) -> observed  reads the node
    refuse(observed)         may this state be applied here at all
    plan(observed) -> Plan   pure: what differs from desired(observed), and what it costs
    apply(observed, plan)    pure: yields the steps the plan asks for; the engine carries them out
    probe, verify(observed)  what the node says afterwards decides; exit codes of steps never do

In an image that is baked nothing runs: the engine leaves out what steps do to a running system, and
asks ``first_boot(observed)`` for what the machine that boots the image has to do itself.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer

from gpustate.core import where
from gpustate.core.change import Change, Disruption, Plan
from gpustate.core.encode import differing, plain
from gpustate.core.facts import NodeFacts
from gpustate.core.node import Node
from gpustate.core.packages import Offer, StatePackages
from gpustate.core.planned import PlannedObservation
from gpustate.core.step import Step
from gpustate.documents import JsonView

ObservedT = TypeVar("ObservedT")


def _condition(value: object) -> object:
    return where.parse(value) if isinstance(value, str) else value


OnlyWhere = Annotated[
    where.Condition, BeforeValidator(_condition), PlainSerializer(lambda c: c.text, return_type=str)
]


#: Labels of fields that mean the same in all states; ``{state}`` is the state's name.
COMMON_LABELS = {
    "active": "service runs",
    "at_boot": "service starts at boot",
    "brought": "record of the packages that gpustate installed",
    "built": "module built",
    "damaged": "damaged files of packages",
    "enabled": "service starts at boot",
    "held": "packages on hold",
    "kept": "original configuration is kept",
    "lists_read": "package lists are read",
    "loaded": "module loaded",
    "missing": "missing packages",
    "package": "package of {state}",
    "packages": "packages",
    "pending": "rewrite the boot menu",
    "menu_lacks": "kernel arguments missing in the boot menu",
    "running_lacks": "arguments missing in the running kernel",
    "stale": "loaded module is outdated",
    "version": "{state} version",
}


@dataclass(frozen=True, slots=True)
class Conflict:
    """A reason not to apply a state, or a warning beside its changes.

    Args:
        reason: what is wrong and the next move.
        state: name of the state that is refused; ``None`` for the one that reports it.
        warning: it is shown beside the changes, which are applied anyway.
        with_changes: it counts only where the state that is refused changes something.
    """

    reason: str
    state: str | None = None
    warning: bool = False
    with_changes: bool = False


class State(BaseModel, Generic[ObservedT]):
    """Base of all states.

    Class attributes:
        name: how policies, inventories and the command line call it. MUST be set.
        needs: states that must hold first; when one fails, this one is not run.
        after, before: order only; names of states that need not be in the policy.
        known_after: states whose pending changes make this one's probe worthless (no NVML before
            there is a driver). While one of them has changes, this state is planned as "known
            after ..." and planned for real when they are done.
        worst: the most a plan that is not known yet may cost.
        worst_if: on which condition it costs that: half a sentence that follows "only if".
        disturbs: field of the observation that is empty where nothing is there that a change could disturb (the service
            does not run, the module is not loaded): there it costs nothing, whatever is planned later.
        labels: the fields of the observation that a plan can show, in the user's words; not needed for files with a path, and
            for those of :data:`COMMON_LABELS`. Of a field that is true or false, what is so when it is true. A version's
            ends in ``version``.
        indispensable: states that need it do not work without it, so that it is not removed alone. A repository is not:
            what was installed from it stays.
        essential: the GPUs are of no use without it, or not divided as the policy has them. Where its refusal is certain before
            the first change, the whole node is left unchanged; with other states, only what depends on them.
        predicted: fields with packages and their versions: a plan shows what they will be while this state waits for
            others, and is refused if it has a refusal even then.
        follows: then the field with the driver's version, and that with its packages, for which those to come are put;
            empty: they are of no matter.
        stable: fields of the observation that a saved plan is compared by; ``None``: all of them.
        validating: it only validates other states; its failure is a validation failure (exit code 3).
        needs_gpu: it does not apply where the policy expects no GPU.
        left_to_apply: it depends on the machine's GPUs; where it leaves nothing to the first boot of an image, an
            apply on the machine settles it.
        brings_bundle: every package of the policy comes from the bundle that this state's parameter ``file`` names.
        restored: fields of the observation with the text of a file that a rollback restores to the byte, if nothing
            else has changed it since. The steps write the text as :meth:`desired` has it.
        computed: fields of the observation with the text of a file, or of gpustate's block in one, that follows the
            node: it differs from what a run wrote as soon as the node does, without anybody's change.
        observed_before: of a state of a rollback with :meth:`as_before`: its argument ``before``.
        supported_runtime: name of the container runtime that it sets up, with the versions that were tested, for the
            table of what is supported; how it was tested, its tests on nodes declare.
        implies: states without which this one is of no use on some nodes, each with the reason. A policy that lists this
            one has them, unless it leaves them out.
        implied_parameters: of this state where another implies it.
        matrix: facts for the compatibility matrix: constants, or names of fields with a version.
        family: of a state that a policy may have many times, each with its own parameters: names that
            begin with this and a dash are its members. The class itself has no name and is in no policy. What is left
            once the steps of a member have run is planned again, as long as it is something else than before.

    Args:
        ensure: ``present``, or ``absent`` to remove everything this state ever puts on a node.
        only: nodes it applies to; all when not given.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        arbitrary_types_allowed=True,
        revalidate_instances="never",
        defer_build=True,  # bases, and states that a policy only names, are never built
    )

    name: ClassVar[str] = ""
    needs: ClassVar[tuple[str, ...]] = ()
    after: ClassVar[tuple[str, ...]] = ()
    before: ClassVar[tuple[str, ...]] = ()
    known_after: ClassVar[tuple[str, ...]] = ()
    worst: ClassVar[Disruption] = Disruption.NONE
    worst_if: ClassVar[str] = "it has changes then"
    disturbs: ClassVar[str] = ""
    labels: ClassVar[Mapping[str, str]] = {}
    indispensable: ClassVar[bool] = False
    essential: ClassVar[bool] = False
    predicted: ClassVar[tuple[str, ...]] = ()
    follows: ClassVar[tuple[str, ...]] = ()
    stable: ClassVar[tuple[str, ...] | None] = None
    validating: ClassVar[bool] = False
    needs_gpu: ClassVar[bool] = False
    left_to_apply: ClassVar[bool] = False
    brings_bundle: ClassVar[bool] = False
    restored: ClassVar[tuple[str, ...]] = ()
    computed: ClassVar[tuple[str, ...]] = ()
    observed_before: ClassVar[JsonView | None] = None
    supported_runtime: ClassVar[str] = ""
    implies: ClassVar[Mapping[str, str]] = {}
    implied_parameters: ClassVar[JsonView] = {}
    family: ClassVar[str] = ""
    matrix: ClassVar[Mapping[str, object]] = {}

    ensure: Literal["present", "absent"] = "present"
    only: OnlyWhere | None = None

    @property
    def absent(self) -> bool:
        """This state is to be removed."""
        return self.ensure == "absent"

    @property
    def expects_no_gpu(self) -> bool:
        """MAY: the policy says that the node has no GPU; states that need one do not apply there."""
        return False

    @property
    def may_end(self) -> tuple[str, ...] | None:
        """MAY: further units whose processes may have a GPU open at a reboot and end with it; ``None``: whatever has one open."""
        return ()

    @property
    def own_units(self) -> tuple[str, ...]:
        """MAY: units that go with it when it is removed."""
        return ()

    @classmethod
    def field_label(cls, field: str) -> str:
        """A field of the observation in the user's words; empty: it has none."""
        return cls.labels.get(field) or COMMON_LABELS.get(field, "").format(state=cls.name)

    def conflicts(
        self, policy: Mapping[str, AnyState], facts: NodeFacts, observed: ObservedT | None
    ) -> Iterator[Conflict]:
        """MAY: why this state, or one that depends on it, must not be applied beside the rest of the policy.

        Called twice: without an observation, when only the policy and the facts of the node decide; and with what was
        observed, for this state once its own plan is known, and for other states that it refuses from the start. Pure.

        Args:
            policy: every state that applies to the node, by name; this one and absent ones among them.
            facts: what is known of the node without a driver.
            observed: what the probe read; ``None`` in the first call.
        """
        if observed is None and self.indispensable and self.absent:
            for name, dependent in policy.items():
                if self.name in dependent.needs and not dependent.absent:
                    yield Conflict(
                        f"it needs {self.name}, which the policy removes: remove {name} too, or keep {self.name}",
                        state=name,
                    )

    def matrix_facts(self, planned: PlannedObservation) -> dict[str, object]:
        """MAY: facts for the compatibility matrix, by their names in :data:`gpustate.compat.facts.FACTS`; ``None``: unknown.

        Not called of a state that is removed. Pure.

        Args:
            planned: what the state observed, as it will be once the plan is carried out.
        """
        return {f: planned.version(v) if isinstance(v, str) else v for f, v in self.matrix.items()}

    def required_packages(self, offer: Offer, observed: ObservedT | None) -> StatePackages:
        """SHOULD, of a state that installs packages: which ones, for bundles and their checks. Pure.

        Not called of a state that is removed. States are called in the order of a run, so that the facts of earlier ones
        are in ``offer.chosen``.

        Args:
            offer: what the packages are chosen from.
            observed: what the probe read; ``None`` while a bundle is built.
        """
        return StatePackages()

    @abstractmethod
    def probe(self, node: Node) -> ObservedT:
        """MUST: read the node into an observation, a frozen dataclass. Reads only, any time."""

    @abstractmethod
    def desired(self, observed: ObservedT) -> ObservedT:
        """MUST: the observation as it should be, for both values of ``ensure``.

        Pure, and ``desired(desired(observed)) == desired(observed)``. Fields that are facts rather than
        things to change are copied from ``observed``.
        """

    def refuse(self, observed: ObservedT) -> str | None:
        """MAY: say why this must not be applied to this node, and the next move; :meth:`plan` does where a package is missing."""
        return None

    def plan(self, observed: ObservedT) -> Plan:
        """SHOULD: what differs, each with its cost. Pure; ``plan(desired(observed))`` is empty."""
        return diff(observed, self.desired(observed))

    def worst_case(self, observed: ObservedT, facts: NodeFacts) -> tuple[Disruption, str] | None:
        """MAY: the most a plan that is not known yet may cost this node, and on which condition. Pure.

        It counts what no other state of the policy changes, and is no less than what :meth:`plan` of the same observation
        costs. ``None``: nothing of this node is the state's, so there is nothing to wait for.
        """
        if self.disturbs and not getattr(observed, self.disturbs):
            return Disruption.NONE, ""
        return self.worst, self.worst_if

    @abstractmethod
    def apply(self, observed: ObservedT, plan: Plan) -> Iterator[Step]:
        """MUST: yield the steps for the fields in ``plan``, in order, and no others. Pure."""

    def verify(self, observed: ObservedT) -> Plan:
        """MAY: judge a fresh observation after the steps ran; empty means good. Only to add checks."""
        return self.plan(observed)

    def first_boot(self, observed: ObservedT) -> Iterator[Step]:
        """MAY: the steps that a machine does itself when it boots an image that was baked. Pure.

        They depend on what is wanted only, not on what the image lacks now, run without a network,
        and do nothing where there is nothing left to do. Not given: what all the steps of
        :meth:`apply` together would do to a running system (start a service, load a module).
        """
        if not self.absent:
            steps = self.apply(observed, everything(observed, self.desired(observed)))
            boot_steps = (step.at_first_boot for step in steps)
            yield from dict.fromkeys(step for step in boot_steps if step is not None)

    def reboot_blocker(self, observed: ObservedT) -> str | None:
        """MAY: say why this node must not reboot now (a kernel without a built module)."""
        return None

    def pinned(self, observed: ObservedT) -> JsonView:
        """MAY: parameters that a rollback to this observation needs beside those of the run before. Pure.

        For what the parameters leave open: the exact versions of packages, where a policy names a branch or nothing.

        Args:
            observed: before a run changed anything.
        """
        return {}

    def as_before(self, wanted: ObservedT, observed: ObservedT, before: JsonView) -> ObservedT:
        """MAY: what a rollback wants, where parameters cannot say what was observed before. Pure.

        For what an apply adds or leaves alone: a file or a package of its own that was not there, foreign holds.
        Not called for a state that the run had nothing to do for.

        Args:
            wanted: by :meth:`desired`.
            observed: before the rollback.
            before: fields of the observation before the run, as plain data.
        """
        return wanted

    def preview(self, observed: ObservedT) -> str:
        """MAY: sh that adds to the folders below ``$T`` what the steps will add to the package manager's own.

        For :meth:`forecast` of a state that is known after this one; empty: there is nothing to add. ``$T/apt`` is
        a copy of ``/etc/apt``. It ends with a line of ``preview_failed`` and its reason where it cannot be done.
        """
        return ""

    def forecast(self, node: Node, preview: str) -> Plan:
        """MAY: say what this state will do where its plan is known only after another's, as notes, or a refusal that is certain.

        Args:
            node: it is not changed; ``preview`` may be asked for around a query.
            preview: what the states ahead of it gave as :meth:`preview`.
        """
        return Plan()

    @classmethod
    def member(cls, name: str) -> type[State[ObservedT]]:
        """MUST, of a family: the class of the member that a policy calls ``name``."""
        raise NotImplementedError(f"{cls.__name__} is not a family of states")

    @classmethod
    def observation_type(cls) -> Any:
        """The dataclass that ``probe`` returns, from the class's own ``State[...]``."""
        for base in cls.__mro__:
            metadata = getattr(base, "__pydantic_generic_metadata__", None)
            if metadata and metadata["args"]:
                return metadata["args"][0]
        return None


def diff(
    observed: object,
    desired: object,
    *,
    costs: Mapping[str, Disruption] | None = None,
    why: Mapping[str, str] | None = None,
    paths: Mapping[str, str] | None = None,
    conditions: Mapping[str, str] | None = None,
    secret: frozenset[str] = frozenset(),
    notes: tuple[str, ...] = (),
    refusal: str | None = None,
) -> Plan:
    """Compare two observations field by field.

    Args:
        observed, desired: two instances of one dataclass.
        costs: what a change of a field costs; ``NONE`` when not named.
        why: half a sentence for a field.
        paths: for fields that are the text of a file, that file's path.
        conditions: for fields that cost it only on a condition.
        secret: fields whose values are never printed.
        notes, refusal: passed on to the plan.
    """
    changes = tuple(
        Change(
            field=name,
            before=before,
            after=after,
            disruption=(costs or {}).get(name, Disruption.NONE),
            why=(why or {}).get(name, ""),
            path=(paths or {}).get(name),
            condition=(conditions or {}).get(name, ""),
            secret=name in secret,
        )
        for name, before, after in differing(observed, desired)
    )
    return Plan(changes, notes, refusal)


def everything(observed: object, desired: object) -> Plan:
    """A plan that changes every field, whether it differs or not."""
    before, after = plain(observed), plain(desired)
    return Plan(tuple(Change(name, before[name], after[name]) for name in before))


AnyState = State[Any]

__all__ = [
    "COMMON_LABELS",
    "AnyState",
    "Conflict",
    "ObservedT",
    "OnlyWhere",
    "State",
    "diff",
    "everything",
]
