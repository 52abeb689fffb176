"""A running command with its standard input and output, over SSH or on this machine."""

from __future__ import annotations

import select
import subprocess
import threading
import time
from typing import Protocol

import paramiko

from gpustate.errors import ConnectionFailed


class Channel(Protocol):
    """A running command. Reads return ``b""`` at the end of output."""

    def write(self, data: bytes, deadline: float) -> None:
        """Send everything, or raise ``ConnectionFailed``."""
        ...

    def close_stdin(self) -> None:
        """Close the command's standard input."""
        ...

    def read(self, deadline: float) -> bytes:
        """Return the next output; ``b""`` at its end; raise ``ConnectionFailed`` at the deadline."""
        ...

    def read_stderr(self) -> bytes:
        """Return standard error received so far, without waiting."""
        ...

    def readable(self, seconds: float) -> bool:
        """Wait at most ``seconds`` for output or its end."""
        ...

    def ended(self) -> bool:
        """Whether the command's output ended, as opposed to the connection.

        An exit status does not show it: sshd may send it ahead of the last output.
        """
        ...

    def close(self) -> None:
        """Close it; a command that detached itself keeps running."""
        ...


class SshChannel:
    """A session channel of a paramiko transport."""

    def __init__(self, transport: paramiko.Transport, command: str, timeout_s: float) -> None:
        try:
            self._channel = transport.open_session(timeout=timeout_s)
            self._channel.settimeout(timeout_s)
            self._readable = threading.Event()  # set while there is output, and at its end
            self._channel.in_buffer.set_event(self._readable)
            self._channel.exec_command(command)
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise ConnectionFailed(f"cannot open an SSH channel ({_describe(error)})") from error

    def write(self, data: bytes, deadline: float) -> None:
        try:
            self._channel.settimeout(max(0.1, deadline - time.monotonic()))
            self._channel.sendall(data)
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise ConnectionFailed(
                f"the connection broke while sending ({_describe(error)})"
            ) from error

    def close_stdin(self) -> None:
        try:
            self._channel.shutdown_write()
        except (OSError, EOFError, paramiko.SSHException):
            pass

    def read(self, deadline: float) -> bytes:
        try:
            self._channel.settimeout(_remaining_s(deadline))
            data: bytes = self._channel.recv(65536)
        except TimeoutError as error:
            raise ConnectionFailed("timed out waiting for output") from error
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise ConnectionFailed(f"the connection broke ({_describe(error)})") from error
        return data

    def read_stderr(self) -> bytes:
        data = b""
        while self._channel.recv_stderr_ready():
            data += self._channel.recv_stderr(65536)
        return data

    def readable(self, seconds: float) -> bool:
        return self._readable.wait(seconds)

    def ended(self) -> bool:
        return bool(self._channel.eof_received)

    def close(self) -> None:
        try:
            self._channel.close()
        except (OSError, EOFError, paramiko.SSHException):
            pass


class LocalChannel:
    """A process on this machine."""

    def __init__(self, argv: list[str]) -> None:
        try:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
            )
        except OSError as error:
            raise ConnectionFailed(f"cannot run {argv[0]} ({error.strerror})") from error

    def write(self, data: bytes, deadline: float) -> None:
        if self._process.stdin is None:
            raise ConnectionFailed("the command has no standard input")
        view = memoryview(data)
        while view:
            try:
                sent = self._process.stdin.write(view[:65536])
            except OSError as error:
                raise ConnectionFailed(
                    f"the command ended before it read all input ({error.strerror})"
                ) from error
            view = view[sent or 0 :]

    def close_stdin(self) -> None:
        if self._process.stdin:
            try:
                self._process.stdin.close()
            except OSError:
                pass

    def read(self, deadline: float) -> bytes:
        if not self.readable(_remaining_s(deadline)):
            raise ConnectionFailed("timed out waiting for output")
        return (self._process.stdout.read(65536) if self._process.stdout else b"") or b""

    def read_stderr(self) -> bytes:
        stderr = self._process.stderr
        if stderr is None or stderr.closed or not select.select([stderr], [], [], 0)[0]:
            return b""
        return stderr.read(65536) or b""

    def readable(self, seconds: float) -> bool:
        stdout = self._process.stdout
        return stdout is None or bool(select.select([stdout], [], [], seconds)[0])

    def ended(self) -> bool:
        return True

    def close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream:
                try:
                    stream.close()
                except OSError:
                    pass
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=2.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def _remaining_s(deadline: float) -> float:
    """Seconds to wait; output that goes on after the deadline is not waited for."""
    remaining_s = deadline - time.monotonic()
    if remaining_s < -1.0:
        raise ConnectionFailed("timed out: output without end")
    return max(0.05, remaining_s)


def _describe(error: BaseException) -> str:
    return str(error) or type(error).__name__
