"""Variables that a program prints: ``{{ lookup('pipe', 'sops -d --extract ["token"] secrets.yml') }}``.

The hook for every store of secrets there is: sops, HashiCorp Vault, pass, a cloud's own program. A command runs
through ``sh -c`` in the current folder, once a run whoever asks for it, and only when its value is needed; what
it prints, without the blanks at the end, is the value, and counts as a secret.

Sources:
    Ansible, ``ansible.builtin.pipe``.
"""

from __future__ import annotations

import threading

from gpustate.formats.masking import remember
from gpustate.inventory import executable

_ONE = threading.RLock()
_PRINTED: dict[str, str] = {}


def printed(command: str) -> str:
    """What a command prints.

    Raises:
        InventoryError: it fails, takes too long, or prints no text.
    """
    with _ONE:
        found = _PRINTED.get(command)
        if found is None:
            found = _PRINTED[command] = executable.shell(command).rstrip()
            remember(found)
        return found


def forget() -> None:
    """Run every command again; for tests."""
    _PRINTED.clear()
