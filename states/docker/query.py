"""What a node says about its docker daemon: one ask, so that a probe stays at one exec.

Which file the daemon reads and what its command line sets is read from the process where it runs, from
its unit where it does not. What it runs with it says itself, to its own client program.

Sources:
    dockerd(8). Docker Engine API, ``/info``: ``CDISpecDirs`` is empty where CDI is off, and unknown
    before 25.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpustate.core.queries import Answer, Query
from gpustate.formats.docker import CONFIG_PATH, File
from gpustate.formats.numbers import whole
from gpustate.formats.words import shown
from gpustate.ops.daemon_seen import BLOBS, owed, read_rows, unit_command

#: Keys of ``daemon.json`` that gpustate has set, a line each; below ``$G``.
OURS = "docker.ours"


@dataclass(frozen=True, slots=True)
class Found:
    """One docker daemon as the node has it.

    Args:
        program: of the process or unit, else the one on PATH; empty when there is none.
        version: such as ``26.1.5+dfsg1``.
        active: ``ActiveState`` of the unit; empty without systemd or without the unit.
        enabled: its ``UnitFileState``.
        halted: its process, where a signal has stopped it.
        starting_s: for how long it has been starting, where that is too long.
        arguments: of its command line, with the program.
        config_path: the file it reads.
        text: that file; ``None`` where there is none.
        ours, original: see :class:`gpustate.formats.docker.File`.
        kept: what the file was before gpustate is kept, be it that there was none.
        links: the file, where it is a symbolic link, to what it leads to.
        owed: it has yet to read a change of ours.
        runtimes: name to program, as it runs with them; empty when it does not say.
        default_runtime: what it runs with.
        live_restore: containers survive its restart.
        containers: how many run.
        cgroup_driver: ``systemd`` or ``cgroupfs``.
        cdi: it injects CDI devices; ``None`` when it does not say.
        mute: it runs, and gave its client no answer in 10 s.
    """

    program: str = ""
    version: str = ""
    active: str = ""
    enabled: str = ""
    halted: str = ""
    starting_s: int = 0
    arguments: tuple[str, ...] = ()
    config_path: str = CONFIG_PATH
    text: str | None = None
    ours: tuple[str, ...] = ()
    original: str | None = None
    kept: bool = False
    links: Mapping[str, str] = field(default_factory=dict[str, str])
    owed: bool = False
    runtimes: Mapping[str, str] = field(default_factory=dict[str, str])
    default_runtime: str = ""
    live_restore: bool = False
    containers: int = 0
    cgroup_driver: str = ""
    cdi: bool | None = None
    mute: bool = False

    def file(self) -> File:
        """Its configuration file, for the editor."""
        return File(
            self.config_path,
            self.text,
            self.ours,
            self.original,
            self.arguments[1:],
            self.version,
        )


@dataclass(frozen=True, slots=True)
class DockerQuery(Query[Found]):
    """How docker is started here, what it reads, and what it runs with.

    Args:
        unit: its service.
    """

    unit: str

    def script(self) -> str:
        script = _SCRIPT.replace("@OWED@", owed("docker")).replace("@OURS@", OURS)
        return unit_command(self.unit) + BLOBS + script.replace("@CONFIG@", CONFIG_PATH)

    def parse(self, answer: Answer) -> Found:
        rows = read_rows(answer.out, "docker's files", ("file",))
        rows.only_files()
        active, enabled = rows.service
        path = rows.last("config") or CONFIG_PATH
        says = rows.last("info").split()
        cdi = rows.last("cdi")
        return Found(
            program=rows.last("program"),
            version=rows.last("version"),
            active=active,
            enabled=enabled,
            halted=rows.halted,
            starting_s=rows.starting_s,
            arguments=rows.keys.get("arg", ()),
            config_path=path,
            text=rows.blobs["file"].get(path),
            ours=tuple(key for key in rows.keys.get("ours", ()) if key),
            original=rows.originals.get(path),
            kept=path in rows.originals,
            links=rows.links,
            owed="owed" in rows.keys,
            runtimes=rows.pairs("runtime"),
            default_runtime=says[0] if len(says) == 4 else "",
            live_restore=says[1:2] == ["true"],
            containers=whole(says[3]) or 0 if len(says) == 4 else 0,
            cgroup_driver=shown(says[2]).strip("'\"") if len(says) == 4 else "",
            cdi=None if not cdi else cdi not in ("null", "[]"),
            mute="mute" in rows.keys,
        )

    def placeholder(self) -> Found:
        return Found()


_SCRIPT = r"""
set -f; set -- $x; set +f
if [ -n "$m" ] && [ -r "/proc/$m/cmdline" ]; then
  tr '\0' '\n' <"/proc/$m/cmdline" | while IFS= read -r a; do printf 'arg=%s\n' "$a"; done
  a=$(tr '\0' ' ' <"/proc/$m/cmdline"); set -f; set -- $a; set +f
else
  for a in "$@"; do case $a in \$*) ;; *) printf 'arg=%s\n' "$a" ;; esac; done
fi
p=; c=
[ $# = 0 ] || { p=$1; shift; }
while [ $# != 0 ]; do
  case $1 in --config-file) c=${2-} ;; --config-file=*) c=${1#*=} ;; esac
  shift
done
case $p in */dockerd) ;; *) p=$(command -v dockerd) ;; esac
[ -n "$c" ] || c=@CONFIG@
echo "config=$c"
[ -e @OWED@ ] && echo owed=1
if [ -f "$c" ]; then blob file "$c" "$c"; fi
known "$c"
told
if [ -r "$G/@OURS@" ]; then while IFS= read -r k; do echo "ours=$k"; done <"$G/@OURS@"; fi
[ -x "$p" ] || exit 0
echo "program=$p"
odd "$c" || exit 0
v=$(timeout -k 2 20 "$p" --version); v=${v#* version }; v=${v%%,*}
echo "version=$v"
[ -n "$m" ] && [ -z "$hl" ] && d=$(command -v docker) || exit 0
unset DOCKER_HOST DOCKER_CONTEXT
more=; case $v in [0-9].*|1[0-9].*|2[0-4].*) ;; *) more='{{"\n"}}cdi={{json .CDISpecDirs}}' ;; esac
timeout -k 2 10 "$d" info --format 'info={{.DefaultRuntime}} {{.LiveRestoreEnabled}} {{.CgroupDriver}} {{.ContainersRunning}}{{range $k, $v := .Runtimes}}{{"\n"}}runtime={{$k}} {{$v.Path}}{{end}}'"$more" || [ $? != 124 ] || echo mute=1
"""
