"""A step: one action on a node, as data.

States yield steps, ``gpustate.ops`` has the kinds there are, and the engine compiles the steps of
a node into one program that runs there. So dry runs, the journal, roll-back and masking exist once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Step(ABC):
    """One action on a node. Carried out twice it must do no more than carried out once.

    Attributes:
        for_running: it means something on a running system only; an image leaves it to its first boot.
    """

    for_running: ClassVar[bool] = False

    @property
    @abstractmethod
    def label(self) -> str:
        """What it does, as a person says it: ``write /etc/modprobe.d/x.conf``."""

    @abstractmethod
    def script(self) -> str:
        """POSIX sh, run with ``set -e`` as root; the functions of ``ops.library`` are at hand."""

    @property
    def command(self) -> str:
        """The command at its heart, to be pasted into a root shell on the node; empty where there is none."""
        return ""

    @property
    def inspect(self) -> str:
        """A read-only command that shows why it failed, for the same shell; empty where there is none."""
        return ""

    @property
    def in_image(self) -> Step | None:
        """What of it is done where nothing runs, in an image that is baked; ``None``: nothing."""
        return None if self.for_running else self

    @property
    def at_first_boot(self) -> Step | None:
        """What of it is left for the first boot of such an image; ``None``: nothing."""
        return self if self.for_running else None

    @property
    def starts(self) -> tuple[str, ...]:
        """systemd units that it starts or enables, and which must not be masked for that."""
        return ()

    @property
    def writes(self) -> tuple[str, ...]:
        """Files that it writes, none of which may be a symbolic link."""
        return ()

    @property
    def unmasks(self) -> tuple[str, ...]:
        """systemd units that it unmasks: whoever masks and unmasks one knows what he does."""
        return ()

    @property
    def along(self) -> tuple[tuple[str, str], ...]:
        """Packages that may come in the transaction of an earlier step: as NAME=VERSION, and as the package manager's word."""
        return ()

    @property
    def takes_along(self) -> bool:
        """Its transaction brings the packages of later steps as well; where that fails, its own alone."""
        return False

    @property
    def early(self) -> bool:
        """It disturbs nothing, so that it may come before steps of other states."""
        return False

    @property
    def timeout_s(self) -> int:
        """Seconds after which a step counts as failed and is killed."""
        return 300
