"""``gpustate validate``: validate nodes end to end."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import click

from gpustate import clock
from gpustate.cli import common, next_steps, watching
from gpustate.cli.context import context
from gpustate.diagnosis.chain import NOT_VALIDATED
from gpustate.errors import EXIT_ERROR, EXIT_VALIDATION, ClusterError, UsageError, worst_exit_code
from gpustate.formats.words import printable_lines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpustate.core.inventory import InventoryNode
    from gpustate.core.state import AnyState
    from gpustate.engine.fleet import FleetResult
    from gpustate.plan.render import Page
    from gpustate.validation import pods
    from gpustate.validation.site_tests import SiteTest


@click.command()
@common.policy_argument
@common.inventory_options
@common.policy_options
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json", "junit"]),
    default="text",
    show_default=True,
)
@click.option(
    "--tests",
    "folder",
    metavar="DIR",
    help="Also run a site's own testinfra tests on the nodes, over the same connections.",
)
@common.kubeconfig_option(
    "Also run a pod with a GPU on each Node, and write its condition GPUHealthy, in this kubeconfig's current context"
)
@click.option(
    "--timeout",
    "timeout_s",
    type=common.Number(1, 3600, float),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Time limit of a pod, and of each of your tests.",
)
@watching.watch_options
def validate(
    policy: str,
    output: str,
    folder: str | None,
    kubeconfig: str | None,
    timeout_s: float,
    **options: Any,
) -> None:
    """Validate nodes end to end with POLICY's validator; exit 3 if a check fails.

    Every check runs again, even if the last result is still valid, including a CUDA kernel on every GPU. With access
    to a cluster, the result is the condition GPUHealthy of the Node, and a start-up taint is lifted from a
    validated one. Nothing else is changed.
    """
    from gpustate.api.functions import run_request
    from gpustate.api.rolling import validation
    from gpustate.cli.explain import checks_page
    from gpustate.cli.show import show
    from gpustate.core.outcome import NodeStatus
    from gpustate.engine import fleet
    from gpustate.engine.events import Event
    from gpustate.explain import walk
    from gpustate.manifests.cluster_part import settings_of
    from gpustate.plan import document, render
    from gpustate.plan.context import retry
    from gpustate.reporting.runs import Outcome, run_of

    values: dict[str, Any] = {"folder": folder, "kubeconfig": kubeconfig, "timeout_s": timeout_s}
    path = _checked(folder)
    loaded = common.load_policy(policy, options)
    taint = settings_of(loaded).startup_taint
    validators = [state for state in loaded.states if state.validating]
    if not validators:
        raise UsageError(
            f"{policy} has no validator",
            fix="add the state validator to it (in Python NodeValidated()), or run: gpustate validate validator",
        )
    inventory = common.load_inventory(options)
    pod_request = _pod_request(inventory.nodes, validators, kubeconfig or "", timeout_s)
    resolved = fleet.resolve_all(fleet.Request(loaded, inventory, known=common.known_states()))
    request = run_request(
        validation(loaded) or loaded,
        inventory,
        apply=True,
        forks=options["forks"],
        run=fleet.new_run_id(),
        without_gpu=frozenset(
            n.node.name for n, states in resolved if any(s.expects_no_gpu for s in states)
        ),
    )
    request.afterwards = walk.query
    origin = context("validate", policy, {**options, **values})
    last_change = next_steps.last_change(options)
    about = run_of(request.run, "validate", policy, origin, nodes=len(inventory.nodes))
    resume = f"gpustate rollout resume {request.run}"
    with watching.watching(about, options, inventory, output=output) as watchers:
        watchers.begin()
        ends: list[str] = []
        with common.watched(inventory, quiet=output != "text", resume=resume) as (progress, stop):
            listen = watching.listener(watchers, progress)

            def hear(event: Event) -> None:
                """Pods and tests of the site may still fail a node that is well so far."""
                goes_on = pod_request is not None or path is not None
                if goes_on and (event.kind, event.text) == ("finished", NodeStatus.OK.value):
                    ends.append(event.node)
                else:
                    listen(event)

            result = fleet.run(request, hear, stop)
        result.proved = True
        if pod_request is not None and not result.interrupted:
            _run_pods(result, replace(pod_request, forks=options["forks"]), quiet=output != "text")
        tests: list[SiteTest] = []
        if path is not None and not result.interrupted:
            from gpustate.validation import site_tests

            away = {n.name for n in result.nodes if n.status is NodeStatus.UNREACHABLE}
            reached = tuple(node for node in inventory.nodes if node.name not in away)
            began = time.monotonic()
            tests = site_tests.run(path, replace(inventory, nodes=reached), limit_s=timeout_s)
            result.duration_s += time.monotonic() - began
            for n in result.nodes:
                site_tests.add(n, tests)
        for n in result.nodes:
            if n.name in ends:
                listen(Event(n.name, "finished", n.status.value))
        codes = [EXIT_VALIDATION if any(n.bad for n in tests) else 0]
        states = [state.name for state in loaded.states if not state.absent]
        if not result.interrupted:
            from gpustate.validation import causes

            causes.run(result.nodes, inventory.nodes, options["forks"], states, request.answers)
            codes += _report(result, inventory.nodes, kubeconfig or "", taint)
        codes.append(result.exit_code)
        exit_code = worst_exit_code(codes)
        watchers.end(
            Outcome(
                exit_code,
                result.summary(),
                result.nodes,
                result.skipped,
                interrupted=result.interrupted,
            )
        )
        data = document.result_document(
            result.nodes,
            run=result.run,
            created=clock.now(),
            verb="validate",
            summary=result.summary(),
            exit_code=exit_code,
            skipped=result.skipped,
            context=origin,
        )
        target = next_steps.Target(str(options["inventory"]), policy, states)
        target.complete_result(data)
        unfinished = {
            node["name"]: next_steps.interrupted(last_change, node["name"])
            for node in data["nodes"]
            if node["status"] != "ok"
        }
        for node in data["nodes"]:
            step = next_steps.continuation(unfinished.get(node["name"], ""))
            for check in node.get("checks", ()) if step else ():
                check["remedy"] = step
        if path is not None:
            data["tests"] = [n.data() for n in tests]
        if output == "json":
            common.write_out(common.as_json(data))
        elif output == "junit":
            common.write_out(as_junit(data))
        else:
            page = render.Page()
            for node in data["nodes"]:
                good = node["status"] == "ok"
                rows = [n for n in tests if n.node == node["name"]]
                page.add((node["name"], "bold"), "  ", _verdict(node, rows))
                if text := unfinished.get(node["name"]):
                    page.add("  ", (text, "yellow"))
                checks = node.get("checks", [])
                if not good and not any(check["outcome"] == "failed" for check in checks):
                    # They are an earlier validation's: this one did not get that far.
                    checks = []
                    for reason in _reasons(node):
                        page.add("  ", (reason, "red"))
                checks_page(page, checks)
                for note in node.get("notes", ()):
                    page.add("  ", (f"note: {note}", "dim"))
                _tests_page(page, rows)
            other_tests = [n for n in tests if not n.node]
            if other_tests:
                page.add(("tests without a node", "bold"))
                _tests_page(page, other_tests)
            if path is not None:
                counted = Counter(n.outcome for n in tests)
                words = ("passed", "failed", "error", "not run", "skipped")
                counts = " ".join(f"{word.replace(' ', '_')}={counted[word]}" for word in words)
                page.add(f"tests={len(tests)} {counts}")
            bad = [node["name"] for node in data["nodes"] if node["status"] != "ok"]
            if bad and (command := retry(data, bad)):
                lost = [n["name"] for n in data["nodes"] if n["status"] == "unreachable"]
                failed = [name for name in bad if name not in lost]
                for title, names in (("Validation failed: ", failed), ("Unreachable: ", lost)):
                    if names:
                        page.add((title, "bold"), render.names_line(names))
                page.add("Retry: ", command)
            show(page)
            click.echo(result.summary())
    common.finish(exit_code)


def _reasons(node: Mapping[str, Any]) -> list[str]:
    """Why a node was not validated, of the node itself and of its states."""
    reasons = [node.get("reason"), *(state.get("reason") for state in node["states"])]
    return [str(reason) for reason in dict.fromkeys(reasons) if reason]


def _verdict(node: Mapping[str, Any], tests: Sequence[SiteTest]) -> tuple[str, str]:
    """A node's headline; failed tests of the site are kept apart from the GPUs."""
    if node["status"] == "ok":
        if any(test["evidence"].startswith(NOT_VALIDATED) for test in node.get("checks", ())):
            return f"validated; {NOT_VALIDATED}", "yellow"
        return "validated", "green"
    failed = [state["state"] for state in node["states"] if state["outcome"] == "failed"]
    bad = sum(test.bad for test in tests)
    if bad and len(failed) == 1:
        return f"GPUs validated, {bad} test{'s' * (bad != 1)} of this site failed", "red"
    return str(node["status"]), "red"


