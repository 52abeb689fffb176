"""What a node says about its containerd: one ask, so that a probe stays at one exec.

Which file containerd reads is known to its unit alone, so the fragment finds that out and goes on
from there. Costs two short runs of the containerd binary (version and dump) and a few forks.
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpustate.core.queries import Answer, Query, ShippedFile
from gpustate.core.shared_probes import KEPT
from gpustate.formats.containerd import ROOT_PATH, dump_arguments
from gpustate.ops.daemon_seen import BLOBS, SECOND, owed, read_rows, served, unit_command
from gpustate.probes import cri_queries, cri_status


def dump_function(program: str = '"$p"', root: str = '"$r"') -> str:
    """Define ``dump``: containerd's effective configuration; wants ``$v``, the version.

    Args:
        program, root: quoted for sh.
    """

    def call(root_text: str | None, version: str) -> str:
        words = dump_arguments("ROOT", root_text, version)
        return " ".join([program, *(root if word == "ROOT" else word for word in words)])

    return (
        "dump() {\n"
        f"  if [ ! -e {root} ]; then\n"
        f"    case $v in 1.*) set -- {call(None, '1.7')};; *) set -- {call(None, '2.1')};; esac\n"
        f"    case $v in 2.0.*) set -- {call(None, '2.0')};; esac\n"
        "  else\n"
        f"    case $v in 2.0.*) set -- {call('', '2.0')};; *) set -- {call('', '2.1')};; esac\n"
        "  fi\n"
        '  timeout -k 2 20 "$@"\n'
        "}\n"
    )


#: Where containerd answers unless told otherwise.
SOCKET = "/run/containerd/containerd.sock"
#: The file that is wholly ours, beside the one that containerd reads.
DROP_IN = "conf.d/99-nvidia.toml"


@dataclass(frozen=True, slots=True)
class Found:
    """One containerd as the node has it.

    Args:
        program: of the unit, else the one on PATH; empty when there is none.
        version: such as ``1.7.24~ds1``.
        active: ``ActiveState`` of the unit; empty without systemd or without the unit.
        enabled: its ``UnitFileState``.
        halted: its process, where a signal has stopped it.
        starting_s: for how long it has been starting, where that is too long.
        started_with: the file the unit starts it with.
        files: path to text: the file it reads, and all that lies in ``conf.d`` and ``config.d``.
        originals: path to text as it was before gpustate; ``None`` for a file that was not there.
        links: those of the files that are symbolic links, to what they lead to.
        newer: files that were written after the service started.
        owed, served: the marks of that name.
        dump: its effective configuration; empty when it could not say.
        error: why it could not.
        cri: what the running process says; ``None`` where none was asked.
    """

    program: str = ""
    version: str = ""
    active: str = ""
    enabled: str = ""
    halted: str = ""
    starting_s: int = 0
    started_with: str = ROOT_PATH
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    originals: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    links: Mapping[str, str] = field(default_factory=dict[str, str])
    newer: tuple[str, ...] = ()
    owed: bool = False
    served: bool = False
    dump: str = ""
    error: str = ""
    cri: cri_status.CriStatus | None = None


@dataclass(frozen=True, slots=True)
class ContainerdQuery(Query[Found]):
    """How containerd is started here, what it reads, and what it makes of it.

    Args:
        unit: its service.
        drop_in: a further file to read; ``None`` for none.
        socket: where it answers; ``None`` for the one its files name.
    """

    unit: str
    drop_in: str | None = None
    socket: str | None = None

    @property
    def ships(self) -> tuple[ShippedFile, ...]:
        """What asks the running process."""
        return cri_queries.SHIPS

    def script(self) -> str:
        more = shlex.quote(self.drop_in) if self.drop_in else ""
        drop = more or f'"$d/{DROP_IN}"'
        place = shlex.quote(posixpath.dirname(self.drop_in)) if self.drop_in else '"$d/conf.d"'
        return (
            cri_queries.CRI_SAYS
            + unit_command(self.unit)
            + BLOBS
            + KEPT
            + _SCRIPT.format(
                root=ROOT_PATH,
                owed=owed("containerd"),
                served=served("containerd"),
                second=SECOND,
                dump=dump_function(),
                drop=drop,
                more=more,
                place=place,
                socket=shlex.quote(self.socket or ""),
                default_socket=SOCKET,
            )
        )

    def parse(self, answer: Answer) -> Found:
        rows = read_rows(answer.out, "containerd's files", ("file", "dump", "error"))
        rows.only_files()
        active, enabled = rows.service
        return Found(
            program=rows.last("program"),
            version=rows.last("version"),
            active=active,
            enabled=enabled,
            halted=rows.halted,
            starting_s=rows.starting_s,
            started_with=rows.last("root") or ROOT_PATH,
            files=rows.blobs["file"],
            originals=rows.originals,
            links=rows.links,
            newer=rows.keys.get("newer", ()),
            owed="owed" in rows.keys,
            served="served" in rows.keys,
            dump=rows.blobs["dump"].get("", ""),
            error=rows.blobs["error"].get("", ""),
            cri=cri_status.read(rows.keys),
        )

    def placeholder(self) -> Found:
        return Found()


_SCRIPT = r"""
r=; p=; v=
set -f; set -- $x; set +f
[ $# = 0 ] || {{ p=$1; shift; }}
while [ $# != 0 ]; do
  case $1 in -c|--config) r=${{2-}} ;; -c=*|--config=*) r=${{1#*=}} ;; esac
  shift
done
# Of another program -c may mean anything.
case $p in */containerd) ;; *) p=$(command -v containerd); case $r in /*) ;; *) r= ;; esac ;; esac
[ -n "$r" ] || r={root}
d=${{r%/*}}
echo "root=$r"
[ -e {owed} ] && echo owed=1
[ -e "$G/{served}" ] && echo served=1
{second}
seen=; set --; i=
for f in "$r" "$d"/conf.d/*.toml "$d"/config.d/*.toml {place}/*.toml {more}; do
  [ -f "$f" ] || continue
  case "$seen" in *"|$f|"*) continue ;; esac
  seen="$seen|$f|"
  blob file "$f" "$f"; set -- "$@" "$f"
done
h=; w=$IFS; IFS='
'; set -f; for l in $(stat -c '%Y %s %y %z %i %n' -- "$@" "$p" 2>/dev/null); do
  h="$h$l;" f=${{l#* * * * * * * * * }}
  [ "$f" = "$p" ] || {{ [ -n "$t" ] && [ "${{l%% *}}" -gt "$t" ] && echo "newer=$f"; }}
done; IFS=$w; set +f
known "$d/*.toml" {place}"/*.toml"
told
[ -x "$p" ] || exit 0
echo "program=$p"
odd "$r" {drop} || exit 0
{dump}
version() {{ v=$(timeout -k 2 20 "$p" --version); v=${{v#* }}; v=${{v#* }}; v=${{v%% *}}; v=${{v#v}}; echo "version=$v"; }}
dumped() {{ version; o=$(dump) && printf 'dump=%s \n%s\n' "${{#o}}" "$o"; }}
# What it merges depends on the program and these files alone, unless a file imports others.
if [ $# != 0 ] && l=$(grep -hs '^[[:space:]]*imports' -- "$@"); then
  while IFS= read -r l; do case $l in *"[]"*|*"[\"$d/conf.d/*.toml\"]"*|*"['$d/conf.d/*.toml']"*) ;; *) i=1 ;; esac; done <<END
$l
END
fi
k=; [ -n "$i" ] || k=$h
kept containerd "$k" dumped || {{
  version >/dev/null; o=$(dump 2>&1 >/dev/null); o=${{o##*
}}; printf 'error=%s \n%s\n' "${{#o}}" "$o"; }}
[ "${{ua-}}" = active ] && [ -z "$hl" ] || exit 0
s={socket}
[ -n "$s" ] || [ $# = 0 ] || s=$(sed -n '/^[[:space:]]*\[grpc\]/,/^[[:space:]]*\[[^g]/s/^[[:space:]]*address[[:space:]]*=[[:space:]]*["'\'']\([^"'\'']*\).*/\1/p' "$@" | tail -n 1)
cri_says "${{s:-{default_socket}}}"
"""
