"""``gpustate policy convert`` and ``gpustate policy schema``: other formats of a policy, and the schema of its YAML."""

from __future__ import annotations

from typing import Any

import click

from gpustate.cli import common
from gpustate.cli.notes import print_notes
from gpustate.errors import EXIT_REFUSED, UsageError

FORMAT = "gpustate.converted/1"


@click.command()
@click.argument("policy", cls=common.PolicyArgument, required=False)
@click.option("--to", type=click.Choice(["yaml", "python"]), help="Output format.")
@common.policy_options
@click.option("--strict", is_flag=True, help="Refuse a loss, and keys without effect.")
@common.out_option("Write to a file, atomically.")
@click.option("-o", "--output", type=common.FORMATS, default="text", show_default=True)
def convert(
    policy: str | None, to: str | None, out: str | None, output: str, **options: Any
) -> None:
    """Convert POLICY to gpustate's YAML or Python.

    Settings that the format cannot express are listed on standard error and in comments at its top: the
    result is read again and compared with POLICY, value by value.

    With --strict, nothing is written if POLICY has a key without effect (exit code 1), or if something would be
    lost (exit code 5). With -o json, the text and what is lost are one document.
    """
    if policy is None or to is None:
        raise UsageError(
            "no policy" if policy is None else "no output format",
            fix=f"run, for example: gpustate policy convert {policy or 'policy.py'} --to yaml",
        )
    from gpustate.formats.words import printable
    from gpustate.policies.converting import convert as converted

    if out is not None:
        common.check_out(out)
    conversion = converted(common.load_policy(policy, options), to, policy)
    for line in conversion.lost:
        click.echo(printable(f"gpustate: not expressed: {line}"), err=True)
    print_notes(conversion.notes)
    if options["strict"] and conversion.lost:
        common.finish(EXIT_REFUSED)
    if output == "json":
        document = {
            "format": FORMAT,
            "to": to,
            "text": conversion.text,
            "lost": list(conversion.lost),
            "notes": list(conversion.notes),
        }
        common.write_out(common.as_json(document), out)
    else:
        common.write_out(conversion.text, out)


@click.command()
def schema() -> None:
    """Print the JSON Schema of policies in YAML, with all installed states, for an editor's completion."""
    from gpustate.policies.schemas import schema as policy_schema

    common.write_out(common.as_json(policy_schema()))
