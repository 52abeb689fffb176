"""What becomes of each state in a plan, from observations alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from filestates import FileState, Seen, file_state

from gpustate import Conflict, Disruption, Node, Plan, Step, ops, where
from gpustate.core.change import Change
from gpustate.core.facts import NodeFacts, NodeView
from gpustate.core.outcome import Outcome, StateResult
from gpustate.core.state import AnyState
from gpustate.formats.dpkg import Candidate
from gpustate.formats.pci_gpus import PciGpu
from gpustate.plan import make
from gpustate.plan.make import Observations
from gpustate.probes.required_programs import missing_program, still_referenced
from gpustate.states.dcgm import DcgmRunning

VIEW = NodeView("gpu1", ("gpu",), {}, NodeFacts(kernel="6.1"))


def observations(
    view: NodeView = VIEW, errors: dict[str, str] | None = None, **texts: str | None
) -> Observations:
    """A look at a node: the text of each state's file."""
    observed: dict[str, object] = {name: Seen(text) for name, text in texts.items()}
    return Observations(view, observed, errors or {})


def outcomes(results: dict[str, StateResult]) -> dict[str, str]:
    return {name: result.outcome.value for name, result in results.items()}


def one(name: str, **edges: Any) -> AnyState:
    return file_state(name, **edges)()


def test_a_state_is_unchanged_or_would_change() -> None:
    results = make.make([one("a"), one("b")], observations(a="x", b="y"))
    assert outcomes(results) == {"a": "unchanged", "b": "would change"}
    assert results["b"].plan.fields == {"text"}


def test_a_removal_names_the_units_that_go_with_it() -> None:
    units = ("nvidia-dcgm.service",)
    removed, other = DcgmRunning(ensure="absent"), file_state("a")(ensure="absent")
    for state, gone in ((DcgmRunning(), ()), (removed, units), (other, ())):
        seen = observations(errors={"dcgm": "it timed out"}, a="x")
        (result,) = make.make([state], seen).values()
        assert result.removes == gone


def test_where_it_does_not_apply_it_says_for_whom_it_is() -> None:
    state = file_state("a")(only=where.group("inference") & where.gpu)
    results = make.make([state], observations())
    assert outcomes(results) == {"a": "not applicable"}
    assert results["a"].reason == "only where (group('inference') & gpu)"
    gpu = PciGpu("0000:01:00.0", "2330", "030200", None)
    there = NodeView("n", ("inference",), {}, NodeFacts(pci=(gpu,)))
    assert outcomes(make.make([state], observations(there, a="x"))) == {"a": "unchanged"}


def test_what_looks_behind_a_pending_state_is_known_after_it_with_its_worst_cost() -> None:
    states = [
        one("a"),
        one("b", known_after=("a",), worst=Disruption.DRAIN),
        one("c", known_after=("b",)),
    ]
    results = make.make(states, observations(a=None, b=None, c="x"))
    assert outcomes(results) == {"a": "would change", "b": "known after", "c": "known after"}
    assert (results["b"].known_after, results["b"].worst) == (("a",), Disruption.DRAIN)


@pytest.mark.parametrize(
    ("case", "outcome", "worst"),
    [
        ((Disruption.RESTART, "it runs"), "known after", (Disruption.RESTART, "it runs")),
        ((Disruption.NONE, "it does not run"), "known after", (Disruption.NONE, "")),
        (None, "unchanged", (Disruption.NONE, "")),
    ],
)
def test_the_facts_of_the_node_lower_the_worst_case(
    case: tuple[Disruption, str] | None, outcome: str, worst: tuple[Disruption, str]
) -> None:
    last = one("b", known_after=("a",), worst=Disruption.REBOOT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(last), "worst_case", lambda self, observed, facts: case)
        results = make.make([one("a"), last], observations(a=None, b="x"))
    assert (results["b"].outcome.value, (results["b"].worst, results["b"].condition)) == (
        outcome,
        worst,
    )


