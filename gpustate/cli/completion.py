"""``gpustate help completion``: shell completion."""

from __future__ import annotations

import click


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print completion for SHELL; for bash: eval "$(gpustate help completion bash)"."""
    from click.shell_completion import get_completion_class

    from gpustate.cli.main import cli

    shell_class = get_completion_class(shell)
    if shell_class is None:
        raise click.ClickException(f"no completion for {shell}")
    click.echo(shell_class(cli, {}, "gpustate", "_GPUSTATE_COMPLETE").source())
