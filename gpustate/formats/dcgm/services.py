"""Units and command lines of the DCGM host engine and the exporter, as text and of running processes.

A process' configuration is read from its command line. So a file that was written but not read yet (a run
killed before the restart) is detected, and a changed comment needs no restart.

Sources:
    NVIDIA/DCGM: hostengine/src/HostEngineCommandLine.cpp (-b, -p and their defaults),
    config-files/systemd/nvidia-dcgm.service.in; NVIDIA/dcgm-exporter: README (flags),
    packaging/config-files/systemd/nvidia-dcgm-exporter.service; proc(5): net/tcp.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import shlex
from collections.abc import Iterable

from gpustate.formats.dcgm.counters import Counter
from gpustate.formats.numbers import hexadecimal

ENGINE_UNIT = "nvidia-dcgm.service"
ENGINE = "/usr/bin/nv-hostengine"
ENGINE_ADDRESS, ENGINE_PORT = "127.0.0.1", 5555
EVERYWHERE = "ALL"
EXPORTER_UNIT = "nvidia-dcgm-exporter.service"
EXPORTER = "/usr/bin/dcgm-exporter"
DIGEST = "GPUSTATE_DIGEST"
WRITTEN = "# Written by gpustate; changes are overwritten.\n"
_LISTENS = 0x0A


def engine_words(address: str, port: int) -> tuple[str, ...]:
    """Arguments of nv-hostengine: those of NVIDIA's unit, and values that differ from its defaults."""
    words = ["-n", "--service-account", "nvidia-dcgm"]
    if address != ENGINE_ADDRESS:
        words += ["-b", address]
    if port != ENGINE_PORT:
        words += ["-p", str(port)]
    return tuple(words)


def engine_drop_in(address: str, port: int) -> str:
    """Drop-in of the host engine's unit: its ordering, and an address other than the default."""
    lines = [
        "[Unit]",
        # Start after the GPUs are initialised and the fabric is complete.
        "After=systemd-modules-load.service nvidia-persistenced.service nvidia-fabricmanager.service",
        "After=gpustate-mig.service",
    ]
    if (address, port) != (ENGINE_ADDRESS, ENGINE_PORT):
        command = " ".join((ENGINE, *engine_words(address, port)))
        lines += ["[Service]", "ExecStart=", f"ExecStart={command}"]
    return WRITTEN + "\n".join(lines) + "\n"


def exporter_words(
    counters: str, listen: str, interval_ms: int, engine: str, jobs: str
) -> tuple[str, ...]:
    """Arguments of dcgm-exporter."""
    words = ["-f", counters, "-a", listen, "-c", str(interval_ms)]
    words += ["-r", engine] if engine else []
    return (*words, "--hpc-job-mapping-dir", jobs) if jobs else tuple(words)


def digest(counters: Iterable[Counter]) -> str:
    """Digest of the parsed counters file: comments and blanks do not count."""
    rows = [(counter.field.name, counter.type, counter.help) for counter in counters]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]


def exporter_drop_in(words: Iterable[str], mark: str, local_engine: bool) -> str:
    """Drop-in of the exporter's unit."""
    return WRITTEN + _exporter_body(words, mark, local_engine)


def exporter_unit(words: Iterable[str], mark: str, local_engine: bool) -> str:
    """A complete unit, if the package has none."""
    body = _exporter_body(words, mark, local_engine)
    head = body.replace("[Unit]\n", "[Unit]\nDescription=NVIDIA dcgm-exporter\n")
    return f"{WRITTEN}{head}\n[Install]\nWantedBy=multi-user.target\n"


def _exporter_body(words: Iterable[str], mark: str, local_engine: bool) -> str:
    after = "nvidia-persistenced.service nvidia-fabricmanager.service gpustate-mig.service"
    lines = ["[Unit]", f"After={after}"]
    if local_engine:
        lines += [f"Wants={ENGINE_UNIT}", f"After={ENGINE_UNIT}"]
    lines += [
        "[Service]",
        f"Environment={DIGEST}={mark}",
        "ExecStart=",
        f"ExecStart={shlex.join((EXPORTER, *words))}",
        # systemd considers the host engine started before it listens.
        "Restart=on-failure",
        "RestartSec=5",
    ]
    return "\n".join(lines) + "\n"


def words_after(command_line: str, program: str) -> tuple[str, ...] | None:
    """Arguments of a process, separated by blanks; ``None`` if it is another program."""
    words = command_line.split()
    for place, word in enumerate(words):
        if word.rpartition("/")[2] == program:
            return tuple(words[place + 1 :])
    return None


def override_error(path: str, unit: str, command: str) -> str:
    """The error and remedy for a unit whose command is overridden."""
    return (
        f"{path} sets the command of {unit} to {command!r} and overrides gpustate's drop-in: "
        "remove its ExecStart, then run systemctl daemon-reload"
    )


def listening(table: str, port: int) -> tuple[str, ...]:
    """Addresses that a port is bound to, from the rows of ``/proc/net/tcp`` and ``tcp6``."""
    addresses: set[str] = set()
    for line in table.splitlines():
        parts = line.split()
        if len(parts) < 4 or hexadecimal(parts[3]) != _LISTENS:
            continue
        address, _, number = parts[1].partition(":")
        if hexadecimal(number) == port:
            addresses.add(address_of(address))
    return tuple(sorted(addresses))


def address_of(text: str) -> str:
    """Decode an address of those rows. The kernel prints each 32 bits in host byte order, little-endian."""
    try:
        raw = b"".join(bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8))
        address = ipaddress.ip_address(raw)
    except ValueError:
        return text
    if address.is_unspecified:
        return EVERYWHERE
    return str(getattr(address, "ipv4_mapped", None) or address)
