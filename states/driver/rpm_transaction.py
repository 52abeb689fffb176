"""Asks dnf or zypper whether a set of packages can be installed, before anything is changed."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from gpustate import shell
from gpustate.core.queries import Answer, Query
from gpustate.ops.rpm import word
from gpustate.ops.rpmpackages import RPM_PACKAGES
from gpustate.ops.upload import RPM_REPOS
from gpustate.probes import repository_preview
from gpustate.states.driver.rpmscripts import LOCKED


@dataclass(frozen=True, slots=True)
class TransactionQuery(Query[str]):
    """What the solver has against a transaction, in its own words; empty where it has nothing, or cannot be asked.

    Args:
        manager: dnf or zypper.
        install: names and versions.
        remove: names.
        preview: sh that adds repositories that are not there yet below ``$T``.
    """

    manager: str
    install: tuple[tuple[str, str], ...]
    remove: tuple[str, ...]
    preview: str = ""

    @classmethod
    def of(
        cls, manager: str, install: Mapping[str, str], remove: tuple[str, ...], preview: str
    ) -> TransactionQuery:
        return cls(manager, tuple(install.items()), remove, preview)

    def script(self) -> str:
        words = " ".join(word(self.manager, *row) for row in self.install)
        names = shlex.join((*(name for name, _ in self.install), *self.remove))
        return (
            repository_preview.script(self.preview)
            + f"{RPM_PACKAGES}WANT={shlex.quote(words)}; GO={shlex.quote(' '.join(self.remove))}; BUNDLE={RPM_REPOS}\n"
            + f'RELEASED="{names} $({LOCKED})"\n'
            + shell.load("rpm_transaction", "gpustate.states.driver")
        )

    def parse(self, answer: Answer) -> str:
        return "" if repository_preview.failure(answer.text) else answer.text.strip()

    def placeholder(self) -> str:
        return ""
