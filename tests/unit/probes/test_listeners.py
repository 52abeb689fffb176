"""Who listens on a port: asked of this machine's own /proc, and judged against a service's address."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from gpustate.probes import listeners

WEB = "812|python3|33|www-data||0::/system.slice/web.service"
OWN = "900|dcgm-exporter|0|root||0::/system.slice/exporter.service"
WHO = "pid 812 (python3, user www-data, unit web.service)"


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_the_process_that_has_a_port_is_named_unless_it_is_the_service_itself(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as mine:
        mine.bind((address, 0))
        mine.listen()
        text = listeners.script(mine.getsockname()[1])

        def rows(own: str) -> list[str]:
            done = subprocess.run(
                ["sh", "-c", f"m={own}\n{text}"], capture_output=True, text=True, check=False
            )
            return [row.removeprefix("listener=") for row in done.stdout.splitlines()]

        (who,) = listeners.find_conflicts(rows(""), address, "exporter.service")
        command = Path("/proc/self/comm").read_text(encoding="utf-8").strip()
        assert who.startswith(f"pid {os.getpid()} ({command}, user ")
        assert rows("0") == rows("")
        assert rows(str(os.getpid())) == []
    assert rows("") == []


@pytest.mark.parametrize(
    ("row", "host", "found"),
    [
        (f"00000000:24B8|{WEB}", "", (WHO,)),
        (f"00000000:24B8|{WEB}", "10.0.0.7", (WHO,)),
        (f"0100007F:24B8|{WEB}", "", (WHO,)),
        (f"0100007F:24B8|{WEB}", "127.0.0.1", (WHO,)),
        (f"0100007F:24B8|{WEB}", "10.0.0.7", ()),
        (f"00000000000000000000000001000000:24B8|{WEB}", "", (WHO,)),
        (f"00000000000000000000000001000000:24B8|{WEB}", "0.0.0.0", ()),
        (f"00000000:24B8|{OWN}", "", ()),
        ("00000000:24B8", "", ("a process that cannot be seen from here",)),
    ],
)
def test_only_who_stands_in_the_way_is_named(row: str, host: str, found: tuple[str, ...]) -> None:
    assert listeners.find_conflicts([row, row], host, "exporter.service") == found


@pytest.mark.parametrize(
    ("host", "said"),
    [("", ""), ("ALL", ""), ("0.0.0.0", ""), ("127.8.0.1", ""), ("192.0.2.77", "elsewhere=1\n")],
)
def test_an_address_that_is_not_the_nodes_is_told(host: str, said: str) -> None:
    script = f"{listeners.elsewhere(host)}:"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == said


def test_what_is_no_address_is_an_error() -> None:
    assert listeners.ipv4("10.0.0.7") == "10.0.0.7"
    with pytest.raises(ValueError, match=r"'10\.0\.0' is no IPv4 address"):
        listeners.ipv4("10.0.0")
