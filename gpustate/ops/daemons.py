"""The steps that change what a container runtime's daemon reads: remember, prove, restart.

They work where a plan cannot see: between reading the node and changing it. What the daemon ran with is
kept on tmpfs until it has read something newer, whichever run that takes: so a run that is killed
between writing the files and restarting leaves the restart owed, and the run that makes good for it can
still roll back to what worked. A boot reads the files anyway and forgets the debt.

Surprising: systemd is never told to reload its units. That would make it write the device cgroups of
running containers anew, without the GPUs that a hook has put there.

Each kind of daemon brings four sh functions:

- ``dump`` prints what it makes of the files on disk, and fails when it cannot read them;
- ``others`` reads a dump and prints a line for each value that is not ours;
- ``serves`` reads a dump and succeeds when the handler is registered as asked;
- ``working`` prints a row for each part that works, its last word ``ok``, and fails when the daemon does
  not answer.

Sources:
    NVIDIA/nvidia-container-toolkit#48, discussion #1133: NVML unknown after a daemon-reload.
    NVIDIA/gpu-operator#594: restarts of containerd with unchanged files.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from gpustate.errors import ProbeError, RefusedError
from gpustate.model.beforehand import ORIGINALS, shown
from gpustate.model.change import Change, Disruption, Plan
from gpustate.model.file_asks import ODD, refuse_odd
from gpustate.model.step import Step
from gpustate.ops.library import original_path
from gpustate.ops.steps import (
    ForgetOriginal,
    PutText,
    RemoveFile,
    RestartUnit,
    RestoreOriginal,
    Run,
    StartUnit,
)
from gpustate.text.containerd import Edit
from gpustate.text.numbers import whole

_q, _words = shlex.quote, shlex.join


@dataclass(frozen=True, slots=True)
class Daemon:
    """One daemon of one node.

    Args:
        name: in messages, and in the names of the notes about it.
        unit: its service.
        functions: ``dump``, ``others``, ``serves`` and ``working``.
    """

    name: str
    unit: str
    functions: str

    def prelude(self) -> str:
        """Its functions, and where its notes are."""
        return f"w={owed(self.name)}; n={self.name}\n{self.functions}\n"

    def remember(self, files: Mapping[str, str | None], *, unread: bool) -> Run:
        """Keep what the daemon runs with, for roll-back by this run or the next.

        Args:
            files: path to the text it will have; ``None`` when it goes away.
            unread: it has yet to read what is there now.
        """
        calls = "".join(
            f"remembered {_q(path)} {'-' if text is None else _digest(text)}\n"
            for path, text in files.items()
        )
        mark = ': >"$w/unread"\n' if unread else ""
        text = self.prelude() + _REMEMBER + mark + calls + _HAND_OVER
        return Run(text, f"keep what {self.name} runs with", 60)

    def prove(self, paths: tuple[str, ...], *, present: bool, compare: bool) -> Run:
        """Ask the daemon's program what it makes of the new files; put the old ones back if it is wrong.

        Args:
            paths: files that were written.
            present: the handler must be in the dump.
            compare: everything that is not ours must be as before.
        """
        give_up = f"roll_back {_words(paths)}; rm -rf $w; fail"
        lines = [
            self.prelude(),
            'if ! dump >"$w/after" 2>"$w/why"; then',
            f'  m=$(tail -n 1 "$w/why"); {give_up} "$n cannot read its new configuration: $m"',
            "fi",
        ]
        if compare:
            lines += [
                'if [ -s "$w/dump" ]; then',
                '  others <"$w/dump" | sort >"$w/others.before"; others <"$w/after" | sort >"$w/others.after"',
                '  if ! cmp -s "$w/others.before" "$w/others.after"; then',
                '    m=$(comm -3 "$w/others.before" "$w/others.after" 2>/dev/null | head -n 3 | tr -s '
                "'\\t\\n'"
                " "
                "'  '"
                ")",
                f'    {give_up} "the new configuration would change more than the handler: $m"',
                "  fi",
                "fi",
            ]
        if present:
            lines += [
                'if ! serves <"$w/after"; then',
                f'  {give_up} "$n does not see the handler in its new configuration"',
                "fi",
            ]
        return Run("\n".join(lines), f"have {self.name} read its new configuration", 120)

    def restart(
        self, paths: tuple[str, ...], *, present: bool, healthy: str = "", verb: str = "restart"
    ) -> RestartDaemon:
        """Restart it; it is well when it answers and works as well as before.

        Args:
            paths: files to put back when it is not.
            present: note down that the handler is served; otherwise take the note away.
            healthy: sh that must succeed as well, unless the files have been put back.
            verb: ``reload`` where that is enough for it to read its files.
        """
        more = f'[ -n "${{BACK-}}" ] || {{ {healthy}; }}' if healthy else ":"
        check = _HEALTHY.format(unit=_q(self.unit), more=more)
        return RestartDaemon(self.unit, check, paths, verb=verb, daemon=self, present=present)

    def settle(self, *, present: bool) -> Run:
        """Without a restart nothing is owed: the daemon reads the files when it starts."""
        more = "" if present else f"\n{_forget(self.name)}"
        text = f"rm -rf {owed(self.name)}{more}"
        return Run(text, f"forget what {self.name} ran with", 30)

    def first_start(self) -> StartUnit:
        """At the first boot of an image: it runs, answers, and serves the handler."""
        running = f"systemctl is-active --quiet {_q(self.unit)}"
        check = f"{self.prelude()}{running} && working >/dev/null && dump | serves"
        return StartUnit(self.unit, healthy=check)


@dataclass(frozen=True, slots=True)
class RestartDaemon(RestartUnit):
    """Restart a daemon, unless what it would read is what it runs with.

    Args:
        daemon: which one.
        present: note down that the handler is served; otherwise take the note away.
    """

    daemon: Daemon = Daemon("", "", "")
    present: bool = True

    def script(self) -> str:
        name = self.daemon.name
        note = f': >"$G/{served(name)}"; sync "$G"' if self.present else _forget(name)
        lines = [
            self.daemon.prelude(),
            "noted() {\n" + note + "\n}",
            "trap 'if [ $? = 0 ]; then noted; fi' EXIT",
            'if [ ! -e "$w/unread" ] && [ -s "$w/dump" ] && cmp -s "$w/dump" "$w/after"; then',
            '  rm -rf "$w"; echo "$n runs with it already"; effect same; exit 0',
            "fi",
        ]
        # A dataclass with slots is made anew by its decorator, so super() would not find it.
        return "\n".join([*lines, RestartUnit.script(self)])


#: States of a unit in which it has to read what changes: a reload or a restart on its way, and a service
#: that systemd tries to start again and again, among them.
RUNNING = ("active", "reloading", "activating", "failed")


class Service(Protocol):
    """What an ask has found of a daemon's program and unit."""

    @property
    def program(self) -> str: ...
    @property
    def active(self) -> str: ...
    @property
    def enabled(self) -> str: ...