def _pod_request(
    nodes: Sequence[InventoryNode],
    validators: Sequence[AnyState],
    kubeconfig: str,
    timeout_s: float,
) -> pods.Request | None:
    """The request for pods, with its kubeconfigs read before any node is reached; ``None``: no pods."""
    from gpustate.core.policy import parameters

    values = [parameters(state) for state in validators]
    if all(value.get("containers") == "none" for value in values):
        return None
    if not kubeconfig and not any("gpustate_kubeconfig" in node.vars for node in nodes):
        return None
    from gpustate.validation import pods  # lightkube's import takes seconds

    apis = pods.connect_all(nodes, kubeconfig)
    cuda = any(value.get("cuda", True) for value in values)
    return pods.Request(nodes, apis, kubeconfig, timeout_s=timeout_s, cuda=cuda)


def _run_pods(result: FleetResult, request: pods.Request, *, quiet: bool) -> None:
    """Add the check ``pod`` to every node with a kubeconfig whose own validation succeeded."""
    from gpustate.cluster.kubeconfig import kubeconfig_of
    from gpustate.core.outcome import NodeStatus
    from gpustate.validation import pods

    stop = common.Interrupt(
        lambda: click.echo("interrupted: the pods are deleted", err=True),
        "the pods end on their own; the next validation deletes them",
    )
    stop.arm()
    began = time.monotonic()
    results = {result_.name: result_ for result_ in result.nodes if result_.status is NodeStatus.OK}
    chosen = [
        node
        for node in request.nodes
        if node.name in results and kubeconfig_of(node, request.kubeconfig)
    ]
    if chosen and not quiet:
        click.echo(f"running a pod with a GPU on nodes with a kubelet: {len(chosen)}", err=True)
    for name, check in pods.run(replace(request, nodes=chosen), stop).items():
        pods.add(results[name], check)
    for api in request.apis.values():
        api.close()
    result.interrupted = stop()
    result.duration_s += time.monotonic() - began


