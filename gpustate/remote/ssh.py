"""Open SSH connections, configured by the inventory, ``~/.ssh/config`` and defaults, in this order.

Host keys are checked on every hop, jump hosts included. Nothing prompts, and every wait has a timeout.
TCP_NODELAY is set, which paramiko does not do: an exec on loopback takes 52 ms without it, 4 to 8 ms with.

Sources:
    ssh_config(5); paramiko 4, ``SSHClient.connect``.
"""

from __future__ import annotations

import base64
import importlib
import os
import re
import select
import shlex
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from functools import cache, partial, wraps
from types import SimpleNamespace
from typing import Any, TypeVar

import paramiko
from paramiko import config as paramiko_config

from gpustate.core.inventory import ALIVE_COUNT, ALIVE_INTERVAL_S, Connection, alive_interval
from gpustate.errors import ConnectionFailed, UsageError
from gpustate.files import TextFiles
from gpustate.formats.numbers import parse_uint
from gpustate.remote import keepalive
from gpustate.remote.known_hosts import KnownHosts
from gpustate.remote.users import user_name

_CONFIGURATIONS = TextFiles("SSH configuration", UsageError, limit_mib=16)
_PUBLIC_KEYS = TextFiles("public key", UsageError, limit_mib=1)
_KEY = "name a private key: --private-key, or ansible_ssh_private_key_file in the inventory"
_USER_KNOWN_HOSTS = "~/.ssh/known_hosts ~/.ssh/known_hosts2"
_SYSTEM_KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts /etc/ssh/ssh_known_hosts2"

# Whatever the configuration says, paramiko asks for the local user's name, and fails where a pod's user has none.
paramiko_config.__dict__["getpass"] = SimpleNamespace(getuser=user_name)

_T = TypeVar("_T")
_Load = TypeVar("_Load", bound=Callable[..., Any])


def _once(load: _Load) -> _Load:
    """Cache as ``functools.cache`` does; concurrent first calls load once."""
    lock, cached = threading.Lock(), cache(load)

    @wraps(load)
    def call(*args: Any) -> Any:
        with lock:
            return cached(*args)

    return call  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class _Target:
    """The resolved settings of one hop."""

    host: str
    port: int
    user: str
    keys: tuple[str, ...]
    certificates: tuple[str, ...]
    known_hosts: tuple[str, ...]
    revoked_keys: str
    strict: str
    names: tuple[str, ...]  # host keys are looked up under these; the first is written down
    jump: str | None
    command: str | None
    agent: bool
    alive_interval_s: float
    alive_count: int


@_once
def _config(path: str | None) -> paramiko.SSHConfig:
    file = os.path.expanduser(path or "~/.ssh/config")
    if (path is None and not os.path.isfile(file)) or path in ("none", os.devnull):
        return paramiko.SSHConfig()
    text = _CONFIGURATIONS.text(file)
    try:
        if re.search(r"^\s*match\s.*\bexec\b", text, re.IGNORECASE | re.MULTILINE):
            paramiko_config.__dict__["invoke"] = importlib.import_module("invoke")
        return paramiko.SSHConfig.from_text(text)
    except (OSError, paramiko.SSHException) as error:
        raise UsageError(f"invalid SSH configuration ({error})", place=file) from error