def stopped(found: Service, restart: str) -> bool:
    """A service that is meant to run and does not; one that nobody has enabled is not missed.

    Args:
        found: its program, ``ActiveState`` and ``UnitFileState``. A masked one is missed: its state says that
            it is to serve.
        restart: the state's parameter; a service that is somebody else's to restart is theirs to start.
    """
    if restart != "systemd" or not found.program:
        return False
    enabled = found.enabled in ("enabled", "enabled-runtime")
    return found.enabled == "masked" or (found.active in ("inactive", "failed") and enabled)


#: ``UnitFileState`` of a service that systemd does not know.
NOT_FOUND = "not-found"


def no_service(found: Service, unit: str, usual: str) -> str | None:
    """Refuse a service that a policy names and systemd does not know, where the daemon is installed.

    Args:
        found: what is there.
        unit: as the policy has it.
        usual: what it is called where the policy does not say; a daemon may do without that one.
    """
    if unit == usual or not found.program or found.enabled != NOT_FOUND:
        return None
    return f"there is no {unit} here: name the service of {found.program} with unit"


def start(unit: str, active: str, *, changes: bool) -> Iterator[Step]:
    """Yield the step that starts a service that is :func:`stopped`, ahead of what has to be read.

    One that failed may have done so over what is about to change: it is started by its restart then.
    """
    if active != "failed" or not changes:
        yield StartUnit(unit)


