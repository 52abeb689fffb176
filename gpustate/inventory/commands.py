"""Variables from the output of commands: ``{{ lookup('pipe', 'sops -d --extract ["token"] secrets.yml') }}``.

This is the hook for secret stores: sops, HashiCorp Vault, pass, a cloud's own program. A command runs through
``sh -c`` in the current folder, at most once per run, and only if its value is needed. Its output, without
trailing blanks, is the value, and is treated as a secret.

Sources:
    Ansible, ``ansible.builtin.pipe``.
"""

from __future__ import annotations

import threading

from gpustate.formats.masking import remember
from gpustate.inventory import executable

_LOCK = threading.RLock()
_PRINTED: dict[str, str] = {}


def output_of(command: str) -> str:
    """The output of a command.

    Raises:
        InventoryError: it fails, takes too long, or prints no text.
    """
    with _LOCK:
        output = _PRINTED.get(command)
        if output is None:
            output = _PRINTED[command] = executable.shell(command).rstrip()
            remember(output)
        return output


def forget() -> None:
    """Run every command again; for tests."""
    _PRINTED.clear()
