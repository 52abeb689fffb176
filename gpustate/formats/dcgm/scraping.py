"""The sh fragment that asks an exporter for its metrics, on the node, with what is there.

bash with a socket of its own is a fifth of the time of Python or curl, and on every distribution; curl is
asked where bash gets no answer. HTTP 1.0 is asked for, so that the answer comes in one piece.
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
    """Print the answer of an exporter; another exit status than 0 when there is none."""
    words = shlex.join((host, str(port), path))
    url = shlex.quote(f"http://{host}:{port}{path}")
    return (
        "{ b=$(command -v bash) && "
        f'timeout -k 2 30 "$b" -c {shlex.quote(_ANSWER)} bash {words} 2>/dev/null; }} || '
        # One that takes the request and does not answer would not answer curl either.
        f"{{ [ $? != 124 ] && curl -fsS --max-time 20 -- {url} 2>/dev/null; }}"
    )


def settled(unit: str, host: str, port: int) -> str:
    """Wait up to 20 s for an exporter that has just been started: a restart would only begin anew.

    That is one of a boot a moment ago, or one that systemd starts again because its host engine, which
    has just been started too, did not listen yet.
    """
    return _SETTLED.replace("@UNIT@", unit).replace("@ASK@", script(host, port))


_SETTLED = shell.load("settled", "gpustate.formats.dcgm")
