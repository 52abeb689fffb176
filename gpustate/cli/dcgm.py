"""``gpustate node dcgm``: alert rules, a dashboard and a counters file; what GPUs and an exporter make of one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit

import click

from gpustate.cli import common
from gpustate.cli.verbs import Verbs
from gpustate.errors import EXIT_ERROR, EXIT_VALIDATION, GpustateError, UsageError
from gpustate.formats.words import printable, quote

if TYPE_CHECKING:
    from gpustate.core.node import Node
    from gpustate.formats.dcgm import Checked, Counter

_FORMAT = "gpustate.dcgm-check/1"
#: No line of a counters file begins like these.
_OBJECT = re.compile(r"^\s*[{\"]*(apiVersion|kind)\"?:\s", re.MULTILINE)
_YAML = re.compile(r"^[A-Za-z][\w-]*:(\s|$)", re.MULTILINE)
_OUT = click.option("--out", metavar="FILE", help="Write to a file instead of standard output.")


@click.group(cls=Verbs)
def group() -> None:
    """GPU metrics with dcgm-exporter: alert rules, a dashboard, the counters file they need."""


@group.command()
@_OUT
def rules(out: str | None) -> None:
    """Print alert rules for Prometheus; they need the counters of "gpustate node dcgm counters"."""
    from gpustate.formats.dcgm import shipped

    common.write_out(shipped.rules(), out)


@group.command()
@_OUT
def dashboard(out: str | None) -> None:
    """Print a dashboard for Grafana, as JSON."""
    import json

    from gpustate.formats.dcgm.dashboard import dashboard as made

    common.write_out(json.dumps(made(), indent=2) + "\n", out)


@group.command()
@_OUT
def counters(out: str | None) -> None:
    """Print a counters file for dcgm-exporter (-f, DCGM_EXPORTER_COLLECTORS)."""
    from gpustate.formats.dcgm import shipped

    common.write_out(shipped.counters_file(), out)


@group.command()
@click.argument("file", required=False)
@click.option(
    "--scrape",
    metavar="URL",
    help="Also query each node's exporter (http://localhost:9400/metrics): every field of every GPU must be present.",
)
@common.inventory_options
@click.option("-o", "--output", type=common.FORMATS, default="text", show_default=True)
def check(file: str | None, scrape: str | None, output: str, **options: Any) -> None:
    """Check a counters file (default: gpustate's); with -i, against what the nodes' GPUs can report.

    A field that a GPU cannot report is a note. A field that the exporter lacks although the GPU can
    report it means exit code 3, and so does an exporter that does not answer.
    """

    checked = _checked(file)
    place = file or "counters.csv"
    counters = checked.counters
    warnings = (*checked.warnings, *checked.too_new)
    if scrape is not None:
        _check_url(scrape)
    if checked.errors:
        _report_errors(checked, place, output)
    if options["inventory"] is None:
        if scrape is not None:
            raise UsageError("--scrape needs nodes", fix="name an inventory with -i")
        data = {"format": _FORMAT, "file": place, "fields": len(counters), "wrong": []}
        data["warnings"] = _rows(warnings)
        verdict = f"{len(warnings)} warnings" if warnings else "no errors"
        text = f"{place}: {len(counters)} fields, {verdict}\n"
        _warn(warnings, output)
        common.write_out(common.as_json(data) if output == "json" else text)
        return
    _warn(warnings, output)
    inventory = common.load_inventory(options)
    query = lambda node: _check_node(node, counters, place, scrape)  # noqa: E731
    rows, codes = common.query_nodes(inventory, options["forks"], query)
    codes += [EXIT_VALIDATION for row in rows if row.get("missing") or row.get("no_answer")]
    if output == "json":
        common.write_out(common.as_json({"format": _FORMAT, "nodes": rows}))
    else:
        _page(rows)
    common.finish(*codes)


def _report_errors(checked: Checked, place: str, output: str) -> NoReturn:
    """Print all errors of a counters file; nodes are not queried for a file that no exporter accepts."""
    warnings = (*checked.warnings, *checked.too_new)
    if output == "json":
        data = {"format": _FORMAT, "file": place, "wrong": _rows(checked.errors)}
        data["warnings"] = _rows(warnings)
        common.write_out(common.as_json(data))
    for error in checked.errors if output != "json" else ():
        click.echo(f"gpustate: {printable(str(error))}", err=True)
    _warn(warnings, output)
    raise click.exceptions.Exit(EXIT_ERROR)


def _rows(errors: Sequence[UsageError]) -> list[dict[str, Any]]:
    return [{"place": error.place, "message": error.message, "fix": error.fix} for error in errors]


def _warn(warnings: Sequence[UsageError], output: str) -> None:
    for warning in warnings if output != "json" else ():
        click.echo(f"warning: {printable(str(warning))}", err=True)


def _check_url(url: str) -> None:
    """Refuse a URL that cannot be an exporter's."""
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fits = False
    if not fits or not url.isprintable() or " " in url:
        raise UsageError(
            f"--scrape: {quote(url)} is not the URL of an exporter",
            fix="write one such as http://localhost:9400/metrics",
        )


def _checked(file: str | None) -> Checked:
    from gpustate.files import TextFiles
    from gpustate.formats import dcgm
    from gpustate.formats.dcgm import shipped

    if file is None:
        return dcgm.Checked(shipped.counters())
    text = TextFiles("counters file", UsageError, 1, keep_mark=True).text(file)
    if _OBJECT.search(text):
        from gpustate.gpu_operator.companions import counters_text

        text = counters_text(text, file) or text
    elif _YAML.search(text):
        raise UsageError(
            "is YAML, wanted a counters file with lines FIELD, type, help",
            place=file,
            fix="pass that file, or a ConfigMap that contains one",
        )
    return dcgm.check(text, file)


def _check_node(
    node: Node, counters: tuple[Counter, ...], place: str, scrape: str | None
) -> dict[str, Any]:
    from gpustate.formats import dcgm
    from gpustate.probes.gpu_facts import GpuFacts

    nvml = node.query(GpuFacts())
    answer = node.shell(_scrape(scrape)) if scrape is not None else None
    if not nvml.works:
        return {"error": f"NVML: {nvml.error_text or nvml.error_name or 'a GPU does not answer'}"}
    unfit = [counter.text(place) for counter in dcgm.unfit(counters, nvml.gpus)]
    row: dict[str, Any] = {"gpus": len(nvml.gpus), "cannot_report": unfit}
    if answer is None:
        return row
    if answer.status:
        why = f"{scrape} does not answer; find the reason: journalctl -u nvidia-dcgm-exporter -n 50"
        return {**row, "no_answer": why}
    try:
        samples = dcgm.parse(answer.stdout, scrape or "")
    except GpustateError as error:
        return {**row, "no_answer": str(error)}
    missing = [counter.text for counter in dcgm.find_missing(samples, counters, nvml.gpus)]
    return {**row, "samples": len(samples), "missing": missing}


def _scrape(url: str) -> str:
    import shlex

    program = "import sys,urllib.request as r;sys.stdout.buffer.write(r.urlopen(sys.argv[1],timeout=20).read())"
    curl = f"curl -fsS --max-time 20 -- {shlex.quote(url)}"
    python = f"timeout -k 2 30 python3 -I -c {shlex.quote(program)} {shlex.quote(url)}"
    return f"if command -v curl >/dev/null; then {curl}; else {python}; fi"


def _page(rows: list[dict[str, Any]]) -> None:
    from gpustate.cli.show import show
    from gpustate.plan.render import Page

    page = Page()
    for row in rows:
        text = f"  {row['gpus']} GPUs" if "gpus" in row else ""
        if "samples" in row and not row["missing"]:
            text += ", the exporter reports every configured field of every GPU"
        page.add((row["name"], "bold"), text)
        for line in row.get("missing", []):
            page.add("  ", (f"missing: {line}", "red"))
        for line in row.get("cannot_report", []):
            page.add("  ", (f"cannot be reported: {line}", "yellow"))
        for key in ("no_answer", "error"):
            if key in row:
                page.add("  ", (row[key], "red"))
    show(page)
