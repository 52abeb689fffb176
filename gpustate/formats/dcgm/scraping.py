"""The sh fragment that fetches an exporter's metrics on the node.

A socket in bash takes a fifth of the time of Python or curl, and every distribution has bash. curl is the
fallback if bash gets no answer. HTTP 1.0 makes the response come in one piece.
"""

from __future__ import annotations

import shlex

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
    return _SETTLED.replace("@UNIT@", unit).replace("@ASK@", script(host, port))


_SETTLED = r"""
[ -d /run/systemd/system ] || exit 0
read -r now _ </proc/uptime; at=$now
# What has run for long enough, or is stopped by a signal, is seen without a program: its first process' state, and
# when it began, in hundredths of a second.
for c in /sys/fs/cgroup /sys/fs/cgroup/systemd; do
  p=; l=; { read -r p <"$c/system.slice/@UNIT@/cgroup.procs" && read -r l <"/proc/$p/stat"; } 2>/dev/null || continue
  set -- ${l##*) }; case $1 in T*) exit 0 ;; esac; [ $((${now%.*} - ${20:-0} / 100)) -lt 20 ] || exit 0
done
while [ $((${at%.*} - ${now%.*})) -lt 20 ]; do
  state=; since=0; tries=0; engine=; up=0; i=
  while IFS== read -r key value; do
    case $i$key in
      '') i=2 ;;
      SubState) state=$value ;; StateChangeTimestampMonotonic) since=$((value / 1000000)) ;; NRestarts) tries=$value ;;
      2SubState) engine=$value ;; 2StateChangeTimestampMonotonic) up=$((value / 1000000)) ;;
    esac
  done <<END
$(timeout -k 2 10 systemctl show -p SubState -p StateChangeTimestampMonotonic -p NRestarts @UNIT@ nvidia-dcgm.service 2>/dev/null)
END
  case $state in
    running) [ $((${now%.*} - since)) -lt 20 ] || break; { @ASK@; } | grep -q '^DCGM_' && break;;
    # One that ended again and again, or whose host engine has been there for long, will not stay this time either.
    auto-restart|start*)
      [ "${tries:-0}" -lt 5 ] || break
      case $engine in start*) ;; running) [ $((${at%.*} - up)) -lt 20 ] || break ;; *) break ;; esac ;;
    *) break;;
  esac
  sleep 1; read -r at _ </proc/uptime
done
:"""
