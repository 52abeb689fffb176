"""Pages of the terminal, as text without colour."""

from __future__ import annotations

from textwrap import dedent
from typing import Any

import pytest

from gpustate import Disruption, Plan, Policy
from gpustate.core.change import Change
from gpustate.core.inventory import Inventory, InventoryNode
from gpustate.core.outcome import RESTARTED, NodeResult, NodeStatus, Outcome, StateResult
from gpustate.inventory import select
from gpustate.plan import document, html, markdown, markdown_result, render
from gpustate.plan.overview import closing, diff_lines, overview
from gpustate.reporting import runs


def page(*nodes: NodeResult, **how: Any) -> str:
    made = result(*nodes)
    return render.nodes_page(made, **how).plain() + render.troubles_page(made, **how).plain()


def result(*nodes: NodeResult) -> dict[str, Any]:
    return document.result_document(
        nodes, run="r", created="", verb="apply", summary="", exit_code=0
    )


def golden(text: str) -> str:
    return dedent(text).lstrip("\n")


CONF = Change("text", "a\nb\n", "a\nc\n", Disruption.RESTART, "the policy says so", "/etc/x.conf")


def pending(name: str, *changes: Change, notes: tuple[str, ...] = ()) -> StateResult:
    plan = Plan(changes, notes)
    return StateResult(name, Outcome.PENDING, plan, worst=plan.disruption, condition=plan.condition)


def test_nodes_that_share_a_plan_are_shown_once() -> None:
    names = ["gpu1", "gpu2", "gpu4"]
    nodes = [NodeResult(name, states=[pending("driver", CONF)]) for name in names]
    nodes.insert(2, NodeResult("gpu3", states=[StateResult("driver", Outcome.UNCHANGED)]))
    assert page(*nodes) == golden("""
        gpu[1-2,4] (3 nodes)  at worst: restart
          surely    restart (a service restarts, workloads continue): driver
          reboots   none
          ~ driver  restart
                 /etc/x.conf: content  (the policy says so)
        gpu3  nothing to do
    """)


def test_a_worst_case_names_its_condition_and_several_groups_come_with_a_first_page() -> None:
    unload = Change(
        "loaded", ["nouveau"], [], Disruption.REBOOT, condition="a program keeps nouveau loaded"
    )
    mig = StateResult(
        "mig",
        Outcome.KNOWN_AFTER,
        known_after=("driver",),
        worst=Disruption.RESET,
        condition="the MIG mode changes",
    )
    version = Change("library", "570.1", "580.2", Disruption.DRAIN, label="driver version")
    pods = (
        ("a/train-0", "is evicted"),
        ("a/train-1", "is waited for, 60 s at most"),
        ("a/x", "is deleted for good"),
    )
    nodes = [
        NodeResult("gpu1", states=[pending("nouveau", unload)]),
        NodeResult("gpu2", states=[pending("driver", version), mig], workloads=pods, notes=["old"]),
    ]
    made = document.plan_document(
        Policy(),
        "p.yml",
        nodes,
        run="r",
        created="2026-11-21T07:55:00Z",
        context={
            "inventory": "hosts",
            "person": "a@b",
            "retry": ["gpustate", "plan", "p.yml", "-i", "hosts"],
        },
    )
    assert render.nodes_page(made).plain() == golden("""
        gpu1  at worst: reboot (after a drain), on a condition
          possibly  reboot (all workloads must leave, the node reboots): nouveau, only if a program keeps nouveau loaded
          reboots   only if a program keeps nouveau loaded
        gpu2  at worst: reset (after a drain), on a condition
          versions  driver 570.1 -> 580.2
          surely    drain (GPU workloads must leave): driver
          possibly  reset (GPU workloads must leave, a GPU is reset): mig, only if the MIG mode changes
          reboots   none
          note      old
          in use    3 pods of a; 1 deleted for good
            gpu2      a/train-0 (is evicted), a/train-1 (is waited for, 60 s at most), a/x (is deleted for good)
        failure   a node whose change fails stays out of service; a failed package step is undone, other changes only with rollout.rollback_on_failure
        way back  gpustate rollback RUN -i hosts; restores packages that a repository still has, module parameters, files, services, MIG layout

        Changes:
        gpu1  at worst: reboot (after a drain), on a condition
          ~ nouveau  <=reboot reboot only if a program keeps nouveau loaded
                 loaded: - nouveau
        gpu2  at worst: reset (after a drain), on a condition
          ~ driver  drain
                 driver version: 570.1 -> 580.2
          ? mig     <=reset  reset only if the MIG mode changes; decided after driver is applied
    """)


