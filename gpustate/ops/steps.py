"""The kinds of steps a state may yield.

Each is plain data; its ``script`` is what runs on the node, with the functions of
:mod:`gpustate.ops.library` at hand. Whatever a step may do twice it does harmlessly.
"""

from __future__ import annotations

import base64
import shlex
from dataclasses import dataclass, field

from gpustate.errors import PolicyError
from gpustate.model.step import Step
from gpustate.ops.units import DaemonReload, DisableUnit, EnableUnit, RestartUnit, StartUnit


def _q(word: str) -> str:
    return shlex.quote(word)


def _words(words: tuple[str, ...]) -> str:
    return " ".join(_q(word) for word in words)


def _checked_path(path: str) -> str:
    if not path.startswith("/") or any(ord(char) < 32 for char in path):
        raise PolicyError(f"{path!r} is no absolute path")
    return path


@dataclass(frozen=True, slots=True)
class PutText(Step):
    """Write a text file atomically, keeping its earlier bytes.

    Args:
        path: absolute; a symbolic link is refused, not followed.
        text: the whole new content.
        mode: permission bits; ``None`` keeps those of an existing file (0644 for a new one).
        owner: ``user:group``; ``None`` keeps that of an existing file (root:root for a new one).
        secret: the content is never printed.
    """

    path: str
    text: str
    mode: int | None = None
    owner: str | None = None
    secret: bool = False

    @property
    def label(self) -> str:
        return f"write {self.path}"

    def script(self) -> str:
        data = base64.encodebytes(self.text.encode("utf-8", "surrogateescape")).decode("ascii")
        mode = "-" if self.mode is None else f"{self.mode:04o}"
        owner = "-" if self.owner is None else _q(self.owner)
        path = _q(_checked_path(self.path))
        return f"base64 -d <<'END' | put {path} {mode} {owner}\n{data}END\n"


@dataclass(frozen=True, slots=True)
class RemoveFile(Step):
    """Remove a file or symbolic link, keeping its bytes for roll-back."""

    path: str

    @property
    def label(self) -> str:
        return f"remove {self.path}"

    def script(self) -> str:
        return f"take_away {_q(_checked_path(self.path))}"


@dataclass(frozen=True, slots=True)
class RestoreOriginal(Step):
    """Give a file back the bytes, owner and mode it had before gpustate first touched it."""

    path: str

    @property
    def label(self) -> str:
        return f"restore {self.path}"

    def script(self) -> str:
        return f"restore_original {_q(_checked_path(self.path))}"


@dataclass(frozen=True, slots=True)
class ForgetOriginal(Step):
    """Drop the kept original of a file that has been given back by other means."""

    path: str

    @property
    def label(self) -> str:
        return f"forget the kept copy of {self.path}"

    def script(self) -> str:
        return f"forget_original {_q(self.path)}"