def _report(
    result: FleetResult, nodes: Sequence[InventoryNode], kubeconfig: str, taint: str
) -> list[int]:
    """Report the result on the Nodes of all clusters; exit codes for what could not be written."""
    if not kubeconfig and not any("gpustate_kubeconfig" in node.vars for node in nodes):
        return []
    from gpustate.cluster.kubeconfig import kubeconfig_of
    from gpustate.reconcile import node_reports

    clusters = {node.name: kubeconfig_of(node, kubeconfig) for node in nodes}
    codes: list[int] = []
    for cluster in dict.fromkeys(filter(None, clusters.values())):
        reported = [n for n in result.nodes if clusters[n.name] == cluster]
        try:
            written = node_reports.admit(
                cluster, reported, taint=taint, offers_gpus=True, fresh=True
            )
        except ClusterError as error:
            # Where a pod is to run, its check has failed for the same reason.
            click.echo(f"conditions of Nodes could not be written: {error}", err=True)
            continue
        for n in reported:
            n.notes += [line.text for line in written.about(n.name)]
        codes += [EXIT_ERROR] * bool(written.failures)
    return codes


def _checked(folder: str | None) -> Path | None:
    """The folder of a site's tests, checked before any node is reached."""
    if folder is None:
        return None
    from gpustate.validation import site_tests

    return site_tests.check(folder)