def test_what_comes_after_a_state_that_is_taken_away_looks_behind_it() -> None:
    gone = one("a").model_copy(update={"ensure": "absent"})
    results = make.make([gone, one("b", after=("a",))], observations(a="x", b="x"))
    assert outcomes(results) == {"a": "would change", "b": "known after"}
    results = make.make([one("a"), one("b", after=("a",))], observations(a=None, b="x"))
    assert outcomes(results)["b"] != "known after"


def test_what_is_taken_away_looks_behind_nothing() -> None:
    states = [
        s.model_copy(update={"ensure": "absent"}) for s in (one("a"), one("b", known_after=("a",)))
    ]
    assert set(outcomes(make.make(states, observations(a="x", b="x"))).values()) == {"would change"}


def test_a_probe_that_failed_fails_its_state_and_keeps_what_needs_it_from_running() -> None:
    states = [one("a"), one("b", needs=("a",)), one("c", needs=("b",)), one("d", after=("a",))]
    results = make.make(states, observations(errors={"a": "no answer"}, b=None, c=None, d=None))
    assert outcomes(results) == {"a": "failed", "b": "not run", "c": "not run", "d": "would change"}
    assert results["a"].reason == "no answer"
    assert {results["b"].reason, results["c"].reason} == {"because a failed"}


@pytest.mark.parametrize("by", ["refuse", "plan"])
def test_a_refusal_is_told_with_its_reason(by: str) -> None:
    class Refusing(FileState):
        """Says no."""

        name = "a"

        def refuse(self, observed: Seen) -> str | None:
            return "no" if by == "refuse" else None

        def plan(self, observed: Seen) -> Plan:
            return Plan(refusal="no" if by == "plan" else None)

    results = make.make([Refusing(), one("b", needs=("a",))], observations(a=None, b=None))
    assert outcomes(results) == {"a": "refused", "b": "not run"}
    assert (results["a"].reason, results["b"].reason) == ("no", "because a refused")


def test_what_stands_already_is_not_planned_again() -> None:
    stands = {"a": StateResult("a", Outcome.FAILED, reason="its steps")}
    results = make.make([one("a"), one("b", needs=("a",))], observations(a="x", b="x"), stands)
    assert outcomes(results) == {"a": "failed", "b": "not run"}


def test_a_state_waits_for_those_behind_the_ones_it_needs() -> None:
    states = [one("a"), one("b", needs=("a",)), one("c", known_after=("b",)), one("d")]
    assert make.must_hold_first(states[2], states) == ("a", "b")
    assert make.must_hold_first(states[3], states) == ()
    assert make.must_hold_first(one("e", needs=("elsewhere",)), states) == ()


def test_what_is_taken_away_stays_as_long_as_what_needs_it() -> None:
    states = [
        s.model_copy(update={"ensure": "absent"})
        for s in (one("c", needs=("b",)), one("b", needs=("a",)), one("a"))
    ]
    assert make.must_hold_first(states[2], states) == ("c", "b")
    assert make.must_hold_first(states[0], states) == ()


def test_nothing_is_ready_before_what_comes_first_is_planned() -> None:
    states = [
        one("a"),
        one("b", known_after=("a",)),
        one("needs-b", needs=("b",)),
        one("after-b", after=("b",)),
        one("behind-that", needs=("after-b",)),
        one("free"),
        one("right"),
    ]
    names = ("a", "b", "needs-b", "after-b", "behind-that", "free")
    results = make.make(states, observations(right="x", **dict.fromkeys(names)))
    assert [state.name for state in make.ready(states, results)] == ["a", "free"]


def test_before_keeps_from_being_ready_as_after_does() -> None:
    states = [one("a"), one("b", known_after=("a",), before=("c",)), one("c")]
    results = make.make(states, observations(a=None, b=None, c=None))
    assert [state.name for state in make.ready(states, results)] == ["a"]


