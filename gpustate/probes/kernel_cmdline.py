"""The kernel's command line: as it is now, and as the next boot will have it.

What an argument changes only a boot shows, so both are read: a node whose menu has the argument and whose
kernel does not waits for a reboot, and one whose menu was not rewritten would wait for ever.

Sources:
    grub-mkconfig(8) and its drop-ins on Debian and Ubuntu; proc(5), /proc/cmdline.
    :mod:`gpustate.formats.grub`.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpustate import shell
from gpustate.core.queries import Answer, Query
from gpustate.formats import grub

#: There while a drop-in was changed and the menu not yet: a run that was killed in between is seen.
PENDING = "/var/lib/gpustate/grub-pending"

_SCRIPT = shell.load("kernel_cmdline", "gpustate.probes")


@dataclass(frozen=True, slots=True)
class CommandLine:
    """The arguments of a node's kernels.

    Args:
        running: those of the kernel that runs.
        menu: release and arguments of each entry of GRUB's menu.
        way: who writes them: ``grub``, ``grubby``, a file, or "" when that is not known.
        pending: a drop-in was changed, and the menu not written since.
        drop_in: the owner's arguments file; ``None`` where there is none.
        cpu: vendor as /proc/cpuinfo has it.
    """

    running: tuple[str, ...] = ()
    menu: tuple[tuple[str, tuple[str, ...]], ...] = ()
    way: str = ""
    pending: bool = False
    drop_in: str | None = None
    cpu: str = ""

    def running_lacks(self, arguments: tuple[str, ...]) -> tuple[str, ...]:
        """Wanted arguments that the kernel that runs was not given."""
        return grub.lacking(self.running, arguments)

    def menu_lacks(self, arguments: tuple[str, ...]) -> tuple[str, ...]:
        """Wanted arguments that some entry of the menu lacks; all of them where there is no menu."""
        if not self.menu:
            return arguments
        rows = (grub.lacking(words, arguments) for _, words in self.menu)
        lacking_words = {word for row in rows for word in row}
        return tuple(word for word in arguments if word in lacking_words)

    def problem(self, arguments: tuple[str, ...]) -> str:
        """Why they cannot be given to the kernels of this node, and what to do; empty: they can."""
        opposite = dict.fromkeys(
            w for _, entry_words in self.menu for w in grub.conflicting(entry_words, arguments)
        )
        if opposite:
            return f"the kernel command line has {' '.join(opposite)}; remove it from /etc/default/grub"
        if self.way == "grub" or not (self.menu_lacks(arguments) or self.running_lacks(arguments)):
            return ""
        words = " ".join(arguments)
        if self.way == "grubby":
            return f"the kernel needs {words}; run: grubby --update-kernel=ALL --args='{words}', and reboot"
        return (
            f"the kernel needs {words}, and this node has no supported way to set its command "
            "line (no update-grub); add them to the boot loader's configuration"
        )


@dataclass(frozen=True, slots=True)
class CommandLineQuery(Query[CommandLine]):
    """Everything :class:`CommandLine` holds, in one fragment.

    Args:
        owner: state whose drop-in is read.
    """

    owner: str

    def script(self) -> str:
        path = grub.drop_in_path(self.owner)
        return shell.fill(_SCRIPT, PENDING=f"{PENDING}-{self.owner}", DROP=path)

    def parse(self, answer: Answer) -> CommandLine:
        keys: dict[str, str] = {}
        menu: list[str] = []
        drop: list[str] | None = None
        for line in answer.text.splitlines():
            if line.startswith("|") and drop is not None:
                drop.append(line[1:])
            elif line == "drop=":
                drop = []
            elif line.lstrip().startswith("linux"):
                menu.append(line)
            else:
                key, _, value = line.partition("=")
                keys.setdefault(key, value)
        return CommandLine(
            running=tuple(keys.get("running", "").split()),
            menu=grub.menu_arguments(menu),
            way=keys.get("way", ""),
            pending="pending" in keys,
            drop_in=None if drop is None else "".join(f"{line}\n" for line in drop),
            cpu=keys.get("cpu", ""),
        )

    def placeholder(self) -> CommandLine:
        return CommandLine()
