"""What the steps that change containerd ask of it on the node: its dump, and its CRI plugins.

The steps themselves are :mod:`gpustate.ops.daemons`.
"""

from __future__ import annotations

import posixpath
import shlex
from dataclasses import dataclass

from gpustate.ops.daemons import Daemon
from gpustate.states.containerd.query import dump_function


def _q(word: str) -> str:
    return shlex.quote(word)


@dataclass(frozen=True, slots=True)
class Target:
    """One containerd on one node.

    Args:
        program, version, root_path: as observed.
        socket: where it answers.
        handler, binary: what is registered, or removed.
        own_default: the default runtime may change.
        own_runc: containerd does not know runc yet, and it comes with the handler.
        unit: its service.
    """

    program: str
    version: str
    root_path: str
    socket: str
    handler: str
    binary: str
    own_default: bool
    own_runc: bool = False
    unit: str = "containerd.service"

    def functions(self) -> str:
        """``dump``, ``others``, ``serves`` and ``working``."""
        return (
            f"v={_q(self.version)}\n"
            + dump_function(_q(self.program), _q(self.root_path))
            + _FUNCTIONS.format(
                handler=self.handler,
                binary=_q(self.binary),
                name=_q(posixpath.basename(self.binary)),
                own_runc="runc" if self.own_runc else self.handler,
                own_default="default_runtime_name" if self.own_default else "-",
                ctr=_q(posixpath.join(posixpath.dirname(self.program), "ctr")),
                socket=_q(self.socket),
            )
        )

    def daemon(self) -> Daemon:
        """What the steps are about."""
        return Daemon("containerd", self.unit, self.functions())


_FUNCTIONS = r"""
others() {{ # a dump on standard input, a line for each value that is neither empty nor ours
  t=
  while IFS= read -r l; do
    l=${{l#"${{l%%[! ]*}}"}}
    case $l in '['*) t=$l; continue ;; '') continue ;; esac
    case $t in *'.runtimes.{handler}]' | *'.runtimes.{handler}.'*) continue ;; esac
    case $t in *'.runtimes.{own_runc}]' | *'.runtimes.{own_runc}.'*) continue ;; esac
    case ${{l#*= }} in '""' | "''" | 0 | 0.0 | false | '[]' | '{{}}') continue ;; esac
    case $l in
      'imports = '*) [ -z "$t" ] && continue ;;
      'enable_cdi = '* | 'cdi_spec_dirs = '* | '{own_default} = '*) case $t in *cri*) continue ;; esac ;;
    esac
    printf '%s %s\n' "$t" "$l"
  done
}}
serves() {{
  t=; b={binary} n1={name}
  while IFS= read -r l; do
    l=${{l#"${{l%%[! ]*}}"}}
    case $l in '['*) t=$l; continue ;; esac
    case $t in
      *'.runtimes.{handler}.options]') case $l in
        "BinaryName = \"$b\"" | "BinaryName = '$b'" | "BinaryName = \"$n1\"" | "BinaryName = '$n1'") return 0 ;;
      esac ;;
    esac
  done
  return 1
}}
working() {{ # the state of the CRI plugins; fails when containerd does not answer
  c={ctr}; [ -x "$c" ] || c=$(command -v ctr) || {{ [ -S {socket} ]; return; }}
  a=$(timeout -k 2 5 "$c" -a {socket} plugins ls) || return 1
  printf '%s\n' "$a" | while read -r y i s; do
    case "$y $i" in 'io.containerd.grpc.v1 cri' | 'io.containerd.cri.v1 '*) s=${{s% }}; echo "$y $i ${{s##* }}" ;; esac
  done
}}
"""
