"""The steps that change what a container runtime's daemon reads: snapshot, validate, restart.

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
import shlex
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from gpustate import shell
from gpustate.core.node import Node
from gpustate.core.state import AnyState, Conflict
from gpustate.core.step import Step
from gpustate.ops.daemon_seen import owed, served
from gpustate.ops.steps import RestoreOriginal, Run, put_own
from gpustate.ops.units import EnableUnit, RestartUnit, StartUnit
from gpustate.probes.required_programs import MissingProgramsQuery, missing_program

_q, _words = shlex.quote, shlex.join


@dataclass(frozen=True, slots=True)
class Daemon:
    """One daemon of one node.

    Args:
        name: in messages, and in the names of the notes about it.
        unit: its service.
        functions: ``dump``, ``others``, ``serves`` and ``working``.
        handler: what it is to serve.
    """

    name: str
    unit: str
    functions: str
    handler: str = ""

    def prelude(self) -> str:
        """Its functions, and where its notes are."""
        return f"notes={owed(self.name)}; daemon={self.name}\n{self.functions}\n"

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
        mark = ': >"$notes/unread"\n' if unread else ""
        text = self.prelude() + _REMEMBER + mark + calls + _HAND_OVER
        return Run(text, f"snapshot {self.name}'s running configuration", 60)

    def validate(self, paths: tuple[str, ...], *, present: bool, compare: bool) -> Run:
        """Ask the daemon's program what it makes of the new files; put the old ones back if it is wrong.

        Args:
            paths: files that were written.
            present: the handler must be in the dump.
            compare: everything that is not ours must be as before.
        """
        give_up = f"roll_back {_words(paths)}; rm -rf $notes; fail"
        lines = [
            self.prelude(),
            'if ! dump >"$notes/after" 2>"$notes/why"; then',
            f'  m=$(tail -n 1 "$notes/why"); {give_up} "$daemon cannot read its new configuration: $m"',
            "fi",
        ]
        if compare:
            lines += [
                'if [ -s "$notes/dump" ]; then',
                '  others <"$notes/dump" | sort >"$notes/others.before"; others <"$notes/after" | sort >"$notes/others.after"',
                '  if ! cmp -s "$notes/others.before" "$notes/others.after"; then',
                '    m=$(comm -3 "$notes/others.before" "$notes/others.after" 2>/dev/null | head -n 3 | tr -s '
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
                'if ! serves <"$notes/after"; then',
                f'  {give_up} "$daemon does not list the handler in its new configuration"',
                "fi",
            ]
        return Run("\n".join(lines), f"validate {self.name}'s new configuration", 120)

    def restart(
        self, paths: tuple[str, ...], *, present: bool, healthy: str = "", verb: str = "restart"
    ) -> RestartDaemon:
        """Restart it; it is well when it answers and works as well as before.

        Args:
            paths: files to put back when it is not.
            present: note down that the handler is served; otherwise remove the note.
            healthy: sh that must succeed as well, unless the files have been put back.
            verb: ``reload`` where that is enough for it to read its files.
        """
        more = f'[ -n "${{BACK-}}" ] || {{ {healthy}; }}' if healthy else ":"
        check = shell.fill(_HEALTHY, UNIT=_q(self.unit), MORE=more)
        return RestartDaemon(self.unit, check, paths, verb=verb, daemon=self, present=present)

    def settle(self, *, present: bool) -> Run:
        """Without a restart nothing is owed: the daemon reads the files when it starts."""
        more = "" if present else f"\n{_forget(self.name)}"
        text = f"rm -rf {owed(self.name)}{more}"
        return Run(text, f"discard the snapshot of {self.name}'s configuration", 30)

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
        present: note down that the handler is served; otherwise remove the note.
    """

    daemon: Daemon = Daemon("", "", "")
    present: bool = True

    def script(self) -> str:
        name = self.daemon.name
        written = f"echo {_q(self.daemon.handler)}"
        note = f'{written} >"$G/{served(name)}"; sync "$G"' if self.present else _forget(name)
        lines = [
            self.daemon.prelude(),
            "noted() {\n" + note + "\n}",
            "trap 'if [ $? = 0 ]; then noted; fi' EXIT",
            'if [ ! -e "$notes/unread" ] && [ -s "$notes/dump" ] && cmp -s "$notes/dump" "$notes/after"; then',
            '  rm -rf "$notes"; echo "$daemon already runs with this configuration"; effect same; exit 0',
            "fi",
        ]
        # A dataclass with slots is recreated by its decorator, so super() would not find it.
        return "\n".join([*lines, RestartUnit.script(self)])


def start(unit: str, active: str, *, enable: bool, changes: bool) -> Iterator[Step]:
    """Yield the steps that start a service that is :func:`stopped`, ahead of what has to be read.

    One that failed may have done so over what is about to change: it is started by its restart then.
    """
    if enable:
        yield EnableUnit(unit, now=False)
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
        else:
            yield put_own(path, text, mode=None)


def left_kept(
    files: Mapping[str, str | None], originals: Mapping[str, str | None]
) -> tuple[str, ...]:
    """Files whose earlier bytes are kept after :func:`writes`: by a later apply they would be the wrong ones.

    Args:
        files, originals: as there.
    """
    given_back = {
        path
        for path, text in files.items()
        if text is None or (path in originals and originals[path] == text)
    }
    return tuple(sorted({*originals, *files} - given_back))


#: NVIDIA's runtime as its packages install it.
RUNTIME = "/usr/bin/nvidia-container-runtime"


def missing_programs(node: Node, binary: str) -> tuple[str, ...]:
    """The program of a handler, where it does not exist or nobody may execute it."""
    missing: frozenset[str] = node.query(MissingProgramsQuery((binary,)))
    return tuple(missing)


def missing_runtime(
    binary: str, missing: Collection[str], policy: Mapping[str, AnyState], *, registered: bool
) -> Iterator[Conflict]:
    """:meth:`State.conflicts` of a state that registers a program as a runtime.

    Args:
        binary: the program.
        missing: programs that do not exist on the node.
        policy: the states that apply to the node.
        registered: the runtime's files name it already.
    """
    provider = "container-toolkit" if binary == RUNTIME else ""
    return missing_program(binary, provider, missing, policy, with_changes=not registered)


def require(binary: str) -> Run:
    """Refuse to register a program that is not there: every container of the handler would fail."""
    return Run(
        f"[ -x {_q(binary)} ] || fail "
        f"{_q(f'{binary} not found; add the state container-toolkit, which installs it')}",
        f"check that {binary} exists",
        30,
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _forget(name: str) -> str:
    note, folder = served(name), f'"$G/{name}.folder"'
    return (
        f'rm -f "$G/{note}"\n'
        f'if [ -e {folder} ]; then rmdir "$(cat {folder})" 2>/dev/null || :; rm -f {folder}; fi'
    )


_REMEMBER = shell.load("daemon_remember", "gpustate.ops")

_HAND_OVER = shell.load("daemon_hand_over", "gpustate.ops")

# What is on disk has been read once it is healthy, the new as well as what was rolled back.
_HEALTHY = shell.load("daemon_healthy", "gpustate.ops")
