"""Host keys: the same answers as those of ``ssh``, which is asked about the same known_hosts file."""

from __future__ import annotations

import os
import subprocess
from functools import partial
from pathlib import Path

import pytest

from gpustate.core.inventory import Connection
from gpustate.errors import ConnectionFailed, UsageError
from gpustate.remote.known_hosts import KnownHosts
from gpustate.remote.ssh import open_client

HOST = "Node1.gpu.example"
#: A known_hosts file: NAME is the host's name, a word in braces a public key. The sshd has {ed25519} and {rsa}.
FILES = {
    "nothing": "",
    "plain": "node1.gpu.example {ed25519}",
    "capitals": "NODE1.gpu.EXAMPLE {ed25519}",
    "another": "node1.gpu.example {stranger}",
    "other name": "node2.gpu.example {stranger}\n# node1.gpu.example {stranger}",
    "list, comment, indented": " \tnode1.gpu.example,10.0.0.1 {ed25519} somebody@here",
    "second type": "node1.gpu.example {rsa}",
    "foreign type": "node1.gpu.example {ecdsa}",
    "two of one type": "node1.gpu.example {stranger}\nnode1.gpu.example {ed25519}",
    "two of two types": "node1.gpu.example {ecdsa}\nnode1.gpu.example {rsa}",
    "pattern": "*.gpu.example {ed25519}",
    "pattern of another": "node?.gpu.* {stranger}",
    "pattern without match": "*.cpu.example {stranger}",
    "dot is no pattern": "node1?gpuxexample {stranger}",
    "negated": "*.gpu.example,!node1.* {ed25519}",
    "negated another": "*.gpu.example,!node2.* {stranger}",
    "only negated": "!node2.gpu.example {ed25519}",
    "revoked": "node1.gpu.example {ed25519}\n@revoked * {ed25519}",
    "revoked first": "@revoked * {ed25519}\nnode1.gpu.example {ed25519}",
    "only revoked": "@revoked *.gpu.example {ed25519}",
    "revoked elsewhere": "@revoked node2.gpu.example {ed25519}\nnode1.gpu.example {ed25519}",
    "revoked another": "@revoked * {stranger}\nnode1.gpu.example {ed25519}",
    "authority": "@cert-authority *.gpu.example {stranger}",
    "authority without certificate": "@cert-authority *.gpu.example {ed25519}",
    "unknown marker": "@trusted node1.gpu.example {stranger}",
    "damaged": "node1.gpu.example ssh-ed25519 ????\nnode1.gpu.example\nnode1.gpu.example ssh-rsa AAAA\n|1|bad|worse {stranger}",
    "type does not fit": "node1.gpu.example ssh-rsa {ed25519_data}",
    "with port": "[node1.gpu.example]:22 {ed25519}",
}
PORT_FILES = {
    "with port": "[node1.gpu.example]:2222 {ed25519}",
    "without port": "node1.gpu.example {ed25519}",
    "another without port": "node1.gpu.example {stranger}",
    "another with port": "[node1.gpu.example]:2222 {stranger}\nnode1.gpu.example {ed25519}",
    "other port": "[node1.gpu.example]:2200 {stranger}",
    "pattern with port": "[*.gpu.example]:2222 {stranger}",
    "pattern for all": "* {stranger}",
}
ALIAS_FILES = {
    "alias": "fleet {ed25519}",
    "alias with port": "[fleet]:2222 {ed25519}",
    "address": "node1.gpu.example {ed25519}",
    "alias of another": "fleet {stranger}",
}
#: Where a key is unknown, accept-new writes it down. So one mode shows both answers.
CASES = [
    *((22, "", "accept-new", name, text) for name, text in FILES.items()),
    *((22, "", "yes", name, FILES[name]) for name in ("nothing", "only revoked", "pattern")),
    *((2222, "", "accept-new", name, text) for name, text in PORT_FILES.items()),
    *((2222, "fleet", "accept-new", name, text) for name, text in ALIAS_FILES.items()),
]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Public keys by name, the folder of the private ones, and a command that is a node's sshd."""
    folder = tmp_path_factory.mktemp("keys")
    public = {"folder": str(folder)}
    for name, kind in (
        ("ed25519", "ed25519"),
        ("rsa", "rsa"),
        ("ecdsa", "ecdsa"),
        ("stranger", "ed25519"),
    ):
        file = folder / name
        subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", file], check=True)
        public[name] = " ".join((folder / f"{name}.pub").read_text().split()[:2])
    public["ed25519_data"] = public["ed25519"].split()[1]
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    configuration = folder / "sshd_config"
    configuration.write_text(f"HostKey {folder}/ed25519\nHostKey {folder}/rsa\nUsePAM no\n")
    public["sshd"] = f"/usr/sbin/sshd -i -f {configuration}"
    return public


def _with_ssh(options: dict[str, str]) -> str:
    words = [word for option, value in options.items() for word in ("-o", f"{option}={value}")]
    command = [
        "ssh",
        "-F",
        "none",
        *words,
        "-o",
        "BatchMode=yes",
        "-o",
        "PreferredAuthentications=none",
        HOST,
        "true",
    ]
    stderr = subprocess.run(command, capture_output=True, text=True, timeout=30).stderr
    if "Permission denied" in stderr:
        return "accepted"
    for word, verdict in (
        ("revoked", "revoked"),
        ("IDENTIFICATION HAS CHANGED", "changed"),
        ("Host key verification failed", "unknown"),
    ):
        if word.lower() in stderr.lower():
            return verdict
    raise AssertionError(stderr)