def test_only_stable_fields_are_kept_for_a_saved_plan() -> None:
    class Loose(FileState):
        """Nothing of it is compared."""

        name = "a"
        stable = ()

    data = make.observed_data([Loose(), one("b"), one("unseen")], observations(a="x", b="x"))
    assert data == {"a": {}, "b": {"text": "x"}}


def test_states_that_moved_since_the_plan_are_named() -> None:
    planned = {"a": {"text": "x", "mode": 1}, "b": {"text": "x"}, "gone": {"text": "x"}}
    now = {"a": {"text": "y" * 80, "mode": 1}, "b": {"text": "x"}, "new": {"text": "x"}}
    assert make.moved(planned, now) == ["a", "gone", "new"]
    assert make.moved(now, now) == []


@pytest.mark.parametrize(
    ("announced", "told"),
    [
        ({"a": Disruption.DRAIN}, None),
        ({"a": Disruption.REBOOT}, None),
        (
            {"a": Disruption.RESTART},
            "the plan announced disruption restart, and it is now drain (text)",
        ),
        ({}, "it had no changes in the plan, and now text would change"),
    ],
)
def test_a_plan_may_not_go_beyond_what_was_announced(
    announced: dict[str, Disruption], told: str | None
) -> None:
    plan = Plan((Change("text", None, "x", Disruption.DRAIN),))
    assert make.exceeds(StateResult("a", Outcome.PENDING, plan), announced) == told
    assert make.exceeds(StateResult("a", Outcome.UNCHANGED, plan), announced) is None


def test_planning_asks_the_node_nothing() -> None:
    class Deaf(FileState):
        """Must not be probed."""

        name = "a"

        def probe(self, node: Node) -> Seen:
            raise AssertionError("probed")

    assert outcomes(make.make([Deaf()], observations(a="x"))) == {"a": "unchanged"}


class Starts(FileState):
    """Writes a file and starts a unit."""

    name: ClassVar[str] = "starts"
    step: ops.Run | ops.RestartUnit | ops.DisableUnit = ops.RestartUnit("a.service")
    first: ops.Run | None = None

    def apply(self, observed: Seen, plan: Plan) -> Iterator[Step]:
        if self.first is not None:
            yield self.first
        yield self.step


@pytest.mark.parametrize(
    "step",
    [
        ops.RestartUnit("a.service"),
        ops.Run("true; systemctl --no-reload enable --now a.service\neffect x", "start it"),
        ops.Run("systemctl add-wants multi-user.target a.service || :", "at boot"),
    ],
)
def test_a_state_that_would_start_a_masked_unit_is_refused_with_the_way_out(
    step: ops.Run | ops.RestartUnit,
) -> None:
    there = observations(starts="y")
    there.masked = frozenset(("a.service", "b.service"))
    result = make.make([Starts(step=step)], there)["starts"]
    assert result.outcome is Outcome.REFUSED
    assert result.reason == (
        "a.service is masked; systemctl unmask a.service, or leave the state out"
    )


def test_a_masked_unit_is_told_although_the_rest_is_known_after_another_state() -> None:
    class Behind(Starts):
        """The same, behind another."""

        name: ClassVar[str] = "behind"
        known_after: ClassVar[tuple[str, ...]] = ("a",)

    there = observations(a=None, behind="y")
    there.masked = frozenset(("b.service",))
    states = [one("a"), Behind(step=ops.RestartUnit("a.service"))]
    assert outcomes(make.make(states, there))["behind"] == "known after"
    there.masked = frozenset(("a.service",))
    told = make.make(states, there)["behind"]
    assert told.outcome is Outcome.REFUSED
    assert told.reason.startswith("a.service is masked; systemctl unmask a.service")

    class Refuses(Behind):
        """And for now it lacks what the state ahead brings."""

        def refuse(self, observed: Seen) -> str | None:
            return "its package is missing"

    states = [one("a"), Refuses(step=ops.RestartUnit("a.service"))]
    assert make.make(states, there)["behind"].reason == told.reason
    there.errors["behind"] = "not yet"
    del there.observed["behind"]
    assert outcomes(make.make(states, there))["behind"] == "known after"


