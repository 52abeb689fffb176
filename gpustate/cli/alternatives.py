"""What does the work of an option that does not exist."""

from __future__ import annotations

import click

_OPTIONS = {
    "--auto-approve": "--yes",
    "--exclude": "-l '!NODE'",
    "--no-lock": "--lock none",
    "--set-json": "--patch",
    "--set-string": """--set 'PATH="VALUE"'""",
    **dict.fromkeys(("--batch", "--batch-size", "--waves"), "--serial"),
    **{
        f"--{name}": f"--set rollout.{name.replace('-', '_')}=VALUE"
        for name in ("canary", "soak", "soak-pods", "spread", "window", "rollback-on-failure")
    },
    "--drain-timeout": "--set drain.timeout_s=600",
    "--grace-period": "--set drain.grace_period_s=60",
    "--pod-selector": "--set drain.pod_selector=SELECTOR",
    "--wait-selector": "--set drain.wait_selector=SELECTOR",
    "--wait-timeout": "--set drain.wait_timeout_s=600",
    "--webhook": "the variable GPUSTATE_WEBHOOK",
}

#: Of ``apply`` alone.
_OF_APPLY = {
    "--check": "gpustate plan",
    "--dry-run": "gpustate plan",
    "--out": "gpustate plan --out FILE",
}


def message(error: click.UsageError) -> str:
    """Click's message with the next step, where this module knows it."""
    ctx, text = error.ctx, error.format_message().removesuffix(".")
    if ctx is None:
        return text
    options = _OPTIONS | (_OF_APPLY if ctx.info_name == "apply" else {})
    if isinstance(error, click.NoSuchOption) and error.option_name in options:
        return f"{error.message.removesuffix('.')}; use: {options[error.option_name]}"
    _, extra, words = text.partition("Got unexpected extra argument")
    if extra and any(param.name == "limit" for param in ctx.command.params):
        text += f"; select nodes with -l {words.strip(' s()').replace(' ', ',')}"
    return text
