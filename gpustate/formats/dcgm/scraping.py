"""The sh fragment that fetches an exporter's metrics on the node.

A socket in bash takes a fifth of the time of Python or curl, and every distribution has bash. curl is the
fallback if bash gets no answer. HTTP 1.0 makes the response come in one piece.
"""

from __future__ import annotations

import shlex

from gpustate import shell

_ANSWER = r"""
exec 3<>"/dev/tcp/$1/$2" || exit 1
printf "GET %s HTTP/1.0\r\nHost: %s\r\n\r\n" "$3" "$1" >&3
IFS= read -r line <&3
case $line in *" 200"*) ;; *) exit 22 ;; esac
while IFS= read -r line <&3 && [ "${line%$'\r'}" ]; do :; done
exec cat <&3
"""


def script(host: str, port: int, path: str = "/metrics") -> str:
    """Return sh that prints an exporter's metrics, and fails if there is no response."""
    words = shlex.join((host, str(port), path))
    url = shlex.quote(f"http://{host}:{port}{path}")
    return (
        "{ b=$(command -v bash) && "
        f'timeout -k 2 30 "$b" -c {shlex.quote(_ANSWER)} bash {words} 2>/dev/null; }} || '
        # After a timeout curl would get no response either.
        f"{{ [ $? != 124 ] && curl -fsS --max-time 20 -- {url} 2>/dev/null; }}"
    )


def wait_script(unit: str, host: str, port: int) -> str:
    """Return sh that waits up to 20 s for an exporter that was just started, as a restart would start over.

    It was started at boot, or is restarted by systemd because its host engine, also just started, did not
    listen yet.
    """
    return shell.fill(_WAIT_FOR_METRICS, UNIT=unit, ASK=script(host, port))


_WAIT_FOR_METRICS = shell.load("settled", "gpustate.formats.dcgm")
