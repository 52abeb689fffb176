"""The scripts that start and follow a program on a node.

Pure. The script of :func:`start_script` takes the lock, writes the program, starts it detached and follows
it; that of :func:`follow_script` only follows. Each runs in one exec and prints lines that begin with a
nonce (``begin``, ``refused WHY``, ``done``, ``died``), and the journal between them.
"""

from __future__ import annotations

import base64
import json
import re
import shlex
from typing import TYPE_CHECKING, Any

from gpustate.core.encode import fingerprint
from gpustate.core.inventory import DEFAULT_STATE_FOLDER, InventoryNode
from gpustate.formats.masking import masked
from gpustate.ops import LIBRARY
from gpustate.remote import batch as batches

if TYPE_CHECKING:
    from gpustate.ops import Program


def archive(
    run: str, program: Program, node: InventoryNode, lock: dict[str, Any], keep_lock: bool
) -> str:
    """Return a script that writes all files of a program into ``$R``, with holder and reason."""
    return _shell_archive(
        {
            "library": LIBRARY,
            **program.files,
            "program": _program_text(run, program, node, str(lock["run"]), keep_lock),
            "info": json.dumps(lock, sort_keys=True) + "\n",
            "steps.json": json.dumps(
                [{"state": state, "label": masked(step.label)} for state, step in program.steps]
            ),
            "complete": "yes\n",
        }
    )


def start_script(
    run: str,
    node: InventoryNode,
    nonce: str,
    size: int,
    lock: dict[str, Any],
    *,
    take_over: str | None,
    after: str | None,
) -> str:
    """Return the script that starts a program; the archive of ``size`` compressed bytes follows it."""
    words = {
        "@NONCE@": nonce,
        "@RUN@": shlex.quote(run),
        "@SIZE@": str(size),
        "@LOCK@": shlex.quote(json.dumps(lock, sort_keys=True)),
        "@LOCKRUN@": shlex.quote(str(lock["run"])),
        "@EXPIRES@": str(int(lock["expires"])),
        "@TAKE@": shlex.quote(take_over or "-"),
        "@AFTER@": shlex.quote(after or "-"),
        "@TOKEN@": nonce.rpartition("-")[2],
        "@UNIT@": _unit_suffix(node),
        "@OFFSET@": "0",
    }
    return batches.prologue(node) + _filled(_START, words)


def follow_script(run: str, node: InventoryNode, nonce: str, offset: int) -> str:
    """Return the script that follows a program from a byte offset; refuses an unknown run."""
    return (
        batches.prologue(node)
        + f"RUN={shlex.quote(run)}; R=$G/runs/$RUN; N={nonce}; O={offset}\nprintf '\\n%s begin\\n' $N\n"
        + f"[ -d $R ] || {{ printf '%s refused no-run\\n' $N; exit 1; }}\n{_FOLLOW}"
    )


def _program_text(
    run: str, program: Program, node: InventoryNode, lock: str, keep_lock: bool
) -> str:
    return (
        f"G={shlex.quote(node.state_folder)}; RUN={shlex.quote(run)}; R=$G/runs/$RUN; LOCK={shlex.quote(lock)}\n"
        f"PROC={shlex.quote(node.proc_root)}; SYS={shlex.quote(node.sys_root)}\n"
        + ("KEEP_LOCK=1\n" if keep_lock else "")
        + "export G RUN R PROC SYS LOCK\n"
        "# Somebody who starts the same run twice gets the one that is there.\n"
        'if mkdir "$R/begun" 2>/dev/null; then printf "%s\\n" $$ >"$R/begun/pid"; else\n'
        '  n=0; until [ -s "$R/journal" ] || [ $n -ge 100 ]; do sleep 0.2; n=$((n + 1)); done\n'
        '  [ ! -s "$R/journal" ] && ! { read -r p <"$R/begun/pid" && kill -0 "$p"; } || exit 0\n'
        "fi\n"
        'printf "%s\\n" $$ >"$R/pid.new" && mv "$R/pid.new" "$R/pid"\n'
        '. "$R/library"\n'
        '[ ! -s "$J" ] || exit 0\n'
        """now; entry '{"e":"start","t":'"$NOW"'}'\n"""
        # The start-up of the program is told apart from its end even when it is killed at once.
         + program.text
    )


def _filled(text: str, words: dict[str, str]) -> str:
    # In one pass: a replacement is never replaced again.
    return re.sub("@[A-Z]+@", lambda found: words.get(found[0], found[0]), text)


def _unit_suffix(node: InventoryNode) -> str:
    """Distinguish units where several state folders share one systemd."""
    folder = node.state_folder
    return "" if folder == DEFAULT_STATE_FOLDER else f"-{fingerprint(folder)}"


def _shell_archive(files: dict[str, str]) -> str:
    """Return a script that writes files into ``$R``; their content is base64, never executed."""
    parts = []
    for name, text in files.items():
        data = base64.encodebytes(text.encode("utf-8", "surrogateescape")).decode("ascii")
        parts.append(f"base64 -d >$R/{name} <<'END' || exit 75\n{data}END\n")
    return "".join(parts)


