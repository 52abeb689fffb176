"""What a person can paste from a printed next step."""

from __future__ import annotations

import re
import shlex

from commands import gpustate

from gpustate_lab.node import Node

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
    rf"(?:^|: |\(|; | or |, and |then: |then )((?:{'|'.join(re.escape(name) for name in PROGRAMS)})(?: .*?)?)"
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


#: Words of a sentence, which no command has; and what follows a command and is neither one nor a clause.
_PROSE = re.compile(r"(?<![-\w/.])(?:the|a|an|its|what|which|that|it|they|them|service)(?![-\w/.])")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_CONTINUED = re.compile(
    r", (?:(?:or|and|then) )*(-{1,2}\w[^;:)]*|the [^;:)]*|[a-z0-9.-]+(?=$|[,;:)]))"
)
_CLAUSES = ("apply", "reboot")


def untypeable(text: str) -> list[str]:
    """Commands of a text that cannot be typed as they stand: they go on in prose, or name several things to choose from."""
    bad = [command for command in commands(text) if _PROSE.search(_QUOTED.sub("", command))]
    for match in _COMMAND.finditer(text):
        more = _CONTINUED.match(text, match.end(1))
        if more is not None and more[1] not in _CLAUSES and not _COMMAND.match(more[1]):
            bad.append(f"{match[1]}{more[0]}")
    return bad


def follow(inventory: object, node: Node) -> list[str]:
    """Type the next step that ``explain`` prints, until it prints none; what was typed."""
    typed: list[str] = []
    while True:
        text = gpustate("explain", node.name, "-i", inventory).out
        printed = re.search(r"(?m)^ *next: (.*)$", text)
        if printed is None:
            assert "failed: " not in text, f"after {typed}: {text}"
            return typed
        step = next((step for step in mending(printed[1]) if step not in typed), None)
        assert step is not None, f"after {typed}: {text}"
        typed.append(step)
        words = shlex.split(step)
        if words[0] == "gpustate":
            gpustate(*words[1:], *(["--yes"] if words[1] == "apply" else []), code=0)
        else:
            node.run(step, timeout_s=300, check=False)
