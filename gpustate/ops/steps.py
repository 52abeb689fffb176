"""Steps that a state may yield; those about packages and units are in ``apt``, ``rpm`` and ``units``.

Each is plain data; its ``script`` is what runs on the node, with the functions of
:mod:`gpustate.ops.library` at hand. Whatever a step may do twice it does harmlessly.
"""

from __future__ import annotations

import base64
import re
import shlex
from dataclasses import dataclass
from typing import ClassVar

from gpustate.core.step import Step
from gpustate.errors import PolicyError
from gpustate.ops.units import journal_command

_q, _words = shlex.quote, shlex.join
#: What every shell leaves as it is in a here-document.
_PLAIN = re.compile(r"[\t\n -~]*\n")

_STARTS = re.compile(r"systemctl (?:--?\S+ )*(?:start|restart|enable|add-wants) ([^;&|\n]*)")
_UNMASKS = re.compile(r"systemctl (?:--?\S+ )*unmask ([^;&|\n]*)")
_UNIT = re.compile(r"[\w.@:-]+\.(?:service|socket|timer|path)")


def _units(call: re.Pattern[str], text: str) -> tuple[str, ...]:
    words = (word for line in call.findall(text) for word in line.split())
    return tuple(word for word in words if _UNIT.fullmatch(word))


def _checked_path(path: str) -> str:
    if not path.startswith("/") or any(ord(char) < 32 for char in path):
        raise PolicyError(f"{path!r} is not an absolute path")
    return path


def _place(path: str) -> str:
    """What shows why a file cannot be changed: its owner and mode, those of its directory, and the space left."""
    folder = _q(path.rpartition("/")[0] or "/")
    return f"ls -ld {_q(path)} {folder}; lsattr -d {folder}; df -h {folder}"


@dataclass(frozen=True, slots=True)
class _FileStep(Step):
    """About one file, by its absolute path."""

    path: str

    @property
    def inspect(self) -> str:
        return _place(self.path)


@dataclass(frozen=True, slots=True)
class PutText(_FileStep):
    """Write a text file atomically, keeping its earlier bytes.

    Args:
        path: a symbolic link is refused, not followed.
        text: the whole new content.
        mode: permission bits; ``None`` keeps those of an existing file (0644 for a new one).
        owner: ``user:group``; ``None`` keeps that of an existing file where no mode is given, and is
            root:root otherwise.
        secret: the content is never printed, no copy of it or of what it replaces is kept, and other users
            never see it: ``mode`` and ``owner`` are its own from the first byte on.
    """

    text: str
    mode: int | None = None
    owner: str | None = None
    secret: bool = False

    @property
    def label(self) -> str:
        return f"write {self.path}"

    @property
    def writes(self) -> tuple[str, ...]:
        """The one."""
        return (self.path,)

    @property
    def early(self) -> bool:
        return not self.secret

    @property
    def starts(self) -> tuple[str, ...]:
        """A masked unit is a link to nothing, just where its file belongs."""
        folder, _, name = self.path.rpartition("/")
        return (name,) if folder == "/etc/systemd/system" else ()

    def script(self) -> str:
        if self.secret:
            content = base64.encodebytes(self.text.encode("utf-8", "surrogateescape")).decode(
                "ascii"
            )
            words = f"{_q(_checked_path(self.path))} {self.mode or 0o600:04o} {_q(self.owner or 'root:root')}"
            return f"base64 -d <<'END' | put_secret {words}\n{content}END\n"
        mode = "-" if self.mode is None else f"{self.mode:04o}"
        # A file with a mode of ours is ours.
        owner = ("-" if self.mode is None else "own") if self.owner is None else _q(self.owner)
        path = _q(_checked_path(self.path))
        # Plain text travels as it is, at the cost of a process less; in a shell of its own, for what
        # is around it has variables too.
        if _PLAIN.fullmatch(self.text) and "\nEND\n" not in f"\n{self.text}":
            return f"( put {path} {mode} {owner} ) <<'END'\n{self.text}END\n"
        data = base64.encodebytes(self.text.encode("utf-8", "surrogateescape")).decode("ascii")
        return f"base64 -d <<'END' | put {path} {mode} {owner}\n{data}END\n"


@dataclass(frozen=True, slots=True)
class RemoveFile(_FileStep):
    """Remove a file or symbolic link, keeping its bytes for roll-back."""

    @property
    def label(self) -> str:
        return f"remove {self.path}"

    @property
    def command(self) -> str:
        return f"rm {_q(self.path)}"

    def script(self) -> str:
        return f"take_away {_q(_checked_path(self.path))}"


@dataclass(frozen=True, slots=True)
class RemoveOwn(RemoveFile):
    """Remove a file that is wholly gpustate's: whatever was there before is not restored, nor kept."""

    def script(self) -> str:
        return f"{RemoveFile.script(self)}\nforget_original {_q(self.path)}"


def put_own(path: str, text: str | None, *, mode: int | None = 0o644) -> PutText | RemoveOwn:
    """Give a file that is wholly gpustate's its text; ``None`` removes it."""
    return RemoveOwn(path) if text is None else PutText(path, text, mode=mode)