def _target(name: str, connection: Connection) -> _Target:
    alias = connection.host or name
    configured = _config(connection.ssh_config_file).lookup(alias)
    identities = list(configured.get("identityfile") or [])
    keys = (connection.key_file,) if connection.key_file else tuple(identities)
    host_files = [
        connection.known_hosts_file or configured.get("userknownhostsfile", _USER_KNOWN_HOSTS),
        configured.get("globalknownhostsfile", _SYSTEM_KNOWN_HOSTS),
    ]
    strict = connection.strict_host_key
    if strict == "yes" and not connection.known_hosts_file:
        strict = {"no": "no", "off": "no", "accept-new": "accept-new"}.get(
            configured.get("stricthostkeychecking", "yes"), "yes"
        )
    jump = connection.proxy_jump or configured.get("proxyjump")
    command = connection.proxy_command or (None if jump else configured.get("proxycommand"))
    host = configured.get("hostname", alias)
    port = int(connection.port or configured.get("port") or 22)
    known_as = configured.get("hostkeyalias")
    return _Target(
        host=host,
        port=port,
        user=connection.user or configured.get("user") or os.environ.get("USER") or "root",
        keys=tuple(os.path.expanduser(key) for key in keys),
        certificates=tuple(os.path.expanduser(f) for f in configured.get("certificatefile", [])),
        known_hosts=tuple(
            os.devnull if file == "none" else os.path.expanduser(file)
            for file in " ".join(host_files).split()
        ),
        revoked_keys=os.path.expanduser(configured.get("revokedhostkeys", "none")),
        strict=strict,
        names=(known_as,) if known_as else (host,) if port == 22 else (f"[{host}]:{port}", host),
        jump=None if jump == "none" else jump,
        command=None if command == "none" else command,
        agent=configured.get("identitiesonly", "no") != "yes",
        alive_interval_s=_first(
            connection.alive_interval_s,
            alive_interval(str(configured.get("serveraliveinterval", ""))),
            ALIVE_INTERVAL_S,
        ),
        alive_count=_first(
            connection.alive_count,
            parse_uint(str(configured.get("serveralivecountmax", ""))),
            ALIVE_COUNT,
        ),
    )


def _first(*values: _T | None) -> _T:
    return next(value for value in values if value is not None)


@_once
def _known_hosts(files: tuple[str, ...], revoked: str) -> KnownHosts:
    return KnownHosts(files, "" if revoked == "none" else revoked)


@_once
def _private_key(file: str) -> paramiko.PKey | None:
    """Load a key once for all nodes; ``None``: it is encrypted."""
    if not os.path.isfile(file):
        problem = "is not a file" if os.path.lexists(file) else "does not exist"
        raise UsageError(f"private key {problem}", place=file, fix=_KEY)
    if not os.access(file, os.R_OK):
        raise UsageError("private key is not readable", place=file, fix="check its owner and mode")
    try:
        return paramiko.PKey.from_path(file)
    except TypeError:
        return None
    except (paramiko.SSHException, OSError, ValueError) as error:
        raise UsageError(
            "not a private key of OpenSSH or in PEM format", place=file, fix=_KEY
        ) from error


def _key(file: str) -> paramiko.PKey:
    """A key of a file; of the agent, if the file is encrypted: then one for each connection to it."""
    if key := _private_key(file):
        return key
    with suppress(UsageError, ValueError, IndexError):  # without a public key beside it
        public = base64.b64decode(_PUBLIC_KEYS.text(f"{file}.pub").split()[1])
        agent = paramiko.Agent()
        for agent_key in agent.get_keys():
            if agent_key.asbytes() == public:
                return agent_key
        agent.close()
    raise UsageError(
        f"private key is encrypted, and the SSH agent does not have the key of {file}.pub",
        place=file,
        fix=f"add it to the agent: ssh-add {file}",
    )


def _keys(files: Sequence[str]) -> list[paramiko.PKey]:
    """The keys of files that can be used; an error only if none can."""
    keys: list[paramiko.PKey] = []
    problems: list[UsageError] = []
    for file in files:
        try:
            keys.append(_key(file))
        except UsageError as problem:
            problems.append(problem)
    if problems and not keys:
        raise problems[0]
    return keys


def _accepted(client: paramiko.SSHClient, user: str, key: paramiko.PKey) -> bool:
    """Whether the node takes a further key of a connection that is not logged in."""
    transport = client.get_transport()
    if transport is None or not transport.is_active():
        return False
    with suppress(paramiko.AuthenticationException):
        return not transport.auth_publickey(user, key)
    return False