def test_busy_nodes_with_other_pods_each_are_one_group_on_one_page() -> None:
    version = Change("library", "570.1", "580.2", Disruption.DRAIN, label="driver version")
    nodes = [
        NodeResult(
            f"gpu{n:03}",
            states=[
                StateResult(
                    "driver",
                    Outcome.PENDING,
                    Plan(
                        (version,), gpu_users=(f"pid {n} (python3, pod train-{n})", f"pid {n} (x)")
                    ),
                    worst=Disruption.DRAIN,
                )
            ],
            workloads=(
                *((f"team-{n % 3}/train-{n}-{i}", "is evicted") for i in range(n % 7)),
                (f"a/train-{n}", "is evicted"),
            ),
            notes=[f"Kubernetes at test: no label on gpu{n:03}"],
        )
        for n in range(120)
    ]
    made = document.plan_document(Policy(), "p.yml", nodes, run="r", created="2026-11-21T07:55:00Z")
    assert len(made["fleet"]["groups"]) == 1
    lines = render.nodes_page(made).plain().splitlines()
    assert len(lines) < 25, lines
    assert lines[0] == "gpu[000-119] (120 nodes)  at worst: drain"
    assert "120 pods of a" in "".join(lines)
    assert "120 programs" in "".join(lines), "the pods among them count once"
    assert markdown.report(made).count("| `gpu1") >= 20, "a report lists them all"


def test_many_names_are_counted() -> None:
    assert render.names_line([f"n{n}" for n in range(9)]) == "n[0-8] (9 nodes)"
    assert render.names_line([f"n{c}" for c in "abcdefghi"]) == (
        "na, nb, nc, nd, ne, nf and 3 more (9 nodes)"
    )
    assert render.names_line(["n0"]) == "n0"


def test_a_page_tells_all_that_can_become_of_a_state() -> None:
    states = [
        StateResult("preflight", Outcome.UNCHANGED),
        pending("nouveau", Change("loaded", ["nouveau"], [], Disruption.REBOOT)),
        StateResult(
            "driver", Outcome.KNOWN_AFTER, known_after=("nouveau", "r"), worst=Disruption.DRAIN
        ),
        StateResult("cdi", Outcome.NOT_RUN, reason="because driver failed"),
        StateResult("containerd", Outcome.FAILED, reason="it broke", evidence="E: one\nE: two"),
        StateResult("fabric", Outcome.NOT_APPLICABLE, reason="only where nvswitch"),
    ]
    node = NodeResult("gpu1", NodeStatus.FAILED, "containerd: it broke", states, notes=["look up"])
    assert page(node, full=True) == golden("""
        Not finished: 1 node
        gpu1  failed
          = preflight            unchanged
          ~ nouveau     reboot
                 loaded: - nouveau
          ? driver      <=drain  decided after nouveau and r are applied
          x containerd           failed: it broke
                 | E: one
                 | E: two
          - fabric               not applicable: only where nvswitch
          - cdi                  not run: because driver failed
          note: look up
    """)
    assert "preflight" not in page(node)
    assert "fabric" not in page(node)


def test_states_that_one_failure_stopped_are_one_line() -> None:
    stopped = [
        StateResult(name, Outcome.NOT_RUN, reason="because driver refused")
        for name in ("cdi", "validator")
    ]
    states = [StateResult("driver", Outcome.REFUSED, reason="there is none"), *stopped]
    lines = page(NodeResult("gpu1", NodeStatus.REFUSED, "", states)).splitlines()
    assert "  - cdi, validator  not run: because driver refused" in lines


