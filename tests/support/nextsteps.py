"""What a person can paste from a printed next step."""

from __future__ import annotations

import re

#: Programs that a next step may run.
PROGRAMS = (
    *("gpustate", "systemctl", "apt-get", "dnf", "dkms", "modprobe", "kill", "mokutil"),
    *("nvidia-smi", "nvidia-ctk", "nvidia-modprobe", "nvidia-container-runtime", "dcgmi"),
    *("kubectl", "scontrol", "ctr", "crictl", "docker", "echo quit"),
    *("journalctl", "dmesg", "lspci", "ldconfig", "ps", "ls", "ausearch", "setsebool"),
)
#: Those that only show something.
_SHOW = re.compile(
    r"(?:journalctl|dmesg|lspci|ldconfig -p|ps|ls|ausearch|nvidia-smi -q|ctr plugins|crictl info|kubectl (?:get|describe|logs)"
    r"|gpustate (?:matrix|status|health|explain|mig plan|dcgm)|mokutil --list)\b"
)
_COMMAND = re.compile(
    rf"(?:^|: |\(|; | or |then: |then )((?:{'|'.join(re.escape(name) for name in PROGRAMS)})(?: .*?)?)"
    r"(?=$|; |\)|, (?:and|or|then|which) |(?<! \|) or (?=\w+ )|: )"
)
#: What only the node can fill in.
_PLACEHOLDER = re.compile(r"\b(?:[A-Z]{3,}|MIG)\b(?!/)")


def commands(text: str) -> list[str]:
    """Every command in a text, in its order."""
    return [match[1].strip() for match in _COMMAND.finditer(text)]


def mending(text: str) -> list[str]:
    """Those that change something, with nothing left to fill in."""
    return [
        command
        for command in commands(text)
        if not _SHOW.match(command) and not _PLACEHOLDER.search(command)
    ]