def test_a_masked_unit_is_in_nobodys_way_who_does_not_start_it() -> None:
    there = observations(starts="y", a="x")
    there.masked = frozenset(("a.service",))
    free = (
        Starts(step=ops.DisableUnit("a.service")),
        Starts(ensure="absent"),
        Starts(step=ops.RestartUnit("c.service")),
        Starts(first=ops.Run("systemctl --no-reload unmask a.service", "unmask")),
    )
    for state in free:
        assert outcomes(make.make([state], there)) == {"starts": "would change"}
    assert outcomes(make.make([Starts(text="y")], there)) == {"starts": "unchanged"}


#: The program that states of the tests name, where it does not exist.
GONE = ("/usr/bin/program",)


class Uses(FileState):
    """Writes a file that names a program."""

    name: ClassVar[str] = "uses"

    missing: tuple[str, ...] = ()

    def conflicts(self, policy: Any, facts: NodeFacts, observed: Seen | None) -> Iterator[Conflict]:
        if observed is not None and not self.absent:
            yield from missing_program(
                "/usr/bin/program",
                "brings",
                self.missing,
                policy,
                with_changes=self.fresh(observed),
            )

    def fresh(self, observed: Seen) -> bool:
        return True


def test_what_refers_to_a_program_that_nobody_brings_is_refused_in_the_plan() -> None:
    there = observations(uses="y", brings="y")
    brings = file_state("brings")
    assert outcomes(make.make([Uses()], there)) == {"uses": "would change"}
    state = Uses(missing=GONE)
    refused = {"uses": "refused"}
    result = make.make([state], there)
    assert outcomes(result) == refused
    assert result["uses"].reason == "/usr/bin/program does not exist: add brings to the policy"
    others = [
        (brings(), {"uses": "would change", "brings": "would change"}),
        (brings(ensure="absent"), {**refused, "brings": "would change"}),
        (brings(only=where.group("inference")), {**refused, "brings": "not applicable"}),
    ]
    for other, expected in others:
        assert outcomes(make.make([other, state], there)) == expected


def test_a_missing_program_is_nothing_to_who_has_nothing_to_do_or_takes_away() -> None:
    there = observations(uses="y")
    kept = Uses(text="y", missing=GONE)
    assert outcomes(make.make([kept], there)) == {"uses": "unchanged"}
    removed = Uses(ensure="absent", missing=GONE)
    assert outcomes(make.make([removed], there)) == {"uses": "would change"}


def test_what_a_person_has_to_put_right_first_is_refused_and_not_failed() -> None:
    there = observations(errors={"a": "/x is a folder", "b": "torn"})
    there.refused = {"a"}
    results = make.make([one("a"), one("b")], there)
    assert outcomes(results) == {"a": "refused", "b": "failed"}


def test_what_a_person_has_to_put_right_is_refused_before_what_it_looks_behind_has_run() -> None:
    states = [one("a"), one("b", known_after=("a",)), one("c", known_after=("a",))]
    there = observations(a=None, errors={"b": "move it", "c": "torn"})
    there.refused = {"b"}
    results = make.make(states, there)
    assert outcomes(results) == {"a": "would change", "b": "refused", "c": "known after"}
    assert results["b"].reason == "move it"


class Refers(Uses):
    """As ``Uses``, and it says that its file names the program."""

    name: ClassVar[str] = "refers"

    def fresh(self, observed: Seen) -> bool:
        return observed.text is None


