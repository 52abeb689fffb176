"""A connected node: send it queries, run a program on it, follow that program.

Connections and exec channels are counted; the counts are part of every result.
"""

from __future__ import annotations

import base64
import gzip
import json
import secrets
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import paramiko

from gpustate.core.inventory import InventoryNode
from gpustate.core.queries import Answer, Query
from gpustate.errors import ConnectionFailed, ProbeError, StepFailed
from gpustate.formats.numbers import parse_uint
from gpustate.remote import batch as batches
from gpustate.remote import containers, nodeprogram
from gpustate.remote.channel import Channel, LocalChannel, SshChannel
from gpustate.remote.ssh import close_client, keepalive_failure, open_client

if TYPE_CHECKING:
    from gpustate.ops.program import Entry, Program
    from gpustate.remote.nodeprogram import LockInfo

#: What the node may take to end a probe whose time is over, and to send what it has.
_GRACE_S = 15.0
START_TIMEOUT_S = 60.0
#: A program without journal entries for so long is given up, longer if one of its steps may take longer.
QUIET_S = 900.0
#: More than any script prints, and than any entry of a journal has.
_OUTPUT_BYTES, _LINE_BYTES = 64 << 20, 1 << 20


class Silence(ConnectionFailed):
    """A program reports nothing over a connection that works."""