@dataclass(frozen=True, slots=True)
class KeepOriginal(_FileStep):
    """Record a file as it is, or that there is none, before a package brings its own.

    A removal of the package deletes the file, whoever wrote it: restore the original after it.
    """

    @property
    def label(self) -> str:
        return f"record the original of {self.path}"

    @property
    def early(self) -> bool:
        return True

    def script(self) -> str:
        return f"keep {_q(_checked_path(self.path))}; effect kept"


@dataclass(frozen=True, slots=True)
class RestoreOriginal(_FileStep):
    """Give a file back the bytes, owner and mode it had before gpustate first touched it.

    Args:
        own: as it is now it is wholly gpustate's: where nothing is known of a time before, it is removed.
    """

    own: bool = False

    @property
    def label(self) -> str:
        return f"restore {self.path}"

    def script(self) -> str:
        path = _q(_checked_path(self.path))
        if not self.own:
            return f"restore_original {path}"
        return (
            f'hash_of {path}; if [ -e "$G/originals/$H.path" ]; then restore_original {path}\n'
            f"else take_away {path}; forget_original {path}; fi"
        )


@dataclass(frozen=True, slots=True)
class ForgetOriginal(Step):
    """Drop the kept original of a file that has been restored by other means."""

    path: str

    @property
    def label(self) -> str:
        return f"discard the original of {self.path}"

    def script(self) -> str:
        return f"forget_original {_q(self.path)}"


@dataclass(frozen=True, slots=True)
class Run(Step):
    """Anything else, as a sh fragment that does nothing when there is nothing left to do.

    Args:
        text: the fragment; runs with ``set -e``.
        what: the label a person reads.
        timeout: seconds.
        shown: the command at its heart, as a person would type it; empty: none.
        why: a read-only command that shows why it failed; empty: the journal of the first unit that it starts.
        joint: its transaction of packages brings those of later steps as well, by ``along`` of the library.
    """

    text: str
    what: str
    timeout: int = 300
    shown: str = ""
    why: str = ""
    joint: bool = False

    @property
    def label(self) -> str:
        return self.what

    @property
    def takes_along(self) -> bool:
        return self.joint

    @property
    def starts(self) -> tuple[str, ...]:
        return _units(_STARTS, self.text)

    @property
    def unmasks(self) -> tuple[str, ...]:
        return _units(_UNMASKS, self.text)

    @property
    def timeout_s(self) -> int:
        return self.timeout

    @property
    def command(self) -> str:
        return self.shown

    @property
    def inspect(self) -> str:
        units = _units(_STARTS, self.text)
        return self.why or (journal_command(units[0]) if units else "")

    def script(self) -> str:
        return self.text


class RunLive(Run):
    """The same for what talks to a service, to the kernel or to a GPU; an image leaves it to its first boot."""

    for_running: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class RebuildInitramfs(Step):
    """Build the initramfs of some kernels, or of all, anew with the distribution's own tool."""

    kernels: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return f"rebuild the initramfs of {', '.join(self.kernels) or 'all kernels'}"

    @property
    def command(self) -> str:
        return (
            "if command -v update-initramfs >/dev/null; then update-initramfs -u -k all; "
            "else dracut --force --regenerate-all; fi"
        )

    @property
    def inspect(self) -> str:
        return "df -h /boot; ls -l /boot; dkms status"

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
    """Load kernel modules in order; already loaded ones are left alone.

    Args:
        modules: their names.
        optional: a failure is left to the next probe to judge.
        wait_for_them: services that have failed, if they were started before the modules were there; started again.
    """

    for_running: ClassVar[bool] = True

    modules: tuple[str, ...]
    optional: bool = False
    wait_for_them: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return f"load {', '.join(self.modules)}"

    @property
    def command(self) -> str:
        return "; ".join(f"modprobe {_q(module)}" for module in self.modules)

    @property
    def inspect(self) -> str:
        return "dmesg | grep -iE 'nvidia|nvrm|nouveau|module' | tail -n 30"

    def script(self) -> str:
        lines = []
        for module in self.modules:
            name = module.replace("-", "_")
            otherwise = " || echo 'deferred until after the reboot'" if self.optional else ""
            lines.append(f"module_loaded {_q(name)} || modprobe {_q(module)}{otherwise}")
        lines += [
            f"! systemctl is-failed --quiet {_q(unit)} 2>/dev/null || "
            f"{{ systemctl reset-failed {_q(unit)}; systemctl start {_q(unit)} || :; }}"
            for unit in self.wait_for_them
        ]
        return "\n".join([*lines, "effect loaded"])


@dataclass(frozen=True, slots=True)
class UnloadModules(Step):
    """Unload kernel modules in order; what is in use is left for the next probe to judge."""

    for_running: ClassVar[bool] = True

    modules: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"unload {', '.join(self.modules)}"

    @property
    def command(self) -> str:
        return f"modprobe -r {_words(self.modules)}"

    @property
    def inspect(self) -> str:
        return "lsmod | grep -E 'nvidia|nouveau'; fuser -v /dev/nvidia*"

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

    @property
    def command(self) -> str:
        return "systemctl reboot"

    def script(self) -> str:
        raise NotImplementedError("a reboot is carried out by the walk, not by a program")