@dataclass(frozen=True, slots=True)
class Run(Step):
    """Anything else, as a sh fragment that does nothing when there is nothing left to do.

    Args:
        text: the fragment; runs with ``set -e``.
        what: the label a person reads.
        timeout: seconds.
        running: it means something on a running system only (it talks to a service, to the kernel
            or to a GPU); an image leaves it to its first boot.
    """

    text: str
    what: str
    timeout: int = 300
    running: bool = False

    @property
    def label(self) -> str:
        return self.what

    @property
    def in_image(self) -> Step | None:
        return None if self.running else self

    @property
    def at_first_boot(self) -> Step | None:
        return self if self.running else None

    @property
    def timeout_s(self) -> int:
        return self.timeout

    def script(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class AptUpdate(Step):
    """Read the package lists, of all sources or of one list file only.

    Args:
        source_list: a file below /etc/apt/sources.list.d whose repository alone is read.
        roll_back: files that are put back as they were before this run when they cannot be read, for
            a repository that does not work stops every other use of apt.
    """

    source_list: str | None = None
    roll_back: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return f"read the package lists of {self.source_list or 'all repositories'}"

    def script(self) -> str:
        only = ""
        if self.source_list:
            only = (
                f" -o Dir::Etc::sourcelist={_q(self.source_list)}"
                " -o Dir::Etc::sourceparts=- -o APT::Get::List-Cleanup=0"
            )
        return (
            f"if apt_wait && apt update{only} -o APT::Update::Error-Mode=any; then exit 0; fi\n"
            + (f"roll_back {_words(self.roll_back)}\n" if self.roll_back else "")
            + "exit 1"
        )


@dataclass(frozen=True, slots=True)
class AptInstall(Step):
    """Install packages at exact versions in one transaction, wholly or not at all.

    Everything is downloaded before anything is unpacked. Where the transaction fails in the middle,
    what was installed before is installed again, and what came is purged.

    Args:
        packages: name and version; an empty version takes the candidate.
        hold: mark them all as held afterwards.
        remove: packages that leave in the same transaction.
        reinstall: packages whose files are put back even where the version is right.
        roll_back: files that go back with the packages, as they were before this run.
        timeout: seconds; building modules counts.
    """

    packages: tuple[tuple[str, str], ...]
    hold: bool = False
    remove: tuple[str, ...] = ()
    reinstall: bool = False
    roll_back: tuple[str, ...] = ()
    timeout: int = 3600

    @property
    def label(self) -> str:
        names = ", ".join(f"{n}={v}" if v else n for n, v in self.packages)
        return f"install {names}"

    @property
    def timeout_s(self) -> int:
        return self.timeout

    def script(self) -> str:
        wanted = [_q(f"{name}={version}" if version else name) for name, version in self.packages]
        wanted += [_q(f"{name}-") for name in self.remove]
        names = _words(tuple(name for name, _ in self.packages))
        again = "--reinstall " if self.reinstall else ""
        words = again + " ".join(wanted)
        back = f"roll_back {_words(self.roll_back)}"
        lines = [
            f"{{ apt_ready && apt_fetch {words}; }} || {{ {back}; exit 1; }}",
            f'apt_swap {words} || {{ [ -z "$ROLLED" ] || {back}; exit 1; }}',
        ]
        if self.hold:
            lines.append(f"apt_wait; apt-mark hold {names}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class AptHold(Step):
    """Mark packages as held, or no longer held."""

    packages: tuple[str, ...]
    hold: bool = True

    @property
    def label(self) -> str:
        return f"{'hold' if self.hold else 'release'} {', '.join(self.packages)}"

    def script(self) -> str:
        return f"apt_wait; apt-mark {'hold' if self.hold else 'unhold'} {_words(self.packages)}"


@dataclass(frozen=True, slots=True)
class AptRemove(Step):
    """Purge packages that are there; what others still need stays."""

    packages: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"remove {', '.join(self.packages)}"

    @property
    def timeout_s(self) -> int:
        return 1800

    def script(self) -> str:
        return (
            "apt_ready\n"
            f"apt purge --allow-change-held-packages {_words(self.packages)}\neffect removed"
        )


@dataclass(frozen=True, slots=True)
class RebuildInitramfs(Step):
    """Build the initramfs of some kernels, or of all, anew with the distribution's own tool."""

    kernels: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return f"rebuild the initramfs of {', '.join(self.kernels) or 'all kernels'}"

    @property
    def timeout_s(self) -> int:
        return 900

    def script(self) -> str:
        kernels = self.kernels or ("all",)
        debian = "\n".join(f"  update-initramfs -u -k {_q(kernel)}" for kernel in kernels)
        dracut = (
            "\n".join(f"  dracut --force --kver {_q(kernel)}" for kernel in self.kernels)
            or "  dracut --force --regenerate-all"
        )
        return (
            "if command -v update-initramfs >/dev/null; then\n" + debian + "\n"
            "elif command -v dracut >/dev/null; then\n" + dracut + "\n"
            'else fail "neither update-initramfs nor dracut is installed"; fi\neffect rebuilt'
        )


@dataclass(frozen=True, slots=True)
class LoadModules(Step):
    """Load kernel modules in order; already loaded ones are left alone."""

    modules: tuple[str, ...]
    optional: bool = False  # a failure is left to the next probe to judge

    @property
    def label(self) -> str:
        return f"load {', '.join(self.modules)}"

    @property
    def in_image(self) -> Step | None:
        return None

    @property
    def at_first_boot(self) -> Step | None:
        return self

    def script(self) -> str:
        lines = []
        for module in self.modules:
            name = module.replace("-", "_")
            otherwise = " || echo 'left for after the reboot'" if self.optional else ""
            lines.append(f"module_loaded {_q(name)} || modprobe {_q(module)}{otherwise}")
        return "\n".join([*lines, "effect loaded"])


@dataclass(frozen=True, slots=True)
class UnloadModules(Step):
    """Unload kernel modules in order; what is in use is left for the next probe to judge."""

    modules: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"unload {', '.join(self.modules)}"

    @property
    def in_image(self) -> Step | None:
        return None

    @property
    def at_first_boot(self) -> Step | None:
        return self

    def script(self) -> str:
        lines = [
            f"if module_loaded {_q(m.replace('-', '_'))}; then "
            f"modprobe -r {_q(m)} || rmmod {_q(m)} || echo {_q(m + ' is in use')}; fi"
            for m in self.modules
        ]
        return "\n".join([*lines, "effect unloaded"])


@dataclass(frozen=True, slots=True)
class Reboot(Step):
    """Ask for a reboot when everything else is done. Not part of a program: a barrier of the walk.

    Args:
        reason: half a sentence on what only a reboot settles.
        timeout: seconds the node may take to come back.
    """

    reason: str
    timeout: int = 900

    @property
    def label(self) -> str:
        return f"reboot: {self.reason}"

    @property
    def in_image(self) -> Step | None:
        return None

    @property
    def timeout_s(self) -> int:
        return self.timeout

    def script(self) -> str:
        raise NotImplementedError("a reboot is carried out by the walk, not by a program")


@dataclass(frozen=True, slots=True)
class Block:
    """The steps of one state, and the states whose failure keeps them from running."""

    state: str
    needs: tuple[str, ...]
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """What runs on a node, and what each of its step numbers means.

    Args:
        text: the sh program.
        files: further files of the run's folder: one script a step.
        steps: state and step by number; numbers start at 1.
    """

    text: str
    files: dict[str, str]
    steps: tuple[tuple[str, Step], ...] = field(default_factory=tuple[tuple[str, Step], ...])


def compile_program(blocks: tuple[Block, ...]) -> Program:
    """Put the steps of some states, in order, into one program. Reboots are left out."""
    lines = ["sweep"]
    files: dict[str, str] = {}
    steps: list[tuple[str, Step]] = []
    for block in blocks:
        lines.append(f"block {_q(block.state)} {_words(block.needs)}".rstrip())
        for one in block.steps:
            if isinstance(one, Reboot):
                continue
            steps.append((block.state, one))
            number = len(steps)
            files[f"step.{number}"] = f'. "$R/library"\nset -e\n{one.script()}\n'
            lines.append(f"step {number} {one.timeout_s}")
    lines.append("finish 0")
    return Program("\n".join(lines) + "\n", files, tuple(steps))


__all__ = [
    "AptHold",
    "AptInstall",
    "AptRemove",
    "AptUpdate",
    "Block",
    "DaemonReload",
    "DisableUnit",
    "EnableUnit",
    "ForgetOriginal",
    "LoadModules",
    "Program",
    "PutText",
    "Reboot",
    "RebuildInitramfs",
    "RemoveFile",
    "RestartUnit",
    "RestoreOriginal",
    "Run",
    "StartUnit",
    "UnloadModules",
    "compile_program",
]
