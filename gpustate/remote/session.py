"""A node that is connected: probing it, running a program on it, following that program.

Counts what it costs: connections and exec channels are part of every result.
"""

from __future__ import annotations

import base64
import gzip
import json
import secrets
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gevent
import paramiko
from pyinfra.api.host import Host as PyinfraHost

from gpustate.errors import ConnectionFailed, ProbeError, StepFailed
from gpustate.model.asks import Answer, Ask
from gpustate.model.encode import fingerprint
from gpustate.model.inventory import DEFAULT_STATE_FOLDER, InventoryNode
from gpustate.ops import LIBRARY, Program
from gpustate.remote import batch as batches
from gpustate.remote.channel import Channel, LocalChannel, SshChannel
from gpustate.remote.connector import node_connector, pyinfra_hosts

PROBE_TIMEOUT_S = 120.0
START_TIMEOUT_S = 60.0
#: A follower that hears nothing for so long asks whether the program is still there.
QUIET_S = 900.0


class Session:
    """One node.

    Args:
        node: as the inventory has it.
        host: pyinfra's host for it, whose connector carries the connection; made when not given.
    """

    def __init__(self, node: InventoryNode, host: PyinfraHost | None = None) -> None:
        self.node = node
        self.execs = 0
        self.connections = 0
        self._prompt = ""
        self._ready = ""
        self._connector = node_connector(host or pyinfra_hosts((node,))[node.name])

    # --- the connection ---------------------------------------------------------------

    def connect(self) -> None:
        """Connect and log in, unless connected; raise ``ConnectionFailed``."""
        if self.node.connection.kind == "local" or self._connector.client is not None:
            return
        self.connections += 1
        self._connector.connect()

    def close(self) -> None:
        """Hang up. What runs on the node goes on."""
        self._connector.disconnect()

    def _transport(self) -> paramiko.Transport | None:
        """The live transport, if there is one."""
        client = self._connector.client
        transport = client.get_transport() if client is not None else None
        return transport if transport is not None and transport.is_active() else None

    def wait_closed(self, seconds: float) -> None:
        """Wait until the other side hangs up, at most so long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self._transport() is None:
                return
            gevent.sleep(0.1)

    def _open(self, inner: str) -> Channel:
        """Start a command, as root where the inventory says ``become``."""
        self.execs += 1
        connection = self.node.connection
        self._prompt = ""
        command = inner
        if connection.become:
            user = shlex.quote(connection.become_user)
            if connection.become_password is None:
                command = f"sudo -n -H -u {user} -- {inner}"
            else:
                self._prompt = f"[{secrets.token_hex(8)}]"
                command = f"sudo -S -H -p '{self._prompt}' -u {user} -- {inner}"
        if connection.kind == "local":
            return LocalChannel(["/bin/sh", "-c", command])
        self.connect()
        transport = self._transport()
        if transport is None:
            raise ConnectionFailed("the connection is gone")
        return SshChannel(transport, command, max(10.0, connection.timeout_s))

    def _start(self, script: str, deadline: float) -> Channel:
        """Run a script that was packed; get past sudo."""
        packed = gzip.compress(script.encode(), 6, mtime=0)
        self._ready = secrets.token_hex(8)
        asks = self.node.connection.become_password is not None and self.node.connection.become
        channel = self._open(batches.command_line(len(packed), self._ready if asks else ""))
        try:
            if self._prompt:
                self._answer_sudo(channel, deadline)
            channel.write(packed, deadline)
        except BaseException:
            channel.close()
            raise
        return channel

    def _answer_sudo(self, channel: Channel, deadline: float) -> None:
        """Give the password if, and only if, sudo asks for it, and wait until the command runs.

        Nothing else may be sent before: sudo would take it for a password.
        """
        said = b""
        prompt, ready = self._prompt.encode(), self._ready.encode()
        given = False
        while time.monotonic() < deadline:
            said += channel.read_stderr()
            if ready in said:
                return
            if said.count(prompt) > given:
                if given:
                    raise ConnectionFailed(
                        "sudo does not accept the become password",
                        fix="check ansible_become_password",
                    )
                password = self.node.connection.become_password or ""
                channel.write(password.encode() + b"\n", deadline)
                given = True
            if channel.readable(0.02):
                said += channel.read_stderr()
                if ready not in said:
                    text = said.replace(prompt, b"").decode("utf-8", "replace").strip()
                    raise ConnectionFailed(
                        f"sudo did not run the command: {text or 'it said nothing'}"
                    )
        raise ConnectionFailed("sudo neither asked for a password nor ran the command")

    def _why_nothing(self, channel: Channel) -> str:
        """Turn what a command that never began said into a cause."""
        said = channel.read_stderr().decode("utf-8", "replace").strip()
        last = said.splitlines()[-1] if said else ""
        if "password is required" in said or "terminal is required" in said:
            return "sudo wants a password; set ansible_become_password or use --ask-become-pass"
        return (
            f"it says: {last}"
            if last
            else "the shell there printed nothing of ours (is the login shell usable?)"
        )

    # --- probing -----------------------------------------------------------------------

    def answer(self, asks: Sequence[Ask[Any]], *, before: str = "") -> tuple[Answer, ...]:
        """Send asks in one exec and wait for the answers.

        Raises:
            ConnectionFailed, ProbeError: nothing came, or nothing usable.
        """
        nonce = "gpustate-" + secrets.token_hex(16)
        made = batches.make_batch(self.node, asks, nonce, before=before)
        deadline = time.monotonic() + PROBE_TIMEOUT_S
        channel = self._start(made.script, deadline)
        reader = batches.AnswerReader(made)
        try:
            while not reader.done:
                data = channel.read(deadline)
                if not data:
                    if not reader.began:
                        raise ProbeError(f"the probe did not start: {self._why_nothing(channel)}")
                    raise ConnectionFailed("the connection broke in the middle of the answer")
                reader.feed(data)
                while reader.needed:
                    channel.write(made.shipped[reader.needed.pop(0)][1], deadline)
            channel.close_stdin()
        finally:
            channel.close()
        return reader.answers()

    def shell(self, script: str, *, timeout_s: float = 30.0) -> Answer:
        """Run a small script of the engine's own (lock, unlock); status and output."""
        nonce = "gpustate-" + secrets.token_hex(16)
        deadline = time.monotonic() + timeout_s
        text = (
            batches.prologue(self.node)
            + f"printf '\\n%s begin\\n' {nonce}\n(\n{script}\n) 2>&1\nprintf '\\n%s end %d\\n' {nonce} $?\n"
        )
        channel = self._start(text, deadline)
        said = b""
        try:
            while True:
                data = channel.read(deadline)
                if not data:
                    break
                said += data
        finally:
            channel.close()
        _, began, rest = said.partition(f"\n{nonce} begin\n".encode())
        body, ended, tail = rest.rpartition(f"\n{nonce} end ".encode())
        if not began or not ended:
            raise ProbeError("the command did not run to its end")
        return Answer(int(tail.split()[0]), body)

    # --- programs ----------------------------------------------------------------------

    def run_program(
        self,
        run: str,
        program: Program,
        lock: dict[str, Any],
        *,
        keep_lock: bool,
        take_over: str | None,
        stop: Callable[[], bool],
    ) -> Iterator[dict[str, Any]]:
        """Upload a program, start it detached, and yield its journal entries as they come.

        Args:
            run: id of the run and stage; a run started twice is followed, not started again.
            program: compiled steps.
            lock: what the node-side lock says about its holder.
            keep_lock: leave the lock in place at the end, for the next stage.
            take_over: run whose lock may be broken, because that run is known to be dead.
            stop: asked again and again; once true, the node is told to end after its current step.

        Raises:
            StepFailed: the program could not be started (disk full, lock held: see the text).
            ConnectionFailed: the connection broke; the program goes on, :meth:`follow` takes it up.
        """
        nonce = "gpustate-" + secrets.token_hex(16)
        files = {
            "library": LIBRARY,
            **program.files,
            "program": _program_text(run, program, self.node, str(lock["run"]), keep_lock),
            "steps.json": json.dumps(
                [{"state": state, "label": step.label} for state, step in program.steps]
            ),
            "complete": "yes\n",
        }
        payload = gzip.compress(_shell_archive(files).encode(), 6, mtime=0)
        words = {
            "@NONCE@": nonce,
            "@RUN@": run,
            "@SIZE@": str(len(payload)),
            "@LOCK@": shlex.quote(json.dumps(lock, sort_keys=True)),
            "@LOCKRUN@": shlex.quote(str(lock["run"])),
            "@EXPIRES@": str(int(lock["expires"])),
            "@TAKE@": shlex.quote(take_over or "-"),
            "@UNIT@": _unit_suffix(self.node),
            "@OFFSET@": "0",
        }
        script = batches.prologue(self.node) + _filled(_START, words)
        deadline = time.monotonic() + START_TIMEOUT_S
        channel = self._start(script, deadline)
        try:
            channel.write(payload, deadline)
            yield from self._journal(channel, nonce, stop)
        finally:
            channel.close()

    def follow(
        self, run: str, offset: int, *, stop: Callable[[], bool]
    ) -> Iterator[dict[str, Any]]:
        """Take up following a program that was started earlier, from a byte of its journal."""
        nonce = "gpustate-" + secrets.token_hex(16)
        script = (
            batches.prologue(self.node)
            + f"RUN={run}; R=$G/runs/$RUN; N={nonce}; O={offset}\nprintf '\\n%s begin\\n' $N\n"
            + f"[ -d $R ] || {{ printf '%s refused no-run\\n' $N; exit 1; }}\n{_FOLLOW}"
        )
        channel = self._start(script, time.monotonic() + START_TIMEOUT_S)
        try:
            yield from self._journal(channel, nonce, stop)
        finally:
            channel.close()

    def _journal(
        self, channel: Channel, nonce: str, stop: Callable[[], bool]
    ) -> Iterator[dict[str, Any]]:
        buffer = b""
        began = told = False
        quiet = time.monotonic()
        while True:
            if stop() and not told and began:
                channel.write(b"stop\n", time.monotonic() + 5)
                told = True
            if not channel.readable(0.5):
                if time.monotonic() - quiet > (QUIET_S if began else START_TIMEOUT_S):
                    raise ConnectionFailed("the node has been silent for too long")
                continue
            data = channel.read(time.monotonic() + 5)
            quiet = time.monotonic()
            if not data:
                if not began:
                    raise StepFailed(f"the program did not start: {self._why_nothing(channel)}")
                raise ConnectionFailed("the connection broke while the node worked")
            buffer += data
            *lines, buffer = buffer.split(b"\n")
            for raw in lines:
                line = raw.decode("utf-8", "replace")
                if line == f"{nonce} begin":
                    began = True
                elif line.startswith(f"{nonce} refused "):
                    raise StepFailed(line.split(" refused ", 1)[1])
                elif line == f"{nonce} done":
                    return
                elif line == f"{nonce} died":
                    yield {"e": "died"}
                    return
                elif began and line.startswith("{"):
                    yield read_entry(line)


