"""Build and cache the images of nodes: read-only overlay layers made with mmdebstrap.

An image is a stack of layers: the Debian root; on top, for ``debian13-containerd2`` containerd 2 of
unstable, for ``-containerd22`` to ``-containerd24`` and ``-crio`` a release of its own project, for ``-runtimes`` docker,
podman, crun, unattended-upgrades and needrestart, for ``-rpm`` dnf, rpm and zypper, for ``ubuntu2404``
what makes the root answer as Ubuntu; then the simulator's packages, and last slurmd for a lab with Slurm, that of
unstable for ``-slurm26``. A layer's folder name ends in a digest of its
inputs, so a changed recipe gets a new folder. A layer is built under another name and renamed, so an existing
folder is complete. The build has its own mount and pid namespaces: an interruption leaves nothing mounted or
running.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpustate.errors import LabError
from gpustate_lab import paths, programs
from gpustate_lab.command import end_running, progress, run, tail
from gpustate_lab.host import mounted_layers

if TYPE_CHECKING:
    from gpustate_lab import simulation

SCRIPTS = Path(__file__).with_name("scripts")
BUILD_TIMEOUT_S = 1200.0
#: A build dies with the controller process, since its lock is released then.
NAMESPACES = (
    "setpriv",
    "--pdeathsig",
    "KILL",
    "unshare",
    "--mount",
    "--pid",
    "--fork",
    "--kill-child",
    "--",
)

#: Packages of every root: build tools for DKMS, python3 for the simulator.
PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "openssh-server", "sudo", "iproute2", "procps", "kmod"),
    *("ca-certificates", "gnupg", "pciutils", "python3", "zstd", "containerd", "initramfs-tools"),
    *("dkms", "gcc", "make", "patch", "libc6-dev"),
)

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Recipe:
    """The recipe of an image.

    Args:
        suite: Debian release.
        distribution: the simulator's name of the distribution.
        scripts: files of ``scripts/``, run in an additional layer.
        programs: pinned module whose programs are in ``/run/gpustate-lab-repository`` for the scripts.
        unstable_slurm: Slurm is that of unstable.
        summary: one line of help.
    """

    suite: str
    distribution: str
    scripts: tuple[str, ...] = ()
    programs: str | None = None
    unstable_slurm: bool = False
    summary: str = ""

    @property
    def base(self) -> str:
        """Debian's release of the root, as the simulator names it."""
        return {"bookworm": "debian12", "trixie": "debian13"}[self.suite]

    @property
    def slurm_suite(self) -> str:
        """The Debian release of Slurm."""
        return "sid" if self.unstable_slurm else self.suite

    def slurm_script(self, name: str) -> str:
        """The script that installs daemons of Slurm."""
        first = (SCRIPTS / "unstable.sh").read_text() if self.unstable_slurm else ""
        return first + (SCRIPTS / name).read_text()

    @property
    def script_text(self) -> str:
        """The scripts, which read the distribution where that is another than the root's."""
        text = "".join((SCRIPTS / script).read_text() for script in self.scripts)
        return (
            text if self.distribution == self.base else f"distribution={self.distribution}\n{text}"
        )


@dataclass(frozen=True, slots=True)
class Prepared:
    """The prepared images and packages of a lab.

    Args:
        repository: the simulated packages.
        stacks: layers of each image, topmost first.
        slurm_head: layers of Slurm's head; empty without Slurm.
    """

    repository: simulation.Repository
    stacks: dict[str, tuple[Path, ...]]
    slurm_head: tuple[Path, ...] = ()