class _HostKeyPolicy(paramiko.MissingHostKeyPolicy):
    """Judge every host key; paramiko itself is given none to compare with."""

    def __init__(self, target: _Target) -> None:
        self.target = target
        self.known = _known_hosts(target.known_hosts, target.revoked_keys)
        self.entries = [self.known.entries(name) for name in target.names]

    def algorithms(self, offered: Iterable[str]) -> list[str]:
        """Sort algorithms: first those of keys that are known."""
        kinds = {entry.kind for entries in self.entries for entry in entries if not entry.marker}
        return sorted(
            offered, key=lambda name: ("ssh-rsa" if name.startswith("rsa-") else name) not in kinds
        )

    def missing_host_key(
        self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey
    ) -> None:
        target, data = self.target, key.asbytes()
        for entries in self.entries:
            same = {entry.marker: entry for entry in entries if entry.key == data}
            if revoked := same.get("@revoked"):
                raise ConnectionFailed(
                    f"host key {key.fingerprint} of {target.host} is revoked by {revoked.place}",
                    fix="do not log in: whoever has this key can pose as the node; give the node a new one",
                )
            if "" in same:
                return
            other_keys = [entry for entry in entries if not entry.marker]
            # A line for the name without the port accepts, but does not refuse.
            if other_keys and entries is self.entries[0]:
                file = other_keys[0].place.rpartition(":")[0]
                raise ConnectionFailed(
                    f"host key of {target.host} differs from the one in {other_keys[0].place} "
                    f"(received {key.get_name()} {key.fingerprint})",
                    fix=f"if the node was reinstalled: ssh-keygen -f {file} -R {shlex.quote(target.names[0])}; otherwise this may be a man-in-the-middle attack",
                )
        if target.strict == "accept-new":
            self.known.add(target.names[0], key)
        elif target.strict != "no":
            certified = "".join(
                f"; host certificates ({entry.place}) are unsupported"
                for entry in self.entries[0]
                if entry.marker == "@cert-authority"
            )
            raise ConnectionFailed(
                f"host key {key.get_name()} {key.fingerprint} is not in {target.known_hosts[0]}{certified}",
                fix=f"verify the fingerprint, then: ssh-keyscan -p {target.port} {target.host} >> {target.known_hosts[0]}",
            )


def open_client(name: str, connection: Connection) -> paramiko.SSHClient:
    """Connect and log in.

    Raises:
        ConnectionFailed: with the cause and the next step.
        UsageError: a key, known_hosts or configuration file cannot be read.
    """
    target = _target(name, connection)
    hops: list[paramiko.SSHClient] = []
    try:
        return _open(target, connection, hops, depth=0)
    except BaseException:
        for hop in reversed(hops):
            hop.close()
        raise


def _hop_connection(jump: str, connection: Connection) -> tuple[str, Connection]:
    user, at, address = jump.rpartition("@")
    host, colon, port = address.rpartition(":")
    if not colon or host.endswith(":"):
        host, port = address, ""
    if port and parse_uint(port) is None:
        raise UsageError(f"jump host {jump!r}: invalid port")
    return host, replace(
        connection,
        host=host.strip("[]"),
        port=int(port) if port else None,
        user=user if at else None,
        proxy_jump=None,
        proxy_command=None,
        password=None,
    )


def _socket(
    target: _Target, connection: Connection, hops: list[paramiko.SSHClient], depth: int
) -> Any:
    if target.jump:
        if depth > 8:
            raise UsageError(f"jump hosts form a cycle at {target.jump}")
        first, _, last = target.jump.rpartition(",")
        host, hop = _hop_connection(last, connection)
        if first:
            hop = replace(hop, proxy_jump=first)
        try:
            client = _open(_target(host, hop), hop, hops, depth + 1)
        except ConnectionFailed as error:
            raise ConnectionFailed(f"jump host {last}: {error.message}", fix=error.fix) from error
        transport = client.get_transport()
        if transport is None:
            raise ConnectionFailed(f"jump host {last} closed the connection")
        try:
            return transport.open_channel(
                "direct-tcpip", (target.host, target.port), ("", 0), timeout=connection.timeout_s
            )
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise ConnectionFailed(
                f"jump host {last} cannot connect to {target.host}:{target.port} ({error})"
            ) from error
    if target.command:
        words = {"%%": "%", "%h": target.host, "%p": str(target.port), "%r": target.user}
        line = re.sub("%[%hpr]", lambda match: words[match[0]], target.command)
        try:
            return _ProxyCommand(line)
        except (ValueError, OSError) as error:
            raise ConnectionFailed(
                f"cannot run ProxyCommand {line!r} ({error})", fix="fix the command"
            ) from error
    try:
        sock = socket.create_connection((target.host, target.port), timeout=connection.timeout_s)
    except socket.gaierror as error:
        raise ConnectionFailed(
            f"cannot resolve {target.host} ({error.strerror})",
            fix="fix the name, or set ansible_host to an address",
        ) from error
    except TimeoutError as error:
        raise ConnectionFailed(
            f"connection to {target.host}:{target.port} timed out after {connection.timeout_s:g} s",
            fix="check that the node is up and no firewall drops the port",
        ) from error
    except OSError as error:
        raise ConnectionFailed(
            f"{target.host}:{target.port}: {error.strerror or error}",
            fix="check that the node is up and sshd is running",
        ) from error
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


