"""``gpustate policy matrix``: the compatibility data on its own, without any node."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gpustate.cli import common
from gpustate.cli.verbs import Verbs
from gpustate.errors import EXIT_REFUSED, UsageError

if TYPE_CHECKING:
    from gpustate.compat.facts import Value
    from gpustate.compat.rules import RuleSet

F = TypeVar("F", bound=Callable[..., Any])

_OUTPUT = click.option("-o", "--output", type=common.FORMATS, default="text", show_default=True)
_RULES = click.option(
    "--rules",
    "where",
    metavar="DIR[#sha256=SUM]",
    help="Read rules from a directory with SHA256SUMS instead of the built-in ones [env: GPUSTATE_COMPAT].",
)


#: ``--set FACT=VALUE ...`` and ``--allow RULE=REASON``.
_facts = common.options(
    click.option(
        "--set",
        "given",
        multiple=True,
        metavar="FACT=VALUE",
        help="A known fact, NAME=VALUE; repeatable.",
    ),
    click.option(
        "--allow",
        multiple=True,
        metavar="RULE=REASON",
        help="Allow a compatibility rule to be violated: RULE=REASON.",
    ),
    click.argument("more", nargs=-1, metavar="[FACT=VALUE]..."),
)


@click.group(cls=Verbs)
def group() -> None:
    """Query the compatibility matrix: versions, GPUs, kernels and settings, with the source of each rule.

    No node is contacted: rules are evaluated against the facts given. If a fact is missing, the result
    of a rule is "cannot tell", never "fits". All facts are listed in docs/matrix.md.
    """


@group.command()
@_facts
@click.option("--strict", is_flag=True, help="Treat warnings as blocking.")
@_RULES
@_OUTPUT
def check(
    given: tuple[str, ...],
    more: tuple[str, ...],
    allow: tuple[str, ...],
    strict: bool,
    where: str | None,
    output: str,
) -> None:
    """Check facts for conflicts: --set driver=580.65.06 gpu=B200 kernel=6.8.

    A value may be a list (gpu=H100,L40S), a part of a version (driver=580), or the word none: not
    installed. Exit 5 when a rule blocks.
    """
    from gpustate import compat
    from gpustate.compat import document
    from gpustate.compat.facts import unclear_board

    facts = known_facts(given + more)
    if not facts:
        raise UsageError("no facts", fix="give some: --set driver=580.65.06 gpu=B200 kernel=6.8")
    report = compat.check(facts, rules=compat.load(where), allow=dict(map(_pair, allow)))
    gpus = [word.partition("=")[2] for word in given + more if word.startswith("gpu=")]
    note = "" if "fabric" in facts else "".join(map(unclear_board, gpus))
    if output == "json":
        common.write_out(common.as_json(document.report_data(report, strict=strict, note=note)))
    else:
        common.write_out(document.report_text(report, note))
    if document.is_refused(report, strict=strict):
        common.finish(EXIT_REFUSED)


@group.command(name="list")
@click.argument("theme", required=False)
@click.option(
    "--stale",
    type=common.Number(0),
    metavar="DAYS",
    help="Only rules whose source was read more than DAYS days ago.",
)
@_RULES
@_OUTPUT
def list_(theme: str | None, stale: int | None, where: str | None, output: str) -> None:
    """List all rules."""
    from dataclasses import replace
    from datetime import date, timedelta

    from gpustate import clock, compat
    from gpustate.compat import document

    rules = compat.load(where)
    if theme is not None:
        rules = _of_theme(rules, theme)
    if stale is not None:
        since = (date.fromisoformat(clock.now()[:10]) - timedelta(days=stale)).isoformat()
        rules = replace(rules, rules={r.id: r for r in rules if r.source.retrieved < since})
    if output == "json":
        common.write_out(common.as_json(document.rules_data(rules)))
    else:
        common.write_out(document.rules_text(list(rules)))


@group.command()
@click.argument("name", metavar="RULE-ID")
@_facts
@_RULES
@_OUTPUT
def why(
    name: str,
    given: tuple[str, ...],
    more: tuple[str, ...],
    allow: tuple[str, ...],
    where: str | None,
    output: str,
) -> None:
    """Show a rule: its condition, source and tests; with facts, its result for them."""
    from gpustate import compat
    from gpustate.compat import document

    rules = compat.load(where)
    rule = rules.rule(name)
    facts = known_facts(given + more)
    result = None
    if facts:
        report = compat.check(facts, rules=rules, allow=dict(map(_pair, allow)))
        result = next(entry for entry in report.results if entry.rule is rule)
    if output == "json":
        common.write_out(common.as_json(document.why_data(rule, result)))
    else:
        common.write_out(document.why_text(rule, result, facts))


def known_facts(words: tuple[str, ...]) -> dict[str, Value]:
    """Facts of the command line, and the GPU Operator's defaults where it is among them."""
    from gpustate import compat
    from gpustate.gpu_operator import history

    pairs: dict[str, object] = {}
    for word in words:
        name, value = _pair(word, "FACT=VALUE")
        if name in pairs:
            raise UsageError(f"{name} is set twice", fix="set it once")
        pairs[name] = value
    facts = compat.facts(pairs)
    release = pairs.get("gpu_operator", pairs.get("operator"))
    if release is None:
        return facts
    chart = history.chart_defaults(str(release))
    paths = {"cdi": "cdi.enabled", "nri": "cdi.nriPluginEnabled"}
    if facts.get("driver_from") == frozenset(("container",)):
        paths["driver"] = "driver.version"
    defaults = {name: chart[path] for name, path in paths.items() if path in chart}
    return compat.facts(defaults) | facts


def _pair(word: str, form: str = "RULE=REASON") -> tuple[str, str]:
    from gpustate.formats.words import quote

    name, sign, value = word.partition("=")
    if not sign or not name.strip() or not value.strip():
        raise UsageError(f"{quote(word)} is not of the form {form}")
    return name.strip(), value.strip()


def _of_theme(rules: RuleSet, theme: str) -> RuleSet:
    from dataclasses import replace

    from gpustate.formats.words import quote, suggest

    themes = sorted({rule.theme for rule in rules})
    if theme not in themes:
        hint = suggest(theme, themes, f"themes: {', '.join(themes)}")
        raise UsageError(f"no theme {quote(theme)}", fix=hint)
    return replace(rules, rules={r.id: r for r in rules if r.theme == theme})