def test_what_refers_to_a_program_that_is_gone_is_refused_although_nothing_would_change() -> None:
    there = observations(refers="x", brings="y")
    assert outcomes(make.make([Refers()], there)) == {"refers": "unchanged"}
    lacking = Refers(missing=GONE)
    assert outcomes(make.make([lacking], there)) == {"refers": "refused"}
    brings = file_state("brings")()
    assert outcomes(make.make([brings, lacking], there))["refers"] == "unchanged"
    there = observations(refers=None)
    removed = Refers(ensure="absent", missing=GONE)
    assert outcomes(make.make([removed], there)) == {"refers": "unchanged"}


class Base(FileState):
    """Others are nothing without it."""

    name: ClassVar[str] = "base"

    indispensable: ClassVar[bool] = True


@pytest.mark.parametrize(
    ("base", "top", "outcome"),
    [
        (Base(ensure="absent"), {}, "refused"),
        (Base(ensure="absent"), {"ensure": "absent"}, "would change"),
        (Base(), {}, "would change"),
        (Base(ensure="absent", only=where.group("other")), {}, "would change"),
        (file_state("base")(ensure="absent"), {}, "would change"),
    ],
)
def test_a_policy_that_takes_away_what_carries_another_is_refused_before_it_starts(
    base: AnyState, top: dict[str, Any], outcome: str
) -> None:
    state = file_state("top", needs=("base",))(text="y", **top)
    result = make.make([base, state], observations(base="x", top="z"))["top"]
    assert result.outcome.value == outcome
    told = "it needs base, which the policy removes: remove top too, or keep base"
    assert result.reason == (told if outcome == "refused" else "")


def test_what_the_policy_lacks_is_a_warning_where_something_changes() -> None:
    class Lonely(FileState):
        """Wants company."""

        name: ClassVar[str] = "lonely"

        def conflicts(
            self, policy: Any, facts: NodeFacts, observed: Seen | None
        ) -> Iterator[Conflict]:
            if observed is not None and not self.absent and "company" not in policy:
                yield Conflict("add company", warning=True, with_changes=True)

    told = {
        (text, ensure, beside): make.make(
            [Lonely(text="y", ensure=ensure), *beside], observations(lonely=text, company="x")
        )["lonely"].plan.warnings
        for text in ("x", "y")
        for ensure in ("present", "absent")
        for beside in ((), (one("company"),))
    }
    assert {key for key, warnings in told.items() if warnings} == {("x", "present", ())}
    assert told["x", "present", ()] == ("add company",)


def test_a_contradiction_is_told_also_of_what_is_not_known_yet() -> None:
    states = [
        Base(ensure="absent"),
        one("first"),
        file_state("top", needs=("base",), known_after=("first",))(),
    ]
    results = make.make(states, observations(base="x", first="y", top="z"))
    assert outcomes(results)["top"] == "refused"


def test_what_others_name_is_taken_away_with_them_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, b = (one(name).model_copy(update={"ensure": "absent"}) for name in "ab")

    def conflicts(
        self: AnyState, policy: Any, facts: NodeFacts, observed: Seen | None
    ) -> Iterator[Conflict]:
        if observed is not None and self.absent:
            yield from still_referenced({"/etc/b": "b"}, self.name, policy)

    monkeypatch.setattr(type(a), "conflicts", conflicts)
    results = make.make([a], observations(a="x"))
    assert outcomes(results) == {"a": "refused"}
    assert results["a"].reason.startswith(
        "/etc/b still names programs of a: remove b together with it"
    )
    assert outcomes(make.make([a, one("b")], observations(a="x", b="x")))["a"] == "refused"
    assert outcomes(make.make([a, b], observations(a="x", b="x")))["a"] == "would change"
    assert outcomes(make.make([a], observations(a=None))) == {"a": "unchanged"}


class Full(FileState):
    """Refuses the changes of other states."""

    name: ClassVar[str] = "a"

    def conflicts(self, policy: Any, facts: NodeFacts, observed: Seen | None) -> Iterator[Conflict]:
        if observed is not None:
            yield Conflict("no room", state="b", with_changes=True)
            yield Conflict("no room", state="c", with_changes=True)