class _ProxyCommand(paramiko.ProxyCommand):
    """A proxy command that may end: paramiko's own reads on after the end, until the timeout."""

    process: subprocess.Popen[bytes]

    def recv(self, size: int) -> bytes:
        stdout: Any = self.process.stdout
        try:
            if not select.select([stdout], [], [], self.timeout)[0]:
                raise TimeoutError
            return os.read(stdout.fileno(), size)
        except ValueError:  # closed by now
            return b""

    def reap(self) -> None:
        """End the command and close its pipes; nobody may read from it any more."""
        self.process.kill()
        with self.process:
            pass

    def failure(self, timeout_s: float) -> str:
        """Why there is no connection through it, in its own words."""
        try:
            status = self.process.wait(1)
        except subprocess.TimeoutExpired:
            status = -signal.SIGTERM
        # paramiko stops one that goes on after the timeout.
        slow = status == -signal.SIGTERM
        end = f"did not connect within {timeout_s:g} s" if slow else f"ended with status {status}"
        stderr: Any = self.process.stderr
        os.set_blocking(stderr.fileno(), False)
        lines = (stderr.read(8192) or b"").decode("utf-8", "replace").splitlines()
        words = "; ".join(line.strip() for line in lines[-3:] if line.strip())
        return f"ProxyCommand {end}" + (words and f": {words}")


class _Transport(paramiko.Transport):
    """A paramiko transport that uses less CPU.

    paramiko polls ten times a second for a closed connection; here closing wakes its reader. Its separate
    timer for the key exchange is off: it ignores the configured timeout, and ``connect`` has one. AES-GCM is
    preferred, since paramiko verifies the MACs of other modes byte by byte.
    """

    _active_check_timeout = 1.0

    def __init__(self, sock: Any, host_keys: _HostKeyPolicy, **options: Any) -> None:
        super().__init__(sock, **options)
        self.packetizer.start_handshake = lambda timeout: None  # type: ignore[method-assign]
        security = self.get_security_options()
        security.ciphers = sorted(security.ciphers, key=lambda cipher: "gcm" not in cipher)
        security.key_types = host_keys.algorithms(security.key_types)

    def run(self) -> None:
        """Read until the connection ends, and always mark it as closed.

        paramiko 4.0 registers a new channel before it sets the channel's transport. If the connection ends in
        between, its thread dies with a traceback and the transport stays active, and callers that wait for a
        channel wait on.
        """
        try:
            super().run()
        except Exception as error:  # noqa: BLE001  any error ends the connection
            self.saved_exception = self.saved_exception or error
            self.active = False
            self.packetizer.close()
            self.sock.close()


def _log_in(
    client: paramiko.SSHClient,
    target: _Target,
    connection: Connection,
    keys: Sequence[paramiko.PKey],
    sock: Any,
    policy: _HostKeyPolicy,
) -> None:
    """Connect, and log in with the first key that the node takes."""
    try:
        client.connect(
            target.host,
            port=target.port,
            username=target.user,
            password=connection.login_password,
            pkey=keys[0] if keys else None,
            sock=sock,
            timeout=connection.timeout_s,
            banner_timeout=connection.timeout_s,
            auth_timeout=connection.timeout_s,
            channel_timeout=connection.timeout_s,
            allow_agent=target.agent and not connection.key_file,
            look_for_keys=not keys and connection.password is None,
            transport_factory=partial(_Transport, host_keys=policy),
        )
    except paramiko.AuthenticationException:
        # paramiko takes one key that is loaded.
        if not any(_accepted(client, target.user, key) for key in keys[1:]):
            raise


