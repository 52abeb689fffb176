"""The key that signs the lab's repositories.

It is generated once and kept as an armored file. Each use imports it into a temporary keyring, whose path is short
because of gpg-agent's socket, and stops the agent afterwards.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from gpustate_lab.sim.native import run

IDENTITY = "gpustate lab (simulated packages) <lab@gpustate.invalid>"


class SigningKey:
    """Signs with the key in ``directory``, which is generated at the first use.

    Raises:
        LabError: gpg is missing or fails.
    """

    def __init__(self, directory: Path) -> None:
        self._secret = directory / "signing-key.asc"
        if not self._secret.exists():
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _keyring() as gpg:
                run([*gpg, "--quick-gen-key", IDENTITY, "ed25519", "sign", "never"])
                armored = run([*gpg, "--armor", "--export-secret-keys"])
            fresh = self._secret.with_suffix(f".{os.getpid()}")
            fresh.touch(mode=0o600)
            fresh.write_bytes(armored)
            os.replace(fresh, self._secret)

    def public(self) -> bytes:
        with self._loaded() as gpg:
            return run([*gpg, "--armor", "--export"])

    def clearsign(self, text: bytes) -> bytes:
        with self._loaded() as gpg:
            return run([*gpg, "--digest-algo", "SHA512", "--clearsign"], stdin=text)

    def detached(self, text: bytes) -> bytes:
        with self._loaded() as gpg:
            return run([*gpg, "--digest-algo", "SHA512", "--armor", "--detach-sign"], stdin=text)

    @contextlib.contextmanager
    def _loaded(self) -> Iterator[list[str]]:
        with _keyring() as gpg:
            run([*gpg, "--import", str(self._secret)])
            yield gpg


@contextlib.contextmanager
def _keyring() -> Iterator[list[str]]:
    with tempfile.TemporaryDirectory(prefix="gsl-", dir="/tmp", ignore_cleanup_errors=True) as home:
        try:
            agent = ("--pinentry-mode", "loopback", "--passphrase", "")
            yield ["gpg", "--homedir", home, "--batch", "--yes", *agent]
        finally:
            subprocess.run(
                ["gpgconf", "--homedir", home, "--kill", "all"], capture_output=True, check=False
            )