def writes(files: Mapping[str, str | None], originals: Mapping[str, str | None]) -> Iterator[Step]:
    """Yield the steps that give files their texts, in order; what equals the original is restored.

    Args:
        files: path to text; ``None`` removes the file.
        originals: path to text as it was before gpustate.
    """
    for path, text in files.items():
        if path in originals and originals[path] == text:
            yield RestoreOriginal(path)
        elif text is None:
            yield RemoveFile(path)
            yield ForgetOriginal(path)
        else:
            yield PutText(path, text)


def digest(files: Mapping[str, str]) -> str:
    """Of paths and texts: what a saved plan has of files that may hold passwords."""
    return hashlib.sha256(json.dumps(dict(sorted(files.items()))).encode()).hexdigest()[:16]


#: NVIDIA's runtime as its packages install it.
RUNTIME = "/usr/bin/nvidia-container-runtime"


def runtime_from(binary: str) -> dict[str, str]:
    """:attr:`State.uses` of a state that registers a program as a runtime."""
    return {binary: "container-toolkit" if binary == RUNTIME else ""}


def require(binary: str) -> Run:
    """Refuse to register a program that is not there: every container of the handler would fail."""
    return Run(
        f"[ -x {_q(binary)} ] || fail {_q(f'{binary} is not there: container-toolkit brings it')}",
        f"look for {binary}",
        30,
    )


# --- what a probe asks of it ------------------------------------------------------------------


def or_refusal(plan: Plan, reason: str | None) -> Plan:
    """What a look after the steps finds: with nothing left to do, a refusal is what they did not solve."""
    if reason is None or plan:
        return plan
    return Plan((Change("problem", reason, "", Disruption.NONE),))


def plain_files(edit: Edit, links: Mapping[str, str]) -> Edit:
    """The edit, where it writes plain files.

    Raises:
        RefusedError: one of them is a symbolic link.
    """
    for path in edit.files:
        if path in links:
            raise RefusedError(
                f"{path} is a symbolic link to {links[path]}: managed by something else",
                fix="replace it by a plain file or leave it to its owner",
            )
    return edit


def and_kept(problem: str, originals: Mapping[str, str | None]) -> str:
    """Say of a file that a problem names where its bytes are kept from before gpustate."""
    path = max((path for path in originals if path in problem), key=len, default="")
    if not path:
        return problem
    if originals[path] is None:
        return f"{problem} (before gpustate there was no {path})"
    return f"{problem} (as it was before gpustate it is kept: {original_path(path)})"


def owed(name: str) -> str:
    """What a daemon ran with before a change it has yet to read; on tmpfs, because a boot reads it."""
    return f"/run/gpustate/{name}"


def served(name: str) -> str:
    """The note that gpustate has had this node's daemon read the handler; below ``$G``."""
    return f"{name}.served"


def unit_command(unit: str) -> str:
    """Sh that prints ``unit=1``, ``active=`` and ``enabled=`` and sets ``x``, the unit's command line, and ``t``.

    ``t`` is the second in which the service started, empty when it does not run; ``m`` its process.
    In an image, ``x`` is what systemd will run when it boots: the last of the unit's command lines.
    """
    return _UNIT_COMMAND.replace("@UNIT@", _q(unit)).replace("@SHOWN@", shown(unit))


