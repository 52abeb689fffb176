"""What a node says about its containerd: one ask, so that a probe stays at one exec.

Which file containerd reads is known to its unit alone, so the fragment finds that out and goes on
from there. Costs two short runs of the containerd binary (version and dump) and a few forks.
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpustate import ProbeError
from gpustate.model.asks import Answer, Ask
from gpustate.text.containerd import ROOT_PATH, dump_arguments
from gpustate.text.numbers import whole

#: What containerd ran with before a change it has yet to read; on tmpfs, because a boot reads it.
OWED = "/run/gpustate/containerd"
#: gpustate has restarted this node's containerd for the handler; below ``$G``.
SERVED = "containerd.served"


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


@dataclass(frozen=True, slots=True)
class Found:
    """One containerd as the node has it.

    Args:
        program: of the unit, else the one on PATH; empty when there is none.
        version: such as ``1.7.24~ds1``.
        active: ``ActiveState`` of the unit; empty without systemd or without the unit.
        started_with: the file the unit starts it with.
        files: path to text: the file it reads, and all that lies in ``conf.d`` and ``config.d``.
        originals: path to text as it was before gpustate; ``None`` for a file that was not there.
        newer: files that were written after the service started.
        owed, served: the marks of that name.
        dump: its effective configuration; empty when it could not say.
        error: why it could not.
    """

    program: str = ""
    version: str = ""
    active: str = ""
    started_with: str = ROOT_PATH
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    originals: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    newer: tuple[str, ...] = ()
    owed: bool = False
    served: bool = False
    dump: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class AskContainerd(Ask[Found]):
    """How containerd is started here, what it reads, and what it makes of it.

    Args:
        unit: its service.
        drop_in: a further file to read; ``None`` for none.
    """

    unit: str
    drop_in: str | None = None

    def script(self) -> str:
        more = shlex.quote(self.drop_in) if self.drop_in else ""
        place = shlex.quote(posixpath.dirname(self.drop_in)) if self.drop_in else '"$d/conf.d"'
        return _SCRIPT.format(
            unit=shlex.quote(self.unit),
            root=ROOT_PATH,
            owed=OWED,
            served=SERVED,
            dump=dump_function(),
            more=more,
            place=place,
        )

    def parse(self, answer: Answer) -> Found:
        keys: dict[str, list[str]] = {}
        blobs: dict[str, dict[str, str]] = {"file": {}, "original": {}, "dump": {}, "error": {}}
        rest = answer.out
        while rest:
            row, _, rest = rest.partition(b"\n")
            key, _, value = row.decode("utf-8", "replace").partition("=")
            if key not in blobs:
                keys.setdefault(key, []).append(value)
                continue
            size, _, path = value.partition(" ")
            length = whole(size)
            if length is None or length > len(rest):
                raise ProbeError(f"the listing of containerd's files is torn at {value[:80]!r}")
            blobs[key][path] = rest[:length].decode("utf-8", "replace")
            rest = rest[length + 1 :]

        def last(key: str) -> str:
            return keys.get(key, [""])[-1]

        return Found(
            program=last("program"),
            version=last("version"),
            active=last("active") if "unit" in keys else "",
            started_with=last("root") or ROOT_PATH,
            files=blobs["file"],
            originals={**dict.fromkeys(keys.get("missing", [])), **blobs["original"]},
            newer=tuple(keys.get("newer", [])),
            owed="owed" in keys,
            served="served" in keys,
            dump=blobs["dump"].get("", ""),
            error=blobs["error"].get("", ""),
        )

    def stand_in(self) -> Found:
        return Found()


_SCRIPT = r"""
x=; t=; r=; p=; v=
if [ -d /run/systemd/system ]; then
  while IFS= read -r l; do
    case $l in
      LoadState=*) [ "$l" = LoadState=loaded ] && echo unit=1 ;;
      ActiveState=*) echo "active=${{l#*=}}" ;;
      ExecMainStartTimestamp=?*) t=$(date -d "${{l#*=}}" +%s) ;;
      ExecStart=*) l=${{l#*argv\[\]=}}; x=${{l%% ; *}} ;;
    esac
  done <<END
$(timeout -k 2 10 systemctl show -p LoadState -p ActiveState -p ExecMainStartTimestamp -p ExecStart {unit})
END
elif [ -n "${{GPUSTATE_IMAGE-}}" ]; then
  # What systemd will read when the image boots: the last of the unit's command lines.
  for f in /lib/systemd/system/{unit} /usr/lib/systemd/system/{unit} /etc/systemd/system/{unit} \
    /lib/systemd/system/{unit}.d/*.conf /usr/lib/systemd/system/{unit}.d/*.conf /etc/systemd/system/{unit}.d/*.conf; do
    [ -f "$f" ] || continue
    while IFS= read -r l; do case $l in ExecStart=?*) x=${{l#*=}} ;; esac; done <"$f"
  done
  while :; do case $x in [-@:+!]*) x=${{x#?}} ;; *) break ;; esac; done
fi
set -f; set -- $x; set +f
[ $# = 0 ] || {{ p=$1; shift; }}
while [ $# != 0 ]; do
  case $1 in -c|--config) r=${{2-}} ;; -c=*|--config=*) r=${{1#*=}} ;; esac
  shift
done
case $p in */containerd) ;; *) p=$(command -v containerd) ;; esac
[ -n "$r" ] || r={root}
d=${{r%/*}}
echo "root=$r"
[ -e {owed} ] && echo owed=1
[ -e "$G/{served}" ] && echo served=1
blob() {{ printf '%s=%s %s\n' "$1" "$(wc -c <"$3")" "$2"; cat "$3"; echo; }}
seen=
for f in "$r" "$d"/conf.d/*.toml "$d"/config.d/*.toml {place}/*.toml {more}; do
  [ -f "$f" ] || continue
  case "$seen" in *"|$f|"*) continue ;; esac
  seen="$seen|$f|"
  blob file "$f" "$f"
  [ -n "$t" ] && [ "$(stat -c %Y "$f")" -gt "$t" ] && echo "newer=$f"
done
for k in "$G"/originals/*.path; do
  [ -r "$k" ] || continue
  f=; IFS= read -r f <"$k"
  case $f in "$d"/*.toml|{place}/*.toml) ;; *) continue ;; esac
  if [ -e "${{k%.path}}" ]; then blob original "$f" "${{k%.path}}"; else echo "missing=$f"; fi
done
[ -x "$p" ] || exit 0
echo "program=$p"
v=$(timeout -k 2 20 "$p" --version); v=${{v#* }}; v=${{v#* }}; v=${{v%% *}}; v=${{v#v}}
echo "version=$v"
{dump}
if o=$(dump); then printf 'dump=%s \n%s\n' "${{#o}}" "$o"
else o=$(dump 2>&1 >/dev/null); o=${{o##*
}}; printf 'error=%s \n%s\n' "${{#o}}" "$o"; fi
"""
