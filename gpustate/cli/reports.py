"""Output of plans and results: on the terminal and in files, as text, JSON, Markdown and HTML."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpustate.cli import common
from gpustate.cli.common import F
from gpustate.errors import UsageError

if TYPE_CHECKING:
    from gpustate.reporting.runs import Outcome
    from gpustate.reporting.watchers import Watchers

FORMATS = click.Choice(["text", "json", "markdown", "html"])
#: Formats of reports by file name suffix.
_SUFFIXES = {".html": "html", ".htm": "html", ".md": "markdown", ".json": "json", ".txt": "text"}


report_option = click.option(
    "--report",
    "reports",
    multiple=True,
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Write a report, too: .html, .md, .json or .txt.",
)


diff_option = click.option(
    "--diff", is_flag=True, help="Show file contents and long lists in full."
)


def output_options(formats: click.Choice[str]) -> Callable[[F], F]:
    """``-o``, ``--diff`` and ``--report``."""
    return common.options(
        click.option("-o", "--output", type=formats, default="text", show_default=True),
        diff_option,
        report_option,
        heading="Output",
    )


def check(reports: Sequence[str]) -> None:
    """Check before a run that reports can be written."""
    for path in reports:
        if Path(path).suffix.lower() not in _SUFFIXES:
            raise UsageError(
                "unknown format of a report",
                place=path,
                fix=f"use one of the suffixes {', '.join(_SUFFIXES)}",
            )
        try:
            common.check_out(path)
        except UsageError as error:
            raise UsageError(
                error.message, place=path, fix="name another file with --report"
            ) from error


def show_plan(
    document: Mapping[str, Any],
    output: str,
    *,
    diff: bool,
    whole: bool,
    reports: Sequence[str] = (),
    verb: str = "plan",
) -> None:
    """Print a plan and write its reports; only ``plan`` shows notes on the policy."""
    for path in reports:
        kind = _SUFFIXES[Path(path).suffix.lower()]
        common.write_out(text(document, kind, diff=diff, whole=whole), path)
    if output == "text":
        from gpustate.cli.show import show
        from gpustate.plan import render

        show(render.nodes_page(document, diff=diff, full=whole))
        if verb == "plan":
            show(render.notes_page(document["notes"]))
        show(render.troubles_page(document, diff=diff, full=whole))
        show(render.objects_page(document, full=whole))
        if verb != "drift":
            click.echo(render.plan_sentence(document))
        for path in reports:
            click.echo(f"Report: {path}")
    else:
        common.write_out(text(document, output, diff=diff, whole=whole))


def text(document: Mapping[str, Any], kind: str, *, diff: bool, whole: bool) -> str:
    """A plan in one of :data:`FORMATS`, without colours."""
    if kind == "json":
        return common.as_json(document)
    if kind == "html":
        from gpustate.plan import html

        return html.report(document)
    if kind == "markdown":
        from gpustate.plan import markdown

        return markdown.report(document, diff=diff)
    from gpustate.plan import render

    pages = (
        render.nodes_page(document, diff=diff, full=whole),
        render.notes_page(document["notes"]),
        render.troubles_page(document, diff=diff, full=whole),
        render.objects_page(document, full=whole),
    )
    return "".join(page.plain() for page in pages) + render.plan_sentence(document) + "\n"


def write_result(
    document: Mapping[str, Any], options: Mapping[str, Any], watchers: Watchers, outcome: Outcome
) -> None:
    """Write the reports of a run that has ended.

    Args:
        document: ``gpustate.result/1``.
        options: of the verb.
        watchers: those of the run, for its times.
        outcome: of the run.
    """
    files = options.get("reports") or ()
    if not files:
        return
    run = {
        "run": watchers.run.run,
        "started": watchers.started,
        "ended": watchers.ended,
        **watchers.run.data(),
    }
    about = {"about": run, "outcome": outcome.data()}
    for path in files:
        kind = _SUFFIXES[Path(path).suffix.lower()]
        common.write_out(_result_text(document, kind, about, diff=bool(options.get("diff"))), path)
        if options["output"] == "text":
            click.echo(f"Report: {path}")


def _result_text(
    document: Mapping[str, Any], kind: str, about: Mapping[str, Any], *, diff: bool
) -> str:
    """A result in one of :data:`FORMATS`, without colours."""
    if kind == "json":
        return common.as_json(document)
    if kind == "html":
        from gpustate.plan import html

        return html.report(document, about)
    if kind == "markdown":
        from gpustate.plan import markdown_result

        return markdown_result.report(document, about, diff=diff)
    from gpustate.plan import render

    pages = (
        render.nodes_page(document, diff=diff),
        render.troubles_page(document, diff=diff),
        render.objects_page(document),
    )
    return "".join(page.plain() for page in pages) + f"{document['summary']}\n"