#: Defines ``odd``; ``blob KIND PATH FILE``, which puts a file among those that ``told`` prints; and ``known FOLDER...``,
#: which does so with kept originals.
BLOBS = (
    ODD
    + r"""
bf=; blob() {
  printf 'several=%s %s\n' "$1" "$2"; bf="$bf$3
"; [ ! -L "$2" ] || printf 'link=%s|%s\n' "$2" "$(readlink "$2")"
}
told() {
  [ -n "$bf" ] || return 0
  bi=$IFS; IFS='
'; set -f; set -- $bf; set +f; IFS=$bi; bf=
  echo contents=; stat -L -c %s -- "$@"; cat -- "$@"; echo
}
known() { # patterns of paths: the bytes they had before gpustate first touched them
  bk=@ORIGINALS@; bi=$IFS; IFS='
'; set -f
  for k in $bk; do
    f=${k#*|}; k=${k%%|*}
    for c in "$@"; do
      case $f in $c) if [ -e "$k" ]; then blob original "$f" "$k"; else echo "missing=$f"; fi; break ;; esac
    done
  done
  IFS=$bi; set +f
}
""".replace("@ORIGINALS@", ORIGINALS)
)


@dataclass(frozen=True, slots=True)
class Rows:
    """What an ask printed: rows of ``key=value``, and whole files.

    A file stands behind its row ``kind=SIZE PATH``. Those that ``told`` printed have rows ``several=KIND PATH``, and
    stand, after a line with the size of each, all behind ``contents=``.
    """

    keys: Mapping[str, tuple[str, ...]]
    blobs: Mapping[str, Mapping[str, str]]

    def last(self, key: str) -> str:
        """The value of the last row of a key; empty where there is none."""
        return self.keys.get(key, ("",))[-1]

    @property
    def service(self) -> tuple[str, str]:
        """``ActiveState``, empty where no unit is loaded, and ``UnitFileState``, ``not-found`` where there is none."""
        active = self.last("active") if "unit" in self.keys else ""
        return active, NOT_FOUND if "no_unit" in self.keys else self.last("enabled")

    def pairs(self, key: str) -> dict[str, str]:
        """The rows of a key, their first word to the rest."""
        split = (row.partition(" ") for row in self.keys.get(key, ()))
        return {word: rest for word, _, rest in split}

    def only_files(self) -> None:
        """Refuse what ``odd`` has found.

        Raises:
            RefusedError: something else is where a file belongs that is read or written here.
        """
        for row in self.keys.get("odd", ()):
            refuse_odd(row)

    @property
    def links(self) -> dict[str, str]:
        """Files that are symbolic links, to what they lead to."""
        rows = (row.rpartition("|") for row in self.keys.get("link", ()))
        return {path: target for path, _, target in rows}

    @property
    def originals(self) -> dict[str, str | None]:
        """Path to text as it was before gpustate; ``None`` for a file that was not there."""
        return {**dict.fromkeys(self.keys.get("missing", ())), **self.blobs["original"]}


def read_rows(out: bytes, what: str, kinds: tuple[str, ...]) -> Rows:
    """Read the answer of an ask.

    Args:
        out: what it printed.
        what: whose files they are, for the message.
        kinds: the rows that files follow.

    Raises:
        ProbeError: a file is shorter than its row says.
    """
    keys: dict[str, list[str]] = {}
    blobs: dict[str, dict[str, str]] = {kind: {} for kind in (*kinds, "original")}
    waiting: list[tuple[str, str]] = []
    rest = out
    while rest:
        row, _, rest = rest.partition(b"\n")
        key, _, value = row.decode("utf-8", "replace").partition("=")
        if key in blobs:
            size, _, path = value.partition(" ")
            these, sizes = [(key, path)], [size.encode()]
        elif key == "contents":
            *sizes, rest = rest.split(b"\n", len(waiting))
            these, waiting = waiting, []
        else:
            if key == "several":
                kind, _, path = value.partition(" ")
                waiting.append((kind, path))
            else:
                keys.setdefault(key, []).append(value)
            continue
        for (kind, path), told in zip(these, sizes, strict=False):
            length = whole(told.decode("ascii", "replace"))
            if length is None or length > len(rest) or kind not in blobs:
                raise ProbeError(f"the listing of {what} is torn at {path[:80]!r}")
            blobs[kind][path] = rest[:length].decode("utf-8", "replace")
            rest = rest[length:]
        if len(sizes) != len(these) or rest[:1] not in (b"", b"\n"):
            raise ProbeError(f"the listing of {what} is torn: a file changed while it was read")
        rest = rest[1:]
    if waiting:
        raise ProbeError(f"the listing of {what} is torn at {waiting[0][1][:80]!r}")
    return Rows({key: tuple(values) for key, values in keys.items()}, blobs)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _forget(name: str) -> str:
    note, folder = served(name), f'"$G/{name}.folder"'
    return (
        f'rm -f "$G/{note}"\n'
        f'if [ -e {folder} ]; then rmdir "$(cat {folder})" 2>/dev/null || :; rm -f {folder}; fi'
    )