IMAGES = {
    "debian12": Recipe("bookworm", "debian12", summary="Debian 12, containerd 1.6"),
    "debian13": Recipe("trixie", "debian13", summary="Debian 13, containerd 1.7"),
    "debian13-containerd2": Recipe(
        "trixie",
        "debian13",
        ("containerd2.sh",),
        summary="Debian 13, containerd and runc from Debian unstable",
    ),
    "debian13-containerd22": Recipe(
        "trixie",
        "debian13",
        ("containerd.sh",),
        "containerd-2.2",
        summary="Debian 13, upstream containerd 2.2",
    ),
    "debian13-containerd23": Recipe(
        "trixie",
        "debian13",
        ("containerd.sh",),
        "containerd-2.3",
        summary="Debian 13, upstream containerd 2.3",
    ),
    "debian13-containerd24": Recipe(
        "trixie",
        "debian13",
        ("containerd.sh",),
        "containerd-2.4",
        summary="Debian 13, upstream containerd 2.4",
    ),
    "debian13-crio": Recipe(
        "trixie",
        "debian13",
        ("crio.sh",),
        "crio",
        summary="Debian 13, upstream CRI-O 1.34 in place of containerd",
    ),
    "debian13-slurm26": Recipe(
        "trixie",
        "debian13",
        unstable_slurm=True,
        summary="Debian 13, Slurm from Debian unstable, for --slurm",
    ),
    "debian12-runtimes": Recipe(
        "bookworm",
        "debian12",
        ("runtimes.sh",),
        summary="Debian 12, docker, podman, crun, unattended-upgrades and needrestart",
    ),
    "debian13-runtimes": Recipe(
        "trixie", "debian13", ("runtimes.sh",), summary="as debian12-runtimes, Debian 13"
    ),
    "debian12-rpm": Recipe(
        "bookworm", "debian12", ("rpm.sh",), summary="Debian 12, dnf, rpm and zypper"
    ),
    # With containerd, systemd and apt of the Debian release that is nearest.
    "ubuntu2204": Recipe(
        "bookworm",
        "ubuntu2204",
        ("ubuntu.sh",),
        summary="Debian 12 that identifies as Ubuntu 22.04",
    ),
    "ubuntu2404": Recipe(
        "trixie", "ubuntu2404", ("ubuntu.sh",), summary="Debian 13 that identifies as Ubuntu 24.04"
    ),
    "ubuntu2604": Recipe(
        "trixie", "ubuntu2604", ("ubuntu.sh",), summary="Debian 13 that identifies as Ubuntu 26.04"
    ),
    "ubuntu2204-runtimes": Recipe(
        "bookworm",
        "ubuntu2204",
        ("runtimes.sh", "ubuntu.sh"),
        summary="as ubuntu2204, with the programs of debian12-runtimes",
    ),
    "ubuntu2404-runtimes": Recipe(
        "trixie",
        "ubuntu2404",
        ("runtimes.sh", "ubuntu.sh"),
        summary="as ubuntu2404, with the programs of debian12-runtimes",
    ),
    "ubuntu2604-runtimes": Recipe(
        "trixie",
        "ubuntu2604",
        ("runtimes.sh", "ubuntu.sh"),
        summary="as ubuntu2604, with the programs of debian12-runtimes",
    ),
}


def recipe_of(image: str) -> Recipe:
    try:
        return IMAGES[image]
    except KeyError:
        raise LabError(
            f"image {image!r} does not exist", fix=f"choose one of {', '.join(IMAGES)}"
        ) from None


def prepare(
    images: Sequence[str],
    say: Say,
    *,
    slurm: bool = False,
    toolkits: Sequence[str] = (),
    cluster: Callable[[], None] | None = None,
) -> Prepared:
    """Build missing images and packages in parallel: one repository for each distribution of the images.

    Args:
        images: images of the nodes.
        say: called with lines of progress.
        slurm: add a layer with slurmd, and build the image of Slurm's head.
        toolkits: versions of NVIDIA's container toolkit beside the newest.
        cluster: builds the programs of its clusters.

    Raises:
        LabError: an image does not exist or cannot be built, or the images have different Slurm versions.
    """
    from gpustate_lab import simulation  # needs libraries, roots of Debian do not

    names = sorted(set(images))
    suites = sorted({recipe_of(image).slurm_suite for image in names})
    if slurm and len(suites) > 1:
        raise LabError(
            f"one Slurm cluster cannot span {' and '.join(suites)}: their Slurm versions are incompatible",
            fix="with --slurm, choose images of one Debian release",
        )
    distributions = sorted({recipe_of(image).distribution for image in names})
    folder = paths.repository_dir()
    # Every task has a thread from the beginning, so that a layer can wait for the packages.
    with ThreadPoolExecutor(max_workers=len(names) + 4) as pool:
        packages = pool.submit(simulation.build_repository, folder, distributions, say)
        stacks = {image: pool.submit(_stack, image, packages, say, slurm=slurm) for image in names}
        head = pool.submit(_slurm_head, recipe_of(names[0]), say) if slurm else None
        others: list[Future[None]] = [pool.submit(simulation.build_toolkits, folder, toolkits, say)]
        others += [pool.submit(cluster)] if cluster is not None else []
        try:
            tasks: list[Future[Any]] = [packages, *stacks.values(), *others]
            tasks += [head] if head is not None else []
            for task in wait(tasks, return_when=FIRST_EXCEPTION).done:
                task.result()
            built = {image: task.result() for image, task in stacks.items()}
            return Prepared(packages.result(), built, head.result() if head is not None else ())
        except BaseException:
            # Without this the pool would wait for running builds.
            end_running()
            raise


