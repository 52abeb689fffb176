"""The steps that change containerd on a node: remember, prove, restart.

They work where the plan cannot see: between reading the node and changing it. What containerd ran
with is kept on tmpfs until it has read something newer, whichever run that takes: so a run that is
killed between writing the files and restarting leaves the restart owed, and the run that makes good
for it can still roll back to what worked. A boot reads the files anyway and forgets the debt.
"""

from __future__ import annotations

import hashlib
import posixpath
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from gpustate import ops
from gpustate.states.containerd.ask import OWED, SERVED, dump_function

#: The folder that was made for the drop-in; below ``$G``.
_FOLDER = "containerd.folder"


def _q(word: str) -> str:
    return shlex.quote(word)


@dataclass(frozen=True, slots=True)
class Target:
    """One containerd on one node.

    Args:
        program, version, root_path: as observed.
        socket: where it answers.
        handler, binary: what is registered, or taken away.
        own_default: the default runtime may change.
    """

    program: str
    version: str
    root_path: str
    socket: str
    handler: str
    binary: str
    own_default: bool

    def functions(self) -> str:
        """``dump``, ``others`` (a dump without what is ours), ``serves`` and ``cri``."""
        return (
            f"w={OWED}; v={_q(self.version)}\n"
            + dump_function(_q(self.program), _q(self.root_path))
            + _FUNCTIONS.format(
                handler=self.handler,
                binary=_q(self.binary),
                own_default="default_runtime_name" if self.own_default else "-",
                ctr=_q(posixpath.join(posixpath.dirname(self.program), "ctr")),
                socket=_q(self.socket),
            )
        )


def remember(target: Target, files: Mapping[str, str | None], *, unread: bool) -> ops.Run:
    """Keep what containerd runs with, for roll-back by this run or the next.

    Args:
        target: the containerd.
        files: path to the text it will have; ``None`` when it goes away.
        unread: the service has yet to read what is there now.
    """
    rows = "".join(
        f"{_q(path)} {'-' if text is None else _digest(text)}\n" for path, text in files.items()
    )
    calls = "".join(f"remembered {row}" for row in rows.splitlines(keepends=True))
    mark = ': >"$w/unread"\n' if unread else ""
    text = target.functions() + _REMEMBER + mark + calls + _HAND_OVER
    return ops.Run(text, "keep what containerd runs with", 60)


def prove(target: Target, paths: tuple[str, ...], *, present: bool, compare: bool) -> ops.Run:
    """Ask the containerd binary what it makes of the new files, and put the old ones back if it is wrong.

    Args:
        target: the containerd.
        paths: files that were written.
        present: the handler must be in the dump.
        compare: everything that is not ours must be as before.
    """
    give_up = f"roll_back {' '.join(map(_q, paths))}; rm -rf $w; fail"
    lines = [
        target.functions(),
        'if ! dump >"$w/after" 2>"$w/why"; then',
        f'  m=$(tail -n 1 "$w/why"); {give_up} "containerd cannot read its new configuration: $m"',
        "fi",
    ]
    if compare:
        lines += [
            'if [ -s "$w/dump" ]; then',
            '  others <"$w/dump" | sort >"$w/others.before"; others <"$w/after" | sort >"$w/others.after"',
            '  if ! cmp -s "$w/others.before" "$w/others.after"; then',
            '    m=$(comm -3 "$w/others.before" "$w/others.after" 2>/dev/null | head -n 3)',
            f'    {give_up} "the new configuration would change more than the handler: $m"',
            "  fi",
            "fi",
        ]
    if present:
        lines += [
            'if ! serves <"$w/after"; then',
            f'  {give_up} "containerd does not see the handler in its new configuration"',
            "fi",
        ]
    return ops.Run("\n".join(lines), "have containerd read its new configuration", 120)


def settle(*, present: bool) -> ops.Run:
    """Without a restart nothing is owed: the service reads the files when it starts."""
    more = "" if present else f"\n{_FORGET}"
    return ops.Run(f"rm -rf {OWED}{more}", "forget what containerd ran with", 30)


@dataclass(frozen=True, slots=True)
class RestartContainerd(ops.RestartUnit):
    """Restart containerd, unless what it would read is what it runs with.

    Args:
        functions: those of :class:`Target`.
        present: note down that the handler is served; otherwise take the note away.
    """

    functions: str = ""
    present: bool = True

    def script(self) -> str:
        note = f': >"$G/{SERVED}"; sync "$G"' if self.present else _FORGET
        lines = [
            self.functions,
            "noted() {\n" + note + "\n}",
            "trap 'if [ $? = 0 ]; then noted; fi' EXIT",
        ]
        lines += [
            'if [ ! -e "$w/unread" ] && [ -s "$w/dump" ] && cmp -s "$w/dump" "$w/after"; then',
            '  rm -rf "$w"; echo "containerd runs with it already"; effect same; exit 0',
            "fi",
        ]
        # A dataclass with slots is made anew by its decorator, so super() would not find it.
        return "\n".join([*lines, ops.RestartUnit.script(self)])


def restart(
    target: Target, unit: str, paths: tuple[str, ...], *, present: bool
) -> RestartContainerd:
    """Restart ``unit``; it is healthy when it answers and its CRI plugin is as good as before."""
    return RestartContainerd(
        unit,
        healthy=_HEALTHY.format(unit=_q(unit)),
        roll_back=paths,
        functions=target.functions(),
        present=present,
    )


