"""``gpustate lint``: what of an Operator file will not do what its writer thinks."""

from __future__ import annotations

import click

from gpustate.cli import common
from gpustate.errors import EXIT_REFUSED, PolicyError

_FORMATS = click.Choice(["text", "json", "sarif"])


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--release",
    metavar="VERSION",
    help="Check against this Operator release (v24.9.0) [default: the release the files name, else the newest].",
)
@click.option("--strict", is_flag=True, help="Exit 5 also for a warning, not only for an error.")
@click.option(
    "--leaves", is_flag=True, help="List every field that is set, and whether it is supported."
)
@click.option("-o", "--output", type=_FORMATS, default="text", show_default=True)
@click.option("--out", metavar="FILE", help="Write to a file instead of standard output.")
def lint(
    files: tuple[str, ...],
    release: str | None,
    strict: bool,
    leaves: bool,
    output: str,
    out: str | None,
) -> None:
    """Check GPU Operator files: ClusterPolicy, NVIDIADriver, GPUCluster, Helm values; '-' is standard input.

    Reports unknown keys with a suggestion, deprecated ones, keys that the Operator ignores,
    contradictory settings, and the same in ConfigMaps beside the file. No node is contacted. The exit
    code is 5 if there is an error.
    """
    from gpustate import __version__
    from gpustate.files import TextFiles
    from gpustate.gpu_operator.lint import document, sarif
    from gpustate.gpu_operator.lint import lint as linted
    from gpustate.gpu_operator.lint.finding import Report, fails
    from gpustate.policies.loading import own_policy

    reader = TextFiles("policy", PolicyError, limit_mib=5)
    reports: list[Report] = []
    errors: list[PolicyError] = []
    for file in files:
        try:
            text = reader.text("/dev/stdin" if file == "-" else file)
            if own_policy(text, file):
                raise _own(file)
            reports.append(linted(text, file, release=release))
        except PolicyError as error:
            errors.append(error)
    if not reports:
        common.raise_all(errors)
    failed = fails(reports, strict=strict)
    if output == "json":
        text = common.as_json(document.as_data(reports, strict=strict, failed=failed))
    elif output == "sarif":
        text = common.as_json(sarif.as_sarif(reports, __version__))
    else:
        text = document.as_text(reports, leaves=leaves)
    common.write_out(text, out)
    common.raise_all(errors)
    if failed:
        common.finish(EXIT_REFUSED)


def _own(file: str) -> PolicyError:
    return PolicyError(
        "is a gpustate policy; lint checks files of the GPU Operator",
        place=file,
        fix=f"check it with: gpustate policy resolve {file}",
    )