def test_what_became_of_a_rollback_is_said_beside_the_reason_of_the_state() -> None:
    states = [StateResult("driver", Outcome.FAILED, reason="it broke")]
    reason = "driver: it broke; its rollback failed: refused: a/b stays; it stays out of service"
    assert page(NodeResult("gpu1", NodeStatus.FAILED, reason, states)) == golden("""
        Not finished: 1 node
        gpu1  failed
          its rollback failed: refused: a/b stays; it stays out of service
          x driver           failed: it broke
    """)


def test_a_rollback_whose_validation_failed_has_both_reasons() -> None:
    failed = StateResult("validator", Outcome.FAILED, reason="no GPU")
    back = StateResult("driver", Outcome.ROLLED_BACK)
    words = "rolled back to before run r1, and its validation failed: validator: no GPU; it stays out of service"
    node = NodeResult("gpu1", NodeStatus.FAILED, f"validator: no GPU; {words}", [back, failed])
    assert page(node) == golden(f"""
        Not finished: 1 node
        gpu1  failed
          {words}
          x driver              rolled back
          x validator           failed: no GPU
    """)


def test_a_node_that_was_never_reached_says_why() -> None:
    node = NodeResult("gpu1", NodeStatus.UNREACHABLE, "no route to host; look at its console")
    assert page(node) == golden("""
        Not finished: 1 node
        gpu1  unreachable
          no route to host; look at its console
    """)


def test_nodes_that_failed_stand_at_the_end_with_the_command_to_try_them_again() -> None:
    far = "no route to host"
    nodes = [NodeResult(f"gpu{n}", NodeStatus.UNREACHABLE, far) for n in (4, 5)]
    nodes += [
        NodeResult("gpu1", states=[pending("driver", CONF)]),
        NodeResult("gpu9", NodeStatus.LOCKED, "held by ann@desk"),
        NodeResult("gpu7", NodeStatus.REFUSED, "mig: 1g.5gb is not a profile of these GPUs"),
        NodeResult("gpu2", states=[StateResult("driver", Outcome.UNCHANGED)]),
    ]
    made = result(*nodes)
    made["context"] = {"retry": ["gpustate", "apply", "a b.py", "-i", "hosts"]}
    assert "gpu4" not in render.nodes_page(made).plain()
    assert render.troubles_page(made).plain() == golden("""
        Not finished: 4 nodes
        gpu[4-5] (2 nodes)  unreachable
          no route to host
        gpu7  refused
          mig: 1g.5gb is not a profile of these GPUs
        gpu9  locked
          held by ann@desk
        Retry: gpustate apply 'a b.py' -i hosts -l 'gpu[4-5,9]'
    """)
    whole = Inventory("hosts", tuple(InventoryNode(f"gpu{n}") for n in range(1, 10)))
    assert [node.name for node in select(whole, "gpu[4-5,9]")] == ["gpu4", "gpu5", "gpu9"]


def test_the_question_repeats_nodes_cost_and_waves() -> None:
    reboot = Change("loaded", ["nouveau"], [], Disruption.REBOOT)
    nodes = [NodeResult(f"gpu{n}", states=[pending("driver", CONF)]) for n in range(3)]
    nodes[0] = NodeResult("gpu0", states=[pending("driver", reboot)])
    nodes.append(NodeResult("gpu7", NodeStatus.UNREACHABLE, "far"))
    made = result(*nodes)
    query = render.question
    waves = {**made, "rollout": {"waves": [1, 2]}}
    assert query(waves, "apply", forks=2) == (
        "Apply to gpu[0-2] (3 nodes), at worst reboot on 1, in waves of 1, 2?"
    )
    assert query({**waves, "rollback": {}}, "apply", forks=2).startswith("Roll back gpu[0-2] ")
    assert query(made, "remove", forks=2) == (
        "Remove from gpu[0-2] (3 nodes), at worst reboot on 1, 2 at a time?"
    )
    alone = result(NodeResult("gpu1", states=[pending("driver", Change("n", 1, 2))]))
    assert query(alone, "apply", forks=1) == "Apply to gpu1, without disruption?"


