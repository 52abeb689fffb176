"""A private key that cannot be used is one line: which file, why, and what to do."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paramiko
import pytest

from gpustate.core.inventory import Connection
from gpustate.errors import ConnectionFailed, UsageError
from gpustate.remote import ssh


def key(folder: Path, *options: str, passphrase: str = "") -> str:
    path = folder / f"key{len(list(folder.iterdir()))}"
    command = ["ssh-keygen", "-q", *options, "-N", passphrase, "-f", str(path)]
    subprocess.run(command, check=True, timeout=60)
    return str(path)


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    sock = tmp_path / "agent"
    monkeypatch.setenv("SSH_AUTH_SOCK", str(sock))
    with subprocess.Popen(["ssh-agent", "-D", "-a", str(sock)], stdout=subprocess.DEVNULL) as process:  # fmt: skip
        while not sock.exists():
            assert process.poll() is None
        yield
        process.terminate()


def refused(path: str) -> str:
    with pytest.raises(UsageError) as caught:
        ssh._key(path)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")
    return str(caught.value).removeprefix(f"{path}: ")


@pytest.mark.parametrize("options", [("-t", "ed25519"), ("-t", "rsa", "-m", "PEM")])
def test_an_encrypted_key_is_taken_from_the_agent(
    tmp_path: Path, agent: None, options: tuple[str, ...]
) -> None:
    path, other = key(tmp_path, *options, passphrase="secret"), key(tmp_path, "-t", "ed25519")
    subprocess.run(["ssh-add", "-q", other], check=True, timeout=60)
    assert refused(path) == (
        f"private key is encrypted, and the SSH agent does not have the key of {path}.pub; "
        f"add it to the agent: ssh-add {path}"
    )
    ask = tmp_path / "ask"
    ask.write_text("#!/bin/sh\necho secret\n")
    ask.chmod(0o700)
    environment = {**os.environ, "SSH_ASKPASS": str(ask), "SSH_ASKPASS_REQUIRE": "force"}
    subprocess.run(["ssh-add", "-q", path], env=environment, check=True, timeout=60)
    assert f"ssh-{options[1]}" in Path(f"{path}.pub").read_text()
    of_agent = ssh._key(path)
    assert isinstance(of_agent, paramiko.AgentKey)
    assert of_agent.get_base64() == Path(f"{path}.pub").read_text().split()[1]
    connection: Any = of_agent.agent
    connection.close()
    Path(f"{path}.pub").unlink()
    assert refused(path).startswith("private key is encrypted")


def test_what_is_no_private_key_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    path = key(tmp_path, "-t", "ed25519")
    assert ssh._key(path).get_name() == "ssh-ed25519"
    wrong = "not a private key of OpenSSH or in PEM format; name a private key: --private-key, or"
    assert refused(f"{path}.pub").startswith(wrong)
    assert refused(f"{path}.none").startswith("private key does not exist; name a private key: ")


def test_each_identity_file_is_tried_that_can_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    encrypted, stranger = key(tmp_path, passphrase="secret"), key(tmp_path, "-t", "ed25519")
    another, own = key(tmp_path, "-t", "ecdsa"), key(tmp_path, "-t", "ed25519")
    host, sshd, config = key(tmp_path, "-t", "ed25519"), tmp_path / "sshd", tmp_path / "config"
    sshd.write_text(
        f"HostKey {host}\nUsePAM no\nStrictModes no\nAuthorizedKeysFile {own}.pub\n"
        "PermitRootLogin yes\n"
    )

    def log_in(*files: str) -> None:
        lines = [
            f"ProxyCommand /usr/sbin/sshd -i -f {sshd}",
            "StrictHostKeyChecking no",
            *(f"IdentityFile {file}" for file in files),
        ]
        path = config.with_name(f"config{len(list(tmp_path.iterdir()))}")
        path.write_text("\n".join(lines))
        connection = Connection(host="node1", user="root", ssh_config_file=str(path))
        ssh.close_client(ssh.open_client("node1", connection))

    log_in(encrypted, stranger, another, own)
    with pytest.raises(ConnectionFailed, match=f"tried {stranger}, {another}"):
        log_in(stranger, another)
    with pytest.raises(UsageError, match="private key is encrypted"):
        log_in(encrypted)