def read_entry(line: str) -> dict[str, Any]:
    """Read one journal line; output travels in base64. A torn line is an entry ``torn``."""
    try:
        entry = json.loads(line)
    except ValueError:
        return {"e": "torn"}
    if not isinstance(entry, dict):
        return {"e": "torn"}
    if isinstance(entry.get("out"), str):
        try:
            entry["out"] = base64.b64decode(entry["out"]).decode("utf-8", "replace")
        except ValueError:
            entry["out"] = ""
    entry["bytes"] = len(line.encode()) + 1
    return entry


def _program_text(
    run: str, program: Program, node: InventoryNode, lock: str, keep_lock: bool
) -> str:
    return (
        f"G={shlex.quote(node.state_folder)}; RUN={run}; R=$G/runs/$RUN; LOCK={shlex.quote(lock)}\n"
        f"PROC={shlex.quote(node.proc_root)}; SYS={shlex.quote(node.sys_root)}\n"
        + ("KEEP_LOCK=1\n" if keep_lock else "")
        + "export G RUN R PROC SYS LOCK\n"
        'printf "%s\\n" $$ >"$R/pid.new" && mv "$R/pid.new" "$R/pid"\n'
        '. "$R/library"\n'
        "# Somebody who starts the same run twice gets the one that is there.\n"
        '[ ! -s "$J" ] || exit 0\n'
        """entry '{"e":"start","t":'"$(now)"'}'\n"""
        # The start-up of the program is told apart from its end even when it is killed at once.
         + program.text
    )