@pytest.mark.parametrize(
    ("name", "how", "waves", "noted"),
    [
        ("ml/train-0", "evicted", [1, 1], True),
        ("ml/train-0", "evicted", [2], False),
        ("ml/train-0", RESTARTED, [1, 1], False),
        ("job 7 of ann", "waited for", [1, 1], False),
    ],
)
def test_pods_that_may_leave_twice_are_noted(
    name: str, how: str, waves: list[int], noted: bool
) -> None:
    nodes = [
        NodeResult(f"gpu{n}", states=[pending("driver", CONF)], workloads=((name, how),))
        for n in range(2)
    ]
    made = {**result(*nodes), "rollout": {"text": "", "waves": waves}}
    assert ("pods" in dict(closing(overview(made)))) is noted


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (Change("n", None, "1"), "n: none -> 1"),
        (Change("n", "a", None), "n: a -> none"),
        (Change("n", True, False), "n: yes -> no"),
        (Change("n", ["a", "b"], ["b", "c"]), "n: + c - a"),
        (Change("n", ["a", "b"], ["b", "a"]), "n: order"),
        (Change("n", {"a": 1, "b": 2}, {"a": 1, "b": 3}), "n: b: 2 -> 3"),
        (
            Change("n", {}, dict.fromkeys("abcdefghij", 1)),
            "n: a, b, c, d, e, f, g, h and 2 more: none -> 1",
        ),
        (
            Change("n", {}, {"a": 1, "b": 2, "c": 1, "d": 3, "e": 4, "f": 5, "g": 6}),
            "n: a, c: none -> 1; b: none -> 2; d: none -> 3; e: none -> 4 and 2 more",
        ),
        (
            Change("n", {**dict.fromkeys("abcdefg", "1"), "h": "2"}, {}),
            "n: a, b, c, d, e, f, g: 1 -> none; h: 2 -> none",
        ),
        (Change("n", [], list("abcdefg")), "n: + a, b, c, d, e, f, g"),
        (Change("n", list("abcdefghi"), []), "n: - a, b, c, d, e, f, g, h, i"),
        (Change("n", None, "0123456789abcdef"), "n: new"),
        (Change("n", "abcdef0123456789", "0123456789abcdef"), "n: other content"),
        (Change("n", "0123456789abcdef", None), "n: removed"),
        (Change("n", "x" * 100, "y"), f"n: {'x' * 69}... -> y"),
        (Change("n", "a\nb\n", "c"), "n: 2 lines -> c"),
        (Change("text", None, "a\nb\n", path="/etc/x"), "/etc/x: new file, 2 lines"),
        (Change("text", "a", None, path="/etc/x"), "/etc/x: removed"),
        (Change("text", "a", "b", path="/etc/x"), "/etc/x: content"),
        (Change("key", "old", "new", secret=True), "key: (secret) -> (secret)"),
    ],
)
def test_a_change_is_one_short_line(change: Change, line: str) -> None:
    told = page(NodeResult("gpu1", states=[pending("s", change)])).splitlines()
    assert told[2].strip() == line
    assert len(told) == 3 + ("more" in line)


def test_pins_of_a_thousand_packages_do_not_bury_a_plan() -> None:
    names = "Package: " + " ".join(f"libnvidia-{n}:any" for n in range(1000))
    change = {
        "field": "pin_text",
        "path": "/etc/pins",
        "before": None,
        "after": f"{names}\nPin: x\n",
    }
    assert max(map(len, diff_lines(change))) == 240
    changed = {**change, "before": f"{names} more\nPin: x\n"}
    assert f"+{names}" in diff_lines(changed), "what differs may be at the end"


def test_a_diff_shows_the_lines_of_files_and_no_secret() -> None:
    new = Change("new", None, "one\ntwo\n", path="/etc/new")
    gone = Change("gone", "one\ntwo\n", None, path="/etc/gone")
    secret = Change("secret", "old\npassword\n", "new\npassword\n", path="/etc/key", secret=True)
    assert page(
        NodeResult("gpu1", states=[pending("s", CONF, new, gone, secret)]), diff=True
    ) == golden("""
        gpu1  at worst: restart
          surely    restart (a service restarts, workloads continue): s
          reboots   none
          ~ s  restart
                 /etc/x.conf: content  (the policy says so)
                 --- /etc/x.conf
                 +++ /etc/x.conf
                 @@ -1,2 +1,2 @@
                  a
                 -b
                 +c
                 /etc/new: new file, 2 lines
                 --- /dev/null
                 +++ /etc/new
                 @@ -0,0 +1,2 @@
                 +one
                 +two
                 /etc/gone: removed
                 --- /etc/gone
                 +++ /dev/null
                 @@ -1,2 +0,0 @@
                 -one
                 -two
                 /etc/key: content
    """)