_UNIT_COMMAND = r"""
x=; t=; m=
if [ -d /run/systemd/system ]; then
  while IFS= read -r l; do
    case $l in
      LoadState=loaded) echo unit=1 ;;
      LoadState=not-found) echo no_unit=1 ;;
      UnitFileState=*) echo "enabled=${l#*=}" ;;
      ActiveState=*) echo "active=${l#*=}" ;;
      MainPID=[1-9]*) m=${l#*=} ;;
      ExecMainStartTimestamp=?*) t=$(date -d "${l#*=}" +%s) ;;
      ExecStart=*) l=${l#*argv\[\]=}; x=${l%% ; *} ;;
    esac
  done <<END
@SHOWN@
END
elif [ -n "${GPUSTATE_IMAGE-}" ]; then
  for f in /lib/systemd/system/@UNIT@ /usr/lib/systemd/system/@UNIT@ /etc/systemd/system/@UNIT@ \
    /lib/systemd/system/@UNIT@.d/*.conf /usr/lib/systemd/system/@UNIT@.d/*.conf /etc/systemd/system/@UNIT@.d/*.conf; do
    [ -f "$f" ] || continue
    while IFS= read -r l; do case $l in ExecStart=?*) x=${l#*=} ;; esac; done <"$f"
  done
  while :; do case $x in [-@:+!]*) x=${x#?} ;; *) break ;; esac; done
fi
"""

_REMEMBER = r"""
mkdir -p -m 0700 "$w" "$R/pre"
summed() { if [ -e "$1" ]; then sha256sum <"$1" | cut -c1-64; else echo -; fi; }
remembered() { # path, digest of the text it will have: what the daemon has read stays kept
  k=$(sha "$1"); now=$(summed "$1")
  if [ -e "$w/$k.path" ] && [ "$now" != "$(cat "$w/$k.sum")" ] && [ "$now" != "$(summed "$w/$k")" ]; then
    rm -f "$w/$k.path" "$w/$k" # somebody else's since: theirs is what must not be lost
  fi
  printf %s "$2" >"$w/$k.sum"
  d=$(dirname "$1"); [ -d "$d" ] || printf %s "$d" >"$G/$n.folder"
  if [ ! -e "$w/$k.path" ]; then
    rm -f "$w/$k"
    if [ -e "$1" ]; then cp -a "$1" "$w/$k.new"; mv -fT "$w/$k.new" "$w/$k"; fi
    printf %s "$1" >"$w/$k.new"; mv -fT "$w/$k.new" "$w/$k.path"
  fi
}
[ -e "$w/working" ] || { working >"$w/working.new" || :; mv -fT "$w/working.new" "$w/working"; }
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
a=$(working) || return 1
{{ {more}; }} || return 1
if [ "$a" != "$(cat "$w/working" 2>/dev/null)" ]; then
  printf '%s\n' "$a" | while read -r r; do case $r in ''|ok|*' ok') ;; *) exit 1 ;; esac; done || return 1
fi
rm -rf "$w" """
