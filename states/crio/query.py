"""What a node says about its CRI-O: one ask, so that a probe stays at one exec.

Sources:
    crio(8): ``--config``, ``--config-dir``; ``crio config`` prints what it makes of its files, with
    values that are its defaults as comments; ``crio status``.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpustate.core.queries import Answer, Query, ShippedFile
from gpustate.formats.crio import DROP_IN_NAME, FOLDER, MAIN_PATH, UNREAD_FOLDER
from gpustate.ops.daemon_seen import BLOBS, SECOND, owed, read_rows, served, unit_command
from gpustate.probes import cri_queries, cri_status

TOOLKIT_CONFIG = "/etc/nvidia-container-runtime/config.toml"


@dataclass(frozen=True, slots=True)
class Found:
    """One CRI-O as the node has it.

    Args:
        program: of the process or unit, else the one on PATH; empty when there is none.
        version: such as ``1.31.2``.
        active: ``ActiveState`` of the unit; empty without systemd or without the unit.
        enabled: its ``UnitFileState``.
        halted: its process, where a signal has stopped it.
        starting_s: for how long it has been starting, where that is too long.
        main_path, folder: the file and the folder it reads.
        files: path to text of all that lies there.
        originals: path to text as it was before gpustate; ``None`` for a file that was not there.
        links: those of the files that are symbolic links, to what they lead to.
        newer: files that were written after the service started.
        owed, served: the marks of that name.
        dump: what it makes of its files; empty when it could not say.
        error: why it could not.
        low_level: programs that NVIDIA's runtime would wrap, in its order, those that are there.
        unread: drop-ins for the handler in a folder that CRI-O does not read.
        cri: what the running process says; ``None`` where none was asked.
    """

    program: str = ""
    version: str = ""
    active: str = ""
    enabled: str = ""
    halted: str = ""
    starting_s: int = 0
    main_path: str = MAIN_PATH
    folder: str = FOLDER
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    originals: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    links: Mapping[str, str] = field(default_factory=dict[str, str])
    newer: tuple[str, ...] = ()
    owed: bool = False
    served: bool = False
    dump: str = ""
    error: str = ""
    low_level: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    cri: cri_status.CriStatus | None = None


@dataclass(frozen=True, slots=True)
class CrioQuery(Query[Found]):
    """How CRI-O is started here, what it reads, and what it makes of it.

    Args:
        unit: its service.
        drop_in: name of the file that is wholly ours.
        socket: where it answers.
    """

    unit: str
    drop_in: str = DROP_IN_NAME
    socket: str = "/var/run/crio/crio.sock"

    @property
    def ships(self) -> tuple[ShippedFile, ...]:
        """What asks the running process."""
        return cri_queries.SHIPS

    def script(self) -> str:
        script = _SCRIPT.replace("@OWED@", owed("crio")).replace("@SERVED@", served("crio"))
        for word, text in (
            ("@MAIN@", MAIN_PATH),
            ("@SECOND@", SECOND),
            ("@FOLDER@", FOLDER),
            ("@UNREAD@", UNREAD_FOLDER),
            ("@DROP_IN@", shlex.quote(self.drop_in)),
            ("@SOCKET@", shlex.quote(self.socket)),
        ):
            script = script.replace(word, text)
        return (
            cri_queries.CRI_SAYS + unit_command(self.unit) + BLOBS + low_level_function() + script
        )

    def parse(self, answer: Answer) -> Found:
        rows = read_rows(answer.out, "CRI-O's files", ("file", "dump", "error"))
        rows.only_files()
        active, enabled = rows.service
        return Found(
            program=rows.last("program"),
            version=rows.last("version"),
            active=active,
            enabled=enabled,
            halted=rows.halted,
            starting_s=rows.starting_s,
            main_path=rows.last("main") or MAIN_PATH,
            folder=rows.last("folder") or FOLDER,
            files=rows.blobs["file"],
            originals=rows.originals,
            links=rows.links,
            newer=rows.keys.get("newer", ()),
            owed="owed" in rows.keys,
            served="served" in rows.keys,
            dump=rows.blobs["dump"].get("", ""),
            error=rows.blobs["error"].get("", ""),
            low_level=rows.keys.get("low", ()),
            unread=rows.keys.get("unread", ()),
            cri=cri_status.read(rows.keys),
        )

    def placeholder(self) -> Found:
        return Found()


def low_level_function() -> str:
    """Define ``low_level``: the programs that NVIDIA's runtime would wrap, those that are there."""
    return _LOW_LEVEL.replace("@CONFIG@", TOOLKIT_CONFIG)


_LOW_LEVEL = r"""
low_level() { # the list in the toolkit's config.toml, else its default
  b=$(sed -n '/^[[:space:]]*runtimes[[:space:]]*=/,/\]/p' @CONFIG@ 2>/dev/null | grep -o '"[^"]*"' | tr -d '"')
  for b in ${b:-runc crun}; do command -v "$b" 2>/dev/null; done
}
"""

_SCRIPT = r"""
set -f; set -- $x; set +f
if [ -n "$m" ] && [ -r "/proc/$m/cmdline" ]; then
  a=$(tr '\0' ' ' <"/proc/$m/cmdline"); set -f; set -- $a; set +f
fi
p=; c=; d=
[ $# = 0 ] || { p=$1; shift; }
while [ $# != 0 ]; do
  case $1 in
    -c|--config) c=${2-} ;; -c=*|--config=*) c=${1#*=} ;;
    -d|--config-dir) d=${2-} ;; -d=*|--config-dir=*) d=${1#*=} ;;
  esac
  shift
done
# Of another program -c and -d may mean anything.
case $p in */crio) ;; *) p=$(command -v crio); case $c in /*) ;; *) c= ;; esac; case $d in /*) ;; *) d= ;; esac ;; esac
[ -n "$c" ] || c=@MAIN@
[ -n "$d" ] || d=@FOLDER@
printf 'main=%s\nfolder=%s\n' "$c" "$d"
[ -e @OWED@ ] && echo owed=1
[ -e "$G/@SERVED@" ] && echo served=1 && t=
@SECOND@
{ [ -f "$c" ] && printf '%s\n' "$c"; [ -d "$d" ] && find "$d" ! -name '.gpustate.*' \( -type f -o -type l \) 2>/dev/null; } | {
  set --; while IFS= read -r f; do [ -f "$f" ] && blob file "$f" "$f" && set -- "$@" "$f"; done
  known "$d/*"
  told
  [ $# = 0 ] || stat -c '%Y %n' -- "$@" | while read -r w f; do [ -n "$t" ] && [ "$w" -gt "$t" ] && echo "newer=$f"; done
}
for f in @UNREAD@/*; do [ -f "$f" ] && grep -qs nvidia "$f" && echo "unread=$f"; done
[ -x "$p" ] || exit 0
low_level | while IFS= read -r b; do echo "low=$b"; done
echo "program=$p"
odd "$c" "$d/"@DROP_IN@ || exit 0
v=$(timeout -k 2 20 "$p" --version); v=${v#* version }; v=${v%%[!0-9.]*}
echo "version=$v"
set --; [ -e "$c" ] && set -- --config "$c"
if o=$(timeout -k 2 20 "$p" "$@" --config-dir "$d" config 2>/dev/null); then printf 'dump=%s \n%s\n' "${#o}" "$o"
else o=$(timeout -k 2 20 "$p" "$@" --config-dir "$d" config 2>&1 >/dev/null); o=${o##*
}; printf 'error=%s \n%s\n' "${#o}" "$o"; fi
[ "${ua-}" != active ] || [ -n "$hl" ] || cri_says @SOCKET@
"""