def _with_gpustate(options: dict[str, str], folder: Path) -> str:
    configuration = folder / f"ssh_config{len(list(folder.iterdir()))}"  # each is read once
    configuration.write_text("".join(f"{option} {value}\n" for option, value in options.items()))
    connection = Connection(
        host=HOST, user="nobody", password="no", ssh_config_file=str(configuration)
    )
    with pytest.raises(ConnectionFailed) as caught:
        open_client(HOST, connection).close()
    for word, verdict in (
        ("authentication failed", "accepted"),
        ("revoked", "revoked"),
        ("differs", "changed"),
        ("is not in", "unknown"),
    ):
        if word in caught.value.message:
            return verdict
    raise AssertionError(caught.value.message)


@pytest.mark.parametrize(
    ("port", "alias", "strict", "name", "text"),
    CASES,
    ids=[" ".join(map(str, case[:4])) for case in CASES],
)
def test_a_key_is_accepted_where_ssh_accepts_it_and_refused_for_its_reason(
    tmp_path: Path, keys: dict[str, str], port: int, alias: str, strict: str, name: str, text: str
) -> None:
    verdicts: list[tuple[str, list[str]]] = []
    for judge in (_with_ssh, partial(_with_gpustate, folder=tmp_path)):
        file = tmp_path / f"known_hosts{len(verdicts)}"
        file.write_text(text.format(**keys) + "\n" if text else "")
        options = {
            "ProxyCommand": keys["sshd"],
            "Port": str(port),
            "StrictHostKeyChecking": strict,
            "UserKnownHostsFile": str(file),
            "GlobalKnownHostsFile": "none",
        }
        if alias:
            options["HostKeyAlias"] = alias
        verdict = judge(options)
        verdicts.append((verdict, file.read_text().replace(HOST, HOST.lower()).split()))
    assert verdicts[1] == verdicts[0]


def _judge(keys: dict[str, str], folder: Path, text: str, **options: str) -> str:
    file = folder / f"known_hosts{len(list(folder.iterdir()))}"
    file.write_text(text.format(**keys) + "\n")
    configuration = {"ProxyCommand": keys["sshd"], "UserKnownHostsFile": str(file), **options}
    verdict = _with_gpustate({"GlobalKnownHostsFile": "none", **configuration}, folder)
    assert verdict == _with_ssh({"GlobalKnownHostsFile": "none", **configuration})
    return verdict


def test_hashed_names_are_those_of_ssh_keygen(tmp_path: Path, keys: dict[str, str]) -> None:
    file = tmp_path / "known_hosts"
    file.write_text("node1.gpu.example {ed25519}\n[node2]:2222 {stranger}\n".format(**keys))
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", file], check=True, capture_output=True)
    hashed = file.read_text()
    assert "node" not in hashed
    assert _judge(keys, tmp_path, hashed, StrictHostKeyChecking="yes") == "accepted"
    assert (
        _judge(keys, tmp_path, hashed, StrictHostKeyChecking="yes", HostKeyAlias="[node2]:2222")
        == "changed"
    )


def test_a_file_of_revoked_keys_counts_for_every_host(tmp_path: Path, keys: dict[str, str]) -> None:
    revoked = str(Path(keys["folder"]) / "ed25519.pub")
    assert _judge(keys, tmp_path, "* {ed25519}", RevokedHostKeys=revoked) == "revoked"


def test_the_system_s_file_is_the_configured(tmp_path: Path, keys: dict[str, str]) -> None:
    (tmp_path / "global").write_text("* {ed25519}\n".format(**keys))
    options = {"GlobalKnownHostsFile": str(tmp_path / "global"), "StrictHostKeyChecking": "yes"}
    assert _judge(keys, tmp_path, "", **options) == "accepted"


def test_a_revoked_key_is_refused_without_checking_too(
    tmp_path: Path, keys: dict[str, str]
) -> None:
    (tmp_path / "known_hosts").write_text("@revoked * {ed25519}\n".format(**keys))
    options = {
        "ProxyCommand": keys["sshd"],
        "UserKnownHostsFile": str(tmp_path / "known_hosts"),
        "StrictHostKeyChecking": "no",
    }
    assert _with_gpustate(options, tmp_path) == "revoked"


def test_a_certificate_authority_is_named_as_unsupported(
    tmp_path: Path, keys: dict[str, str]
) -> None:
    (tmp_path / "known_hosts").write_text("@cert-authority * {stranger}\n".format(**keys))
    (tmp_path / "config").write_text(
        f"UserKnownHostsFile {tmp_path}/known_hosts\nProxyCommand {keys['sshd']}\n"
    )
    connection = Connection(
        host=HOST, user="nobody", password="no", ssh_config_file=str(tmp_path / "config")
    )
    with pytest.raises(
        ConnectionFailed, match=r"host certificates \(.*known_hosts:1\) are unsupported"
    ):
        open_client(HOST, connection)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match=r"folder: is a directory"):
        KnownHosts((str(tmp_path / "folder"),))
