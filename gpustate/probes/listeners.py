"""Whether a service of ours can have the TCP address that it is to listen on, and who else has it.

A service whose port is taken, or whose address is not the node's, says so in its own log, after a start
that systemd counts as good; who has the port is in nobody's log.

Sources:
    proc(5): net/tcp, fd. Linux Documentation/networking/fib_trie.rst; ip-sysctl.rst (ip_nonlocal_bind).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator

from gpustate import shell
from gpustate.core.shared_probes import LISTENING
from gpustate.formats.dcgm import services
from gpustate.probes.gpu_clients import DEFINE_WHO, gpu_process

#: While the process ``$m`` itself has the port, that is all that is looked at.
_SCRIPT = DEFINE_WHO + shell.load("listeners", "gpustate.probes")
_ELSEWHERE = r"""
[ -n "${GPUSTATE_IMAGE-}" ] || [ ! -r /proc/net/fib_trie ] || grep -qs 1 /proc/sys/net/ipv4/ip_nonlocal_bind ||
  awk '/\|-- /{ a = $2 } /\/32 host LOCAL/ && a == "@HOST@" { f = 1 } END { exit !f }' /proc/net/fib_trie || echo elsewhere=1
"""


def script(port: int | None = None) -> str:
    """Print ``listener=...`` for each process that listens on a port, but for the process ``$m``.

    Args:
        port: its number; without one it is in ``$hp``, in four hexadecimal digits.
    """
    number = "$hp" if port is None else f"{port:04X}"
    return shell.fill(_SCRIPT, PORT=number, LISTENING=LISTENING)


def find_conflicts(rows: Iterable[str], host: str, unit: str) -> tuple[str, ...]:
    """Who keeps a service from its address, in words.

    Args:
        rows: what :func:`script` printed, without ``listener=``.
        host: IPv4 address it is to listen on; empty: every one.
        unit: of the service, which does not stand in its own way.
    """
    return tuple(dict.fromkeys(_conflicts(rows, host, unit)))


def _conflicts(rows: Iterable[str], host: str, unit: str) -> Iterator[str]:
    for row in rows:
        address, _, process_row = row.partition("|")
        bound_address = services.address_of(address.partition(":")[0])
        process = gpu_process(process_row)
        every = host == "" or (host == "0.0.0.0" and ":" not in bound_address)
        hinders = every or bound_address in (services.EVERYWHERE, host)
        if hinders and (process is None or process.unit != unit):
            yield describe_listener(process_row)


def describe_listener(row: str) -> str:
    """Who listens, in words; a row is what :func:`script` prints behind the address."""
    process = gpu_process(row)
    return process.description if process is not None else "a process that cannot be seen from here"


def elsewhere(host: str) -> str:
    """Script that prints ``elsewhere=1`` where no service of the node can listen on an IPv4 address."""
    if host in ("", services.EVERYWHERE, "0.0.0.0") or ipaddress.IPv4Address(host).is_loopback:
        return ""
    return shell.fill(_ELSEWHERE, HOST=host)


def ipv4(host: str) -> str:
    """An address as it is.

    Raises:
        ValueError: it is no IPv4 address.
    """
    try:
        return str(ipaddress.IPv4Address(host))
    except ValueError:
        raise ValueError(f"{host!r} is no IPv4 address") from None


__all__ = ["describe_listener", "elsewhere", "find_conflicts", "ipv4", "script"]