def _tests_page(page: Page, tests: list[SiteTest]) -> None:
    """Add a line for each failed test, and one for all others."""
    for test in tests:
        if test.bad:
            page.add("  ", ("x", "red"), f" {test.test}  {test.outcome}: {test.evidence}")
    good = sum(test.outcome == "passed" for test in tests)
    skipped = sum(test.outcome == "skipped" for test in tests)
    if good or skipped:
        more = f", {skipped} skipped" if skipped else ""
        page.add("  ", ("=", "green"), f" tests of this site: {good} passed{more}")


def as_junit(document: dict[str, Any]) -> str:
    """A result as JUnit XML: a suite per node, a case per check."""
    document = _fit_for_xml(document)
    suites = ElementTree.Element("testsuites", name="gpustate validate")
    for node in document["nodes"]:
        checks = node.get("checks", [])
        suite = ElementTree.SubElement(suites, "testsuite", name=node["name"])
        failed = [check for check in checks if check["outcome"] == "failed"]
        skipped = [check for check in checks if check["outcome"] == "not applicable"]
        has_tests = any(
            test["node"] == node["name"] and test["outcome"] in ("failed", "error", "not run")
            for test in document.get("tests", [])
        )
        trouble = node["status"] != "ok" and not failed and not has_tests
        suite.set("tests", str(len(checks) + trouble))
        suite.set("failures", str(len(failed)))
        suite.set("skipped", str(len(skipped)))
        suite.set("errors", str(int(trouble)))
        for check in checks:
            case = ElementTree.SubElement(
                suite, "testcase", classname=node["name"], name=check["name"]
            )
            if check["outcome"] == "failed":
                failure = ElementTree.SubElement(case, "failure", message=check["evidence"])
                failure.text = check["remedy"]
            elif check["outcome"] == "not applicable":
                ElementTree.SubElement(case, "skipped", message=check["evidence"])
            else:
                ElementTree.SubElement(case, "system-out").text = check["evidence"]
        if trouble:
            case = ElementTree.SubElement(suite, "testcase", classname=node["name"], name="node")
            ElementTree.SubElement(case, "error", message=node.get("reason", node["status"]))
    _test_suites(suites, document.get("tests", []))
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _test_suites(suites: ElementTree.Element, tests: list[dict[str, Any]]) -> None:
    """A site's own tests: a suite per node, a case per test."""
    for node in dict.fromkeys(test["node"] for test in tests):
        rows = [test for test in tests if test["node"] == node]
        counted = Counter(test["outcome"] for test in rows)
        suite = ElementTree.SubElement(suites, "testsuite", name=f"{node or 'no node'}: tests")
        suite.set("tests", str(len(rows)))
        suite.set("failures", str(counted["failed"]))
        suite.set("skipped", str(counted["skipped"]))
        suite.set("errors", str(counted["error"] + counted["not run"]))
        for test in rows:
            case = ElementTree.SubElement(suite, "testcase", classname=node, name=test["test"])
            case.set("time", str(test["duration_s"]))
            tag = {"failed": "failure", "error": "error", "not run": "error", "skipped": "skipped"}
            if test["outcome"] in tag:
                ElementTree.SubElement(case, tag[test["outcome"]], message=test["evidence"])


def _fit_for_xml(value: Any) -> Any:
    """The same data without characters that XML cannot contain."""
    if isinstance(value, str):
        return printable_lines(value)
    if isinstance(value, dict):
        return {key: _fit_for_xml(item) for key, item in value.items()}
    return [_fit_for_xml(item) for item in value] if isinstance(value, list) else value
