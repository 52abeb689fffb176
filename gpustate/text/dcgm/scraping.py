"""The sh fragment that asks an exporter for its metrics, on the node, with what is there.

python3 with nothing but a socket is a third of the time of curl and always there where GPUs are asked
by NVML. HTTP 1.0 is asked for, so that the answer comes in one piece.
"""

from __future__ import annotations

import shlex

_PROGRAM = """
import socket, sys
host, port, path = sys.argv[1:4]
peer = socket.create_connection((host, int(port)), 20)
peer.sendall(("GET %s HTTP/1.0\\r\\nHost: %s\\r\\n\\r\\n" % (path, host)).encode())
data = b""
while True:
    more = peer.recv(65536)
    if not more:
        break
    data += more
head, _, body = data.partition(b"\\r\\n\\r\\n")
if b" 200" not in head.split(b"\\r\\n")[0]:
    sys.exit(22)
sys.stdout.buffer.write(body)
"""


def script(host: str, port: int, path: str = "/metrics") -> str:
    """Print the answer of an exporter; another exit status than 0 when there is none."""
    words = shlex.join((host, str(port), path))
    url = shlex.quote(f"http://{host}:{port}{path}")
    return (
        "if p=$(command -v python3); then "
        f'timeout -k 2 30 "$p" -I -S -c {shlex.quote(_PROGRAM)} {words} 2>/dev/null\n'
        f"else curl -fsS --max-time 20 -- {url} 2>/dev/null; fi"
    )


def settled(unit: str, host: str, port: int) -> str:
    """Wait up to 20 s for an exporter that has just been started: a restart would only begin anew.

    That is one of a boot a moment ago, or one that systemd starts again because its host engine did not
    listen yet.
    """
    return _SETTLED.replace("@UNIT@", unit).replace("@ASK@", script(host, port))


_SETTLED = r"""
[ -d /run/systemd/system ] || exit 0
read -r now _ </proc/uptime; n=0
while [ $n -lt 20 ]; do
  state=; since=0
  while IFS== read -r key value; do
    case $key in SubState) state=$value;; StateChangeTimestampMonotonic) since=$((value / 1000000));; esac
  done <<END
$(timeout -k 2 10 systemctl show -p SubState -p StateChangeTimestampMonotonic @UNIT@ 2>/dev/null)
END
  case $state in
    running) [ $((${now%.*} - since)) -lt 20 ] || break; { @ASK@; } | grep -q '^DCGM_' && break;;
    auto-restart|start*) ;;
    *) break;;
  esac
  n=$((n + 1)); sleep 1
done
:"""
