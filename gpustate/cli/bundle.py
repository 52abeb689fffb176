"""``gpustate bundle``: build offline bundles for air-gapped nodes."""

from __future__ import annotations

import difflib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpustate.cli import common
from gpustate.errors import EXIT_VALIDATION, UsageError
from gpustate.formats.words import quote

if TYPE_CHECKING:
    from gpustate.bundle.manifest import Manifest
    from gpustate.core.policy import Policy
    from gpustate.resolver.bundle_nodes import AnyCase

#: Suffixes of other kinds of files.
_ARCHIVES = frozenset({".zip", ".tgz", ".gz", ".xz", ".zst", ".bz2", ".7z", ".deb", ".rpm", ".iso"})


class _Bundle(common.Verbs):
    """``bundle POLICY`` builds a bundle; ``bundle check FILE`` verifies one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args:
            raise UsageError(
                "bundle: no policy",
                fix="build a bundle: gpustate bundle POLICY --out FILE.tar; or verify one: gpustate bundle check FILE",
            )
        if args[0] not in (*self.commands, "--help", "-h"):
            near = difflib.get_close_matches(args[0], self.commands, 1)
            if near and not os.path.lexists(args[0]):
                raise UsageError(
                    f"bundle: {quote(args[0])} is neither a file nor a verb",
                    fix=f"did you mean {near[0]!r}",
                )
            args = ["make", *args]
        return super().parse_args(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, cmd_name) or self.commands["make"]


@click.group(cls=_Bundle)
def group() -> None:
    """Offline bundles for air-gapped nodes. `bundle POLICY` builds one, `bundle check` verifies one."""


@group.command()
@common.policy_argument
@common.inventory_options
@common.policy_options
@common.lock_options
@click.option("--out", required=True, metavar="FILE", help="Output: FILE.tar or a directory.")
@click.option(
    "--for",
    "kinds",
    multiple=True,
    metavar="debian12/x86_64",
    help="Target distribution and architecture, instead of an inventory; repeatable.",
)
@click.option(
    "--sources",
    multiple=True,
    metavar="FILE",
    help="Repositories of the distribution, as in /etc/apt or /etc/yum.repos.d; instead of those of the nodes.",
)
@click.option(
    "--installed",
    multiple=True,
    metavar="FILE",
    help="Installed rpm packages of such nodes, with --for; see docs/bundle.md.",
)
@click.option(
    "--kernel",
    "kernels",
    multiple=True,
    metavar="RELEASE",
    help="Include the headers of this kernel.",
)
@click.option(
    "--package",
    "packages",
    multiple=True,
    metavar="NAME[=VERSION]",
    help="Include this package as well.",
)
@click.option("--gpu", "gpus", metavar="8xH100", help="GPUs of the nodes, with --for.")
@click.option("--cache", metavar="DIR", help="Cache directory for downloads.")
@click.option("-o", "--output", type=common.FORMATS, default="text", show_default=True)
def make(policy: str, out: str, kinds: tuple[str, ...], **options: Any) -> None:
    """Build an offline bundle: every package POLICY needs, with all dependencies.

    Nodes of the inventory are queried for distribution, kernels and installed packages; nothing is written
    there. This machine downloads the packages from the nodes' repositories. The same input gives the same bytes.
    """
    from gpustate.bundle import write
    from gpustate.resolver import bundle_nodes

    _check_name(out)
    common.check_out(out)
    made = common.load_policy(policy, options)
    bundle_nodes.check_policy(made)
    quiet = options["output"] == "json" or not sys.stderr.isatty()

    def say(text: str) -> None:
        if not quiet:
            click.echo(f"  {text}", err=True)

    cases = _cases(policy, made, kinds, options)
    cache = Path(options["cache"] or _cache())
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot create the cache directory ({error.strerror})", place=str(cache)
        ) from error
    bundle = write.prepare(bundle_nodes.select(cases, cache, say), cache, say)
    write.write(bundle, Path(out))
    _print_result(out, bundle.id, bundle.manifest, bundle.text, options["output"])


def _check_name(out: str) -> None:
    """Refuse a suffix of another archive format: the bundle would be a directory of that name."""
    path = Path(out)
    if path.suffix.lower() in _ARCHIVES and not path.is_dir():
        bare = path.name.split(".")[0] or "bundle"
        raise UsageError(
            f"a bundle cannot be a {path.suffix} file; it would become a directory of that name",
            place=f"--out {out}",
            fix=f"name it {path.with_name(bare)}.tar, or give the name of a directory",
        )


def _cases(
    source: str, policy: Policy, kinds: tuple[str, ...], options: dict[str, Any]
) -> list[AnyCase]:
    from dataclasses import replace

    from gpustate.resolver import bundle_nodes

    kernels = bundle_nodes.checked_kernels(options["kernels"])
    files, gpus = options["sources"], options["gpus"] or ""
    if kinds:
        if "-i" in sys.argv or "--inventory" in sys.argv:
            raise UsageError("--for and an inventory contradict each other", fix="give one of them")
        if len({kind.partition("/")[0] for kind in kinds}) > 1:
            raise UsageError(
                "--for names several distributions, but --sources belong to one",
                fix="build a bundle for each",
            )
        cases = [
            bundle_nodes.case_of_name(kind, policy, files, gpus, options["installed"])
            for kind in kinds
        ]
    else:
        for name, given in (("gpu", gpus), ("installed", options["installed"])):
            if given:
                raise UsageError(
                    f"--{name} needs --for; nodes of an inventory are queried",
                    fix=f"omit --{name}, or give --for instead of an inventory",
                )
        inventory = common.load_inventory(options)
        policy = common.locked(policy, inventory, source, options)
        cases = bundle_nodes.cases_of_nodes(
            inventory, policy, common.known_states(), options["forks"]
        )
        if files:
            cases = [bundle_nodes.with_sources(case, files) for case in cases]
    packages = tuple(options["packages"])
    return [
        replace(case, kernels=tuple({*case.kernels, *kernels}), packages=packages) for case in cases
    ]


def _cache() -> str:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(base, "gpustate", "bundle")


def _print_result(path: str, identity: str, manifest: Manifest, text: str, output: str) -> None:
    if output == "json":
        common.write_out(text)
        return
    for target in manifest.targets:
        for repository in target.repositories:
            mib = sum(file.size for file in repository.files) / (1 << 20)
            click.echo(
                f"{target.name}  {repository.name}  packages={len(repository.entries)} MiB={mib:.1f}"
            )
        for state, names in target.asked.items():
            click.echo(f"  {state}: {', '.join(names)}")
    click.echo(f"{path}: bundle {identity}")


@group.command()
@click.argument("file")
@click.option("-o", "--output", type=common.FORMATS, default="text", show_default=True)
def check(file: str, output: str) -> None:
    """Verify every file of the bundle FILE against its manifest."""
    from gpustate.bundle import reading
    from gpustate.bundle.manifest import to_text
    from gpustate.formats.words import printable

    bundle = reading.load(file)
    wrong = reading.check(bundle)
    if output == "json":
        common.write_out(
            common.as_json(
                {
                    "format": "gpustate.bundle-check/1",
                    "bundle": bundle.id,
                    "file": file,
                    "wrong": wrong,
                }
            )
        )
    elif wrong:
        for line in wrong:
            click.echo(printable(line))
        click.echo(
            f"{file}: {len(wrong)} errors; build it again: gpustate bundle POLICY --out {file}"
        )
    else:
        _print_result(file, bundle.id, bundle.manifest, to_text(bundle.manifest), "text")
        click.echo("All files match the manifest.")
    common.finish(EXIT_VALIDATION if wrong else 0)