def _stack(
    image: str, packages: Future[simulation.Repository], say: Say, *, slurm: bool
) -> tuple[Path, ...]:
    from gpustate_lab import simulation

    recipe = recipe_of(image)
    stack: tuple[Path, ...] = (provide_base(recipe, say),)
    if recipe.scripts:
        script = recipe.script_text
        bound, content = None, ""
        if recipe.programs is not None:
            files = programs.provide(recipe.programs, say).values()
            bound = programs.common_folder(recipe.programs, files)
            content = programs.identity(files)
        stack = (_layer(image, stack, script, bound, content, say), *stack)
    repository = packages.result()
    script = simulation.install_script(repository, recipe.distribution)
    content = simulation.digest(repository, recipe.distribution)
    stack = (_layer(f"{image}-gpu", stack, script, repository.root, content, say), *stack)
    if slurm:
        script = recipe.slurm_script("slurmd.sh")
        stack = (_layer(f"{image}-slurmd", stack, script, None, "", say), *stack)
    return stack


def _slurm_head(recipe: Recipe, say: Say) -> tuple[Path, ...]:
    """Return the layers of Slurm's head: Debian with slurmctld, without simulated GPUs."""
    stack = (provide_base(recipe, say),)
    script = recipe.slurm_script("slurmctld.sh")
    name = f"{recipe.base}-{'slurm26' if recipe.unstable_slurm else 'slurmctld'}"
    return (_layer(name, stack, script, None, "", say), *stack)


def provide_base(recipe: Recipe, say: Say) -> Path:
    """Return the root of an image's Debian release; build it if it is missing.

    Raises:
        LabError: it cannot be built.
    """
    script = SCRIPTS / "base.sh"
    arguments = [recipe.suite, str(_downloads(recipe.base)), *PACKAGES]

    def build(folder: Path, log: Path) -> None:
        _build([str(script), str(folder / "root"), *arguments], log)

    digest = _digest(recipe.suite, *PACKAGES, script.read_text())
    return _cached(recipe.base, digest, build, say, "mmdebstrap")


def _layer(
    name: str, stack: tuple[Path, ...], script: str, bound: Path | None, content: str, say: Say
) -> Path:
    """Return a layer built by ``script``, with ``bound`` mounted; ``content`` identifies its content."""
    layer_script = SCRIPTS / "layer.sh"

    def build(folder: Path, log: Path) -> None:
        inside = folder / "script"
        inside.write_text(script)
        argv = [str(layer_script), str(folder / "root"), str(folder / "work")]
        argv += [":".join(map(str, stack)), str(_downloads(name)), str(inside)]
        _build(argv + ([str(bound)] if bound is not None else []), log)
        shutil.rmtree(folder / "work")

    digest = _digest(*map(str, stack), layer_script.read_text(), script, content)
    return _cached(name, digest, build, say, "one layer")


def _cached(
    name: str, digest: str, build: Callable[[Path, Path], None], say: Say, how: str
) -> Path:
    """Return ``<name>@<digest>/root``; call ``build`` if it does not exist."""
    layers = paths.cache_dir() / "layers"
    target = layers / f"{name}@{digest}"
    if target.exists():
        return target / "root"
    lock = paths.cache_dir() / "locks" / f"{name}.lock"
    with paths.locked(lock, wait_s=BUILD_TIMEOUT_S, what=f"the image {name}"):
        if target.exists():
            return target / "root"
        _prune(layers, name)
        folder = layers / f".{name}@{digest}.building"
        folder.mkdir(parents=True)
        log = paths.cache_dir() / f"{name}.log"
        log.write_text("")
        try:
            with progress(f"image {name}", f"building ({how})", say, lambda: _last_line(log)):
                build(folder, log)
            (folder / "root").chmod(0o755)
            folder.rename(target)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    return target / "root"


def _last_line(log: Path) -> str:
    """Return what mmdebstrap or apt does now, without mmdebstrap's ``I:``."""
    return tail(log.read_text(errors="replace"), 1).removeprefix("I: ")[:80]


def _build(argv: list[str], log: Path) -> None:
    # The caller's TMPDIR does not exist inside.
    run(["env", "-u", "TMPDIR", *NAMESPACES, "sh", *argv], timeout_s=BUILD_TIMEOUT_S, log=log)


def _prune(layers: Path, name: str) -> None:
    """Remove old versions of ``name`` and interrupted builds; the caller holds the lock."""
    in_use = mounted_layers()
    # A node that is off, or is being reset, has no mounts but needs its layers.
    records = [path.read_text() for path in paths.state_dir().glob("*/lab.json")]
    for folder in [*layers.glob(f"{name}@*"), *layers.glob(f".{name}@*.building")]:
        named = any(f'"{folder}/root"' in record for record in records)
        if folder / "root" not in in_use and not named:
            shutil.rmtree(folder, ignore_errors=True)


def _downloads(name: str) -> Path:
    """Return the download cache of a layer; apt locks it, so parallel builds need separate ones."""
    return paths.cache_dir() / "downloads" / name


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
