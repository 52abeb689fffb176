"""Pages on standard output, with colours on a terminal."""

from __future__ import annotations

import os
import sys

import click

from gpustate.plan.render import Page

_COLOURS = {"green": "green", "yellow": "yellow", "red": "red", "cyan": "cyan"}


def coloured() -> bool:
    """Standard output is a terminal, and colours are not disabled (https://no-color.org)."""
    unwanted = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not unwanted


def show(page: Page) -> None:
    """Print a page."""
    if not coloured():
        click.echo(page.plain(), nl=False)
        return
    for line in page.lines:
        click.echo(
            "".join(
                click.style(
                    text,
                    fg=_COLOURS.get(style),
                    bold=True if style == "bold" else None,
                    dim=True if style == "dim" else None,
                )
                for text, style in line
            )
        )
