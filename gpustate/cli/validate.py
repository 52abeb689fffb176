"""``gpustate validate``: prove use anew."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import click

from gpustate.cli import common
from gpustate.errors import UsageError
from gpustate.text.words import printable_lines


@click.command()
@click.argument("policy")
@common.inventory_options
@common.policy_options
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json", "junit"]),
    default="text",
    show_default=True,
)
def validate(policy: str, output: str, **options: Any) -> None:
    """Prove that the nodes' GPUs can be used, as POLICY's proving states say: exit 3 when they cannot.

    The proof is made anew although one is kept: a CUDA kernel runs on every GPU. Nothing else is
    changed.
    """
    from gpustate.cli.explain import checks_page
    from gpustate.cli.show import show
    from gpustate.model.policy import build, parameters
    from gpustate.plan import document, render
    from gpustate.run import fleet

    whole = common.load_policy(policy, options)
    proofs = [state for state in whole.states if state.proof]
    if not proofs:
        raise UsageError(
            f"{policy} proves nothing", fix="add Validated() to it, or validate with: validator"
        )
    forced = [
        build(type(s), {**parameters(s), "force": True}) if "force" in type(s).model_fields else s
        for s in proofs
    ]
    inventory = common.load_inventory(options)
    request = fleet.Request(
        whole.but(*forced),
        inventory,
        apply=True,
        known=common.known_states(),
        forks=options["forks"],
        run=fleet.new_run_id(),
    )
    result = common.run(request, verb="validate", quiet=output != "text")
    made = document.result_document(
        result.nodes,
        run=result.run,
        created=common.now(),
        verb="validate",
        summary=result.summary(),
        exit_code=result.exit_code,
        skipped=result.skipped,
    )
    if output == "json":
        common.write_out(common.as_json(made))
    elif output == "junit":
        common.write_out(as_junit(made))
    else:
        page = render.Page()
        for node in made["nodes"]:
            good = node["status"] == "ok"
            page.add(
                (node["name"], "bold"),
                "  ",
                ("proven", "green") if good else (node["status"], "red"),
            )
            if not good and not node.get("checks"):
                page.add("  ", (node.get("reason", ""), "red"))
            checks_page(page, node.get("checks", []))
        show(page)
        click.echo(result.summary())
    common.finish(result.exit_code)


def as_junit(document: dict[str, Any]) -> str:
    """A result as JUnit's XML: a suite a node, a case a link of the chain."""
    document = _fit_for_xml(document)
    suites = ElementTree.Element("testsuites", name="gpustate validate")
    for node in document["nodes"]:
        checks = node.get("checks", [])
        suite = ElementTree.SubElement(suites, "testsuite", name=node["name"])
        failed = [check for check in checks if check["outcome"] == "failed"]
        skipped = [check for check in checks if check["outcome"] == "not applicable"]
        trouble = node["status"] != "ok" and not failed
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
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _fit_for_xml(value: Any) -> Any:
    """The same data without the characters that XML has no way to write."""
    if isinstance(value, str):
        return printable_lines(value)
    if isinstance(value, dict):
        return {key: _fit_for_xml(item) for key, item in value.items()}
    return [_fit_for_xml(item) for item in value] if isinstance(value, list) else value