def first_start(target: Target, unit: str) -> ops.StartUnit:
    """At the first boot of an image: ``unit`` runs, answers, and serves the handler."""
    return ops.StartUnit(
        unit,
        healthy=target.functions()
        + f"systemctl is-active --quiet {_q(unit)} && cri >/dev/null && dump | serves",
    )


def require(binary: str) -> ops.Run:
    """Refuse to register a program that is not there: every pod of the handler would fail."""
    return ops.Run(
        f"[ -x {_q(binary)} ] || fail {_q(binary + ' is not there: put container-toolkit into the policy')}",
        f"look for {binary}",
        30,
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


_FUNCTIONS = r"""
others() {{ # a dump on standard input, a line for each value that is neither empty nor ours
  t=
  while IFS= read -r l; do
    l=${{l#"${{l%%[! ]*}}"}}
    case $l in '['*) t=$l; continue ;; '') continue ;; esac
    case $t in *'.runtimes.{handler}]' | *'.runtimes.{handler}.'*) continue ;; esac
    case ${{l#*= }} in '""' | "''" | 0 | 0.0 | false | '[]' | '{{}}') continue ;; esac
    case $l in
      'imports = '*) [ -z "$t" ] && continue ;;
      'enable_cdi = '* | 'cdi_spec_dirs = '* | '{own_default} = '*) case $t in *cri*) continue ;; esac ;;
    esac
    printf '%s %s\n' "$t" "$l"
  done
}}
serves() {{
  t=; b={binary}
  while IFS= read -r l; do
    l=${{l#"${{l%%[! ]*}}"}}
    case $l in '['*) t=$l; continue ;; esac
    case $t in
      *'.runtimes.{handler}.options]') case $l in "BinaryName = \"$b\"" | "BinaryName = '$b'") return 0 ;; esac ;;
    esac
  done
  return 1
}}
cri() {{ # the state of the CRI plugins; fails when containerd does not answer
  c={ctr}; [ -x "$c" ] || c=$(command -v ctr) || {{ [ -S {socket} ]; return; }}
  a=$(timeout -k 2 5 "$c" -a {socket} plugins ls) || return 1
  printf '%s\n' "$a" | while read -r y i s; do
    case "$y $i" in 'io.containerd.grpc.v1 cri' | 'io.containerd.cri.v1 '*) s=${{s% }}; echo "$y $i ${{s##* }}" ;; esac
  done
}}
"""

_FORGET = f"""rm -f "$G/{SERVED}"
if [ -e "$G/{_FOLDER}" ]; then rmdir "$(cat "$G/{_FOLDER}")" 2>/dev/null || :; rm -f "$G/{_FOLDER}"; fi"""

_REMEMBER = r"""
mkdir -p -m 0700 "$w" "$R/pre"
summed() { if [ -e "$1" ]; then sha256sum <"$1" | cut -c1-64; else echo -; fi; }
remembered() { # path, digest of the text it will have: what containerd has read stays kept
  k=$(sha "$1"); now=$(summed "$1")
  if [ -e "$w/$k.path" ] && [ "$now" != "$(cat "$w/$k.sum")" ] && [ "$now" != "$(summed "$w/$k")" ]; then
    rm -f "$w/$k.path" "$w/$k" # somebody else's since: theirs is what must not be lost
  fi
  printf %s "$2" >"$w/$k.sum"
  d=$(dirname "$1"); [ -d "$d" ] || printf %s "$d" >"$G/containerd.folder"
  if [ ! -e "$w/$k.path" ]; then
    rm -f "$w/$k"
    if [ -e "$1" ]; then cp -a "$1" "$w/$k.new"; mv -fT "$w/$k.new" "$w/$k"; fi
    printf %s "$1" >"$w/$k.new"; mv -fT "$w/$k.new" "$w/$k.path"
  fi
}
[ -e "$w/cri" ] || { cri >"$w/cri.new" || :; mv -fT "$w/cri.new" "$w/cri"; }
[ -e "$w/dump" ] || { dump >"$w/dump.new" 2>/dev/null || : >"$w/dump.new"; mv -fT "$w/dump.new" "$w/dump"; }
"""

_HAND_OVER = r"""
for q in "$w"/*.path; do
  [ -e "$q" ] || continue
  k=${q##*/}; k=${k%.path}; p=$(cat "$q")
  [ -e "$R/pre/$k.path" ] && continue
  case $(summed "$p") in "$(cat "$w/$k.sum")" | "$(summed "$w/$k")") ;; *) continue ;; esac
  if [ -e "$w/$k" ]; then cp -a "$w/$k" "$R/pre/$k"; fi
  cp "$q" "$R/pre/$k.path"
done
effect kept
"""

# What is on disk has been read once it is healthy, the new as well as what was rolled back.
_HEALTHY = r"""systemctl is-active --quiet {unit} || return 1
a=$(cri) || return 1
if [ "$a" != "$(cat "$w/cri" 2>/dev/null)" ]; then
  printf '%s\n' "$a" | while read -r y i s; do [ -z "$s" ] || [ "$s" = ok ] || exit 1; done || return 1
fi
rm -rf "$w" """