def _open(
    target: _Target, connection: Connection, hops: list[paramiko.SSHClient], depth: int
) -> paramiko.SSHClient:
    policy = _HostKeyPolicy(target)
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(policy)
    where = f"{target.user}@{target.host}:{target.port}"
    with ExitStack() as cleanup:
        keys = _keys([key for key in target.keys if connection.key_file or os.path.isfile(key)])
        for key in keys:
            if isinstance(key, paramiko.AgentKey):
                agent: Any = key.agent
                client._agent = agent  # type: ignore[attr-defined]  # closed with the client
                cleanup.callback(agent.close)
        link = _socket(target, connection, hops, depth)
        sock: Any = keepalive.TimedSocket(link)
        if isinstance(link, _ProxyCommand):
            cleanup.callback(link.reap)
        cleanup.enter_context(closing(sock))
        cleanup.callback(client.close)
        try:
            _log_in(client, target, connection, keys, sock, policy)
        except paramiko.AuthenticationException as error:
            # paramiko also raises this when the connection breaks or times out during login.
            if any(word in str(error) for word in ("shut down", "timeout")):
                raise ConnectionFailed(
                    f"connection to {where} broke during login ({error})",
                    fix="try again; if it persists, read sshd's log on the node: journalctl -u ssh",
                ) from error
            if isinstance(error, paramiko.PasswordRequiredException):
                raise ConnectionFailed(
                    f"no SSH key to log in to {where}: the default keys are encrypted, and the agent has none of them",
                    fix="add the key to the agent: ssh-add",
                ) from error
            password = ["a password"] if connection.login_password else []
            used = ", ".join([*target.keys, *password]) or "agent and default keys"
            raise ConnectionFailed(
                f"authentication failed for {where} (tried {used})",
                fix="set the user and the key with which ssh logs in: --user and --private-key, or ansible_user and "
                "ansible_ssh_private_key_file",
            ) from error
        except (paramiko.SSHException, EOFError, OSError) as error:
            failure = ""
            if isinstance(link, _ProxyCommand) and not sock.received:
                failure = link.failure(connection.timeout_s)
            if failure:
                raise ConnectionFailed(
                    f"{where}: {failure}",
                    fix=f"run it to see what it lacks: {shlex.join(link.cmd)}",
                ) from error
            text = getattr(error, "strerror", None) or str(error)
            if "No authentication methods" in text:
                raise ConnectionFailed(
                    f"no SSH key to log in to {where}",
                    fix="set --private-key or ansible_ssh_private_key_file, or add a key to the agent with ssh-add",
                ) from error
            if isinstance(error, EOFError) or "shut down" in text:
                text = "connection closed during login"
            # paramiko tries to log in even when the key exchange timed out.
            slow = isinstance(error, TimeoutError) or any(
                word in text.lower() for word in ("banner", "timeout", "no existing session")
            )
            raise ConnectionFailed(
                f"{where}: "
                + (
                    f"no SSH banner or key exchange within {connection.timeout_s:g} s"
                    if slow
                    else text
                ),
                fix="the port is open, but the node hangs or is overloaded: check its console"
                if slow
                else "check sshd on the node: journalctl -u ssh",
            ) from error
        cleanup.pop_all()
    transport = client.get_transport()
    if transport is not None:
        client._gpustate_keepalive = keepalive.monitor(  # type: ignore[attr-defined]
            transport, sock, target.alive_interval_s, target.alive_count
        )
    hops.append(client)
    # A hop must stay open as long as the connections through it.
    client._gpustate_hops = hops  # type: ignore[attr-defined]
    return client


def keepalive_failure(client: paramiko.SSHClient) -> str:
    """Why a connection was closed as dead; empty when it was not."""
    for hop in getattr(client, "_gpustate_hops", [client]):
        monitored = getattr(hop, "_gpustate_keepalive", None)
        if monitored is not None and monitored.lost:
            return str(monitored.lost)
    return ""


def _shut_down(client: paramiko.SSHClient) -> None:
    """Wake paramiko's reader; otherwise its ``close`` waits a tenth of a second for it."""
    transport = client.get_transport()
    shut_down = getattr(transport.sock, "shutdown", None) if transport is not None else None
    if shut_down is not None:
        try:
            shut_down(socket.SHUT_RDWR)
        except (OSError, EOFError, paramiko.SSHException):
            pass  # already closed


def close_client(client: paramiko.SSHClient) -> None:
    """Close a connection and the hops it goes through."""
    for hop in reversed(getattr(client, "_gpustate_hops", [client])):
        reap = getattr(getattr(hop.get_transport(), "sock", None), "reap", None)
        _shut_down(hop)
        hop.close()
        if reap is not None:  # a ProxyCommand, which nobody reads any more
            reap()
