"""Steps that give kernels an argument, or remove it, with GRUB's drop-ins.

The file of one owner holds its arguments and nothing else, so taking them away is removing a file. The
menu is written by update-grub; that it has to be is on disk before the drop-in changes.

Sources:
    grub-mkconfig(8), update-grub(8).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gpustate.core.step import Step
from gpustate.formats import grub
from gpustate.ops.steps import Run, put_own
from gpustate.probes.kernel_cmdline import PENDING


def set_arguments(owner: str, words: Iterable[str] | None) -> Iterator[Step]:
    """Give every kernel these arguments; ``None`` removes what the owner gave."""
    path, pending = grub.drop_in_path(owner), f"{PENDING}-{owner}"
    yield Run(
        f": >{pending}; sync {pending}; effect noted",
        "record that the GRUB menu must be regenerated",
        60,
    )
    yield put_own(path, None if words is None else grub.drop_in_text(owner, words))
    yield write_menu(owner)


def write_menu(owner: str) -> Step:
    """Let GRUB's menu be rewritten."""
    pending = f"{PENDING}-{owner}"
    return Run(
        f'update-grub >"$R/grub.log" 2>&1 || {{ tail -n 15 "$R/grub.log"; fail "update-grub failed; GRUB\'s menu is as it was"; }}\n'
        f"sync /boot/grub/grub.cfg; rm -f {pending}; effect written",
        "regenerate the GRUB menu",
        timeout=300,
    )