def _filled(text: str, words: dict[str, str]) -> str:
    for word, value in words.items():
        text = text.replace(word, value)
    return text


def _unit_suffix(node: InventoryNode) -> str:
    """Keeps units apart where several state folders share one systemd."""
    folder = node.state_folder
    return "" if folder == DEFAULT_STATE_FOLDER else f"-{fingerprint(folder)}"


def _shell_archive(files: dict[str, str]) -> str:
    """A script that writes files into ``$R``; content is quoted, nothing in it is run."""
    parts = []
    for name, text in files.items():
        data = base64.encodebytes(text.encode("utf-8", "surrogateescape")).decode("ascii")
        parts.append(f"base64 -d >$R/{name} <<'END' || exit 75\n{data}END\n")
    return "".join(parts)


# What runs in the exec that starts a program. Order matters: lock, then files, then start, then follow.
_START = r"""
RUN=@RUN@; R=$G/runs/$RUN; N=@NONCE@; O=@OFFSET@
printf '\n%s begin\n' $N
refuse() { rm -rf "$G/runs/$RUN.new"; printf '%s refused %s\n' $N "$*"; exit 1; }
mkdir -p -m 0700 $G $G/runs || refuse "$G cannot be made (read-only or full disk?)"
if [ -d $R ]; then head -c @SIZE@ >/dev/null
else
  rm -rf $G/runs/*.new
  # Is there room for the program, the journal and what has to be kept?
  mkdir -m 0700 $R.new && dd if=/dev/zero of=$R.new/room bs=65536 count=32 && sync $R.new/room || refuse "the disk of $G is full (2 MiB are needed); make room and run again"
  rm -f $R.new/room
  # The lock: a folder that appears whole, by renaming.
  L=$R.new/lock; mkdir $L && printf %s @LOCK@ >$L/info && printf %s @LOCKRUN@ >$L/run && printf %s @EXPIRES@ >$L/expires || refuse "the disk of $G is full; make room and run again"
  if [ -d $G/lock ] && [ "$(cat $G/lock/run)" != @LOCKRUN@ ]; then
    e=$(cat $G/lock/expires); [ "$(cat $G/lock/run)" != @TAKE@ ] && [ "$e" -gt "$(date +%s)" ] && refuse "lock held $(cat $G/lock/info)"
    rm -rf $G/lock
  fi
  rm -rf $G/lock.old; [ -d $G/lock ] && mv -T $G/lock $G/lock.old
  mv -T $L $G/lock || refuse "lock held $(cat $G/lock/info)"
  rm -rf $G/lock.old
  R=$R.new; export R; ( eval "$(head -c @SIZE@ | gzip -dc)" ) && [ "$(cat $R/complete)" = yes ] || { rm -rf $G/lock; refuse "the disk of $G is full; make room and run again"; }
  sync $R/*; sync $R; R=$G/runs/$RUN; mv -T $R.new $R; sync $G/runs
  # Ten runs are kept.
  ls -1t $G/runs | tail -n +11 | while read -r d; do [ "$d" = "$RUN" ] || rm -rf "$G/runs/$d"; done
fi
if [ ! -s $R/journal ]; then
  # mkdir decides who starts it when two ask at once; a start that died before its first entry is made again.
  if mkdir $R/started || ! { read -r p <$R/pid && kill -0 $p; }; then
    : >>$R/journal
    if [ -d /run/systemd/system ] && command -v systemd-run >/dev/null; then
      systemd-run --quiet --collect --unit=gpustate-$RUN@UNIT@ --property=KillMode=process --property=OOMScoreAdjust=-500 --property=TimeoutStopSec=30 --setenv=PATH="$PATH" sh $R/program >/dev/null </dev/null || { rm -rf $G/lock $R; refuse "systemd-run does not start the program; is systemd healthy there?"; }
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