# What runs in the exec that starts a program. Order matters: everything must have arrived before anything
# is done, then lock, then files, then start, then follow. The connection may break anywhere, and what was
# sent over it may arrive much later, or while a second attempt for the same run is under way: whatever a
# controller knew when it looked is checked again under the lock, and nothing of another attempt is touched.
_START = r"""
RUN=@RUN@; R=$G/runs/$RUN; N=@NONCE@; O=@OFFSET@; W=$R.@TOKEN@.new; AFTER=@AFTER@
printf '\n%s begin\n' $N
own() { [ "$(cat $G/lock/run)" = @LOCKRUN@ ]; }
held() { own || refuse "lock held $(cat $G/lock/info)"; }
mine() { [ "$(cat $G/lock/token)" = @TOKEN@ ]; }
refuse() { mine && rm -rf $G/lock; rm -rf "$W"; printf '%s refused %s\n' $N "$*"; exit 1; }
newest() { n=$(ls -1t $G/runs | grep -v '\.new$' | head -n 1); n=${n:-none}; }
# Whoever held the lock meanwhile has cleared away what attempts without a lock had written: that is no full disk.
full() {
  [ -d $W ] || { [ ! -d $G/lock ] || held; newest; refuse "overtaken $n"; }
  refuse "the disk of $G is full ($*); make room and run again"
}
A=$(head -c @SIZE@ | gzip -dc) || exit 1
mkdir -p -m 0700 $G $G/runs || refuse "$G cannot be made (read-only or full disk?)"
if [ ! -d $R ]; then
  # Is there room for the program, the journal and what has to be kept?
  mkdir -m 0700 $W || { [ -w $G ] || refuse "$G is read-only; mount it for writing and run again"
    refuse "the disk of $G is full (no folder can be made); make room and run again"; }
  dd if=/dev/zero of=$W/room bs=65536 count=32 && sync $W/room || full "2 MiB are needed"
  rm -f $W/room
  # The lock: a folder that appears whole, by renaming.
  L=$W/lock; mkdir $L && printf %s @LOCK@ >$L/info && printf %s @LOCKRUN@ >$L/run && printf %s @EXPIRES@ >$L/expires && printf %s @TOKEN@ >$L/token || full "the lock cannot be written"
  h=; d=; [ -d $G/lock ] && d=1 && h=$(cat $G/lock/run)
  if [ $d ] && [ "$h" != @LOCKRUN@ ]; then
    e=$(cat $G/lock/expires)
    if [ "$h" != @TAKE@ ] && [ "$e" -gt "$(date +%s)" ]; then held
    # Only what was found expired or dead is broken, not what somebody has put in its place meanwhile.
    elif mv -T $G/lock $W/broken && [ "$(cat $W/broken/run)" != "$h" ]; then mv -T $W/broken $G/lock; held
    fi
    rm -rf $W/broken
  fi
  if own; then
    # Kept from the stage before, or taken by another attempt of this run: renewed.
    for f in info expires token; do cp $L/$f $G/lock/.$f && mv -f $G/lock/.$f $G/lock/$f; done
  else
    mv -T $L $G/lock || held
  fi
  rm -rf $L
  # An order that was held up on its way must not be carried out after somebody else's.
  newest
  [ "$AFTER" = - ] || [ "$n" = "$AFTER" ] || [ "$n" = "$RUN" ] || refuse "overtaken $n"
  ( R=$W; export R; eval "$A
" ) && [ "$(cat $W/complete)" = yes ] || full "the program cannot be written"
  sync $W/*; sync $W
  # Another attempt was faster, and what it started may have ended and let go of the lock before we took it.
  mv -T $W $R || { rm -rf $W; grep -q '"e":"end"' $R/journal && mine && rm -rf $G/lock; }
  sync $G/runs
  # What attempts of other runs left; they had no lock. Ten runs are kept.
  for d in $G/runs/*.new; do case $d in "$R".*) ;; *) rm -rf "$d";; esac; done
  ls -1t $G/runs | tail -n +11 | while read -r d; do [ "$d" = "$RUN" ] || rm -rf "$G/runs/$d"; done
fi
if [ ! -s $R/journal ]; then
  # mkdir decides who starts it when two ask at once; a start that died before its first entry is made again.
  start=1
  if ! mkdir $R/started; then
    n=0; while [ ! -s $R/pid ] && [ $n -lt 100 ]; do sleep 0.05; n=$((n + 1)); done
    [ ! -s $R/journal ] && ! { read -r p <$R/pid && kill -0 $p; } || start=
  fi
  if [ $start ]; then
    : >>$R/journal
    if [ -d /run/systemd/system ] && command -v systemd-run >/dev/null; then
      systemd-run --quiet --collect --unit=gpustate-$RUN@UNIT@ --property=KillMode=process --property=OOMScoreAdjust=-500 --property=TimeoutStopSec=30 --setenv=PATH="$PATH" sh $R/program >/dev/null </dev/null || [ -s $R/journal ] || { rm -rf $R; refuse "systemd-run does not start the program; is systemd healthy there?"; }
    else
      setsid sh $R/program >/dev/null 2>&1 </dev/null &
    fi
  fi
fi
"""

# Follows the journal until the program is gone. A line on standard input asks the program to stop
# after its current step; the end of input asks for nothing.
_FOLLOW = r"""
( read -r word && [ "$word" = stop ] && : >$R/stop ) <&3 3<&- &
watcher=$!
exec 3<&-
n=0
while [ ! -s $R/pid ] && [ $n -lt 100 ]; do sleep 0.05; n=$((n + 1)); done
if read -r p <$R/pid && grep -qa "runs/$RUN/" /proc/$p/cmdline; then
  tail -c +$((O + 1)) -f -s 0.05 --pid=$p $R/journal
else
  tail -c +$((O + 1)) $R/journal
fi
w=died; tail -n 1 $R/journal | grep -q '"e":"end"' && w=done
printf '\n%s %s\n' $N $w
kill $watcher
exit 0
"""
_FOLLOW = "exec 3<&0\n" + _FOLLOW
_START = _START + _FOLLOW
