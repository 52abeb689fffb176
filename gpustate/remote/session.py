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
from typing import TYPE_CHECKING, Any

import paramiko

from gpustate.core.inventory import InventoryNode
from gpustate.core.queries import Answer, Query
from gpustate.errors import ConnectionFailed, ProbeError, StepFailed
from gpustate.formats.numbers import whole
from gpustate.remote import batch as batches
from gpustate.remote import containers, nodeprogram
from gpustate.remote.channel import Channel, LocalChannel, SshChannel
from gpustate.remote.ssh import close_client, lost, open_client

if TYPE_CHECKING:
    from pyinfra.api.host import Host as PyinfraHost

    from gpustate.ops import Program

PROBE_TIMEOUT_S = 120.0
START_TIMEOUT_S = 60.0
#: A follower that hears nothing for so long asks whether the program is still there.
QUIET_S = 900.0


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
            raise ConnectionFailed("it is the root of an image, in which nothing runs")
        if connection.kind in containers.PROGRAMS:
            containers.check(connection.kind, connection.host or "")
            return
        self.connections += 1
        self._client = open_client(self.node.name, self.node.connection)

    def close(self) -> None:
        """Hang up. What runs on the node goes on."""
        if self._client is not None:
            close_client(self._client)
            self._client = None

    def _transport(self) -> paramiko.Transport | None:
        """The live transport, if there is one."""
        transport = self._client.get_transport() if self._client is not None else None
        return transport if transport is not None and transport.is_active() else None

    @property
    def connected(self) -> bool:
        """The connection stands, as far as can be told from here."""
        return self.node.connection.kind != "ssh" or self._transport() is not None

    def _hung_up(self, channel: Channel) -> bool:
        """A channel ended because the connection did, not because the command did."""
        return not channel.ended() and not self.holds()

    def holds(self) -> bool:
        """Tell, after something went wrong, whether the connection still stands.

        paramiko lets everybody know who waits for a channel before it says that the connection is gone.
        """
        end = time.monotonic() + 1.0
        while self.connected and time.monotonic() < end:
            time.sleep(0.02)
        return self.connected

    def _broke(self, when: str) -> ConnectionFailed:
        """The connection broke: when, and why, if that is known."""
        why = lost(self._client) if self._client is not None else ""
        return ConnectionFailed(f"the connection broke {when}" + (f" ({why})" if why else ""))

    def pyinfra(self) -> PyinfraHost:
        """This node for pyinfra's facts and operations, over this connection."""
        from gpustate.remote.connector import pyinfra_host

        self.connect()
        if self._client is None:
            raise ConnectionFailed("there is no SSH connection for pyinfra to this node")
        return pyinfra_host(self.node.name, self._client)

    def wait_closed(self, seconds: float) -> None:
        """Wait until the other side hangs up, at most so long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self._transport() is None:
                return
            time.sleep(0.1)

    def _open(self, inner: str) -> Channel:
        """Start a command, as root where the inventory says ``become``."""
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
            raise ConnectionFailed("the connection is gone")
        return SshChannel(transport, command, max(10.0, connection.timeout_s))

    def start(self, script: str, deadline: float) -> Channel:
        """Run a script that was packed; get past sudo. The caller closes the channel."""
        packed = gzip.compress(script.encode(), 6, mtime=0)
        self._ready = secrets.token_hex(8)
        queries = self.node.connection.become_password is not None and self.node.connection.become
        channel = self._open(batches.command_line(len(packed), self._ready if queries else ""))
        try:
            if self._prompt:
                self._answer_sudo(channel, deadline)
            try:
                channel.write(packed, deadline)
            except ConnectionFailed:
                if not channel.ended():
                    raise
                # What said no before it was sent anything, as sudo does, has said why.
                raise ProbeError(self._not_started(channel)) from None
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
                    raise ProbeError(
                        "sudo does not accept the become password",
                        fix="check ansible_become_password",
                    )
                password = self.node.connection.sudo_password or ""
                channel.write(password.encode() + b"\n", deadline)
                given = True
            if channel.readable(0.02):
                said += channel.read_stderr()
                if ready not in said:
                    text = said.replace(prompt, b"").decode("utf-8", "replace").strip()
                    raise ProbeError(f"sudo did not run the command: {text or 'it said nothing'}")
        raise ProbeError("sudo neither asked for a password nor ran the command")

    def _not_started(self, channel: Channel) -> str:
        """A command that never began, and why, as far as it said."""
        said = channel.read_stderr().decode("utf-8", "replace").strip()
        last = said.splitlines()[-1] if said else ""
        if "password is required" in said or "terminal is required" in said:
            why = "sudo wants a password; set ansible_become_password or use --ask-become-pass"
        elif last:
            why = f"it says: {last}"
        else:
            why = "the shell there printed nothing of ours (is the login shell usable?)"
        return f"the command did not start: {why}"

    # --- probing -----------------------------------------------------------------------

    def answer(self, queries: Sequence[Query[Any]], *, before: str = "") -> tuple[Answer, ...]:
        """Send asks in one exec and wait for the answers.

        Raises:
            ConnectionFailed, ProbeError: nothing came, or nothing usable.
        """
        nonce = "gpustate-" + secrets.token_hex(16)
        made = batches.make_batch(self.node, queries, nonce, before=before)
        deadline = time.monotonic() + PROBE_TIMEOUT_S
        channel = self.start(made.script, deadline)
        reader = batches.AnswerReader(made)
        try:
            while not reader.done:
                data = channel.read(deadline)
                if not data:
                    if self._hung_up(channel):
                        raise self._broke("before the answer was complete")
                    if not reader.began:
                        raise ProbeError(self._not_started(channel))
                    raise ProbeError("the probe ended in the middle of its answer; was it killed?")
                reader.feed(data)
                while reader.needed:
                    channel.write(made.shipped[reader.needed.pop(0)].packed, deadline)
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
        channel = self.start(text, deadline)
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
        status = whole(tail.split()[0].decode("ascii", "replace")) if tail.split() else None
        if status is None:
            raise ProbeError("the command did not say how it ended")
        return Answer(status, body)

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
        after: str | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Upload a program, start it detached, and yield its journal entries as they come.

        Args:
            run: id of the run and stage; a run started twice is followed, not started again.
            program: compiled steps.
            lock: what the node-side lock says about its holder.
            keep_lock: leave the lock in place at the end, for the next stage.
            take_over: run whose lock may be broken, because that run is known to be dead.
            stop: asked again and again; once true, the node is told to end after its current step.
            after: the newest run on the node, as seen when the steps were planned; ``none`` where
                there was none. If it is another one by now, nothing is done.

        Raises:
            StepFailed: the program could not be started (disk full, lock held: see the text).
            ConnectionFailed: the connection broke; the program goes on, :meth:`follow` takes it up.
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
            yield from self._journal(channel, nonce, stop)
        finally:
            channel.close()

    def follow(
        self, run: str, offset: int, *, stop: Callable[[], bool]
    ) -> Iterator[dict[str, Any]]:
        """Take up following a program that was started earlier, from a byte of its journal."""
        nonce = "gpustate-" + secrets.token_hex(16)
        script = nodeprogram.follow_script(run, self.node, nonce, offset)
        channel = self.start(script, time.monotonic() + START_TIMEOUT_S)
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
                if began or self._hung_up(channel):
                    raise self._broke("while the node worked")
                raise StepFailed(self._not_started(channel))
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
                    yield {**read_entry(line), "bytes": len(raw) + 1}


def read_entry(line: str) -> dict[str, Any]:
    """Read one journal line; output travels in base64. A torn line is an entry ``torn``."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return {"e": "torn"}
    if not isinstance(entry, dict):
        return {"e": "torn"}
    if isinstance(entry.get("out"), str):
        try:
            entry["out"] = base64.b64decode(entry["out"]).decode("utf-8", "replace")
        except ValueError:
            entry["out"] = ""
    return entry