class Session:
    """One node.

    Args:
        node: as the inventory has it.
    """

    def __init__(self, node: InventoryNode) -> None:
        self.node = node
        self.execs = 0
        self.connections = 0
        self._prompt = ""
        self._ready = ""
        self._client: paramiko.SSHClient | None = None

    # --- the connection ---------------------------------------------------------------

    def connect(self) -> None:
        """Connect and log in, unless connected; raise ``ConnectionFailed``."""
        connection = self.node.connection
        if connection.kind == "local" or self._client is not None:
            return
        if connection.kind == "chroot":
            raise ConnectionFailed("an image root is not supported here")
        if connection.kind in containers.PROGRAMS:
            containers.check(connection.kind, connection.host or "")
            return
        self.connections += 1
        self._client = open_client(self.node.name, self.node.connection)

    def close(self) -> None:
        """Disconnect; programs on the node keep running."""
        if self._client is not None:
            close_client(self._client)
            self._client = None

    def _transport(self) -> paramiko.Transport | None:
        """The transport, if it is active."""
        transport = self._client.get_transport() if self._client is not None else None
        return transport if transport is not None and transport.is_active() else None

    @property
    def connected(self) -> bool:
        """Whether the connection is open, as far as this side knows."""
        return self.node.connection.kind != "ssh" or self._transport() is not None

    def _disconnected(self, channel: Channel) -> bool:
        """Whether a channel ended because the connection did, not the command."""
        return not channel.ended() and not self.still_connected()

    def still_connected(self) -> bool:
        """Whether the connection survived an error, after a second at most.

        paramiko wakes callers that wait for a channel before it marks the transport as closed.
        """
        end = time.monotonic() + 1.0
        while self.connected and time.monotonic() < end:
            time.sleep(0.02)
        return self.connected

    def _broke(self, when: str) -> ConnectionFailed:
        """The error for a broken connection, with the reason if it is known."""
        why = keepalive_failure(self._client) if self._client is not None else ""
        return ConnectionFailed(f"the connection broke {when}" + (f" ({why})" if why else ""))

    def wait_closed(self, seconds: float) -> None:
        """Wait at most ``seconds`` until the node closes the connection."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self._transport() is None:
                return
            time.sleep(0.1)

    def _open(self, inner: str) -> Channel:
        """Start a command, with sudo where the inventory sets ``become``."""
        self.execs += 1
        connection = self.node.connection
        self._prompt = ""
        if connection.kind in containers.PROGRAMS:
            return LocalChannel(containers.argv(connection.kind, connection.host or "", inner))
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
            raise ConnectionFailed("the connection is closed")
        return SshChannel(transport, command, max(10.0, connection.timeout_s))

    def start(self, script: str, deadline: float, limit_s: float = 0) -> Channel:
        """Start a script, through sudo if configured; the node ends it after ``limit_s``. The caller closes the channel."""
        packed = gzip.compress(script.encode(), 6, mtime=0)
        self._ready = secrets.token_hex(8)
        sends_password = (
            self.node.connection.become_password is not None and self.node.connection.become
        )
        channel = self._open(
            batches.command_line(len(packed), self._ready if sends_password else "", limit_s)
        )
        try:
            if self._prompt:
                self._answer_sudo(channel, deadline)
            try:
                channel.write(packed, deadline)
            except ConnectionFailed:
                if not channel.ended():
                    raise
                # The command ended before it read its input, as sudo does: its output says why.
                raise ProbeError(self._not_started(channel)) from None
        except BaseException:
            channel.close()
            raise
        return channel

    def _answer_sudo(self, channel: Channel, deadline: float) -> None:
        """Send the password if, and only if, sudo prompts for it, and wait until the command runs.

        Nothing else may be sent before that: sudo would read it as the password.
        """
        stderr = b""
        prompt, ready = self._prompt.encode(), self._ready.encode()
        sent = False
        while time.monotonic() < deadline:
            stderr += channel.read_stderr()
            if ready in stderr:
                return
            if stderr.count(prompt) > sent:
                if sent:
                    raise ProbeError(
                        "sudo rejected the become password",
                        fix="check ansible_become_password, or use --ask-become-pass",
                    )
                password = self.node.connection.sudo_password or ""
                channel.write(password.encode() + b"\n", deadline)
                sent = True
            if channel.readable(0.02):
                stderr += channel.read_stderr()
                if ready not in stderr:
                    text = stderr.replace(prompt, b"").decode("utf-8", "replace").strip()
                    raise ProbeError(f"sudo did not run the command: {text or 'no error message'}")
        raise ProbeError("timed out: sudo neither prompted for a password nor ran the command")

    def _not_started(self, channel: Channel) -> str:
        """Describe why a command did not start, from its standard error."""
        stderr = channel.read_stderr().decode("utf-8", "replace").strip()
        last = stderr.splitlines()[-1] if stderr else ""
        if "password is required" in stderr or "terminal is required" in stderr:
            why = "sudo requires a password; set ansible_become_password or use --ask-become-pass"
        elif last:
            why = last
        else:
            why = "no output; check the user's login shell"
        return f"the command did not start: {why}"

    # --- probing -----------------------------------------------------------------------

    def answer(self, queries: Sequence[Query[Any]], *, before: str = "") -> tuple[Answer, ...]:
        """Send queries in one exec and wait for the answers.

        Raises:
            ConnectionFailed: the connection broke.
            ProbeError: the answer is missing or incomplete.
        """
        nonce = "gpustate-" + secrets.token_hex(16)
        batch = batches.make_batch(self.node, queries, nonce, before=before)
        limit_s = self.node.probe_timeout_s
        deadline = time.monotonic() + limit_s + _GRACE_S
        channel = self.start(batch.script, deadline, limit_s)
        reader = batches.AnswerReader(batch)
        try:
            while not reader.done:
                data = channel.read(deadline)
                if not data:
                    if self._disconnected(channel):
                        raise self._broke("before the answer was complete")
                    if not reader.began:
                        raise ProbeError(self._not_started(channel))
                    raise ProbeError(
                        "the probe ended before its answer was complete",
                        fix="check whether it was killed: dmesg on the node names processes killed for memory",
                    )
                reader.feed(data)
                while reader.needed:
                    channel.write(batch.shipped[reader.needed.pop(0)].packed, deadline)
            channel.close_stdin()
            while reader.cut and (data := channel.read(deadline)):
                reader.feed(data)
        finally:
            channel.close()
        if reader.cut and (names := reader.hung()):
            raise ProbeError(
                f"the probe did not end within {limit_s:g} s and was ended; still running: {names}",
                fix="run that program on the node to see what it waits for; for slow nodes, set gpustate_probe_timeout",
            )
        return reader.answers()

    def shell(self, script: str, *, timeout_s: float = 30.0) -> Answer:
        """Run a short script (lock, unlock); return its status and output."""
        nonce = "gpustate-" + secrets.token_hex(16)
        deadline = time.monotonic() + timeout_s
        text = (
            batches.prologue(self.node)
            + f"printf '\\n%s begin\\n' {nonce}\n(\n{script}\n) 2>&1\nprintf '\\n%s end %d\\n' {nonce} $?\n"
        )
        channel = self.start(text, deadline, timeout_s)
        output = b""
        try:
            while data := channel.read(deadline):
                output += data
                if len(output) > _OUTPUT_BYTES:
                    raise ProbeError("the command printed more than 64 MiB")
            _, began, after_begin = output.partition(f"\n{nonce} begin\n".encode())
            if not began and not self._disconnected(channel):
                raise ProbeError(self._not_started(channel))
        finally:
            channel.close()
        body, ended, tail = after_begin.rpartition(f"\n{nonce} end ".encode())
        if not began or not ended:
            raise ProbeError("the command ended before it was complete")
        status = parse_uint(tail.split()[0].decode("ascii", "replace")) if tail.split() else None
        if status is None:
            raise ProbeError("the command reported no exit status")
        return Answer(status, body)

    # --- programs ----------------------------------------------------------------------

    def run_program(
        self,
        run: str,
        program: Program,
        lock: LockInfo,
        *,
        keep_lock: bool,
        take_over: str | None,
        stop: Callable[[], bool],
        after: str | None = None,
    ) -> Iterator[Entry]:
        """Upload a program, start it detached, and yield its journal entries as they come.

        Args:
            run: id of run and stage; a program that runs already is followed, not started again.
            program: compiled steps.
            lock: holder, reason and expiry, as they are written into the node's lock.
            keep_lock: leave the lock in place at the end, for the next stage.
            take_over: a run that is known to be dead, whose lock may be replaced.
            stop: polled; once true, the program is stopped after its current step.
            after: the newest run on the node when the steps were planned; ``none`` without one.
                If there is a newer one, the program is not started.

        Raises:
            StepFailed: the program could not be started (disk full, lock held).
            ConnectionFailed: the connection broke; the program keeps running, :meth:`follow` reads on.
        """
        nonce = "gpustate-" + secrets.token_hex(16)
        text = nodeprogram.archive(run, program, self.node, lock, keep_lock)
        payload = gzip.compress(text.encode(), 6, mtime=0)
        script = nodeprogram.start_script(
            run, self.node, nonce, len(payload), lock, take_over=take_over, after=after
        )
        deadline = time.monotonic() + START_TIMEOUT_S
        channel = self.start(script, deadline)
        try:
            channel.write(payload, deadline)
            yield from self._journal(channel, nonce, stop, longest_silence_s(program))
        finally:
            channel.close()

    def follow(
        self, run: str, offset: int, *, stop: Callable[[], bool], quiet_s: float = QUIET_S
    ) -> Iterator[Entry]:
        """Follow a program that was started earlier, from a byte offset in its journal."""
        nonce = "gpustate-" + secrets.token_hex(16)
        script = nodeprogram.follow_script(run, self.node, nonce, offset)
        channel = self.start(script, time.monotonic() + START_TIMEOUT_S)
        try:
            yield from self._journal(channel, nonce, stop, quiet_s)
        finally:
            channel.close()

    def _journal(
        self, channel: Channel, nonce: str, stop: Callable[[], bool], quiet_s: float = QUIET_S
    ) -> Iterator[Entry]:
        buffer = b""
        began = stopping = False
        last_line_at = time.monotonic()
        while True:
            if stop() and not stopping and began:
                channel.write(b"stop\n", time.monotonic() + 5)
                stopping = True
            readable = channel.readable(0.5)
            silent_s = time.monotonic() - last_line_at
            if silent_s > (quiet_s if began else START_TIMEOUT_S):
                raise Silence(f"timed out: the program reported nothing for {silent_s:.0f} s")
            if not readable:
                continue
            data = channel.read(time.monotonic() + 5)
            if not data:
                if began or self._disconnected(channel):
                    raise self._broke("while the program ran")
                raise StepFailed(self._not_started(channel))
            buffer += data
            *lines, buffer = buffer.split(b"\n")
            if len(buffer) > _LINE_BYTES:
                raise ProbeError("what follows the program printed a line without end")
            for raw in lines:
                line = raw.decode("utf-8", "replace")
                # Only these lines are from the program.
                if line.startswith(("{", f"{nonce} ")):
                    last_line_at = time.monotonic()
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
                    yield {**read_entry(line), "bytes": len(raw) + 1}


def longest_silence_s(program: Program) -> float:
    """How long a program may report nothing: its longest step is ended by then. That of an earlier run has unknown ones."""
    steps = [step.timeout_s for _, step in program.steps] or [3600]
    return max(QUIET_S, *steps) + START_TIMEOUT_S


def read_entry(line: str) -> Entry:
    """Read one journal line; output is base64. An incomplete line gives an entry ``torn``."""
    try:
        entry: Entry = json.loads(line)
    except (ValueError, RecursionError):
        return {"e": "torn"}
    if not isinstance(entry, dict):
        return {"e": "torn"}
    if isinstance(out := entry.get("out"), str):
        try:
            entry["out"] = base64.b64decode(out).decode("utf-8", "replace")
        except ValueError:
            entry["out"] = ""
    return entry