def test_a_page_of_refused_nodes_says_how_to_see_whole_lists() -> None:
    change = Change("n", {}, dict.fromkeys("abcdefghij", 1))
    refused = StateResult("s", Outcome.REFUSED, Plan((change,)), reason="masked")
    row = NodeResult("gpu1", NodeStatus.REFUSED, "s: masked", [refused])
    line = "lists     those with 'and N more' are whole with --diff\n"
    assert line in page(row)
    assert line not in page(row, diff=True)


def test_a_long_list_is_counted_and_a_diff_shows_all_of_it() -> None:
    before = {f"p{n}": "1" for n in range(3)} | {"q": "1", "s": "1"}
    after = {f"p{n}": "2" for n in range(2)} | {"q": "1"} | {f"r{n}": "3" for n in range(10)}
    packages = Change("packages", before, after)
    held = Change("held", ["a", "b"], [f"h{n}" for n in range(8)])
    short = Change("few", {"a": "1"}, {"a": "2"})
    row = NodeResult("gpu1", states=[pending("s", packages, held, short)])
    assert page(row) == golden("""
        gpu1
          ~ s
                 packages: p0, p1: 1 -> 2; r0, r1, r2, r3, r4, r5, r6, r7 and 2 more: none -> 3; p2, s: 1 -> none
                 held: + h0, h1, h2, h3, h4, h5 and 2 more - a, b
                 few: a: 1 -> 2
        lists     those with 'and N more' are whole with --diff
    """)
    assert page(row, diff=True) == golden("""
        gpu1
          ~ s
                 packages: p0, p1: 1 -> 2; r0, r1, r2, r3, r4, r5, r6, r7 and 2 more: none -> 3; p2, s: 1 -> none
                 ~ p0: 1 -> 2
                 ~ p1: 1 -> 2
                 - p2: 1
                 + r0: 3
                 + r1: 3
                 + r2: 3
                 + r3: 3
                 + r4: 3
                 + r5: 3
                 + r6: 3
                 + r7: 3
                 + r8: 3
                 + r9: 3
                 - s: 1
                 held: + h0, h1, h2, h3, h4, h5 and 2 more - a, b
                 + h0
                 + h1
                 + h2
                 + h3
                 + h4
                 + h5
                 + h6
                 + h7
                 - a
                 - b
                 few: a: 1 -> 2
    """)


def test_states_that_only_wait_are_one_line() -> None:
    states = [
        pending("driver", CONF),
        *(
            StateResult(name, Outcome.KNOWN_AFTER, known_after=(after,), worst=Disruption.NONE)
            for name, after in (("cdi", "driver"), ("validator", "cdi"))
        ),
    ]
    lines = page(NodeResult("gpu1", states=states)).splitlines()
    at = lines.index("  ? cdi, validator")
    assert lines[at + 1].strip() == "decided once the states that they depend on are applied"
    assert "  ? validator" not in "".join(lines)
    whole = page(NodeResult("gpu1", states=states), full=True)
    assert "decided after cdi is applied" in whole, "--all shows each"


def test_notes_of_states_and_of_the_policy_are_told() -> None:
    node = NodeResult("gpu1", states=[pending("s", CONF, notes=("a hand was here",))])
    assert "         note: a hand was here\n" in page(node)
    assert render.notes_page(["dcgm is left to others"]).plain() == golden("""
        Notes on the policy:
          - dcgm is left to others
    """)
    assert render.notes_page([]).plain() == ""