@pytest.mark.parametrize(("text", "outcome"), [("x", "unchanged"), ("y", "refused")])
def test_only_the_changes_of_a_state_are_refused_by_another(text: str, outcome: str) -> None:
    results = make.make([Full(), one("b")], observations(a="x", b=text))
    assert outcomes(results) == {"a": "unchanged", "b": outcome}
    assert results["b"].reason == ("no room" if outcome == "refused" else "")


def test_one_reason_to_refuse_several_states_is_said_once() -> None:
    results = make.make([Full(), one("b"), one("c")], observations(a="x", b="y", c="y"))
    assert outcomes(results) == {"a": "unchanged", "b": "refused", "c": "not run"}
    assert results["c"].reason == "because b refused"


def test_packages_of_a_plan_are_shown_with_their_repositories() -> None:
    nvidia, archive = (
        "http://n/repos/u  Packages",
        "http://a/ubuntu noble/restricted amd64 Packages",
    )
    installs = {
        "core": Candidate("2-1", nvidia),
        "manager-580": Candidate("2-1", archive),
        "local": Candidate("2-1", ""),
        "of-another": Candidate("3-1", archive),
    }
    whole = Change("packages", {"core": "1-1"}, {"core": "2-1", "local": "2-1"}, why="a sample")
    plan = Plan((whole, Change("held", [], ["core"])))
    named = Plan((Change("package", None, "manager-580"), Change("version", None, "2-1")))
    unnamed = Plan((Change("version", "1-1", "2-1"),))

    def why(plan: Plan, *fields: str) -> list[str]:
        candidates = {name: (row,) for name, row in installs.items()}
        changes = make.with_sources(plan, fields, installs, candidates).changes
        return [change.why for change in changes]

    assert why(plan, "packages") == ["a sample; from http://n/repos/u", ""]
    assert why(named, "package", "version") == ["", "from http://a/ubuntu noble/restricted"]
    assert why(unnamed, "version") == ["from http://n/repos/u or http://a/ubuntu noble/restricted"]
    assert why(Plan((Change("version", None, "1-1"),)), "version") == [""]
    assert why(plan) == ["a sample", ""]


class Packaged(FileState):
    """Installs packages."""

    name: ClassVar[str] = "packaged"
    predicted: ClassVar[tuple[str, ...]] = ("package", "version", "packages")


@pytest.mark.parametrize("outcome", [Outcome.PENDING, Outcome.KNOWN_AFTER, Outcome.REFUSED])
def test_the_packages_of_all_plans_are_one_transaction(outcome: Outcome) -> None:
    service = Plan(
        (
            Change("package", None, "manager-580"),
            Change("version", None, "2-1"),
            Change("held", [], ["x"]),
        )
    )
    several = Plan(
        (Change("packages", {"a": "1", "b": "1", "c": "1"}, {"a": "2", "b": "1", "d": "1"}),),
        installs=(("headers", ""),),
    )
    moved = Plan((Change("version", "1-1", "2-1"),))
    states = [type(n, (Packaged,), {"name": n, "__module__": __name__})() for n in ("s", "t", "u")]
    plans = zip("stu", (service, several, moved), strict=True)
    results = {name: StateResult(name, outcome, plan) for name, plan in plans}
    candidates = {"manager-580": (Candidate("2-1", "x"),), "other": (Candidate("1-1", "x"),)}
    installs, leaving = make.transaction(states, results, candidates)
    if outcome is Outcome.REFUSED:
        assert (installs, leaving) == ({}, ())
        return
    assert installs == {
        "s": (("manager-580", "2-1"),),
        "t": (("headers", ""), ("a", "2"), ("d", "1")),
        "u": (("manager-580", "2-1"),),
    }
    assert leaving == ("c",)
