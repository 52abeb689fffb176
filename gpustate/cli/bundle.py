"""``gpustate image bundle``: build offline bundles for air-gapped nodes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpustate.cli import common
from gpustate.cli.verbs import Verbs
from gpustate.errors import EXIT_VALIDATION, UsageError

if TYPE_CHECKING:
    from gpustate.bundle.manifest import Manifest

#: Suffixes of other kinds of files.
_ARCHIVES = frozenset({".zip", ".tgz", ".gz", ".xz", ".zst", ".bz2", ".7z", ".deb", ".rpm", ".iso"})


@click.group(cls=Verbs)
def group() -> None:
    """Build and verify offline bundles for air-gapped nodes. Use one: gpustate apply POLICY --bundle FILE."""


@group.command()
@common.policy_argument
@common.inventory_options
@common.change_options
@common.lock_options
@click.option("--out", required=True, metavar="FILE", help="Output: FILE.tar or a directory.")
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
@click.option("-o", "--output", type=common.FORMATS, default="text", show_default=True)
def make(policy: str, out: str, **options: Any) -> None:
    """Build an offline bundle: every package POLICY needs, with all dependencies.

    The first node of each distribution and architecture in the inventory fetches the packages with its own apt, dnf
    or zypper; nothing is installed. It has to have the repositories of POLICY. All nodes are queried for kernels.
    """
    import tempfile

    from gpustate.bundle import write
    from gpustate.package_sets import bundle_nodes

    _check_name(out)
    common.check_out(out)
    loaded = common.load_policy(policy, options)
    bundle_nodes.check_policy(loaded)
    kernels = bundle_nodes.checked_kernels(options["kernels"])
    quiet = options["output"] == "json" or not sys.stderr.isatty()

    def say(text: str) -> None:
        if not quiet:
            click.echo(f"  {text}", err=True)

    inventory = common.load_inventory(options)
    loaded = common.locked(loaded, inventory, policy, options)
    cases = bundle_nodes.cases_of_nodes(inventory, loaded, common.known_states(), options["forks"])
    # Beside the bundle, where there must be room for it.
    with tempfile.TemporaryDirectory(
        prefix=".gpustate-bundle-", dir=Path(out).absolute().parent
    ) as folder:
        bundle = write.prepare(
            bundle_nodes.select(cases, kernels, options["packages"], Path(folder), say)
        )
        write.write(bundle, Path(out))
    _print_result(out, bundle.id, bundle.manifest, bundle.text, options["output"])


def _check_name(out: str) -> None:
    """Refuse a suffix of another archive format: the bundle would be a directory of that name."""
    path = Path(out)
    if path.suffix.lower() in _ARCHIVES and not path.is_dir():
        stem = path.name.split(".")[0] or "bundle"
        raise UsageError(
            f"a bundle cannot be a {path.suffix} file; it would become a directory of that name",
            place=f"--out {out}",
            fix=f"name it {path.with_name(stem)}.tar, or give the name of a directory",
        )


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
        for state, names in target.requested.items():
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
            f"{file}: {len(wrong)} errors; build it again: gpustate image bundle make POLICY --out {file}"
        )
    else:
        _print_result(file, bundle.id, bundle.manifest, to_text(bundle.manifest), "text")
        click.echo("All files match the manifest.")
    common.finish(EXIT_VALIDATION if wrong else 0)