def test_styles_are_words_that_a_terminal_knows() -> None:
    states = [
        StateResult(f"s{n}", outcome, reason="r", known_after=("s0",))
        for n, outcome in enumerate(Outcome)
    ]
    lines = render.troubles_page(result(NodeResult("n", NodeStatus.FAILED, "r", states))).lines
    styles = {style for line in lines for _, style in line}
    assert styles <= {"", "bold", "dim", "green", "yellow", "red", "cyan"}


def test_the_sentence_counts_nodes_and_their_worst_costs() -> None:
    nodes = [
        NodeResult("a", states=[pending("s", CONF)]),
        NodeResult("b", states=[pending("s", Change("f", 1, 2, Disruption.REBOOT))]),
        NodeResult("c", states=[pending("s", Change("f", 1, 2))]),
        NodeResult("d", states=[StateResult("s", Outcome.UNCHANGED)]),
        NodeResult("e", NodeStatus.UNREACHABLE, "gone"),
    ]
    assert render.plan_sentence(result(*nodes)) == (
        "Plan: 3 nodes would change (at worst: 1 reboot, 1 restart, 1 without disruption), "
        "1 unchanged, 1 not planned."
    )
    refused = NodeResult("f", states=[pending("s", CONF)], would_refuse=True)
    assert render.plan_sentence(result(nodes[3], refused)) == (
        "Plan: 0 nodes would change, 1 unchanged, 1 refused."
    )
    assert render.plan_sentence(result(nodes[2])) == (
        "Plan: 1 node would change, without disruption, 0 unchanged."
    )
    assert render.plan_sentence(result()) == "Plan: 0 nodes would change, 0 unchanged."
    assert render.plan_sentence(result(nodes[0])) == (
        "Plan: 1 node would change (at worst: 1 restart), 0 unchanged."
    )


def test_what_a_node_says_cannot_act_on_the_terminal_or_make_a_line() -> None:
    harm = "\x1b[2J\x9b31m\r\u202eevil\nnodes=1 ok=1"
    plan = Plan((Change("text", harm, f"{harm}2", why=harm),), notes=(harm,))
    states = [
        StateResult("a", Outcome.PENDING, plan),
        StateResult("b", Outcome.FAILED, reason=harm, evidence=harm),
    ]
    made = page(NodeResult("n1", NodeStatus.FAILED, harm, states), diff=True, full=True)
    assert not set(made) & set("\x1b\x9b\r\u202e")
    assert "\\x1b[2J" in made
    assert all(not line.startswith("nodes=") for line in made.splitlines())


def test_a_line_has_an_end() -> None:
    made = render.Page()
    made.add("x" * 1_000_000)
    assert len(made.plain()) == 4001


def test_equal_labels_of_many_nodes_are_shown_once() -> None:
    change = {"field": "metadata.labels.nvidia.com/gpu.product", "before": None, "after": "A100"}
    objects = [
        {"object": f"node/gpu{n:03}", "action": "update", "changes": [change]}
        for n in range(1, 121)
    ]
    data = {"server": "https://k", "namespace": "gpu", "objects": objects}
    lines = render.objects_page({"clusters": [data]}).plain().splitlines()
    assert len(lines) == 3, lines
    assert lines[1] == "  ~ node/gpu[001-120] (120 objects)  update"


def test_an_interrupted_run_has_one_next_command_and_shows_no_change_as_done() -> None:
    states = [
        StateResult("driver", Outcome.INTERRUPTED, Plan((CONF,)), reason="stopped before its end"),
        StateResult("cdi", Outcome.NOT_RUN, reason="because driver interrupted"),
    ]
    node = NodeResult("gpu1", NodeStatus.INTERRUPTED, "driver: stopped before its end", states)
    made = result(node)
    made |= {"exit_code": 130, "context": {"retry": ["gpustate", "apply", "p.yml", "-i", "h"]}}
    text = render.troubles_page(made).plain()
    assert "interrupted: stopped before its end; it was to change:" in text
    assert "Retry" not in text
    outcome = runs.Outcome(130, "", [node], interrupted=True)
    report = {"about": {"verb": "apply"}, "outcome": outcome.data()}
    for page_ in (html.report(made, report), markdown_result.report(made, report)):
        assert page_.count("gpustate rollout resume r") == 1
        assert "Retry" not in page_
